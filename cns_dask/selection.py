"""Which points may represent clusters, and which of them do.

Candidates are the local maxima of in-degree on the graph; picks are made greedily among their columns.
"""

from __future__ import annotations

import numpy as np

from cns_dask.kernels import first_best
from cns_dask.neighbors import search_block
from cns_dask.types import ArrayLike, Candidates, FloatArray, IntArray


def local_maxima(neighbors: IntArray) -> Candidates:
    """Rows whose in-degree is at least that of each of their k neighbours, in row order.

    The in-degree of j counts the rows that list j; it is compared as an integer.

    Examples
    --------
    >>> local_maxima(np.array([[0, 1], [1, 0], [2, 1]])).rows
    array([1])
    """
    degrees = np.bincount(neighbors.ravel(), minlength=len(neighbors))
    highest = degrees[neighbors[:, 0]]
    for column in neighbors.T[1:]:  # column by column: (n, k) in-degrees never exist at once
        np.maximum(highest, degrees[column], out=highest)
    rows = np.flatnonzero(degrees >= highest)
    return Candidates(rows, degrees[rows])


def find_candidates(neighbors: IntArray, points: ArrayLike | None, limit: int) -> Candidates:
    """The local maxima, or the `limit` most prominent of them; `points` (n, d) are read only for these.

    Without points (the caller gave a graph alone) there are no distances, and those of largest in-degree are kept.
    """
    found = local_maxima(neighbors)
    if len(found.rows) <= limit:
        return found
    if points is None:
        order = np.argsort(-found.degrees, kind="stable")[:limit]
        return Candidates(found.rows[order], found.degrees[order])
    return most_prominent(found, np.asarray(points[found.rows, :]), limit)


def most_prominent(candidates: Candidates, points: FloatArray, limit: int) -> Candidates:
    """The `limit` candidates with the largest in-degree times distance to the nearest other candidate.

    Largest first, ties in row order. `points` are the candidates' rows as the neighbours saw them (c, d).
    """
    squared, _ = search_block(None, points, range(len(points)), points, slice(None), 0, 1)
    order = np.argsort(-candidates.degrees * np.sqrt(squared[:, 0]), kind="stable")[:limit]
    return Candidates(candidates.rows[order], candidates.degrees[order])


def gram_block(columns: ArrayLike, at: int, rows: slice) -> tuple[FloatArray, FloatArray]:
    """Sums s_j (c,) and inner products c_jl (c, c) of the candidate columns of one lam over some rows.

    `columns` (lam, row, candidate) may be anything that is sliced like an array. A common factor, as lam, is no matter:
    the picks compare s_j, and c_jl / s_j^2.
    """
    block = np.asarray(columns[at, rows])
    return block.sum(axis=0), block.T @ block


def sum_grams(grams: list[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    """Sums and inner products over the rows of several blocks, added in order."""
    return sum(s for s, _ in grams), sum(c for _, c in grams)  # type: ignore[return-value]


def greedy_picks(gram: tuple[FloatArray, FloatArray], limit: int) -> IntArray:
    """Positions of the picked candidates, in order; the picks for K clusters are the first K.

    First the largest s_j; then always the candidate that overlaps least with those chosen, by the smallest
    max over chosen l of c_jl / s_j^2. Ties go to the lowest position. `gram` is that of all rows.
    """
    sums = gram[0]
    overlaps = gram[1] / sums[:, None] ** 2
    picks = [first_best(sums)]
    worst = np.full(len(sums), -np.inf)
    while len(picks) < min(limit, len(sums)):
        worst = np.maximum(worst, overlaps[:, picks[-1]])
        worst[picks] = np.inf
        picks.append(first_best(-worst))
    return np.array(picks)
