"""The door to all searches: which one runs, what it stores, and what it tells."""

import dask.array as da
import numpy as np
import oracle
import pytest
from neighbor_lists import blobs_of
from runs import run_in

from cns_dask import neighbor_graph
from cns_dask.errors import InvalidDataError, InvalidSettingError, LowRecallWarning
from cns_dask.neighbors import search
from cns_dask.neighbors.graph import GraphSummary, NeighborGraph
from cns_dask.neighbors.plan import size_search
from cns_dask.neighbors.recall import Recall
from cns_dask.neighbors.search import find_neighbors, store_given_graph


def test_a_recall_that_no_sample_can_show_is_told():
    told = r"recall of the graph is 1.0000 \(0\.\d+ to 1.0000\) at k = 10, of which the lower end is below the 0.99999"
    with pytest.warns(LowRecallWarning, match=told):
        graph = neighbor_graph(blobs_of(3000, 3), 10, method="cells", recall=0.99999)
    assert graph.recall[-1].mean == 1  # a reach of 1 misses nothing


def test_bad_input():
    X = blobs_of(3000, 3)
    with pytest.raises(InvalidSettingError, match="n_neighbors must be an integer from 1 to 2999. Got 3000"):
        neighbor_graph(X, 3000, method="cells")
    with pytest.raises(InvalidSettingError, match="recall must be a number between 0 and 1"):
        neighbor_graph(X, 5, method="cells", recall=1.5)
    X[[7, 9], 0] = np.nan
    with pytest.raises(InvalidDataError, match=r"NaN or infinite values in 2 row\(s\): 7, 9\."):
        neighbor_graph(da.from_array(X), 5, method="cells")
    X[[7, 9]] = 0
    with pytest.raises(InvalidDataError, match=r"these rows have none \(their norm is 0\): 7, 9\."):
        neighbor_graph(X, 5, method="cells", metric="cosine")


def test_a_recall_that_is_reached_is_not_warned_about(tmp_path, monkeypatch):
    class Search:
        def __init__(self, *arguments):
            pass

        def find(self, method, recall, smallest_k):
            return GraphSummary(method, (Recall(4, 0.5, 0.4, 0.6, 10), Recall(8, 0.95, 0.9, 0.97, 10)))

    monkeypatch.setattr(search, "ApproximateSearch", Search)
    sizes = size_search(1000, 3, 8, "cells")
    run = run_in(tmp_path, 300)
    assert find_neighbors(run, sizes, 4, "cells", 0.9, seed=0).recall[-1].low == 0.9  # at the largest k, the low end
    with pytest.warns(LowRecallWarning, match=r"is 0\.9500 \(0\.9000 to 0\.9700\) at k = 8, .* below the 0\.91"):
        find_neighbors(run, sizes, 4, "cells", 0.91, seed=0)


def test_an_exact_search_is_stored_chunk_by_chunk_and_resumed(tmp_path):
    X = blobs_of(250, 3)
    sizes = size_search(250, 3, 6, "exact", None, {"rows_per_chunk": 60})
    for n_done in (0, 5):
        run = run_in(tmp_path, 60, points=X)
        assert find_neighbors(run, sizes, 3, "exact", 0.99, seed=0) == GraphSummary("exact")
        indices = run.writer.array("graph/indices")
        assert indices.chunks == (60, 6)
        np.testing.assert_array_equal(indices[...], oracle.neighbors(oracle.distances(X), 6))
        assert run.progress.lines == ([f"neighbors: {n_done} of 5 pieces done by an earlier run"] if n_done else [])


@pytest.mark.parametrize("with_distances", [True, False])
def test_a_given_graph_is_cut_to_the_largest_k_and_keeps_its_quality(tmp_path, with_distances):
    X = blobs_of(250, 3)
    D = oracle.distances(X)
    N = oracle.neighbors(D, 9)
    far = np.sqrt(np.take_along_axis(D, N, axis=1))
    measured = (Recall(9, 0.99, 0.98, 1.0, 250),)
    distances = da.from_array(far, chunks=(50, 9)) if with_distances else None
    graph = NeighborGraph(da.from_array(N, chunks=(70, 9)), distances, "cells", measured)
    sizes = size_search(250, 3, 6, "exact", None, {"rows_per_chunk": 100})
    run = run_in(tmp_path, 100)
    assert store_given_graph(run, sizes, graph) == GraphSummary("cells", measured)
    np.testing.assert_array_equal(run.writer.array("graph/indices")[...], N[:, :6])
    assert ("graph/distances" in run.writer) == with_distances
    if with_distances:
        np.testing.assert_array_equal(run.writer.array("graph/distances")[...], far[:, :6])
