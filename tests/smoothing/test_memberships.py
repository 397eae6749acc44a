import dask
import dask.array as da
import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.smoothing.memberships import clustering, clustering_block, from_blocks


@given(seed=st.integers(0, 50), K=st.integers(1, 8))
def test_memberships_lie_on_the_simplex_and_equal_the_dense_version(seed, K):
    P = np.random.default_rng(seed).dirichlet(np.ones(K + 1), 30)[:, :K]
    found = clustering_block(P)
    np.testing.assert_allclose(found.memberships, oracle.memberships(P))
    np.testing.assert_allclose(found.memberships.sum(axis=1), 1)
    assert (found.memberships >= -1e-15).all()
    np.testing.assert_array_equal(found.labels, found.memberships.argmax(axis=1))
    assert ((found.confidence >= 0) & (found.confidence <= 1)).all()


def test_confidence_is_one_with_one_cluster_in_reach_and_zero_with_none_or_all_alike():
    found = clustering_block(np.array([[0.01, 0, 0], [0, 0, 0], [0.1, 0.1, 0.1], [0.2, 0.1, 0.1]]))
    np.testing.assert_allclose(found.confidence, [1, 0, 0, 0.25], atol=1e-12)
    assert found.labels.tolist() == [0, 0, 0, 0]
    noise = clustering_block(np.array([[3e-10, -2.9e-10, 3e-10]]))  # solved columns may be negative by their residual
    np.testing.assert_allclose(noise.confidence, [0.25])
    assert clustering_block(np.zeros((2, 1))).confidence.tolist() == [1, 1]


@pytest.mark.parametrize("K", [1, 3, 5])
def test_lazy_clustering_of_any_number_of_clusters(K):
    P = np.random.default_rng(0).dirichlet(np.ones(6), 40)[:, :5]
    lazy, whole = clustering(da.from_array(P, chunks=(13, 2)), K), clustering_block(P[:, :K])
    for field in ("memberships", "labels", "confidence"):
        assert isinstance(getattr(lazy, field), da.Array)
        np.testing.assert_array_equal(getattr(lazy, field).compute(), getattr(whole, field))


def test_memberships_are_in_the_order_of_the_numbers_and_labels_are_these_numbers():
    P = np.array([[0.3, 0.1, 0.0], [0.0, 0.1, 0.2], [0.0, 0.0, 0.0]])
    plain, numbered = clustering_block(P), clustering_block(P, numbers=[7, 2, 4])
    np.testing.assert_allclose(numbered.memberships, plain.memberships[:, [1, 2, 0]])
    assert plain.labels.tolist() == [0, 2, 0]
    assert numbered.labels.tolist() == [7, 4, 2]  # of equal memberships the lowest number
    np.testing.assert_array_equal(numbered.confidence, plain.confidence)
    lazy = clustering(da.from_array(P, chunks=(2, 2)), 3, [7, 2, 4])
    np.testing.assert_array_equal(lazy.labels.compute(), numbered.labels)


def test_blocks_may_have_an_unknown_number_of_rows():
    P = np.random.default_rng(0).dirichlet(np.ones(4), 5)[:, :3]
    blocks = [dask.delayed(clustering_block)(part) for part in (P[:2], P[2:])]
    lazy = from_blocks(blocks, (np.nan, np.nan), 3)
    assert lazy.memberships.chunks[1] == (3,)
    np.testing.assert_array_equal(lazy.memberships.compute(), clustering_block(P).memberships)
    np.testing.assert_array_equal(lazy.labels.compute(), clustering_block(P).labels)
