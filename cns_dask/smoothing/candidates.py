"""Candidates: the points that may represent a cluster, which are the local maxima of in-degree on the graph."""

from dataclasses import dataclass

import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.neighbors.exact import search_block
from cns_dask.storage.records import recordable

TREE_FEATURES = 8  # up to so many a tree is faster: 50 000 points in the plane 0.1 s instead of 5 s


@recordable
@dataclass(frozen=True)
class Candidates:
    """Points that may represent a cluster: their rows and in-degrees, in the order in which ties are broken."""

    rows: IntArray
    degrees: IntArray
    n_maxima: int  # local maxima that there were before some were left out


def in_degrees(neighbors: IntArray, n_rows: int) -> IntArray:
    """How many of some rows list each of all `n_rows` (n,)."""
    degrees = np.zeros(n_rows, np.int64)
    for nth in neighbors.T:  # one after the other: nothing as large as the graph exists beside it
        degrees += np.bincount(nth, minlength=n_rows)
    return degrees


def highest_near(neighbors: IntArray, highest: IntArray) -> IntArray:
    """The largest of the values `highest` (n,) of all rows at the neighbours of some rows (m,), themselves included."""
    wider = highest[neighbors[:, 0]]
    for nth in neighbors.T[1:]:
        np.maximum(wider, highest[nth], out=wider)
    return np.asarray(wider)


def local_maxima(neighbors: IntArray, limit: int | None = None) -> Candidates:
    """Rows whose in-degree is at least that of each of their k neighbours, in row order.

    The in-degree of j counts the rows that list j; it is compared as an integer. If there are more than `limit`, those
    are left whose in-degree is the largest within two steps of the walk, or three, and so on. Every walk still reaches
    one: the largest in-degree of a set of rows that walks cannot leave is a maximum at any number of steps.

    Examples
    --------
    >>> local_maxima(np.array([[0, 1], [1, 0], [2, 1]])).rows
    array([1])
    """
    degrees = in_degrees(neighbors, len(neighbors))
    highest, rows, n_maxima = degrees, np.arange(len(neighbors)), 0
    while True:
        wider = highest_near(neighbors, highest)
        fewer = np.flatnonzero(degrees >= wider)
        is_first, is_widest = highest is degrees, np.array_equal(wider, highest)
        highest, rows, n_maxima = wider, fewer, n_maxima or len(fewer)
        if limit is None or len(rows) <= limit or (is_widest and not is_first):
            return Candidates(rows, degrees[rows], n_maxima)


def find_candidates(
    neighbors: IntArray, points: ArrayLike | None, limit: int, order: IntArray | None = None, *, cover: bool = False
) -> Candidates:
    """The local maxima, or the `limit` most prominent of them; `points` (n, d) are read only for these.

    The most prominent ones, which the paper takes, may leave parts of the data without any: `cover` them instead, with
    the maxima of wider neighbourhoods. Without points (the caller gave a graph alone) there are no distances, and those
    of largest in-degree are kept. If the graph numbers rows by their position in an `order`, candidates have their row
    numbers nevertheless.
    """
    maxima = local_maxima(neighbors, limit if cover else None)
    if order is not None:
        maxima = in_row_order(maxima, order[maxima.rows])
    return most_of(maxima, points, limit)


def in_row_order(maxima: Candidates, rows: IntArray) -> Candidates:
    """The same, by the row numbers that belong to their positions."""
    by_row = np.argsort(rows)
    return Candidates(rows[by_row], maxima.degrees[by_row], maxima.n_maxima)


def most_of(maxima: Candidates, points: ArrayLike | None, limit: int) -> Candidates:
    """The maxima, or `limit` of them: the most prominent, or without points those of largest in-degree."""
    if len(maxima.rows) <= limit:
        return maxima
    if points is None:
        first = np.argsort(-maxima.degrees, kind="stable")[:limit]
        return Candidates(maxima.rows[first], maxima.degrees[first], maxima.n_maxima)
    return most_prominent(maxima, np.asarray(points[maxima.rows, :]), limit)


def most_prominent(candidates: Candidates, points: FloatArray, limit: int) -> Candidates:
    """The `limit` candidates with the largest in-degree times distance to the nearest other candidate.

    Largest first, ties in row order. `points` are the candidates' rows as the neighbours saw them (c, d).
    """
    order = np.argsort(-candidates.degrees * nearest_others(points), kind="stable")[:limit]
    return Candidates(candidates.rows[order], candidates.degrees[order], candidates.n_maxima)


def nearest_others(points: FloatArray) -> FloatArray:
    """Distance of every point to its nearest other (c,): by a tree where that helps, else compared block by block."""
    if points.shape[1] <= TREE_FEATURES:
        from scipy.spatial import KDTree

        distances, _ = KDTree(points).query(points, k=2)
        return np.asarray(distances)[:, 1]
    squared, _ = search_block(None, points, range(len(points)), points, slice(None), 0, 1)
    return np.asarray(np.sqrt(squared[:, 0]))
