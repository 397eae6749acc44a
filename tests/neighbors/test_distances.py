"""Running lists of the nearest rows, against a sort of all distances."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neighbor_lists import sorted_lists

from cns_dask.neighbors import distances
from cns_dask.neighbors.distances import (
    bound_row,
    lower_bounds,
    measure_lists,
    merge_lists,
    merge_nearest,
    shrinkage,
    visit_cells,
)


def empty_lists(n_rows, k, dtype=np.float64):
    return np.full((n_rows, k), np.inf, dtype), np.full((n_rows, k), -1)


def assert_same(found, expected):
    np.testing.assert_array_equal(found[1], expected[1])
    np.testing.assert_allclose(found[0], expected[0], rtol=4 * np.finfo(found[0].dtype).eps)


@given(shift=st.sampled_from([0.0, 1e3, 1e6]), n_features=st.integers(1, 60), seed=st.integers(0, 99))
def test_lower_bounds_never_exceed_the_distance(shift, n_features, seed):
    rng = np.random.default_rng(seed)
    a, b = shift + rng.standard_normal((20, n_features)), shift + rng.standard_normal((30, n_features))
    exact = ((a[:, None] - b[None]) ** 2).sum(-1)
    assert (lower_bounds(a, b) <= exact).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(seed=st.integers(0, 999), k=st.integers(1, 12), n_features=st.integers(1, 5), ties=st.booleans())
def test_merged_lists_equal_a_sort_however_the_points_come(dtype, seed, k, n_features, ties):
    rng = np.random.default_rng(seed)
    points = rng.integers(-2, 3, (60, n_features)) if ties else rng.standard_normal((60, n_features))
    points = points.astype(dtype)
    rows = np.sort(rng.choice(1000, 60, replace=False))
    queries, own = points[::3], np.where(rng.random(20) < 0.5, rows[::3], -1)  # some of them from outside
    expected = sorted_lists(queries, own, points, rows, k)
    edges = [0, *np.sort(rng.integers(0, 61, 3)).tolist(), 60]
    parts = [slice(*edges[at : at + 2]) for at in rng.permutation(4)]
    found = empty_lists(20, k, dtype)
    for part in parts:
        merge_nearest(queries, own, points[part], rows[part], found)
    assert_same(found, expected)


def test_points_that_are_equally_far_in_single_precision_are_ordered_by_number_in_any_order():
    """Squares that differ only beyond float32 are ties, whichever of them comes first."""
    points = np.random.default_rng(0).standard_normal((3000, 3))
    points = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    query, rows = np.zeros((1, 3), np.float32), np.arange(3000)
    lists = []
    for order in (1, -1):
        found = empty_lists(1, 2000, np.float32)
        for part in [slice(at, at + 1) for at in range(3000)][::order]:
            merge_nearest(query, np.array([-1]), points[part], rows[part], found)
        lists.append(found)
    np.testing.assert_array_equal(lists[0][0], lists[1][0])
    np.testing.assert_array_equal(lists[0][1], lists[1][1])
    tied = np.diff(lists[0][0][0]) == 0
    assert tied.sum() > 1000
    assert (np.diff(lists[0][1][0])[tied] > 0).all()


def test_lists_do_not_depend_on_how_many_pairs_are_bounded_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    points, rows = rng.integers(-3, 4, (200, 3)).astype(float), np.arange(200)
    expected = sorted_lists(points, rows, points, rows, 9)
    for queries_at_once, points_at_once in ((2048, 4096), (7, 11), (200, 64), (64, 5)):
        monkeypatch.setattr(distances, "QUERIES_AT_ONCE", queries_at_once)
        monkeypatch.setattr(distances, "POINTS_AT_ONCE", points_at_once)
        found = empty_lists(200, 9)
        merge_nearest(points, rows, points, rows, found)
        assert_same(found, expected)


def test_only_some_queries_are_merged_and_lists_of_no_neighbors_stay_empty():
    points, rows = np.arange(10.0)[:, None], np.arange(10)
    found = empty_lists(10, 2)
    merge_nearest(points, rows, points, rows, found, some=np.array([0, 9]))
    assert found[1][[0, 9]].tolist() == [[1, 2], [8, 7]]
    assert (found[1][1:9] == -1).all()
    nobody = empty_lists(10, 0)
    merge_nearest(points, rows, points, rows, nobody)
    assert nobody[1].shape == (10, 0)


def test_measured_lists_are_squared_distances_and_infinite_where_there_is_no_neighbor():
    points = np.random.default_rng(0).standard_normal((30, 4))
    lists = np.random.default_rng(1).integers(-1, 30, (30, 6))
    found = np.empty((30, 6))
    measure_lists(points, lists, found)
    expected = ((points[:, None] - points[lists]) ** 2).sum(axis=2)
    np.testing.assert_allclose(found, np.where(lists < 0, np.inf, expected), rtol=1e-14)


@given(seed=st.integers(0, 999), k=st.integers(1, 8))
def test_merged_lists_hold_each_row_once_and_never_the_row_itself(seed, k):
    rng = np.random.default_rng(seed)
    lists, rows = rng.integers(-1, 12, (5, 20)), np.arange(5)  # most numbers twice, -1 among them
    far = rng.integers(0, 4, (5, 12)).astype(float)  # the distance belongs to the pair: many are tied
    measured = np.where(lists < 0, 0.0, np.take_along_axis(far, np.maximum(lists, 0), axis=1))
    found = empty_lists(5, k)
    merge_lists(lists, measured, rows, *found)
    for row in rows:
        others = sorted({(far[row, other], other) for other in lists[row] if other not in (-1, row)})[:k]
        free = k - len(others)
        assert found[1][row].tolist() == [other for _, other in others] + [-1] * free
        assert found[0][row].tolist() == [distance for distance, _ in others] + [np.inf] * free


@pytest.mark.parametrize("n_features", [1, 3, 4, 9])
def test_bounds_of_one_row_are_its_part_of_a_product(n_features):
    rng = np.random.default_rng(0)
    query, sides, norms, out = rng.random(n_features), rng.random((n_features, 50)), rng.random(50), np.empty(40)
    bound_row(query, 0.5, sides[:, :40].copy(), norms, out)
    np.testing.assert_allclose(out, norms[:40] + 0.5 + query @ sides[:, :40], rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cells_in_reach_are_merged_and_others_are_not(dtype):
    rng = np.random.default_rng(0)
    points, rows = rng.standard_normal((300, 5)).astype(dtype), np.arange(300)
    queries, own, edges = points[:40], rows[:40], np.array([[0, 90], [90, 90], [90, 200], [200, 300]])
    gaps = np.full((4, 40), -1, dtype)
    gaps[3, 20:] = np.inf  # out of reach of half of the queries
    found = empty_lists(40, 7, dtype)
    visit_cells(queries, own, points[0], points, rows, edges, gaps, 1.0, shrinkage(queries), *found)
    all_cells = sorted_lists(queries[:20], own[:20], points, rows, 7)
    without_the_last = sorted_lists(queries[20:], own[20:], points[:200], rows[:200], 7)
    assert_same((found[0][:20], found[1][:20]), all_cells)
    assert_same((found[0][20:], found[1][20:]), without_the_last)


def test_a_cell_is_in_reach_while_its_gap_is_below_the_last_distance_times_the_reach():
    points, rows = np.array([[1.0], [3.0]]), np.array([7, 8])  # each in a cell of its own
    for gap, expected in ((0.4, 8), (0.6, 7)):  # the last distance on the list is 1, the reach a half
        found = np.array([[1.0]]), np.array([[7]])
        visit_cells(
            np.array([[2.5]]), np.array([-1]), np.zeros(1), points, rows, np.array([[1, 2]]), np.array([[gap]]), 0.5,
            1.0, *found
        )  # fmt: skip
        assert found[1].item() == expected
