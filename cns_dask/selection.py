"""Which points may represent clusters, and which of them do.

Candidates are the local maxima of in-degree on the graph; picks are made greedily among their columns.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial import KDTree

from cns_dask.kernels import first_best
from cns_dask.neighbors import search_block
from cns_dask.types import ArrayLike, Candidates, FloatArray, IntArray

TREE_FEATURES = 8  # up to so many a tree is faster: 50 000 points in the plane 0.1 s instead of 5 s


def local_maxima(neighbors: IntArray) -> Candidates:
    """Rows whose in-degree is at least that of each of their k neighbours, in row order.

    The in-degree of j counts the rows that list j; it is compared as an integer.

    Examples
    --------
    >>> local_maxima(np.array([[0, 1], [1, 0], [2, 1]])).rows
    array([1])
    """
    degrees = np.zeros(len(neighbors), np.int64)
    for column in neighbors.T:  # column by column: nothing as large as the graph exists beside it
        degrees += np.bincount(column, minlength=len(neighbors))
    highest = degrees.copy()
    for column in neighbors.T:
        np.maximum(highest, degrees[column], out=highest)
    rows = np.flatnonzero(degrees >= highest)
    return Candidates(rows, degrees[rows])


def find_candidates(
    neighbors: IntArray, points: ArrayLike | None, limit: int, order: IntArray | None = None
) -> Candidates:
    """The local maxima, or the `limit` most prominent of them; `points` (n, d) are read only for these.

    Without points (the caller gave a graph alone) there are no distances, and those of largest in-degree are kept.
    If the graph numbers rows by their place in an `order`, the candidates are told by their own numbers nevertheless.
    """
    found = local_maxima(neighbors)
    if order is not None:
        rows = order[found.rows]
        by_row = np.argsort(rows)
        found = Candidates(rows[by_row], found.degrees[by_row])
    if len(found.rows) <= limit:
        return found
    if points is None:
        first = np.argsort(-found.degrees, kind="stable")[:limit]
        return Candidates(found.rows[first], found.degrees[first])
    return most_prominent(found, np.asarray(points[found.rows, :]), limit)


def most_prominent(candidates: Candidates, points: FloatArray, limit: int) -> Candidates:
    """The `limit` candidates with the largest in-degree times distance to the nearest other candidate.

    Largest first, ties in row order. `points` are the candidates' rows as the neighbours saw them (c, d).
    """
    order = np.argsort(-candidates.degrees * nearest_others(points), kind="stable")[:limit]
    return Candidates(candidates.rows[order], candidates.degrees[order])


def nearest_others(points: FloatArray) -> FloatArray:
    """Distance of every point to its nearest other (c,): by a tree where that helps, else compared block by block."""
    if points.shape[1] <= TREE_FEATURES:
        distances, _ = KDTree(points).query(points, k=2)
        return np.asarray(distances)[:, 1]
    squared, _ = search_block(None, points, range(len(points)), points, slice(None), 0, 1)
    return np.asarray(np.sqrt(squared[:, 0]))


def gram_block(columns: ArrayLike, rows: slice) -> tuple[FloatArray, FloatArray]:
    """Sums s_j (lam, c) and inner products c_jl (lam, c, c) of the candidate columns over some rows.

    `columns` (lam, candidate, row) may be anything that is sliced like an array. A common factor, as lam, is no matter:
    the picks compare s_j, and c_jl / s_j^2.
    """
    n_lams, count, _ = columns.shape
    sums, products = np.empty((n_lams, count)), np.empty((n_lams, count, count))
    for at in range(n_lams):
        block = np.asarray(columns[at, :, rows])
        sums[at], products[at] = block.sum(axis=1, dtype=np.float64), block @ block.T
    return sums, products


def sum_grams(grams: list[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    """Sums and inner products over the rows of several blocks, added in order."""
    return sum(s for s, _ in grams), sum(c for _, c in grams)  # type: ignore[return-value]


def greedy_picks(sums: FloatArray, products: FloatArray, limit: int) -> IntArray:
    """Positions of the picked candidates, in order; the picks for K clusters are the first K.

    First the largest s_j; then always the candidate that overlaps least with those chosen, by the smallest
    max over chosen l of c_jl / s_j^2. Ties go to the lowest position. The sums (c,) and products (c, c) are
    over all rows.
    """
    overlaps = products / sums[:, None] ** 2
    picks = [first_best(sums)]
    worst = np.full(len(sums), -np.inf)
    while len(picks) < min(limit, len(sums)):
        worst = np.maximum(worst, overlaps[:, picks[-1]])
        worst[picks] = np.inf
        picks.append(first_best(-worst))
    return np.array(picks)


def picks_of_lams(gram: tuple[FloatArray, FloatArray], slots: IntArray, limit: int) -> IntArray:
    """Picked candidates of every lam (lam, picks); `slots` tells in which column of the Gram matrix each one stands."""
    return np.array([greedy_picks(s[slots], c[np.ix_(slots, slots)], limit) for s, c in zip(*gram, strict=True)])
