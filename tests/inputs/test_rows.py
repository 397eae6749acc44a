"""Rows by number: in any order, more than once, and only the partitions that hold them."""

import numpy as np
import pandas as pd
import xarray as xr
from tabular import NAMES, parts

from cns_dask import open_data
from cns_dask.inputs.rows import take_rows


def test_partitions_are_read_only_where_a_row_is():
    X = np.random.default_rng(0).random((60, 5))
    table = parts(X, 7)  # one of them is empty
    rows = take_rows(table, open_data(table, columns=NAMES), np.array([59, 0, 31, 0]))
    assert rows.index.tolist() == ["id 59", "id 0", "id 31", "id 0"]
    assert rows["note"].tolist() == ["n59", "n0", "n31", "n0"]
    np.testing.assert_array_equal(rows[NAMES], X[[59, 0, 31, 0]])
    none = take_rows(table, open_data(table, columns=NAMES), np.array([], int))
    assert len(none) == 0
    assert list(none.columns) == [*NAMES, "note"]


def test_opened_tables_keep_their_index():
    table = pd.DataFrame({"a": [1.0, 2, 3], "b": [4.0, 5, 6]}, index=list("xyz"))
    data = open_data(table)
    pd.testing.assert_frame_equal(take_rows(data, data, np.array([2, 0])), table.loc[["z", "x"]])


def test_rows_of_a_cube_keep_their_coordinates():
    values = np.arange(24.0).reshape(2, 3, 4)
    places = {"row": [10, 20], "lon": [1, 2, 3]}
    for dims in (("lat", "lon", "time"), ("row", "lon", "time")):
        cube = xr.DataArray(values, dims=dims, coords={k: v for k, v in places.items() if k in dims})
        data = open_data(cube, features="time")
        picked = take_rows(cube, data, np.array([5, 1]))
        np.testing.assert_array_equal(picked.transpose("row", "time"), values.reshape(6, 4)[[5, 1]])
        assert picked["lon"].values.tolist() == [3, 2]
