"""Borders between communities: modularity cuts everything, and tests tell which of the cuts are real.

There are three, each against a null with a reason:

- *Structure* (`structure_ratio`): modularity divided by that of rows with the same marginal distributions and the same
  rank correlations, but nothing else in common (a Gaussian copula). It is 1 for data without clusters, whatever the
  distribution of their features: Gaussian, uniform, t, exponential and log-normal rows give 0.9 to 1.1, spheres up to
  1.13, images, cells, documents and most tables 1.15 to 2. Above `LEAST_STRUCTURE_RATIO` the communities stand.
- *Dips between centers* (`groups_between_dips`), for data in many dimensions and below that ratio: two communities stay
  apart only if the density has a dip between their centers. It is estimated along the line between these. The rows
  close to the line (a capsule, in coordinates in which the communities are round on average) are a convex set, so a
  log-concave density has a single mode along it, in any dimension. On a curved surface (a sphere) rows are missing
  close to the line, but not in a wider capsule, and not among the rows of the two communities: all must show the dip.
  The line is learned from one half of the rows, and dips are looked for in the other.
- *Dips in the density of neighbors* (`groups_between_gaps`), for data in few dimensions, of any shape: a border is a
  dip if links across it lie in lower density than links on both of its sides. The density of a row is that of its k-th
  neighbor, whose logarithm has a standard error of about 1/sqrt(k).

Communities are joined in the order of their links, and tested again when they have grown: larger ones show a dip with
more certainty.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.neighbors.exact import search_block
from cns_dask.smoothing.communities import LEAST_STRUCTURE_RATIO, join, links_part, louvain, merged_links, modularity

#: Rows of the samples on which structure is measured, and on which dips between centers are looked for.
STRUCTURE_ROWS, CENTER_ROWS = 2000, 40_000
#: Rows for each different one, on average at most, among which samples without clusters are drawn.
MOST_COPIES = 10
#: Samples without clusters that the modularity is compared with: their rows in all, and their number.
NULL_ROWS, NULL_SAMPLES = 6000, (3, 20)
#: Depth of a dip between centers, in standard errors of the density.
LEAST_DIP = 2.3
#: Rows of a community, on average, from which no dip means no border: two Gaussians 3 standard deviations apart have a
#: depth of 2.5 standard errors with 1000 rows each, and of 1.2 with 200.
SURE_ROWS = 1000
#: Shares of the rows of two communities that are near the line between their centers: a dip is one among the nearest
#: rows and among nearly all.
NEAR_LINE = 0.5, 0.9
#: Fewest rows on each side of a border that is tested between centers.
LEAST_SIDE = 4
#: Points at which a density is estimated.
DENSITY_POINTS = 400
#: Depth of a gap that chance does not make, in standard errors of the largest of many, and at least.
GAP_FACTOR, SMALLEST_GAP = 1.1, 0.35
#: Share of the links of a border that may lie in lower density than the border counts for.
BORDER_QUANTILE = 0.9


def least_gap(n_links: float, n_rows: int, k: int) -> float:
    """Return the depth of a dip in the density of neighbors that chance does not make, as a logarithm.

    A border of `n_links` links crosses about n_links / k^2 separate neighborhoods, at least one, and the logarithm of
    the density of each has the variance 1/k. Communities are cut where the density is low, so the depth is the largest
    of about n/k such means: sqrt(2 log(n/k)) standard errors. `GAP_FACTOR` and `SMALLEST_GAP` keep data without
    clusters whole: curves need the first, and solids of many rows the second.
    """
    neighborhoods = max(1.0, n_links / k**2)
    errors = np.sqrt(2 * np.log(max(n_rows / k, np.e)) / (k * neighborhoods))
    return max(SMALLEST_GAP, GAP_FACTOR * float(errors))


def structure_ratio(rows: FloatArray, counts: IntArray) -> float:
    """Divide the modularity of rows (m, d) by that of rows with the same marginals and rank correlations.

    Parameters
    ----------
    rows, counts
        Different rows (m, d), and how often each stands in the data (m,).
    """
    spread = np.ptp(rows, axis=0)
    rows = rows[:, spread > 1e-9 * spread.max(initial=0)]
    if rows.shape[1] == 0 or len(rows) < 3:
        return 1.0
    order = np.lexsort(rows.T)  # so that the answer does not depend on their order
    rows, counts = rows[order], counts[order]
    k = max(2, min(2 * int(np.log(len(rows))), len(rows) - 1))
    n_samples = int(np.clip(NULL_ROWS // len(rows), *NULL_SAMPLES))
    rng = np.random.default_rng(0)  # always the same: the answer does not depend on a seed
    most = MOST_COPIES * len(rows)
    everything = np.repeat(rows, np.maximum(1, counts * most // max(int(counts.sum()), most)), axis=0)
    nulls = (different_rows(without_clusters(everything, rng), len(rows)) for _ in range(n_samples))
    without = np.mean([_modularity_of(*null, k) for null in nulls])
    return _modularity_of(rows, counts, k) / float(without) if without > 0 else 1.0


def different_rows(rows: FloatArray, limit: int) -> tuple[FloatArray, IntArray]:
    """Return the first different rows, at most `limit` of them, and how often each stands among all."""
    different, first, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    some = np.argsort(first)[:limit]
    return different[some], counts[some]


def without_clusters(rows: FloatArray, rng: np.random.Generator) -> FloatArray:
    """Draw as many rows with the same marginal distributions and rank correlations, from a Gaussian copula."""
    from scipy.special import ndtri

    n_rows = len(rows)
    scores = ndtri((np.argsort(np.argsort(rows, axis=0, kind="stable"), axis=0) + 0.5) / n_rows)
    values, axes = np.linalg.eigh(np.atleast_2d(scores.T @ scores / n_rows))
    normal = (rng.standard_normal(rows.shape) * np.sqrt(np.maximum(values, 0))) @ axes.T
    ranks = np.argsort(np.argsort(normal, axis=0), axis=0)
    return np.take_along_axis(np.sort(rows, axis=0), ranks, axis=0)


def number_of_clusters(rows: FloatArray) -> int:
    """Return how many communities of some rows (m, d) have borders, without a fit."""
    rows = np.unique(rows, axis=0)
    spread = np.ptp(rows, axis=0)
    rows = rows[:, spread > 1e-9 * spread.max(initial=0)]
    if rows.shape[1] == 0 or len(rows) < 3:
        return 1
    counts = np.ones(len(rows), np.int64)
    communities, links = _communities_of(rows, counts, 2 * int(np.log(len(rows))))
    if structure_ratio(rows, counts) >= LEAST_STRUCTURE_RATIO:
        return len(links)
    return int(groups_between_dips(rows, communities, links).max()) + 1


def _modularity_of(rows: FloatArray, counts: IntArray, k: int) -> float:
    """Return the modularity of the communities of different rows, with k neighbors each; `counts` of them are equal."""
    return modularity(_communities_of(rows, counts, k)[1])


def _communities_of(rows: FloatArray, counts: IntArray, k: int) -> tuple[IntArray, FloatArray]:
    """Return the communities of different rows, and the links between these."""
    k = min(k, len(rows) - 1)
    from scipy.sparse import csr_matrix

    everything, rows = np.arange(len(rows)), np.ascontiguousarray(rows, dtype=np.float64)
    _, nearest = search_block(None, rows, everything, rows, slice(None), 0, k - 1)
    lists = np.concatenate([everything[:, None], nearest], axis=1)
    links = links_part(lists, 0, everything, len(rows), None if counts.max() == 1 else counts)
    links = links if counts.max() == 1 else csr_matrix(links.multiply(counts[:, None]))  # every copy has the same list
    links = links + links.T
    communities = louvain(links)
    return communities, merged_links(links, communities, int(communities.max()) + 1).toarray().astype(float)


def groups_between_dips(rows: FloatArray, labels: IntArray, links: FloatArray) -> IntArray:
    """Join communities without a dip between their centers; return the group of every community.

    Parameters
    ----------
    rows, labels
        Some rows (m, d), and the community of each.
    links
        Symmetric links between communities (K, K).
    """
    halves = np.random.default_rng(0).random(len(rows)) < 0.5

    def is_border(group: IntArray, first: int, second: int) -> bool:
        of_rows = group[labels]
        depths = [dip_between(rows, of_rows == first, of_rows == second, half) for half in (halves, ~halves)]
        return float(np.mean(depths)) >= LEAST_DIP

    return join_without_border(links, is_border)


def join_without_border(links: FloatArray, is_border: Callable[[IntArray, int, int], bool]) -> IntArray:
    """Join the linked communities of largest linkage, until all that are linked have a border.

    `is_border(group, first, second)` tests two groups; `group` (K,) is that of every community.
    """
    links, group, borders = links.copy(), np.arange(len(links)), set[tuple[int, int]]()
    while True:
        weights = np.maximum(links.sum(axis=1), 1)
        linkage = np.triu(links / np.outer(weights, weights), 1)
        for border in borders:
            linkage[border] = 0
        first, second = (int(each) for each in np.unravel_index(int(linkage.argmax()), linkage.shape))
        if linkage[first, second] <= 0:
            return np.unique(group, return_inverse=True)[1]
        if is_border(group, first, second):
            borders.add((first, second))
            continue
        group[group == second] = first
        join(links, first, second)
        borders = {border for border in borders if first not in border and second not in border}


def dip_between(
    rows: FloatArray, in_first: NDArray[np.bool_], in_second: NDArray[np.bool_], half: NDArray[np.bool_]
) -> float:
    """Return the depth of the dip between two sets of rows, in standard errors.

    The line between their centers is learned from the rows in `half`, the dip is that of the others.
    """
    first, second = rows[half & in_first], rows[half & in_second]
    if min(len(first), len(second)) < LEAST_SIDE:
        return 0.0
    center = second.mean(axis=0)
    whiten = _whitening(first, second)
    axis = (first.mean(axis=0) - center) @ whiten
    length = float(np.linalg.norm(axis))
    if length == 0:
        return 0.0

    def coordinates(some: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Position along the line, and distance from the segment between the centers."""
        shifted = (some - center) @ whiten
        along = shifted @ axis / length
        beyond = along - np.clip(along, 0, length)
        return along, np.sqrt(np.maximum((shifted**2).sum(axis=1) - along**2 + beyond**2, 0))

    of_first, of_second = coordinates(first)[1], coordinates(second)[1]
    along, distance = coordinates(rows[~half])
    depth = deepest_dip(along[(in_first | in_second)[~half]], length)
    for share in NEAR_LINE:
        if depth > 0:
            radius = max(np.quantile(of_first, share), np.quantile(of_second, share))
            depth = min(depth, deepest_dip(along[distance <= radius], length))
    return depth


def _whitening(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return axes (d, d) along which two sets of rows have unit variance on average, with a ridge."""
    d = first.shape[1]
    spread = (np.cov(first.T, bias=True) + np.cov(second.T, bias=True)).reshape(d, d) / 2
    ridge = np.trace(spread) / d * (0.01 + d / (len(first) + len(second)))
    values, axes = np.linalg.eigh(spread + max(ridge, np.finfo(float).tiny) * np.eye(d))
    return np.asarray(axes / np.sqrt(np.maximum(values, np.finfo(float).tiny)))


def deepest_dip(values: FloatArray, length: float) -> float:
    """Return the depth of the deepest dip of a density between 0 and `length`, in standard errors of the density.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> left, right = rng.standard_normal((2, 500))
    >>> bool(deepest_dip(np.concatenate([left, right + 5]), 5.0) > 5), bool(deepest_dip(left, 1.0) < 2)
    (True, True)
    """
    sides = [side.std() for side in (values[values < length / 2], values[values >= length / 2]) if len(side) > 2]
    if len(values) < 2 * LEAST_SIDE or not sides:
        return 0.0
    bandwidth = 1.06 * max(float(np.mean(sides)), 0.05) * len(values) ** -0.2  # Silverman's rule for each side
    edges = np.linspace(-4, length + 4, DENSITY_POINTS + 1)
    at, step = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    reach = int(np.ceil(4 * bandwidth / step))
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) * step / bandwidth) ** 2)
    counts = np.histogram(values, edges)[0]
    density = np.convolve(counts, kernel / kernel.sum())[reach : reach + DENSITY_POINTS] / step / len(values)
    peak = np.minimum(np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1])
    depth = np.where((at >= 0) & (at <= length), peak - density, 0)
    deepest = int(depth.argmax())
    variance = (peak[deepest] + density[deepest]) / (len(values) * bandwidth * 2 * np.sqrt(np.pi))
    return float(depth[deepest] / np.sqrt(variance)) if depth[deepest] > 0 else 0.0


def groups_between_gaps(links: "LinkDensities") -> IntArray:
    """Join communities across the border of least significance, while chance makes such borders; return their groups.

    Significance is the depth of a border, relative to that which chance makes: see `least_gap`.
    """
    group, left = np.arange(links.n_groups), links
    while True:
        significance, first, second = left.weakest()
        if significance >= 1:
            return np.unique(group, return_inverse=True)[1]
        group[group == second] = first
        left = left.joined(first, second)


@dataclass(frozen=True)
class LinkDensities:
    """Log densities of links, by the two communities that they link; the density of a link is that of its lower end."""

    n_groups: int
    by_pair: dict[tuple[int, int], FloatArray]
    n_rows: int
    k: int
    share: float  # of all links that these are

    @classmethod
    def of_links(
        cls, ends: tuple[IntArray, IntArray], densities: FloatArray, n_groups: int, n_rows: int, k: int, share: float
    ) -> "LinkDensities":
        """Collect links by the groups of their ends."""
        key = np.minimum(*ends).astype(np.int64) * n_groups + np.maximum(*ends)
        order = np.argsort(key, kind="stable")
        present, starts = np.unique(key[order], return_index=True)
        parts = np.split(densities[order], starts[1:])
        by_pair = {divmod(int(each), n_groups): part for each, part in zip(present, parts, strict=True)}
        return cls(n_groups, by_pair, n_rows, k, share)

    @cached_property
    def levels(self) -> dict[tuple[int, int], float]:
        """Density of each border, and inside each community."""
        return {pair: float(np.quantile(each, BORDER_QUANTILE)) for pair, each in self.by_pair.items()}

    def weakest(self) -> tuple[float, int, int]:
        """Return the smallest significance of a border, and the groups on its sides; infinity if there is none."""
        borders = [
            ((min(self.levels.get((side, side), level) for side in pair) - level) / self._least(pair), *pair)
            for pair, level in self.levels.items()
            if pair[0] != pair[1]
        ]
        return min(borders, default=(np.inf, 0, 0))

    def _least(self, pair: tuple[int, int]) -> float:
        return least_gap(len(self.by_pair[pair]) / self.share, self.n_rows, self.k)

    def joined(self, first: int, second: int) -> "LinkDensities":
        """Return the densities with the group `second` in `first`."""
        collected: dict[tuple[int, int], list[FloatArray]] = {}
        for pair, each in self.by_pair.items():
            a, b = sorted(first if side == second else side for side in pair)
            collected.setdefault((a, b), []).append(each)
        return replace(self, by_pair={pair: np.concatenate(parts) for pair, parts in collected.items()})
