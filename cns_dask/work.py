"""Work in pieces, each noted when it is done: what a killed run has finished is not done again.

A stage is a list of pieces. A piece writes whole chunks, then its value is noted in a small file; if both are there and
whole, a later run takes the value and goes on. Several stages that share intermediate values are wrapped in `once`:
when they are through, their end is noted as a whole and the intermediate values go.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da

from cns_dask.arrays import StoredArray, aligned_regions, write_blocks
from cns_dask.errors import DamagedError
from cns_dask.places import Place
from cns_dask.progress import Progress
from cns_dask.records import decode, encode
from cns_dask.runtime import active_client, run
from cns_dask.store import ResultStore

LOG = logging.getLogger("cns_dask")
ABSENT = "absent"  # instead of a value: no record, or not what it says
Region = tuple[slice, ...]


@dataclass(frozen=True)
class Piece:
    """A call whose value is noted; `writes` are the regions of stored arrays that it leaves behind."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    writes: tuple[tuple[str, Region], ...] = ()
    name: str = ""  # of its record


class Work:
    """The work towards one result: stages of pieces, and what was found of them from earlier runs."""

    def __init__(self, store: ResultStore, progress: Progress) -> None:
        self.store, self.progress = store, progress
        self.begun = store.records is not None and bool(store.records.names())  # by an earlier run

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Stage]:
        """Run a stage of `total` pieces."""
        self.store.still_ours()
        with self.progress.stage(name, total) as advance:
            yield Stage(name, self, advance)

    def run(self, name: str, pieces: Sequence[Piece]) -> list[Any]:
        """Run a stage that is one list of pieces."""
        with self.stage(name, len(pieces)) as stage:
            return stage.run(pieces)

    def once(self, name: str, make: Callable[[], Any], arrays: Sequence[str] = (), *, drop: bool = True) -> Any:
        """The value of `make`: from an earlier run if it was through there, and left these arrays whole.

        Then the intermediate values go, unless they are not only its own.
        """
        record = f"{name}.json"
        records = self.store.records
        value = _noted(records, record) if records is not None and self.begun else (ABSENT, None)
        if value[0] != ABSENT and self.are_whole(arrays):
            self.progress.found(name)
            return value[1]
        made = make()
        if records is not None:
            records.write(record, encode(made))
        if drop:
            self.store.drop_scratch()
        return made

    def forget(self, begins: tuple[str, ...]) -> None:
        """Do again all whose records have names that begin so."""
        for name in self._noted_names():
            if name.startswith(begins):
                self.store.records.remove(name)  # type: ignore[union-attr]

    def is_through(self, begins: str) -> bool:
        """Whether something of that name has been through."""
        return any(name.startswith(begins) for name in self._noted_names())

    def _noted_names(self) -> list[str]:
        return [] if self.store.records is None else self.store.records.names()

    def fill(self, arrays: dict[str, da.Array], rows_per_chunk: int) -> list[Piece]:
        """Create arrays with one row per data row; the pieces that write them, one for every chunk of rows."""
        targets = [self.store.create(name, X.shape, (rows_per_chunk, *X.shape[1:])) for name, X in arrays.items()]
        regions = [aligned_regions(X, target) for X, target in zip(arrays.values(), targets, strict=True)]
        blocks = [X.to_delayed().ravel() for X in arrays.values()]
        return [
            Piece(write_blocks, (list(values), targets, places), tuple(zip(arrays, places, strict=True)))
            for values, places in zip(zip(*blocks, strict=True), zip(*regions, strict=True), strict=True)
        ]

    def sent(self, X: da.Array) -> da.Array:
        """Rows that are in this process's memory, where workers can read them; without workers as they are."""
        if active_client() is None:
            return X
        target = self.store.scratch("input", X.shape, X.chunksize, str(X.dtype))
        for region in aligned_regions(X, target):
            target[region] = X[region].compute(scheduler="synchronous")
        return self.store.open("scratch/input")

    def are_whole(self, names: Sequence[str]) -> bool:
        """Whether all chunks of these arrays are there, and as they were written."""
        try:
            arrays = [self.store.array(name) for name in names]
        except DamagedError:
            return False
        regions = [da.core.slices_from_chunks(da.core.normalize_chunks(a.chunks, a.shape)) for a in arrays]
        checks = [
            dask.delayed(StoredArray.is_whole)(a, r) for a, some in zip(arrays, regions, strict=True) for r in some
        ]
        return all(run(checks))


class Stage:
    """One stage: its pieces are run, or found."""

    def __init__(self, name: str, work: Work, advance: Callable[[], None]) -> None:
        self._name, self._work, self._advance = name, work, advance
        self._records = None if work.store.records is None else work.store.records / name
        self._runs = 0
        self._pieces: dict[str, str] = {}  # key of a task -> name of its piece, for the log

    def run(self, pieces: Sequence[Piece]) -> list[Any]:
        """The values of some pieces, in order: found, or made now."""
        self._runs += 1
        names = (f"{self._runs}-{piece.function.__name__}-{at}.json" for at, piece in enumerate(pieces))
        pieces = [replace(piece, name=piece.name or name) for piece, name in zip(pieces, names, strict=True)]
        found = self.found(pieces)
        missing = [at for at, value in enumerate(found) if value is ABSENT]
        made = self.compute([self.task(pieces[at]) for at in missing])
        for at, value in zip(missing, made, strict=True):
            found[at] = value
        return found

    def found(self, pieces: Sequence[Piece], *, check: bool = True) -> list[Any]:
        """The values of pieces that an earlier run has done, ABSENT for the others; with a look at what they wrote."""
        values: list[Any] = [ABSENT] * len(pieces)
        if self._records is None or not self._work.begun:
            return values
        noted = set(self._records.names())
        there = [at for at, piece in enumerate(pieces) if piece.name in noted]
        arrays: dict[str, Any] = {}
        tasks = []
        for at in there:
            writes = [(self._open(name, arrays), region) for name, region in pieces[at].writes] if check else []
            tasks.append(dask.delayed(checked)(self._records, pieces[at].name, writes))
        for at, (state, value) in zip(there, run(tasks), strict=True):
            values[at] = ABSENT if state == ABSENT else value
        n_found = sum(value is not ABSENT for value in values)
        if n_found:
            self._work.progress.found(self._name, n_found, len(pieces))
            for _ in range(n_found):
                self._advance()
        return values

    def _open(self, name: str, opened: dict[str, Any]) -> Any:
        if name not in opened:
            try:
                opened[name] = self._work.store.array(name)
            except DamagedError:
                opened[name] = None
        return opened[name]

    def task(self, piece: Piece) -> Any:
        """The task that runs a piece and notes its value."""
        key = f"{piece.function.__name__}-{uuid.uuid4().hex}"
        self._pieces[key] = piece.name.removesuffix(".json")
        return dask.delayed(do_and_note)(self._records, piece.name, piece.function, *piece.arguments, dask_key_name=key)

    def compute(self, tasks: Sequence[Any], finished: Callable[[int], None] = lambda _: None) -> list[Any]:
        """Run tasks; `finished` is told the position of each."""

        def done(position: int) -> None:
            LOG.info("%s: finished %s", self._name, self._pieces[tasks[position].key])
            finished(position)

        return run(tasks, self._advance, done, stage=self._name)


def do_and_note(records: Place | None, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Do a piece of work, then note its value."""
    value = function(*arguments)
    if records is not None:
        records.write(name, encode(value))
    return value


def checked(records: Place, name: str, writes: Sequence[tuple[StoredArray | None, Region]]) -> tuple[str, Any]:
    """The noted value of a piece, unless what it wrote is not there as it was."""
    if not all(array is not None and array.is_whole(region) for array, region in writes):
        return ABSENT, None
    return _noted(records, name)


def _noted(records: Place, name: str) -> tuple[str, Any]:
    content = records.read(name)
    if content is None:
        return ABSENT, None
    try:
        return "there", decode(content)
    except ValueError:
        return ABSENT, None
