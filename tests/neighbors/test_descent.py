"""Descent in overlapping partitions."""

import dask
import dask.array as da
import numpy as np
import pytest
from neighbor_lists import assert_well_formed, blobs_of, sorted_lists

from cns_dask import neighbor_graph
from cns_dask.neighbors.descent import (
    descend_and_sort,
    group_centers,
    learn_partitions,
    local_lists,
    merge_chunk,
    nearest_partitions,
    send_to_partitions,
)
from cns_dask.neighbors.exchange import list_entry, point_entry
from cns_dask.neighbors.plan import GraphSizes


def sized(**sizes):
    return dask.config.set({"cns_dask.sizes": sizes})


def test_partitions_that_are_compared_pair_by_pair():
    X = blobs_of(6000, 10)
    X[:300] = X[300]
    graphs = []
    for chunks in (6000, 1700):
        with sized(rows_per_partition=900):
            graph = neighbor_graph(da.from_array(X, chunks=(chunks, -1)), 12, method="descent")
        assert graph.method == "descent"
        assert graph.recall[-1].low >= 0.99
        graphs.append(da.compute(graph.indices, graph.distances))
        assert_well_formed(*graphs[-1])
    np.testing.assert_array_equal(graphs[0][0], graphs[1][0])
    np.testing.assert_array_equal(graphs[0][1], graphs[1][1])


def test_equal_rows_may_leave_partitions_out():
    X = blobs_of(3000, 3)
    X[:2700] = X[2700:].max(axis=0) + 1  # nearly all in one cell, the last one along every axis
    with sized(rows_per_partition=300):
        graph = neighbor_graph(X, 8, method="descent")
    assert graph.recall[-1].low >= 0.99
    assert_well_formed(*da.compute(graph.indices, graph.distances))


@pytest.mark.slow
def test_pynndescent_in_every_partition():
    """The engine itself: compiled once, on two threads at once, the same lists whoever runs it.

    A minute goes into compilation, whatever the data: no test of the default run needs it.
    """
    from pynndescent.pynndescent_ import nn_descent

    X = blobs_of(4000, 12)
    X[:200] = X[200]  # it lists such rows twice, or leaves them out
    found = []
    for threads in (2, 1):
        with sized(rows_per_partition=1000, exact_partition_rows=500), dask.config.set(num_workers=threads):
            graph = neighbor_graph(X, 12, method="descent")
        assert graph.recall[-1].low >= 0.99
        found.append(da.compute(graph.indices, graph.distances))
        assert len(nn_descent.signatures) == 1  # what was compiled before the search is what it uses
    assert_well_formed(*found[0])
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_lists_of_a_tiny_partition_are_as_long_as_it_is():
    points = np.arange(4, dtype=np.float32)[:, None]
    squared, rows = local_lists(points, np.array([5, 6, 7, 9]), 5, seed=0, exact_rows=50_000)
    np.testing.assert_array_equal(rows[0], [6, 7, 9, -1, -1])
    np.testing.assert_array_equal(squared[0], [1, 4, 9, np.inf, np.inf])


def test_few_rows_for_their_neighbors_are_compared_pair_by_pair_however_small_the_limit():
    points, rows = blobs_of(20, 3).astype(np.float32), np.arange(100, 120)
    squared, found = local_lists(points, rows, 10, seed=0, exact_rows=0)
    expected = sorted_lists(points, rows, points, rows, 10)
    np.testing.assert_array_equal(found, expected[1])
    np.testing.assert_allclose(squared, expected[0], rtol=1e-6)


def test_every_point_goes_to_its_nearest_partitions():
    centers = np.array([[0.0], [1.0], [10.0], [11.0], [20.0], [30.0]], np.float32)
    parts = np.array([0, 0, 1, 1, 2, 3])
    found = nearest_partitions(np.array([[0.2], [16.0]], np.float32), centers, parts)
    np.testing.assert_array_equal(found, [[0, 1, 2], [2, 1, 3]])
    assert nearest_partitions(centers, centers[:2], parts[:2]).shape == (6, 1)


def test_partitions_hold_about_as_many_rows():
    counts = np.random.default_rng(0).integers(1, 100, size=160)
    parts = group_centers(counts, 10)
    assert (np.diff(parts) >= 0).all()
    sizes = np.bincount(parts, weights=counts)
    assert len(sizes) == 10
    assert sizes.max() < 1.5 * sizes.mean()


def test_learned_partitions_do_not_depend_on_the_parts_of_the_sample():
    sample, offset = 50 + blobs_of(2000, 4), np.full(4, 49.0)
    centers, partitions = learn_partitions([sample], 5, 80, offset, seed=1)
    assert centers.shape == (80, 4)
    assert partitions.tolist() == sorted(partitions.tolist())
    assert set(partitions.tolist()) == set(range(5))
    assert (np.abs(centers.mean(axis=0) - (sample - offset).mean(axis=0)) < 1).all()  # less the offset
    for one, other in zip(
        learn_partitions(np.array_split(sample, 9), 5, 80, offset, seed=1), (centers, partitions), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def slices(cuts, at, stride):
    return [
        slice(block * stride + int(low), block * stride + int(high))
        for block, (low, high) in enumerate(cuts[:, at : at + 2])
    ]


def test_rows_that_are_sent_searched_and_merged_have_the_lists_of_all_rows_where_partitions_overlap_fully():
    """Three partitions, and every row goes to all of them: nothing is missed, and a second round changes nothing."""
    n_rows, k, X, offset = 200, 7, blobs_of(200, 3), np.zeros(3)
    sizes, blocks, edges = GraphSizes(n_rows, 3, k), [slice(0, 120), slice(120, 200)], np.array([0, 90, 200])
    rounded = X.astype(np.float32)
    centers, partitions = rounded[[0, 50, 100]], np.arange(3)
    stride, entry, listed = 3 * 120, point_entry(3), list_entry(k, n_rows)
    sent, lists = (np.zeros((rows, each.itemsize), np.int8) for rows, each in ((2 * stride, entry), (600, listed)))
    counts = [
        send_to_partitions(X, block, offset, centers, partitions, sent, at * stride) for at, block in enumerate(blocks)
    ]
    np.testing.assert_array_equal(counts, [[120] * 3, [80] * 3])
    cuts = np.concatenate([np.zeros((2, 1), int), np.cumsum(counts, axis=1)], axis=1)
    ends = np.array(
        [descend_and_sort(sent, slices(cuts, at, stride), sizes, 0, lists, at * 200, edges) for at in range(3)]
    )
    graph = np.full((n_rows, k), -1), np.full((n_rows, k), np.nan, np.float32)
    expected = sorted_lists(rounded, np.arange(n_rows), rounded, np.arange(n_rows), k - 1)
    for has_earlier in (False, True):
        for at, measured in enumerate((np.array([3, 80]), np.array([90]))):
            chunk = slice(*edges[at : at + 2].tolist())
            answer = merge_chunk(lists, slices(ends, at, 200), graph, chunk, measured, has_earlier)
            np.testing.assert_array_equal(answer[1], graph[0][measured])
            np.testing.assert_array_equal(answer[0], graph[1][measured])
        assert_well_formed(*graph)
        np.testing.assert_array_equal(graph[0][:, 1:], expected[1])
        np.testing.assert_allclose(graph[1][:, 1:], np.sqrt(expected[0]), rtol=1e-6)
