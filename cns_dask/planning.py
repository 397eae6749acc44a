"""What a fit will take: its stages as they would run, and the rates of this machine."""

import math
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.config import default_memory, default_sample, default_workers
from cns_dask.errors import InvalidSettingError
from cns_dask.execution.forecast import (
    WORKER_COUNTS,
    Forecast,
    Group,
    StepTimer,
    makespan,
    stage_forecasts,
    step_rates,
    task_groups,
)
from cns_dask.execution.plan import Plan
from cns_dask.inputs.data import open_data
from cns_dask.inputs.forms import Data
from cns_dask.inputs.sampling import check_sampling
from cns_dask.pipeline import fit
from cns_dask.settings import MAX_ROWS, Settings, check_integer, check_settings, choose_method
from cns_dask.sizing import plan_sample, plan_sizes, plan_stages
from cns_dask.smoothing.passes import TILE_ROWS, aligned_zeros, smooth_tiles
from cns_dask.smoothing.solver import BLOCK_WIDTHS
from cns_dask.smoothing.walk import walk_on

#: Rows and bytes of a sample; of wide rows it has so few, and is refused if it is larger than this all the same.
SAMPLE_ROWS, SAMPLE_BYTES = 20_000, 256 * 2**20
LEAST_ROWS, LARGEST_SAMPLE = 1000, 4 * 2**30
TIMED_FITS = 2
#: What a fresh process imports; first that of the caller does so, then those of the workers, all at the same time.
IMPORTS, STARTS = "import distributed, sklearn.cluster, cns_dask.pipeline", 2
#: Local maxima beyond the limit are thinned out to about this share of it: see `local_maxima`.
THINNED_SHARE = 0.5
#: Blocks of so many rows are in the cache, and are not.
CACHED_ROWS, MEMORY_ROWS = 2**16, 2**20


def plan(  # noqa: PLR0913 - one parameter per choice
    X: Any = None,
    *,
    n_rows: int | None = None,
    n_features: int | None = None,
    workers: int | None = None,
    threads: int = 1,
    memory_bytes: int | None = None,
    settings: Settings | None = None,
    sample: float | None = None,
    measure: bool = True,
) -> Forecast:
    """Tell what a fit will take: tasks, memory, disk, expected time, and what other numbers of workers would do.

    Parameters
    ----------
    X
        The data, as for a fit; only their size and their first rows are looked at. Or None, with
    n_rows, n_features
        the size. `n_rows` may be given beside the data, to ask about more rows of the kind.
    workers, threads, memory_bytes
        Worker processes, and threads and memory of each. None: `cns-dask.workers` and `cns-dask.memory` in Dask's
        configuration, else one worker of any memory.
    settings
        The parameters of the fit.
    sample
        Plan for the fit of a sample of so many rows, or of this share of them: see `CNS.fit`.
    measure
        Measure rates here, on one thread, for ten to twenty seconds. If False, no time is forecast.

    Examples
    --------
    >>> forecast = plan(n_rows=1_000_000, n_features=16, workers=2, threads=2, measure=False)
    >>> forecast.limit_bytes // 2**30  # and print(forecast) shows all of it
    4
    >>> sampled = plan(n_rows=10**9, n_features=16, sample=10**6, threads=2, measure=False)
    >>> sampled.limit_bytes // 2**30, [stage.stage for stage in sampled.stages][::12]
    (4, ['sample', 'assign'])
    """
    settings = check_settings(settings)
    data = None if X is None else open_data(X)
    rows = data.X.shape[0] if data is not None and n_rows is None else n_rows
    features = n_features if data is None else data.X.shape[1]
    if rows is None or features is None:
        raise InvalidSettingError("Give data, or n_rows and n_features: there is nothing to plan for.")
    rows, features = check_integer("n_rows", rows, 2, MAX_ROWS), check_integer("n_features", features, 1, 10**9)
    workers = max(1, default_workers()) if workers is None else workers
    memory_bytes = default_memory() if memory_bytes is None else memory_bytes
    sample = default_sample(rows) if sample is None else sample
    workers, threads = check_integer("workers", workers, 1, 10**6), check_integer("threads", threads, 1, 10**6)
    if memory_bytes is not None:
        memory_bytes = check_integer("memory_bytes", memory_bytes, 1, 2**63)
    sampling = check_sampling(sample, rows, settings.seed, is_checked=False)
    n_clustered = rows if sampling is None else sampling.expected_rows
    method = "exact" if choose_method(n_clustered, settings.method) == "exact" else "cells"
    settings = replace(settings, method=method, grid_tol=settings.tol_of_grid(n_clustered))
    full = expected = _stages(rows, features, settings, n_clustered)  # what a fit asks for
    groups: list[Group] = []
    curve: dict[int, float] = {}
    start = 0.0
    if measure:
        start = STARTS * _import_seconds()
        of_sample = replace(settings, min_cluster_size=None)  # it may have fewer rows
        tasks_on = _measured_tasks(data, rows, features, of_sample, n_clustered)
        expected, groups = tasks_on(workers * threads)
        curve = {count: start + makespan(tasks_on(count * threads)[1], count * threads) for count in WORKER_COUNTS}
    return Forecast(
        n_rows=rows,
        n_features=features,
        stages=stage_forecasts(expected, groups),
        workers=workers,
        threads=threads,
        seconds=start + makespan(groups, workers * threads) if groups else None,
        worker_bytes=full.worker_bytes(threads),
        memory_bytes=memory_bytes,
        disk_bytes=full.disk_bytes,
        curve=curve,
        start_seconds=start,
        n_sampled=None if sampling is None else n_clustered,
    )


def _stages(n_rows: int, n_features: int, settings: Settings, n_clustered: int, **options: Any) -> Plan:
    """All stages of a fit of which so many rows are clustered; `options` of `plan_sizes`."""
    if n_clustered < n_rows:
        return plan_sample(n_rows, n_features, settings, n_clustered, **options)
    return plan_stages(n_features, *plan_sizes(n_rows, n_features, settings, **options))


def _measured_tasks(
    data: Data | None, n_rows: int, n_features: int, settings: Settings, n_clustered: int
) -> Callable[[int], tuple[Plan, list[Group]]]:
    """The plan of a fit of which so many rows are clustered, and its tasks with the rates of a fit of a few rows.

    Both for any number of threads.
    """
    n_sampled = min(SAMPLE_ROWS, n_rows, max(LEAST_ROWS, SAMPLE_BYTES // (8 * n_features)))
    if n_sampled * n_features * 8 > LARGEST_SAMPLE:
        raise InvalidSettingError(
            f"{n_features} features are too many to measure rates with: {n_sampled} rows of them take "
            f"{n_sampled * n_features * 8 / 2**30:.0f} GiB. Plan without measuring (measure=False)."
        )
    sample = _mixture(n_sampled, n_features) if data is None else _finite_rows(np.asarray(data.X[:n_sampled]))
    seconds, candidates = _timed_fit(sample, settings)
    here = plan_stages(n_features, *plan_sizes(len(sample), n_features, settings, n_candidates=candidates))
    growth = n_clustered / len(sample)
    most = settings.max_candidates
    thinned = most if settings.selection == "paper" else math.ceil(THINNED_SHARE * most)
    expected = [math.ceil(growth * count) if growth * count <= most else thinned for count in candidates]
    rates = step_rates(here, seconds)
    if n_clustered < n_rows:
        rates |= _sampling_rates(sample, settings)
    slowdown = _slowdown(n_clustered)

    def tasks_on(n_threads: int) -> tuple[Plan, list[Group]]:
        there = _stages(n_rows, n_features, settings, n_clustered, n_candidates=expected, n_threads=n_threads)
        return there, task_groups(there, rates, slowdown)

    return tasks_on


def _finite_rows(rows: FloatArray) -> FloatArray:
    """Rows that a fit can cluster, whatever it does about the others; all, if these are few."""
    finite = np.isfinite(rows).all(axis=1)
    return rows[finite] if finite.sum() > len(rows) // 2 else rows


def _sampling_rates(rows: FloatArray, settings: Settings) -> dict[str, float]:
    """Seconds per unit of work of the steps that only the fit of a sample has."""
    rows = rows if len(rows) >= 2 * LEAST_ROWS else np.tile(rows, (2, 1))
    stages = plan_sample(len(rows), rows.shape[1], settings, len(rows) // 2)
    timer = StepTimer(stages)
    with warnings.catch_warnings(), timer.timing():
        warnings.simplefilter("ignore", UserWarning)
        fit(rows, settings, sample=len(rows) // 2, progress=timer)
    rates = step_rates(stages, timer.step_seconds)
    return {name: rates[name] for name in ("sample", "clustered_rows", "assign")}


@lru_cache(maxsize=1)
def _import_seconds() -> float:
    """How long a fresh process takes to start and to import what a fit needs."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", IMPORTS], check=False, capture_output=True)
    return time.perf_counter() - began


def _timed_fit(sample: FloatArray, settings: Settings) -> tuple[dict[str, float], list[int]]:
    """Seconds of the steps of a fit of the sample on one thread, and its number of candidates at each k.

    The least of some fits: whatever else the machine does adds to them.
    """
    plan_of_sample = plan_stages(sample.shape[1], *plan_sizes(len(sample), sample.shape[1], settings))
    timed: list[dict[str, float]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of too few rows for a good graph: only their time counts
        fit(sample[: max(len(sample) // 4, 100)], settings)  # compiled
        for _ in range(TIMED_FITS):
            timer = StepTimer(plan_of_sample)
            with timer.timing():
                result = fit(sample, settings, progress=timer)
            timed.append(timer.step_seconds)
    least = {name: min(each.get(name, 0.0) for each in timed) for name in timed[0]}
    return least, list(result.details["n_candidates"].values())


def _slowdown(n_rows: int) -> float:
    """How much longer passes take for each row than those of a sample; it is measured only where they do."""
    if n_rows <= CACHED_ROWS:
        return 1.0
    share = math.log(n_rows / CACHED_ROWS) / math.log(MEMORY_ROWS / CACHED_ROWS)
    return 1 + (_memory_slowdown() - 1) * min(1.0, share)


def _memory_slowdown() -> float:
    """How many times longer a pass takes for each row when its blocks do not fit into the cache."""
    times, k, lanes = {}, 8, (0,) * BLOCK_WIDTHS[0]
    for n_rows in (CACHED_ROWS, MEMORY_ROWS):
        rng = np.random.default_rng(0)
        steps = rng.integers(-n_rows // 128, n_rows // 128, size=(n_rows, k))  # as near as an order brings neighbours
        walk = walk_on((np.arange(n_rows)[:, None] + steps) % n_rows)
        ring, peaks = aligned_zeros((2, n_rows, len(lanes)), np.float32), np.zeros(len(lanes), np.float32)
        live, totals = np.ones((2, n_rows // TILE_ROWS), np.bool_), np.zeros(len(lanes))
        ring[:] = 1
        taken = []
        for now in (0, 1, 0, 1):
            began = time.perf_counter()
            part, ring_now = walk.parts[0], (ring, live, now)
            smooth_tiles(part.neighbors, part.reads, 0, *ring_now, 0.5, 1.0, 0.0, 0.0, lanes, peaks, totals)
            taken.append(time.perf_counter() - began)
        times[n_rows] = min(taken) / n_rows
    return max(1.0, times[MEMORY_ROWS] / times[CACHED_ROWS])


def _mixture(n_rows: int, n_features: int, n_clusters: int = 25) -> FloatArray:
    rng = np.random.default_rng(0)
    centers = 2 * rng.standard_normal((n_clusters, n_features))
    return np.asarray(centers[rng.integers(n_clusters, size=n_rows)] + rng.standard_normal((n_rows, n_features)))
