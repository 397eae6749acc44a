"""The approximate search as a whole: its rounds, its two methods, and what a later run takes over."""

import dask
import dask.array as da
import numpy as np
import pytest
from neighbor_lists import assert_well_formed, blobs_of
from runs import run_in

from cns_dask import neighbor_graph
from cns_dask.errors import NotEnoughMemoryError
from cns_dask.neighbors import approximate, cell_tasks, descent, plan
from cns_dask.neighbors.approximate import ApproximateSearch
from cns_dask.neighbors.plan import size_search


def sized(**sizes):
    return dask.config.set({"cns_dask.sizes": sizes})


def test_the_graph_does_not_depend_on_chunks():
    X = blobs_of(5000, 5)
    graphs = []
    for chunks in (5000, 1234, (1, 2499, 2500)):
        graph = neighbor_graph(da.from_array(X, chunks=(chunks, 5)), 15, method="cells")
        graphs.append(da.compute(graph.indices, graph.distances))
    for indices, distances in graphs[1:]:
        np.testing.assert_array_equal(indices, graphs[0][0])
        np.testing.assert_array_equal(distances, graphs[0][1])


def test_another_seed_samples_other_rows():
    X = blobs_of(4000, 8)
    first, second = (neighbor_graph(X, 10, method="cells", recall=0.5, random_state=seed) for seed in (0, 1))
    assert first.recall != second.recall


def test_a_higher_recall_is_reached_by_a_larger_reach():
    X = np.random.default_rng(0).standard_normal((6000, 16))
    low, high = (neighbor_graph(X, 12, method="cells", recall=recall).recall[-1] for recall in (0.6, 0.995))
    assert low.low >= 0.6
    assert high.low >= 0.995
    assert high.mean > low.mean


def test_another_round_has_other_borders(monkeypatch):
    monkeypatch.setattr(descent, "OVERLAP", 1)
    monkeypatch.setattr(plan, "OVERLAP", 1)
    X = np.random.default_rng(0).standard_normal((4000, 6))
    with sized(rows_per_partition=300):
        once, often = (neighbor_graph(X, 8, method="descent", recall=recall) for recall in (0.2, 0.8))
    assert once.recall[-1].mean < 0.8  # what one round finds
    assert often.recall[-1].low >= 0.8
    assert_well_formed(*da.compute(often.indices, often.distances))


def test_auto_leaves_cells_where_they_would_meet_too_many_rows():
    X = blobs_of(3000, 8)
    with sized(rows_per_partition=900, exact_rows=1000):
        assert neighbor_graph(X, 10).method == "cells"
    with sized(rows_per_partition=900, exact_rows=1000, max_visited=10):
        assert neighbor_graph(X, 10).method == "descent"


def test_auto_stays_in_cells_where_memory_does_not_allow_descent(monkeypatch):
    def refuse(worker_bytes):
        raise NotEnoughMemoryError("no")

    monkeypatch.setattr(approximate, "check_memory", refuse)
    X = blobs_of(1500, 8)
    with sized(rows_per_partition=900, exact_rows=1000, max_visited=10):
        assert neighbor_graph(X, 10).method == "cells"
        with pytest.raises(NotEnoughMemoryError):  # who asks for it is told
            neighbor_graph(X, 10, method="descent")


SIZES = {"rows_per_chunk": 300, "n_cells": 9, "rows_per_cell_chunk": 250, "rows_per_search": 200}


def search_in(folder, X, method="cells", **overrides):
    """Summary, lists and stages of a search in a folder, which goes on where one before it has stopped."""
    sizes = size_search(*X.shape, 8, method, None, {**SIZES, **overrides})
    run = run_in(folder, 300, points=X)
    summary = ApproximateSearch(run, sizes, seed=0).find(method, 0.99, 4)
    lists = [np.asarray(run.writer.array(name)[...]) for name in approximate.GRAPH_ARRAYS]
    return summary, lists, run


def test_recall_is_measured_at_the_smallest_and_the_largest_k(tmp_path):
    summary, lists, _ = search_in(tmp_path, blobs_of(1200, 3))
    assert [each.n_neighbors for each in summary.recall] == [4, 8]
    assert summary.method == "cells"
    assert 0.05 <= summary.reach <= 1
    assert 0 < summary.visited_per_row <= 1200
    assert_well_formed(*lists)


def test_a_finished_round_is_not_searched_again(tmp_path, monkeypatch):
    X = blobs_of(1200, 3)
    summary, lists, _ = search_in(tmp_path, X)

    def refuse(*arguments):
        raise AssertionError("searched again")

    monkeypatch.setattr(cell_tasks, "search_and_sort", refuse)
    monkeypatch.setattr(cell_tasks, "sort_into_cells", refuse)
    again, same, run = search_in(tmp_path, X)
    assert again == summary
    np.testing.assert_array_equal(same[0], lists[0])
    assert run.progress.stages == ["calibrate"]
    assert "cells: all done by an earlier run" in run.progress.lines


def test_rounds_are_done_again_if_their_lists_are_damaged(tmp_path):
    X = blobs_of(1200, 3)
    summary, lists, _ = search_in(tmp_path, X)
    chunk = tmp_path / "r.zarr/graph/indices/c/2/0"
    chunk.write_bytes(chunk.read_bytes()[:-3])
    again, same, run = search_in(tmp_path, X)
    assert again == summary
    for one, other in zip(same, lists, strict=True):
        np.testing.assert_array_equal(one, other)
    assert run.progress.stages == ["calibrate", "neighbors"]


def test_a_later_run_keeps_the_method_that_was_chosen(tmp_path):
    """It may have other workers: the rounds of two methods must not be mixed."""
    X = blobs_of(1200, 3)
    chosen, lists, _ = search_in(tmp_path, X, "auto", exact_rows=100)
    again, same, _ = search_in(tmp_path, X, "auto", exact_rows=100, max_visited=1)
    assert (chosen.method, again.method) == ("cells", "cells")
    np.testing.assert_array_equal(same[0], lists[0])


def test_scratch_arrays_are_gone_in_the_end(tmp_path):
    for method in ("cells", "descent"):
        _, _, run = search_in(tmp_path / method, blobs_of(1200, 3), method, rows_per_partition=300)
        assert [name for name in run.writer.scratch.names() if name != "zarr.json"] == []
