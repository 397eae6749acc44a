from dataclasses import fields

import numpy as np
import pytest

from cns_dask.errors import InvalidSettingError
from cns_dask.settings import Settings, choose_method


def test_grid_is_the_papers():
    grid = Settings().grid(1000)
    assert grid.ks == (6, 12, 18, 24)
    np.testing.assert_allclose(grid.lams, np.arange(1, 6) / np.sqrt(1000))
    assert grid.max_clusters == 30


@pytest.mark.parametrize(
    ("n_rows", "ks", "lams"), [(2, (1,), (2**-0.5,)), (3, (1, 2), (3**-0.5,)), (9, (2, 4, 6, 8), (1 / 3, 2 / 3))]
)
def test_grid_of_few_rows_leaves_out_what_is_not_allowed(n_rows, ks, lams):
    grid = Settings().grid(n_rows)
    assert grid.ks == ks
    np.testing.assert_allclose(grid.lams, lams)


def test_fixed_values_replace_the_grid():
    grid = Settings(n_neighbors=[12, 7], lam=0.25, n_clusters=40).grid(100)
    assert grid.ks == (7, 12)
    assert grid.lams == (0.25,)
    assert grid.max_clusters == 40


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metric", "manhattan"),
        ("n_neighbors", 0),
        ("n_neighbors", 2.5),
        ("n_neighbors", ()),
        ("lam", 0),
        ("lam", 1),
        ("lam", (0.1, 1.5)),
        ("lam", float("nan")),
        ("n_clusters", 0),
        ("n_clusters", True),
        ("k_multipliers", (0, 1)),
        ("lam_multipliers", "12"),
        ("max_clusters", -1),
        ("max_candidates", 0),
        ("scale", 1),
        ("max_components", 0),
        ("tol", 0),
        ("tol", 1e-15),
        ("random_state", -1),
        ("random_state", 0.5),
    ],
)
def test_every_range_has_one_message_form(name, value):
    with pytest.raises(InvalidSettingError, match=rf"^{name} must be .*\. Got .*\.$"):
        Settings(**{name: value})


def test_every_setting_has_a_range_and_a_help_text():
    for field in fields(Settings):
        words, is_allowed = field.metadata["allowed"]
        assert is_allowed(field.default)
        assert not is_allowed(object())
        assert words
        assert field.metadata["help"].endswith(".")


def test_auto_is_exact_for_few_rows_and_cells_for_many():
    assert [choose_method(n_rows) for n_rows in (20_000, 20_001)] == ["exact", "cells"]
    assert choose_method(10, "descent") == "descent"
    assert choose_method(500, exact_rows=400) == "cells"


def test_values_that_do_not_fit_the_data_name_both_numbers():
    with pytest.raises(InvalidSettingError, match=r"n_neighbors must be below the number of rows \(150\)\. Got 200\."):
        Settings(n_neighbors=200).grid(150)
    with pytest.raises(InvalidSettingError, match=r"number of rows \(150\)\. Got 151\."):
        Settings(n_clusters=151).grid(150)
    with pytest.raises(
        InvalidSettingError, match=r"min_cluster_size must be at most the number of rows \(150\)\. Got 151"
    ):
        Settings(min_cluster_size=151).grid(150)
    with pytest.raises(InvalidSettingError, match=r"n_rows must be an integer from 2 to \d+\. Got 0\."):
        Settings().grid(0)
    with pytest.raises(InvalidSettingError, match="k_multipliers"):
        Settings(k_multipliers=(50,)).grid(100)
    with pytest.raises(InvalidSettingError, match="lam_multipliers"):
        Settings(lam_multipliers=(20,)).grid(100)


def test_numpy_values_become_plain_ones():
    settings = Settings(n_neighbors=np.array([4, 5]), lam=np.float64(0.5), n_clusters=np.int32(2))
    assert settings.as_dict()["n_neighbors"] == (4, 5)
    assert type(settings.lam) is float
    assert type(settings.n_clusters) is int
