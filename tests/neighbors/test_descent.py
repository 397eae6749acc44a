"""Descent in overlapping partitions."""

import dask.array as da
import numpy as np
from test_cells import blobs_of

from cns_dask import neighbor_graph
from cns_dask.neighbors import approximate, descent
from cns_dask.neighbors.descent import group_centers, local_lists, nearest_partitions


def assert_well_formed(indices, distances):
    np.testing.assert_array_equal(indices[:, 0], np.arange(len(indices)))
    ordered = np.sort(indices, axis=1)
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    assert ordered[:, 0].min() >= 0
    assert (np.diff(distances, axis=1) >= 0).all()


def test_partitions_that_are_compared_pair_by_pair(monkeypatch):
    monkeypatch.setattr(approximate, "PARTITION_ROWS", 900)
    X = blobs_of(6000, 10)
    X[:300] = X[300]
    graphs = []
    for chunks in (6000, 1700):
        graph = neighbor_graph(da.from_array(X, chunks=(chunks, -1)), 12, method="descent")
        assert graph.method == "descent"
        assert graph.recall[-1].low >= 0.99
        graphs.append(da.compute(graph.indices, graph.distances))
        assert_well_formed(*graphs[-1])
    np.testing.assert_array_equal(graphs[0][0], graphs[1][0])
    np.testing.assert_array_equal(graphs[0][1], graphs[1][1])


def test_equal_rows_may_leave_partitions_out(monkeypatch):
    monkeypatch.setattr(approximate, "PARTITION_ROWS", 300)
    X = blobs_of(3000, 3)
    X[:2700] = X[2700:].max(axis=0) + 1  # nearly all in one cell, the last one along every axis
    graph = neighbor_graph(X, 8, method="descent")
    assert graph.recall[-1].low >= 0.99
    assert_well_formed(*da.compute(graph.indices, graph.distances))


def test_another_round_has_other_borders(monkeypatch):
    monkeypatch.setattr(approximate, "PARTITION_ROWS", 300)
    monkeypatch.setattr(descent, "OVERLAP", 1)
    X = np.random.default_rng(0).standard_normal((4000, 6))
    once, often = (neighbor_graph(X, 8, method="descent", recall=recall) for recall in (0.2, 0.8))
    assert once.recall[-1].mean < 0.8  # what one round finds
    assert often.recall[-1].low >= 0.8
    assert_well_formed(*da.compute(often.indices, often.distances))


def test_auto_leaves_cells_where_they_would_meet_too_many_rows(monkeypatch):
    monkeypatch.setattr(approximate, "PARTITION_ROWS", 900)
    monkeypatch.setattr("cns_dask.neighbors.exact.EXACT_ROWS", 1000)
    X = blobs_of(3000, 8)
    assert neighbor_graph(X, 10).method == "cells"
    monkeypatch.setattr(descent, "CHEAP_CANDIDATES", 10)
    assert neighbor_graph(X, 10).method == "descent"


def test_pynndescent_in_every_partition(monkeypatch):
    """The engine itself: compiled once, on two threads at once, the same lists whoever runs it."""
    monkeypatch.setattr(approximate, "PARTITION_ROWS", 1500)
    monkeypatch.setattr(descent, "EXACT_PART", 500)
    X = blobs_of(6000, 12)
    X[:200] = X[200]  # it lists such rows twice, or leaves them out
    graphs = [neighbor_graph(X, 12, method="descent") for _ in range(2)]
    assert graphs[0].recall[-1].low >= 0.99
    found = [da.compute(graph.indices, graph.distances) for graph in graphs]
    assert_well_formed(*found[0])
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_lists_of_a_tiny_partition_are_as_long_as_it_is():
    points = np.arange(4, dtype=np.float32)[:, None]
    squared, rows = local_lists(points, np.array([5, 6, 7, 9]), 5, seed=0)
    np.testing.assert_array_equal(rows[0], [6, 7, 9, -1, -1])
    np.testing.assert_array_equal(squared[0], [1, 4, 9, np.inf, np.inf])


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
