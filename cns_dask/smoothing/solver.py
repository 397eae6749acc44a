r"""Absorption: columns x_j of (I - (1-lam) W)^-1, for all lam from one sequence of products with W.

x_j holds the expected visits to point j of walks from every row, and lam x_j the chance that they are absorbed there.

| symbol | variable  | shape     | meaning                                                     |
|--------|-----------|-----------|-------------------------------------------------------------|
| W      | walk      | (n, k)    | transition matrix, as its integer graph                      |
| z      | poles     | (lam,)    | 1 / (1-lam): the systems are shifts of each other, z - W     |
| xi     | nodes     | (m,)      | interpolation nodes: harmonic Ritz values, in a good order   |
| u      | ring      | (s,n,b)   | current Newton polynomial of W times the unit vectors e_j    |
| x      | solution  | (lam,m,b) | x_j for b points j, at all rows or at those that are wanted   |

Newton's form of 1/(z - w), with nodes xi_0, xi_1, ...:

    1/(z - w) = sum_i  prod_{l<i} (w - xi_l) / prod_{l<=i} (z - xi_l)  +  remainder

so every pass computes u <- (W - xi_i) u and adds a multiple of u to each lam's solution. u is scaled by the pole of the
smallest lam, z0: it *is* then the residual of that lam, and the residual of every other lam is a known factor <= 1
times u. A conjugate pair a +- ib takes two passes in real arithmetic with (w - a)^2 + b^2. Rows that cannot reach
point j stay exactly 0.

A change d of u in pass i (rounding, or small values that are dropped) changes the residual by d times the same factor:
the passes that follow do not amplify it. So the residual is known at any time, to at most the sum of all such changes.

Since the sum is formed entry by entry, x can be had at some rows without ever being formed at the others, and the sum
of all its entries from the sums of the u.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import NotConvergedWarning
from cns_dask.smoothing.nodes import ROOMY_ROWS, node_sets, order_nodes, precision_for
from cns_dask.smoothing.passes import TILE_ROWS, add_rows, add_tiles, aligned_zeros, number_of_tiles, smooth_tiles
from cns_dask.smoothing.walk import Walk
from cns_dask.storage.chunks import FLOAT_BYTES, clip

#: Points of a block: a line of the cache in single precision, or fewer where memory ends.
BLOCK_WIDTHS = 16, 8, 4
#: Passes that are kept and added to the solution together: fewer where memory is short, or only some rows are wanted.
RING_PASSES, SHORT_RING_PASSES = 8, 2
#: Rounds over all nodes, at most. A point whose residual is not below STUCK_SHARE of what it was PATIENCE rounds before
#: is stuck: on the long Jordan chains of W where rows have copies (see `with_chains`) one round may leave ten times the
#: residual, and the one after it next to nothing.
MAX_CYCLES, STUCK_SHARE, PATIENCE = 20, 0.5, 4
#: Share of the tolerance: smaller values are dropped in a pass.
DROPPED_SHARE = 5e-4
#: Of the direct method that takes over where its factors are at most so large, at 12 bytes for each of their numbers.
DIRECT_BYTES, FACTOR_BYTES = 128 * 2**20, 12
#: Of the Krylov method that takes over elsewhere: restarts of a column, vectors between them, and their bytes.
KRYLOV_CYCLES, KRYLOV_VECTORS, KRYLOV_BYTES = 20, 100, 2**30
#: Points that are solved once more in double precision are so many at a time, with 1/k as a node so many times more.
AGAIN_WIDTH, CHAIN_NODES = 4, 32
#: Products with W that it may take for a whole block, and entries of W that these may visit.
KRYLOV_PASSES, KRYLOV_VISITS = 10_000, 10**11


@dataclass(frozen=True)
class SolvedBlock:
    """Some columns of (I - (1-lam) W)^-1 for every lam."""

    values: FloatArray  # the columns at the rows that were wanted (lam, row, point)
    sums: FloatArray  # their sums over all rows (lam, point)
    residuals: FloatArray  # largest absolute residual of each (lam, point); it bounds the error of lam times the column
    n_passes: int  # products with W that were needed


def krylov_vectors(n_rows: int) -> int:
    """Vectors that the Krylov method keeps between restarts."""
    return clip(KRYLOV_BYTES // (FLOAT_BYTES * n_rows), 12, min(KRYLOV_VECTORS, n_rows))


def ring_passes(n_rows: int, *, some_rows: bool = False) -> int:
    """Passes that are kept and added to the solution together."""
    return SHORT_RING_PASSES if some_rows or n_rows > ROOMY_ROWS else RING_PASSES


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
        block = _newton(walk, probes, groups, tol, width, some, precision_for(tol))
        unsolved.append(len(_unsolved(block, tol)))
        if unsolved[-1] == 0:
            return nodes
    return sets[int(np.argmin(unsolved))]


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


def newton_passes(nodes: NDArray[np.complex128], lams: FloatArray, at_once: int = RING_PASSES) -> list[list[Pass]]:
    """Passes of one cycle over all nodes, in groups of up to `at_once` that are added to the solution together.

    The two of a pair stay together.
    """
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
        if len(groups[-1]) + len(passes) > at_once:
            groups.append([])
        groups[-1] += passes
    return groups


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
    block = _newton(walk, some, groups, tol, width, rows, precision_for(tol))
    unsolved = _unsolved(block, tol)
    if not unsolved.size:
        return block
    groups = newton_passes(with_chains(nodes, walk.n_neighbors), lams, SHORT_RING_PASSES)
    for start in range(0, len(unsolved), AGAIN_WIDTH):
        again = unsolved[start : start + AGAIN_WIDTH]
        double = _newton(walk, [some[at] for at in again], groups, tol, AGAIN_WIDTH, rows, np.float64)
        _replace(block, again, double)
        block = replace(block, n_passes=block.n_passes + double.n_passes)
    return _without_polynomial(block, walk, some, lams, tol, rows) if _unsolved(block, tol).size else block


def with_chains(nodes: NDArray[np.complex128], n_neighbors: int) -> NDArray[np.complex128]:
    """The nodes, and 1/k so many times more that the polynomial is small on long Jordan chains of W too.

    A row that is listed by no row that it can reach has the eigenvalue 1/k, its chance to stay, and many such rows in a
    row are a chain. Rows with copies have long ones, because all copies list the same few of them. A random vector
    hardly notices them, but to be small on a chain a polynomial must have its eigenvalue as a zero again and again.
    """
    return np.append(nodes, np.full(CHAIN_NODES, 1 / n_neighbors))


def _unsolved(block: SolvedBlock, tol: float) -> IntArray:
    """The points of a block that are not solved for every lam."""
    return np.flatnonzero(~(block.residuals <= tol).all(axis=0))


def _replace(block: SolvedBlock, points: IntArray, other: SolvedBlock) -> None:
    """Put other columns in the place of those of some points."""
    block.values[:, :, points], block.sums[:, points] = other.values, other.sums
    block.residuals[:, points] = other.residuals


def _newton(
    walk: Walk,
    points: Sequence[IntArray],
    groups: list[list[Pass]],
    tol: float,
    width: int,
    rows: IntArray | None,
    dtype: type[np.floating[Any]],
) -> SolvedBlock:
    """Solve some points by the polynomial; what it does not solve has a residual of infinity."""
    solve = _NewtonSolve(walk, points, groups, tol, width, rows, dtype)
    solve.run()
    return SolvedBlock(solve.solution[:, :, : len(points)], solve.sums, solve.residuals, solve.n_passes)


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


class _NewtonSolve:
    """Newton's form with the nodes used in cycles, for the points of one block.

    A point that is solved, or that the polynomial cannot solve, becomes 0 and takes no further part.
    """

    def __init__(
        self,
        walk: Walk,
        points: Sequence[IntArray],
        groups: list[list[Pass]],
        tol: float,
        width: int,
        rows: IntArray | None,
        dtype: type[np.floating[Any]],
    ) -> None:
        n_rows, n_points, n_lams = walk.n_rows, len(points), len(groups[0][0].weights)
        self._groups = groups
        self._walk, self._tol, self._n_points, self._lanes = walk, tol, n_points, (0,) * width
        self._rows = rows
        self._epsilon, self._drop = np.finfo(dtype).eps, DROPPED_SHARE * tol
        self._hopeless = tol / (10 * self._epsilon)  # a larger residual has lost its digits
        slots = max(map(len, groups)) + 1
        self._ring = aligned_zeros((slots, n_rows, width), dtype)
        self._live = np.zeros((slots, number_of_tiles(n_rows)), np.bool_)
        self._totals = np.zeros(width)  # sum of u, by point
        for column, each in enumerate(points):
            self._ring[0, each, column] = 1
            self._live[0, each // TILE_ROWS] = True
            self._totals[column] = len(each)
        self._now = 0  # where u is in the ring
        self._peaks = np.zeros(width, dtype)  # largest absolute value of u, by point
        self._changes = np.zeros(n_points)  # what was dropped or rounded so far
        self._active = np.ones(n_points, np.bool_)
        self.solution = aligned_zeros((n_lams, n_rows if rows is None else len(rows), width), dtype)
        self.sums = np.zeros((n_lams, n_points))
        self.residuals = np.full((n_lams, n_points), np.inf)
        self.n_passes = 0

    def run(self) -> None:
        """Go through all passes until every point is solved, stuck, or MAX_CYCLES are over."""
        factor, peaks = np.ones(len(self.residuals)), [np.ones(self._n_points)]
        for _ in range(MAX_CYCLES):
            for group in self._groups:
                self._run_group(group, factor)
                if not self._active.any():
                    return
            peaks.append(self._peaks[: self._n_points].astype(np.float64))
            if len(peaks) > PATIENCE:
                self._retire(self._active & (peaks[-1] > STUCK_SHARE * peaks[-1 - PATIENCE]))
            last_factor = self._groups[-1][-1].factor
            assert last_factor is not None  # a pair of passes ends with one
            factor = factor * last_factor

    def _run_group(self, group: list[Pass], factor: FloatArray) -> None:
        """Some passes, whose u are added to the solution together."""
        first, weights = self._now, []
        for step in group:
            weights.append(factor * step.weights)
            self.sums += weights[-1][:, None] * self._totals[: self._n_points]
            self._smooth(step)
            if step.factor is not None:
                self._retire_solved(factor * step.factor)
            if not self._active.any():
                break
        added = np.stack(weights, axis=1).astype(self._ring.dtype), self._ring, self._live, first
        if self._rows is None:
            add_tiles(*added, self.solution)
        else:
            add_rows(*added, self._rows, self.solution)

    def _smooth(self, step: Pass) -> None:
        """One pass: the next u."""
        coefficients = step.shift, step.scale, step.keep, self._drop
        self._peaks[:], self._totals[:] = 0, 0
        for part in self._walk.parts:
            rows = part.neighbors, part.reads, part.first_row
            ring = self._ring, self._live, self._now
            smooth_tiles(*rows, *ring, *coefficients, self._lanes, self._peaks, self._totals)
        self._now = (self._now + 1) % len(self._ring)
        self.n_passes += 1
        self._changes += self._drop + self._epsilon * self._peaks[: self._n_points]

    def _retire_solved(self, factor: FloatArray) -> None:
        """Note the residuals of points that are solved; these and hopeless ones take no further part."""
        peaks = self._peaks[: self._n_points]
        residual = peaks + self._changes
        solved = self._active & (residual <= self._tol)
        self.residuals[:, solved] = factor[:, None] * peaks[solved] + self._changes[solved]
        self._retire(solved | (self._active & ~(residual <= self._hopeless)))

    def _retire(self, points: NDArray[np.bool_]) -> None:
        if points.any():
            self._active &= ~points
            self._ring[self._now][:, np.flatnonzero(points)] = 0
            self._totals[np.flatnonzero(points)] = 0


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
