import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask import neighbor_graph, transition_matrix
from cns_dask.errors import InvalidSettingError
from cns_dask.kernels import add_products, smooth_block
from cns_dask.transition import compact_neighbors, smooth
from cns_dask.types import NeighborGraph


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
    V = np.random.default_rng(1).standard_normal((80, 5))
    np.testing.assert_allclose(smooth(compact_neighbors(graph.indices[:, :k], 80), V), W @ V, atol=1e-15)


def test_matrix_of_a_lazy_graph_uses_all_neighbors_by_default():
    lazy = neighbor_graph(np.random.default_rng(0).standard_normal((30, 2)), 5)
    assert transition_matrix(lazy).nnz == 150


@pytest.mark.parametrize("k", [0, 12, 2.5])
def test_too_many_neighbors(graph, k):
    with pytest.raises(InvalidSettingError, match=rf"n_neighbors must be an integer from 1 to 11\. Got {k}"):
        transition_matrix(graph, k)


@given(
    shift=st.floats(-1, 1), scale=st.floats(-2, 2), keep=st.floats(-1, 1), k=st.integers(1, 11), width=st.integers(1, 9)
)
def test_kernel_is_the_shifted_product(graph, shift, scale, keep, k, width):
    rng = np.random.default_rng(2)
    V, previous, out = rng.standard_normal((3, 80, width))
    smooth_block(graph.indices[:, :k].astype(np.int32), V, shift, scale, previous, keep, out)
    W = oracle.transition(graph.indices[:, :k])
    np.testing.assert_allclose(out, scale * (W @ V - shift * V) + keep * previous, atol=1e-12)


def test_products_are_added_in_place():
    rng = np.random.default_rng(3)
    weights, blocks, total = rng.standard_normal((2, 3)), rng.standard_normal((3, 6, 4)), np.ones((2, 6, 4))
    add_products(weights, blocks, total)
    np.testing.assert_allclose(total, 1 + np.tensordot(weights, blocks, axes=1))
    with pytest.raises(ValueError, match="contiguous"):
        add_products(weights, blocks, np.ones((2, 6, 8))[:, :, ::2])
