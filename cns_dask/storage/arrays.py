"""Zarr arrays: opened, created, and read and written by slices where a task needs them. The only door to zarr.

Every chunk that we write carries a checksum, and the stores that hold them are tried again when they falter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import dask.array as da
import numpy as np
import zarr
import zarr.codecs
import zarr.storage

from cns_dask.errors import DamagedError, InvalidDataError, StoreError, UnsupportedPythonError, one_line
from cns_dask.storage.chunks import rows_per_chunk
from cns_dask.storage.locations import Location, with_retries_async
from cns_dask.storage.mapping import mapped_chunks

if not __debug__:
    raise UnsupportedPythonError(
        "cns_dask does not run with python -O or PYTHONOPTIMIZE: zarr opens no group where asserts are off. Start "
        "Python without either."
    )

COMPRESSED_CODECS = (zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle"), zarr.codecs.Crc32cCodec())
UNCOMPRESSED_CODECS = (zarr.codecs.Crc32cCodec(),)  # four bytes behind the values, which can be mapped


ADVICE = "Run an unfinished fit again to replace it; restore a finished result, or fit it again with overwrite."
WIDE_FEATURES = 100  # a row of more features is larger than all that a worker holds for it later


class RetryingStore(zarr.storage.WrapperStore[Any]):
    """A store that is tried again when it falters.

    A `strict` one holds arrays that were written whole: there a chunk that is missing is an error, not a fill value.
    """

    def __init__(self, store: Any, strict: bool = False) -> None:
        super().__init__(store)
        self.strict = strict

    def _with_store(self, store: Any) -> RetryingStore:
        return RetryingStore(store, self.strict)

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        """Read a file."""
        content = await with_retries_async(self._store.get, key, prototype, byte_range)
        if content is None and self.strict and "/c/" in key:
            raise DamagedError(f"The chunk {key} of a result is missing. {ADVICE}")
        return content

    async def set(self, key: str, value: Any) -> None:
        """Write a file."""
        await with_retries_async(self._store.set, key, value)

    async def exists(self, key: str) -> bool:
        """Whether there is a file."""
        return bool(await with_retries_async(self._store.exists, key))

    async def delete(self, key: str) -> None:
        """Remove a file."""
        await with_retries_async(self._store.delete, key)


def zarr_store_at(location: Location, *, read_only: bool = False, strict: bool = False) -> Any:
    """A Zarr store at a location."""
    if location.is_local:
        store: Any = zarr.storage.LocalStore(location.path, read_only=read_only)
    else:
        location._files  # noqa: B018 - a clear error if nobody knows this kind of store
        store = zarr.storage.FsspecStore.from_url(
            location.path, storage_options={"use_listings_cache": False}, read_only=read_only
        )
    return RetryingStore(store, strict)


def open_group(location: Location, mode: Literal["r", "r+"] = "r", *, strict: bool = False) -> Any:
    """The group at a location."""
    store = zarr_store_at(location, read_only=mode == "r", strict=strict)
    return zarr.open_group(store, mode=mode, use_consolidated=False)


def require_group(location: Location) -> Any:
    """The group, made unless there is one whose description is whole; its arrays are found in any case."""
    try:
        if location.exists("zarr.json"):  # zarr's own error would keep the frames of all callers, in a cycle
            return open_group(location, "r+", strict=True)
    except StoreError:
        raise
    except Exception:
        location.remove("zarr.json")
    return zarr.create_group(zarr_store_at(location, strict=True), zarr_format=3)


def create_array(
    location: Location,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str,
    *,
    compressed: bool,
    dims: tuple[str, ...] | None = None,
    attributes: dict[str, Any] | None = None,
) -> StoredArray:
    """Make an array in the group at a location, or open the one that an earlier run has made just so."""
    chunks = tuple(max(1, min(size, chunk)) for size, chunk in zip(shape, chunks, strict=True))
    group = require_group(location)
    existing = _existing_array(group, location, name)
    if existing is not None and (existing.shape, existing.chunks, existing.dtype) == (shape, chunks, np.dtype(dtype)):
        return StoredArray(existing)
    array = group.create_array(
        name,
        shape=shape,
        dtype=dtype,
        chunks=chunks,
        dimension_names=dims,
        fill_value=_no_value(dtype),
        compressors=COMPRESSED_CODECS if compressed else UNCOMPRESSED_CODECS,
        attributes=attributes or {},
        config={"write_empty_chunks": True},  # a chunk that is not there was not written
        overwrite=True,
    )
    return StoredArray(array)


def _existing_array(group: Any, location: Location, name: str) -> Any:
    """The array of that name, if there is one and its description is whole."""
    if not location.exists(f"{name}/zarr.json"):
        return None
    try:
        return group[name]
    except StoreError:
        raise
    except Exception:
        return None


def array_files(location: Location, name: str) -> list[str]:
    """Names of all files of an array of a group, as its description tells; none if it is not there."""
    if location.read(f"{name}/zarr.json") is None:
        return []
    array = zarr.open_array(zarr_store_at(location, read_only=True), path=name, mode="r")
    keys = map(array.metadata.encode_chunk_key, np.ndindex(array.cdata_shape))
    return [f"{name}/{key}" for key in ("zarr.json", *keys)]


class StoredArray:
    """An opened array on disk: small to ship inside a task, read and written by slices where it arrives.

    A bare Zarr array is a dataclass, into which Dask would look for collections once for every task; as a task of its
    own it would bind all that use it to the worker that holds it.
    """

    def __init__(self, array: zarr.Array[Any], owner: Any = None, *, is_input: bool = False) -> None:
        self._array, self._is_input = array, is_input  # is_input: the caller's data
        self._owner = owner  # a temporary store lives as long as an array of it; workers get the array alone
        self.shape, self.ndim, self.dtype, self.chunks = array.shape, array.ndim, array.dtype, array.chunks
        self.shards = array.shards
        self._mapped = mapped_chunks(array)

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(StoredArray, is_input=self._is_input), (self._array,)

    def __getitem__(self, selection: Any) -> Any:
        try:
            mapped = None if self._mapped is None else self._mapped[selection]
        except ValueError as error:
            raise self._damaged(error) from error
        return self._read(selection) if mapped is None else mapped

    def _read(self, selection: Any) -> Any:
        try:
            return self._array[selection]
        except (ValueError, RuntimeError, MemoryError) as error:  # of checksums, of Blosc, and of impossible shapes
            if isinstance(error, DamagedError):
                raise
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> Exception:
        if self._is_input:
            return InvalidDataError(
                f"A chunk of the data cannot be read ({one_line(error)}). Write it again, or leave it out."
            )
        return DamagedError(f"A chunk of {self._array.name} is damaged ({error}). {ADVICE}")

    def lazy(self, chunks: tuple[int, ...] | None = None) -> da.Array:
        """A Dask array whose tasks each carry the opened array."""
        return da.from_array(self, chunks=chunks or self.shards or self.chunks, name=False, inline_array=True)

    def regions(self) -> list[tuple[slice, ...]]:
        """The region of every chunk."""
        return list(da.core.slices_from_chunks(da.core.normalize_chunks(self.chunks, self.shape)))

    def is_undamaged(self, region: tuple[slice, ...]) -> bool:
        """Whether all chunks of a region of a strict store are there, and as they were written."""
        try:
            self._read(region)
        except (DamagedError, StoreError):
            return False
        return True

    def __setitem__(self, selection: Any, values: Any) -> None:
        if self._mapped is None or self._array.read_only or not self._mapped.write(selection, values):
            self._array[selection] = values


def open_array(path: str, component: str | None = None) -> da.Array:
    """Open any Zarr array (path or URL), or the array `component` of a group, lazily, by whole shards if there are."""
    location = Location(path)
    is_file = location.is_local and Path(location.path).is_file()  # zarr knows such, as .zip
    try:
        store = location.path if is_file else zarr_store_at(location, read_only=True)
        array = zarr.open_array(store, path=component or "", mode="r")
    except (FileNotFoundError, KeyError, ValueError) as error:  # zarr's own errors inherit these
        inside = _members(path) if component or "group" in str(error).lower() else ""
        what = f"{path} with component {component}" if component else path
        raise InvalidDataError(f"{what} does not open as a Zarr array ({one_line(error)}).{inside}") from error
    return open_input_array(array, path)


def open_input_array(array: Any, name: str = "the array") -> da.Array:
    """A Zarr array of the caller, opened; wide rows in the chunks in which they are used.

    Other chunks would meet in tasks that have to wait for several of them, and too many of them would wait in memory.
    """
    _refuse_code(array.metadata.to_dict(), name)
    is_wide = array.ndim == 2 and array.shape[1] > WIDE_FEATURES and array.shape[0] > 0
    return StoredArray(array, is_input=True).lazy((rows_per_chunk(*array.shape), -1) if is_wide else None)


def is_zarr(source: Any, kind: str) -> bool:
    """Whether something is an opened "Array" or "Group" of Zarr."""
    return isinstance(source, getattr(zarr, kind))


def is_array_at(location: str) -> bool:
    """Whether there is a Zarr array, and no group, at a path or URL."""
    try:
        zarr.open_array(zarr_store_at(Location(location), read_only=True), mode="r")
    except (FileNotFoundError, KeyError, ValueError):
        return False
    return True


def is_in_memory(array: Any) -> bool:
    """Whether a Zarr array lives in this process: workers would find nothing."""
    return isinstance(array.store, zarr.storage.MemoryStore)


def open_input_group(location: str) -> Any:
    """A group of the caller."""
    return zarr.open_group(zarr_store_at(Location(location), read_only=True), mode="r", use_consolidated=False)


def attributes_of(path: str) -> dict[str, Any]:
    """The attributes of the group at a path or URL; none if there is no group."""
    try:
        return dict(open_input_group(path).attrs.asdict())
    except StoreError:
        raise
    except Exception:
        return {}


def _members(location: str) -> str:
    """Advice that names the arrays of a group."""
    try:
        names = [name for name, _ in open_input_group(location).members(max_depth=None) if isinstance(_, zarr.Array)]
    except Exception:
        return " Give the path of an array, or of a group with the array's name as component."
    shown = ", ".join(sorted(names)[:8]) or "none"
    return f" Give the name of an array of the group as component; it has {shown}."


def _refuse_code(metadata: Any, location: str) -> None:
    """Refuse an array whose chunks are pickles: to read them would run whatever they hold."""
    if isinstance(metadata, dict):
        if any("pickle" in str(metadata.get(key, "")).lower() for key in ("id", "name")):
            raise InvalidDataError(f"{location} holds pickled objects: only plain numbers are read.")
        metadata = list(metadata.values())
    if isinstance(metadata, list | tuple):
        for each in metadata:
            _refuse_code(each, location)


def aligned_regions(values: da.Array, target: StoredArray) -> list[tuple[slice, ...]]:
    """The region of `target` that each chunk of `values` is written to: whole chunks of it.

    Two tasks that share a chunk would corrupt it silently, so misaligned chunks are refused.
    """
    if values.shape != target.shape:
        raise ValueError(f"An array of shape {values.shape} does not fit into one of shape {target.shape}.")
    for sizes, chunk in zip(values.chunks, target.chunks, strict=True):
        if any(size % chunk for size in sizes[:-1]):
            raise ValueError(f"Chunks of {sizes} do not fill whole chunks of {chunk}: two tasks would write to one.")
    return list(da.core.slices_from_chunks(values.chunks))


def write_blocks(
    blocks: Sequence[np.ndarray[Any, Any]], targets: Sequence[StoredArray], regions: Sequence[tuple[slice, ...]]
) -> None:
    """Write a block of each array into its region."""
    for block, target, region in zip(blocks, targets, regions, strict=True):
        target[tuple(region)] = block


def _no_value(dtype: str) -> float | int:
    """What a lost chunk reads as: nothing that looks like a value."""
    return {"f": np.nan, "i": -1, "u": int(np.iinfo(dtype).max) if dtype[0] == "u" else 0}[dtype[0]]
