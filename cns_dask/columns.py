r"""Chosen columns of (I - (1-lam) W)^-1, for all lam from one sequence of products with W.

| symbol | variable  | shape     | meaning                                                     |
|--------|-----------|-----------|-------------------------------------------------------------|
| W      | neighbors | (n, k)    | transition matrix, as its integer graph                      |
| z      | poles     | (lam,)    | 1 / (1-lam): the systems are shifts of each other, z - W     |
| xi     | nodes     | (m,)      | interpolation nodes: Ritz values of W, Leja-ordered          |
| u      | u         | (n, b)    | current Newton polynomial of W times the unit columns        |
| x      | solution  | (lam,n,b) | the wanted columns                                           |

Newton's form of 1/(z - w), with nodes xi_0, xi_1, ...:

    1/(z - w) = sum_i  prod_{l<i} (w - xi_l) / prod_{l<=i} (z - xi_l)  +  remainder

so every pass computes u <- (W - xi_i) u and adds a multiple of u to each lam's solution. u is scaled by the pole of the
smallest lam, z0: it *is* then the residual of that lam, and the residual of every other lam is a known factor <= 1
times u. A conjugate pair a +- ib takes two passes in real arithmetic with (w - a)^2 + b^2. Rows that cannot reach a
column's point stay exactly 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cns_dask.kernels import add_products, smooth_block
from cns_dask.plan import DEFERRED_PASSES, KRYLOV_VECTORS, SPECTRUM_STEPS
from cns_dask.transition import smooth
from cns_dask.types import ColumnBlock, FloatArray, IntArray

MAX_CYCLES = 20  # of all nodes
SLOWEST = 0.5  # a cycle that leaves more than this share of the residual is stuck
LARGEST_GROWTH = 1e6  # of the residual within a cycle; digits beyond it are lost
KRYLOV_CYCLES = 20


def ritz_values(neighbors: IntArray, seed: int, n_steps: int = SPECTRUM_STEPS) -> NDArray[np.complex128]:
    """Ritz values of W after `n_steps` of Arnoldi's iteration on a random vector, Leja-ordered.

    Of a conjugate pair only the member with positive imaginary part is returned.
    """
    n_rows = len(neighbors)
    n_steps = min(n_steps, n_rows)
    basis = np.empty((n_steps + 1, n_rows))
    hessenberg = np.zeros((n_steps + 1, n_steps))
    start = np.random.default_rng(seed).standard_normal(n_rows)
    basis[0] = start / np.linalg.norm(start)
    for i in range(n_steps):
        vector = smooth(neighbors, basis[i][:, None])[:, 0]
        for _ in range(2):  # once more against the loss of orthogonality
            overlap = basis[: i + 1] @ vector
            vector -= overlap @ basis[: i + 1]
            hessenberg[: i + 1, i] += overlap
        norm = hessenberg[i + 1, i] = np.linalg.norm(vector)
        if norm < 1e-10:  # an invariant subspace: its eigenvalues are all that this vector can see
            n_steps = i + 1
            break
        basis[i + 1] = vector / norm
    values = np.linalg.eigvals(hessenberg[:n_steps, :n_steps]).astype(np.complex128)
    return leja_order(values[values.imag >= 0])


def leja_order(values: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Order nodes so that each is as far as possible from all before it (as a product of distances).

    Examples
    --------
    >>> leja_order(np.array([0.0, 0.5, 0.9, 1.0], complex)).real
    array([1. , 0. , 0.5, 0.9])
    """
    chosen = [int(np.argmax(np.abs(values)))]
    reach = np.zeros(len(values))  # logarithm of the product of distances to the chosen
    while len(chosen) < len(values):
        node = values[chosen[-1]]
        for member in dict.fromkeys((node, node.conjugate())):
            reach += np.log(np.maximum(np.abs(values - member), np.finfo(float).tiny))
        reach[chosen] = -np.inf
        chosen.append(int(np.argmax(reach)))
    return values[chosen]


@dataclass(frozen=True)
class Pass:
    """One product with W: u <- scale (W - shift) u + keep * (the u before it).

    `weights` (lam,) are the multiples of the u that the pass starts from which belong to each lam's solution.
    """

    shift: float
    scale: float
    keep: float
    weights: FloatArray


def newton_passes(nodes: NDArray[np.complex128], lams: FloatArray) -> tuple[list[list[Pass]], FloatArray]:
    """Passes of one cycle over all nodes, in groups that are added to the solution together, and the factor (lam,)
    by which the residuals of the lams have shrunk against that of the smallest after the cycle.
    """
    poles = 1 / (1 - lams)
    first_pole = poles.min()
    factor = np.ones_like(poles)  # prod (z0 - xi) / prod (z - xi) so far
    groups: list[list[Pass]] = [[]]
    for node in nodes:
        a, b = float(node.real), float(node.imag)
        if b == 0:
            passes = [Pass(a, 1 / (first_pole - a), 0.0, poles * factor / (poles - a))]
            factor = factor * (first_pole - a) / (poles - a)
        else:
            here, there = (first_pole - a) ** 2 + b**2, (poles - a) ** 2 + b**2
            root = float(np.sqrt(here))
            passes = [
                Pass(a, 1 / root, 0.0, poles * factor * (poles - a) / there),
                Pass(a, 1 / root, b**2 / here, poles * factor * root / there),
            ]
            factor = factor * here / there
        if len(groups[-1]) + len(passes) > DEFERRED_PASSES:
            groups.append([])
        groups[-1] += passes
    return groups, factor


def column_block(
    neighbors: IntArray, rows: IntArray, lams: FloatArray, nodes: NDArray[np.complex128], tol: float
) -> ColumnBlock:
    """Solve (I - (1-lam) W) x = e_j for the points j in `rows` and every lam.

    The residual of every column and lam is measured at the end; what misses `tol` is handed to a Krylov method.

    Examples
    --------
    >>> pair = np.array([[0, 1], [1, 0]])
    >>> nodes = ritz_values(pair, seed=0)
    >>> column_block(pair, np.array([0]), np.array([0.5]), nodes, 1e-12).values.round(6)
    array([[[1.5],
            [0.5]]])
    """
    lams = np.asarray(lams, dtype=np.float64)
    solution, n_passes = _newton(neighbors, rows, lams, nodes, tol)
    residuals = column_residuals(neighbors, rows, lams, solution)
    missed = np.argwhere(~(residuals <= tol))
    for at, column in missed:
        solution[at, :, column] = _krylov(neighbors, rows[column], lams[at], solution[at, :, column], tol)
    if len(missed):
        residuals = column_residuals(neighbors, rows, lams, solution)
    return ColumnBlock(solution, residuals, n_passes)


def column_residuals(neighbors: IntArray, rows: IntArray, lams: FloatArray, solution: FloatArray) -> FloatArray:
    """Largest absolute residual of every column (lam, column); error of lam x <= max|r|, because W is stochastic."""
    worst = np.empty((len(lams), len(rows)))
    for at, lam in enumerate(lams):
        residual = solution[at] - (1 - lam) * smooth(neighbors, solution[at])
        residual[rows, np.arange(len(rows))] -= 1
        worst[at] = np.abs(residual).max(axis=0)
    return worst


def _newton(
    neighbors: IntArray, rows: IntArray, lams: FloatArray, nodes: NDArray[np.complex128], tol: float
) -> tuple[FloatArray, int]:
    """Newton's form with the nodes used in cycles, until the residual is below `tol` or stops to fall."""
    groups, shrunk = newton_passes(nodes, lams)
    factor = np.ones_like(lams)
    solution = np.zeros((len(lams), len(neighbors), len(rows)))
    u = np.zeros((DEFERRED_PASSES + 1, len(neighbors), len(rows)))
    u[0, rows, np.arange(len(rows))] = 1
    n_passes, before = 0, 1.0
    for _ in range(MAX_CYCLES):
        for group in groups:
            for i, step in enumerate(group):
                smooth_block(neighbors, u[i], step.shift, step.scale, u[max(i - 1, 0)], step.keep, u[i + 1])
            weights = np.stack([factor * step.weights for step in group], axis=1)
            add_products(weights, u[: len(group)], solution)
            u[0] = u[len(group)]
            n_passes += len(group)
            residual = float(max(u[0].max(), -u[0].min()))
            if residual <= tol or not residual <= LARGEST_GROWTH * before:
                return solution, n_passes
        if residual > SLOWEST * before:
            break
        factor, before = factor * shrunk, residual
    return solution, n_passes


def _krylov(neighbors: IntArray, row: int, lam: float, start: FloatArray, tol: float) -> FloatArray:
    """Solve one column for one lam with GMRES, starting from what is there if it is usable."""
    from scipy.sparse.linalg import LinearOperator, gmres

    n_rows = len(neighbors)
    unit = np.zeros(n_rows)
    unit[row] = 1
    matrix = LinearOperator(
        (n_rows, n_rows), matvec=lambda x: x - (1 - lam) * smooth(neighbors, x.reshape(-1, 1)).ravel(), dtype=float
    )
    usable = bool(np.abs(start).max() * lam <= 2)  # a true column times lam is at most 1
    column, _ = gmres(
        matrix,
        unit,
        x0=start if usable else None,
        rtol=0,
        atol=tol,
        restart=min(KRYLOV_VECTORS, n_rows),
        maxiter=KRYLOV_CYCLES,
    )
    return np.asarray(column)
