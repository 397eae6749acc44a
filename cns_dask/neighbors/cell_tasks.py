"""Tasks that move rows between the order of the data and the order of cells, and search there; all out of core."""

import itertools

import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.neighbors.cells import Cells, nearest_centers, needed_reach, search_cells, shifted
from cns_dask.neighbors.distances import merge_lists
from cns_dask.neighbors.exact import search_block, with_self_first
from cns_dask.neighbors.exchange import collect, list_entry, point_entry, write_sorted


def take_rows(points: ArrayLike, part: slice, *samples: IntArray) -> list[FloatArray]:
    """The rows of several samples, all of them in one part of an opened array, which is read once."""
    values = np.asarray(points[part])
    return [values[rows - part.start] for rows in samples]


def sort_into_cells(
    points: ArrayLike, part: slice, centers: ArrayLike, offset: ArrayLike, scratch: ArrayLike, start: int
) -> IntArray:
    """Write some rows in the order of their cells; return the number of them in every cell."""
    values = shifted(np.asarray(points[part]), np.asarray(offset[...]))
    cells = nearest_centers(values, np.asarray(centers[...]))
    keys = cells * points.shape[0] + np.arange(part.start, part.stop)
    write_sorted(point_entry(values.shape[1]), keys, scratch, start, point=values)
    return np.bincount(cells, minlength=centers.shape[0])


def fill_chunk(scratch: ArrayLike, slices: list[slice], n_rows: int, cells: Cells, part: slice) -> None:
    """Collect one chunk of rows in the order of the cells, and write it."""
    entries = collect(point_entry(cells.points.shape[1]), scratch, slices)
    cells.points[part], cells.rows[part] = entries["point"], entries["key"] % n_rows


def cell_cuts(counts: IntArray, edges: IntArray) -> IntArray:
    """Of every block (block, edge): how many of its rows, sorted by cell, lie before each position in `edges`.

    `counts` (block, cell) are the rows of each block in each cell; a cell holds them block after block.
    """
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    cell = np.clip(np.searchsorted(starts, edges, side="right") - 1, 0, counts.shape[1] - 1)
    earlier_blocks = np.cumsum(counts, axis=0) - counts
    earlier_cells = np.cumsum(counts, axis=1) - counts
    inside = np.clip(edges - starts[cell] - earlier_blocks[:, cell], 0, counts[:, cell])
    return np.asarray(earlier_cells[:, cell] + inside)


def nearest_in_part(
    queries: ArrayLike, rows: IntArray, points: ArrayLike, part: slice, n_neighbors: int
) -> tuple[FloatArray, IntArray]:
    """Squared distances and numbers of the nearest points in one part of an opened array."""
    return search_block(None, np.asarray(queries[...]), rows, points, part, part.start, n_neighbors)


def merge_parts(parts: list[tuple[FloatArray, IntArray]], rows: IntArray) -> tuple[FloatArray, IntArray]:
    """Merge the lists of the same rows from several parts of the points."""
    distances, indices = parts[0][0].copy(), parts[0][1].copy()
    for squared, lists in parts[1:]:
        merge_lists(lists, squared, rows, distances, indices)
    return distances, indices


def reach_for(
    queries: FloatArray, nearest: tuple[FloatArray, IntArray], cells: Cells, share: float
) -> tuple[float, float]:
    """The reach that finds this share of known neighbours, and the rows that a query then meets on average.

    `nearest` are squared distances and positions of the exact neighbours.
    """
    needed, visits = needed_reach(queries, np.sqrt(nearest[0]), nearest[1], cells)
    reach = float(np.clip(np.quantile(needed, share, method="higher"), 0.05, 1.0))
    sizes = np.diff(np.asarray(cells.starts[...]))
    return reach, float(((visits < reach) @ sizes).mean())


def search_and_sort(
    cells: Cells, part: slice, n_neighbors: int, scratch: ArrayLike, start: int, edges: IntArray
) -> IntArray:
    """Find the neighbours of the rows at some positions, and write them by row number; count those before each edge."""
    queries, rows = np.asarray(cells.points[part]), np.asarray(cells.rows[part])
    own = np.searchsorted(np.asarray(cells.starts[...]), np.arange(part.start, part.stop), side="right") - 1
    distances, indices = with_self_first(search_cells(queries, rows, own, cells, n_neighbors - 1), rows)
    keys = write_sorted(
        list_entry(n_neighbors, cells.points.shape[0]), rows, scratch, start, indices=indices, distances=distances
    )
    return np.searchsorted(keys, edges)


def collect_chunk(
    scratch: ArrayLike, slices: list[slice], graph: tuple[ArrayLike, ArrayLike], part: slice, measured: IntArray
) -> tuple[FloatArray, IntArray]:
    """Collect the lists of one chunk of rows and write them; return distances and indices of some of the rows."""
    entries = collect(list_entry(graph[0].shape[1], graph[0].shape[0]), scratch, slices)
    graph[0][part] = np.ascontiguousarray(entries["indices"])
    graph[1][part] = np.ascontiguousarray(entries["distances"])
    some = entries[measured - part.start]
    return some["distances"], some["indices"]


def search_parts(starts: IntArray, step: int) -> list[slice]:
    """Positions that are searched together: about `step`, never twice as many, whole cells where these are smaller.

    Examples
    --------
    >>> search_parts(np.array([0, 5, 6, 12]), 4)
    [slice(0, 5, None), slice(5, 8, None), slice(8, 12, None)]
    """
    n_rows = int(starts[-1])
    wanted = np.arange(step, n_rows, step)
    ends = starts[np.searchsorted(starts, wanted)]
    edges = [0, *np.unique(np.where(ends - wanted < step, ends, wanted)).tolist()]
    edges += [n_rows] if edges[-1] < n_rows else []
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]
