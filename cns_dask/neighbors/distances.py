"""Distances: running lists of the nearest rows, on blocks of NumPy arrays.

A matrix product gives lower bounds of many distances at once; only pairs that could enter a list are measured again, by
direct differences. So near-ties are decided by the same numbers in any chunking.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cns_dask.numeric import compiled, workspace

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Pairs whose lower bounds are in memory together: fewer are slower.
QUERIES_AT_ONCE, POINTS_AT_ONCE = 2048, 4096
#: Of so many points one tells where empty lists will end.
GUESS_STEP = 4
#: Up to so many centres of cells every row is compared with every one.
FEW_CENTERS = 256


def merge_nearest(
    queries: NDArray[Any],
    query_rows: NDArray[Any],
    points: NDArray[Any],
    rows: NDArray[Any],
    nearest: tuple[NDArray[Any], NDArray[Any]],
    some: NDArray[Any] | None = None,
) -> None:
    """Merge `points` into the running nearest lists of `queries`, in place.

    Parameters
    ----------
    queries, query_rows
        The query points (m, d) and their own row numbers (m,), which are skipped; -1 for points from outside.
    points, rows
        The points to merge (r, d) and their row numbers (r,).
    nearest
        Squared distances and row numbers of the nearest so far (m, k): inf and -1 where still free. They stay sorted
        by distance, then by row number.
    some
        Only these queries; all if None.

    Row numbers ascend within `rows`.
    """
    width = nearest[0].shape[1]
    some = np.arange(len(queries)) if some is None else some
    for first in range(0, len(points) if width else 0, POINTS_AT_ONCE):
        tile = slice(first, first + POINTS_AT_ONCE)
        # a list full of equal points with low numbers takes no more
        some = some[(nearest[0][some, -1] > 0) | (nearest[1][some, -1] > rows[first])]
        for start in range(0, len(some), QUERIES_AT_ONCE):
            part = some[start : start + QUERIES_AT_ONCE]
            bounds = lower_bounds(queries[part], points[tile])
            guess = np.full(len(part), np.inf, bounds.dtype)
            if nearest[1][part, 0].max() < 0 and bounds.shape[1] > 2 * GUESS_STEP * width:
                guess = _guess(bounds, width)
            nearest_block(queries, query_rows, part, points[tile], rows[tile], bounds, guess, *nearest)


def _guess(bounds: NDArray[Any], width: int) -> NDArray[Any]:
    """Where empty lists will end at most, in all likelihood: most points will not stay.

    Every so-manieth point tells it, with half as many again as would be its share of the list.
    """
    some = bounds[:, ::GUESS_STEP]
    ranked = workspace("ranked", some.shape, bounds.dtype)
    ranked[...] = some
    rank = min(3 * width // (2 * GUESS_STEP) + 3, some.shape[1] - 1)
    ranked.partition(rank, axis=1)
    return np.asarray(bounds.dtype.type(1.001) * ranked[:, rank])


def lower_bounds(queries: NDArray[Any], points: NDArray[Any]) -> NDArray[Any]:
    """Lower bounds of all squared distances: |q|^2 + |r|^2 - 2 q.r, less what rounding can amount to.

    One matrix product gives the sum: (q, |q|^2, 1) . (-2 r, 1, |r|^2), after the first query is taken off both. Its
    rounding error is below (d + 8) eps (|q| + |r|)^2 <= 2 (d + 8) eps (|q|^2 + |r|^2); twice that is taken off by
    shrinking the two norms. The array is this thread's: the next call writes over it.
    """
    shrink = shrinkage(queries)
    left = np.empty((len(queries), queries.shape[1] + 2), queries.dtype)
    right = np.empty((len(points), points.shape[1] + 2), points.dtype)
    extend_block(queries, queries[0], 1, shrink, left[:, -2], left[:, -1], left)
    extend_block(points, queries[0], -2, shrink, right[:, -1], right[:, -2], right)
    return np.matmul(left, right.T, out=workspace("bounds", (len(queries), len(points)), queries.dtype))


def shrinkage(queries: NDArray[Any]) -> float:
    """The factor that takes the rounding of `lower_bounds` off the norms."""
    return float(1 - 4 * (queries.shape[1] + 8) * np.finfo(queries.dtype).eps)


@compiled
def extend_block(
    points: NDArray[Any],
    center: NDArray[Any],
    factor: float,
    shrink: float,
    norms: NDArray[Any],
    ones: NDArray[Any],
    out: NDArray[Any],
) -> None:
    """Fill one side of the product of `lower_bounds`: `factor` times the points less the center, norms and ones."""
    for i in range(points.shape[0]):
        squared = points[i, 0] * 0
        for f in range(points.shape[1]):
            shifted = points[i, f] - center[f]
            squared += shifted * shifted
            out[i, f] = factor * shifted
        norms[i] = shrink * squared
        ones[i] = 1


@compiled
def insert(distances: NDArray[Any], indices: NDArray[Any], squared: float, row: int) -> None:
    """Put (squared, row) in its place of one sorted list; the last entry drops out."""
    slot = len(distances) - 1
    while slot > 0 and (distances[slot - 1] > squared or (distances[slot - 1] == squared and indices[slot - 1] > row)):
        distances[slot] = distances[slot - 1]
        indices[slot] = indices[slot - 1]
        slot -= 1
    distances[slot] = squared
    indices[slot] = row


@compiled
def merge_row(
    query: NDArray[Any],
    query_row: int,
    points: NDArray[Any],
    rows: NDArray[Any],
    bounds: NDArray[Any],
    limit: float,
    distances: NDArray[Any],
    indices: NDArray[Any],
) -> None:
    """Merge the points that are not farther than `limit` into the list of one query."""
    n_points, n_features = points.shape
    last = len(distances) - 1
    for start in range(0, n_points, 64):  # most stretches hold nothing near: looked at without a branch
        stop = min(start + 64, n_points)
        hits = 0
        for j in range(start, stop):
            hits += bounds[j] <= limit
        if hits == 0:
            continue
        for j in range(start, stop):
            if bounds[j] > limit or rows[j] == query_row:
                continue
            total = 0.0
            for f in range(n_features):
                difference = query[f] - points[j, f]
                total += difference * difference
            squared = distances.dtype.type(total)  # rounded as it is stored, so that ties are ties in any order
            if squared > limit or (squared == distances[last] and rows[j] >= indices[last]):
                continue
            insert(distances, indices, squared, rows[j])
            limit = min(limit, distances[last])


@compiled
def nearest_block(  # noqa: PLR0913, PLR0917 - arrays that a compiled function takes one by one
    queries: NDArray[Any],
    query_rows: NDArray[Any],
    some: NDArray[Any],
    points: NDArray[Any],
    rows: NDArray[Any],
    bounds: NDArray[Any],
    guess: NDArray[Any],
    distances: NDArray[Any],
    indices: NDArray[Any],
) -> None:
    """Merge `points` into the lists of the queries `some`, given lower bounds of their squared distances (some, r).

    A pair is measured by direct differences (symmetric, the same in every block) only if its cheap lower bound does
    not already exclude it: so the order of the matrix product's additions decides nothing. For an empty list, `guess`
    may be where it will end: if it does not fill up to there, the search is repeated without.
    """
    last = distances.shape[1] - 1
    for at in range(len(some)):
        i = some[at]
        limit = min(distances[i, last], guess[at])
        merge_row(queries[i], query_rows[i], points, rows, bounds[at], limit, distances[i], indices[i])
        if limit < np.inf and indices[i, last] < 0:
            for slot in range(last + 1):
                distances[i, slot], indices[i, slot] = np.inf, -1
            merge_row(queries[i], query_rows[i], points, rows, bounds[at], distances[i, last], distances[i], indices[i])


@compiled
def measure_lists(points: NDArray[Any], lists: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the squared distance from every point to each of those on its list (m, k) into `out`; inf for -1."""
    for i in range(lists.shape[0]):
        for t in range(lists.shape[1]):
            squared = points[i, 0] * 0
            for f in range(points.shape[1]):
                difference = points[i, f] - points[lists[i, t], f]
                squared += difference * difference
            out[i, t] = squared if lists[i, t] >= 0 else np.inf


@compiled
def merge_lists(
    lists: NDArray[Any], measured: NDArray[Any], rows: NDArray[Any], distances: NDArray[Any], indices: NDArray[Any]
) -> None:
    """Merge lists of row numbers and their distances (m, c) into the nearest lists of `rows` (m,), each row once."""
    last = distances.shape[1] - 1
    for i in range(lists.shape[0]):
        for t in range(lists.shape[1]):
            far, row = measured[i, t], lists[i, t]
            if row < 0 or row == rows[i] or far > distances[i, last]:
                continue
            if far == distances[i, last] and row >= indices[i, last]:
                continue
            is_listed = False
            for slot in range(last + 1):
                is_listed |= indices[i, slot] == row
            if not is_listed:
                insert(distances[i], indices[i], far, row)


@compiled
def bound_row(query: NDArray[Any], squared: float, sides: NDArray[Any], norms: NDArray[Any], out: NDArray[Any]) -> None:
    """Write the lower bounds of one query: norms + squared + query @ sides (d, r), four features at a time."""
    n_features, n_points = sides.shape[0], len(out)
    in_fours = n_features - n_features % 4
    for p in range(n_points):
        out[p] = norms[p] + squared
    for f in range(0, in_fours, 4):
        a, b, c, d = query[f], query[f + 1], query[f + 2], query[f + 3]
        for p in range(n_points):
            out[p] += (a * sides[f, p] + b * sides[f + 1, p]) + (c * sides[f + 2, p] + d * sides[f + 3, p])
    for f in range(in_fours, n_features):
        for p in range(n_points):
            out[p] += query[f] * sides[f, p]


@compiled
def visit_cells(  # noqa: PLR0913, PLR0917 - arrays that a compiled function takes one by one
    queries: NDArray[Any],
    query_rows: NDArray[Any],
    center: NDArray[Any],
    points: NDArray[Any],
    rows: NDArray[Any],
    edges: NDArray[Any],
    gaps: NDArray[Any],
    reach: float,
    shrink: float,
    distances: NDArray[Any],
    indices: NDArray[Any],
) -> None:
    """Merge the points of cells into the lists of the queries that have them in reach, cell after cell.

    `merge_nearest` for many small sets in one call: a call for each would spend its time in the interpreter, and keep
    other threads from theirs.

    Parameters
    ----------
    queries, query_rows, points, rows, distances, indices
        As for `merge_nearest`.
    center
        Taken off queries and points for the lower bounds (d,).
    edges
        First and last + 1 point of every cell (c, 2).
    gaps
        A cell is in reach of a query while its gap (c, m) is below `reach` times the last distance on the list.
    shrink
        As in `lower_bounds`.
    """
    n_queries, n_features = queries.shape
    last = distances.shape[1] - 1
    sides = np.empty((n_features, POINTS_AT_ONCE), queries.dtype)  # one feature of all points after the other
    norms, row = np.empty(POINTS_AT_ONCE, queries.dtype), np.empty(POINTS_AT_ONCE, queries.dtype)
    own, some = np.empty(n_features, queries.dtype), np.empty(n_queries, np.int64)
    for cell in range(edges.shape[0]):
        count = 0
        for i in range(n_queries):
            if gaps[cell, i] < reach * np.sqrt(distances[i, last]):
                some[count] = i
                count += 1
        for first in range(edges[cell, 0], edges[cell, 1] if count else 0, POINTS_AT_ONCE):
            tile = slice(first, min(first + POINTS_AT_ONCE, edges[cell, 1]))
            for p in range(tile.stop - first):
                norms[p] = 0
                for f in range(n_features):
                    shifted = points[first + p, f] - center[f]
                    norms[p] += shrink * (shifted * shifted)
                    sides[f, p] = shifted
            for at in range(count):
                i = some[at]
                squared = norms[0] * 0
                for f in range(n_features):
                    shifted = queries[i, f] - center[f]
                    squared += shrink * (shifted * shifted)
                    own[f] = -2 * shifted
                bound_row(own, squared, sides, norms, row[: tile.stop - first])
                limit = distances[i, last]
                merge_row(queries[i], query_rows[i], points[tile], rows[tile], row, limit, distances[i], indices[i])
