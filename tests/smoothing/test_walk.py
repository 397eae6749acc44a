import numpy as np
import oracle
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from cns_dask import neighbor_graph, transition_matrix
from cns_dask.errors import InvalidSettingError
from cns_dask.neighbors.graph import NeighborGraph
from cns_dask.smoothing.passes import READS_MANY, add_tiles, aligned_zeros, smooth, smooth_tiles
from cns_dask.smoothing.walk import order_rows, positions_in, walk_on


@pytest.fixture(scope="module")
def graph():
    lazy = neighbor_graph(np.random.default_rng(0).standard_normal((80, 3)), 11)
    return NeighborGraph(lazy.indices.compute(), lazy.distances.compute())


@pytest.mark.parametrize("k", [1, 4, 7, 11])
def test_matrix_and_smoothing_equal_the_dense_matrix(graph, k):
    W = oracle.transition(graph.indices[:, :k])
    exported = transition_matrix(graph, k)
    np.testing.assert_allclose(exported.toarray(), W)
    np.testing.assert_allclose(np.asarray(exported.sum(axis=1)).ravel(), 1)
    v = np.random.default_rng(1).standard_normal(80)
    np.testing.assert_allclose(smooth(graph.indices[:, :k], v), W @ v, atol=1e-15)


def test_matrix_of_a_lazy_graph_uses_all_neighbors_by_default():
    lazy = neighbor_graph(np.random.default_rng(0).standard_normal((30, 2)), 5)
    assert transition_matrix(lazy).nnz == 150


@pytest.mark.parametrize("k", [0, 12, 2.5])
def test_too_many_neighbors(graph, k):
    with pytest.raises(InvalidSettingError, match=rf"n_neighbors must be an integer from 1 to 11\. Got {k}"):
        transition_matrix(graph, k)


def ring_of(blocks, dtype):
    ring = aligned_zeros(blocks.shape, dtype)
    ring[:] = blocks
    return ring, np.ones((len(ring), -(-ring.shape[1] // 64)), np.bool_)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 4, 16])
@given(shift=st.floats(-1, 1), scale=st.floats(-2, 2), keep=st.floats(-1, 1), k=st.integers(1, 11))
def test_a_pass_is_the_shifted_product(graph, dtype, width, shift, scale, keep, k):
    ring, live = ring_of(np.random.default_rng(2).standard_normal((3, 80, width)), dtype)
    before, now = ring[0].astype(float), ring[1].astype(float)
    walk, peaks = walk_on(graph.indices, k), np.empty(width, dtype)
    smooth_tiles(walk.neighbors, walk.reads, ring, live, 1, shift, scale, keep, 0.0, (0,) * width, peaks)
    W = oracle.transition(graph.indices[:, :k])
    np.testing.assert_allclose(ring[2], scale * (W @ now - shift * now) + keep * before, atol=20 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(peaks, np.abs(ring[2]).max(axis=0))


def test_columns_that_are_small_in_a_tile_become_zero_there(graph):
    blocks = np.zeros((3, 80, 2))
    blocks[1, 5], blocks[1, 70, 0] = [1, 1e-9], 1e-9
    ring, live = ring_of(blocks, np.float64)
    walk, peaks = walk_on(np.arange(80)[:, None]), np.empty(2)  # every point its own neighbour: W = I
    smooth_tiles(walk.neighbors, walk.reads, ring, live, 1, 0.0, 1.0, 0.0, 1e-6, (0, 0), peaks)
    assert ring[2, 5].tolist() == [1, 0]
    assert ring[2, 70].tolist() == [0, 0]
    assert live[2].tolist() == [True, False]
    assert peaks.tolist() == [1, 0]
    ring[0] = 7.0  # stale values, in tiles that are said to hold some
    live[0] = True
    smooth_tiles(walk.neighbors, walk.reads, ring, live, 2, 0.0, 1.0, 0.0, 1e-6, (0, 0), peaks)
    assert ring[0, 64:].max() == 0
    assert ring[0, 5].tolist() == [1, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_multiples_are_added_in_place_around_the_ring(dtype):
    rng = np.random.default_rng(3)
    ring, live = ring_of(rng.standard_normal((4, 100, 4)), dtype)
    live[1, 1] = False
    weights, total = rng.standard_normal((2, 3)).astype(dtype), np.ones((2, 100, 4), dtype)
    add_tiles(weights, ring, live, 3, total)
    left_out = ring.copy()
    left_out[1, 64:] = 0
    expected = 1 + np.tensordot(weights, left_out[[3, 0, 1]], axes=1)
    np.testing.assert_allclose(total, expected, atol=10 * np.finfo(dtype).eps)


def test_walk_is_the_graph_with_rows_numbered_anew(graph):
    order = order_rows(graph.indices[:, :4])
    place = positions_in(order)
    assert sorted(order) == list(range(80))
    walk = walk_on(graph.indices, 7, order)
    np.testing.assert_array_equal(walk.neighbors[place], place[graph.indices[:, :7]])
    stored = zarr.array(graph.indices, chunks=(30, 11))
    np.testing.assert_array_equal(walk_on(stored, 7, order).neighbors, walk.neighbors)


def test_an_order_brings_neighbours_together():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 2))
    neighbors = oracle.neighbors(oracle.distances(X), 8)
    place = positions_in(order_rows(neighbors))

    def spread(numbers):
        return np.abs(numbers[neighbors] - numbers[:, None]).mean()

    assert spread(place) < spread(np.arange(2000)) / 10


def test_tiles_know_which_tiles_they_read():
    walk = walk_on(np.array([[i, (i + 64) % 200] for i in range(200)]))
    assert [set(tiles) for tiles in walk.reads] == [{0, 1}, {1, 2}, {2, 3, 0}, {3, 0}]
    scattered = np.random.default_rng(0).integers(64 * 200, size=(64 * 200, 9))
    assert (walk_on(scattered).reads[:, 0] == READS_MANY).all()
