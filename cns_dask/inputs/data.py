"""Whatever the caller has becomes rows: a (n, d) Dask array of float64, and the form in which answers go back.

Each kind of source has an `Adapter`; the first that can open a source does. To read one more kind, add its adapter to
`PATHS` or `OBJECTS`.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dask.array as da
import numpy as np

from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.inputs import anndatas, arrays, files, tables, xarrays
from cns_dask.inputs.forms import Adapter, Data, ReadOptions
from cns_dask.inputs.table_forms import LazyTable

#: Sources by path or URL, in the order in which they are tried.
PATHS: tuple[Adapter, ...] = (
    tables.PARQUET,
    tables.CSV,
    files.NPY,
    files.NPZ,
    xarrays.NETCDF,
    anndatas.STORE,
    xarrays.STORE,
    files.ZARR,
)
#: Objects in Python.
OBJECTS: tuple[Adapter, ...] = (arrays.DELAYED, anndatas.OBJECT, xarrays.OBJECT, *tables.OBJECTS, *arrays.ARRAYS)


def open_data(
    source: Any,
    *,
    columns: Sequence[Any] | None = None,
    component: str | None = None,
    features: str | None = None,
    defaults: Mapping[str, Any] | None = None,
    min_rows: int = 2,
    counted: bool = True,
) -> Data:
    """Open a data set. Nothing is computed, but for the lengths of partitions or chunks that are not known.

    Parameters
    ----------
    source
        - an array: NumPy (also a memory map, or masked), what converts to one, a Dask array, a SciPy sparse matrix, a
          Dask array of such, a Zarr array or group;
        - a table: a pandas or Dask DataFrame;
        - an xarray DataArray or Dataset; an AnnData object;
        - a path or URL: `.npy`, `.npz` (SciPy's), Zarr array or group, Parquet (file, folder, glob), CSV (file, glob),
          `.h5ad`, netCDF;
        - what this function has returned.
    columns
        The features: columns of a table, variables of a Dataset, labels of the feature dimension of a DataArray,
        positions in an array. All if None.
    component
        The array within a Zarr group (`a/b`); the matrix of an AnnData: `X` (if None), `obsm/X_pca`, `layers/counts`.
    features
        The dimension of an xarray object that holds the features of a row; all others are stacked to rows, in order.
        None for a Dataset: its variables are the features.
    defaults
        Options of other data (`Data.options`), for those that are not given and that this source understands.
    min_rows
        Fewer rows than this are refused.
    counted
        Resolve unknown lengths, by computing them once.

    Returns
    -------
    Data
        `X`, the rows (n, d) as a Dask array of float64 whose values were not looked at, with all features in one chunk;
        `wrap(values)` turns lazy values of all rows into the form of the source.

    Examples
    --------
    >>> open_data([[1, 2], [3, 4], [5, 7]]).X.shape
    (3, 2)
    >>> import pandas as pd
    >>> table = pd.DataFrame({"name": ["x", "y"], "a": [1, 2], "b": [3.5, None]}, index=["r", "s"])
    >>> data = open_data(table, columns=["a", "b"])
    >>> data.wrap(data.X.sum(axis=1), "sum")
    r    4.5
    s    NaN
    Name: sum, dtype: float64
    """
    if isinstance(source, Data):
        return _checked(source, min_rows, counted=counted) if source.sizes is None else source
    chosen = ReadOptions(_as_list(columns), component, features).chosen
    inherited = {name: value for name, value in (defaults or {}).items() if name not in chosen}
    options = ReadOptions(**chosen, **inherited, inherited=frozenset(inherited), min_rows=min_rows)
    is_path = isinstance(source, str | os.PathLike)
    source = files.absolute(os.fspath(source)) if is_path else source
    adapter = next(adapter for adapter in (PATHS if is_path else OBJECTS) if adapter.can_open(source, options))
    options.refuse_unsupported(adapter.options, adapter.description)
    data = adapter.open(source, options)
    storable = {name: _storable(value) for name, value in options.chosen.items()}
    return _checked(replace(data, options=storable), min_rows, counted=counted)


def _as_list(columns: Any) -> list[Any] | None:
    """Names or positions of columns as a list."""
    if columns is None:
        return None
    is_list = not isinstance(columns, str) and hasattr(columns, "__iter__")
    chosen = list(columns) if is_list else columns
    if not is_list or any(isinstance(column, bool | np.bool_) for column in chosen):
        raise InvalidSettingError(f"columns must be a list of names or positions, as ['price'], not {chosen!r}.")
    return list(chosen)


def _storable(value: Any) -> Any:
    """An option as it can be stored."""
    if isinstance(value, str):
        return value
    plain = (each.item() if isinstance(each, np.generic) else each for each in value)
    return [each if isinstance(each, int) else str(each) for each in plain]


def _checked(data: Data, min_rows: int, *, counted: bool) -> Data:
    """The data with two dimensions, real numbers and, if `counted`, chunks of known sizes none of which is empty."""
    array = data.X
    if array.ndim != 2:
        raise InvalidDataError(f"The data must have two dimensions, rows and features. Got {array.ndim}.")
    arrays.refuse_kind(array.dtype)
    if isinstance(array._meta, np.ma.MaskedArray):
        array = array.map_blocks(arrays.unmasked, dtype=np.float64, meta=np.empty((0, 0)))
    is_uncounted = any(np.isnan(size) for size in array.shape)
    if counted and isinstance(data.form, LazyTable) and not data.files:
        form, counts = data.form.counted()
        data = replace(data, form=form)
        array = da.Array(array.dask, array.name, (counts, array.chunks[1]), meta=array._meta)
    elif counted and is_uncounted:
        array = array.compute_chunk_sizes()
    if counted and is_uncounted:
        array = arrays.checked_chunks(array)
    n_rows, n_features = array.shape
    if n_rows < min_rows or n_features < 1:
        raise InvalidDataError(
            f"The data must have at least {min_rows} row(s) and 1 feature. "
            f"Got {n_rows} row(s) and {n_features} feature(s)."
        )
    sizes = None if np.isnan(n_rows) else array.chunks[0]
    if counted and sizes is not None:
        array = array.rechunk({0: tuple(filter(None, sizes))})  # a filter may have left empty chunks
    return replace(data, X=array.rechunk({1: -1}).astype(np.float64), sizes=sizes)
