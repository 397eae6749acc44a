import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.settings import Grid
from cns_dask.smoothing.criterion import (
    PARTS,
    best_by_n_clusters,
    choose,
    criterion_of_lams,
    largest_memberships_block,
    penalty,
)

GRID = Grid((5, 10), (0.1, 0.2), 3)


def test_criterion_of_all_n_clusters_in_one_pass_equals_the_definition():
    x = np.random.default_rng(0).random((1, 50, 6))
    picks, slots, lam, k, n = np.array([4, 0, 3, 1]), np.array([2, 0, 1, 5, 4, 3]), 0.02, 7, 50
    blocks = slice(0, 20), slice(20, 50)
    stored = lam * x[:, :, np.argsort(slots)].transpose(0, 2, 1)
    sums = [largest_memberships_block(stored, rows, slots, picks[None]) for rows in blocks]
    (values,) = criterion_of_lams(sums, n, n, k, (lam,), limit=6).values
    for K in range(2, 5):
        F = oracle.memberships(lam * x[0][:, picks[:K]])
        C = F.max(axis=1).mean() - (n - K + K**2) / (n * K)
        R = (1 - lam) * (1 / np.sqrt(k) - 1 / np.sqrt(n)) ** 2
        assert values[K - 1] == pytest.approx(C / R, abs=1e-12)
        assert penalty(n, k, lam) == pytest.approx(R)
    assert values[0] == 0
    assert np.isnan(values[4:]).all()


def cut_sums(stored, picks, step):
    """Sums of largest memberships, of their parts, and sizes, from blocks of `step` rows."""
    n, slots = stored.shape[2], np.arange(stored.shape[1])
    blocks = [largest_memberships_block(stored, slice(at, min(at + step, n)), slots, picks) for at in range(0, n, step)]
    return [sum(each) for each in zip(*blocks, strict=True)]


@given(seed=st.integers(0, 50), step=st.integers(1, 60))
def test_parts_sum_to_the_total_and_sizes_are_those_of_labels_for_any_blocks_of_rows(seed, step):
    rng = np.random.default_rng(seed)
    stored = 0.1 * rng.random((2, 6, 53)) * (rng.random((2, 6, 53)) < 0.5)
    picks = np.array([rng.permutation(6)[:4] for _ in range(2)])
    total, parts, sizes = cut_sums(stored, picks, step)
    np.testing.assert_allclose(parts.sum(axis=0), total, rtol=1e-12)
    for at in range(2):
        for K in range(1, 5):
            F = oracle.memberships(stored[at, picks[at, :K]].T)
            largest, labels = F.max(axis=1), stored[at, picks[at, :K]].argmax(axis=0)
            assert total[at, K - 1] == pytest.approx(largest.sum(), rel=1e-12)
            for part in range(PARTS):
                assert parts[part, at, K - 1] == pytest.approx(largest[part::PARTS].sum(), rel=1e-12)
            assert sizes[at, K - 1, :K].tolist() == np.bincount(labels, minlength=K).tolist()
            assert not sizes[at, K - 1, K:].any()


def test_the_criterion_of_parts_is_that_of_their_rows_alone_and_the_smallest_cluster_is_counted():
    stored = 0.1 * np.random.default_rng(3).random((2, 5, 64))  # as many rows in each part
    picks, lams = np.array([[0, 2, 4], [1, 3, 0]]), (0.1, 0.2)
    found = criterion_of_lams([tuple(cut_sums(stored, picks, 64))], 64, 64, 7, lams, limit=4)
    assert found.parts.shape == (PARTS, 2, 4)
    np.testing.assert_allclose(found.parts[:, :, :3].mean(axis=0), found.values[:, :3], atol=1e-12)
    assert found.parts[:, :, 1:3].std(axis=0).min() > 0
    assert np.isnan(found.values[:, 3]).all()
    for at in range(2):
        for K in range(1, 4):
            labels = stored[at, picks[at, :K]].argmax(axis=0)
            assert found.smallest[at, K - 1] == np.bincount(labels, minlength=K).min()


def test_choice_and_margin():
    surface = np.array([[[0, 0.1, 0.2], [0, 0.3, 0.1]], [[0, 0.25, np.nan], [0, -1, np.nan]]])
    choice = choose(surface, GRID, 100)
    assert (choice.n_neighbors, choice.lam, choice.n_clusters, choice.value) == (5, 0.2, 2, 0.3)
    assert choice.margin == pytest.approx(0.05)
    assert choose(surface, GRID, 100, n_clusters=3).value == 0.2
    assert [cell.n_clusters for cell in best_by_n_clusters(surface, GRID, 100)] == [2, 3, 1]


def test_ties_go_to_the_smallest_lam_then_k_then_n_clusters():
    surface = np.zeros((2, 2, 3))
    assert choose(surface, GRID, 100).margin == 0
    for cell, expected in (
        ([(0, 1, 1), (1, 0, 2)], (10, 0.1, 3)),
        ([(1, 0, 1), (0, 0, 2)], (5, 0.1, 3)),
        ([(1, 1, 2), (1, 1, 1)], (10, 0.2, 2)),
    ):
        surface = np.zeros((2, 2, 3))
        for at in cell:
            surface[at] = 1.0
        choice = choose(surface, GRID, 100)
        assert (choice.n_neighbors, choice.lam, choice.n_clusters) == expected


def test_values_that_the_memberships_cannot_tell_apart_are_ties():
    """Complete clusters have the same memberships for every lam: what differs is the rounding of the solves."""
    surface = np.zeros((2, 2, 3))
    surface[1, :, 1] = 0.8, 0.8 + 1e-10 / penalty(100, 10, 0.2)
    assert choose(surface, GRID, 100).lam == 0.1
    surface[1, 1, 1] = 0.8 + 1e-8 / penalty(100, 10, 0.2)
    assert choose(surface, GRID, 100).lam == 0.2


def test_one_cluster_wins_when_all_else_is_negative():
    surface = np.full((2, 2, 3), -0.5)
    surface[:, :, 0] = 0
    choice = choose(surface, GRID, 100)
    assert (choice.n_clusters, choice.value, choice.lam, choice.n_neighbors) == (1, 0, 0.1, 5)


def test_one_cell_has_no_margin_and_none_is_an_error():
    surface = np.full((2, 2, 3), np.nan)
    surface[0, 0, 0] = 0
    assert choose(surface, GRID, 100).margin is None
    with pytest.raises(ValueError, match="No grid point has 3 clusters"):
        choose(surface, GRID, 100, n_clusters=3)


def test_sums_over_some_rows_stand_for_all():
    stored = 0.1 * np.random.default_rng(4).random((1, 4, 800))
    picks, lams = np.array([[0, 2, 3]]), (0.1,)
    doubled = np.concatenate([stored, stored], axis=2)
    all_rows = criterion_of_lams([tuple(cut_sums(doubled, picks, 1600))], 1600, 1600, 7, lams, limit=3)
    half = criterion_of_lams([tuple(cut_sums(stored, picks, 800))], 1600, 800, 7, lams, limit=3)
    np.testing.assert_allclose(half.values, all_rows.values, rtol=1e-12)
    np.testing.assert_allclose(half.parts, all_rows.parts, rtol=1e-9)
    np.testing.assert_array_equal(half.smallest, all_rows.smallest)
