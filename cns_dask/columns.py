r"""Chosen columns of (I - (1-lam) W)^-1, for all lam from one sequence of products with W.

| symbol | variable  | shape     | meaning                                                     |
|--------|-----------|-----------|-------------------------------------------------------------|
| W      | walk      | (n, k)    | transition matrix, as its integer graph                      |
| z      | poles     | (lam,)    | 1 / (1-lam): the systems are shifts of each other, z - W     |
| xi     | nodes     | (m,)      | interpolation nodes: Ritz values of W, in a good order       |
| u      | ring      | (s,n,b)   | current Newton polynomial of W times the unit columns        |
| x      | solution  | (lam,n,b) | the wanted columns                                           |

Newton's form of 1/(z - w), with nodes xi_0, xi_1, ...:

    1/(z - w) = sum_i  prod_{l<i} (w - xi_l) / prod_{l<=i} (z - xi_l)  +  remainder

so every pass computes u <- (W - xi_i) u and adds a multiple of u to each lam's solution. u is scaled by the pole of the
smallest lam, z0: it *is* then the residual of that lam, and the residual of every other lam is a known factor <= 1
times u. A conjugate pair a +- ib takes two passes in real arithmetic with (w - a)^2 + b^2. Rows that cannot reach a
column's point stay exactly 0.

A change d of u in pass i (rounding, or small values that are dropped) changes the residual by d times the same factor:
the passes that follow do not amplify it. So the residual is known at any time, to at most the sum of all such changes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cns_dask.passes import add_tiles, aligned_zeros, smooth, smooth_tiles
from cns_dask.plan import DEFERRED_PASSES, LANES, SPECTRUM_STEPS, TILE_ROWS, column_type, krylov_vectors
from cns_dask.types import ColumnBlock, FloatArray, IntArray, Walk

MAX_CYCLES = 20  # of all nodes
SLOWEST = 0.5  # a cycle that leaves more than this share of the residual is stuck
DROPPED = 5e-4  # share of the tolerance: smaller values are dropped in a pass
KRYLOV_CYCLES = 20
LARGEST_GROWTH = 10  # of the residual before it falls


def ritz_values(neighbors: IntArray, seed: int, lam: float, tol: float) -> NDArray[np.complex128]:
    """Ritz values of W from Arnoldi's iteration on a random vector: nodes for columns at `lam` and above.

    There are as many as the random vector itself needs for a residual of `tol` with the polynomial that has them as its
    zeros, within SPECTRUM_STEPS: columns need about as many. Of a conjugate pair only the member with positive
    imaginary part is returned.
    """
    n_rows, dtype, pole = len(neighbors), column_type(tol), 1 / (1 - lam)
    n_steps = min(SPECTRUM_STEPS, n_rows)
    basis: FloatArray = np.empty((n_steps + 1, n_rows), dtype)
    hessenberg = np.zeros((n_steps + 1, n_steps))
    start = np.random.default_rng(seed).standard_normal(n_rows)
    basis[0] = start / np.linalg.norm(start)
    for i in range(n_steps):
        vector = smooth(neighbors, basis[i])
        for _ in range(2):  # once more against the loss of orthogonality
            overlap = basis[: i + 1] @ vector
            vector -= overlap @ basis[: i + 1]
            hessenberg[: i + 1, i] += overlap
        norm = hessenberg[i + 1, i] = np.linalg.norm(vector)
        square = hessenberg[: i + 1, : i + 1]
        unit = np.eye(i + 1)
        residual = norm * abs(np.linalg.solve(pole * unit - square, unit[0])[-1])
        if residual < tol or norm < 1e5 * np.finfo(dtype).eps:  # the latter: a subspace that W does not leave
            break
        basis[i + 1] = vector / norm
    values = np.linalg.eigvals(square).astype(np.complex128)
    return values[values.imag >= 0]


def order_nodes(nodes: NDArray[np.complex128], pole: float) -> NDArray[np.complex128]:
    """Order nodes so that the residual falls early and never grows much.

    After each node the residual is about max_w |p(w) / p(pole)| over the spectrum, here the nodes themselves. The next
    one is that where this is largest (Leja's order), as long as the maximum does not grow beyond LARGEST_GROWTH by it;
    else the one that leaves the smallest maximum. Leja's order alone takes the node next to the pole first: the
    residual grows a few hundred times, and single precision has no digits left.

    Examples
    --------
    >>> order_nodes(np.array([0.0, 0.5, 0.9, 1.0], complex), 1.01).real
    array([0.5, 0. , 1. , 0.9])
    """
    pairs = np.where(nodes.imag != 0, nodes.conj(), np.nan)  # of a pair both members count

    def shares(members: NDArray[np.complex128]) -> FloatArray:
        """Logarithm of |(w - node) / (pole - node)|, (node, w)."""
        distances = np.abs(nodes - members[:, None]) / np.abs(pole - members[:, None])
        return np.log(np.maximum(distances, np.finfo(float).tiny))

    steps = shares(nodes) + np.nan_to_num(shares(pairs))
    chosen: list[int] = []
    left, reached = list(range(len(nodes))), np.zeros(len(nodes))
    while left:
        best = left[int(np.argmax(reached[left]))]
        if not chosen or (reached + steps[best]).max() > np.log(LARGEST_GROWTH):
            best = left[int(np.argmin((reached + steps[left]).max(axis=1)))]
        reached = reached + steps[best]
        left.remove(best)
        chosen.append(best)
    return nodes[chosen]


@dataclass(frozen=True)
class Pass:
    """One product with W: u <- scale (W - shift) u + keep * (the u before it).

    `weights` (lam,) are the multiples of the u that the pass starts from which belong to each lam's solution, and
    `factor` (lam,) is by how much the residuals of the lams have shrunk against that of the smallest after the pass;
    None between the two passes of a pair, where the residual is not known.
    """

    shift: float
    scale: float
    keep: float
    weights: FloatArray
    factor: FloatArray | None


def newton_passes(nodes: NDArray[np.complex128], lams: FloatArray) -> list[list[Pass]]:
    """Passes of one cycle over all nodes, in groups that are added to the solution together; a pair stays together."""
    poles = 1 / (1 - lams)
    first_pole = poles.min()
    factor = np.ones_like(poles)  # prod (z0 - xi) / prod (z - xi) so far
    groups: list[list[Pass]] = [[]]
    for node in order_nodes(nodes, first_pole):
        a, b = float(node.real), float(node.imag)
        if b == 0:
            after = factor * (first_pole - a) / (poles - a)
            passes = [Pass(a, 1 / (first_pole - a), 0.0, poles * factor / (poles - a), after)]
        else:
            here, there = (first_pole - a) ** 2 + b**2, (poles - a) ** 2 + b**2
            root = float(np.sqrt(here))
            after = factor * here / there
            passes = [
                Pass(a, 1 / root, 0.0, poles * factor * (poles - a) / there, None),
                Pass(a, 1 / root, b**2 / here, poles * factor * root / there, after),
            ]
        factor = after
        if len(groups[-1]) + len(passes) > DEFERRED_PASSES:
            groups.append([])
        groups[-1] += passes
    return groups


def column_block(
    walk: Walk, rows: IntArray, lams: FloatArray, nodes: NDArray[np.complex128], tol: float, width: int = LANES[0]
) -> ColumnBlock:
    """Solve (I - (1-lam) W) x = e_j for the points j in `rows` and every lam, to a residual of `tol`.

    Values are in single precision where `tol` allows it. Columns that the polynomial does not solve are handed to a
    Krylov method. The block is computed `width` columns wide, whatever the number of rows: that is compiled once.

    Examples
    --------
    >>> from cns_dask.transition import walk_on
    >>> pair = walk_on(np.array([[0, 1], [1, 0]]))
    >>> nodes = ritz_values(pair.neighbors, 0, 0.5, 1e-12)
    >>> column_block(pair, np.array([0]), np.array([0.5]), nodes, 1e-12).values.round(6)
    array([[[1.5],
            [0.5]]])
    """
    lams = np.asarray(lams, dtype=np.float64)
    solution, residuals, n_passes = _newton(walk, rows, lams, nodes, tol, width)
    values = solution[:, :, : len(rows)]
    for at, column in np.argwhere(~(residuals <= tol)):
        values[at, :, column], residuals[at, column] = _krylov(
            walk.neighbors, rows[column], lams[at], values[at, :, column], tol
        )
    return ColumnBlock(values, residuals, n_passes)


def _newton(
    walk: Walk, rows: IntArray, lams: FloatArray, nodes: NDArray[np.complex128], tol: float, width: int
) -> tuple[FloatArray, FloatArray, int]:
    """Newton's form with the nodes used in cycles: solution, residuals (lam, column) and number of passes.

    A column that is solved, or that the polynomial cannot solve, becomes 0 and takes no further part.
    """
    dtype, n_rows, n_columns = column_type(tol), len(walk.neighbors), len(rows)
    epsilon, drop = np.finfo(dtype).eps, DROPPED * tol
    most = tol / (10 * epsilon)  # a larger residual has lost its digits
    groups, lanes = newton_passes(nodes, lams), (0,) * width
    solution = aligned_zeros((len(lams), n_rows, width), dtype)
    ring = aligned_zeros((DEFERRED_PASSES + 1, n_rows, width), dtype)
    live = np.zeros((len(ring), len(walk.reads)), np.bool_)
    ring[0, rows, np.arange(n_columns)] = 1
    live[0, rows // TILE_ROWS] = True

    now, n_passes, factor = 0, 0, np.ones_like(lams)
    changed, before, active = np.zeros(n_columns), np.ones(n_columns), np.ones(n_columns, np.bool_)
    residuals, peaks = np.full((len(lams), n_columns), np.inf), np.zeros(width, dtype)
    for _ in range(MAX_CYCLES):
        for group in groups:
            first, weights = now, []
            for step in group:
                weights.append(factor * step.weights)
                smooth_tiles(
                    walk.neighbors, walk.reads, ring, live, now, step.shift, step.scale, step.keep, drop, lanes, peaks
                )
                now = (now + 1) % len(ring)
                n_passes += 1
                changed += drop + epsilon * peaks[:n_columns]
                if step.factor is not None:
                    residual_factor, reached = factor * step.factor, peaks[:n_columns] + changed
                    solved = active & (reached <= tol)
                    residuals[:, solved] = residual_factor[:, None] * peaks[:n_columns][solved] + changed[solved]
                    done = solved | (active & ~(reached <= most))
                    if done.any():
                        active &= ~done
                        ring[now][:, np.flatnonzero(done)] = 0
                if not active.any():
                    break
            add_tiles(np.stack(weights, axis=1).astype(dtype), ring, live, first, solution)
            if not active.any():
                return solution, residuals, n_passes
        stuck = active & (peaks[:n_columns] > SLOWEST * before)
        active &= ~stuck
        ring[now][:, np.flatnonzero(stuck)] = 0
        factor, before = residual_factor, peaks[:n_columns].astype(np.float64)
    return solution, residuals, n_passes


def column_residual(neighbors: IntArray, row: int, lam: float, values: FloatArray) -> float:
    """Largest absolute residual of one column; error of lam x <= max|r|, because W is stochastic."""
    residual = values - (1 - lam) * smooth(neighbors, values)
    residual[row] -= 1
    return float(np.abs(residual).max())


def _krylov(neighbors: IntArray, row: int, lam: float, start: FloatArray, tol: float) -> tuple[FloatArray, float]:
    """Solve one column for one lam with GMRES, starting from what is there if it is usable; and its residual."""
    from scipy.sparse.linalg import LinearOperator, gmres

    n_rows, start = len(neighbors), start.astype(np.float64)
    unit = np.zeros(n_rows)
    unit[row] = 1
    matrix = LinearOperator(
        (n_rows, n_rows), matvec=lambda x: x - (1 - lam) * smooth(neighbors, x.ravel()), dtype=float
    )
    usable = bool(np.abs(start).max() * lam <= 2)  # a true column times lam is at most 1
    column, _ = gmres(
        matrix,
        unit,
        x0=start if usable else None,
        rtol=0,
        atol=tol,
        restart=krylov_vectors(n_rows),
        maxiter=KRYLOV_CYCLES,
    )
    return column, column_residual(neighbors, row, lam, column)
