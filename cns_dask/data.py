"""Whatever the caller has becomes one (n, d) Dask array of float64 with known chunks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.arrays import open_array
from cns_dask.errors import DataNotFoundError, InvalidDataError, InvalidTypeError
from cns_dask.plan import rows_per_chunk

NUMERIC = "biuf"  # NumPy's kinds of types that hold plain numbers


def open_data(source: Any, *, min_rows: int = 2) -> da.Array:
    """Open a data set.

    Parameters
    ----------
    source
        An array (NumPy or what it converts), a Dask array, or the path or URL of a `.npy` file or a Zarr array.
    min_rows
        Fewer rows than this are refused.

    Returns
    -------
    dask.array.Array
        The data (n, d): float64, known chunks, columns in one chunk. Values are not looked at here.

    Examples
    --------
    >>> open_data([[1, 2], [3, 4], [5, 7]]).shape
    (3, 2)
    """
    if isinstance(source, str | os.PathLike):
        array = open_path(os.fspath(source))
    elif isinstance(source, da.Array):
        array = source
    elif dask.is_dask_collection(source):
        raise InvalidDataError(
            f"Lazy data must be a Dask array. Got {type(source).__name__}. Convert it, as with `.to_dask_array()`."
        )
    else:
        array = _from_memory(source, min_rows)
    return _as_matrix(array, min_rows)


def is_lazy(source: Any) -> bool:
    """Whether results for `source` should stay lazy too: it was not given as an array in memory."""
    return isinstance(source, str | os.PathLike | da.Array)


def open_path(location: str) -> da.Array:
    """Open the array at a path or URL as it is."""
    if "://" in location:
        if location.endswith(".npy"):
            raise InvalidDataError(f"A .npy file must be on a disk. Got {location}. Copy it, or store a Zarr array.")
        return open_array(location)
    path = Path(location).expanduser().absolute()  # workers may have another working directory
    if not path.exists():
        raise DataNotFoundError(f"The data must exist. Got {location}, which does not.")
    return _open_npy(path) if path.suffix == ".npy" else open_array(str(path))


def _open_npy(path: Path) -> da.Array:
    """Rows of a .npy file, read by the workers themselves: a memory map would travel inside the graph."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InvalidDataError(f"The file must be a plain .npy array. Got {path} ({error}).") from error
    if mapped.ndim != 2 or mapped.size == 0:
        return da.empty(mapped.shape, dtype=mapped.dtype)  # refused like any other array of that shape
    step = rows_per_chunk(*mapped.shape)
    parts = [slice(start, min(start + step, len(mapped))) for start in range(0, len(mapped), step)]
    return da.concatenate(
        [
            da.from_delayed(
                dask.delayed(read_rows)(path, rows), (rows.stop - rows.start, mapped.shape[1]), mapped.dtype
            )
            for rows in parts
        ]
    )


def read_rows(path: Path, rows: slice) -> np.ndarray[Any, Any]:
    """Some rows of a .npy file."""
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False)[rows])


def _from_memory(source: Any, min_rows: int) -> da.Array:
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
    return da.from_array(checked, chunks=(rows, -1), name=False)


def unmasked(block: Any) -> Any:
    """What is masked is missing."""
    if block.dtype.kind not in NUMERIC:
        return np.ma.getdata(block)
    return np.ma.filled(block.astype(np.float64), np.nan) if isinstance(block, np.ma.MaskedArray) else block


def _as_matrix(array: da.Array, min_rows: int) -> da.Array:
    if array.ndim != 2:
        raise InvalidDataError(f"The data must have two dimensions, rows and features. Got {array.ndim}.")
    if array.dtype.kind not in NUMERIC:
        raise InvalidDataError(f"The data must be real numbers. Got values of type {array.dtype}.")
    if isinstance(array._meta, np.ma.MaskedArray):
        array = array.map_blocks(unmasked, dtype=np.float64, meta=np.empty((0, 0)))
    if any(np.isnan(size) for size in array.shape):
        array = array.compute_chunk_sizes()
    if array.shape[0] < min_rows or array.shape[1] < 1:
        raise InvalidDataError(
            f"The data must have at least {min_rows} row(s) and 1 feature. "
            f"Got {array.shape[0]} row(s) and {array.shape[1]} feature(s)."
        )
    sizes = tuple(size for size in array.chunks[0] if size)  # a filter may have left empty chunks
    return array.rechunk({0: sizes, 1: -1}).astype(np.float64)
