"""Rows in the plane."""

import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.results import coordinates
from cns_dask.results.coordinates import drawn_numbers, map_points, principal_plane


def test_principal_axes_are_those_of_the_scaled_rows():
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((500, 1)) @ [[1.0, 1, 1, 0]] + 0.1 * rng.standard_normal((500, 4))
    rows = rows * [1, 100, 0.01, 1] + 7
    points, names = principal_plane(rows)
    scaled = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    values, axes = np.linalg.eigh(scaled.T @ scaled)
    np.testing.assert_allclose(np.abs(points[:, 0]), np.abs(scaled @ axes[:, -1]), atol=1e-9)
    assert names[0] == f"principal axis 1 ({100 * values[-1] / values.sum():.0f} %)"
    np.testing.assert_allclose(principal_plane(rows[::-1])[0][::-1], points, atol=1e-9)


def test_missing_rows_and_single_features():
    rows = np.array([[1.0], [2.0], [np.nan], [4.0]])
    points, _ = principal_plane(rows)
    assert np.isnan(points[2, 0])
    assert (points[[0, 1, 3], 1] == 0).all()
    assert np.isnan(principal_plane(np.full((3, 2), np.nan))[0]).all()


@pytest.mark.parametrize("wanted", [1000, 10_000])
def test_drawn_rows_are_the_same_whatever_is_in_memory_at_once(wanted, monkeypatch):
    whole = drawn_numbers(100_000, wanted)
    monkeypatch.setattr(coordinates, "ROWS_AT_ONCE", 777)
    np.testing.assert_array_equal(drawn_numbers(100_000, wanted), whole)
    assert abs(len(whole) - wanted) < 4 * np.sqrt(wanted)


def test_stored_rows_know_their_numbers_where_others_were_skipped():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (150, 2)), rng.normal(20, 1, (150, 2))])
    X[::5, 0] = np.nan
    result = CNS(missing="skip").fit(X).result_
    found = map_points(result, None, None, None, 10**6, {})
    assert found.rows.tolist() == np.flatnonzero(np.isfinite(X[:, 0])).tolist()
    np.testing.assert_array_equal(found.labels, result.labels.compute()[found.rows])
