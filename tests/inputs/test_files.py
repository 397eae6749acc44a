import pickle

import dask.array as da
import fsspec
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import zarr
from tabular import NAMES

from cns_dask import CNS
from cns_dask.errors import DataNotFoundError, InvalidDataError, InvalidLocationError
from cns_dask.inputs.data import open_data
from cns_dask.inputs.files import files_of, has_ending, is_pattern, is_web, open_path

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
    path = stored(tmp_path, form)
    data = open_data(path)
    assert isinstance(data.X, da.Array)
    assert data.files == (str(path),)
    assert not data.in_memory
    np.testing.assert_array_equal(data.X.compute(), X)
    if form == "sharded zarr":
        assert data.X.chunks[0] == (4, 4)


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


def test_a_tilde_is_the_home_of_the_caller(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(stored(tmp_path, "npy").parent))
    assert open_data("~/x.npy").files == (str(tmp_path / "x.npy"),)


def test_sparse_files_keep_the_chosen_columns(tmp_path):
    sp.save_npz(tmp_path / "x.npz", sp.csr_matrix(X))
    data = open_data(tmp_path / "x.npz", columns=[2, 0])
    assert data.is_sparse
    assert isinstance(data.wrap(data.X[:, 0], "first"), da.Array)  # files give lazy answers
    np.testing.assert_array_equal(data.X.compute(), X[:, [2, 0]])


def test_bad_paths(tmp_path):
    with pytest.raises(DataNotFoundError, match="There are no data at .*missing.npy: nothing exists there"):
        open_data(tmp_path / "missing.npy")
    with pytest.raises(DataNotFoundError, match=r"No file matches the pattern .*x\[1\].npy"):
        open_data(tmp_path / "x[1].npy")
    with pytest.raises(InvalidDataError, match="is read from a disk only, not from https://localhost/x.npy"):
        open_data("https://localhost/x.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").touch()
    for name in ("text.npy", "empty.npy", "objects.npy"):
        with pytest.raises(InvalidDataError, match=f"{name} is not a plain .npy array"):
            open_data(tmp_path / name)
    np.savez(tmp_path / "dense.npz", X)
    (tmp_path / "text.npz").write_text("no array")
    for name in ("dense.npz", "text.npz"):
        with pytest.raises(InvalidDataError, match=f"{name} does not hold a SciPy sparse matrix"):
            open_data(tmp_path / name)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidDataError, match="folder does not open as a Zarr array"):
        open_data(tmp_path / "folder")
    zarr.create_group(str(tmp_path / "group.zarr"))
    with pytest.raises(InvalidDataError, match="group.zarr does not open as a Zarr array"):
        open_data(tmp_path / "group.zarr")


def test_arrays_of_a_group_are_named_when_none_is_chosen(tmp_path):
    group = zarr.create_group(str(tmp_path / "group.zarr"))
    group.create_array("night/x", shape=X.shape, chunks=(4, 3), dtype="f8")[...] = X
    np.testing.assert_array_equal(open_data(tmp_path / "group.zarr", component="night/x").X.compute(), X)
    for component in (None, "day/x"):
        with pytest.raises(InvalidDataError, match="as component; it has night/x"):
            open_data(tmp_path / "group.zarr", component=component)


def test_files_are_read_by_the_numbers_in_their_names(tmp_path):
    for number in (2, 10, 1):
        pd.DataFrame({"a": [number, number + 0.5]}).to_csv(tmp_path / f"x{number}.csv", index=False)
    assert open_data(tmp_path / "x*.csv").X.compute().ravel().tolist() == [1, 1.5, 2, 2.5, 10, 10.5]


def test_folders_of_folders_and_names_like_patterns(blobs, tmp_path, bucket):
    table = pd.DataFrame(blobs, columns=NAMES)
    for year in (1, 2):
        (tmp_path / "hive" / f"year={year}").mkdir(parents=True)
        table[300 * year - 300 : 300 * year].to_parquet(tmp_path / "hive" / f"year={year}" / "p.parquet")
    np.testing.assert_array_equal(open_data(tmp_path / "hive", columns=NAMES).X.compute(), blobs)
    (tmp_path / "run[1]").mkdir()
    table.to_parquet(tmp_path / "run[1]" / "p.parquet")
    assert open_data(tmp_path / "run[1]" / "p.parquet").X.shape == (600, 5)
    with fsspec.open(f"{bucket}/p1.parquet", "wb") as file:
        table.to_parquet(file)
    assert open_data(f"{bucket}/*.parquet").X.shape == (600, 5)


def test_a_pattern_that_matches_nothing(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"No file matches the pattern .*\*.csv"):
        open_data(tmp_path / "*.csv")
    with pytest.raises(DataNotFoundError, match=r"No file matches the pattern .*x.cs\*"):
        open_data(tmp_path / "x.cs*")


def test_a_pattern_may_stand_for_the_ending_too(tmp_path):
    pd.DataFrame({"a": [1.5, 2.5]}).to_csv(tmp_path / "x.csv", index=False)
    assert open_data(tmp_path / "x.cs*").X.compute().ravel().tolist() == [1.5, 2.5]
    assert has_ending(f"{tmp_path}/x*", (".csv",))


def test_an_empty_path_is_not_the_current_folder():
    for read in (open_data, open_path):
        with pytest.raises(DataNotFoundError, match="The path is empty"):
            read("")


def test_patterns_stand_for_files_in_natural_order(tmp_path):
    for name in ("x2.csv", "x10.csv", "x1.csv", "y1.csv"):
        (tmp_path / name).touch()
    assert files_of(f"{tmp_path}/x?*.csv") == tuple(f"{tmp_path}/x{number}.csv" for number in (1, 2, 10))
    assert files_of(f"{tmp_path}/y1.csv") == (f"{tmp_path}/y1.csv",)
    assert files_of("https://localhost/x*.csv") == ("https://localhost/x*.csv",)  # a server lists nothing
    assert is_pattern(f"{tmp_path}/[xy]1.csv")
    (tmp_path / "[xy]1.csv").touch()
    assert not is_pattern(f"{tmp_path}/[xy]1.csv")  # a file of that very name
    assert (is_web("http://localhost/x.csv"), is_web("s3://bucket/x.csv")) == (True, False)


def test_files_are_known_by_their_endings_and_folders_by_what_they_hold(tmp_path):
    assert has_ending("s3://bucket/x.parquet/", (".parquet",))
    assert not has_ending("s3://bucket/x.zarr", (".parquet",), folders=True)
    (tmp_path / "day" / "hour").mkdir(parents=True)
    assert not has_ending(str(tmp_path), (".parquet", ".pq"), folders=True)
    (tmp_path / "day" / "hour" / "x.parquet").touch()
    assert has_ending(str(tmp_path), (".parquet", ".pq"), folders=True)
    assert not has_ending(str(tmp_path), (".parquet", ".pq"))


def test_a_folder_is_no_npy_file_and_nobody_has_no_home(tmp_path):
    (tmp_path / "x.npy").mkdir()
    with pytest.raises(InvalidDataError, match=r"x\.npy is not a plain \.npy array"):
        open_data(tmp_path / "x.npy")
    with pytest.raises(InvalidLocationError, match="~nobody-here/x.npy is not a path of this system"):
        open_data("~nobody-here/x.npy")


@pytest.mark.parametrize("name", ["make.py", "notes", "table.xlsx", "x.zarr"])
def test_a_file_that_is_not_read_is_not_taken_for_zarr(tmp_path, name):
    (tmp_path / name).write_text("import numpy")
    for read in (open_data, lambda path: CNS().fit(graph=path)):
        with pytest.raises(InvalidDataError, match="no such file is read here. Files are read if they end in") as said:
            read(str(tmp_path / name))
        assert "Zarr array" not in str(said.value)
