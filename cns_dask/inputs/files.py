"""Paths and URLs: which files are meant, and arrays in `.npy`, SciPy's `.npz` or Zarr."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.utils import natural_sort_key

from cns_dask.errors import DataNotFoundError, InvalidDataError, one_line
from cns_dask.inputs.arrays import checked_chunks, choose_columns, from_dask, from_sparse
from cns_dask.inputs.forms import Adapter, ArrayForm, Data, ReadOptions
from cns_dask.storage.arrays import open_array
from cns_dask.storage.chunks import row_slices, rows_per_chunk
from cns_dask.storage.locations import absolute_path, matches

GLOB_SIGNS = "*?["
READ_FILES = "Files are read if they end in .parquet, .csv, .npy, .npz, .h5ad or .nc, and folders if they hold Zarr."


def absolute(location: str) -> str:
    """The path as any working directory sees it, for workers; it must exist. URLs stay as they are."""
    if not location:
        raise DataNotFoundError("The path is empty.")
    if "://" in location:
        return location
    path = absolute_path(location)
    if not is_pattern(path) and not Path(path).exists():
        raise DataNotFoundError(f"There are no data at {path}: nothing exists there.")
    return path


def open_path(location: str) -> da.Array:
    """Open the array (.npy or Zarr) at a path or URL as it is."""
    location = absolute(location)
    if not location.endswith(".npy"):
        return _open_zarr(location)
    if "://" not in location and not Path(location).exists():
        raise DataNotFoundError(f"There are no data at {location}: nothing exists there.")
    if "://" in location:
        raise InvalidDataError(f"A .npy file is read from a disk only, not from {location}. Copy it, or store Zarr.")
    return _open_npy(Path(location))


def _open_zarr(location: str, component: str | None = None) -> da.Array:
    """A Zarr array: what no other reader takes, unless it is a file that no store can be."""
    path = Path(location)
    if "://" not in location and path.is_file() and path.suffix != ".zip":
        ending = f"that ends in {path.suffix}" if path.suffix else "without an ending"
        raise InvalidDataError(
            f"{location} is a file {ending}: no such file is read here. {READ_FILES} Convert it to one of these."
        )
    return open_array(location, component)


def _open_npy(path: Path) -> da.Array:
    """Rows of a .npy file, read by the workers themselves: a memory map would travel inside the graph."""
    try:
        mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError, IsADirectoryError) as error:
        raise InvalidDataError(f"{path} is not a plain .npy array ({one_line(error)}).") from error
    if mapped.ndim != 2 or mapped.size == 0:
        return da.empty(mapped.shape, dtype=mapped.dtype)  # refused like any other array of that shape
    n_rows, width = mapped.shape
    parts = row_slices(n_rows, rows_per_chunk(n_rows, width))
    blocks = [(dask.delayed(read_rows)(path, part), (part.stop - part.start, width)) for part in parts]
    return da.concatenate([da.from_delayed(block, shape, mapped.dtype) for block, shape in blocks])


def read_rows(path: Path, rows: slice) -> np.ndarray[Any, Any]:
    """Some rows of a .npy file."""
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False)[rows])


def _open_npz(location: str) -> Data:
    """A SciPy sparse matrix in a file."""
    from scipy.sparse import load_npz

    try:
        return replace(from_sparse(load_npz(location)), form=ArrayForm(is_lazy=True))
    except (OSError, ValueError, KeyError) as error:
        raise InvalidDataError(f"{location} does not hold a SciPy sparse matrix ({one_line(error)}).") from error


def has_ending(location: str, endings: tuple[str, ...], *, folders: bool = False) -> bool:
    """Whether files with one of these endings are meant: by name, by a pattern, or because a folder holds some."""
    plain = location.rstrip("/")
    if plain.endswith(endings):
        return True
    if is_pattern(plain):
        return files_of(plain)[0].endswith(endings)
    folder = Path(plain)
    return folders and folder.is_dir() and any(folder.rglob(f"*{endings[0]}"))


def files_of(location: str) -> tuple[str, ...]:
    """The files of a path, URL or glob, numbers in their names in order."""
    if not is_pattern(location) or is_web(location):
        return (location,)
    root = location[: min(location.find(sign) for sign in GLOB_SIGNS if sign in location)].rpartition("/")[0]
    files = tuple(sorted(matches(root, location[len(root) + 1 :]), key=natural_sort_key))
    if not files:
        raise DataNotFoundError(f"No file matches the pattern {location}.")
    return files


def is_pattern(location: str) -> bool:
    """Whether a path or URL stands for several files."""
    return any(sign in location for sign in GLOB_SIGNS) and ("://" in location or not Path(location).exists())


def is_web(location: str) -> bool:
    """Whether files come from a web server, which does not tell about changes."""
    return location.startswith(("http://", "https://"))


def _with_file(data: Data, location: str, options: ReadOptions) -> Data:
    return replace(choose_columns(data, options), files=(location,))


NPY = Adapter(
    "a .npy file",
    lambda location, _: location.endswith(".npy"),
    lambda location, options: _with_file(from_dask(checked_chunks(open_path(location))), location, options),
)
NPZ = Adapter(
    "a sparse .npz file",
    lambda location, _: location.endswith(".npz"),
    lambda location, options: _with_file(_open_npz(location), location, options),
)
ZARR = Adapter(
    "a Zarr array or group",
    lambda *_: True,
    lambda location, options: _with_file(from_dask(_open_zarr(location, options.component)), location, options),
    ("columns", "component"),
)
