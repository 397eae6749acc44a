"""Paths and URLs: which files are meant, and arrays in `.npy` files or Zarr as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.utils import natural_sort_key

from cns_dask.arrays import open_array
from cns_dask.errors import DataNotFoundError, InvalidDataError
from cns_dask.places import matches
from cns_dask.plan import rows_per_chunk

GLOB = "*?["  # signs of a pattern


def open_path(location: str) -> da.Array:
    """Open the array (.npy or Zarr) at a path or URL as it is."""
    if "://" in location:
        if location.endswith(".npy"):
            raise InvalidDataError(f"A .npy file must be on a disk. Got {location}. Copy it, or store a Zarr array.")
        return open_array(location)
    path = Path(location).expanduser().absolute()
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
    return _by_rows(read_rows, path, mapped.shape, mapped.dtype)


def _by_rows(read: Callable[..., Any], source: Any, shape: tuple[int, ...], dtype: Any) -> da.Array:
    """A Dask array whose chunks are `read(source, rows)`."""
    step = rows_per_chunk(*shape)
    parts = [slice(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]
    tasks = [(dask.delayed(read)(source, rows), (rows.stop - rows.start, shape[1])) for rows in parts]
    return da.concatenate([da.from_delayed(task, size, dtype) for task, size in tasks])


def read_rows(path: Path, rows: slice) -> np.ndarray[Any, Any]:
    """Some rows of a .npy file."""
    return np.array(np.load(path, mmap_mode="r", allow_pickle=False)[rows])


def holds(location: str, endings: tuple[str, ...], *, folders: bool) -> bool:
    """Whether files with one of these endings are meant: by name, or because a folder holds some."""
    plain = location.rstrip("/")
    if plain.endswith(endings):
        return True
    folder = Path(plain)
    return folders and folder.is_dir() and any(folder.rglob(f"*{endings[0]}"))


def files_of(location: str) -> tuple[str, ...]:
    """The files of a path, URL or glob, numbers in their names in order."""
    if not is_pattern(location) or is_web(location):
        return (location,)
    root = location[: min(location.find(sign) for sign in GLOB if sign in location)].rpartition("/")[0]
    found = tuple(sorted(matches(root, location[len(root) + 1 :]), key=natural_sort_key))
    if not found:
        raise DataNotFoundError(f"The pattern must match a file. Got {location}, which matches none.")
    return found


def is_pattern(location: str) -> bool:
    """Whether a path or URL stands for several files."""
    return any(sign in location for sign in GLOB) and ("://" in location or not Path(location).exists())


def is_web(location: str) -> bool:
    """Whether files come from a web server, which does not tell about changes."""
    return location.startswith(("http://", "https://"))
