import pickle

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

from cns_dask.errors import DataNotFoundError, InvalidDataError
from cns_dask.inputs.data import open_data

X = np.arange(24.0).reshape(8, 3)


def stored(tmp_path, form):
    if form == "npy":
        np.save(tmp_path / "x.npy", X)
        return tmp_path / "x.npy"
    path = tmp_path / "x.zarr"
    shards = (4, 3) if form == "sharded zarr" else None
    zarr.create_array(str(path), shape=X.shape, chunks=(2, 3), shards=shards, dtype="f8")[...] = X
    return str(path)


@pytest.mark.parametrize("form", ["npy", "zarr", "sharded zarr"])
def test_paths_open_lazily(tmp_path, form):
    opened = open_data(stored(tmp_path, form)).X
    assert isinstance(opened, da.Array)
    np.testing.assert_array_equal(opened.compute(), X)
    if form == "sharded zarr":
        assert opened.chunks[0] == (4, 4)


def test_column_chunks_are_merged_and_unknown_sizes_resolved():
    array = da.from_array(X, chunks=(2, 1))
    unknown = array[array[:, 0] > 5]
    opened = open_data(unknown).X
    assert opened.chunks == ((2, 2, 2), (3,))
    np.testing.assert_array_equal(opened.compute(), X[2:])


def test_a_url_of_a_zarr_array_opens(tmp_path):
    np.testing.assert_array_equal(open_data(f"file://{stored(tmp_path, 'zarr')}").X.compute(), X)


def test_a_npy_file_is_read_by_the_tasks_and_does_not_travel_inside_the_graph(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", np.ones((100_000, 10)))
    monkeypatch.chdir(tmp_path)
    opened = open_data("x.npy").X
    assert len(pickle.dumps(dict(opened.__dask_graph__()))) < 50_000
    monkeypatch.chdir("/")  # a worker has another working directory
    assert opened.sum().compute() == 10**6


def test_relative_paths_are_those_of_the_caller(tmp_path, monkeypatch):
    stored(tmp_path, "zarr")
    monkeypatch.chdir(tmp_path)
    opened = open_data("x.zarr").X
    monkeypatch.chdir("/")
    np.testing.assert_array_equal(opened.compute(), X)


def test_other_lazy_collections_are_refused():
    with pytest.raises(InvalidDataError, match="must be a Dask array or DataFrame. Got Delayed"):
        open_data(dask.delayed(X))


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float32", "bool", ">f8"])
def test_numbers_of_any_type_become_float64(dtype):
    for source in (X.astype(dtype), da.from_array(X.astype(dtype))):
        opened = open_data(source).X
        assert opened.dtype == np.float64
        np.testing.assert_array_equal(opened.compute(), X.astype(dtype).astype(float))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.empty((0, 3)), "0 sample"),
        (np.ones((1, 3)), "minimum of 2 is required"),
        (np.ones(5), "Expected 2D array"),
        (np.array([["a", "b"], ["c", "d"]]), "numeric"),
        (np.ones((4, 0)), "0 feature"),
        (da.ones((4, 0)), r"1 feature\. Got 4 row\(s\) and 0"),
        (da.ones((1, 3)), r"at least 2 row\(s\).*Got 1 row"),
        (da.ones(5), "two dimensions"),
        (da.from_array(np.array([["a", "b"], ["c", "d"]])), "real numbers. Got values of type <U1"),
        (da.ones((4, 2), dtype=complex), "real numbers"),
    ],
)
def test_bad_arrays(source, message):
    with pytest.raises(InvalidDataError, match=message):
        open_data(source)


def test_what_is_masked_is_missing():
    for values in (X, X.astype(int)):
        masked = np.ma.masked_array(values, mask=X > 20)
        for source in (masked, da.from_array(masked, chunks=(2, 3))):
            np.testing.assert_array_equal(open_data(source).X.compute(), np.where(X > 20, np.nan, values))


def test_empty_chunks_are_dropped():
    array = da.from_array(X, chunks=(2, 3))
    opened = open_data(array[da.from_array(X[:, 0] > 11, chunks=2)]).X
    assert opened.chunks == ((2, 2), (3,))


def test_bad_paths(tmp_path):
    with pytest.raises(DataNotFoundError, match="must exist"):
        open_data(tmp_path / "missing.npy")
    with pytest.raises(InvalidDataError, match="must be on a disk"):
        open_data("https://localhost/x.npy")
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(InvalidDataError, match="plain .npy"):
        open_data(tmp_path / "text.npy")
    (tmp_path / "empty.npy").touch()
    with pytest.raises(InvalidDataError, match="plain .npy"):
        open_data(tmp_path / "empty.npy")
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidDataError, match="must hold a Zarr array"):
        open_data(tmp_path / "folder")
    zarr.create_group(str(tmp_path / "group.zarr"))
    with pytest.raises(InvalidDataError, match="must hold a Zarr array"):
        open_data(tmp_path / "group.zarr")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidDataError, match="plain .npy"):
        open_data(tmp_path / "objects.npy")
