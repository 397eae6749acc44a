"""Runs whose pieces of work are recorded: what a killed run has finished is not done again.

A step is a list of pieces. A piece writes whole chunks, then its value is recorded in a small file; where both are
there and undamaged, a later run takes the value and goes on. Several stages that share scratch arrays end in one saved
value: `run.load(name) or run.save(name, ...)`.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask
import dask.array as da

from cns_dask.errors import DamagedError
from cns_dask.execution.cluster import active_client, check_location_is_shared, span_of
from cns_dask.execution.compute import compute, merged
from cns_dask.execution.plan import Stage
from cns_dask.progress import PartProgress, Progress
from cns_dask.storage.arrays import StoredArray, aligned_regions, write_blocks
from cns_dask.storage.layout import ArrayPlan
from cns_dask.storage.locations import Location
from cns_dask.storage.outputs import check_space
from cns_dask.storage.records import decode, encode
from cns_dask.storage.store import ResultWriter

LOG = logging.getLogger("cns_dask")
MISSING_RECORD = object()  # instead of a value: there is no record, or what it promises is damaged
Region = tuple[slice, ...]


@dataclass(frozen=True)
class Piece:
    """A call whose value is recorded; `writes` are the regions of arrays that it fills."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    writes: tuple[tuple[StoredArray, Region], ...] = ()
    record: str = ""  # name of its record, where its position does not identify it across runs


class Run:
    """The work towards one output: runs stages, and takes over what earlier runs have recorded."""

    def __init__(self, writer: ResultWriter, progress: Progress) -> None:
        self.writer, self.progress = writer, progress
        self.is_resumed = bool(self._record_names())

    def check_ready(self, disk_bytes: int) -> None:
        """Check that there is room for the work, and that every worker sees where it goes."""
        if not self.is_resumed:  # else part of the work is there already
            check_space(self.writer.scratch, disk_bytes)
        check_location_is_shared(self.writer.location)

    @contextmanager
    def stage(self, stage: Stage) -> Iterator[RunningStage]:
        """Run a stage step by step."""
        self.writer.check_lock()
        with self.progress.stage(stage.name, stage.n_recorded) as advance:
            yield RunningStage(stage, self, advance)

    def write(self, stage: Stage, arrays: Mapping[str, da.Array]) -> None:
        """Run a stage that fills arrays with a row for every data row, one piece for each chunk of rows."""
        targets = [self.writer.create(stage.array(name)) for name in arrays]
        regions = [aligned_regions(X, target) for X, target in zip(arrays.values(), targets, strict=True)]
        blocks = [X.to_delayed().ravel() for X in arrays.values()]
        pieces = [
            Piece(write_blocks, (list(values), targets, parts), tuple(zip(targets, parts, strict=True)))
            for values, parts in zip(zip(*blocks, strict=True), zip(*regions, strict=True), strict=True)
        ]
        with self.stage(stage) as running:
            running.run(stage.steps[-1].name, pieces)

    def load(self, name: str, arrays: Sequence[str] = (), *, is_told: bool = True) -> Any | None:
        """The value that an earlier run has saved, if these arrays that go with it are undamaged; else None."""
        if not self.is_resumed or self.writer.records is None:
            return None
        value = decode_record(self.writer.records.read(f"{name}.json"))
        if value is MISSING_RECORD or not self.are_undamaged(arrays):
            return None
        if is_told:
            self.progress.resumed(name)
        return value

    def save(self, name: str, value: Any, *, drop_scratch: bool = True) -> Any:
        """Record the value of several stages, drop the scratch arrays that they shared, and return the value."""
        if self.writer.records is not None:
            self.writer.records.write(f"{name}.json", encode(value))
        if drop_scratch:
            self.writer.drop_scratch()
        return value

    def has_saved(self, prefix: str) -> bool:
        """Whether there is a record whose name begins so."""
        return any(name.startswith(prefix) for name in self._record_names())

    def forget(self, *prefixes: str) -> None:
        """Remove the records whose names begin so: their work is done again."""
        for name in self._record_names():
            if name.startswith(prefixes) and self.writer.records is not None:
                self.writer.records.remove(name)

    def _record_names(self) -> list[str]:
        return [] if self.writer.records is None else self.writer.records.names()

    def share(self, X: da.Array) -> da.Array:
        """Rows that are in this process's memory, written where workers can read them; without workers as they are."""
        if active_client() is None:
            return X
        array = ArrayPlan("input", X.shape, X.chunksize, str(X.dtype), scratch=True)
        target = self.writer.create(array)
        for region in aligned_regions(X, target):
            target[region] = X[region].compute(scheduler="synchronous")
        return target.lazy()

    def beside(self, name: str) -> Run:
        """Other work of the same run: all of it is in scratch, and goes when this is dropped."""
        folder, records = self.writer.scratch / name, self.writer.records
        places = folder / "result.zarr", folder / "scratch.zarr", records and records / name
        return Run(ResultWriter(*places, self.writer.check_lock), PartProgress(self.progress, name))

    def are_undamaged(self, names: Sequence[str]) -> bool:
        """Whether all chunks of these arrays are there, and as they were written."""
        try:
            arrays = [self.writer.array(name) for name in names]
        except DamagedError:
            return False
        return all(
            compute([dask.delayed(StoredArray.is_undamaged)(each, part) for each in arrays for part in each.regions()])
        )


class RunningStage:
    """A stage that runs: its pieces are computed, unless an earlier run has recorded them."""

    def __init__(self, stage: Stage, run: Run, advance: Callable[[], None]) -> None:
        self._stage, self._run, self._advance = stage, run, advance
        self._steps = {step.name for step in stage.steps}
        records = run.writer.records
        self._records = None if records is None else records / stage.name
        self._span = span_of("cns_dask", stage.name)
        self._labels: dict[str, str] = {}  # key of a task -> name of its record, for the log

    def create(self, name: str, **changes: Any) -> StoredArray:
        """Make an array of the stage, with these fields of its plan changed."""
        return self._run.writer.create(replace(self._stage.array(name), **changes))

    def run(self, step: str, pieces: Sequence[Piece]) -> list[Any]:
        """The values of the pieces of a step, in order: recorded ones, and the others computed now."""
        pieces = self.named(step, pieces)
        values = self.recorded(pieces)
        missing = [at for at, value in enumerate(values) if value is MISSING_RECORD]
        computed = self.compute([self.task(step, pieces[at]) for at in missing])
        for at, value in zip(missing, computed, strict=True):
            values[at] = value
        return values

    def named(self, step: str, pieces: Sequence[Piece]) -> list[Piece]:
        """The pieces of a step, each with the name of its record."""
        return [replace(piece, record=f"{step}-{piece.record or at}.json") for at, piece in enumerate(pieces)]

    def recorded(self, pieces: Sequence[Piece], *, check: bool = True) -> list[Any]:
        """The values that an earlier run has recorded, MISSING_RECORD for the others; `check` what they wrote."""
        values: list[Any] = [MISSING_RECORD] * len(pieces)
        if self._records is None or not self._run.is_resumed:
            return values
        names = set(self._records.names())
        present = [at for at, piece in enumerate(pieces) if piece.record in names]
        tasks = [
            dask.delayed(read_checked_record)(self._records, pieces[at].record, pieces[at].writes if check else ())
            for at in present
        ]
        for at, content in zip(present, compute(tasks), strict=True):
            values[at] = decode_record(content)
        n_recorded = sum(value is not MISSING_RECORD for value in values)
        if n_recorded:
            self._run.progress.resumed(self._stage.name, n_recorded, len(pieces))
            for _ in range(n_recorded):
                self._advance()
        return values

    def task(self, step: str, piece: Piece) -> Any:
        """The task that computes a piece and records its value."""
        delayed = self.delayed(step, compute_and_record, self._records, piece.record, piece.function, *piece.arguments)
        self._labels[delayed.key] = piece.record.removesuffix(".json")
        return delayed

    def delayed(self, step: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """A task of a step that is not recorded."""
        if step not in self._steps:
            raise ValueError(f"The stage {self._stage.name} has no step {step}: it has {sorted(self._steps)}.")
        return dask.delayed(function)(*arguments, dask_key_name=f"{step}-{uuid.uuid4().hex}")

    def merged(self, step: str, parts: Sequence[Any], merge: Callable[..., Any], *arguments: Any) -> Any:
        """One task for what many tasks return: see `compute.merged`."""
        return merged(parts, merge, *arguments, task=partial(self.delayed, step))

    def compute(self, tasks: Sequence[Any], finished: Callable[[int], None] = lambda _: None) -> list[Any]:
        """Compute tasks; `finished` is called with the position of each."""

        def done(position: int) -> None:
            if label := self._labels.get(tasks[position].key):  # of a recorded piece
                self._advance()
                LOG.info("%s: finished %s", self._stage.name, label)
            finished(position)

        tell = self._run.progress.tell
        return compute(tasks, done, stage=self._stage.name, tell=tell, annotations=self._span)


def compute_and_record(records: Location | None, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, then record its value."""
    value = function(*arguments)
    if records is not None:
        records.write(name, encode(value))
    return value


def read_checked_record(records: Location, name: str, writes: Sequence[tuple[StoredArray, Region]]) -> bytes | None:
    """The content of a record, unless what its piece wrote is damaged.

    It is decoded where the run is: a worker may not have imported the classes of its values.
    """
    return records.read(name) if all(array.is_undamaged(region) for array, region in writes) else None


def decode_record(content: bytes | None) -> Any:
    """The value of a record; MISSING_RECORD if there is none, or a damaged one."""
    try:
        return MISSING_RECORD if content is None else decode(content)
    except ValueError:
        return MISSING_RECORD
