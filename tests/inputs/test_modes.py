"""The spread within modes: clusters along a feature do not make it count less."""

import numpy as np
import pytest

from cns_dask import CNS, neighbor_graph
from cns_dask.inputs.modes import deepest_dip, kernel_density, within_modes
from cns_dask.inputs.scaling import scaling_of

RNG = np.random.default_rng(0)


def groups(n_rows, n_groups, distance, n_features=8):
    """Groups along the first feature."""
    y = RNG.integers(n_groups, size=n_rows)
    X = RNG.standard_normal((n_rows, n_features))
    X[:, 0] += distance * y
    return X, y


@pytest.mark.parametrize("draw", ["standard_normal", "random", "exponential", "lognormal", "standard_cauchy"])
@pytest.mark.parametrize("n_rows", [30, 300, 5000])
def test_features_with_one_mode_keep_their_deviation(draw, n_rows):
    np.testing.assert_array_equal(within_modes(getattr(RNG, draw)(size=(n_rows, 40))), 1)


@pytest.mark.parametrize(("n_groups", "distance"), [(2, 5), (3, 6), (5, 6), (10, 8)])
@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_the_spread_is_that_of_a_group(n_groups, distance, unit):
    X, _ = groups(3000, n_groups, distance)
    shares = within_modes(unit * X)
    assert shares[0] == pytest.approx(1 / X[:, 0].std(), rel=0.1)
    np.testing.assert_array_equal(shares[1:], 1)


@pytest.mark.parametrize(
    "values",
    [RNG.integers(0, 2, 500), RNG.integers(0, 40, 500), RNG.integers(0, 300, 5000), np.ones(500), np.r_[0.0, 1.0]],
)
def test_discrete_and_constant_features_keep_their_deviation(values):
    np.testing.assert_array_equal(within_modes(np.tile(values[:, None], (1, 4)).astype(float)), 1)


def test_rounded_values_are_no_modes():
    assert within_modes(np.round(RNG.standard_normal((5000, 4)), 1)).tolist() == [1, 1, 1, 1]


def test_shapes_keep_their_proportions():
    X, _ = groups(1000, 2, 10, n_features=3)
    np.testing.assert_array_equal(within_modes(X), 1)


def test_the_density_is_that_of_the_values():
    values = np.sort(RNG.standard_normal(20_000))
    density = kernel_density(values, 0.1, 0.05)
    at = values[0] + 0.05 * np.arange(len(density))
    np.testing.assert_allclose(density, np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi), atol=0.02)
    assert deepest_dip(values) == 0
    assert deepest_dip(np.sort(np.r_[values[:1000], values[:1000] + 10])) == 1000


def test_five_groups_in_one_of_eight_features_are_found():
    X, _ = groups(2000, 5, 6)
    model = CNS().fit(X)
    assert model.n_clusters_ == 5
    assert model.result_.scaling == "features are scaled to unit variance, 1 of 8 within their modes"
    assert scaling_of(X[:, 1:]).why == "features are scaled to unit variance"
    assert CNS(scale=True).fit(X).n_clusters_ == 1
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_copies_of_a_table_are_scaled_like_it():
    X, _ = groups(400, 3, 8)
    once, often = scaling_of(X), scaling_of(np.tile(X, (12, 1)))
    assert once.why == often.why
    np.testing.assert_allclose(once.within_modes, often.within_modes)


def test_a_graph_is_followed():
    X, _ = groups(600, 3, 8)
    whole = CNS().fit(X)
    for graph in (neighbor_graph(X, 30, scale="auto"), whole.result_.graph):
        assert graph.preprocessing.scale == "auto"
        model = CNS().fit(X, graph=graph)
        np.testing.assert_array_equal(model.labels_, whole.labels_)
        np.testing.assert_array_equal(model.predict(X), whole.labels_)
