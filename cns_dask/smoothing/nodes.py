"""Nodes of the polynomial that solves for absorption: where they come from, and in which order they are used.

They are harmonic Ritz values of W at the pole z of the smallest lam: the zeros of the polynomial of their degree that
leaves a random vector the smallest residual. See `solver` for what is done with them.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import FloatArray
from cns_dask.smoothing.walk import Walk

#: A residual of this or more is solved for in single precision.
SINGLE_PRECISION_TOL = 1e-6
#: Rows up to which memory is plentiful: more vectors are held at the same time.
ROOMY_ROWS = 4 * 2**20
#: Steps of the Arnoldi run that finds the nodes, at most: fewer for graphs so large that its vectors would be the
#: largest thing in memory.
SPECTRUM_STEPS, FEW_SPECTRUM_STEPS = 64, 32
#: Times that 1/k is a node more: see `with_chains`.
CHAIN_NODES = 32
#: By how much an order of nodes may let the residual grow before it falls, and points between them where that is
#: looked at.
LARGEST_GROWTH, BETWEEN_NODES = 10, 200


def precision_for(tol: float) -> type[np.floating[Any]]:
    """Type in which a residual of `tol` is reached."""
    return np.float32 if tol >= SINGLE_PRECISION_TOL else np.float64


def spectrum_steps(n_rows: int) -> int:
    """Steps of the Arnoldi run that finds the nodes, at most."""
    return min(n_rows, SPECTRUM_STEPS if n_rows <= ROOMY_ROWS else FEW_SPECTRUM_STEPS)


def node_sets(walk: Walk, seed: int, lam: float, tol: float) -> list[NDArray[np.complex128]]:
    """Sets of nodes for solves at `lam` and above, from Arnoldi's iteration on a random vector; the best one first.

    There are as many nodes as the random vector itself needs for a residual of `tol` with the polynomial that has them
    as its zeros: unit vectors need about as many. If they were not enough within `spectrum_steps`, their polynomial is
    used again and again; then three quarters of the steps are the best guess, and all or half of them are others.
    """
    n_rows, dtype, pole = walk.n_rows, precision_for(tol), 1 / (1 - lam)
    n_steps = spectrum_steps(n_rows)
    basis: FloatArray = np.empty((n_steps + 1, n_rows), dtype)
    hessenberg = np.zeros((n_steps + 1, n_steps))
    start = np.random.default_rng(seed).standard_normal(n_rows)
    basis[0] = start / np.linalg.norm(start)
    for i in range(n_steps):
        vector = walk.product(basis[i])
        for _ in range(2):  # once more against the loss of orthogonality
            overlap = basis[: i + 1] @ vector
            vector -= overlap @ basis[: i + 1]
            hessenberg[: i + 1, i] += overlap
        norm = hessenberg[i + 1, i] = np.linalg.norm(vector)
        unit = np.eye(i + 1)
        residual = norm * abs(np.linalg.solve(pole * unit - hessenberg[: i + 1, : i + 1], unit[0])[-1])
        if residual < tol or norm < 1e5 * np.finfo(dtype).eps:  # the latter: a subspace that W does not leave
            return [_harmonic_values(hessenberg[: i + 2, : i + 1], pole)]
        basis[i + 1] = vector / norm
    counts = dict.fromkeys(max(1, count) for count in (3 * n_steps // 4, n_steps, n_steps // 2))
    return [_harmonic_values(hessenberg[: count + 1, :count], pole) for count in counts]


def _harmonic_values(hessenberg: FloatArray, pole: float) -> NDArray[np.complex128]:
    """Harmonic Ritz values of W at the pole (m,), from Arnoldi's matrix (m + 1, m).

    They are the zeros of the polynomial that leaves the smallest residual of the random vector (that of GMRES), so
    that it does not grow where there are too few of them; with plain Ritz values it may, a thousandfold on two moons
    of 400 000 rows. Of a conjugate pair only the member with positive imaginary
    part is returned.
    """
    count = hessenberg.shape[1]
    shifted, last = pole * np.eye(count) - hessenberg[:-1], np.eye(count)[-1]
    shifted[:, -1] += hessenberg[-1, -1] ** 2 * np.linalg.solve(shifted.T, last)
    values = pole - np.linalg.eigvals(shifted).astype(np.complex128)
    return values[values.imag >= 0]


def with_chains(nodes: NDArray[np.complex128], n_neighbors: int) -> NDArray[np.complex128]:
    """The nodes, and 1/k so many times more that the polynomial is small on long Jordan chains of W too.

    A row that is listed by no row that it can reach has the eigenvalue 1/k, its chance to stay, and many such rows in a
    row are a chain. Rows with copies have long ones, because all copies list the same few of them. A random vector
    hardly notices them, but to be small on a chain a polynomial must have its eigenvalue as a zero again and again.
    """
    return np.append(nodes, np.full(CHAIN_NODES, 1 / n_neighbors))


def order_nodes(nodes: NDArray[np.complex128], pole: float) -> NDArray[np.complex128]:
    """Order nodes so that the residual falls early and never grows much.

    After each node the residual is about max_w |p(w) / p(pole)| over the spectrum, here the nodes themselves and the
    interval that they span. The next one is that where this is largest (Leja's order), as long as the maximum does not
    grow beyond LARGEST_GROWTH by it; else the one that leaves the smallest maximum. Leja's order alone takes the node
    next to the pole first: the residual grows a few hundred times, and single precision has no digits left.

    Examples
    --------
    >>> order_nodes(np.array([0.0, 0.5, 0.9, 1.0], complex), 1.01).real
    array([0.5, 0. , 1. , 0.9])
    """
    pairs = np.where(nodes.imag != 0, nodes.conj(), np.nan)  # of a pair both members count
    middle, half = (nodes.real.max() + nodes.real.min()) / 2, np.ptp(nodes.real) / 2
    between = middle + half * np.cos(np.linspace(0, np.pi, BETWEEN_NODES))
    spectrum = np.concatenate([nodes, between])

    def shares(members: NDArray[np.complex128]) -> FloatArray:
        """Logarithm of |(w - node) / (pole - node)|, (node, w)."""
        distances = np.abs(spectrum - members[:, None]) / np.abs(pole - members[:, None])
        return np.log(np.maximum(distances, np.finfo(float).tiny))

    steps = shares(nodes) + np.nan_to_num(shares(pairs))
    chosen: list[int] = []
    left, reached = list(range(len(nodes))), np.zeros(len(spectrum))
    while left:
        best = left[int(np.argmax(reached[left]))]
        if not chosen or (reached + steps[best]).max() > np.log(LARGEST_GROWTH):
            best = left[int(np.argmin((reached + steps[left]).max(axis=1)))]
        reached = reached + steps[best]
        left.remove(best)
        chosen.append(best)
    return nodes[chosen]
