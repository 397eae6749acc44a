"""Islands: small clusters beside a large one that have no dip in density of their own.

One percent of the rows, four standard deviations from the rest, makes a shoulder in the density and no dip. What it
leaves is a departure from log-concavity: along the line between the two centers the logarithm of the density lies below
a straight line between two of its points. Gaussian, uniform and exponential densities are log-concave in any dimension,
and so are their marginals and what is left of them in a convex set (Prekopa). So a cluster falls into *pieces*: its
parts are joined until every border that is left shows a departure.

Three things look like departures and are none:

- *Skewed features and heavy tails.* A log-normal density is not log-concave, but that of its logarithm is. A border
  counts only if it also shows with features that are made symmetric by a shifted logarithm, and whose tails are drawn
  in by an inverse hyperbolic sine (`tame_features`). Both follow from quantiles, on which a small cluster has no
  influence.
- *Curved clusters.* A ring or a moon is no convex body, and its arcs may be pieces. Where the largest piece has most of
  the rows (`LEAST_BODY`) it is a body and the others are islands; otherwise the cluster is left whole.
- *Ragged borders.* A piece in the valley between two clusters is a shoulder of both. So an island that has links with
  several clusters must show beside each of them.

The line is learned from one half of the rows, and departures are looked for in the other. Depths are measured in
standard errors of the square root of a count, which are the same for high and low densities.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.smoothing.borders import NEAR_LINE, join_without_border
from cns_dask.smoothing.communities import merged_links

#: Depths, in standard errors, below which parts are joined, one after the other: clear cases first, so that a small
#: part is not joined to a piece of the body that is still too small to show a border. The last one decides: with it
#: 317 of 324 draws without clusters (300 to 20 000 rows, 2 to 50 features) are one cluster.
LEVELS = 0.5, 1.0, 1.5, 2.5
#: Depth of all borders of an island that has links with several clusters. Pieces of the borders between touching
#: Gaussians had at most 2.9, seldom 3.9, clusters of 1 % of the rows at least 3.7. In few features they must show among
#: the rows of all clusters too (where pieces had at most 1.5, and clusters 2.9): there these are not near by chance.
LEAST_SURROUNDED, NARROW_FEATURES = 3.25, 3
#: Share of the rows of a cluster that its largest piece must have.
LEAST_BODY = 0.8
#: Fewest rows on each side of a border, in each half.
LEAST_SIDE = 4
#: Rows that are tested, at most.
ISLAND_ROWS = 20_000
#: Bandwidths of the grid of a density, and of its kernel on either side.
GRID_STEP, KERNEL_REACH = 0.25, 4.0
#: Expected number of rows in a bandwidth that counts as none.
NO_ROWS = 0.3
#: Skewness, relative to the distance of the quartiles, below which a feature counts as symmetric; distance of the shift
#: from the rows in the same unit.
SMALLEST_SKEW, LEAST_SHIFT = 0.02, 0.05
#: Distance of the outer deciles relative to that of the quartiles: of a normal distribution, and that from which tails
#: are heavy. Student's t with five degrees of freedom has 2.03.
NORMAL_TAIL, HEAVY_TAIL = 1.9, 1.95


def with_islands(rows: FloatArray, parts: IntArray, links: FloatArray, groups: IntArray) -> IntArray:
    """Split islands off groups of parts; return the new group of every part.

    Parameters
    ----------
    rows, parts
        Some different rows (m, d), and the part of a community of each.
    links
        Symmetric links between parts (K, K).
    groups
        The group of every part (K,).
    """
    found, everywhere = groups.copy(), _Halves(rows, parts, len(groups))
    for group in range(int(groups.max()) + 1):
        own = np.flatnonzero(groups == group)
        inside, number = groups[parts] == group, np.searchsorted(own, parts)
        pieces = join_log_concave(rows[inside], number[inside], links[np.ix_(own, own)], np.arange(len(own)))
        if pieces.max() == 0:
            continue
        pieces = join_log_concave(tame_features(rows[inside]), number[inside], links[np.ix_(own, own)], pieces)
        sizes = np.bincount(pieces[number[inside]])
        if len(sizes) > 1 and sizes.max() >= LEAST_BODY * sizes.sum():
            for island in np.flatnonzero((np.arange(len(sizes)) != sizes.argmax()) & (sizes > 0)):
                split = found.copy()
                split[own[pieces == island]] = found.max() + 1
                if everywhere.surround(split, links, group):
                    found = split
    return found


def join_log_concave(rows: FloatArray, parts: IntArray, links: FloatArray, pieces: IntArray) -> IntArray:
    """Join pieces of one group, given as the piece of every part (K,), until all borders show a departure."""
    from scipy.sparse import csr_matrix

    halves = _Halves(rows, parts, len(pieces))
    for least in LEVELS:
        between = merged_links(csr_matrix(links), pieces, int(pieces.max()) + 1).toarray()

        def is_border(
            joined: IntArray, first: int, second: int, least: float = least, pieces: IntArray = pieces
        ) -> bool:
            of_parts = joined[pieces]
            return halves.departs(of_parts == first, of_parts == second, least)

        pieces = join_without_border(between, is_border)[pieces]
    return pieces


class _Halves:
    """Two halves of some rows, and the moments of every part (part,) in each."""

    def __init__(self, rows: FloatArray, parts: IntArray, n_parts: int) -> None:
        in_first = np.random.default_rng(0).random(len(rows)) < 0.5
        self._halves = []
        for half in (in_first, ~in_first):
            some, of = rows[half], parts[half]
            counts, order = np.bincount(of, minlength=n_parts), np.argsort(of, kind="stable")
            by_part = np.split(some[order], np.cumsum(counts)[:-1])
            sums = np.array([each.sum(axis=0) for each in by_part])
            products = np.array([each.T @ each for each in by_part])
            self._halves.append((some, of, counts, sums, products))

    def departs(self, first: NDArray[np.bool_], second: NDArray[np.bool_], least: float) -> bool:
        """Tell whether the border between two sets of parts departs from log-concavity by `least` standard errors."""
        tests = self._tests(first, second)
        if sum(test.depth for test in tests) < 2 * least:  # most borders end here
            return False
        return self._depth(tests) >= least

    def surround(self, groups: IntArray, links: FloatArray, body: int) -> bool:
        """Tell whether departures separate the last group from its body and from all groups that it has links with."""
        island = groups == groups.max()
        linked = set(np.unique(groups[links[island].sum(axis=0) > 0]).tolist()) - {int(groups.max())}
        if linked <= {body}:
            return True
        borders = [tests for other in linked | {body} if (tests := self._tests(groups == other, island))]
        is_deep = all(sum(test.depth for test in tests) >= 2 * LEAST_SURROUNDED for tests in borders)
        if not is_deep or self._halves[0][0].shape[1] > NARROW_FEATURES:
            return is_deep
        return all(self._depth(tests) >= LEVELS[-1] for tests in borders)

    def _depth(self, tests: list[_Line]) -> float:
        """Return the depth of a border among the rows of two sets, and among all rows near the line between them."""
        depths = [min(test.depth, test.near(*self._halves[half][:2])) for half, test in enumerate(tests)]
        return float(np.mean(depths))

    def _tests(self, first: NDArray[np.bool_], second: NDArray[np.bool_]) -> list[_Line]:
        """Return the lines between two sets of parts that both halves give; none if one half has too few rows."""
        lines = [self._line(half, first, second) for half in (0, 1)]
        if any(line is None for line in lines):
            return []
        return [_Line(*line, *self._halves[1 - half][:2], first, second) for half, line in enumerate(lines) if line]

    def _line(
        self, half: int, first: NDArray[np.bool_], second: NDArray[np.bool_]
    ) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Return the center of the second set, axes in which both are round on average, and the way to the first."""
        _, _, counts, sums, products = self._halves[half]
        n, d = [int(counts[side].sum()) for side in (first, second)], sums.shape[1]
        if min(n) < LEAST_SIDE:
            return None
        centers = [sums[side].sum(axis=0) / count for side, count in zip((first, second), n, strict=True)]
        spread = np.mean(
            [
                products[side].sum(axis=0) / count - np.outer(center, center)
                for side, count, center in zip((first, second), n, centers, strict=True)
            ],
            axis=0,
        )
        ridge = max(np.trace(spread) / d * (0.01 + d / sum(n)), float(np.finfo(float).tiny))
        whiten = np.linalg.inv(np.linalg.cholesky(spread + ridge * np.eye(d))).T
        way = (centers[0] - centers[1]) @ whiten
        return (centers[1], whiten, way) if way.any() else None


class _Line:
    """The line between the centers of two sets of parts, from one half of the rows, and the rows of the other half."""

    def __init__(
        self,
        center: FloatArray,
        whiten: FloatArray,
        way: FloatArray,
        rows: FloatArray,
        parts: IntArray,
        first: NDArray[np.bool_],
        second: NDArray[np.bool_],
    ) -> None:
        self._center, self._whiten, self._rows, self._sides = center, whiten, rows, (first, second)
        self._length = float(np.linalg.norm(way))
        self._axis = way / self._length
        self._along = (rows - center) @ (whiten @ self._axis)
        self.depth = departure(self._along[(first | second)[parts]], self._length)  # among the rows of both sets

    def near(self, rows: FloatArray, parts: IntArray) -> float:
        """Return the smaller departure among all rows in a narrow and in a wide capsule around the line.

        The capsules are as wide as the sets are among the rows (m, d) that the line was learned from.
        """
        of_sides = [self._distances(rows[side[parts]]) for side in self._sides]
        distances = self._distances(self._rows, self._along)
        radii = [max(np.quantile(each, share) for each in of_sides) for share in NEAR_LINE]
        return float(min(departure(self._along[distances <= radius], self._length) for radius in radii))

    def _distances(self, rows: FloatArray, along: FloatArray | None = None) -> FloatArray:
        """Return squared distances from the segment between the centers."""
        shifted = (rows - self._center) @ self._whiten
        along = shifted @ self._axis if along is None else along
        beyond = along - np.clip(along, 0, self._length)
        return np.asarray(np.maximum((shifted**2).sum(axis=1) - along**2 + beyond**2, 0))


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def departure(values: FloatArray, length: float) -> float:
    """Return how far the density of some values is from log-concave between 0 and `length`, in standard errors.

    The density is a kernel estimate. Below the smallest log-concave function above it, the square root of the expected
    count in a bandwidth less that of the count has a standard error of 1/2, beside that of the expectation.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> body, island = rng.standard_normal(2000), 4 + rng.standard_normal(40)
    >>> bool(departure(np.concatenate([body, island]), 4.0) > 2), bool(departure(body, 2.0) < 1)
    (True, True)
    """
    n = len(values)
    if n < 2 * LEAST_SIDE or not length > 0:
        return 0.0
    bandwidth = _bandwidth(values, length)
    if bandwidth == 0:
        return 0.0
    step = min(GRID_STEP * bandwidth, length / 20)
    reach, n_steps = int(np.ceil(KERNEL_REACH * bandwidth / step)), int(np.ceil(length / step))
    step = length / n_steps
    counts = np.zeros(n_steps + 1 + 2 * reach)
    for value in values:
        at = int(np.floor(value / step + 0.5)) + reach
        if 0 <= at < len(counts):
            counts[at] += 1
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / bandwidth) ** 2)
    kernel /= kernel.sum() * step * n
    density = np.empty(n_steps + 1)
    for at in range(n_steps + 1):
        density[at] = max((kernel * counts[at : at + 2 * reach + 1]).sum(), NO_ROWS / (n * bandwidth))
    return float(_largest_gap(density, n * bandwidth * 2 * np.sqrt(np.pi)))


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def _bandwidth(values: FloatArray, length: float) -> float:
    """Return Silverman's bandwidth for the mean deviation of the values on both sides of the middle."""
    spread, sides = 0.0, 0
    for side in (values[values < length / 2], values[values >= length / 2]):
        if len(side) > 2:
            spread += side.std()
            sides += 1
    return 1.06 * max(spread / max(sides, 1), 0.05) * len(values) ** -0.2 if sides else 0.0


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def _largest_gap(density: FloatArray, effective: float) -> float:
    """Return the largest gap below the smallest log-concave function above a density, in standard errors.

    `effective` times the density is the number of rows that an estimate rests on.
    """
    logs, hull, last = np.log(density), np.empty(len(density), np.int64), -1
    for at in range(len(density)):
        while last >= 1:
            a, b = hull[last - 1], hull[last]
            if (logs[b] - logs[a]) * (at - a) > (logs[at] - logs[a]) * (b - a):
                break
            last -= 1
        last += 1
        hull[last] = at
    largest = 0.0
    for corner in range(last):
        a, b = hull[corner], hull[corner + 1]
        for at in range(a + 1, b):
            share = (at - a) / (b - a)
            above = (1 - share) * logs[a] + share * logs[b]
            variance = np.exp(-above) + (1 - share) ** 2 / density[a] + share**2 / density[b]
            gap = 2 * (1 - np.exp((logs[at] - above) / 2)) / np.sqrt(variance / effective)
            largest = max(largest, gap)
    return largest


def tame_features(rows: FloatArray) -> FloatArray:
    """Return rows (m, d) whose features have symmetric quartiles, and tails that are no heavier than normal ones.

    Examples
    --------
    >>> skewed = np.exp(np.random.default_rng(0).standard_normal((1000, 1)))
    >>> low, middle, high = np.quantile(tame_features(skewed), [0.25, 0.5, 0.75])
    >>> bool(abs(low + high - 2 * middle) < 0.1 * (high - low))
    True
    """
    treated = rows.copy()
    for feature, column in enumerate(rows.T):
        tamed = with_light_tails(symmetric(column))
        if tamed is not column:
            treated[:, feature] = tamed * (column.std() / max(float(tamed.std()), float(np.finfo(float).tiny)))
    return treated


def symmetric(column: FloatArray) -> FloatArray:
    """Return a shifted logarithm of a skewed feature (m,) that has symmetric quartiles, or the feature itself."""
    low, middle, high = np.quantile(column, [0.25, 0.5, 0.75])
    skew, width = low + high - 2 * middle, high - low
    if width <= 0 or abs(skew) < SMALLEST_SKEW * width:
        return column
    shift = (low * high - middle**2) / skew
    if skew > 0:
        return np.asarray(np.log(column - min(shift, column.min() - LEAST_SHIFT * width)))
    return np.asarray(-np.log(max(shift, column.max() + LEAST_SHIFT * width) - column))


def with_light_tails(column: FloatArray) -> FloatArray:
    """Return an inverse hyperbolic sine of a feature (m,) with heavy tails whose deciles are normal, or the feature."""
    deciles, quartiles = (np.diff(np.quantile(column, [share, 1 - share]))[0] / 2 for share in (0.1, 0.25))
    if not deciles > HEAVY_TAIL * quartiles > 0:
        return column
    units = quartiles * np.geomspace(0.01, 100, 1000)
    unit = units[np.searchsorted(np.arcsinh(deciles / units) / np.arcsinh(quartiles / units), NORMAL_TAIL)]
    return np.asarray(np.arcsinh((column - np.median(column)) / unit))
