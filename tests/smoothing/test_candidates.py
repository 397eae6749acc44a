"""Candidates: local maxima of in-degree, against the dense version."""

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_moons

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
    found = most_prominent(Candidates(np.array([4, 5, 8, 9]), np.array([3, 3, 3, 4]), 4), points, 3)
    assert found.rows.tolist() == [9, 4, 5]
    assert found.degrees.tolist() == [4, 3, 3]


def maxima_within_steps(N):
    """Rows whose in-degree is the largest within one step of the walk, two, and so on until there is no change."""
    degrees, step = np.bincount(N.ravel(), minlength=len(N)), oracle.transition(N) > 0
    reach, before = step, None
    while not np.array_equal(reach, before):
        yield np.flatnonzero(degrees >= np.where(reach, degrees, 0).max(axis=1))
        reach, before = reach @ step, reach


@given(k=st.integers(2, 12), limit=st.integers(1, 60))
def test_limited_maxima_are_those_within_as_few_steps_as_are_needed(k, limit):
    N = oracle.neighbors(D[:150, :150], k)
    found, every = local_maxima(N, limit), list(maxima_within_steps(N))
    expected = next((rows for rows in every if len(rows) <= limit), every[-1])
    np.testing.assert_array_equal(found.rows, expected)
    np.testing.assert_array_equal(found.degrees, np.bincount(N.ravel(), minlength=150)[expected])
    np.testing.assert_array_equal(every[0], local_maxima(N).rows)


def test_a_limit_that_is_kept_by_all_maxima_changes_nothing():
    N = oracle.neighbors(D, 5)
    every = local_maxima(N)
    for limit in (len(every.rows), 10**6):
        found = local_maxima(N, limit)
        np.testing.assert_array_equal(found.rows, every.rows)
        np.testing.assert_array_equal(found.rows, oracle.candidates(N, D, 10**6))
    assert len(local_maxima(N, len(every.rows) - 1).rows) < len(every.rows)


def rows_that_reach(N, targets):
    """Rows from which a walk may come to one of the targets, by a search that starts at these."""
    listed_by = [[] for _ in N]
    for row, others in enumerate(N.tolist()):
        for other in others:
            listed_by[other].append(row)
    reached, queue = set(targets.tolist()), list(targets.tolist())
    while queue:
        for row in listed_by[queue.pop(0)]:
            if row not in reached:
                reached.add(row)
                queue.append(row)
    return reached


@pytest.mark.parametrize("limit", [5, 10, 20])
def test_every_row_of_two_moons_reaches_one_of_few_candidates(limit):
    X, side = make_moons(500, noise=0.05, random_state=0)
    N = oracle.neighbors(oracle.distances(X), 8)
    found = local_maxima(N, limit)
    assert 2 <= len(found.rows) <= limit < len(local_maxima(N).rows)
    assert set(side[found.rows]) == {0, 1}
    assert len(rows_that_reach(N, found.rows)) == 500


def test_candidates_that_cover_the_data_leave_no_part_without_one():
    """Prominence is a distance: that of points that are far apart. A dense part would have no candidate."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.standard_normal((150, 2)), 1e-3 * rng.standard_normal((150, 2)) + 50])
    N = oracle.neighbors(oracle.distances(X), 6)
    prominent, covering = find_candidates(N, X, 8), find_candidates(N, X, 8, cover=True)
    assert len(prominent.rows) == 8
    assert len(covering.rows) <= 8
    assert len(rows_that_reach(N, prominent.rows)) == 150
    assert len(rows_that_reach(N, covering.rows)) == 300


@pytest.mark.parametrize("shape", ["ring", "torus", "copies"])
def test_rows_of_equal_degree_are_all_maxima_and_the_search_for_fewer_ends(shape):
    rows = np.arange(64)
    N = {
        "ring": (rows[:, None] + [0, 1, -1, 2, -2]) % 64,
        "torus": np.column_stack(
            [rows, *(rows // 8 * 8 + (rows + by) % 8 for by in (1, -1)), *((rows + by) % 64 for by in (8, -8))]
        ),
        "copies": rows[:, None] // 4 * 4 + (rows[:, None] + np.arange(4)) % 4,
    }[shape]
    np.testing.assert_array_equal(np.bincount(N.ravel()), N.shape[1])
    assert local_maxima(N, 10).rows.tolist() == rows.tolist()
    assert len(find_candidates(N, None, 10, cover=True).rows) == 10


def test_a_lattice_with_a_border_is_covered():
    X = np.stack(np.meshgrid(np.arange(15.0), np.arange(15.0)), axis=-1).reshape(-1, 2)
    N = oracle.neighbors(oracle.distances(X), 5)
    found = local_maxima(N, 3)
    assert len(found.rows) > 0
    assert len(rows_that_reach(N, found.rows)) == 225


def test_points_are_read_only_where_there_are_too_many_candidates():
    class Unreadable:
        def __getitem__(self, part):
            raise AssertionError("read")

    N = oracle.neighbors(D, 5)
    assert len(find_candidates(N, Unreadable(), 300).rows) == len(local_maxima(N).rows)
    with pytest.raises(AssertionError, match="read"):
        find_candidates(N, Unreadable(), 3)
