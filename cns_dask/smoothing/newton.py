r"""Newton's form of the resolvent: absorption for all lam from one sequence of products with W.

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

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.smoothing.nodes import ROOMY_ROWS, order_nodes
from cns_dask.smoothing.passes import TILE_ROWS, add_rows, add_tiles, aligned_zeros, number_of_tiles, smooth_tiles
from cns_dask.smoothing.walk import Walk

#: Passes that are kept and added to the solution together: fewer where memory is short, or only some rows are wanted.
RING_PASSES, SHORT_RING_PASSES = 8, 2
#: Rounds over all nodes, at most. A point whose residual is not below STUCK_SHARE of what it was PATIENCE rounds before
#: is stuck: on the long Jordan chains of W where rows have copies (see `with_chains`) one round may leave ten times the
#: residual, and the one after it next to nothing.
MAX_CYCLES, STUCK_SHARE, PATIENCE = 20, 0.5, 4
#: Share of the sum of a column that may be missing when it is solved.
SETTLED_SHARE = 0.01
#: Share of the tolerance: smaller values are dropped in a pass.
DROPPED_SHARE = 5e-4


@dataclass(frozen=True)
class SolvedBlock:
    """Some columns of (I - (1-lam) W)^-1 for every lam."""

    values: FloatArray  # the columns at the rows that were wanted (lam, row, point)
    sums: FloatArray  # their sums over all rows (lam, point)
    residuals: FloatArray  # largest absolute residual of each (lam, point); it bounds the error of lam times the column
    n_passes: int  # products with W that were needed


def ring_passes(n_rows: int, *, some_rows: bool = False) -> int:
    """Passes that are kept and added to the solution together."""
    return SHORT_RING_PASSES if some_rows or n_rows > ROOMY_ROWS else RING_PASSES


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


def solve_by_polynomial(
    walk: Walk,
    points: Sequence[IntArray],
    lams: FloatArray,
    groups: list[list[Pass]],
    tol: float,
    width: int,
    rows: IntArray | None,
    dtype: type[np.floating[Any]],
) -> SolvedBlock:
    """Solve some points by the polynomial; what it does not solve has a residual of infinity."""
    solve = _NewtonSolve(walk, points, lams, groups, tol, width, rows, dtype)
    solve.run()
    return SolvedBlock(solve.solution[:, :, : len(points)], solve.sums, solve.residuals, solve.n_passes)


class _NewtonSolve:
    """Newton's form with the nodes used in cycles, for the points of one block.

    A point that is solved, or that the polynomial cannot solve, becomes 0 and takes no further part.
    """

    def __init__(
        self,
        walk: Walk,
        points: Sequence[IntArray],
        lams: FloatArray,
        groups: list[list[Pass]],
        tol: float,
        width: int,
        rows: IntArray | None,
        dtype: type[np.floating[Any]],
    ) -> None:
        n_rows, n_points, n_lams = walk.n_rows, len(points), len(groups[0][0].weights)
        self._groups, self._lams = groups, lams
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
        solved = self._active & (residual <= self._tol) & self._has_settled_sum()
        self.residuals[:, solved] = factor[:, None] * peaks[solved] + self._changes[solved]
        self._retire(solved | (self._active & ~(residual <= self._hopeless)))

    def _has_settled_sum(self) -> NDArray[np.bool_]:
        """Whether the sum of each column is settled.

        Entries of a column are about 1 / (rows of a cluster). With many rows a residual may be small everywhere, and
        yet as large as the column itself. Where W is doubly stochastic the sum of a column is 1 / lam, and what is left
        of it the sum of u, divided by lam.
        """
        totals, first = self._totals[: self._n_points], int(np.argmin(self._lams))
        return np.asarray(np.abs(totals) <= SETTLED_SHARE * self._lams[first] * np.abs(self.sums[first]))

    def _retire(self, points: NDArray[np.bool_]) -> None:
        if points.any():
            self._active &= ~points
            self._ring[self._now][:, np.flatnonzero(points)] = 0
            self._totals[np.flatnonzero(points)] = 0
