"""The chunked kNN graph.

Exact search measures every chunk of queries against every chunk of rows in ascending order and keeps a running list of
the k nearest. A matrix product gives lower bounds of all distances of a pair of chunks; only pairs that could enter a
list are measured again, by direct differences, so near-ties are decided in float64 by the same numbers in any chunking.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import getitem
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.data import open_data
from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.kernels import merge_nearest
from cns_dask.plan import rows_per_chunk
from cns_dask.preprocess import apply_transform
from cns_dask.settings import METRICS, check_integer
from cns_dask.types import ArrayLike, FloatArray, IntArray, NeighborGraph, Transform

METHODS = ("exact",)


def neighbor_graph(X: Any, n_neighbors: int, *, metric: str = "euclidean", method: str = "exact") -> NeighborGraph:
    """Find the nearest rows of every row.

    Parameters
    ----------
    X
        The data (n, d): anything that `CNS.fit` takes. They are used as they are, without centring or scaling.
    n_neighbors
        Neighbours per row, the row itself included: at least 1, below n.
    metric
        "euclidean", or "cosine": Euclidean between rows divided by their norms.
    method
        "exact".

    Returns
    -------
    NeighborGraph
        Lazy `indices` and `distances` (n, n_neighbors). Compute both in one call to share the search.

    Examples
    --------
    >>> graph = neighbor_graph([[0.0], [1.0], [3.0], [3.5]], n_neighbors=2)
    >>> graph.indices.compute()
    array([[0, 1],
           [1, 0],
           [2, 3],
           [3, 2]])
    """
    for name, value, allowed in (("metric", metric, METRICS), ("method", method, METHODS)):
        if value not in allowed:
            raise InvalidSettingError(f"{name} must be one of {allowed}. Got {value!r}.")
    X = open_data(X)
    n_rows, n_features = X.shape
    check_integer("n_neighbors", n_neighbors, 1, n_rows - 1)
    as_is = Transform(
        n_features, np.arange(n_features), np.zeros(n_features), np.ones(n_features), None, metric == "cosine", 0.0
    )
    rows = rows_per_chunk(n_rows, max(n_features, n_neighbors))
    return exact_graph(apply_transform(X.rechunk({0: rows}), as_is), n_neighbors)


def exact_graph(points: ArrayLike, n_neighbors: int) -> NeighborGraph:
    """Graph of the points (n, d): self first, then the nearest others by distance and row number.

    `points` is a Dask array, or better an opened array that tasks slice by themselves: chunks of a Dask array stay in
    memory until every chunk of queries has met them.
    """
    rows = _row_blocks(points)
    blocks = []
    for (source, part, first), size in zip(rows, _sizes(points), strict=True):
        queries, own = dask.delayed(getitem)(source, part), range(first, first + size)
        blocks.append(dask.delayed(with_self_first)(_search(queries, own, rows, n_neighbors - 1), own))
    return _as_arrays(blocks, _sizes(points), n_neighbors, np.float64)


def exact_search(
    queries: da.Array, points: ArrayLike, n_neighbors: int, query_rows: IntArray | None = None
) -> NeighborGraph:
    """Nearest points of some rows, by distance and row number. `points` as for `exact_graph`.

    `query_rows` are the row numbers of the queries among the points, which are left out; None for rows from outside.
    """
    rows, blocks, start = _row_blocks(points), [], 0
    for chunk, size in zip(queries.to_delayed().ravel(), queries.chunks[0], strict=True):
        own = None if query_rows is None else query_rows[start : start + size]
        blocks.append(dask.delayed(with_roots)(_search(chunk, own, rows, n_neighbors)))
        start += size
    return _as_arrays(blocks, queries.chunks[0], n_neighbors, queries.dtype)


def search_block(
    running: tuple[FloatArray, IntArray] | None,
    queries: FloatArray,
    query_rows: Sequence[int] | IntArray | None,
    points: ArrayLike,
    part: slice,
    first_row: int,
    n_neighbors: int,
) -> tuple[FloatArray, IntArray]:
    """Merge one part of the points into the running lists (squared distances, row numbers) of one chunk of queries.

    `query_rows` are the row numbers of the queries; None when they are not rows themselves. `first_row` is the row
    number of the first point of the part.
    """
    values = np.asarray(points[part])
    shape = len(queries), n_neighbors
    nearest = (
        (np.full(shape, np.inf, queries.dtype), np.full(shape, -1))
        if running is None
        else (running[0].copy(), running[1].copy())
    )
    own_rows = np.full(len(queries), -1) if query_rows is None else np.asarray(query_rows)
    merge_nearest(queries, own_rows, values, first_row + np.arange(len(values)), nearest)
    return nearest


def with_self_first(found: tuple[FloatArray, IntArray], rows: Sequence[int] | IntArray) -> tuple[FloatArray, IntArray]:
    """Put every row (`rows` are their numbers) in front of its own list, at distance 0."""
    distances, indices = with_roots(found)
    return np.insert(distances, 0, 0.0, axis=1), np.insert(indices, 0, rows, axis=1)


def with_roots(found: tuple[FloatArray, IntArray]) -> tuple[FloatArray, IntArray]:
    """Turn squared distances into distances."""
    if (found[1] < 0).any():
        raise InvalidDataError(
            "The squares of all distances must be finite numbers. Got some that overflow, or points that are damaged. "
            "Bring the columns to a common scale first."
        )
    return np.sqrt(found[0]), found[1]


def _search(queries: Any, query_rows: Any, rows: list[tuple[Any, slice, int]], n_neighbors: int) -> Any:
    """Chain of tasks: one chunk of queries against every part of the points."""
    running = None
    for source, part, first_row in rows:
        running = dask.delayed(search_block)(running, queries, query_rows, source, part, first_row, n_neighbors)
    return running


def _row_blocks(points: ArrayLike) -> list[tuple[Any, slice, int]]:
    """Where the rows of every chunk are found: a task, the part of its value, and the number of the first row."""
    starts = [int(start) for start in np.cumsum([0, *_sizes(points)[:-1]])]
    if isinstance(points, da.Array):
        return [(chunk, slice(None), start) for chunk, start in zip(points.to_delayed().ravel(), starts, strict=True)]
    return [(points, slice(start, start + size), start) for start, size in zip(starts, _sizes(points), strict=True)]


def _sizes(points: ArrayLike) -> tuple[int, ...]:
    """Rows of every chunk."""
    if isinstance(points, da.Array):
        return tuple(points.chunks[0])
    n_rows, step = points.shape[0], points.chunks[0]
    return tuple(min(step, n_rows - start) for start in range(0, n_rows, step))


def _as_arrays(blocks: list[Any], sizes: tuple[int, ...], n_neighbors: int, dtype: Any) -> NeighborGraph:
    """Two lazy arrays from tasks that return (distances, indices)."""

    def stacked(part: int, dtype: Any) -> da.Array:
        shapes = [(size, n_neighbors) for size in sizes]
        arrays = [da.from_delayed(block[part], shape, dtype) for block, shape in zip(blocks, shapes, strict=True)]
        return da.concatenate(arrays)

    return NeighborGraph(indices=stacked(1, np.int64), distances=stacked(0, dtype))
