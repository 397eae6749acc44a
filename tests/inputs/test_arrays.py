import itertools

import dask
import dask.array as da
import dask.bag
import numpy as np
import pytest
import scipy.sparse as sp
import xarray as xr
import zarr

from cns_dask.errors import InvalidDataError, InvalidSettingError, InvalidTypeError
from cns_dask.inputs.arrays import from_dask, from_sparse, open_matrix
from cns_dask.inputs.data import open_data

X = np.arange(24.0).reshape(8, 3)


def test_other_lazy_collections_are_refused():
    with pytest.raises(InvalidDataError, match="must be a Dask array or DataFrame, not Delayed"):
        open_data(dask.delayed(X))
    with pytest.raises(InvalidDataError, match="must be a Dask array or DataFrame, not Bag"):
        open_data(dask.bag.from_sequence(X.tolist()))


BAD_CHUNKS = [
    (lambda block: block[:1], r"has shape \(1, 3\) instead of \(2, 3\).*must not change between passes"),
    (lambda block: block[:, :2], r"has shape \(2, 2\) instead of \(2, 3\)"),
    (lambda block: np.hstack([block, block]), r"has shape \(2, 6\) instead of \(2, 3\)"),
    (lambda block: block[:, 0], r"has shape \(2,\) instead of \(2, 3\)"),
    (lambda block: block.astype(object), "is of type object: it must be an array of numbers"),
    (lambda block: block.astype(str), "is of type <U32: it must be an array of numbers"),
    (lambda block: None, "is of type <class 'NoneType'>: it must be an array of numbers"),
]


@pytest.mark.parametrize(("function", "message"), BAD_CHUNKS)
@pytest.mark.parametrize("columns", [None, [0, 1]])
def test_chunks_that_are_not_as_declared_are_refused(function, message, columns):
    array = da.from_array(X, chunks=(2, 3)).map_blocks(function, dtype=float, meta=np.empty((0, 0)))
    labeled = xr.DataArray(array, dims=("row", "feature"), coords={"feature": [0, 1, 2]})
    for source in (array, labeled):
        with pytest.raises(InvalidDataError, match=f"A chunk of the data {message}"):
            open_data(source, columns=columns).X.compute()


@pytest.mark.parametrize("function", [lambda block: block[:, :2], lambda block: block[:, 0]])
def test_chunks_of_unknown_sizes_that_are_not_as_declared_are_refused(function):
    array = da.from_array(X, chunks=(2, 3))
    unknown = array[array[:, 0] > 5].map_blocks(function, dtype=float, meta=np.empty((0, 0)))
    with pytest.raises(InvalidDataError, match=r"has shape .* instead of \(nan, 3\)"):
        open_data(unknown)


def test_chunks_whose_number_of_rows_changes_between_passes_are_refused():
    sizes = itertools.count(1)
    array = da.from_array(np.ones((40, 3)), chunks=(20, 3))
    changing = array[array[:, 0] > 0].map_blocks(lambda block: block[: next(sizes)], dtype=float, meta=np.empty((0, 0)))
    data = open_data(changing)
    with pytest.raises(InvalidDataError, match="A chunk of the data has shape .* must not change between passes"):
        data.X.compute()


def test_what_is_masked_is_missing():
    for values in (X, X.astype(int)):
        masked = np.ma.masked_array(values, mask=X > 20)
        for source in (masked, da.from_array(masked, chunks=(2, 3))):
            np.testing.assert_array_equal(open_data(source).X.compute(), np.where(X > 20, np.nan, values))


def test_errors_of_scikit_learn_are_ours():
    with pytest.raises(InvalidDataError, match="Expected 2D array, got 1D array"):
        open_matrix([1.0, 2.0])
    with pytest.raises(InvalidTypeError, match="must be a string or a real number, not 'dict'"):
        open_matrix(np.array([[{}], [{}]], dtype=object))


@pytest.mark.parametrize("dtype", ["f4", "i8", "?"])
def test_sparse_blocks_are_filled_where_they_are_used(dtype):
    matrix = sp.random(5000, 3, 0.1, format="coo", random_state=0).astype(dtype)
    data = from_sparse(matrix)
    assert data.is_sparse
    assert data.X.chunks == ((1024, 1024, 1024, 1024, 904), (3,))
    assert data.X.dtype == np.float64
    np.testing.assert_array_equal(data.X.compute(), matrix.toarray())
    assert isinstance(data.wrap(data.X[:, 0], "first"), np.ndarray)  # it came from memory


def test_large_sparse_chunks_of_dask_are_cut_before_they_are_filled():
    lazy = da.from_array(np.eye(5000, 3), chunks=(2500, 3)).map_blocks(sp.csr_array)
    data = from_dask(lazy)
    assert data.is_sparse
    assert data.X.chunks == ((1024, 1024, 452) * 2, (3,))
    np.testing.assert_array_equal(data.X.compute(), np.eye(5000, 3))
    with pytest.raises(InvalidDataError, match="not real numbers, but of type complex128"):
        from_sparse(sp.csr_matrix(np.eye(3) * 1j))


def test_columns_of_an_array_are_positions():
    for source in (X, da.from_array(X, chunks=(3, 2)), sp.csr_matrix(X)):
        np.testing.assert_array_equal(open_data(source, columns=[2, 0]).X.compute(), X[:, [2, 0]])
        assert open_data(source, columns=["-1"]).X.compute().ravel().tolist() == X[:, 2].tolist()  # a command line's
        for columns in ([3], ["a"], [None], [1.5], [1.0], [np.float64(1)]):
            with pytest.raises(InvalidSettingError, match="must be positions from 0 to 2"):
                open_data(source, columns=columns)


def test_an_array_of_just_the_columns_that_a_fit_named_has_them_in_order():
    names = {"columns": ["a", "b", "c"]}
    np.testing.assert_array_equal(open_data(X, defaults=names).X.compute(), X)
    with pytest.raises(InvalidDataError, match=r"have 2 features, and the fit has 3, in this order: \['a', 'b', 'c'\]"):
        open_data(X[:, :2], defaults=names)
    np.testing.assert_array_equal(open_data(X, defaults={"columns": [1]}).X.compute(), X[:, [1]])


def test_an_array_of_a_zarr_group_is_its_component(tmp_path):
    for store in (None, str(tmp_path / "group.zarr")):
        group = zarr.create_group(store)
        group.create_array("night/x", shape=X.shape, chunks=(4, 3), dtype="f8")[...] = X
        data = open_data(group, component="night/x")
        assert data.in_memory == (store is None)  # workers would find nothing there
        np.testing.assert_array_equal(data.X.compute(), X)
        with pytest.raises(
            InvalidSettingError, match=r"component must name an array of the Zarr group, which has \['night"
        ):
            open_data(group)


def test_a_component_that_a_zarr_group_does_not_have_is_named():
    group = zarr.create_group(None)
    group.create_array("x", shape=X.shape, chunks=(4, 3), dtype="f8")[...] = X
    with pytest.raises(InvalidSettingError, match="nope"):
        open_data(group, component="nope")
