"""Absorption: columns x_j of (I - (1-lam) W)^-1, for all lam.

x_j holds the expected visits to point j of walks from every row, and lam x_j the chance that they are absorbed there.
Most are solved by one polynomial of W for all of them (`newton`, with the nodes of `nodes`), in single precision where
the tolerance allows it; what it leaves is solved by the same with more nodes in double precision, then directly or by a
Krylov method.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import NotConvergedWarning
from cns_dask.smoothing.newton import SHORT_RING_PASSES, SolvedBlock, newton_passes, ring_passes, solve_by_polynomial
from cns_dask.smoothing.nodes import ROOMY_ROWS, node_sets, precision_for, with_chains
from cns_dask.smoothing.walk import Walk
from cns_dask.storage.chunks import FLOAT_BYTES, clip

#: Points of a block: a line of the cache in single precision, or fewer where memory ends.
BLOCK_WIDTHS = 16, 8, 4
#: Of the direct method that takes over where its factors are at most so large, at 12 bytes for each of their numbers.
DIRECT_BYTES, FACTOR_BYTES = 128 * 2**20, 12
#: Of the Krylov method that takes over elsewhere: restarts of a column, vectors between them, and their bytes.
KRYLOV_CYCLES, KRYLOV_VECTORS, KRYLOV_BYTES = 20, 100, 2**30
#: Points that are solved once more in double precision are so many at a time.
AGAIN_WIDTH = 4
#: Products with W that it may take for a whole block, and entries of W that these may visit.
KRYLOV_PASSES, KRYLOV_VISITS = 10_000, 10**11


def krylov_vectors(n_rows: int) -> int:
    """Vectors that the Krylov method keeps between restarts."""
    return clip(KRYLOV_BYTES // (FLOAT_BYTES * n_rows), 12, min(KRYLOV_VECTORS, n_rows))


def fallback_bytes(n_rows: int) -> int:
    """Memory for columns that the polynomial does not solve in single precision; its own is free again by then."""
    again = (ring_passes(n_rows, some_rows=True) + 1) * AGAIN_WIDTH
    krylov = krylov_vectors(n_rows) + 4
    return max(FLOAT_BYTES * n_rows * max(again, krylov), min(FACTOR_BYTES * n_rows**2, DIRECT_BYTES))


def find_nodes(
    walk: Walk, points: IntArray, lams: FloatArray, seed: int, tol: float, width: int
) -> NDArray[np.complex128]:
    """The nodes for the solves at some points: of several sets the first that solves for a few of them."""
    sets = node_sets(walk, seed, float(lams.min()), tol)
    if len(sets) == 1:
        return sets[0]
    some = np.sort(points)[np.linspace(0, len(points) - 1, min(width, len(points))).astype(int)]
    probes, unsolved = [some[at : at + 1] for at in range(len(some))], []
    for nodes in sets:
        groups = newton_passes(nodes, lams, SHORT_RING_PASSES)
        block = solve_by_polynomial(walk, probes, lams, groups, tol, width, some, precision_for(tol))
        unsolved.append(len(_unsolved(block, tol)))
        if unsolved[-1] == 0:
            return nodes
    return sets[int(np.argmin(unsolved))]


def solve_block(
    walk: Walk,
    points: IntArray | Sequence[IntArray],
    lams: FloatArray,
    nodes: NDArray[np.complex128],
    tol: float,
    width: int = BLOCK_WIDTHS[0],
    rows: IntArray | None = None,
) -> SolvedBlock:
    """Solve (I - (1-lam) W) x = e_j for the points j and every lam, to a residual of `tol`; x at `rows`, or at all.

    Several points in the place of one are solved for their sum. Values are in single precision where `tol` allows it.
    What the polynomial does not solve there is tried in double precision, and what it does not solve at all, because
    lam is far below 1/sqrt(n), is solved directly where that needs little memory, and by a Krylov method within a
    budget elsewhere. The block is computed `width` points wide, however many there are: that is compiled once.

    Examples
    --------
    >>> from cns_dask.smoothing.walk import walk_on
    >>> pair = walk_on(np.array([[0, 1], [1, 0]]))
    >>> nodes = node_sets(pair, 0, 0.5, 1e-12)[0]
    >>> solve_block(pair, np.array([0]), np.array([0.5]), nodes, 1e-12).values.round(6)
    array([[[1.5],
            [0.5]]])
    """
    lams = np.asarray(lams, dtype=np.float64)
    some = [np.atleast_1d(each) for each in points]
    groups = newton_passes(nodes, lams, ring_passes(walk.n_rows, some_rows=rows is not None))
    block = solve_by_polynomial(walk, some, lams, groups, tol, width, rows, precision_for(tol))
    unsolved = _unsolved(block, tol)
    if not unsolved.size:
        return block
    groups = newton_passes(with_chains(nodes, walk.n_neighbors), lams, SHORT_RING_PASSES)
    for start in range(0, len(unsolved), AGAIN_WIDTH):
        again = unsolved[start : start + AGAIN_WIDTH]
        double = solve_by_polynomial(walk, [some[at] for at in again], lams, groups, tol, AGAIN_WIDTH, rows, np.float64)
        _replace(block, again, double)
        block = replace(block, n_passes=block.n_passes + double.n_passes)
    return _without_polynomial(block, walk, some, lams, tol, rows) if _unsolved(block, tol).size else block


def _unsolved(block: SolvedBlock, tol: float) -> IntArray:
    """The points of a block that are not solved for every lam."""
    return np.flatnonzero(~(block.residuals <= tol).all(axis=0))


def _replace(block: SolvedBlock, points: IntArray, other: SolvedBlock) -> None:
    """Put other columns in the place of those of some points."""
    block.values[:, :, points], block.sums[:, points] = other.values, other.sums
    block.residuals[:, points] = other.residuals


def _without_polynomial(
    block: SolvedBlock, walk: Walk, points: Sequence[IntArray], lams: FloatArray, tol: float, rows: IntArray | None
) -> SolvedBlock:
    """Solve what is not solved yet directly, or by a Krylov method within a budget."""
    values, residuals, n_passes = block.values, block.residuals, block.n_passes
    unsolved = np.argwhere(~(residuals <= tol))
    wanted = slice(None) if rows is None else rows
    if walk.n_rows <= ROOMY_ROWS and _factor_bytes(walk.neighbors) <= DIRECT_BYTES:
        for at in np.unique(unsolved[:, 0]):
            columns = unsolved[unsolved[:, 0] == at, 1]
            whole, residuals[at, columns] = _direct(walk, [points[column] for column in columns], lams[at])
            values[at][:, columns], block.sums[at, columns] = whole[wanted], whole.sum(axis=0)
        return block
    budget, spent = min(KRYLOV_PASSES, KRYLOV_VISITS // (walk.n_rows * walk.n_neighbors)), 0
    for left, (at, column) in zip(range(len(unsolved), 0, -1), unsolved, strict=True):
        start = values[at, :, column] if rows is None else None
        column_values, residuals[at, column], passes = _krylov(
            walk, points[column], lams[at], start, tol, (budget - spent) // left
        )
        values[at, :, column], block.sums[at, column] = column_values[wanted], column_values.sum()
        spent += passes
    return replace(block, n_passes=n_passes + spent)


def residual_of(walk: Walk, point: int | IntArray, lam: float, values: FloatArray) -> float:
    """Largest absolute residual of one column; error of lam x <= max|r|, because W is stochastic."""
    residual = values - (1 - lam) * walk.product(values)
    residual[point] -= 1
    return float(np.abs(residual).max())


def _factor_bytes(neighbors: IntArray) -> int:
    """Bytes that the factors of I - (1-lam) W need, at most or nearly so.

    In the order of the walk they stay within the envelope of its rows and columns. The order that `_direct` takes fills
    0.2 to 0.9 of that in two to ten dimensions, and up to 1.2 of it on a line, where it is small (measured).
    """
    n_rows, rows = len(neighbors), np.arange(len(neighbors))
    first_column = neighbors.min(axis=1).astype(np.int64)
    first_row = rows.copy()
    np.minimum.at(first_row, neighbors.ravel(), np.repeat(rows, neighbors.shape[1]))
    envelope = int((rows - np.minimum(first_column, rows)).sum() + (rows - first_row).sum()) + n_rows
    return FACTOR_BYTES * min(envelope, n_rows**2)


def _direct(walk: Walk, points: Sequence[IntArray], lam: float) -> tuple[FloatArray, list[float]]:
    """Solve some columns for one lam by sparse factors; and their residuals.

    Every row of I - (1-lam) W is dominated by its diagonal, so no pivots are needed; nothing is subtracted, and what is
    0 stays 0.
    """
    from scipy.sparse import csc_matrix, identity
    from scipy.sparse.linalg import splu

    neighbors, n_rows, k = walk.neighbors, walk.n_rows, walk.n_neighbors
    W = csc_matrix((np.full(neighbors.size, 1 / k), (np.repeat(np.arange(n_rows), k), neighbors.ravel())))
    factors = splu(
        csc_matrix(identity(n_rows) - (1 - lam) * W),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    units = np.zeros((n_rows, len(points)))
    for column, each in enumerate(points):
        units[each, column] = 1
    values = factors.solve(units)
    return values, [
        residual_of(walk, each, lam, np.ascontiguousarray(column))
        for each, column in zip(points, values.T, strict=True)
    ]


def _krylov(
    walk: Walk, point: IntArray, lam: float, start: FloatArray | None, tol: float, n_passes: int
) -> tuple[FloatArray, float, int]:
    """Solve one column for one lam with GMRES, starting from what is there if it is usable.

    Returns the column, its residual, and the products with W that were needed, about `n_passes` at most.
    """
    from scipy.sparse.linalg import LinearOperator, gmres

    n_rows, counted = walk.n_rows, [0]
    unit = np.zeros(n_rows)
    unit[point] = 1

    def product(x: FloatArray) -> FloatArray:
        counted[0] += 1
        return np.asarray(x - (1 - lam) * walk.product(x.ravel()))

    is_usable = start is not None and bool(np.abs(start).max() * lam <= 2)  # a true column times lam is at most 1
    values = start.astype(np.float64) if start is not None and is_usable else np.zeros(n_rows)
    restart = min(krylov_vectors(n_rows), max(1, n_passes))
    cycles = min(KRYLOV_CYCLES, n_passes // restart)
    if cycles > 0:
        matrix = LinearOperator((n_rows, n_rows), matvec=product, dtype=float)
        values, _ = gmres(matrix, unit, x0=values, rtol=0, atol=tol, restart=restart, maxiter=cycles)
    return values, residual_of(walk, point, lam, values), counted[0]


def warn_if_not_converged(residual: float, name: str, tol: float, consequence: str) -> None:
    """Tell the caller when absorption was not solved to the tolerance."""
    if not residual <= tol:
        warnings.warn(
            f"The solver reached a residual of {residual:.1e} instead of {name} = {tol:.1e}: {consequence}. "
            f"Use a larger {name} or lam.",
            NotConvergedWarning,
            stacklevel=3,
        )
