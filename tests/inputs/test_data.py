import dask.array as da
import numpy as np
import pandas as pd
import pytest

from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.inputs.data import open_data

X = np.arange(24.0).reshape(8, 3)


def test_column_chunks_are_merged_and_unknown_sizes_resolved():
    array = da.from_array(X, chunks=(2, 1))
    unknown = array[array[:, 0] > 5]
    opened = open_data(unknown).X
    assert opened.chunks == ((2, 2, 2), (3,))
    np.testing.assert_array_equal(opened.compute(), X[2:])


def test_empty_chunks_are_dropped_and_sizes_are_those_of_the_caller():
    array = da.from_array(X, chunks=(2, 3))
    data = open_data(array[da.from_array(X[:, 0] > 11, chunks=2)])
    assert data.X.chunks == ((2, 2), (3,))
    assert data.sizes == (0, 0, 2, 2)


def test_unknown_sizes_stay_unknown_until_they_are_counted():
    array = da.from_array(X, chunks=(2, 3))
    data = open_data(array[array[:, 0] > 11], counted=False)
    assert data.sizes is None
    assert np.isnan(data.X.shape[0])
    again = open_data(data)
    assert again.X.shape == (4, 3)
    assert open_data(again) is again
    with pytest.raises(InvalidDataError, match=r"at least 5 row\(s\)"):
        open_data(data, min_rows=5)


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
        (da.from_array(np.array([["a", "b"], ["c", "d"]])), "not real numbers, but of type <U1"),
        (da.ones((4, 2), dtype=complex), "not real numbers, but of type complex128"),
    ],
)
def test_bad_arrays(source, message):
    with pytest.raises(InvalidDataError, match=message):
        open_data(source)


@pytest.mark.parametrize("columns", ["price", [True, False, True, True, True]])
def test_columns_are_a_list_of_names_or_positions(blobs, columns):
    with pytest.raises(InvalidSettingError, match="columns must be a list of names or positions"):
        open_data(blobs, columns=columns)


def test_options_are_remembered_as_they_can_be_stored():
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    assert open_data(table).options == {}
    assert open_data(table, columns=("c", "a")).options == {"columns": ["c", "a"]}
    (column,) = open_data(X, columns=[np.int64(2)]).options["columns"]
    assert column == 2
    assert type(column) is int


def test_columns_may_be_an_index_or_an_array():
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    assert open_data(table, columns=table.columns[:2]).options == {"columns": ["a", "b"]}
    np.testing.assert_array_equal(open_data(X, columns=np.array([2, 0])).X.compute(), X[:, [2, 0]])


def test_columns_may_come_from_a_generator():
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    data = open_data(table, columns=(name for name in "ca"))
    assert data.options == {"columns": ["c", "a"]}
    np.testing.assert_array_equal(data.X.compute(), X[:, [2, 0]])


def test_defaults_count_where_nothing_is_given_and_the_source_understands_them():
    table = pd.DataFrame(X, columns=["a", "b", "c"])
    defaults = {"columns": ["c", "a"], "component": "night/x"}  # the latter means nothing for a table
    np.testing.assert_array_equal(open_data(table, defaults=defaults).X.compute(), X[:, [2, 0]])
    np.testing.assert_array_equal(open_data(table, defaults=defaults, columns=["b"]).X.compute(), X[:, [1]])
    with pytest.raises(InvalidSettingError, match="component has no meaning for a table. .* it is 'night/x'"):
        open_data(table, component="night/x")
