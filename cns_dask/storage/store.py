"""Stored results: `ResultStore` reads one that is complete, `ResultWriter` fills one that is not yet."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from cns_dask.array_types import ArrayLike
from cns_dask.errors import DamagedError, DataNotFoundError, NotAResultError, StoreError
from cns_dask.storage.arrays import StoredArray, array_files, create_array, open_group, require_group
from cns_dask.storage.layout import (
    FORMAT_VERSION,
    GROUPS,
    LARGER,
    LAYOUT,
    OF_CLUSTERED_ROWS,
    REQUIRED,
    UNCOMPRESSED,
    ArrayPlan,
    Kind,
)
from cns_dask.storage.locations import AT_ONCE, Location
from cns_dask.storage.owners import lives_here, this_process

TEMPORARY, OWNER = "cns-dask-", "owner.json"  # prefix of temporary folders, and the file that tells whose one is
DESCRIPTIONS = [f"{name}/zarr.json" for name in (*LAYOUT, *GROUPS)]  # of all that a result may hold


class ResultStore:
    """A stored group, opened once for reading. A temporary one is pickled together with its files."""

    def __init__(self, location: Location, owner: TemporaryFolder | None = None) -> None:
        self.location = location
        self._owner = owner  # a temporary folder lives as long as something that reads it

    def __reduce__(self) -> tuple[Any, ...]:
        if self._owner is None:
            return ResultStore, (self.location,)
        root = Path(self.location.path)
        files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        return _unpack, (files,)

    @cached_property
    def _group(self) -> Any:
        return open_group(self.location, strict=True)

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """What is stored about the result besides its arrays."""
        return dict(self._group.attrs.asdict())

    @cached_property
    def graph_attributes(self) -> dict[str, Any]:
        """What is stored about the graph: how it was found, and its recall."""
        try:
            return dict(self._group["graph"].attrs.asdict())
        except StoreError:
            raise
        except Exception as error:
            raise NotAResultError(f"This is not a result of cns_dask: its graph is not described ({error}).") from error

    def __contains__(self, name: str) -> bool:
        is_there = self.location.exists(f"{name}/zarr.json")
        if not is_there and not self.location.exists("zarr.json"):
            raise DataNotFoundError(f"There is no result at {self.location} any more: it was moved or removed.")
        return is_there

    def array(self, name: str) -> StoredArray:
        """Open an array for tasks that read what they need of it."""
        try:
            array = self._group[name]
        except StoreError:
            raise
        except Exception as error:
            raise DamagedError(
                f"The array {name} is missing or damaged in {self.location} ({error}). Fit again, or restore it."
            ) from error
        _check_array(name, array)
        return StoredArray(array, owner=self)

    def open(self, name: str) -> da.Array:
        """Open an array lazily, chunk by chunk."""
        return self.array(name).lazy()

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Read a small array, whose values must be as the layout says."""
        values, allowed = np.asarray(self.array(name)[...]), LAYOUT[name].values
        if allowed is not None:
            below = self.sizes[allowed.below] if isinstance(allowed.below, str) else allowed.below
            numbers = values.astype(np.float64)
            if not ((numbers >= allowed.low) & (numbers < below)).all():
                raise NotAResultError(
                    f"This is not a result of cns_dask: {name} has values outside {allowed.low} to {below}."
                )
        return values

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The size of every dimension: all arrays that a finished store must have are there, and fit each other."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            there = dict(zip(LAYOUT, pool.map(self.__contains__, LAYOUT), strict=True))
            required = REQUIRED.get(self.attributes.get("format"), ())
            names = [name for name in LAYOUT if there[name] or name in required]
            arrays = list(pool.map(self.array, names))
        sizes: dict[str, int] = {}
        for name, array in zip(names, arrays, strict=True):
            for dim, size in zip(self.dims(name), array.shape, strict=True):
                _check_size(name, dim, size, sizes.setdefault(dim, size))
        if "row" in sizes:
            sizes.setdefault("clustered", sizes["row"])
        if "first_copy" in self:  # cells hold first rows alone
            sizes.pop("position", None)
        for dim in LARGER.keys() & sizes.keys():
            other, more = LARGER[dim]
            _check_size("an array", dim, sizes[dim], sizes.get(other, 0) + more)
        return sizes

    def dims(self, name: str) -> tuple[str, ...]:
        """The dimensions of an array: where some rows were not clustered, some arrays have fewer."""
        dims = LAYOUT[name].dims
        return ("clustered", *dims[1:]) if name in OF_CLUSTERED_ROWS and self._skips else dims

    @cached_property
    def _skips(self) -> bool:
        return "rows" in self


class ResultWriter(ResultStore):
    """A group that is being filled, with a group of scratch arrays and a folder of records.

    Parameters
    ----------
    location, scratch
        Where the two groups are.
    records
        Where finished work is recorded; None if no later run can go on with it.
    check_lock
        Raises if another run has taken over the output.
    """

    def __init__(
        self,
        location: Location,
        scratch: Location,
        records: Location | None = None,
        check_lock: Callable[[], None] = lambda: None,
        owner: TemporaryFolder | None = None,
    ) -> None:
        super().__init__(location, owner)
        self.scratch, self.records, self.check_lock = scratch, records, check_lock
        for each in (location, scratch):
            each.make()
            require_group(each)

    @property
    def attributes(self) -> dict[str, Any]:
        """What has been described so far."""
        return dict(open_group(self.location).attrs.asdict())

    def describe(self, **attributes: Any) -> None:
        """Add attributes: plain values only."""
        open_group(self.location, "r+").attrs.update(attributes)

    def describe_graph(self, **attributes: Any) -> None:
        """Add attributes to the graph: plain values only."""
        require_group(self.location / "graph").attrs.update(attributes)

    def create(self, array: ArrayPlan) -> StoredArray:
        """Create an array, or open the one that an earlier run has created just so."""
        if array.scratch:
            return create_array(
                self.scratch,
                array.name,
                array.shape,
                array.chunks,
                array.dtype or "float64",
                compressed=array.compressed,
            )
        spec = LAYOUT[array.name]
        folder, _, leaf = array.name.rpartition("/")
        return create_array(
            self.location / folder if folder else self.location,
            leaf,
            array.shape,
            array.chunks,
            array.dtype or spec.dtype,
            compressed=array.name not in UNCOMPRESSED,
            dims=self.dims(array.name),
            attributes={"description": spec.meaning},
        )

    @property
    def _skips(self) -> bool:
        return "rows" in self

    def put(self, name: str, values: ArrayLike) -> None:
        """Create a small array and write it at once."""
        values = np.asarray(values)
        self.create(ArrayPlan(name, values.shape, values.shape))[...] = values

    def drop_scratch(self, name: str = "") -> None:
        """Remove one scratch array, or all of them."""
        for each in [name] if name else self.scratch.names():
            if each != "zarr.json":
                self.scratch.remove(each)


class TemporaryFolder:
    """A folder that goes with the last reference to it; those of processes that were killed go with the next run."""

    def __init__(self) -> None:
        _remove_orphans()
        self.location = Location(tempfile.mkdtemp(prefix=TEMPORARY))
        weakref.finalize(self, shutil.rmtree, self.location.path, ignore_errors=True)
        self.location.write(OWNER, json.dumps(this_process()).encode())

    def writer(self) -> ResultWriter:
        """The writer of a result that nobody asked to keep."""
        return ResultWriter(self.location / "result.zarr", self.location / "scratch.zarr", owner=self)

    def store(self) -> ResultStore:
        """The result."""
        return ResultStore(self.location / "result.zarr", owner=self)


@cache
def _remove_orphans() -> None:
    """Remove the temporary folders of processes of this machine that are dead; once in a process."""
    for folder in Path(tempfile.gettempdir()).glob(f"{TEMPORARY}*"):
        owner = Location(folder).read(OWNER)
        if owner is not None and lives_here(owner) is False:
            shutil.rmtree(folder, ignore_errors=True)


def _unpack(files: dict[str, bytes]) -> ResultStore:
    store = TemporaryFolder().store()
    for name, content in files.items():
        target = Path(store.location.path) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    return store


def _check_array(name: str, array: Any) -> None:
    """Refuse an array that is not what the layout says: stores come from anywhere."""
    spec = LAYOUT[name]
    kind, ndim = np.dtype(spec.dtype).kind, len(spec.dims)
    if getattr(array, "ndim", None) != ndim or array.dtype.kind != kind:
        shape = f"{array.ndim} dimension(s) of type {array.dtype}" if hasattr(array, "ndim") else "no dimensions"
        raise NotAResultError(
            f"This is not a result of cns_dask: {name} has {shape} instead of {ndim} dimension(s) of a type like "
            f"{spec.dtype}."
        )


def _check_size(name: str, dim: str, size: int, expected: int) -> None:
    if size != expected:
        raise NotAResultError(
            f"This is not a result of cns_dask: {name} has {size} entries along {dim} instead of {expected}."
        )


def kind_of(location: Location) -> Kind | None:
    """What a finished group says that it is; None for anything else."""
    try:
        return Kind(open_group(location).attrs.get("format"))
    except StoreError:
        raise
    except Exception:
        return None


def is_there(location: Location) -> bool:
    """Whether there is anything: asked for by name first, because a folder is only known from listings, which lag."""
    return location.exists("zarr.json") or location.exists()


def result_files(location: Location) -> list[str]:
    """Names of all files of a group that is complete, as its arrays tell: no listing, which may lag behind."""
    groups = ["zarr.json", *(f"{name}/zarr.json" for name in GROUPS if location.exists(f"{name}/zarr.json"))]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [*groups, *itertools.chain.from_iterable(pool.map(partial(array_files, location), LAYOUT))]


def open_store(path: str | os.PathLike[str], *kinds: Kind) -> ResultStore:
    """Open a finished group of one of these kinds."""
    location = Location(path)
    what = kinds[0].split(maxsplit=1)[0]
    if not is_there(location):
        unfinished = unfinished_folder(location).exists()
        hint = " It is unfinished: run the same command again, and it goes on where it stopped." if unfinished else ""
        raise DataNotFoundError(f"There is no {what} at {path}: nothing exists there.{hint}")
    if kind_of(location) not in kinds:
        raise NotAResultError(f"{path} is not a finished {kinds[0]}, but something else.")
    store = ResultStore(location)
    version = store.attributes.get("format_version")
    if version != FORMAT_VERSION:
        raise NotAResultError(
            f"{path} has format version {version!r}, and this version of cns_dask reads version {FORMAT_VERSION}. "
            "Fit again, or read it with the version of cns_dask that wrote it."
        )
    return store


def unfinished_folder(target: Location) -> Location:
    """Where the work towards `target` is kept until it is finished."""
    return target.parent / f".{target.name}.unfinished"
