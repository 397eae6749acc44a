"""Neighbours by descent in large overlapping partitions. The only door to pynndescent.

In many dimensions a search in cells meets a large part of all rows. Descent (neighbours of neighbours are neighbours)
costs the same for every row however many there are, but needs its rows in memory: so every row goes to its OVERLAP
nearest partitions, a graph is found in each, and a row's lists are merged. What is missed lies across borders; another
round has other borders.
"""

import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.neighbors.cells import learn_centers, nearest_centers, shifted
from cns_dask.neighbors.distances import measure_lists, merge_lists, merge_nearest
from cns_dask.neighbors.exact import self_first
from cns_dask.neighbors.exchange import collect, list_entry, point_entry, write_sorted
from cns_dask.neighbors.plan import OVERLAP, GraphSizes

CENTERS_PER_PARTITION = 16  # a partition is a union of cells: equally large ones exist


def warm_up(n_features: int, n_neighbors: int) -> None:
    """Compile pynndescent in this process: most of a minute, once."""
    from pynndescent import NNDescent

    rows = np.random.default_rng(0).standard_normal((4 * n_neighbors + 1000, n_features), dtype=np.float32)
    _ = NNDescent(rows, n_neighbors=n_neighbors, random_state=0, n_jobs=1).neighbor_graph


def group_centers(counts: IntArray, n_partitions: int) -> IntArray:
    """Partition of every centre (c,): neighbours in order together, with about as many rows (`counts`) in each.

    Examples
    --------
    >>> group_centers(np.array([3, 1, 1, 1]), 2)
    array([0, 1, 1, 1])
    """
    middle = np.cumsum(counts) - counts / 2
    return np.asarray(np.minimum(middle / counts.sum() * n_partitions, n_partitions - 1), np.int64)


def learn_partitions(
    sample: list[FloatArray], n_partitions: int, n_centers: int, offset: FloatArray, seed: int
) -> tuple[FloatArray, IntArray]:
    """Centres (c, d) learned from a sample of rows, and the partition of each (c,)."""
    centers, shift = learn_centers(sample, n_centers, seed)
    centers = shifted(centers + shift, offset)
    nearest = nearest_centers(shifted(np.concatenate(sample), offset), centers)
    return centers, group_centers(np.bincount(nearest, minlength=len(centers)), n_partitions)


def nearest_partitions(points: FloatArray, centers: FloatArray, parts: IntArray) -> IntArray:
    """The OVERLAP partitions with the nearest centres of every point (m, OVERLAP), all of them if there are fewer."""
    present = np.unique(parts)
    far = np.empty((len(points), len(present)), np.float32)
    for at, part in enumerate(present):
        nearest = np.full((len(points), 1), np.inf, np.float32), np.full((len(points), 1), -1)
        some = centers[parts == part]
        merge_nearest(points, np.full(len(points), -1), some, np.arange(len(some)), nearest)
        far[:, at] = nearest[0][:, 0]
    return present[np.argsort(far, axis=1, kind="stable")[:, :OVERLAP]]


def local_lists(
    points: FloatArray, rows: IntArray, n_neighbors: int, seed: int, exact_rows: int
) -> tuple[FloatArray, IntArray]:
    """Squared distances and row numbers of the nearest others within one partition (m, n_neighbors).

    -1 where there are not as many. Up to `exact_rows` rows all pairs are compared. One thread: the same lists
    everywhere, and partitions run side by side.
    """
    shape = len(rows), n_neighbors
    nearest = np.full(shape, np.inf, np.float32), np.full(shape, -1)
    some = np.arange(len(rows))
    if len(rows) > max(exact_rows, 2 * n_neighbors):
        from pynndescent import NNDescent

        lists, _ = NNDescent(points, n_neighbors=n_neighbors + 1, random_state=seed, n_jobs=1).neighbor_graph
        lists, measured = np.asarray(lists, np.int64), np.empty(lists.shape, np.float32)
        measure_lists(points, lists, measured)
        merge_lists(np.where(lists < 0, -1, rows[lists]), measured, rows, *nearest)
        some = np.flatnonzero(nearest[1][:, -1] < 0)  # it may list a point twice, or fewer than asked for
        nearest[0][some], nearest[1][some] = np.inf, -1
    merge_nearest(points, rows, points, rows, nearest, some)
    return nearest


def send_to_partitions(
    points: ArrayLike,
    block: slice,
    offset: FloatArray,
    centers: FloatArray,
    parts: IntArray,
    scratch: ArrayLike,
    start: int,
) -> IntArray:
    """Write some rows once for each of their partitions, by partition; return the number of them in each."""
    values = shifted(np.asarray(points[block]), offset)
    goal = nearest_partitions(values, centers, parts)
    keys = (goal * points.shape[0] + np.arange(block.start, block.stop)[:, None]).ravel()
    write_sorted(point_entry(values.shape[1]), keys, scratch, start, point=np.repeat(values, goal.shape[1], axis=0))
    return np.bincount(goal.ravel(), minlength=int(parts.max()) + 1)


def descend_and_sort(
    source: ArrayLike,
    slices: list[slice],
    sizes: GraphSizes,
    seed: int,
    scratch: ArrayLike,
    start: int,
    edges: IntArray,
) -> IntArray:
    """Find the lists within one partition, and write them by row number; count those before each edge."""
    n_rows, k = sizes.n_rows, sizes.n_neighbors
    entries = collect(point_entry(sizes.n_features), source, slices)
    rows, points = entries["key"] % n_rows, np.ascontiguousarray(entries["point"])
    squared, indices = local_lists(points, rows, k - 1, seed, sizes.exact_partition_rows)
    distances, indices = np.insert(np.sqrt(squared), 0, 0, axis=1), np.insert(indices, 0, rows, axis=1)
    keys = write_sorted(list_entry(k, n_rows), rows, scratch, start, indices=indices, distances=distances)
    return np.searchsorted(keys, edges)


def merge_chunk(
    scratch: ArrayLike,
    slices: list[slice],
    graph: tuple[ArrayLike, ArrayLike],
    chunk: slice,
    measured: IntArray,
    has_earlier: bool,
) -> tuple[FloatArray, IntArray]:
    """Merge the lists of one chunk of rows, and those of earlier rounds; write them, and return some."""
    n_rows, k = chunk.stop - chunk.start, graph[0].shape[1]
    entries = collect(list_entry(k, graph[0].shape[0]), scratch, slices)
    indices = entries["indices"].reshape(n_rows, -1).astype(np.int64)
    distances = entries["distances"].reshape(n_rows, -1)
    if has_earlier:
        indices = np.concatenate([indices, np.asarray(graph[0][chunk])], axis=1)
        distances = np.concatenate([distances, np.asarray(graph[1][chunk])], axis=1)
    rows = np.arange(chunk.start, chunk.stop)
    nearest = np.full((n_rows, k - 1), np.inf, np.float32), np.full((n_rows, k - 1), -1)
    merge_lists(np.ascontiguousarray(indices), np.ascontiguousarray(distances), rows, *nearest)
    distances, indices = self_first(nearest, rows)
    graph[0][chunk], graph[1][chunk] = indices, distances
    some = measured - chunk.start
    return distances[some], indices[some]
