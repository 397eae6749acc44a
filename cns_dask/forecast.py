"""What a fit will take, before it runs: tasks, bytes and disk from the plan, time from rates that are measured here.

A small fit (of some rows of the data, or of a mixture as wide) runs on one thread, and its tasks are timed. Each kind
of task has a known amount of work as a function of the sizes; time divided by work is its rate, and the rate times the
work at the real size is the forecast. Then the tasks are put on workers one by one in the order in which Dask would
run them (list scheduling), for any number of workers: what is counted is the tasks, what each waits for, and the time
that the scheduler needs for each; every worker is assumed to read and write as fast as this machine.
"""

from __future__ import annotations

import heapq
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from dask.callbacks import Callback
from dask.utils import format_bytes, key_split

from cns_dask.data import open_data
from cns_dask.errors import InvalidSettingError
from cns_dask.neighbors import choose_method
from cns_dask.passes import aligned_zeros, smooth_tiles
from cns_dask.pipeline import fit
from cns_dask.plan import LANES, TILE_ROWS, column_type, make_plan, plan_graph
from cns_dask.progress import Progress
from cns_dask.settings import Settings, check_integer
from cns_dask.transition import walk_on

SAMPLE_ROWS, SAMPLE_BYTES = 20_000, 256 * 2**20
SCHEDULER_SECONDS = 1e-3  # of Dask's scheduler for one task
SEARCH_GROWTH = 0.4  # the time of a query grows as n^0.4: measured on a mixture from 40 000 to 10^6 rows
ASSIGN_CELLS = 150  # what else is done for a row in the partitions, in comparisons with a centre (measured)
CACHED_ROWS, MEMORY_ROWS = 2**16, 2**20  # blocks of so many rows are in the cache, and are not
CURVE = (1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1000)
FLAT = 0.5  # more workers do not pay where fewer than this share of them works,
WORTH = 0.75  # and so many are recommended that this share does


@dataclass(frozen=True)
class Group:
    """Tasks of one kind that may run at the same time.

    Attributes
    ----------
    stage
        The stage that they belong to.
    count, seconds
        How many, and the time of each.
    after
        Groups that must be finished before.
    """

    stage: str
    count: int
    seconds: float
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class StageForecast:
    """One row of the table: a stage with its tasks, the bytes of the largest, all bytes moved, and one core's time."""

    stage: str
    tasks: int
    bytes_per_task: int
    bytes_moved: int
    core_seconds: float


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
        Expected time on these workers.
    worker_bytes
        Memory that each worker needs.
    memory_bytes
        Memory that each worker has, if it was told.
    disk_bytes
        Disk that is needed at most.
    curve
        Expected seconds for other numbers of workers with as many threads.
    flattens_at
        The largest of these numbers with at least half the workers at work on average.

    Examples
    --------
    >>> forecast = plan(n_rows=2000, n_features=4, threads=2)
    >>> forecast.limit_bytes == 2**30  # what to give to each worker
    True
    >>> [stage.stage for stage in forecast.stages]
    ['points', 'neighbors', 'candidates', 'cells', 'columns', 'memberships']
    """

    n_rows: int
    n_features: int
    stages: tuple[StageForecast, ...]
    workers: int
    threads: int
    seconds: float
    worker_bytes: int
    memory_bytes: int | None
    disk_bytes: int
    curve: dict[int, float]
    flattens_at: int

    @property
    def limit_bytes(self) -> int:
        """Memory limit to start each worker with: what it needs, in whole GiB."""
        return math.ceil(self.worker_bytes / 2**30) * 2**30

    @property
    def recommended_workers(self) -> int:
        """As many workers as keep three quarters of them at work."""
        return max(count for count in self.curve if self.curve[1] / self.curve[count] >= WORTH * count)

    def __str__(self) -> str:
        """Return tables in Markdown."""
        lines = [
            f"{self.n_rows:,} rows x {self.n_features} columns, {self.workers} worker(s) of {self.threads} thread(s): "
            f"about {_duration(self.seconds)}",
            f"memory of a worker: {_size(self.worker_bytes)} needed{self._verdict()}; disk: {_size(self.disk_bytes)}",
            "",
            "| stage | tasks | bytes per task | bytes moved | one core |",
            "|---|---:|---:|---:|---:|",
        ]
        lines += [
            f"| {row.stage} | {row.tasks:,} | {_size(row.bytes_per_task)} | {_size(row.bytes_moved)} "
            f"| {_duration(row.core_seconds)} |"
            for row in self.stages
        ]
        lines += ["", "| workers | time | speed-up | at work |", "|---:|---:|---:|:---|"]
        for count, seconds in self.curve.items():
            speedup = self.curve[1] / seconds
            share = speedup / count
            lines.append(f"| {count} | {_duration(seconds)} | {speedup:.1f} | {'#' * round(20 * share)} {share:.0%} |")
        lines += [
            "",
            f"It flattens at about {self.flattens_at} worker(s): beyond, fewer than half of them work.",
            f"Recommended: {self.recommended_workers} worker(s), each started with",
            f"    dask worker SCHEDULER --nworkers 1 --nthreads {self.threads} --memory-limit "
            f"{self.limit_bytes // 2**30}GiB --preload cns_dask.warmup",
        ]
        return "\n".join(lines)

    def _verdict(self) -> str:
        if self.memory_bytes is None:
            return ""
        answer = "enough" if self.memory_bytes >= self.worker_bytes else "NOT enough"
        return f", {_size(self.memory_bytes)} given: {answer}"


def plan(
    X: Any = None,
    *,
    n_rows: int | None = None,
    n_features: int | None = None,
    workers: int = 1,
    threads: int = 1,
    memory_bytes: int | None = None,
    settings: Settings | None = None,
) -> Forecast:
    """Tell what a fit will take: tasks, memory, disk, expected time, and what other numbers of workers would do.

    It takes about ten seconds: rates are measured here, on one thread.

    Parameters
    ----------
    X
        The data, as for a fit; only their size and their first rows are looked at. Or None, with
    n_rows, n_features
        the size. `n_rows` may be given beside the data, to ask about more rows of the kind.
    workers, threads, memory_bytes
        Worker processes, and threads and memory of each.
    settings
        The parameters of the fit.

    Examples
    --------
    >>> forecast = plan(n_rows=1_000_000, n_features=16, workers=2, threads=2)
    >>> forecast.limit_bytes // 2**30  # and print(forecast) shows all of it
    7
    """
    settings = settings or Settings()
    data = None if X is None else open_data(X)
    rows = data.X.shape[0] if data is not None and n_rows is None else n_rows
    features = n_features if data is None else data.X.shape[1]
    if rows is None or features is None:
        raise InvalidSettingError("Data, or n_rows and n_features, must be given. Got neither.")
    for name, value in {"n_rows": rows, "n_features": features, "workers": workers, "threads": threads}.items():
        check_integer(name, value, 2 if name == "n_rows" else 1, 10**12)
    n_sampled = min(SAMPLE_ROWS, max(1000, SAMPLE_BYTES // (8 * features)))
    sample = _mixture(min(rows, n_sampled), features) if data is None else np.asarray(data.X[:n_sampled])
    method = "cells" if choose_method(rows, settings.method) != "exact" else "exact"
    tried = replace(settings, method=method, grid_tol=settings.tol_of_grid(rows))
    seconds, candidates = _measure(sample, tried)
    here = _Sizes(len(sample), features, tried, candidates)
    there = _Sizes(rows, features, tried, [math.ceil(rows / len(sample) * count) for count in candidates])
    work = here.work(1.0)
    slowdown = there.slowdown(_memory_slowdown)
    forecast = {kind: seconds[kind] * amount / max(work[kind], 1) for kind, amount in there.work(slowdown).items()}
    groups = there.groups(forecast)
    curve = {count: makespan(groups, count * threads) for count in CURVE}
    return Forecast(
        n_rows=rows,
        n_features=features,
        stages=there.stages(groups),
        workers=workers,
        threads=threads,
        seconds=makespan(groups, workers * threads),
        worker_bytes=there.plan.worker_bytes(threads),
        memory_bytes=memory_bytes,
        disk_bytes=there.plan.disk_bytes,
        curve=curve,
        flattens_at=max(count for count, took in curve.items() if curve[1] / took >= FLAT * count),
    )


def makespan(groups: list[Group], slots: int) -> float:
    """Time until all tasks are done on so many threads: list scheduling, in the order of the groups.

    Examples
    --------
    >>> round(makespan([Group("a", 4, 1.0), Group("b", 1, 2.0, after=(0,))], slots=2), 2)
    4.0
    """
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


#: Which kind of work the tasks of a stage are: by name, or else (None) all others.
KINDS: dict[str, dict[str | None, str]] = {
    "preprocess": {None: "points"},
    "points": {None: "points"},
    "partitions": {"learn_centers": "centers", None: "partitions"},
    "calibrate": {None: "calibrate"},
    "neighbors": {"collect_chunk": "collect", None: "neighbors"},
    "candidates": {"order_and_write": "order", None: "walks"},
    "cells": {"solve_and_write": "columns", "gram_of_rows": "products", None: "criterion"},
    "columns": {None: "kept"},
    "memberships": {None: "memberships"},
}


def _measure(sample: np.ndarray[Any, Any], settings: Settings) -> tuple[dict[str, float], list[int]]:
    """Seconds of each kind of work in a fit of the sample on one thread, and its number of candidates at each k."""
    seconds: dict[str, float] = defaultdict(float)
    started: dict[Any, float] = {}

    class Stages(Progress):
        kinds: dict[str | None, str] = {None: "points"}  # noqa: RUF012 - one measurement at a time

        def _begin(self, name: str, total: int) -> None:  # noqa: ARG002 - the base class tells both
            Stages.kinds = KINDS.get(name, {None: name})

    def begin(key: Any, *_: Any) -> None:
        started[key] = time.perf_counter()

    def end(key: Any, *_: Any) -> None:
        kind = Stages.kinds.get(key_split(key), Stages.kinds[None])
        seconds[kind] += time.perf_counter() - started.pop(key)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of too few rows for a good graph: only their time counts
        fit(sample[: max(len(sample) // 4, 100)], settings)  # compiled
        with dask.config.set(scheduler="synchronous"), Callback(pretask=begin, posttask=end):
            result = fit(sample, settings, progress=Stages())
    return seconds, list(result.details["n_candidates"].values())


def _memory_slowdown() -> float:
    """How many times longer a pass takes for each row when its blocks do not fit into the cache."""
    times, k, lanes = {}, 8, (0,) * LANES[0]
    for n_rows in (CACHED_ROWS, MEMORY_ROWS):
        rng = np.random.default_rng(0)
        steps = rng.integers(-n_rows // 128, n_rows // 128, size=(n_rows, k))  # as near as an order brings neighbours
        walk = walk_on((np.arange(n_rows)[:, None] + steps) % n_rows)
        ring, peaks = aligned_zeros((2, n_rows, len(lanes)), np.float32), np.zeros(len(lanes), np.float32)
        live = np.ones((2, n_rows // TILE_ROWS), np.bool_)
        arguments = walk.neighbors, walk.reads, ring, live
        ring[:] = 1
        taken = []
        for now in (0, 1, 0, 1):
            began = time.perf_counter()
            smooth_tiles(*arguments, now, 0.5, 1.0, 0.0, 0.0, lanes, peaks)
            taken.append(time.perf_counter() - began)
        times[n_rows] = min(taken) / n_rows
    return max(1.0, times[MEMORY_ROWS] / times[CACHED_ROWS])


class _Sizes:
    """Amounts of everything for one size of the data."""

    def __init__(self, n_rows: int, n_features: int, settings: Settings, candidates: list[int]) -> None:
        self.n_rows, self.n_features, self.grid = n_rows, n_features, settings.grid(n_rows)
        self.exact = settings.method == "exact"
        k_max, tol = self.grid.ks[-1], settings.tol_of_grid(n_rows)
        self.graph = plan_graph(n_rows, n_features, k_max, settings.max_components, exact=self.exact)
        self.plan = make_plan(n_rows, self.graph, self.grid, settings.max_candidates, tol)
        self.candidates = [min(settings.max_candidates, count) for count in candidates]
        self.number = np.dtype(column_type(tol)).itemsize

    def slowdown(self, measure: Callable[[], float]) -> float:
        """How much longer passes take than those of a sample; it is measured only where they do."""
        if self.n_rows <= CACHED_ROWS:
            return 1.0
        share = math.log(self.n_rows / CACHED_ROWS) / math.log(MEMORY_ROWS / CACHED_ROWS)
        return 1 + (measure() - 1) * min(1.0, share)

    def blocks(self, count: int) -> int:
        """Blocks of so many columns."""
        return math.ceil(count / self.plan.columns_per_block)

    def work(self, slowdown: float) -> dict[str, float]:
        """Amount of each kind of work, in units of its own."""
        n, d, ks = self.n_rows, self.n_features, self.grid.ks
        width = self.plan.columns_per_block
        lines = [k * width * self.blocks(count) for k, count in zip(ks, self.candidates, strict=True)]
        return {
            "points": n * d,
            "centers": self.graph.sampled_rows * self.graph.n_cells * d,
            "partitions": n * d * (self.graph.n_cells + ASSIGN_CELLS),
            "calibrate": n * d,
            "neighbors": n * d * (n if self.exact else n**SEARCH_GROWTH),
            "collect": n * ks[-1],
            "order": n * ks[0],
            "walks": n * sum(ks),
            "columns": n * sum(lines) * slowdown,
            "products": n * sum(count**2 for count in self.candidates),
            "criterion": n * len(ks) * self.grid.max_clusters,
            "kept": n * ks[-1] * self.grid.max_clusters * slowdown,
            "memberships": n * self.grid.max_clusters,
        }

    def groups(self, seconds: dict[str, float]) -> list[Group]:
        """All tasks in the order in which they run; `seconds` are those of each kind of work together."""
        chunks = math.ceil(self.n_rows / self.plan.rows_per_chunk)
        column_chunks = math.ceil(self.n_rows / self.plan.rows_per_column_chunk)
        searches = math.ceil(self.n_rows / self.graph.rows_per_search)
        found: list[Group] = []

        def add(stage: str, kind: str, count: int, share: float = 1.0, after: tuple[int, ...] | None = None) -> int:
            before = (len(found) - 1,) if found and after is None else after or ()
            found.append(Group(stage, count, share * seconds[kind] / count, before))
            return len(found) - 1

        add("points", "points", chunks)
        if not self.exact:
            add("partitions", "centers", 1)
            add("partitions", "partitions", chunks)
            add("calibrate", "calibrate", chunks)
        add("neighbors", "neighbors", chunks if self.exact else searches)
        if not self.exact:
            add("neighbors", "collect", chunks)
        order = add("candidates", "order", 1)
        ks = self.grid.ks
        walks = tuple(add("candidates", "walks", 1, k / sum(ks), (order,)) for k in ks)
        lines = [k * self.blocks(count) for k, count in zip(ks, self.candidates, strict=True)]
        squares = [count**2 for count in self.candidates]
        cells = []
        for at, count in enumerate(self.candidates):
            solved = add("cells", "columns", self.blocks(count), lines[at] / sum(lines), walks)
            reduced = add("cells", "products", column_chunks, squares[at] / sum(squares), (solved,))
            cells.append(add("cells", "criterion", column_chunks, 1 / len(ks), (reduced,)))
        add("columns", "kept", self.blocks(self.grid.max_clusters), after=tuple(cells))
        add("memberships", "memberships", chunks)
        return found

    def stages(self, groups: list[Group]) -> tuple[StageForecast, ...]:
        """The table."""
        n, ks, K = self.n_rows, self.grid.ks, self.grid.max_clusters
        n_lams, row, listed = len(self.grid.lams), 8 * self.n_features, 8 * self.grid.ks[-1]
        moved = {
            "points": 3 * n * row,  # read twice: to learn the scales, and to apply them
            "partitions": n * (2 * row + 8),
            "calibrate": n * row,
            "neighbors": n * (row + 8 + (2 if self.exact else 4) * listed),
            "candidates": n * ((len(ks) + 1) * listed + 4 * sum(ks)),
            "cells": n * (4 * sum(ks) + self.number * n_lams * (2 * sum(self.candidates) + len(ks) * K)),
            "columns": n * (4 * ks[-1] + 8 * K),
            "memberships": n * 8 * (2 * K + 2),
        }
        kinds = {
            "points": ("points",),
            "partitions": ("centers", "cells"),
            "calibrate": ("points",),
            "neighbors": ("neighbors", "collect"),
            "candidates": ("order", "walks"),
            "cells": ("columns", "reduction"),
            "columns": ("columns",),
            "memberships": ("points",),
        }
        held = self.plan.bytes_per_task
        rows = []
        for stage in dict.fromkeys(group.stage for group in groups):
            own = [group for group in groups if group.stage == stage]
            rows.append(
                StageForecast(
                    stage,
                    sum(group.count for group in own),
                    max(held.get(kind, 0) for kind in kinds[stage]),
                    moved[stage],
                    sum(group.count * group.seconds for group in own),
                )
            )
        return tuple(rows)


def _mixture(n_rows: int, n_features: int, n_clusters: int = 25) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((n_clusters, n_features))
    return centers[rng.integers(n_clusters, size=n_rows)] + rng.standard_normal((n_rows, n_features))


def _size(n_bytes: float) -> str:
    return str(format_bytes(int(n_bytes)))


def _duration(seconds: float) -> str:
    for unit, length in ("h", 3600), ("min", 60):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
