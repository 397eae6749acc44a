import re

import dask.array as da
import numpy as np
import pytest
from sklearn.neighbors import NearestNeighbors

from cns_dask import CNS, Settings, neighbor_graph
from cns_dask.errors import InvalidDataError, InvalidSettingError, OutputError
from cns_dask.jobs import prepare
from cns_dask.neighbors.given import with_preprocessing_of
from cns_dask.neighbors.graph import Preprocessing
from cns_dask.progress import LineProgress


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
    with pytest.raises(OutputError, match="n_neighbors was 5, now it is 7"):
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


@pytest.fixture
def uneven(blobs):
    """Features of different sizes, far from 0: what is done to them matters."""
    return blobs * np.array([1, 1, 30, 1, 0.1]) + 3


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_fit_with_a_scaled_graph_is_the_fit_without(uneven, metric):
    graph = neighbor_graph(uneven, 30, metric=metric, scale=True)
    assert graph.preprocessing == Preprocessing(metric, True, 100)
    found, expected = CNS(metric=metric).fit(uneven, graph=graph), CNS(metric=metric, scale=True).fit(uneven)
    np.testing.assert_array_equal(found.memberships_, expected.memberships_)
    np.testing.assert_array_equal(found.predict(uneven[:20] + 0.1), expected.predict(uneven[:20] + 0.1))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_a_fit_treats_rows_as_those_of_the_graph_were(uneven, metric, tmp_path):
    """Rows as they are: a fit that scaled or centred them would predict among other neighbours than those it had."""
    lines = []
    neighbor_graph(uneven, 30, metric=metric, out=tmp_path / "g.zarr")
    model = CNS().fit(uneven, graph=tmp_path / "g.zarr", out=tmp_path / "r.zarr")
    assert (model.result_.settings.metric, model.result_.settings.scale) == (metric, False)
    points = uneven if metric == "euclidean" else uneven / np.linalg.norm(uneven, axis=1, keepdims=True)
    stored = np.asarray(model.result_.stored("points")[:])
    if metric == "cosine":
        np.testing.assert_allclose(stored, points, rtol=1e-12)
    distances = np.linalg.norm(stored[0] - stored[model.result_.graph.indices[0].compute()], axis=1)
    np.testing.assert_allclose(model.result_.graph.distances[0].compute(), distances, rtol=1e-9, atol=1e-12)
    prepare(uneven, Settings(), graph=tmp_path / "g.zarr", progress=LineProgress(lines.append))
    assert lines[0].startswith("rows are treated as those of the graph were: ")
    assert lines[0].endswith(f"not scaled, {metric} metric")
    again = CNS().fit(uneven, graph=tmp_path / "r.zarr")  # a result tells the same about its graph
    assert again.result_.graph.preprocessing == model.result_.graph.preprocessing
    np.testing.assert_array_equal(again.labels_, model.labels_)


def test_what_contradicts_a_graph_is_refused(uneven):
    plain, scaled = neighbor_graph(uneven, 30), neighbor_graph(uneven, 30, scale=True)
    for graph, settings, words in [
        (plain, {"metric": "cosine"}, "made with metric='euclidean', and the fit is asked for metric='cosine'"),
        (scaled, {"scale": False}, "made with scale=True, and the fit is asked for scale=False. Leave scale out"),
        (plain, {"max_components": 2}, "made with max_components=None, and the fit is asked for max_components=2"),
    ]:
        with pytest.raises(InvalidSettingError, match=re.escape(words)):
            CNS(**settings).fit(uneven, graph=graph)
    CNS(max_components=50).fit(uneven, graph=plain)  # five features are not projected either way
    CNS(metric="cosine").fit(uneven, graph=plain.indices)  # nothing is known of lists alone
    with pytest.raises(InvalidSettingError, match="asked for scale='auto'"):
        with_preprocessing_of(plain, Settings(), 5, chosen={"scale"})


def test_a_graph_without_a_seed_keeps_the_one_that_was_drawn(blobs, tmp_path):
    neighbor_graph(blobs, 5, random_state=None, out=tmp_path / "g.zarr")
    made = (tmp_path / "g.zarr").stat().st_mtime_ns
    neighbor_graph(blobs, 5, random_state=None, out=tmp_path / "g.zarr")
    assert (tmp_path / "g.zarr").stat().st_mtime_ns == made
