"""Candidates: local maxima of in-degree, against the dense version."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.smoothing import candidates
from cns_dask.smoothing.candidates import Candidates, find_candidates, local_maxima, most_prominent, nearest_others

X = np.random.default_rng(0).standard_normal((300, 3))
D = oracle.distances(X)


@given(k=st.integers(1, 20))
def test_candidates_equal_the_dense_version(k):
    N = oracle.neighbors(D, k)
    found = local_maxima(N)
    np.testing.assert_array_equal(found.rows, oracle.candidates(N, D, 10**6))
    np.testing.assert_array_equal(found.degrees, np.bincount(N.ravel(), minlength=300)[found.rows])


@given(cap=st.integers(1, 30))
def test_capped_candidates_come_by_prominence(cap):
    N = oracle.neighbors(D, 5)
    found = local_maxima(N)
    assert len(found.rows) > 30
    capped = find_candidates(N, X, cap)
    np.testing.assert_array_equal(capped.rows, oracle.candidates(N, D, cap))


def test_candidates_are_told_by_row_however_the_graph_is_numbered():
    N = oracle.neighbors(D, 5)
    order = np.random.default_rng(1).permutation(300)
    position = np.argsort(order)
    renumbered = position[N][order]
    for limit in (10, 10**6):
        for points in (X, None):
            plain, found = find_candidates(N, points, limit), find_candidates(renumbered, points, limit, order)
            np.testing.assert_array_equal(found.rows, plain.rows)
            np.testing.assert_array_equal(found.degrees, plain.degrees)


@pytest.mark.parametrize("n_features", [1, 8, 9, 40])  # by a tree, and by comparison
def test_nearest_others_equal_the_dense_version(n_features):
    points = np.random.default_rng(1).standard_normal((150, n_features))
    points[7] = points[90]
    far = np.sqrt(oracle.distances(points)) + np.diag(np.full(150, np.inf))
    np.testing.assert_allclose(nearest_others(points), far.min(axis=1), rtol=1e-12)
    assert nearest_others(points)[7] == 0


def test_trees_and_comparisons_give_the_same_order(monkeypatch):
    N = oracle.neighbors(D, 5)
    by_tree = find_candidates(N, X, 20)
    monkeypatch.setattr(candidates, "TREE_FEATURES", 0)
    np.testing.assert_array_equal(find_candidates(N, X, 20).rows, by_tree.rows)


def test_without_points_those_of_largest_degree_are_kept_ties_by_row():
    N = oracle.neighbors(D, 5)
    found, limited = local_maxima(N), find_candidates(N, None, 12)
    expected = sorted(zip(-found.degrees, found.rows, strict=True))[:12]
    assert limited.rows.tolist() == [row for _, row in expected]
    assert limited.degrees.tolist() == [-degree for degree, _ in expected]


def test_equally_prominent_candidates_come_in_row_order():
    points = np.array([[0.0], [1.0], [10.0], [11.0]])
    found = most_prominent(Candidates(np.array([4, 5, 8, 9]), np.array([3, 3, 3, 4])), points, 3)
    assert found.rows.tolist() == [9, 4, 5]
    assert found.degrees.tolist() == [4, 3, 3]


def test_points_are_read_only_where_there_are_too_many_candidates():
    class Unreadable:
        def __getitem__(self, part):
            raise AssertionError("read")

    N = oracle.neighbors(D, 5)
    assert len(find_candidates(N, Unreadable(), 300).rows) == len(local_maxima(N).rows)
    with pytest.raises(AssertionError, match="read"):
        find_candidates(N, Unreadable(), 3)
