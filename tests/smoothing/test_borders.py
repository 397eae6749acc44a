import numpy as np
import pytest
from scipy.stats import spearmanr

from cns_dask.smoothing import borders
from cns_dask.smoothing.borders import (
    LEAST_DIP,
    LinkDensities,
    deepest_dip,
    dip_between,
    groups_between_dips,
    groups_between_gaps,
    least_gap,
    structure_ratio,
    without_clusters,
)
from cns_dask.smoothing.communities import LEAST_STRUCTURE_RATIO

WITHOUT = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.random(shape),
    "t": lambda rng, shape: rng.standard_t(5, shape),
    "exponential": lambda rng, shape: rng.exponential(size=shape),
    "lognormal": lambda rng, shape: rng.lognormal(size=shape),
}


def once(rows):
    """Every row stands once."""
    return np.ones(len(rows), int)


@pytest.mark.parametrize("kind", WITHOUT)
@pytest.mark.parametrize("n_features", [5, 20])
def test_data_without_clusters_have_a_ratio_of_about_one(kind, n_features):
    rows = WITHOUT[kind](np.random.default_rng(n_features), (1000, n_features))
    assert structure_ratio(rows, once(rows)) < LEAST_STRUCTURE_RATIO


def test_clusters_raise_the_ratio():
    rng = np.random.default_rng(0)
    centers = 2.5 * rng.standard_normal((12, 10))
    rows = centers[rng.integers(12, size=1000)] + rng.standard_normal((1000, 10))
    assert structure_ratio(rows, once(rows)) > 1.3


def test_rounded_data_without_clusters_have_a_ratio_of_about_one():
    rows, counts = np.unique(np.random.default_rng(0).standard_normal((1500, 5)).round(), axis=0, return_counts=True)
    assert counts.max() > 5
    assert structure_ratio(rows, counts) < LEAST_STRUCTURE_RATIO


@pytest.mark.parametrize(("apart", "expected"), [(0, 1), (6, 2)])
def test_the_number_of_clusters_without_a_fit(apart, expected):
    rows = np.random.default_rng(0).standard_normal((1200, 6))
    rows[:600, 0] += apart
    assert borders.number_of_clusters(rows) == expected
    assert borders.number_of_clusters(np.zeros((5, 2))) == 1


def test_the_null_keeps_marginals_and_rank_correlations():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((4000, 3)) @ rng.standard_normal((3, 3))
    rows[:, 1] = np.exp(rows[:, 1])
    null = without_clusters(rows, np.random.default_rng(2))
    np.testing.assert_array_equal(np.sort(null, axis=0), np.sort(rows, axis=0))
    np.testing.assert_allclose(spearmanr(null).statistic, spearmanr(rows).statistic, atol=0.06)


def test_constant_features_and_few_rows_have_no_structure():
    assert structure_ratio(np.ones((50, 3)), np.ones(50, int)) == 1
    assert structure_ratio(np.zeros((2, 3)), np.ones(2, int)) == 1


@pytest.mark.parametrize("n_features", [4, 20])
def test_two_gaussians_have_a_dip_between_them_and_halves_of_one_have_none(n_features):
    rng = np.random.default_rng(0)
    y = np.arange(2000) % 2
    rows = rng.standard_normal((2000, n_features))
    half = np.arange(2000) % 4 < 2
    above = rows[:, 0] > 0
    assert dip_between(rows, above, ~above, half) < LEAST_DIP
    rows[:, 0] += 4 * y
    assert dip_between(rows, y == 0, y == 1, half) > 2 * LEAST_DIP


def test_a_hollow_sphere_has_no_dip():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((4000, 5))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    above = rows[:, 0] > 0
    half = np.arange(4000) % 2 == 0
    near = above & (rows[:, 0] < 0.5)
    below = ~above & (rows[:, 0] > -0.5)
    assert dip_between(rows, near, below, half) < LEAST_DIP


def test_few_rows_or_none_apart_have_no_dip():
    rows = np.random.default_rng(0).standard_normal((20, 2))
    one = np.arange(20) == 0
    assert dip_between(rows, one, ~one, np.ones(20, bool)) == 0
    assert dip_between(np.zeros((20, 2)), np.arange(20) < 10, np.arange(20) >= 10, np.arange(20) % 2 == 0) == 0
    assert deepest_dip(np.zeros(3), 1.0) == 0


def test_communities_without_a_dip_are_joined():
    rng = np.random.default_rng(0)
    y = np.arange(3000) % 2
    rows = rng.standard_normal((3000, 6))
    rows[:, 0] += 5 * y
    communities = 2 * y + (rows[:, 1] > 0)  # both halves of both clusters
    links = np.array([[50.0, 9, 1, 1], [9, 50, 1, 1], [1, 1, 50, 9], [1, 1, 9, 50]])
    np.testing.assert_array_equal(groups_between_dips(rows, communities, links), [0, 0, 1, 1])


def densities(depth, n_links=500):
    """Links of two communities, with a border that is lower by some depth."""
    ends = np.repeat([[0, 0], [1, 1], [0, 1]], n_links, axis=0).T
    values = np.repeat([0.0, 0.0, -depth], n_links)
    return LinkDensities.of_links((ends[0], ends[1]), values, 2, 5000, 16, 1.0)


def test_a_border_of_lower_density_separates():
    assert groups_between_gaps(densities(1.0)).tolist() == [0, 1]
    assert groups_between_gaps(densities(0.2)).tolist() == [0, 0]


def test_a_border_is_as_deep_as_its_shallower_side():
    ends = np.array([0, 1, 0]), np.array([0, 1, 1])
    one_sided = LinkDensities.of_links(ends, np.array([5.0, 0.0, 0.0]), 2, 5000, 16, 1.0)
    assert one_sided.weakest()[0] == 0


def test_short_borders_need_deeper_dips():
    assert least_gap(10, 5000, 16) > least_gap(1000, 5000, 16) > least_gap(10**6, 5000, 16)
    assert least_gap(10**6, 5000, 16) == borders.SMALLEST_GAP


def test_groups_without_links_stay_apart():
    alone = LinkDensities.of_links((np.array([0, 1]), np.array([0, 1])), np.zeros(2), 2, 100, 8, 1.0)
    assert groups_between_gaps(alone).tolist() == [0, 1]
