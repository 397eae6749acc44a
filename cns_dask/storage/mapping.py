"""Chunks that lie on a local disk as they are in memory: mapped, so that only what is used is read.

Their checksums are checked when a process maps a file for the first time. Whole chunks are written here too, as zarr
would: its own writing goes through one thread of the process, and took longer than to solve for what is written.
"""

import itertools
import uuid
from functools import lru_cache
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

Bounds = tuple[tuple[int, int], ...]


class MappedChunks:
    """The chunk files of an array; a region of them is mapped, or put together where it lies in several."""

    def __init__(self, folder: Path, array: Any, *, has_checksums: bool) -> None:
        self._folder, self._has_checksums = folder, has_checksums
        self._shape, self._chunks, self._dtype = array.shape, array.chunks, array.dtype
        self._fill = array.fill_value

    def __getitem__(self, selection: Any) -> np.ndarray[Any, Any] | None:
        """A region; None if a file is not there, or if the selection is anything but integers and plain slices.

        Raises ValueError if a file is damaged.
        """
        selection = selection if isinstance(selection, tuple) else (selection,)
        if not all(isinstance(each, slice | int) for each in selection):
            return None
        whole = (*selection, *[slice(None)] * (len(self._shape) - len(selection)))
        bounds = tuple(_bounds(each, size) for each, size in zip(whole, self._shape, strict=True))
        region = self._region(bounds) if all(start < stop for start, stop in bounds) else None
        picked = tuple(0 if isinstance(each, int) else slice(None) for each in whole)
        return None if region is None else region[picked]

    def write(self, selection: Any, values: Any) -> bool:
        """Write a region of whole chunks; False if it is none, or if a file cannot be written: then zarr says why."""
        bounds = self._bounds(selection)
        edges = zip(bounds, self._shape, self._chunks, strict=True)
        if not all(
            start < stop and start % chunk == 0 and stop in (size, stop // chunk * chunk)
            for (start, stop), size, chunk in edges
        ):
            return False
        values = np.asarray(values)
        if values.shape != tuple(stop - start for start, stop in bounds) or values.dtype.kind not in "biuf":
            return False
        origins = [range(start, stop, size) for (start, stop), size in zip(bounds, self._chunks, strict=True)]
        try:
            for at in itertools.product(*origins):
                steps = zip(at, bounds, self._chunks, strict=True)
                self._write_chunk(
                    at, values[tuple(slice(i - start, i - start + size) for i, (start, _), size in steps)]
                )
        except OSError:
            return False
        return True

    def _write_chunk(self, origin: tuple[int, ...], values: np.ndarray[Any, Any]) -> None:
        """Write one chunk as a whole or not at all."""
        chunk = np.ascontiguousarray(values, self._dtype)
        if chunk.shape != self._chunks:
            chunk = np.full(self._chunks, self._fill, self._dtype)
            chunk[tuple(map(slice, values.shape))] = values
        file = self._folder.joinpath(*(str(at // size) for at, size in zip(origin, self._chunks, strict=True)))
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(f"{file.name}.{uuid.uuid4().hex}.partial")  # as zarr names its own
        try:
            with partial.open("wb") as stream:
                content = chunk.reshape(-1).view(np.uint8)
                stream.write(content.data)
                if self._has_checksums:
                    stream.write(google_crc32c.value(content).to_bytes(4, "little"))
            partial.replace(file)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _bounds(self, selection: Any) -> Bounds:
        """First and last + 1 of a selection along every axis; (0, 0) where it is no stretch."""
        selection = selection if isinstance(selection, tuple) else (selection,)
        if any(each is Ellipsis for each in selection):
            at = selection.index(Ellipsis)
            missing = len(self._shape) - len(selection) + 1
            selection = (*selection[:at], *[slice(None)] * missing, *selection[at + 1 :])
        whole = (*selection, *[slice(None)] * (len(self._shape) - len(selection)))
        pairs = zip(whole, self._shape, strict=True)
        return tuple(_bounds(each, size) if isinstance(each, slice) else (0, 0) for each, size in pairs)

    def _region(self, bounds: Bounds) -> np.ndarray[Any, Any] | None:
        """The region within these bounds: of one chunk as it is mapped, of several a copy."""
        numbers = []
        for axis, ((start, stop), size) in enumerate(zip(bounds, self._chunks, strict=True)):
            edge = (start // size + 1) * size
            if stop > edge:
                cuts = [start, *range(edge, stop, size), stop]
                pieces = [self._region((*bounds[:axis], cut, *bounds[axis + 1 :])) for cut in itertools.pairwise(cuts)]
                return None if any(piece is None for piece in pieces) else np.concatenate(pieces, axis)  # type: ignore[arg-type]
            numbers.append(start // size)
        file = self._folder.joinpath(*map(str, numbers))
        if not file.is_file():
            return None
        if self._has_checksums:
            _check_file(file)
        chunk = np.asarray(np.memmap(file, self._dtype, mode="c", shape=self._chunks))  # private: as good as one's own
        origins = [number * size for number, size in zip(numbers, self._chunks, strict=True)]
        return chunk[tuple(slice(start - at, stop - at) for (start, stop), at in zip(bounds, origins, strict=True))]


def mapped_chunks(array: Any) -> MappedChunks | None:
    """The chunks of a Zarr array on a local disk, if they lie there as they are in memory."""
    root, metadata = getattr(getattr(array.store, "_store", None), "root", None), array.metadata.to_dict()
    codecs = metadata.get("codecs", ())
    is_plain = metadata["zarr_format"] == 3 and all(
        codec["name"] in ("bytes", "crc32c") and codec.get("configuration", {}).get("endian", "little") == "little"
        for codec in codecs
    )
    by_folder = {"name": "default", "configuration": {"separator": "/"}}
    if not is_plain or metadata["chunk_key_encoding"] != by_folder or not isinstance(root, Path):
        return None
    return MappedChunks(root / array.path / "c", array, has_checksums=codecs[-1]["name"] == "crc32c")


def _bounds(selection: slice | int, size: int) -> tuple[int, int]:
    """First and last + 1 of a selection of consecutive entries."""
    if isinstance(selection, int):
        return selection % size, selection % size + 1
    start, stop, step = selection.indices(size)
    return (start, stop) if step == 1 else (0, 0)


def _check_file(file: Path) -> None:
    """Check the checksum at the end of a file, unless this process has done so already."""
    status = file.stat()
    _check_content(file, status.st_ino, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=2**16)
def _check_content(file: Path, *_: int) -> None:
    content = np.memmap(file, np.uint8, mode="r")
    if google_crc32c.value(content[:-4]) != int.from_bytes(content[-4:].tobytes(), "little"):
        raise ValueError("its checksum does not fit")
