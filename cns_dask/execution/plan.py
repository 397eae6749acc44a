"""Descriptions of stages: what runs, is resumed, planned and forecast.

A stage is described once, before it runs: its steps (tasks of one kind, with the memory and the amount of work of
each) and the arrays that it reads and writes. `Run` takes the name, the counts and the arrays from the description, a
`Plan` adds up memory and disk, and `forecast` turns work into time.
"""

import math
from dataclasses import dataclass

from cns_dask.storage.layout import ArrayPlan

PROCESS_BYTES = 450 * 2**20  # a worker that has imported everything and holds no data
MERGED_AT_ONCE = 4  # values that one task of a tree merges
USABLE_SHARE = 0.8  # Dask pauses a worker that uses more of its memory limit


@dataclass(frozen=True)
class Step:
    """Tasks of one kind within a stage."""

    name: str  # prefix of the keys of these tasks: what Dask's dashboard shows
    tasks: int  # how many there are
    task_bytes: int = 0  # memory that one of them holds
    work: float = 0.0  # amount of work of all of them together, in a unit of its own: a forecast needs only ratios
    #: Positions of the steps of the same stage that must end before. Stages follow one another.
    after: tuple[int, ...] = ()
    recorded: bool = True  # whether each task is recorded when it is done, so that a later run does not repeat it
    #: Whether most of the time goes into reaching rows in memory: then large data take longer per row
    gathers: bool = False


@dataclass(frozen=True)
class Stage:
    """One stage of a run.

    Examples
    --------
    >>> squares = ArrayPlan("squares", (10,), (5,), scratch=True)
    >>> Stage("square", (Step("square", tasks=2, task_bytes=80, work=10),), writes=(squares,)).n_recorded
    2
    """

    name: str  # what progress, logs and records call it
    steps: tuple[Step, ...]  # its tasks, by kind
    reads: tuple[ArrayPlan, ...] = ()  # arrays that it reads
    writes: tuple[ArrayPlan, ...] = ()  # arrays that it leaves behind

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
        return {array.name: array for array in self.writes}[name]


@dataclass(frozen=True)
class Plan:
    """All stages of a run."""

    stages: tuple[Stage, ...]  # in the order in which they run
    shared_bytes: int = 0  # what the threads of a worker process share besides the process itself

    def stage(self, name: str) -> Stage:
        """The stage of that name."""
        return {stage.name: stage for stage in self.stages}[name]

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
