"""Graphs that the caller brings."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import zarr
from scipy.sparse import csr_matrix, save_npz
from sklearn.metrics import adjusted_rand_score
from sklearn.neighbors import NearestNeighbors, kneighbors_graph

from cns_dask import CNS, neighbor_graph
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotAResultError
from cns_dask.neighbors.given import check_block, listed, open_graph
from cns_dask.neighbors.graph import NeighborGraph


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
    assert adjusted_rand_score(np.asarray(model.labels_), reference.labels_) == 1  # numbers may differ
    by_paper = CNS(selection="paper").fit(graph=graph)
    np.testing.assert_array_equal(np.asarray(by_paper.labels_), reference.result_.at(selection="paper").labels)
    assert isinstance(model.labels_, da.Array) == (form in ("dask", "zarr", "npy", "npz"))
    assert model.result_.graph.method == "given"


def test_our_own_graph_in_memory_and_stored(rows, reference, tmp_path):
    graph = neighbor_graph(rows, 25, out=tmp_path / "graph.zarr")
    for source in (graph, tmp_path / "graph.zarr"):
        model = CNS(scale=False).fit(rows, graph=source)
        np.testing.assert_array_equal(model.labels_, reference.labels_)
        np.testing.assert_array_equal(model.predict(rows), reference.predict(rows))
        assert model.result_.graph.method == "exact"


@pytest.mark.parametrize("form", ["in memory", "chunks along neighbors"])
def test_a_graph_record_may_hold_any_arrays(form, rows, reference):
    graph = neighbor_graph(rows, 25)
    indices, distances = graph.indices, graph.distances
    if form == "in memory":
        indices, distances = da.compute(indices, distances)
    else:
        indices, distances = indices.rechunk((100, 7)), distances.rechunk((90, 9))
    model = CNS(scale=False).fit(rows, graph=replace(graph, indices=indices, distances=distances))
    np.testing.assert_array_equal(model.labels_, reference.labels_)


def test_rows_without_the_rows_cannot_be_predicted(rows, tmp_path):
    model = CNS().fit(graph=lists(rows, K, own=False), out=tmp_path / "out.zarr")
    with pytest.raises(NotAResultError, match="holds no training rows, because only a graph was clustered"):
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

    def far(row, value):
        distances = np.ones(indices.shape)
        distances[row, 3] = value
        return distances

    for graph, message in (
        (changed(3, 2, 360), r"numbers outside 0 to 359 in the lists of 1 row\(s\): 3\."),
        (changed(4, 2, -1), r"numbers outside 0 to 359 in the lists of 1 row\(s\): 4\."),
        (changed(5, 2, indices[5, 3]), r"has a neighbour twice in the lists of 1 row\(s\): 5\."),
        (changed(6, 0, indices[7, 9] if indices[7, 9] not in indices[6] else 359), None),
        (
            np.delete(indices, 0, axis=1)[:, :-1],
            "lists 18 neighbours, and the largest k needs 19 besides the row",
        ),
        (indices.astype(float), "array of integers with two dimensions.* 2 dimension.s. of type float64"),
        (indices[:, 0], "two dimensions, row and neighbor; this one has 1 dimension"),
        (np.empty((300, 0), int), r"graph is empty: it has 300 row\(s\) of 0 neighbour"),
        (np.empty((0, 20), int), r"graph is empty: it has 0 row\(s\)"),
        ([None] * 3, "this one has 1 dimension.s. of type object"),
        ([[1, 2], [3]], "array with two dimensions, row and neighbor"),
        (NeighborGraph(indices.astype(float), None), "array of integers with two dimensions"),
        (NeighborGraph(indices, np.ones((360, 3))), r"lists of shape \(360, 20\), but distances of \(360, 3\)"),
        (NeighborGraph(indices, far(7, np.nan)), r"has negative distances or NaN in the lists of 1 row\(s\): 7\."),
        (NeighborGraph(indices, far(8, -1.0)), r"has negative distances or NaN in the lists of 1 row\(s\): 8\."),
        (csr_matrix((360, 20)), r"must be square, not of shape \(360, 20\)"),
        (csr_matrix((360, 360)), r"has no neighbour in the lists of 360 row\(s\): 0, 1, 2, 3, 4, \.\.\."),
    ):
        if message is None:
            assert CNS().fit(graph=graph).n_clusters_  # a row that does not list itself is no error
            continue
        with pytest.raises((InvalidDataError, InvalidSettingError), match=message):
            CNS().fit(graph=graph)


def test_a_row_that_lists_itself_late_has_one_neighbor_less(rows):
    indices = lists(rows, K - 1, own=False)
    indices[9, 4] = 9
    with pytest.raises(
        InvalidDataError, match=r"fewer than 19 neighbours besides the row itself in the lists of 1 row\(s\): 9\."
    ):
        CNS().fit(graph=indices)


def test_sizes_must_agree(rows):
    with pytest.raises(InvalidDataError, match=r"The data have 300 rows, and the graph has 360\."):
        CNS().fit(rows[:300], graph=lists(rows, K, own=False))
    with pytest.raises(InvalidSettingError, match="nothing to cluster: give data or a graph"):
        CNS().fit()


def test_a_block_has_the_row_first_and_the_others_as_listed():
    indices = np.array([[4, 7, 5, 1], [5, 0, 9, 8], [2, 3, 1, 6]])  # of rows 5 to 7; the first one lists itself
    distances = np.arange(12.0).reshape(3, 4)
    lists, far = check_block(indices, distances, 5, 10, 4)
    assert lists.tolist() == [[5, 4, 7, 1], [6, 5, 0, 9], [7, 2, 3, 1]]
    assert far.tolist() == [[0, 0, 1, 3], [0, 4, 5, 6], [0, 8, 9, 10]]
    assert check_block(indices, None, 5, 10, 2)[0].tolist() == [[5, 4], [6, 5], [7, 2]]


def test_lists_are_checked_when_they_are_computed_and_not_before(rows):
    wrong = da.from_array(lists(rows, K - 1, own=True), chunks=(100, -1))
    wrong = da.where(da.arange(360, chunks=100)[:, None] == 250, -1, wrong)
    lazy = listed(open_graph(wrong), K, 90).indices
    assert lazy.chunks[0] == (90, 90, 90, 90)
    np.testing.assert_array_equal(lazy[:180].compute(), lists(rows, K - 1, own=True)[:180])
    with pytest.raises(InvalidDataError, match=r"in the lists of 1 row\(s\): 250\."):
        lazy.compute()


def test_a_matrix_gives_lists_by_distance_as_long_as_the_shortest():
    entries = [
        [(2, 3.0), (1, 1.0)],
        [(2, 2.0), (1, 0.0), (0, 2.0)],  # itself, and two at the same distance: as stored
        [(1, 4.0), (3, 9.0), (0, 5.0)],  # one more than the shortest
        [(0, 1.0), (1, 2.0)],
    ]
    columns, values = zip(*(entry for row in entries for entry in row), strict=True)
    graph = open_graph(csr_matrix((values, columns, [0, 2, 5, 8, 10]), shape=(4, 4)))
    assert graph.indices.compute().tolist() == [[1, 2], [2, 0], [1, 0], [0, 1]]
    assert graph.distances.compute().tolist() == [[1, 3], [2, 2], [4, 5], [1, 2]]
    assert graph.method == "given"
