import numpy as np
import oracle
import pytest

from cns_dask.settings import Grid
from cns_dask.smoothing.criterion import (
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
    (values,) = criterion_of_lams(sums, n, k, (lam,), limit=6)
    for K in range(2, 5):
        F = oracle.memberships(lam * x[0][:, picks[:K]])
        C = F.max(axis=1).mean() - (n - K + K**2) / (n * K)
        R = (1 - lam) * (1 / np.sqrt(k) - 1 / np.sqrt(n)) ** 2
        assert values[K - 1] == pytest.approx(C / R, abs=1e-12)
        assert penalty(n, k, lam) == pytest.approx(R)
    assert values[0] == 0
    assert np.isnan(values[4:]).all()


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
