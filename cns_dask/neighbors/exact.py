"""The exact search for neighbours.

It measures every chunk of queries against every chunk of rows in ascending order and keeps a running list of
the k nearest. A matrix product gives lower bounds of all distances of a pair of chunks; only pairs that could enter a
list are measured again, by direct differences, so near-ties are decided in float64 by the same numbers in any chunking.
"""

from collections.abc import Sequence
from operator import getitem
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.errors import InvalidDataError
from cns_dask.neighbors.distances import merge_nearest
from cns_dask.neighbors.graph import NeighborGraph


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
    return as_arrays(blocks, _sizes(points), n_neighbors, np.float64)


def search_everywhere(
    queries: FloatArray, points: ArrayLike, n_neighbors: int, first_copy: ArrayLike | None = None
) -> tuple[FloatArray, IntArray]:
    """Distances and row numbers of the nearest points of some rows from outside (m, k), chunk of points by chunk.

    Where `first_copy` tells the first row that equals each, only first rows are neighbors.
    """
    shape, nobody = (len(queries), n_neighbors), np.full(len(queries), -1)
    nearest = np.full(shape, np.inf, queries.dtype), np.full(shape, -1)
    for source, part, first_row in _row_blocks(points):
        values = np.asarray(source[part])
        rows = first_row + np.arange(len(values))
        if first_copy is not None:
            is_first = np.asarray(first_copy[rows[0] : rows[-1] + 1]) == rows
            values, rows = values[is_first], rows[is_first]
        merge_nearest(queries, nobody, values, rows, nearest)
    return with_roots(nearest)


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


def with_self_first(
    nearest: tuple[FloatArray, IntArray], rows: Sequence[int] | IntArray
) -> tuple[FloatArray, IntArray]:
    """Distances and indices from squared distances of others, every row (`rows` are their numbers) in front."""
    return self_first(with_roots(nearest), rows)


def self_first(lists: tuple[FloatArray, IntArray], rows: Sequence[int] | IntArray) -> tuple[FloatArray, IntArray]:
    """Put every row in front of its own list of others, at distance 0."""
    _check_full(lists[1])
    distances, indices = (np.empty((len(others), others.shape[1] + 1), others.dtype) for others in lists)
    distances[:, 0], distances[:, 1:] = 0, lists[0]
    indices[:, 0], indices[:, 1:] = rows, lists[1]
    return distances, indices


def with_roots(nearest: tuple[FloatArray, IntArray]) -> tuple[FloatArray, IntArray]:
    """Turn squared distances into distances; float32 roots tie where squares do not, and ties go by row number."""
    _check_full(nearest[1])
    distances, indices = np.sqrt(nearest[0]), nearest[1]
    if distances.dtype == np.float32:
        tied = distances[:, 1:] == distances[:, :-1]
        wrong = np.flatnonzero((tied & (indices[:, 1:] < indices[:, :-1])).any(axis=1))
        order = np.lexsort((indices[wrong], distances[wrong]), axis=1)
        indices = indices.copy()
        indices[wrong] = np.take_along_axis(indices[wrong], order, axis=1)
    return distances, indices


def _check_full(indices: IntArray) -> None:
    if (indices < 0).any():
        raise InvalidDataError(
            "Some squared distances overflow, or points are damaged. Bring the features to a common scale first."
        )


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


def as_arrays(blocks: list[Any], sizes: tuple[int, ...], n_neighbors: int, dtype: Any) -> NeighborGraph:
    """Two lazy arrays from tasks that return (distances, indices)."""

    def stacked(part: int, dtype: Any) -> da.Array:
        shapes = [(size, n_neighbors) for size in sizes]
        arrays = [da.from_delayed(block[part], shape, dtype) for block, shape in zip(blocks, shapes, strict=True)]
        return da.concatenate(arrays)

    return NeighborGraph(indices=stacked(1, np.int64), distances=stacked(0, dtype))
