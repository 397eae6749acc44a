"""Block mathematics on NumPy arrays; no Dask, no files.

| symbol | variable    | shape     | meaning                                              |
|--------|-------------|-----------|------------------------------------------------------|
| N_k    | `neighbors` | (n, k)    | the k nearest rows of every row, the row itself first |
| W      | `neighbors` | (n, k)    | transition matrix: 1/k at each listed neighbour       |
| V      | `block`     | (n, b)    | columns that are smoothed together                   |

The kernels that loop are compiled by Numba without fast-math, in one fixed order of operations: a row's result
depends on the row alone, never on its place in a block, so chunking cannot change a bit of it. They hold no lock
(`nogil`) and start no threads of their own: one block per Dask thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from scipy.linalg.blas import dgemm

from cns_dask.plan import rows_per_slice

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Values closer than this count as tied: the order of additions must not decide.
TIE = 1e-9

_compiled = numba.njit(nogil=True, cache=True)


@_compiled
def smooth_block(
    neighbors: NDArray[Any],
    block: NDArray[Any],
    shift: float,
    scale: float,
    previous: NDArray[Any],
    keep: float,
    out: NDArray[Any],
) -> None:
    """Write `scale * (W - shift I) @ block + keep * previous` into `out`: one pass over the graph.

    With shift 0, scale 1 and keep 0 this is the plain smoothing pass: the mean of the k gathered rows.
    """
    n_rows, n_neighbors = neighbors.shape
    width = block.shape[1]
    in_fours = n_neighbors - n_neighbors % 4
    for i in range(n_rows):
        row = out[i]
        row[:] = 0
        for t in range(0, in_fours, 4):  # four gathered rows for each time that the sum is read and written
            first, second = block[neighbors[i, t]], block[neighbors[i, t + 1]]
            third, fourth = block[neighbors[i, t + 2]], block[neighbors[i, t + 3]]
            for c in range(width):
                row[c] = row[c] + first[c] + second[c] + third[c] + fourth[c]
        for t in range(in_fours, n_neighbors):
            gathered = block[neighbors[i, t]]
            for c in range(width):
                row[c] += gathered[c]
        for c in range(width):
            row[c] = scale * (row[c] / n_neighbors - shift * block[i, c]) + keep * previous[i, c]


def add_products(weights: NDArray[Any], blocks: NDArray[Any], total: NDArray[Any]) -> None:
    """Add sum_p weights[l, p] * blocks[p] to total[l], in place: one BLAS call without a temporary array.

    `weights` (l, p), `blocks` (p, n, b) and `total` (l, n, b) are contiguous.
    """
    flat = total.reshape(len(total), -1)
    added = dgemm(1.0, blocks.reshape(len(blocks), -1).T, weights.T, beta=1.0, c=flat.T, overwrite_c=True)
    if not np.shares_memory(added, total):
        raise ValueError("total must be contiguous to be added to in place.")


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
    """
    if not nearest[0].shape[1]:
        return
    some = np.arange(len(queries)) if some is None else some
    step = rows_per_slice(len(points))
    for start in range(0, len(some), step):
        part = some[start : start + step]
        nearest_block(queries, query_rows, part, points, rows, lower_bounds(queries[part], points), *nearest)


def lower_bounds(queries: NDArray[Any], points: NDArray[Any]) -> NDArray[Any]:
    """Lower bounds of all squared distances: |q|^2 + |r|^2 - 2 q.r, less what rounding can amount to.

    One matrix product gives the sum: (q, |q|^2, 1) . (-2 r, 1, |r|^2). Its rounding error is below
    (d + 6) eps (|q| + |r|)^2 <= 2 (d + 6) eps (|q|^2 + |r|^2); twice that is taken off by shrinking the two norms.
    """
    shrink = queries.dtype.type(1 - 4 * (queries.shape[1] + 6) * np.finfo(queries.dtype).eps)
    ones_q, ones_p = np.ones(len(queries), queries.dtype), np.ones(len(points), points.dtype)
    left = np.column_stack([queries, shrink * np.einsum("ij,ij->i", queries, queries), ones_q])
    right = np.column_stack([-2 * points, ones_p, shrink * np.einsum("ij,ij->i", points, points)])
    return np.asarray(left @ right.T)


@_compiled
def insert(distances: NDArray[Any], indices: NDArray[Any], squared: float, row: int) -> None:
    """Put (squared, row) in its place of one sorted list; the last entry drops out."""
    low, high = 0, len(distances) - 1
    while low < high:  # the first place whose (distance, row) is larger
        middle = (low + high) // 2
        if distances[middle] > squared or (distances[middle] == squared and indices[middle] > row):
            high = middle
        else:
            low = middle + 1
    for slot in range(len(distances) - 1, low, -1):
        distances[slot] = distances[slot - 1]
        indices[slot] = indices[slot - 1]
    distances[low] = squared
    indices[low] = row


@_compiled
def nearest_block(
    queries: NDArray[Any],
    query_rows: NDArray[Any],
    some: NDArray[Any],
    points: NDArray[Any],
    rows: NDArray[Any],
    bounds: NDArray[Any],
    distances: NDArray[Any],
    indices: NDArray[Any],
) -> None:
    """Merge `points` into the lists of the queries `some`, given lower bounds of their squared distances (some, r).

    A pair is measured by direct differences (symmetric, the same in every block) only if its cheap lower bound does
    not already exclude it: so the order of the matrix product's additions decides nothing.
    """
    n_points, n_features = points.shape
    last = distances.shape[1] - 1
    for at in range(len(some)):
        i = some[at]
        for start in range(0, n_points, 64):  # most stretches hold nothing near: looked at without a branch
            stop = min(start + 64, n_points)
            hits = 0
            for j in range(start, stop):
                hits += bounds[at, j] <= distances[i, last]
            if hits == 0:
                continue
            for j in range(start, stop):
                if bounds[at, j] > distances[i, last] or rows[j] == query_rows[i]:
                    continue
                squared = bounds[at, j] * 0
                for f in range(n_features):
                    difference = queries[i, f] - points[j, f]
                    squared += difference * difference
                if squared > distances[i, last] or (squared == distances[i, last] and rows[j] >= indices[i, last]):
                    continue
                insert(distances[i], indices[i], squared, rows[j])


@_compiled
def project_block(rows: NDArray[Any], components: NDArray[Any], out: NDArray[Any]) -> None:
    """Add `rows @ components` to `out`, feature by feature.

    A BLAS product rounds differently with the shape of the block and would tear duplicate rows apart.
    """
    n_features, n_components = components.shape
    for i in range(rows.shape[0]):
        for f in range(n_features):
            for c in range(n_components):
                out[i, c] += rows[i, f] * components[f, c]


def first_best(values: NDArray[Any]) -> int:
    """Position of the first value that ties with the largest.

    Examples
    --------
    >>> first_best(np.array([1.0, 3.0, 3.0]))
    1
    """
    top = values.max()
    return int(np.argmax(values >= top - TIE * abs(top)))
