import numpy as np
import oracle
import pytest
import zarr

from cns_dask import neighbor_graph, transition_matrix
from cns_dask.errors import InvalidSettingError, InvalidTypeError, NotAResultError
from cns_dask.neighbors.graph import NeighborGraph
from cns_dask.smoothing.passes import tile_reads
from cns_dask.smoothing.walk import order_in_cells, order_rows, positions_in, walk_on


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
    (part,) = walk.parts
    assert (walk.n_rows, walk.n_neighbors, part.first_row) == (80, 3, 0)
    assert part.neighbors.dtype == part.reads.dtype == np.uint32
    np.testing.assert_array_equal(walk.neighbors, graph.indices[:, :3])
    np.testing.assert_array_equal(part.reads, tile_reads(walk.neighbors, 0, 80))
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


def test_rows_in_cells_are_put_next_to_their_neighbours():
    """In every cell by itself: an order of all rows, in which neighbours are much nearer than before."""
    points = np.random.default_rng(0).random((4000, 2)).astype(np.float32)
    cells = (2 * points[:, 0]).astype(int)
    by_cell = np.argsort(cells, kind="stable")
    order = order_in_cells(points[by_cell], cells[by_cell])
    np.testing.assert_array_equal(np.sort(order), np.arange(4000))
    np.testing.assert_array_equal(cells[by_cell][order], cells[by_cell])
    near = np.linalg.norm(np.diff(points[by_cell][order], axis=0), axis=1).mean()
    assert near < np.linalg.norm(np.diff(points[by_cell], axis=0), axis=1).mean() / 4
    few = np.repeat([0, 1, 1, 3], [5, 0, 1, 2])
    np.testing.assert_array_equal(order_in_cells(points[:8], few), np.arange(8))
