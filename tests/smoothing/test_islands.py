"""Small clusters beside a large one: log-concave data have none, skewed and curved data neither."""

import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.smoothing.islands import LEVELS, departure, tame_features, with_islands


def one_percent(n_rows, separation, n_features, seed=0):
    """Gaussians of 99 and 1 percent of the rows."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n_rows) < 0.01).astype(int)
    X = rng.standard_normal((n_rows, n_features))
    X[:, 0] += separation * y
    return X, y


def in_parts(rows, n_parts=12):
    """Cut rows into parts along a random line, with links between neighboring ones."""
    along = rows @ np.random.default_rng(1).standard_normal(rows.shape[1])
    parts = np.argsort(np.argsort(along)) * n_parts // len(rows)
    return parts, 100 * np.eye(n_parts) + np.eye(n_parts, k=1) + np.eye(n_parts, k=-1)


@pytest.mark.parametrize("kind", ["standard_normal", "random", "exponential"])
@pytest.mark.parametrize("n_features", [2, 8])
def test_log_concave_data_are_one_piece(kind, n_features):
    rng = np.random.default_rng(0)
    rows = (
        getattr(rng, kind)(size=(3000, n_features))
        if kind != "exponential"
        else rng.exponential(size=(3000, n_features))
    )
    parts, links = in_parts(rows)
    whole = np.zeros(12, int)
    np.testing.assert_array_equal(with_islands(rows, parts, links, whole), whole)


def test_a_shoulder_is_an_island_and_the_parts_of_the_body_are_not():
    X, y = one_percent(20_000, 5, 4, seed=1)
    parts, links = in_parts(X[y == 0], 6)
    of_rows = np.full(len(X), 6)
    of_rows[y == 0] = parts
    linked = np.zeros((7, 7))
    linked[:6, :6] = links
    linked[6, :6] = linked[:6, 6] = 1
    linked[6, 6] = 100
    assert with_islands(X, of_rows, linked, np.zeros(7, int)).tolist() == [0, 0, 0, 0, 0, 0, 1]
    groups = np.array([0, 0, 0, 0, 0, 0, 1])  # it is apart already
    np.testing.assert_array_equal(with_islands(X, of_rows, linked, groups), groups)


@pytest.mark.parametrize("n_arcs", [3, 6, 12])
def test_the_arcs_of_a_ring_are_no_islands(n_arcs):
    rng = np.random.default_rng(0)
    angle = rng.uniform(0, 2 * np.pi, 6000)
    rows = np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.05 * rng.standard_normal((6000, 2))
    parts = (angle / (2 * np.pi) * n_arcs).astype(int)
    links = 100 * np.eye(n_arcs) + sum(np.roll(np.eye(n_arcs), shift, axis=1) for shift in (1, -1))
    whole = np.zeros(n_arcs, int)
    np.testing.assert_array_equal(with_islands(rows, parts, links, whole), whole)


def test_a_ragged_border_between_clusters_is_no_island():
    rng = np.random.default_rng(0)
    y = np.arange(20_000) % 2
    X = rng.standard_normal((20_000, 2)) + np.c_[3.5 * y, 0 * y]
    side = np.where(X[:, 0] < 1.75 + 0.3 * np.sin(3 * X[:, 1]), 0, 2)
    at_border = np.abs(X[:, 0] - 1.6) < 0.15
    parts = np.where(at_border, 1, side)
    links = np.array([[900.0, 40, 0], [40, 50, 40], [0, 40, 900]])
    groups = np.array([0, 0, 1])
    np.testing.assert_array_equal(with_islands(X, parts, links, groups), groups)


def test_skewed_features_make_no_islands():
    rng = np.random.default_rng(0)
    X = rng.lognormal(size=(20_000, 5))
    assert CNS().fit(X).n_clusters_ == 1


def test_features_are_symmetric_whatever_their_direction():
    rng = np.random.default_rng(0)
    skewed = rng.lognormal(size=4000)
    rows = np.stack([skewed, -skewed, rng.standard_normal(4000), np.ones(4000)], axis=1)
    low, middle, high = np.quantile(tame_features(rows), [0.25, 0.5, 0.75], axis=0)
    assert (np.abs(low + high - 2 * middle)[:3] < 0.05 * (high - low)[:3]).all()
    np.testing.assert_array_equal(tame_features(rows)[:, 3], 1)


def test_a_departure_grows_with_the_rows():
    rng = np.random.default_rng(0)
    for n_rows, least in ((2000, 1), (20_000, LEVELS[-1])):
        body, island = rng.standard_normal(n_rows), 4 + rng.standard_normal(n_rows // 100)
        assert departure(np.concatenate([body, island]), 4.0) > least
        assert departure(body, 3.0) < LEVELS[-1]


def test_few_or_equal_values_have_no_departure():
    assert departure(np.zeros(7), 1.0) == 0
    assert departure(np.zeros(100), 0.0) == 0
    assert departure(np.zeros(100), 1.0) >= 0


@pytest.mark.parametrize(("separation", "n_features"), [(5, 2), (4, 10), (6, 10)])
def test_one_percent_of_the_rows_is_a_cluster(separation, n_features):
    X, y = one_percent(20_000, separation, n_features)
    model = CNS().fit(X)
    assert model.n_clusters_ == 2
    inside = y[model.labels_ == 1]
    assert inside.mean() > 0.5
    assert inside.sum() > 0.5 * y.sum()
