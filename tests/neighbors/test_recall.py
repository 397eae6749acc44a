import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.neighbors.recall import recall_interval, recall_of_rows, sample_of_rows


def test_recall_counts_listed_and_equally_near_neighbors_but_not_the_row_itself():
    exact = np.array([[0.0, 1, 2, 3]]), np.array([[0, 1, 2, 3]])
    listed = np.array([[0.0, 1, 2, 9]]), np.array([[0, 1, 2, 4]])
    tied = np.array([[0.0, 1, 2, 3]]), np.array([[0, 1, 2, 5]])
    assert recall_of_rows(listed, exact, 4) == pytest.approx([2 / 3])
    assert recall_of_rows(tied, exact, 4) == [1]
    assert recall_of_rows(listed, exact, 3) == [1]
    assert recall_of_rows(listed, exact, 1) == [1]


def test_interval_of_independent_trials_is_wilsons():
    shares = np.repeat([1.0, 0.0], [990, 10])  # one neighbour each
    found = recall_interval(shares, 2)
    assert (found.mean, found.n_rows) == (0.99, 1000)
    assert found.low == pytest.approx(0.98170, abs=1e-4)
    assert found.high == pytest.approx(0.99456, abs=1e-4)


def test_a_perfect_sample_is_not_taken_for_proof():
    found = recall_interval(np.ones(1000), 40)
    assert found.mean == found.high == 1
    assert 0.99 < found.low < 0.9999


@given(share=st.floats(0.5, 0.999), spread=st.floats(0, 0.3), seed=st.integers(0, 50))
def test_interval_holds_the_mean_and_narrows_with_rows(share, spread, seed):
    shares = np.clip(share + spread * np.random.default_rng(seed).standard_normal(2000), 0, 1)
    few, many = recall_interval(shares[:200], 20), recall_interval(shares, 20)
    for found in (few, many):
        assert 0 <= found.low <= found.mean <= found.high <= 1
    assert many.high - many.low < few.high - few.low


def test_interval_covers_the_truth_about_95_times_in_100():
    rng = np.random.default_rng(3)
    population = np.clip(1 - rng.exponential(0.01, 50_000), 0, 1)  # rows differ: few of them miss much
    truth, covered = population.mean(), 0
    for _ in range(300):
        found = recall_interval(rng.choice(population, 1000), 44)
        covered += found.low <= truth <= found.high
    assert covered >= 270


def test_samples_are_ascending_distinct_and_bounded():
    rows = sample_of_rows(500, 100, seed=0)
    assert len(np.unique(rows)) == len(rows) == 100
    assert (np.diff(rows) > 0).all()
    assert len(sample_of_rows(50, 100, seed=0)) == 50
