"""Profiles of clusters against pandas and NumPy, whatever the chunks."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest

from cns_dask.results import profile
from cns_dask.results.profile import LARGEST_EFFECT, LEVELS, profile_rows


def rows_and_labels(n=3000, d=4, K=3, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, K, n)
    return rng.normal(labels[:, None] * np.arange(d), 1 + np.arange(d), (n, d)) + 1e6, labels


def profiled(rows, labels, K, chunk=700, **options):
    lazy = da.from_array(rows, chunks=(chunk, -1))
    return profile_rows(lazy, da.from_array(labels, chunks=311), K, **options)


def cohens_d(here, rest):
    spread = here.var(ddof=1) * (len(here) - 1) + rest.var(ddof=1) * (len(rest) - 1)
    return (here.mean() - rest.mean()) / np.sqrt(spread / (len(here) + len(rest) - 2))


def test_moments_and_quantiles_are_those_of_pandas():
    rows, labels = rows_and_labels()
    ours = profiled(rows, labels, 3, features=list("abcd"))
    groups = pd.DataFrame(rows, columns=list("abcd")).groupby(labels)
    np.testing.assert_allclose(ours.mean, groups.mean(), rtol=1e-12)
    np.testing.assert_allclose(ours.std, groups.std(ddof=0), rtol=1e-9)
    for at, level in enumerate(LEVELS):
        np.testing.assert_allclose(ours.quantiles[:, at], groups.quantile(level), rtol=1e-12)
    assert ours.sizes.tolist() == groups.size().tolist()
    assert ours.features == ("a", "b", "c", "d")


def test_effects_are_cohens_d_against_the_rest():
    rows, labels = rows_and_labels()
    ours = profiled(rows, labels, 3)
    expected = [[cohens_d(rows[labels == K, f], rows[labels != K, f]) for f in range(4)] for K in range(3)]
    np.testing.assert_allclose(ours.effect, expected, atol=1e-8)


def test_large_clusters_have_quantiles_of_the_same_sampled_rows_for_any_chunks(monkeypatch):
    monkeypatch.setattr(profile, "MOST_SAMPLED", 400)
    rows, labels = rows_and_labels(6000)
    first, second = profiled(rows, labels, 3, chunk=6000), profiled(rows, labels, 3, chunk=217)
    np.testing.assert_array_equal(first.quantiles, second.quantiles)
    np.testing.assert_allclose(first.std, second.std, rtol=1e-9)
    np.testing.assert_allclose(first.effect, second.effect, atol=1e-8)
    exact = np.quantile(rows[labels == 2], LEVELS, axis=0)
    assert (first.quantiles[2] != exact).any()
    assert np.abs(first.quantiles[2] - exact).max() < 0.25 * rows[labels == 2].std(axis=0).max()


def test_chunks_are_summed_in_steps(monkeypatch):
    rows, labels = rows_and_labels()
    whole = profiled(rows, labels, 3, chunk=3000)
    monkeypatch.setattr(profile, "STEP_BYTES", 50 * 4 * 8)
    stepped = profiled(rows, labels, 3, chunk=3000)
    np.testing.assert_array_equal(whole.quantiles, stepped.quantiles)
    np.testing.assert_allclose(whole.std, stepped.std, rtol=1e-9)


def test_what_a_part_keeps_is_bounded_for_many_clusters_and_features():
    K, d = 60, 500
    rows = np.zeros((20_000, d))
    labels = np.arange(20_000) % K
    kept = profile.SAMPLE_BYTES // (8 * K * d)
    part = profile.profile_block(rows, labels, 0, np.arange(K), kept)
    assert part.rows.nbytes <= profile.SAMPLE_BYTES
    assert (np.bincount(part.labels) == kept).all()


def test_rows_of_no_cluster_are_left_out():
    rows, labels = rows_and_labels()
    labels[::3] = np.array([-1, -3, -5])[np.arange(1000) % 3]
    ours = profiled(rows, labels, 3)
    kept = labels >= 0
    np.testing.assert_allclose(ours.mean, pd.DataFrame(rows[kept]).groupby(labels[kept]).mean(), rtol=1e-12)
    assert ours.sizes.sum() == kept.sum()


def test_clusters_may_have_other_numbers():
    rows, labels = rows_and_labels()
    ours = profiled(rows, np.array([2, 7, 9])[labels], 3, clusters=[2, 7, 9])
    assert ours.clusters == (2, 7, 9)
    np.testing.assert_array_equal(ours.mean, profiled(rows, labels, 3).mean)


def test_missing_and_infinite_values_are_left_out_of_their_feature_only():
    rows, labels = rows_and_labels()
    rows[::5, 1], rows[1::5, 2] = np.nan, np.inf
    ours = profiled(rows, labels, 3)
    frame = pd.DataFrame(rows).replace(np.inf, np.nan).groupby(labels)
    np.testing.assert_allclose(ours.mean, frame.mean(), rtol=1e-12)
    np.testing.assert_allclose(ours.std, frame.std(ddof=0), rtol=1e-9)
    np.testing.assert_allclose(ours.quantiles[:, 2], frame.quantile(0.5), rtol=1e-12)
    assert np.isfinite(ours.effect).all()


def test_features_that_do_not_vary_have_no_effect_and_separated_ones_a_finite_one():
    labels = np.repeat([0, 1], 50)
    rows = np.stack([np.full(100, 0.1), labels * 1.0, np.full(100, 1e300)], axis=1)
    effect = profiled(rows, labels, 2, chunk=33).effect
    assert effect[0].tolist() == [0, -LARGEST_EFFECT, 0]
    assert effect[1].tolist() == [0, LARGEST_EFFECT, 0]


def test_clusters_without_rows_and_single_clusters():
    rows, labels = rows_and_labels()
    ours = profiled(rows, labels, 4)
    assert ours.sizes[3] == 0
    assert np.isnan(ours.mean[3]).all()
    assert np.isnan(ours.quantiles[3]).all()
    assert (ours.effect[3] == 0).all()
    assert (profiled(rows, np.zeros_like(labels), 1).effect == 0).all()


def test_as_a_dataset():
    rows, labels = rows_and_labels()
    ours = profiled(rows, labels, 3, features=["length", "width", "height", "price"])
    dataset = ours.to_xarray()
    assert dict(dataset.sizes) == {"cluster": 3, "feature": 4, "quantile": 5}
    assert float(dataset["quantiles"].sel(cluster=1, feature="width", quantile=0.5)) == ours.quantiles[1, 2, 1]


def test_without_xarray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "xarray", None)
    ours = profiled(*rows_and_labels(100), 3)
    with pytest.raises(Exception, match=r"pip install 'cns_dask\[xarray\]'"):
        ours.to_xarray()
