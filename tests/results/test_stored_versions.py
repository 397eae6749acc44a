"""A result that an earlier version has stored: see tests/fixtures/make_result.py."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import zarr

from cns_dask import open_result
from cns_dask.errors import NotAResultError
from cns_dask.results.predict import predict
from cns_dask.storage.layout import FORMAT_VERSION

STORED = Path(__file__).parents[1] / "fixtures" / f"result-format-{FORMAT_VERSION}"


@pytest.fixture
def path(tmp_path):
    shutil.unpack_archive(f"{STORED}.zarr.zip", tmp_path / "r.zarr")
    return tmp_path / "r.zarr"


@pytest.fixture(scope="module")
def expected():
    return dict(np.load(f"{STORED}.npz"))


def check(result, expected):
    np.testing.assert_array_equal(result.labels.compute(), expected["labels"])
    np.testing.assert_array_equal(result.memberships.compute(), expected["memberships"])
    predicted = predict(result, expected["rows"])
    np.testing.assert_array_equal(predicted.labels.compute(), expected["labels"])
    np.testing.assert_array_equal(predicted.memberships.compute(), expected["memberships"])
    np.testing.assert_array_equal(result.at(2).labels.compute(), expected["two"])


def test_a_stored_result_is_read(path, expected):
    check(open_result(path), expected)
    assert (open_result(path).n_rows, open_result(path).choice.n_clusters) == (150, 3)


def test_what_a_newer_version_of_the_same_format_adds_is_ignored(path, expected):
    for folder in (path, path / "graph"):
        zarr.open_group(str(folder)).attrs["new"] = {"unknown": 1}
    attributes = zarr.open_group(str(path)).attrs
    for name in ("settings", "choice", "selection"):
        attributes[name] = {**attributes[name], "new": "unknown"}
    zarr.create_array(str(path / "new"), shape=(3,), dtype="f8")
    check(open_result(path), expected)


@pytest.mark.parametrize("version", [FORMAT_VERSION - 1, FORMAT_VERSION + 1])
def test_another_format_is_refused_with_both_numbers(path, version):
    zarr.open_group(str(path)).attrs["format_version"] = version
    expected = rf"has format version {version}, and this version of cns_dask reads version {FORMAT_VERSION}\. Fit again"
    with pytest.raises(NotAResultError, match=expected):
        open_result(path)
