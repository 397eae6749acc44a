"""The Zarr layout of a result: created once, written by whole chunks, opened many times. The only door to zarr.

Every array of a result is a row of `LAYOUT`. The group opens in xarray as it is: all arrays name their dimensions,
and `k`, `lam` and `n_clusters` are coordinates.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import dask
import dask.array as da
import numpy as np
import zarr
import zarr.codecs
from dask.delayed import Delayed

from cns_dask.errors import DataNotFoundError, InvalidDataError, NotAResultError, OutputError
from cns_dask.types import ArrayLike

FORMAT_VERSION = 2
#: What a finished group says that it is.
RESULT, PREDICTION, GRAPH = KINDS = "result of cns_dask", "prediction of cns_dask", "graph of cns_dask"


@dataclass(frozen=True)
class ArraySpec:
    """One stored array: its dimensions, type and meaning."""

    dims: tuple[str, ...]
    dtype: str
    meaning: str


LAYOUT: dict[str, ArraySpec] = {
    "labels": ArraySpec(("row",), "int64", "cluster of every row: its largest membership"),
    "memberships": ArraySpec(("row", "cluster"), "float64", "F: soft membership of every row, rows sum to 1"),
    "confidence": ArraySpec(("row",), "float64", "0: no cluster preferred, 1: only one in reach"),
    "representatives": ArraySpec(("cluster",), "int64", "row that represents each cluster"),
    "criterion": ArraySpec(("k", "lam", "n_clusters"), "float64", "C / R; NaN where too few candidates"),
    "k": ArraySpec(("k",), "int64", "numbers of neighbours tried, the row itself included"),
    "lam": ArraySpec(("lam",), "float64", "weights of the start solution tried"),
    "n_clusters": ArraySpec(("n_clusters",), "int64", "numbers of clusters tried"),
    "picks": ArraySpec(
        ("k", "lam", "n_clusters"), "int64", "row picked as K-th representative; -1 where there is none"
    ),
    "columns": ArraySpec(("row", "pick"), "float64", "P: lam times the winner's picked columns of (I - (1-lam) W)^-1"),
    "points": ArraySpec(("row", "component"), "float64", "rows as the neighbours saw them"),
    "graph/indices": ArraySpec(("row", "neighbor"), "int64", "nearest rows, the row itself first"),
    "graph/distances": ArraySpec(("row", "neighbor"), "float64", "distances to them"),
    "cells/centers": ArraySpec(("cell", "component"), "float32", "centres of the cells of an approximate search"),
    "cells/starts": ArraySpec(("edge",), "int64", "position of the first row of every cell, and the number of rows"),
    "cells/points": ArraySpec(("position", "component"), "float32", "points less the offset, by cell and row"),
    "cells/rows": ArraySpec(("position",), "int64", "their row numbers"),
    "cells/offset": ArraySpec(("component",), "float64", "subtracted from points before they are rounded"),
    "transform/kept": ArraySpec(("feature",), "int64", "raw columns that are not constant"),
    "transform/center": ArraySpec(("feature",), "float64", "subtracted from the kept columns"),
    "transform/scale": ArraySpec(("feature",), "float64", "divided out of the kept columns"),
    "transform/components": ArraySpec(("feature", "component"), "float64", "principal axes"),
}


UNCOMPRESSED = ("cells/points", "cells/rows")  # searches map them, and noise does not become smaller


class StoredArray:
    """An opened array on disk: small to ship inside a task, read and written by slices where it arrives.

    A bare Zarr array is a dataclass, into which Dask would look for collections once for every task; as a task of its
    own it would bind all that use it to the worker that holds it.
    """

    def __init__(self, array: zarr.Array[Any], owner: Any = None) -> None:
        self._array = array
        self._owner = owner  # a temporary store lives as long as an array of it; workers get the array alone
        self.shape, self.ndim, self.dtype, self.chunks = array.shape, array.ndim, array.dtype, array.chunks
        plain = not array.compressors and array.shards is None
        self._files = _chunk_files(array) if plain else None

    def __reduce__(self) -> tuple[type[StoredArray], tuple[zarr.Array[Any]]]:
        return StoredArray, (self._array,)

    def __getitem__(self, selection: Any) -> Any:
        mapped = None if self._files is None else self._mapped(selection)
        return self._array[selection] if mapped is None else mapped

    def _mapped(self, selection: Any) -> np.ndarray[Any, Any] | None:
        """A region of chunks that lie as they are in local files: mapped, so that only what is used is read.

        None if that is not so, or if the selection is anything but integers and plain slices.
        """
        selection = selection if isinstance(selection, tuple) else (selection,)
        if not all(isinstance(each, slice | int) for each in selection):
            return None
        whole = (*selection, *[slice(None)] * (self.ndim - len(selection)))
        bounds = tuple(_bounds(each, size) for each, size in zip(whole, self.shape, strict=True))
        region = self._region(bounds) if all(start < stop for start, stop in bounds) else None
        picked = tuple(0 if isinstance(each, int) else slice(None) for each in whole)
        return None if region is None else region[picked]

    def _region(self, bounds: tuple[tuple[int, int], ...]) -> np.ndarray[Any, Any] | None:
        """The region within these bounds: of one chunk as it is mapped, of several a copy."""
        numbers = []
        for axis, ((start, stop), size) in enumerate(zip(bounds, self.chunks, strict=True)):
            edge = (start // size + 1) * size
            if stop > edge:
                cuts = [start, *range(edge, stop, size), stop]
                pieces = [self._region((*bounds[:axis], cut, *bounds[axis + 1 :])) for cut in itertools.pairwise(cuts)]
                return None if any(piece is None for piece in pieces) else np.concatenate(pieces, axis)  # type: ignore[arg-type]
            numbers.append(start // size)
        file = self._files.joinpath(*map(str, numbers))  # type: ignore[union-attr]
        if not file.is_file():
            return None
        chunk = np.asarray(np.memmap(file, self.dtype, mode="c", shape=self.chunks))  # private: as good as one's own
        origins = [number * size for number, size in zip(numbers, self.chunks, strict=True)]
        return chunk[tuple(slice(start - at, stop - at) for (start, stop), at in zip(bounds, origins, strict=True))]

    def __setitem__(self, selection: Any, values: Any) -> None:
        self._array[selection] = values


class ResultStore:
    """A result group on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def _group(self, mode: Literal["r", "r+"] = "r") -> zarr.Group:
        return zarr.open_group(str(self.path), mode=mode, use_consolidated=False)

    @property
    def attributes(self) -> dict[str, Any]:
        """What is known about the result besides its arrays."""
        return self._group().attrs.asdict()

    def describe(self, **attributes: Any) -> None:
        """Add attributes: plain values only."""
        self._group("r+").attrs.update(attributes)

    @property
    def graph_attributes(self) -> dict[str, Any]:
        """What is known about the graph: how it was found, and its recall."""
        return self._group()["graph"].attrs.asdict()

    def describe_graph(self, **attributes: Any) -> None:
        """Add attributes to the graph: plain values only."""
        self._group("r+")["graph"].attrs.update(attributes)

    def create(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str | None = None
    ) -> StoredArray:
        """Create an array of the layout, to be filled by `write_tasks`; `dtype` for a smaller type than usual."""
        spec = LAYOUT[name]
        folder, _, leaf = name.rpartition("/")
        group = self._group("r+")
        group = group.require_group(folder) if folder else group
        array = group.create_array(
            leaf,
            shape=shape,
            dtype=dtype or spec.dtype,
            chunks=_clamped(chunks, shape),
            dimension_names=spec.dims,
            fill_value=_no_value(spec.dtype),
            compressors=None if name in UNCOMPRESSED else zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle"),
            attributes={"description": spec.meaning},
        )
        return StoredArray(array)

    def put(self, name: str, values: ArrayLike) -> None:
        """Create a small array and write it at once."""
        values = np.asarray(values)
        self.create(name, values.shape, values.shape)[...] = values

    def fill(self, name: str, values: da.Array, rows_per_chunk: int) -> list[Delayed]:
        """Create an array and return the tasks that write it, chunk by chunk."""
        return write_tasks(values, self.create(name, values.shape, (rows_per_chunk, *values.shape[1:])))

    def scratch(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float64"
    ) -> StoredArray:
        """Create (or replace) an array for intermediate values."""
        group = self._group("r+").require_group("scratch")
        array = group.create_array(
            name,
            shape=shape,
            dtype=dtype,
            chunks=_clamped(chunks, shape),
            fill_value=_no_value(dtype),
            compressors=None,
            overwrite=True,
        )
        return StoredArray(array)

    def drop_scratch(self, name: str = "") -> None:
        """Remove one array of intermediate values, or all of them."""
        del self._group("r+")[f"scratch/{name}".rstrip("/")]

    def __contains__(self, name: str) -> bool:
        return name in self._group()

    def array(self, name: str) -> StoredArray:
        """Open an array for tasks that read what they need of it."""
        return StoredArray(self._array(name), owner=self)

    def open(self, name: str) -> da.Array:
        """Open an array lazily, chunk by chunk."""
        return _lazy(self._array(name), owner=self)

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Read a small array."""
        return np.asarray(self._array(name)[...])

    def _array(self, name: str) -> zarr.Array[Any]:
        return self._group()[name]  # type: ignore[return-value]


class TemporaryStore(ResultStore):
    """A result that nobody asked to keep: it goes when the last reference goes. It pickles with its content."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="cns-dask-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        super().__init__(Path(folder) / "result.zarr")
        _create_group(self.path)

    def __getstate__(self) -> dict[str, bytes]:
        files = (path for path in self.path.rglob("*") if path.is_file())
        return {str(path.relative_to(self.path)): path.read_bytes() for path in files}

    def __setstate__(self, files: dict[str, bytes]) -> None:
        self.__init__()  # type: ignore[misc]
        for name, content in files.items():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


@contextmanager
def new_result(out: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> Iterator[ResultStore]:
    """Fill a new result beside `out` and move it there only when the block ends well: never half a result.

    `kind` says what it is. An existing output of the same kind is replaced at that moment, and only with `overwrite`.
    """
    target = check_output(out, kind, overwrite=overwrite)
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".partial", dir=target.parent))
    except OSError as error:
        raise OutputError(f"The output must be writable. Got {out} ({error}).") from error
    try:
        staging.chmod(0o777 & ~_umask())
        store = ResultStore(staging / "result.zarr")
        _create_group(store.path)
        yield store
        check_output(out, kind, overwrite=overwrite)  # something may have appeared there meanwhile
        store.describe(format=kind, format_version=FORMAT_VERSION)  # the mark that it is complete
        _move(store.path, target, aside=staging / "replaced")
        store.path = target
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _move(new: Path, target: Path, aside: Path) -> None:
    """Put `new` in the place of `target`; if that fails, the old one comes back."""
    existed = target.exists()
    if existed:
        target.rename(aside)
    try:
        new.rename(target)
    except OSError:
        if existed:
            aside.rename(target)
        raise


def check_output(out: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> Path:
    """Return `out` as a path where a group of this kind can be written, or say why not."""
    if "://" in str(out):
        raise OutputError(f"The output must be a path on a local or shared disk. Got {out}.")
    target = Path(out).expanduser().resolve()  # a link is followed: what it points to is written
    try:
        exists = target.exists()
    except OSError as error:
        raise OutputError(f"The output must be a path of this system. Got {out} ({error}).") from error
    if exists:
        if not overwrite:
            raise OutputError(f"The output must not exist. Got {out}. Choose another, or overwrite it.")
        if kind_of(target) != kind:
            raise OutputError(f"Only a {kind} is overwritten by one. Got {out}, which is something else.")
    if not target.parent.is_dir():
        raise OutputError(f"The folder of the output must exist. Got {target.parent}. Create it first.")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise OutputError(f"The folder of the output must be writable. Got {target.parent}.")
    return target


def check_space(path: Path, needed: int) -> None:
    """Refuse to start when the disk has less room than the plan needs."""
    free = shutil.disk_usage(path).free
    if free < needed:
        raise OutputError(
            f"The disk of {path} must have at least {needed / 2**20:.0f} MiB free. Got {free / 2**20:.0f} MiB. "
            "Use another output, or a smaller max_candidates."
        )


def kind_of(path: Path) -> str | None:
    """What a finished group at `path` says that it is; None for anything else."""
    try:
        kind = zarr.open_group(str(path), mode="r", use_consolidated=False).attrs.get("format")
    except Exception:
        return None
    return kind if kind in KINDS else None


def open_store(path: str | os.PathLike[str], kind: str = RESULT, *others: str) -> ResultStore:
    """Open a finished group of one of these kinds."""
    location = Path(path).expanduser().absolute()
    if not location.exists():
        raise DataNotFoundError(
            f"A {kind.split(maxsplit=1)[0]} must be stored at the given path. Got {path}, which does not exist."
        )
    if kind_of(location) not in (kind, *others):
        raise NotAResultError(f"The path must hold a finished {kind}. Got {path}, which is something else.")
    store = ResultStore(location)
    if store.attributes.get("format_version") != FORMAT_VERSION:
        raise NotAResultError(
            f"The result must have format version {FORMAT_VERSION}. Got {store.attributes.get('format_version')} "
            f"in {path}. Read it with the version of cns_dask that wrote it, or fit again."
        )
    return store


def open_array(location: str) -> da.Array:
    """Open any Zarr array (path or URL) lazily, by whole shards where it has them."""
    try:
        array = zarr.open_array(location, mode="r")
    except (FileNotFoundError, KeyError, ValueError) as error:  # zarr's own errors inherit these
        raise InvalidDataError(
            f"The path must hold a Zarr array. Got {location}, which does not open as one ({error}). "
            "For an array inside a group give the path of the array itself."
        ) from error
    return _lazy(array)


def write_tasks(values: da.Array, target: StoredArray) -> list[Delayed]:
    """One task for every chunk of `values`; each writes whole chunks of `target`.

    Two tasks that share a chunk would corrupt it silently, so misaligned chunks are refused.
    """
    if values.shape != target.shape:
        raise ValueError(f"Shapes must be equal. Got {values.shape} for {target.shape}.")
    for sizes, chunk in zip(values.chunks, target.chunks, strict=True):
        if any(size % chunk for size in sizes[:-1]):
            raise ValueError(f"Chunks must be multiples of {chunk} to be written whole. Got {sizes}.")
    blocks = values.to_delayed().ravel()
    return [
        dask.delayed(write_block)(block, target, region)
        for block, region in zip(blocks, da.core.slices_from_chunks(values.chunks), strict=True)
    ]


def write_block(values: np.ndarray[Any, Any], target: StoredArray, region: Sequence[slice]) -> None:
    """Write one block into its region."""
    target[tuple(region)] = values


def _lazy(array: zarr.Array[Any], owner: Any = None) -> da.Array:
    """A Dask array whose tasks each carry the opened array: see `StoredArray`."""
    chunks = array.shards or array.chunks
    return da.from_array(StoredArray(array, owner), chunks=chunks, name=False, inline_array=True)


def _bounds(selection: slice | int, size: int) -> tuple[int, int]:
    """First and last + 1 of a selection of consecutive entries."""
    if isinstance(selection, int):
        return selection % size, selection % size + 1
    start, stop, step = selection.indices(size)
    return (start, stop) if step == 1 else (0, 0)


def _chunk_files(array: zarr.Array[Any]) -> Path | None:
    """Folder of the chunks of an array on a local disk."""
    root = getattr(array.store, "root", None)
    return Path(root) / array.path / "c" if isinstance(root, Path) else None


def _no_value(dtype: str) -> float | int:
    """What a lost chunk reads as: nothing that looks like a value."""
    return {"f": np.nan, "i": -1, "u": int(np.iinfo(dtype).max) if dtype[0] == "u" else 0}[dtype[0]]


def _clamped(chunks: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(max(1, min(size, chunk)) for size, chunk in zip(shape, chunks, strict=True))


def _create_group(path: Path) -> None:
    zarr.create_group(str(path), zarr_format=3)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
