import dask.array as da
import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from cns_dask import neighbor_graph
from cns_dask.errors import InvalidDataError, InvalidSettingError, OutputError


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_the_neighbours_are_those_of_scikit_learn(blobs, metric):
    graph = neighbor_graph(da.from_array(blobs, chunks=(100, 5)), 6, metric=metric)
    indices = NearestNeighbors(n_neighbors=6, metric=metric).fit(blobs).kneighbors(blobs, return_distance=False)
    np.testing.assert_array_equal(graph.indices.compute(), indices)
    assert (graph.method, graph.recall) == ("exact", ())


def test_a_kept_graph_is_taken_as_it_is_and_other_parameters_are_refused(blobs, tmp_path):
    out = tmp_path / "graph.zarr"
    first = neighbor_graph(blobs, 5, out=out).indices.compute()
    changed = out.stat().st_mtime_ns
    np.testing.assert_array_equal(neighbor_graph(blobs, 5, out=out).indices.compute(), first)
    assert out.stat().st_mtime_ns == changed
    with pytest.raises(OutputError, match="settings.n_neighbors is 5, not 7"):
        neighbor_graph(blobs, 7, out=out)
    assert neighbor_graph(blobs, 7, out=out, overwrite=True).indices.shape == (600, 7)


def test_an_approximate_graph_tells_its_recall(blobs, small_chunks):
    graph = neighbor_graph(blobs, 8, method="cells", recall=0.9)
    exact = neighbor_graph(blobs, 8, method="exact").indices.compute()
    (recall,) = graph.recall
    counted = np.mean([len(set(a[1:]) & set(b[1:])) / 7 for a, b in zip(graph.indices.compute(), exact, strict=True)])
    assert (graph.method, recall.n_neighbors, recall.n_rows) == ("cells", 8, 600)
    assert recall.mean == pytest.approx(counted, abs=0.01)
    assert recall.low >= 0.9


def test_parameters_may_be_numbers_of_numpy(blobs, tmp_path):
    numbers = {"random_state": np.int64(3), "recall": np.float32(0.9)}
    graph = neighbor_graph(blobs, np.int64(4), out=tmp_path / "graph.zarr", **numbers)
    assert graph.indices.shape == (600, 4)


def test_wrong_parameters(blobs):
    for k in (0, 600, 2.5):
        with pytest.raises(InvalidSettingError, match="n_neighbors must be an integer from 1 to 599"):
            neighbor_graph(blobs, k)
    with pytest.raises(InvalidSettingError, match="metric must be one of"):
        neighbor_graph(blobs, 5, metric="l1")
    with pytest.raises(InvalidDataError, match=r"infinite values in 1 row\(s\): 4"):
        neighbor_graph(np.where(np.arange(600)[:, None] == 4, np.nan, blobs), 5)


@pytest.mark.parametrize("unit", [1e-200, 1e200, 1e-300, 2.0**-700])
@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_rows_in_extreme_units_have_the_same_neighbours(unit, metric):
    rows = np.random.default_rng(0).standard_normal((200, 3))
    usual, extreme = (neighbor_graph(each, 5, metric=metric) for each in (rows, rows * unit))
    np.testing.assert_array_equal(extreme.indices.compute(), usual.indices.compute())
    unit = unit if metric == "euclidean" else 1
    np.testing.assert_allclose(extreme.distances.compute() / unit, usual.distances.compute(), rtol=1e-12)
