"""Graphs that the caller brings."""

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, save_npz
from sklearn.neighbors import NearestNeighbors, kneighbors_graph

from cns_dask import CNS, neighbor_graph
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotAResultError


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(center, 1, (120, 4)) for center in (0, 6, 12)])


@pytest.fixture(scope="module")
def reference(rows):
    return CNS(scale=False).fit(rows)


K = 20  # 4 floor(ln 360)


def lists(rows, k, own):
    found = NearestNeighbors(n_neighbors=k).fit(rows).kneighbors(return_distance=False)
    return np.insert(found, 0, np.arange(len(rows)), axis=1) if own else found


@pytest.mark.parametrize(
    "form", ["array", "without self", "dask", "zarr", "npy", "matrix", "connectivity", "npz", "longer"]
)
def test_every_form_gives_the_clusters_of_the_rows(form, rows, reference, tmp_path):
    indices = lists(rows, K - 1, own=form != "without self")
    matrix = kneighbors_graph(rows, K, mode="distance", include_self=False)  # one more than is needed
    graph = {
        "array": indices,
        "without self": indices,
        "longer": lists(rows, K + 7, own=False),
        "dask": da.from_array(indices, chunks=(50, 7)),
        "zarr": str(tmp_path / "graph.zarr"),
        "npy": tmp_path / "graph.npy",
        "matrix": matrix,
        "connectivity": kneighbors_graph(rows, K, mode="connectivity", include_self=True),
        "npz": tmp_path / "graph.npz",
    }[form]
    zarr.create_array(str(tmp_path / "graph.zarr"), data=indices, chunks=(100, 9))
    np.save(tmp_path / "graph.npy", indices)
    save_npz(tmp_path / "graph.npz", matrix)
    model = CNS().fit(graph=graph)
    np.testing.assert_array_equal(np.asarray(model.labels_), reference.labels_)
    assert isinstance(model.labels_, da.Array) == (form in ("dask", "zarr", "npy", "npz"))
    assert model.result_.graph.method == "given"


def test_our_own_graph_in_memory_and_stored(rows, reference, tmp_path):
    graph = neighbor_graph(rows, 25, out=tmp_path / "graph.zarr")
    for source in (graph, tmp_path / "graph.zarr"):
        model = CNS(scale=False).fit(rows, graph=source)
        np.testing.assert_array_equal(model.labels_, reference.labels_)
        np.testing.assert_array_equal(model.predict(rows), reference.predict(rows))
        assert model.result_.graph.method == "exact"


def test_rows_without_the_rows_cannot_be_predicted(rows, tmp_path):
    model = CNS().fit(graph=lists(rows, K, own=False), out=tmp_path / "out.zarr")
    with pytest.raises(NotAResultError, match="must hold the training rows"):
        model.predict(rows)
    assert model.result_.points is None


def test_without_rows_the_candidates_of_largest_degree_stay(rows):
    model = CNS(max_candidates=3).fit(graph=lists(rows, K, own=False))
    assert max(model.result_.details["n_candidates"].values()) == 3


def test_graphs_that_are_none(rows):
    indices = lists(rows, K - 1, own=True)

    def changed(row, column, value):
        wrong = indices.copy()
        wrong[row, column] = value
        return wrong

    for graph, message in (
        (changed(3, 2, 360), r"numbers of rows, 0 to 359\. Got others in 1 row\(s\): 3\."),
        (changed(4, 2, -1), r"Got others in 1 row\(s\): 4\."),
        (changed(5, 2, indices[5, 3]), r"different from each other\. Got duplicates in 1 row\(s\): 5\."),
        (changed(6, 0, indices[7, 9] if indices[7, 9] not in indices[6] else 359), None),
        (np.delete(indices, 0, axis=1)[:, :-1], "must list at least 19 neighbours besides the row itself"),
        (indices.astype(float), "must be an array of integers"),
        (indices[:, 0], "two dimensions, row and neighbor"),
        (csr_matrix((360, 20)), "must be square"),
        (csr_matrix((360, 360)), r"at least one\. Got none in 360 row\(s\): 0, 1, 2, 3, 4, \.\.\."),
    ):
        if message is None:
            assert CNS().fit(graph=graph).n_clusters_  # a row that does not list itself is no error
            continue
        with pytest.raises((InvalidDataError, InvalidSettingError), match=message):
            CNS().fit(graph=graph)


def test_a_row_that_lists_itself_late_has_one_neighbor_less(rows):
    indices = lists(rows, K - 1, own=False)
    indices[9, 4] = 9
    with pytest.raises(InvalidDataError, match=r"at least 19 besides the row itself\. Got fewer in 1 row\(s\): 9\."):
        CNS().fit(graph=indices)


def test_sizes_must_agree(rows):
    with pytest.raises(InvalidDataError, match=r"as many rows\. Got \[300, 360\]"):
        CNS().fit(rows[:300], graph=lists(rows, K, own=False))
    with pytest.raises(InvalidSettingError, match="Data or a graph must be given"):
        CNS().fit()
