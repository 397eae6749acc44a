"""Whatever the caller has becomes rows: a (n, d) Dask array of float64, and the form in which answers go back."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed

from cns_dask import annotated, cubes, tables
from cns_dask.arrays import is_array_at, is_in_memory, is_zarr, lazy_foreign, open_array
from cns_dask.cubes import NUMERIC
from cns_dask.errors import DataNotFoundError, InvalidDataError, InvalidSettingError, InvalidTypeError
from cns_dask.files import files_of, holds, is_pattern, is_web, open_path
from cns_dask.plan import rows_per_chunk
from cns_dask.types import Data


@dataclass(frozen=True)
class Arrays:
    """The form of arrays: Dask arrays if they are lazy, else NumPy arrays."""

    lazy: bool

    def give(self, values: Any, *_: Any) -> Any:
        """Values of all rows."""
        return values if self.lazy else values.compute()


@dataclass(frozen=True)
class Reading:
    """Options about what of a source is read."""

    columns: Sequence[Any] | None = None
    component: str | None = None
    features: str | None = None
    remembered: frozenset[str] = frozenset()  # not given now, but with the data of the fit

    @property
    def given(self) -> dict[str, Any]:
        """The options, by name."""
        named = {"columns": self.columns, "component": self.component, "features": self.features}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def by_name(self) -> bool:
        """Whether columns are given by names, not positions."""
        return self.columns is not None and not all(str(name).lstrip("-").isdigit() for name in self.columns)

    def but(self, *understood: str) -> None:
        """Refuse the options that a source does not understand; those of other data do not matter to it."""
        for name, value in self.given.items():
            if name not in understood and name not in self.remembered:
                raise InvalidSettingError(f"{name} must not be given for data of this form. Got {value!r}.")


def open_data(
    source: Any,
    *,
    columns: Sequence[Any] | None = None,
    component: str | None = None,
    features: str | None = None,
    like: Mapping[str, Any] | None = None,
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
    like
        Options of other data (`Data.reading`), for those that are not given and that this source understands.
    min_rows
        Fewer rows than this are refused.
    counted
        Resolve unknown lengths, by computing them once.

    Returns
    -------
    Data
        `X`, the rows (n, d) as a Dask array of float64 whose values were not looked at, with all columns in one chunk;
        `give(values)` turns lazy values of all rows into the form of the source.

    Examples
    --------
    >>> open_data([[1, 2], [3, 4], [5, 7]]).X.shape
    (3, 2)
    >>> import pandas as pd
    >>> table = pd.DataFrame({"name": ["x", "y"], "a": [1, 2], "b": [3.5, None]}, index=["r", "s"])
    >>> data = open_data(table, columns=["a", "b"])
    >>> data.give(data.X.sum(axis=1), "sum")
    r    4.5
    s    NaN
    Name: sum, dtype: float64
    """
    if isinstance(source, Data):
        return _checked(source, min_rows, counted=counted) if source.sizes is None else source
    if isinstance(columns, str) or any(isinstance(column, bool | np.bool_) for column in columns or ()):
        raise InvalidSettingError(f"columns must be a list of names or positions, as ['price']. Got {columns!r}.")
    given = Reading(columns, component, features).given
    remembered = {name: value for name, value in (like or {}).items() if name not in given}
    reading = Reading(**given, **remembered, remembered=frozenset(remembered))
    opened = _open(source, reading, min_rows)
    chosen = {name: _plain(value) for name, value in reading.given.items()}
    return _checked(replace(opened, reading=chosen), min_rows, counted=counted)


def _plain(value: Any) -> Any:
    """An option as it can be stored."""
    if isinstance(value, str):
        return value
    plain = (each.item() if isinstance(each, np.generic) else each for each in value)
    return [each if isinstance(each, int) else str(each) for each in plain]


def _open(source: Any, reading: Reading, min_rows: int) -> Data:
    """Open a source by what it is."""
    if isinstance(source, str | os.PathLike):
        return _open_path(os.fspath(source), reading)
    if isinstance(source, Delayed):  # which seems to have any attribute
        raise InvalidDataError("Lazy data must be a Dask array or DataFrame. Got Delayed. Use da.from_delayed first.")
    if annotated.is_annotated(source):
        return _open_annotated(source, reading, min_rows)
    if cubes.is_cube(source) and not isinstance(source, da.Array):
        reading.but("columns", "features")
        return cubes.open_cube(source, reading.columns, reading.features)
    if tables.is_table(source):
        reading.but("columns")
        return tables.open_table(source, reading.columns)
    if is_zarr(source, "Group"):
        reading.but("columns", "component")
        if reading.component is None:
            raise InvalidSettingError(f"component must name an array of the group. Got none; it has {list(source)}.")
        source = source[reading.component]
    else:
        reading.but("columns")
    return _chosen(_open_matrix(source, min_rows), reading)


def _open_matrix(source: Any, min_rows: int = 0) -> Data:
    """Open an array of any kind."""
    if isinstance(source, da.Array):
        return _of_dask(source)
    if is_zarr(source, "Array"):
        return _open_matrix(source[...], min_rows) if is_in_memory(source) else _of_dask(lazy_foreign(source))
    if hasattr(source, "tocsr"):
        return _of_sparse(source)
    if dask.is_dask_collection(source):
        raise InvalidDataError(
            f"Lazy data must be a Dask array or DataFrame. Got {type(source).__name__}. Convert it first."
        )
    return _of_memory(source, min_rows)


def _open_annotated(adata: Any, reading: Reading, min_rows: int) -> Data:
    reading.but("columns", "component")
    matrix = annotated.matrix_of(adata, reading.component)
    if tables.is_table(matrix):
        return tables.open_table(matrix, reading.columns)
    opened = _chosen(_open_matrix(matrix, min_rows), _variables(reading, lambda: adata.var_names))
    lazy = isinstance(opened.form, Arrays) and opened.form.lazy
    return opened if lazy else replace(opened, form=tables.Table(adata.obs_names))


def _variables(reading: Reading, names: Callable[[], Any]) -> Reading:
    """The options, with positions instead of names of variables of the matrix X."""
    if reading.columns is None or reading.component not in (None, "X") or not reading.by_name:
        return reading
    return replace(reading, columns=annotated.positions_of(names(), reading.columns))


def _open_path(location: str, reading: Reading) -> Data:
    """Open what is at a path or URL, by its name and by what is there."""
    remote = "://" in location
    if not remote:
        location = str(Path(location).expanduser().absolute())  # workers may have another working directory
        if not is_pattern(location) and not Path(location).exists():
            raise DataNotFoundError(f"The data must exist. Got {location}, which does not.")
    for endings, reader in ((tables.PARQUET, tables.open_parquet), (tables.CSV, tables.open_csv)):
        if holds(location, endings, folders=endings is tables.PARQUET):
            reading.but("columns")
            files = files_of(location)
            return replace(reader(files, reading.columns), files=() if is_web(location) else files)
    opened = _open_array_path(location, reading)
    return replace(opened, files=(location,))


def _open_array_path(location: str, reading: Reading) -> Data:
    if location.endswith((".npy", ".npz")):
        reading.but("columns")
        return _chosen(_of_npz(location) if location.endswith(".npz") else _of_dask(open_path(location)), reading)
    if location.endswith((".nc", ".nc4")) or (reading.features is not None):
        reading.but("columns", "features")
        return cubes.open_cube(cubes.read_cube(location), reading.columns, reading.features)
    if annotated.is_annotated_store(location):
        reading.but("columns", "component")
        opened = _of_dask(annotated.read_matrix(location, reading.component))
        return _chosen(opened, _variables(reading, lambda: annotated.read_names(location)))
    if reading.by_name and reading.component is None and not is_array_at(location):
        return cubes.open_cube(cubes.read_cube(location), reading.columns)
    return _chosen(_of_dask(open_array(location, reading.component)), reading)


def _of_npz(location: str) -> Data:
    """A SciPy sparse matrix in a file."""
    from scipy.sparse import load_npz

    try:
        return replace(_of_sparse(load_npz(location)), form=Arrays(lazy=True))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidDataError(f"The file must hold a SciPy sparse matrix. Got {location} ({error}).") from error


def _of_sparse(matrix: Any) -> Data:
    """A sparse matrix in memory: its parts travel as they are, and are filled where they are used."""
    rows = matrix.tocsr()
    _refuse_kind(rows.dtype)
    if min(rows.shape) == 0 or rows.ndim != 2:
        return Data(da.empty(rows.shape, dtype=rows.dtype), Arrays(lazy=False))
    step = rows_per_chunk(*rows.shape)
    tasks = [dask.delayed(rows[start : start + step]) for start in range(0, rows.shape[0], step)]
    sizes = [min(step, rows.shape[0] - start) for start in range(0, rows.shape[0], step)]
    X = da.concatenate(
        [
            da.from_delayed(dask.delayed(filled_block)(task), (size, rows.shape[1]), np.float64)
            for task, size in zip(tasks, sizes, strict=True)
        ]
    )
    return Data(X, Arrays(lazy=False), sparse=True)


def filled_block(block: Any) -> np.ndarray[Any, Any]:
    """A sparse block as an array of float64."""
    return np.asarray(block.toarray(), np.float64)


def _of_dask(array: da.Array) -> Data:
    """A Dask array of NumPy, masked or sparse blocks."""
    if hasattr(array._meta, "tocsr") and array.ndim == 2:
        _refuse_kind(array.dtype)
        step = rows_per_chunk(max(1, _known(array.shape[0])), max(1, array.shape[1]))
        sizes = {0: tuple(_split(array.chunks[0], step)), 1: -1}
        filled = array.rechunk(sizes).map_blocks(filled_block, dtype=np.float64, meta=np.empty((0, 0)))
        return Data(filled, Arrays(lazy=True), sparse=True)
    return Data(array, Arrays(lazy=True))


def _known(size: float) -> int:
    return 1 if np.isnan(size) else int(size)


def _split(sizes: tuple[int, ...], step: int) -> list[int]:
    """Chunks cut into pieces that may be filled: of at most `step` rows."""
    pieces: list[int] = []
    for size in sizes:
        whole, rest = (0, size) if np.isnan(size) else divmod(size, step)
        pieces += [step] * whole + ([rest] if rest or not whole else [])
    return pieces


def _of_memory(source: Any, min_rows: int) -> Data:
    from sklearn.utils import check_array

    if isinstance(source, np.ma.MaskedArray):
        source = unmasked(source)  # scikit-learn would drop the mask
    try:
        checked = check_array(source, dtype="numeric", ensure_min_samples=min_rows, ensure_all_finite=False)
    except TypeError as error:
        raise InvalidTypeError(str(error)) from error
    except ValueError as error:
        raise InvalidDataError(str(error)) from error
    rows = rows_per_chunk(*checked.shape)
    return Data(da.from_array(checked, chunks=(rows, -1), name=False), Arrays(lazy=False), in_memory=True)


def _chosen(data: Data, reading: Reading) -> Data:
    """Some columns of an array, by position; one that has only those that a table was chosen by name is these."""
    columns, width = reading.columns, data.X.shape[1] if data.X.ndim == 2 else 0
    if columns is None:
        return data
    if "columns" in reading.remembered and reading.by_name:
        if width == len(columns):
            return data
        raise InvalidDataError(
            f"The rows must have the {len(columns)} features of the fit, in this order: {list(columns)}. Got {width}."
        )
    try:
        return replace(data, X=data.X[:, [int(column) for column in columns]])
    except (TypeError, ValueError, IndexError) as error:
        raise InvalidSettingError(
            f"columns of an array must be positions, 0 to {width - 1}. Got {list(columns)}."
        ) from error


def unmasked(block: Any) -> Any:
    """What is masked is missing."""
    if block.dtype.kind not in NUMERIC:
        return np.ma.getdata(block)
    return np.ma.filled(block.astype(np.float64), np.nan) if isinstance(block, np.ma.MaskedArray) else block


def _refuse_kind(dtype: Any) -> None:
    if dtype.kind not in NUMERIC:
        raise InvalidDataError(f"The data must be real numbers. Got values of type {dtype}.")


def _checked(data: Data, min_rows: int, *, counted: bool) -> Data:
    """The data with two dimensions, real numbers and, if `counted`, chunks of known sizes none of which is empty."""
    array = data.X
    if array.ndim != 2:
        raise InvalidDataError(f"The data must have two dimensions, rows and features. Got {array.ndim}.")
    _refuse_kind(array.dtype)
    if isinstance(array._meta, np.ma.MaskedArray):
        array = array.map_blocks(unmasked, dtype=np.float64, meta=np.empty((0, 0)))
    if counted and isinstance(data.form, tables.LazyTable) and not data.files:
        form, counts = data.form.counted()
        data = replace(data, form=form)
        array = da.Array(array.dask, array.name, (counts, array.chunks[1]), meta=array._meta)
    elif counted and any(np.isnan(size) for size in array.shape):
        array = array.compute_chunk_sizes()
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
