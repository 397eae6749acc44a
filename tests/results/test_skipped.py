"""Rows that were skipped: put back among the others, and marked as such."""

import dask
import dask.array as da
import numpy as np
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st

from cns_dask import CNS, open_result
from cns_dask.errors import InvalidDataError
from cns_dask.inputs.missing import row_codes
from cns_dask.pipeline import fit
from cns_dask.results.skipped import mark_skipped, with_skipped, with_skipped_block
from cns_dask.settings import Settings
from cns_dask.smoothing.memberships import Clustering, clustering_block


@settings(max_examples=30)
@given(bad=st.lists(st.booleans(), min_size=1, max_size=30), chunk=st.integers(1, 12))
def test_rows_are_put_back(bad, chunk):
    bad = np.array(bad)
    X = np.where(bad[:, None], np.nan, 1.0)
    counts = tuple(int((~bad[i : i + chunk]).sum()) for i in range(0, len(bad), chunk))
    codes = da.from_array(X, chunks=(chunk, 1)).map_blocks(row_codes, drop_axis=1, dtype=np.int8)
    if bad.all():
        return
    P = np.random.default_rng(0).random((int((~bad).sum()), 3)) / 3
    whole = with_skipped(da.from_array(P, chunks=(5, 2)), None, 3, codes, counts)
    assert whole.labels.chunks == codes.chunks
    with dask.config.set(scheduler="synchronous"):
        labels, memberships, confidence = dask.compute(whole.labels, whole.memberships, whole.confidence)
    np.testing.assert_array_equal(labels[~bad], P.argmax(axis=1))
    assert (labels[bad] == -3).all()
    assert np.isnan(memberships[bad]).all()
    np.testing.assert_allclose(memberships[~bad].sum(axis=1), 1)
    assert (confidence[bad] == 0).all()


def test_skipped_rows_have_their_code_as_label_and_no_membership():
    answers = Clustering(np.array([[0.7, 0.3], [0.5, 0.5], [0.2, 0.8]]), np.array([4, 4, 9]), np.array([0.4, 0.0, 0.6]))
    marked = mark_skipped(answers, np.array([0, -2, 0], np.int8))
    assert marked.labels.tolist() == [4, -2, 9]
    np.testing.assert_array_equal(marked.memberships, [[0.7, 0.3], [np.nan, np.nan], [0.2, 0.8]])
    assert marked.confidence.tolist() == [0.4, 0.0, 0.6]
    assert mark_skipped(answers, np.zeros(3, np.int8)) is answers


def test_a_block_takes_the_numbers_of_its_clusters():
    P = np.array([[0.5, 0.1], [0.1, 0.3]])
    block = with_skipped_block(np.array([-3, 0, 0, -2], np.int8), P, [8, 3], 2)
    assert block.labels.tolist() == [-3, 8, 3, -2]
    np.testing.assert_array_equal(block.memberships[1:3], clustering_block(P, [8, 3]).memberships)
    nothing = with_skipped_block(np.array([-3, -2], np.int8), None, [8, 3], 2)
    assert nothing.labels.tolist() == [-3, -2]
    assert np.isnan(nothing.memberships).all()
    assert nothing.memberships.shape == (2, 2)


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
        assert opened.sizes["clustered"] == len(kept)
    np.testing.assert_array_equal(model.predict(source), labels)
    assert np.isnan(np.asarray(model.predict_proba(source))[rows]).all()


def test_without_bad_rows_skip_changes_nothing(blobs):
    skip, error = CNS(missing="skip").fit(blobs), CNS().fit(blobs)
    np.testing.assert_array_equal(skip.labels_, error.labels_)
    np.testing.assert_array_equal(skip.memberships_, error.memberships_)
    np.testing.assert_array_equal(skip.result_.rows.compute(), np.arange(600))
    assert skip.result_.n_skipped == 0


def test_errors_name_rows_of_the_input_where_some_are_skipped():
    rng = np.random.default_rng(0)
    half = rng.standard_normal((40, 3))
    X = np.concatenate([np.full((5, 3), np.nan), half, -half, np.zeros((1, 3))])  # the last has no direction
    with pytest.raises(InvalidDataError, match=r"their norm is 0\): 85\."):
        fit(X, Settings(metric="cosine", missing="skip", scale=False))
