import weakref

import dask
import dask.array as da
import numpy as np
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cns_dask import neighbor_graph
from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.neighbors.exact import exact_graph, search_block, search_everywhere, with_roots, with_self_first

lattice = hnp.arrays(float, st.tuples(st.integers(2, 40), st.integers(1, 3)), elements=st.integers(-2, 2).map(float))
reals = hnp.arrays(
    float, st.tuples(st.integers(2, 40), st.integers(1, 3)), elements=st.floats(-1e3, 1e3, allow_nan=False)
)


@settings(max_examples=60)
@given(points=lattice | reals, chunk=st.integers(1, 41), data=st.data())
def test_graph_equals_a_stable_sort_of_all_distances(points, chunk, data):
    k = data.draw(st.integers(1, len(points) - 1))
    graph = exact_graph(da.from_array(points, chunks=(chunk, -1)), k)
    with dask.config.set(scheduler="synchronous"):
        indices, distances = dask.compute(graph.indices, graph.distances)
    D = oracle.distances(points)
    np.testing.assert_array_equal(indices, oracle.neighbors(D, k))
    np.testing.assert_array_equal(distances, np.sqrt(np.take_along_axis(D, indices, 1)))


def test_graph_is_the_same_to_the_bit_for_every_chunking():
    points = np.random.default_rng(0).standard_normal((500, 7))
    points[100:150] = points[:50]
    reference = None
    for chunks in (500, 499, 100, 63, (1, 250, 249)):
        graph = exact_graph(da.from_array(points, chunks=(chunks, 7)), 12)
        found = dask.compute(graph.indices, graph.distances)
        reference = reference or found
        for one, other in zip(found, reference, strict=True):
            np.testing.assert_array_equal(one, other)


class Watched:
    """An opened array that counts how many of its parts are in memory at once."""

    def __init__(self, array, rows):
        self.array, self.shape, self.chunks = array, array.shape, (rows, array.shape[1])
        self.alive, self.most = weakref.WeakSet(), 0

    def __getitem__(self, part):
        class Part(np.ndarray):
            __hash__ = object.__hash__

        found = self.array[part].copy().view(Part)
        self.alive.add(found)
        self.most = max(self.most, len(self.alive))
        return found


def test_rows_of_the_data_are_never_held_all_at_once():
    points = np.random.default_rng(3).standard_normal((400, 3))
    watched = Watched(points, 20)
    graph = exact_graph(watched, 5)
    with dask.config.set(scheduler="synchronous"):
        indices = graph.indices.compute()
    np.testing.assert_array_equal(indices, oracle.neighbors(oracle.distances(points), 5))
    assert watched.most <= 3  # of 20: the queries, the rows that they meet, and the next ones


def test_public_graph_for_both_metrics():
    X = np.random.default_rng(1).normal(1, 1, (200, 4))
    for metric in ("euclidean", "cosine"):
        rows = X / np.linalg.norm(X, axis=1, keepdims=True) if metric == "cosine" else X
        graph = neighbor_graph(da.from_array(X, chunks=(60, 2)), 9, metric=metric)
        assert isinstance(graph.indices, da.Array)
        np.testing.assert_array_equal(graph.indices.compute(), oracle.neighbors(oracle.distances(rows), 9))


@pytest.mark.parametrize("chunk", [300, 70, 1])
def test_search_from_outside_equals_brute_force(chunk):
    rng = np.random.default_rng(2)
    points, new = rng.standard_normal((300, 3)), rng.standard_normal((40, 3))
    new[:5] = points[:5]
    found = search_everywhere(new, Watched(points, chunk), 6)
    distances = np.sqrt(((new[:, None] - points[None]) ** 2).sum(-1))
    np.testing.assert_array_equal(found[1], np.argsort(distances, axis=1, kind="stable")[:, :6])
    np.testing.assert_array_equal(found[0][:5, 0], 0)
    np.testing.assert_allclose(found[0], np.sort(distances, axis=1)[:, :6], rtol=1e-14)


@given(points=lattice, seed=st.integers(0, 99))
def test_parts_of_the_points_may_come_in_any_order(points, seed):
    order = np.random.default_rng(seed).permutation(len(points)).tolist()
    running, rows = None, range(len(points))
    for at in order:
        before = running
        running = search_block(running, points, rows, points, slice(at, at + 1), at, 3)
        assert before is None or before[1] is not running[1]  # a task may not write to what others read
    D = oracle.distances(points)
    k = min(3, len(points) - 1)
    np.testing.assert_array_equal(running[1][:, :k], oracle.neighbors(D, k + 1)[:, 1:])
    assert (running[1][:, k:] == -1).all()


def test_single_precision_roots_that_tie_are_ordered_by_row_number():
    squared = np.array([[1.0, np.nextafter(np.float32(1), np.float32(2)), 4.0]], np.float32)
    assert squared[0, 0] < squared[0, 1]
    distances, indices = with_self_first((squared, np.array([[9, 4, 2]])), [7])
    assert distances.tolist() == [[0, 1, 1, 2]]
    assert indices.tolist() == [[7, 4, 9, 2]]
    in_double = with_roots((squared.astype(float), np.array([[9, 4, 2]])))
    assert in_double[1].tolist() == [[9, 4, 2]]


@pytest.mark.parametrize("k", [0, 10, 11, 2.5, True, "3"])
def test_number_of_neighbors_must_be_below_the_rows(k):
    with pytest.raises(InvalidSettingError, match=rf"n_neighbors must be an integer from 1 to 9\. Got {k!r}"):
        neighbor_graph(np.random.default_rng(0).standard_normal((10, 2)), k)


def test_wrong_names_and_rows_without_direction():
    X = np.ones((4, 2))
    with pytest.raises(InvalidSettingError, match="metric must be one of"):
        neighbor_graph(X, 2, metric="l1")
    with pytest.raises(InvalidSettingError, match="method must be one of"):
        neighbor_graph(X, 2, method="guess")
    X[3] = 0
    with pytest.raises(InvalidDataError, match=r"these rows have none \(their norm is 0\): 3\."):
        neighbor_graph(X, 2, metric="cosine").indices.compute()


def test_distances_that_overflow_are_an_error_and_never_a_wrong_neighbor():
    X = 1e200 * np.random.default_rng(0).standard_normal((20, 3))
    with (
        np.errstate(over="ignore", invalid="ignore"),
        pytest.raises(InvalidDataError, match="squared distances overflow"),
    ):
        search_everywhere(X, Watched(X, 7), 4)
