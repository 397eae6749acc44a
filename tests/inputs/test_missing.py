"""Rows that cannot be clustered: found, and left out."""

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import HDBSCAN

from cns_dask import CNS
from cns_dask.errors import InvalidDataError
from cns_dask.inputs.missing import CLUSTERED, clustered_numbers, clustered_rows, row_codes


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
def test_rows_are_left_out_and_keep_their_numbers(bad, chunk):
    bad = np.array(bad)
    X = np.where(bad[:, None], np.nan, np.arange(2.0 * len(bad)).reshape(-1, 2))
    lazy = da.from_array(X, chunks=(chunk, 2))
    counts = tuple(int((~bad[i : i + chunk]).sum()) for i in range(0, len(bad), chunk))
    codes = lazy.map_blocks(row_codes, drop_axis=1, dtype=np.int8)
    if bad.all():
        return
    rows = clustered_rows(lazy, counts)
    assert rows.chunks[0] == tuple(filter(None, counts))
    with dask.config.set(scheduler="synchronous"):
        rows, numbers = dask.compute(rows, clustered_numbers(codes, counts))
    np.testing.assert_array_equal(rows, X[~bad])
    np.testing.assert_array_equal(numbers, np.flatnonzero(~bad))


def test_too_few_rows_are_left(blobs):
    X = np.full((50, 3), np.nan)
    X[7] = 1
    with pytest.raises(InvalidDataError, match=r"At least 2 rows must have finite values only\. Got 1 of 50"):
        CNS(missing="skip").fit(X)
    graph = CNS().fit(blobs).result_.graph
    message = r"There are NaN or infinite values in 1 row\(s\), which a given graph does not allow"
    with pytest.raises(InvalidDataError, match=message):
        CNS(missing="skip").fit(np.vstack([blobs[:599], np.full((1, 5), np.inf)]), graph=graph)


def test_the_default_names_the_rows(blobs):
    X = blobs.copy()
    X[[4, 9], 1] = np.nan, np.inf
    for source in (X, da.from_array(X, chunks=(7, 5)), np.ma.masked_invalid(X)):
        with pytest.raises(InvalidDataError, match=r"There are NaN or infinite values in 2 row\(s\): 4, 9\."):
            CNS().fit(source)
