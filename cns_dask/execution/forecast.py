"""What a run will take, before it runs: tasks, memory and disk from its plan, time from rates that are measured.

A small run is timed on one thread. Each step of a plan has a known amount of work; time divided by work is its rate,
and the rate times the work at the real size is the forecast. Then the tasks are put on workers one by one in the order
in which Dask would run them (list scheduling), for any number of workers: what is counted is the tasks, what each waits
for, and the time that the scheduler needs for each; every worker is assumed to read and write as fast as this machine.
"""

import heapq
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import dask
from dask.callbacks import Callback
from dask.utils import format_bytes, key_split

from cns_dask.execution.plan import Plan, Stage
from cns_dask.progress import Progress

SCHEDULER_SECONDS = 1e-3  # of Dask's scheduler for one task
#: Numbers of workers that are forecast.
WORKER_COUNTS = (1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1000)
#: The curve is flat where fewer than this share of the workers is busy; so many are recommended that BUSY_SHARE is.
FLAT_SHARE, BUSY_SHARE = 0.5, 0.75


@dataclass(frozen=True)
class Group:
    """Tasks of one step that may run at the same time."""

    stage: str  # the stage that they belong to
    count: int  # how many, and the time of each
    seconds: float
    after: tuple[int, ...] = ()  # groups that must be finished before


@dataclass(frozen=True)
class StageForecast:
    """One row of the table: a stage, its tasks, the bytes of the largest, bytes moved, and one core's time if known."""

    stage: str
    tasks: int
    bytes_per_task: int
    bytes_moved: int
    core_seconds: float | None


@dataclass(frozen=True)
class Forecast:
    """What a fit will take.

    Attributes
    ----------
    n_rows, n_features
        Size of the data.
    stages
        The stages in order.
    workers, threads
        Worker processes, and threads of each, that `seconds` is for.
    seconds
        Expected time on these workers; None if rates were not measured.
    worker_bytes
        Memory that each worker needs.
    memory_bytes
        Memory that each worker has, if it was told.
    disk_bytes
        Disk that is needed at most.
    start_seconds
        Part of these that passes before the first task runs: processes are started, and import what they need.
    curve
        Expected seconds for other numbers of workers with as many threads; empty if rates were not measured.
    n_sampled
        Rows of the sample that is clustered; None if all are.

    Examples
    --------
    >>> from cns_dask import plan
    >>> forecast = plan(n_rows=2000, n_features=4, threads=2, measure=False)
    >>> forecast.limit_bytes == 2**30  # what to give to each worker
    True
    >>> [stage.stage for stage in forecast.stages][:5]
    ['preprocess', 'points', 'copies', 'neighbors', 'candidates']
    """

    n_rows: int
    n_features: int
    stages: tuple[StageForecast, ...]
    workers: int
    threads: int
    seconds: float | None
    worker_bytes: int
    memory_bytes: int | None
    disk_bytes: int
    curve: dict[int, float]
    start_seconds: float = 0.0
    n_sampled: int | None = None

    @property
    def limit_bytes(self) -> int:
        """Memory limit to start each worker with: what it needs, in whole GiB."""
        return math.ceil(self.worker_bytes / 2**30) * 2**30

    @property
    def flattens_at(self) -> int:
        """The largest number of workers of which at least half are busy on average."""
        return self._largest_count(FLAT_SHARE)

    @property
    def recommended_workers(self) -> int:
        """As many workers as keep three quarters of them busy."""
        return self._largest_count(BUSY_SHARE)

    def _largest_count(self, share: float) -> int:
        busy = [count for count, seconds in self.curve.items() if self.curve[1] / seconds >= share * count]
        return max(busy, default=1)

    def __str__(self) -> str:
        """Return tables in Markdown."""
        about = "" if self.seconds is None else f": about {_duration(self.seconds)}"
        about += f", {_duration(self.start_seconds)} of it for the start of processes" if self.start_seconds else ""
        sample = "" if self.n_sampled is None else f" of which {self.n_sampled:,} are clustered"
        lines = [
            f"{self.n_rows:,} rows x {self.n_features} features{sample}, {self.workers} worker(s) of {self.threads} "
            f"thread(s){about}",
            f"memory of a worker: {_size(self.worker_bytes)} needed{self._verdict()}; disk: {_size(self.disk_bytes)}",
            "",
            "| stage | tasks | bytes per task | bytes moved | one core |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row.stage} | {row.tasks:,} | {_size(row.bytes_per_task)} | {_size(row.bytes_moved)} "
            f"| {'' if row.core_seconds is None else _duration(row.core_seconds)} |"
            for row in self.stages
        ]
        return "\n".join([*lines, *self._curve_lines(), *self._advice_lines()])

    def _curve_lines(self) -> list[str]:
        if not self.curve:
            return []
        lines = ["", "| workers | time | speed-up | at work |", "|---:|---:|---:|:---|"]
        for count, seconds in self.curve.items():
            speedup = self.curve[1] / seconds
            share = speedup / count
            lines.append(f"| {count} | {_duration(seconds)} | {speedup:.1f} | {'#' * round(20 * share)} {share:.0%} |")
        flat = f"The curve flattens at about {self.flattens_at} worker(s): beyond, fewer than half of them are busy."
        return [*lines, "", flat]

    def _advice_lines(self) -> list[str]:
        workers = f"{self.recommended_workers} worker(s), each" if self.curve else "every worker"
        return [
            f"Recommended: {workers} started with",
            f"    dask worker SCHEDULER --nworkers 1 --nthreads {self.threads} --memory-limit "
            f"{self.limit_bytes // 2**30}GiB --preload cns_dask.warmup",
        ]

    def _verdict(self) -> str:
        if self.memory_bytes is None:
            return ""
        answer = "enough" if self.memory_bytes >= self.worker_bytes else "NOT enough"
        return f", {_size(self.memory_bytes)} given: {answer}"


def comparison(*forecasts: Forecast) -> str:
    """A table of what some fits take, by the rows that they cluster.

    Examples
    --------
    >>> from cns_dask import plan
    >>> sizes = {"n_rows": 2_000_000, "n_features": 4, "measure": False}
    >>> print(comparison(plan(**sizes), plan(**sizes, sample=1_000_000)).splitlines()[-1][:25])
    | a sample of 1,000,000 |
    """
    lines = ["| rows that are clustered | memory of a worker | disk | time |", "|---|---:|---:|---:|"]
    for each in forecasts:
        rows = f"all {each.n_rows:,}" if each.n_sampled is None else f"a sample of {each.n_sampled:,}"
        time_taken = "" if each.seconds is None else _duration(each.seconds)
        lines.append(f"| {rows} | {_size(each.worker_bytes)} | {_size(each.disk_bytes)} | {time_taken} |")
    return "\n".join(lines)


class StepTimer(Progress):
    """Progress of a run on one thread that notes the seconds of every step of a plan.

    Tasks whose key begins with the name of a step count for it, all others for the first step of their stage.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._stages = {stage.name: stage for stage in plan.stages}
        self._stage: Stage | None = None
        self.step_seconds: dict[str, float] = defaultdict(float)

    def _begin(self, name: str, total: int) -> None:  # noqa: ARG002 - the base class tells both
        self._stage = self._stages.get(name)

    @contextmanager
    def timing(self) -> Iterator[None]:
        """Time all tasks that run in the block."""
        started: dict[Any, float] = {}

        def begin(key: Any, *_: Any) -> None:
            started[key] = time.perf_counter()

        def end(key: Any, *_: Any) -> None:
            if self._stage is not None:
                steps = [step.name for step in self._stage.steps]
                name = key_split(key)
                self.step_seconds[name if name in steps else steps[0]] += time.perf_counter() - started.pop(key)

        with dask.config.set(scheduler="synchronous"), Callback(pretask=begin, posttask=end):
            yield


def step_rates(plan: Plan, seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds per unit of work of every step of a plan whose run was timed."""
    work: dict[str, float] = defaultdict(float)
    for stage in plan.stages:
        for step in stage.steps:
            work[step.name] += step.work
    return {name: seconds.get(name, 0.0) / amount for name, amount in work.items() if amount}


def task_groups(plan: Plan, rates: Mapping[str, float], slowdown: float = 1.0) -> list[Group]:
    """All tasks of a plan in the order in which they run. `slowdown` is that of steps that gather rows from memory."""
    groups: list[Group] = []
    before: tuple[int, ...] = ()
    for stage in plan.stages:
        first = len(groups)
        for step in stage.steps:
            seconds = rates.get(step.name, 0.0) * step.work * (slowdown if step.gathers else 1.0)
            after = tuple(first + at for at in step.after) or before
            groups.append(Group(stage.name, step.tasks, seconds / max(1, step.tasks), after))
        before = tuple(range(first, len(groups)))
    return groups


def stage_forecasts(plan: Plan, groups: list[Group]) -> tuple[StageForecast, ...]:
    """The table of stages; without groups their times are not known."""
    seconds: dict[str, float] = defaultdict(float)
    for group in groups:
        seconds[group.stage] += group.count * group.seconds
    return tuple(
        StageForecast(stage.name, stage.n_tasks, stage.task_bytes, stage.moved_bytes, seconds.get(stage.name))
        for stage in plan.stages
    )


def makespan(groups: list[Group], slots: int) -> float:
    """Time until all tasks are done on so many threads: list scheduling, in the order of the groups.

    Examples
    --------
    >>> round(makespan([Group("a", 4, 1.0), Group("b", 1, 2.0, after=(0,))], slots=2), 2)
    4.0
    """
    groups = [group if group.count else replace(group, count=1, seconds=0.0) for group in groups]
    waiting = [len(group.after) for group in groups]
    unfinished = [group.count for group in groups]
    ready = [(number, group.count) for number, group in enumerate(groups) if not group.after]
    running: list[tuple[float, int]] = []
    now = dispatched = 0.0
    while ready or running:
        while ready and len(running) < slots:
            number, left = heapq.heappop(ready)
            dispatched = max(now, dispatched) + SCHEDULER_SECONDS
            heapq.heappush(running, (dispatched + groups[number].seconds, number))
            if left > 1:
                heapq.heappush(ready, (number, left - 1))
        now, done = heapq.heappop(running)
        unfinished[done] -= 1
        if unfinished[done] == 0:
            for number, group in enumerate(groups):
                if done in group.after:
                    waiting[number] -= 1
                    if waiting[number] == 0:
                        heapq.heappush(ready, (number, group.count))
    return now


def _size(n_bytes: float) -> str:
    return str(format_bytes(int(n_bytes)))


def _duration(seconds: float) -> str:
    for unit, length in ("h", 3600), ("min", 60):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
