"""How much clusters overlap."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask import CNS
from cns_dask.results.overlap import overlap_of, shares_block
from cns_dask.smoothing.memberships import Clustering, clustering_block


@given(st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_shares_are_those_of_the_absorption(K, seed):
    P = np.random.default_rng(seed).gamma(0.3, 0.05, (40, K))
    made = clustering_block(P)
    decided = made.confidence > 1e-6
    expected = P / P.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(shares_block(made.memberships, made.confidence)[decided], expected[decided], atol=1e-8)


def test_rows_that_reach_nothing_have_no_shares():
    made = clustering_block(np.array([[0.0, 0.0], [0.2, 0.0]]))
    assert np.isnan(shares_block(made.memberships, made.confidence)[0]).all()
    assert shares_block(made.memberships, made.confidence)[1].tolist() == [1, 0]


@pytest.mark.parametrize("chunk", [300, 41])
def test_overlap_is_the_mean_share_of_one_cluster_in_the_rows_of_another(chunk):
    P = np.random.default_rng(0).gamma(0.3, 0.05, (300, 4))
    P[::30] = 0
    made = clustering_block(P)
    lazy = Clustering(*(da.from_array(each, chunks=chunk) for each in (made.memberships, made.labels, made.confidence)))
    Q = P[P.sum(axis=1) > 0]
    Q = Q / Q.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(overlap_of(lazy), Q.T @ Q / Q.sum(axis=0)[:, None], atol=1e-9)


def test_touching_clusters_overlap_and_distant_ones_do_not():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=900)
    X = rng.standard_normal((900, 4)) + np.array([(0, 0, 0, 0), (4.2, 0, 0, 0), (2, 10, 0, 0)])[y]
    result = CNS(n_clusters=3, scale=False, selection="paper").fit(X).result_
    apart = int(np.argmax([X[rows, 1].mean() for rows in result.exemplars(3)]))
    first, second = (K for K in range(3) if apart != K)
    overlap = result.overlap
    np.testing.assert_allclose(overlap.sum(axis=1), 1)
    assert 0.05 < overlap[first, second] < 0.25
    assert 0.05 < overlap[second, first] < 0.25
    assert overlap[apart, apart] == pytest.approx(1, abs=1e-3)


def test_one_cluster_lies_in_itself():
    X = np.random.default_rng(0).random((200, 2))
    assert CNS(n_clusters=1).fit(X).result_.overlap.tolist() == [[1.0]]
