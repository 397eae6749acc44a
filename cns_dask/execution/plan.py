"""Descriptions of stages: what runs, is resumed, planned and forecast.

A stage is described once, before it runs: its steps (tasks of one kind, with the memory and the amount of work of
each) and the arrays that it reads and writes. `Run` takes the name, the counts and the arrays from the description, a
`Plan` adds up memory and disk, and `forecast` turns work into time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cns_dask.storage.layout import ArrayPlan

PROCESS_BYTES = 450 * 2**20  # a worker that has imported everything and holds no data
USABLE_SHARE = 0.8  # Dask pauses a worker that uses more of its memory limit


@dataclass(frozen=True)
class Step:
    """Tasks of one kind within a stage.

    Attributes
    ----------
    name
        Prefix of the keys of these tasks: what Dask's dashboard shows.
    tasks
        How many there are.
    task_bytes
        Memory that one of them holds.
    work
        Amount of work of all of them together, in a unit of its own: a forecast needs only ratios.
    after
        Positions of the steps of the same stage that must end before. Stages follow one another.
    recorded
        Whether each task is recorded when it is done, so that a later run does not repeat it.
    gathers
        Whether most of the time goes into reaching rows in memory: then large data take longer per row.
    """

    name: str
    tasks: int
    task_bytes: int = 0
    work: float = 0.0
    after: tuple[int, ...] = ()
    recorded: bool = True
    gathers: bool = False


@dataclass(frozen=True)
class Stage:
    """One stage of a run.

    Attributes
    ----------
    name
        What progress, logs and records call it.
    steps
        Its tasks, by kind.
    reads, writes
        Arrays that it reads and those that it leaves behind.

    Examples
    --------
    >>> squares = ArrayPlan("squares", (10,), (5,), scratch=True)
    >>> Stage("square", (Step("square", tasks=2, task_bytes=80, work=10),), writes=(squares,)).n_recorded
    2
    """

    name: str
    steps: tuple[Step, ...]
    reads: tuple[ArrayPlan, ...] = ()
    writes: tuple[ArrayPlan, ...] = ()

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return sum(step.tasks for step in self.steps)

    @property
    def n_recorded(self) -> int:
        """Number of tasks that are recorded: what progress counts."""
        return sum(step.tasks for step in self.steps if step.recorded)

    @property
    def task_bytes(self) -> int:
        """Memory of the largest task."""
        return max(step.task_bytes for step in self.steps)

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return sum(array.nbytes for array in (*self.reads, *self.writes))

    def array(self, name: str) -> ArrayPlan:
        """One of the arrays that it writes."""
        return next(array for array in self.writes if array.name == name)


@dataclass(frozen=True)
class Plan:
    """All stages of a run.

    Attributes
    ----------
    stages
        In the order in which they run.
    shared_bytes
        What the threads of a worker process share besides the process itself.
    """

    stages: tuple[Stage, ...]
    shared_bytes: int = 0

    def stage(self, name: str) -> Stage:
        """The stage of that name."""
        return next(stage for stage in self.stages if stage.name == name)

    def worker_bytes(self, n_threads: int) -> int:
        """Memory limit that a worker process with `n_threads` threads needs."""
        largest = max(stage.task_bytes for stage in self.stages)
        return memory_limit(self.shared_bytes + n_threads * largest)

    @property
    def disk_bytes(self) -> int:
        """Room for all arrays, uncompressed, as if intermediate ones stayed until the end."""
        return sum(array.nbytes for stage in self.stages for array in stage.writes)

    @property
    def n_tasks(self) -> int:
        """Number of tasks."""
        return sum(stage.n_tasks for stage in self.stages)


def memory_limit(peak_bytes: int) -> int:
    """The limit of a worker process that needs `peak_bytes` beside what it has imported."""
    return math.ceil((PROCESS_BYTES + peak_bytes) / USABLE_SHARE)
