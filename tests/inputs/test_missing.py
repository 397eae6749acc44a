"""Rows that cannot be clustered."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN

from cns_dask import CNS, open_result
from cns_dask.errors import InvalidDataError
from cns_dask.inputs.missing import CLUSTERED, clustered_numbers, clustered_rows, row_codes
from cns_dask.results.skipped import with_skipped


def test_codes_are_those_of_hdbscan(blobs):
    X = blobs[:100].copy()
    X[3, 1], X[7, 0], X[9, 2], X[9, 3] = np.nan, np.inf, -np.inf, np.nan
    theirs = HDBSCAN(copy=True).fit(X).labels_
    codes = row_codes(X)
    for row in (3, 7, 9):
        assert codes[row] == theirs[row]
    assert (codes[np.delete(np.arange(100), [3, 7, 9])] == CLUSTERED).all()


@settings(max_examples=30)
@given(bad=st.lists(st.booleans(), min_size=1, max_size=30), chunk=st.integers(1, 12))
def test_rows_are_left_out_and_put_back(bad, chunk):
    bad = np.array(bad)
    X = np.where(bad[:, None], np.nan, np.arange(2.0 * len(bad)).reshape(-1, 2))
    lazy = da.from_array(X, chunks=(chunk, 2))
    counts = tuple(int((~bad[i : i + chunk]).sum()) for i in range(0, len(bad), chunk))
    codes = lazy.map_blocks(row_codes, drop_axis=1, dtype=np.int8)
    if bad.all():
        return
    with dask.config.set(scheduler="synchronous"):
        kept, numbers = dask.compute(clustered_rows(lazy, counts), clustered_numbers(codes, counts))
        np.testing.assert_array_equal(kept, X[~bad])
        np.testing.assert_array_equal(numbers, np.flatnonzero(~bad))
        P = np.random.default_rng(0).random((len(kept), 3)) / 3
        whole = with_skipped(da.from_array(P, chunks=(5, 2)), None, 3, codes, counts)
        labels, memberships, confidence = dask.compute(whole.labels, whole.memberships, whole.confidence)
    np.testing.assert_array_equal(labels[~bad], P.argmax(axis=1))
    assert (labels[bad] == -3).all()
    assert np.isnan(memberships[bad]).all()
    np.testing.assert_allclose(memberships[~bad].sum(axis=1), 1)
    assert (confidence[bad] == 0).all()


@pytest.mark.parametrize("form", ["memory", "dask", "masked", "chunks without a good row", "cells"])
def test_the_rest_is_clustered_as_if_they_were_not_there(blobs, tmp_path, form):
    X = blobs.copy()
    rows = [0, 5, 17, 300, 599] if form != "chunks without a good row" else list(range(150, 301))
    X[rows] = np.nan
    X[rows[1], 2] = np.inf
    X[rows[2]] = [1, np.inf, 2, 3, -np.inf]
    kept = np.delete(np.arange(600), rows)
    source = X
    if form in {"dask", "chunks without a good row"}:
        source = da.from_array(X, chunks=(50, 5))
    elif form == "masked":
        source = np.ma.masked_invalid(X)
    method = "cells" if form == "cells" else "auto"
    model = CNS(missing="skip", method=method).fit(source, out=tmp_path / "r.zarr")
    clean = CNS(method=method).fit(X[kept])
    labels, memberships, confidence = dask.compute(model.labels_, model.memberships_, model.confidence_)
    np.testing.assert_array_equal(labels[kept], clean.labels_)
    np.testing.assert_allclose(memberships[kept], clean.memberships_, atol=1e-9)
    np.testing.assert_array_equal(labels[rows], np.where(np.arange(len(rows)) == 2, -3 if form == "masked" else -2, -3))
    assert np.isnan(memberships[rows]).all()
    assert (confidence[rows] == 0).all()
    np.testing.assert_array_equal(model.representatives_, kept[clean.representatives_])  # numbers of the input
    result = open_result(tmp_path / "r.zarr")
    assert (result.n_rows, result.n_skipped) == (600, len(rows))
    np.testing.assert_array_equal(result.rows.compute(), kept)
    assert set(result.picks.ravel()) <= {-1, *kept.tolist()}
    assert result.sizes().sum() == len(kept)
    np.testing.assert_array_equal(result.at(2).labels.compute()[kept], clean.result_.at(2).labels.compute())
    with xarray.open_zarr(tmp_path / "r.zarr", consolidated=False) as opened:
        assert opened.sizes["row"] == 600
        assert opened.sizes["kept"] == len(kept)
    np.testing.assert_array_equal(model.predict(source), labels)
    assert np.isnan(np.asarray(model.predict_proba(source))[rows]).all()


def test_without_bad_rows_skip_changes_nothing(blobs):
    skip, error = CNS(missing="skip").fit(blobs), CNS().fit(blobs)
    np.testing.assert_array_equal(skip.labels_, error.labels_)
    np.testing.assert_array_equal(skip.memberships_, error.memberships_)
    np.testing.assert_array_equal(skip.result_.rows.compute(), np.arange(600))
    assert skip.result_.n_skipped == 0


def test_too_few_rows_are_left(blobs):
    X = np.full((50, 3), np.nan)
    X[7] = 1
    with pytest.raises(InvalidDataError, match=r"At least 2 rows must have finite values only\. Got 1 of 50"):
        CNS(missing="skip").fit(X)
    graph = CNS().fit(blobs).result_.graph
    with pytest.raises(InvalidDataError, match=r"rows of a given graph must have finite values\. Got 1 row"):
        CNS(missing="skip").fit(np.vstack([blobs[:599], np.full((1, 5), np.inf)]), graph=graph)


def test_the_default_names_the_rows(blobs):
    X = blobs.copy()
    X[[4, 9], 1] = np.nan, np.inf
    for source in (X, da.from_array(X, chunks=(7, 5)), np.ma.masked_invalid(X)):
        with pytest.raises(InvalidDataError, match=r"Got NaN or infinity in 2 row\(s\): 4, 9"):
            CNS().fit(source)
