import numpy as np
import oracle
import pytest
import zarr

from cns_dask import neighbor_graph, transition_matrix
from cns_dask.errors import InvalidSettingError, InvalidTypeError, NotAResultError
from cns_dask.neighbors.graph import NeighborGraph
from cns_dask.smoothing.passes import tile_reads
from cns_dask.smoothing.walk import order_rows, positions_in, walk_on


@pytest.fixture(scope="module")
def graph():
    lazy = neighbor_graph(np.random.default_rng(0).standard_normal((80, 3)), 11)
    return NeighborGraph(lazy.indices.compute(), lazy.distances.compute())


@pytest.mark.parametrize("k", [1, 4, 7, 11])
def test_matrix_equals_the_dense_matrix(graph, k):
    W = oracle.transition(graph.indices[:, :k])
    exported = transition_matrix(graph, k)
    np.testing.assert_allclose(exported.toarray(), W)
    np.testing.assert_allclose(np.asarray(exported.sum(axis=1)).ravel(), 1)


def test_matrix_of_a_lazy_graph_uses_all_neighbors_by_default():
    lazy = neighbor_graph(np.random.default_rng(0).standard_normal((30, 2)), 5)
    assert transition_matrix(lazy).nnz == 150


@pytest.mark.parametrize("k", [0, 12, 2.5])
def test_too_many_neighbors(graph, k):
    with pytest.raises(InvalidSettingError, match=rf"n_neighbors must be an integer from 1 to 11\. Got {k}"):
        transition_matrix(graph, k)


def test_walk_is_the_graph_with_rows_numbered_anew(graph):
    order = order_rows(graph.indices[:, :4])
    position = positions_in(order)
    assert sorted(order) == list(range(80))
    walk = walk_on(graph.indices, 7, order)
    np.testing.assert_array_equal(walk.neighbors[position], position[graph.indices[:, :7]])
    stored = zarr.array(graph.indices, chunks=(30, 11))
    np.testing.assert_array_equal(walk_on(stored, 7, order).neighbors, walk.neighbors)


def test_an_order_brings_neighbours_together():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 2))
    neighbors = oracle.neighbors(oracle.distances(X), 8)
    position = positions_in(order_rows(neighbors))

    def spread(numbers):
        return np.abs(numbers[neighbors] - numbers[:, None]).mean()

    assert spread(position) < spread(np.arange(2000)) / 10


def test_a_walk_knows_its_tiles_and_indexes_without_a_sign(graph):
    walk = walk_on(graph.indices, 3)
    assert walk.neighbors.dtype == walk.reads.dtype == np.uint32
    np.testing.assert_array_equal(walk.neighbors, graph.indices[:, :3])
    np.testing.assert_array_equal(walk.reads, tile_reads(walk.neighbors))
    assert walk_on(graph.indices).neighbors.shape == (80, 11)


def test_positions_are_the_inverse_of_an_order():
    order = np.random.default_rng(0).permutation(50)
    np.testing.assert_array_equal(positions_in(order)[order], np.arange(50))
    np.testing.assert_array_equal(order[positions_in(order)], np.arange(50))


def test_other_objects_are_no_graph():
    with pytest.raises(InvalidTypeError, match="transition_matrix needs a NeighborGraph, not ndarray"):
        transition_matrix(np.zeros((3, 2)))


@pytest.mark.parametrize("row", [-1, 5])
def test_rows_that_do_not_exist_are_refused(row):
    with pytest.raises(NotAResultError, match="its graph lists rows that do not exist"):
        walk_on(np.array([[0, 1], [1, row]]))
