"""Rows deepest in clusters and between them, against plain NumPy over all rows."""

import dask.array as da
import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.results.exemplars import best_of, deepest_rows, undecided_rows
from cns_dask.results.overlap import shares_block
from cns_dask.smoothing.memberships import Clustering, clustering_block


def clustering(P, chunk, numbers=None, noise=False):
    made = clustering_block(P, numbers, noise=noise)
    F = da.from_array(made.memberships, chunks=(chunk, -1))
    return Clustering(F, da.from_array(made.labels, chunks=37), da.from_array(made.confidence, chunks=51)), made


@pytest.fixture
def absorption():
    P = np.random.default_rng(0).gamma(0.3, 0.05, (400, 4))
    P[50:60] = P[40:50]  # ties
    P[::50] = 0  # nothing in reach
    return P


@pytest.mark.parametrize("chunk", [400, 64, 7])
def test_deepest_rows_lie_farthest_above_the_next_cluster(absorption, chunk):
    lazy, whole = clustering(absorption, chunk, noise=True)
    found = deepest_rows(lazy, range(4), 6)
    F = np.sort(whole.memberships, axis=1)
    margin = F[:, -1] - F[:, -2]
    for K in range(4):
        rows = np.flatnonzero(whole.labels == K)
        assert found[K].tolist() == rows[np.lexsort((rows, -margin[rows]))][:6].tolist()


@pytest.mark.parametrize("chunk", [400, 64, 7])
def test_undecided_rows_have_two_large_shares(absorption, chunk):
    lazy, whole = clustering(absorption, chunk, noise=True)
    shares = shares_block(whole.memberships, whole.confidence)
    score = np.nan_to_num(np.minimum(shares[:, 1], shares[:, 3]) - np.maximum(shares[:, 0], shares[:, 2]))
    expected = np.lexsort((np.arange(400), -score))[:8]
    assert undecided_rows(lazy, 1, 3, 8).tolist() == expected.tolist()


def test_fewer_rows_than_asked_for():
    P = np.array([[0.2, 0.0], [0.3, 0.2], [0.0, 0.4]])
    lazy, _ = clustering(P, 2)
    assert deepest_rows(lazy, [0, 1], 3).tolist() == [[0, 1, -1], [2, -1, -1]]
    assert undecided_rows(lazy, 0, 1, 3).tolist() == [1]


def test_clusters_may_have_other_numbers():
    lazy, _ = clustering(np.array([[0.2, 0.0], [0.3, 0.2], [0.0, 0.4]]), 2, numbers=[8, 5])
    assert deepest_rows(lazy, [5, 8], 1).tolist() == [[2], [0]]


def test_exemplars_lie_inside_and_rows_between_lie_between():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=900)
    centers = np.array([(0, 0, 0, 0), (4.2, 0, 0, 0), (2, 10, 0, 0)])  # two that touch, and one apart
    X = rng.standard_normal((900, 4)) + centers[y]
    result = CNS(n_clusters=3, scale=False, selection="paper").fit(X).result_
    exemplars = X[result.exemplars(5)]
    nearest = [int(np.linalg.norm(rows.mean(axis=0) - centers, axis=1).argmin()) for rows in exemplars]
    assert sorted(nearest) == [0, 1, 2]
    for rows, K in zip(exemplars, nearest, strict=True):  # the first is a representative
        assert np.linalg.norm(rows[0] - centers[K]) < 1.5
        assert np.linalg.norm(rows - centers[K], axis=1).max() < 3
    left, right, apart = (nearest.index(K) for K in range(3))
    undecided = X[result.between(left, right, n=5)]
    assert (np.abs(undecided[:, 0] - 2.1) < 1).all()
    assert len(result.between(left, apart)) == 0


def test_best_of_breaks_ties_by_row_number():
    parts = [(np.zeros(2, int), np.ones(2), np.array([9, 4])), (np.zeros(1, int), np.ones(1), np.array([7]))]
    assert best_of(parts, 2)[2].tolist() == [4, 7]
