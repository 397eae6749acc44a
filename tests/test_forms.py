"""The same values in every form: the same clusters, from Python and from the command line."""

import warnings

import anndata
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr
from typer.testing import CliRunner

from cns_dask import CNS, open_data, open_result
from cns_dask.cli.commands import app
from cns_dask.errors import InvalidSettingError

NAMES = list("abcde")
SHAPE = (20, 30)  # of the rows of a cube


def table(X):
    """A table with a string index, and a column that is no feature."""
    index = pd.Index([f"row {number}" for number in range(len(X))], name="id")
    return pd.DataFrame(X, columns=NAMES, index=index).assign(note="x")


def saved_npy(X, folder):
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def saved_zarr(X, folder):
    zarr.create_array(str(folder / "x.zarr"), shape=X.shape, chunks=(100, 5), dtype="f8")[...] = X
    return folder / "x.zarr"


def saved_group(X, folder):
    group = zarr.create_group(str(folder / "group.zarr"))
    group.create_array("night/x", shape=X.shape, chunks=(100, 5), dtype="f8")[...] = X
    return folder / "group.zarr"


def saved_parquet(X, folder):
    dd.from_pandas(table(X), npartitions=5, sort=False).to_parquet(folder / "x.parquet")
    return folder / "x.parquet"


def saved_csv(X, folder):
    for number, part in enumerate(np.array_split(X, 3)):
        table(part).to_csv(folder / f"x-{number}.csv")
    return folder


def cube(X):
    locations = {"lat": np.linspace(-1, 1, SHAPE[0]), "lon": np.arange(SHAPE[1])}
    values = X.reshape(*SHAPE, 5).transpose(2, 0, 1)
    return xr.DataArray(values, dims=("time", "lat", "lon"), coords={**locations, "time": np.arange(5)}, name="heat")


def saved_cube(X, folder):
    cube(X).to_dataset().to_zarr(folder / "cube.zarr", consolidated=False)
    return folder / "cube.zarr"


def variables(X):
    """The same as a data set whose variables are the features."""
    return xr.Dataset({name: cube(X).isel(time=at, drop=True) for at, name in enumerate(NAMES)})


def saved_variables(X, folder):
    variables(X).assign(day=("lat", np.arange(SHAPE[0]))).to_zarr(folder / "variables.zarr", consolidated=False)
    return folder / "variables.zarr"


def cells(X, sparse=False):
    names = [f"cell {number}" for number in range(len(X))]
    found = anndata.AnnData(sp.csr_matrix(X) if sparse else np.zeros((len(X), 2)), obs=pd.DataFrame(index=names))
    found.obsm["X_pca"] = X
    return found


def saved_h5ad(X, folder, **options):
    cells(X, **options).write_h5ad(folder / "x.h5ad")
    return folder / "x.h5ad"


def saved_cells(X, folder):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This setting will be removed", DeprecationWarning)  # of anndata 0.13
        with anndata.settings.override(zarr_write_format=2):
            anndata.io.write_elem(zarr.open_group(str(folder / "cells.zarr"), mode="w", zarr_format=2), "/", cells(X))
    return folder / "cells.zarr"


def saved_npz(X, folder):
    sp.save_npz(folder / "x.npz", sp.csr_matrix(X))
    return folder / "x.npz"


def memory_map(X, folder):
    return np.load(saved_npy(X, folder), mmap_mode="r")


def unknown_chunks(X, _):
    return dd.from_pandas(pd.DataFrame(X), npartitions=3).to_dask_array()


def own_types(X, _):
    """Nullable and Arrow-backed columns."""
    frame = table(X)
    return frame.astype(dict.fromkeys("ab", "Float64") | dict.fromkeys("cd", "double[pyarrow]"))


ALL, PCA = {"columns": NAMES}, {"component": "obsm/X_pca"}
#: Form -> how it is made in Python, and its options; how it is stored for the command line, and the options there.
FORMS = {
    "NumPy array": (lambda X, _: X, {}, saved_npy, ""),
    "memory map": (memory_map, {}, saved_npy, ""),
    "lists": (lambda X, _: X.tolist(), {}, saved_npy, ""),
    "masked array": (lambda X, _: np.ma.masked_invalid(X), {}, saved_npy, ""),
    ".npy file": (saved_npy, {}, saved_npy, ""),
    "Dask array": (lambda X, _: da.from_array(X, chunks=(130, 2)), {}, saved_zarr, ""),
    "Dask array of unknown chunks": (unknown_chunks, {}, saved_zarr, ""),
    "pandas DataFrame": (lambda X, _: table(X), ALL, saved_parquet, "--columns a,b,c,d,e"),
    "nullable and Arrow columns": (own_types, ALL, saved_parquet, "--columns a,b,c,d,e"),
    "Dask DataFrame": (
        lambda X, _: dd.from_pandas(table(X), npartitions=4, sort=False), ALL, saved_parquet, "--columns a,b,c,d,e"
    ),
    "Parquet folder": (saved_parquet, ALL, saved_parquet, "--columns a,b,c,d,e"),
    "Parquet glob": (
        lambda X, at: f"{saved_parquet(X, at)}/*.parquet", ALL,
        lambda X, at: f"{saved_parquet(X, at)}/part.*.parquet", "--columns a,b,c,d,e",
    ),
    "Parquet URL": (
        lambda X, at: f"file://{saved_parquet(X, at)}", ALL,
        lambda X, at: f"file://{saved_parquet(X, at)}", "--columns a,b,c,d,e",
    ),
    "CSV glob": (
        lambda X, at: f"{saved_csv(X, at)}/x-*.csv", ALL, lambda X, at: f"{saved_csv(X, at)}/x-?.csv",
        "--columns a,b,c,d,e",
    ),
    "Zarr path": (saved_zarr, {}, saved_zarr, ""),
    "Zarr array": (lambda X, at: zarr.open_array(str(saved_zarr(X, at))), {}, saved_zarr, "--columns 0,1,2,3,4"),
    "Zarr group": (
        lambda X, at: zarr.open_group(str(saved_group(X, at))), {"component": "night/x"},
        saved_group, "--component night/x",
    ),
    "DataArray": (lambda X, _: cube(X), {"features": "time"}, saved_cube, "--features time"),
    "lazy DataArray": (
        lambda X, _: cube(X).chunk({"lat": 7, "time": 2}), {"features": "time"}, saved_cube, "--features time"
    ),
    "Dataset": (lambda X, _: variables(X), {}, saved_variables, "--columns a,b,c,d,e"),
    "stored Dataset": (saved_variables, ALL, saved_variables, "--columns a,b,c,d,e"),
    "AnnData": (lambda X, _: cells(X), PCA, saved_h5ad, "--component obsm/X_pca"),
    "sparse AnnData": (lambda X, _: cells(X, sparse=True), {}, lambda X, at: saved_h5ad(X, at, sparse=True), ""),
    "AnnData in .zarr": (saved_cells, PCA, saved_cells, "--component obsm/X_pca"),
    "SciPy sparse matrix": (lambda X, _: sp.csr_matrix(X), {}, saved_npz, ""),
    "SciPy sparse array": (lambda X, _: sp.coo_array(X), {}, saved_npz, ""),
    "Dask array of sparse blocks": (
        lambda X, _: da.from_array(X, chunks=(90, 5)).map_blocks(sp.csr_array), {}, saved_npz, ""
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def reference(blobs):
    return CNS(scale=True).fit(blobs)


@pytest.fixture(scope="module")
def seen():
    return set()


@pytest.fixture(scope="module")
def new(blobs):
    return blobs + 0.2 * np.random.default_rng(1).standard_normal(blobs.shape)


def plain(values):
    return np.asarray(values).ravel()


@pytest.mark.parametrize("form", FORMS)
def test_fit_predict_and_command_line_agree_with_numpy(form, reference, blobs, new, seen, tmp_path):
    make, options, store, arguments = FORMS[form]
    folders = {name: tmp_path / name for name in ("fit", "predict", "cli", "new")}
    for folder in folders.values():
        folder.mkdir()
    model = CNS(scale=True).fit(make(blobs, folders["fit"]), **options)
    np.testing.assert_array_equal(plain(model.labels_), reference.labels_)
    np.testing.assert_array_equal(plain(model.confidence_), reference.confidence_)
    assert np.asarray(model.memberships_).reshape(600, -1).tolist() == reference.memberships_.tolist()
    predicted = model.predict(make(new, folders["predict"]))
    np.testing.assert_array_equal(plain(predicted), reference.predict(new))

    def run(*words):
        done = CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)
        assert done.exit_code == 0, done.output

    if (store, arguments) in seen:  # other forms are stored just so
        return
    seen.add((store, arguments))
    run("fit", store(blobs, folders["cli"]), *arguments.split(), "--scale", "--out", tmp_path / "fit.zarr")
    np.testing.assert_array_equal(open_result(tmp_path / "fit.zarr").labels.compute(), reference.labels_)
    run("predict", tmp_path / "fit.zarr", store(new, folders["new"]), "--out", tmp_path / "new.zarr")
    labels = zarr.open_array(str(tmp_path / "new.zarr" / "labels"))[...]
    np.testing.assert_array_equal(labels, reference.predict(new))


def test_many_sparse_columns_give_the_labels_of_the_same_dense_ones():
    rng = np.random.default_rng(0)
    topic = rng.integers(3, size=500)
    words = sp.csr_matrix(rng.poisson(0.05 + 0.6 * (np.arange(240) // 80 == topic[:, None]))).astype(float)
    dense = CNS().fit(words.toarray())
    for source in (words, da.from_array(words.toarray(), chunks=(90, 240)).map_blocks(sp.csr_array)):
        np.testing.assert_array_equal(plain(CNS().fit(source).labels_), dense.labels_)


def test_a_model_of_named_columns_takes_stored_arrays_of_just_these(blobs, tmp_path):
    model = CNS(n_neighbors=12, lam=0.1).fit(table(blobs), columns=NAMES)
    for path in (saved_zarr(blobs, tmp_path), saved_npy(blobs, tmp_path)):
        with pytest.warns(UserWarning, match="does not have valid feature names"):
            np.testing.assert_array_equal(model.predict(path).compute(), model.labels_)
    with pytest.raises(InvalidSettingError, match="must be positions from 0 to 4"):
        open_data(tmp_path / "x.zarr", columns=NAMES)


def test_lazy_forms_give_lazy_answers(blobs, tmp_path):
    lazy = {name for name in FORMS if _is_lazy(name, blobs, tmp_path)}
    assert lazy == {
        ".npy file", "Dask array", "Dask array of unknown chunks", "Dask DataFrame", "Parquet folder", "Parquet glob",
        "Parquet URL", "CSV glob", "Zarr path", "Zarr array", "Zarr group", "lazy DataArray", "stored Dataset",
        "AnnData in .zarr", "Dask array of sparse blocks",
    }  # fmt: skip


def _is_lazy(form, X, folder):
    make, options, *_ = FORMS[form]
    at = folder / form.replace(" ", "-")
    at.mkdir()
    data = open_data(make(X, at), **options)
    return dask.is_dask_collection(data.wrap(data.X[:, 0], "first"))
