import numpy as np
import pytest
from generators import mixture

from cns_dask.errors import ApproximateAxesWarning
from cns_dask.inputs import preprocess
from cns_dask.pipeline import fit
from cns_dask.results.quality import quality_in_words
from cns_dask.settings import Settings

FIXED = {"n_neighbors": (4, 8), "lam": 0.1}


def test_what_is_exact_and_complete_is_said(blobs):
    neighbors, candidates, absorption = quality_in_words(fit(blobs, Settings(**FIXED)))
    assert neighbors == "Neighbours: exact."
    assert candidates.startswith("Candidates: all local maxima, ")
    assert absorption.endswith("so rounding cannot change the choice.")


def test_what_was_capped_is_said_with_how_many_there_were(blobs):
    for selection in ("auto", "paper"):
        result = fit(blobs, Settings(**FIXED, max_candidates=9, selection=selection))
        found = result.details["n_maxima"]["4"]
        kept = result.details["n_candidates"]["4"]
        assert kept <= 9 < found
        assert f"Candidates: {kept} of {found} at k = 4" in quality_in_words(result)[1]


def test_a_loose_grid_is_said(blobs):
    result = fit(blobs, Settings(**FIXED, grid_tol=1e-2))
    assert "which may decide between near choices" in quality_in_words(result)[-1]


@pytest.fixture
def wide():
    """Five clusters in 60 features."""
    return mixture(800, 60, n_clusters=5, spread=3, seed=1)


def test_axes_are_said_to_be_exact_where_they_are(wide):
    result = fit(wide, Settings(**FIXED, max_components=10))
    assert quality_in_words(result)[1] == "Axes: 10 principal axes of 60 features, exact."


def test_axes_of_a_spectrum_that_falls_are_good_and_those_of_a_flat_one_warn(monkeypatch):
    """The stored error is that of the axes: what of the covariance times the axes leaves their span."""
    monkeypatch.setattr(preprocess, "FACTOR_BYTES", 0)
    rng = np.random.default_rng(0)
    flat = rng.standard_normal((900, 300))
    falling = flat / np.arange(1, 301)
    settings = Settings(**FIXED, max_components=20, scale=False)
    good = fit(falling, settings)
    assert good.transform.axes_error < 1e-3
    with pytest.warns(ApproximateAxesWarning, match=r"to a relative residual of 0\.\d\d: the variance hardly falls"):
        bad = fit(flat, settings)
    assert bad.transform.axes_error > 0.05
    axes, centred = bad.transform.components, flat - flat.mean(axis=0)
    product = centred.T @ (centred @ axes)
    inside = axes.T @ product
    expected = np.linalg.norm(product - axes @ inside) / np.linalg.norm(inside)
    assert bad.transform.axes_error == pytest.approx(expected, rel=1e-6)
    assert f"relative residual of {expected:.2g}" in quality_in_words(bad)[1]


def test_rows_that_no_walk_brings_to_a_cluster_are_counted():
    """Three groups that exchange no walks, of which the paper's two clusters can represent two."""
    rng = np.random.default_rng(0)
    groups = np.repeat([[0.0, 0.0], [1000.0, 0.0], [0.0, 1000.0]], 50, axis=0) + rng.standard_normal((150, 2))
    result = fit(groups, Settings(n_neighbors=8, lam=0.1, n_clusters=2, selection="paper"))
    assert result.details["n_unreached"] == 50
    assert quality_in_words(result)[-1] == "Reach: 50 rows (33.3%) prefer no cluster: no walk reaches any."
