"""The Zarr layout of a result: every array of it is a row of `LAYOUT`.

The group opens in xarray as it is: all arrays name their dimensions, and `cluster`, `k`, `lam` and
`n_clusters` are coordinates.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from cns_dask.arrays import StoredArray, create_array, lazy, open_group, require_group
from cns_dask.errors import DamagedError, DataNotFoundError, NotAResultError, StoreError
from cns_dask.places import Place
from cns_dask.types import ArrayLike

FORMAT_VERSION = 3
#: What a finished group says that it is.
RESULT, PREDICTION, GRAPH = KINDS = "result of cns_dask", "prediction of cns_dask", "graph of cns_dask"
SCRATCH = "scratch/"  # names that begin so are not part of the result


@dataclass(frozen=True)
class ArraySpec:
    """One stored array: its dimensions, type and meaning."""

    dims: tuple[str, ...]
    dtype: str
    meaning: str


LAYOUT: dict[str, ArraySpec] = {
    "labels": ArraySpec(("row",), "int64", "cluster of every row: its largest membership"),
    "memberships": ArraySpec(("row", "cluster"), "float64", "F: soft membership of every row, rows sum to 1"),
    "cluster": ArraySpec(("cluster",), "int64", "number of the cluster, as in labels"),
    "confidence": ArraySpec(("row",), "float64", "0: no cluster preferred, 1: only one in reach"),
    "representatives": ArraySpec(("cluster",), "int64", "row that represents each cluster"),
    "criterion": ArraySpec(("k", "lam", "n_clusters"), "float64", "C / R; NaN where too few candidates"),
    "codes": ArraySpec(("row",), "int8", "why a row was left out: -2 infinite, -3 missing; 0: it was not"),
    "rows": ArraySpec(("kept",), "int64", "row number of every clustered row, where some were left out"),
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


OF_CLUSTERED_ROWS = ("columns", "points", "graph/indices", "graph/distances")
UNCOMPRESSED = ("cells/points", "cells/rows")  # searches map them, and noise does not become smaller


class ResultStore:
    """A result group at a place; while it is made, with a group of intermediate values and a folder of records."""

    def __init__(self, place: Place, scratch: Place | None = None, records: Place | None = None) -> None:
        self.place = place
        self.skips = False  # whether some rows were left out: then arrays of the others have another dimension
        self._scratch, self.records = scratch, records  # records: of finished pieces; none if no run can go on
        self.still_ours: Callable[[], None] = lambda: None  # raises if another run has taken over

    @property
    def path(self) -> str:
        """Where it is."""
        return self.place.path

    @property
    def scratch_place(self) -> Place:
        """Where the intermediate values are."""
        if self._scratch is None:
            raise ValueError("A finished result has no intermediate values.")
        return self._scratch

    def begin(self) -> None:
        """Make the groups that are not there yet."""
        for place in (self.place, self.scratch_place):
            place.make()
            require_group(place)

    def _group(self, *, write: bool = False, strict: bool = False) -> Any:
        return open_group(self.place, "r+" if write else "r", strict=strict)

    @property
    def attributes(self) -> dict[str, Any]:
        """What is known about the result besides its arrays."""
        return dict(self._group().attrs.asdict())

    def describe(self, **attributes: Any) -> None:
        """Add attributes: plain values only."""
        self._group(write=True).attrs.update(attributes)

    @property
    def graph_attributes(self) -> dict[str, Any]:
        """What is known about the graph: how it was found, and its recall."""
        return dict(self._group()["graph"].attrs.asdict())

    def describe_graph(self, **attributes: Any) -> None:
        """Add attributes to the graph: plain values only."""
        require_group(self.place / "graph")
        self._group(write=True)["graph"].attrs.update(attributes)

    def create(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str | None = None
    ) -> StoredArray:
        """Create an array of the layout, to be filled by whole chunks; `dtype` for a smaller type than usual."""
        spec = LAYOUT[name]
        folder, _, leaf = name.rpartition("/")
        return create_array(
            self.place / folder if folder else self.place,
            leaf,
            shape,
            chunks,
            dtype or spec.dtype,
            compressed=name not in UNCOMPRESSED,
            dims=self._dims(name, spec.dims),
            attributes={"description": spec.meaning},
        )

    def _dims(self, name: str, dims: tuple[str, ...]) -> tuple[str, ...]:
        kept = self.skips and name in OF_CLUSTERED_ROWS
        return tuple("kept" if kept and dim == "row" else dim for dim in dims)

    def put(self, name: str, values: ArrayLike) -> None:
        """Create a small array and write it at once."""
        values = np.asarray(values)
        self.create(name, values.shape, values.shape)[...] = values

    def scratch(
        self, name: str, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float64"
    ) -> StoredArray:
        """Create an array for intermediate values."""
        return create_array(self.scratch_place, name, shape, chunks, dtype, compressed=False)

    def drop_scratch(self, name: str = "") -> None:
        """Remove one array of intermediate values, or all of them."""
        if name:
            self.scratch_place.remove(name)
        else:
            for each in self.scratch_place.names():
                if each != "zarr.json":
                    self.scratch_place.remove(each)

    def __contains__(self, name: str) -> bool:
        return self.place.exists(f"{name}/zarr.json")

    def array(self, name: str) -> StoredArray:
        """Open an array for tasks that read what they need of it."""
        return StoredArray(self._array(name), owner=self)

    def open(self, name: str) -> da.Array:
        """Open an array lazily, chunk by chunk."""
        return lazy(self.array(name))

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Read a small array."""
        return np.asarray(self.array(name)[...])

    def _array(self, name: str) -> Any:
        in_scratch = name.startswith(SCRATCH)
        group = open_group(self.scratch_place, strict=True) if in_scratch else self._group(strict=True)
        try:
            found = group[name.removeprefix(SCRATCH)]
        except StoreError:
            raise
        except Exception as error:
            raise DamagedError(f"The result must hold the array {name}. Got none in {self.path} ({error}).") from error
        if not in_scratch:
            _check_array(name, found)
        return found


def _check_array(name: str, array: Any) -> None:
    """Refuse an array that is not what the layout says: stores come from anywhere."""
    spec = LAYOUT[name]
    kind, ndim = np.dtype(spec.dtype).kind, len(spec.dims)
    if getattr(array, "ndim", None) != ndim or array.dtype.kind != kind:
        got = f"{getattr(array, 'ndim', 'no')} dimension(s) of type {getattr(array, 'dtype', 'group')}"
        raise NotAResultError(f"The array {name} must have {ndim} dimension(s) of a type like {spec.dtype}. Got {got}.")


class TemporaryStore(ResultStore):
    """A result that nobody asked to keep: it goes when the last reference goes. It pickles with its content."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="cns-dask-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        root = Place(folder)
        super().__init__(root / "result.zarr", root / "scratch.zarr")
        self.begin()

    def __getstate__(self) -> dict[str, bytes]:
        root = Path(self.path)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    def __setstate__(self, files: dict[str, bytes]) -> None:
        self.__init__()  # type: ignore[misc]
        for name, content in files.items():
            target = Path(self.path) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def kind_of(place: Place) -> str | None:
    """What a finished group at a place says that it is; None for anything else."""
    try:
        kind = open_group(place).attrs.get("format")
    except StoreError:
        raise
    except Exception:
        return None
    return kind if kind in KINDS else None


def open_result_store(path: str | os.PathLike[str], kind: str = RESULT, *others: str) -> ResultStore:
    """Open a finished group of one of these kinds."""
    place = Place(path)
    if not place.exists():
        unfinished = unfinished_place(place).exists()
        hint = "It is unfinished: run the same command again, it goes on where it stopped." if unfinished else ""
        raise DataNotFoundError(
            f"A {kind.split(maxsplit=1)[0]} must be stored at the given path. Got {path}, which does not exist. {hint}"
        )
    if kind_of(place) not in (kind, *others):
        raise NotAResultError(f"The path must hold a finished {kind}. Got {path}, which is something else.")
    store = ResultStore(place)
    version = store.attributes.get("format_version")
    if version != FORMAT_VERSION:
        raise NotAResultError(
            f"The result must have format version {FORMAT_VERSION}. Got {version!r} in {path}. "
            "Read it with the version of cns_dask that wrote it, or fit again."
        )
    return store


def unfinished_place(target: Place) -> Place:
    """Where the work towards `target` is kept until it is finished."""
    return target.parent / f".{target.name}.unfinished"
