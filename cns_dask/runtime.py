"""Where the work runs: schedulers, their memory, and progress. The only door to distributed."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.callbacks import Callback

from cns_dask.errors import InvalidSettingError, NotEnoughMemoryError, SchedulerError

CONNECT_SECONDS = 10
LINE_SECONDS = 30  # between lines about a long stage


class Progress:
    """Stages of a run with their counts and times; this one is silent, its children show them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        """Run a stage of `total` pieces; call what is yielded after each of them."""
        started = time.perf_counter()
        self._begin(name, total)
        try:
            yield self._advance
        finally:
            self.seconds[name] = time.perf_counter() - started
            self._end(self.seconds[name])

    def _begin(self, name: str, total: int) -> None: ...
    def _advance(self) -> None: ...
    def _end(self, seconds: float) -> None: ...


class LineProgress(Progress):
    """Plain lines for logs and pipes: when a stage begins and ends, and now and then between."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def _begin(self, name: str, total: int) -> None:
        self._stage, self._done, self._started = f"{name}: {{}} of {total}", 0, time.perf_counter()
        self._tell()

    def _advance(self) -> None:
        self._done += 1
        if time.perf_counter() - self._told > LINE_SECONDS:
            self._tell(f", {time.perf_counter() - self._started:.0f} s so far")

    def _tell(self, more: str = "") -> None:
        self._told = time.perf_counter()
        self._write(self._stage.format(self._done) + more)

    def _end(self, seconds: float) -> None:
        self._tell(f", {seconds:.1f} s")


class BarProgress(Progress):
    """A bar for every stage, with counts and elapsed time: for terminals."""

    def __init__(self, console: Any) -> None:
        super().__init__()
        self._console = console

    def _begin(self, name: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=self._console, redirect_stdout=False)  # a new one leaves the old lines
        self._bars.start()
        self._bar = self._bars.add_task(name, total=total)

    def _advance(self) -> None:
        self._bars.advance(self._bar)

    def _end(self, seconds: float) -> None:  # noqa: ARG002 - the bar has its own clock
        self._bars.stop()


def visible_progress() -> Progress:
    """Bars where someone looks (a terminal, a notebook), plain lines elsewhere; on standard error."""
    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal or console.is_jupyter:
        return BarProgress(console)
    return LineProgress(lambda line: print(line, file=sys.stderr, flush=True))  # noqa: T201


def run(
    tasks: Sequence[Any], advance: Callable[[], None] = lambda: None, finished: Callable[[int], None] = lambda _: None
) -> list[Any]:
    """Compute Delayed objects on whatever scheduler is active, and return their values in order.

    `advance` and `finished` are called as each of them is done, the latter with its position. On a cluster the first
    error cancels the rest.
    """
    client = active_client()
    if client is None:
        from threadpoolctl import threadpool_limits

        positions = {task.key: position for position, task in enumerate(tasks)}

        def tell(key: Any, *_: Any) -> None:
            if key in positions:
                advance()
                finished(positions[key])

        told = Callback(posttask=tell)
        with told, threadpool_limits(1, user_api="blas"):  # a task has one core, as on workers
            return list(dask.compute(*tasks))
    from distributed import as_completed

    futures = client.compute(list(tasks))
    positions = {future.key: position for position, future in enumerate(futures)}
    try:
        for future in as_completed(futures, raise_errors=False):
            future.result()
            advance()
            finished(positions[future.key])
        return list(client.gather(futures))
    finally:
        pending = [future for future in futures if not future.done()]
        if pending:
            client.cancel(pending)


def on_every_worker(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function once in every process that tasks run in."""
    client = active_client()
    if client is None:
        function(*arguments)
    else:
        client.run(function, *arguments)


def active_client() -> Any | None:
    """The distributed Client that Dask would use here, or None for the schedulers of this process."""
    owner = getattr(dask.base.get_scheduler(), "__self__", None)
    return owner if owner is not None and hasattr(owner, "scheduler_info") else None


def in_worker_memory(X: da.Array) -> da.Array:
    """Send an array that is in this process's memory to the workers, chunk by chunk and once.

    Otherwise it would travel inside the graph of every stage that uses it. Without workers it stays where it is.
    """
    client = active_client()
    if client is None:
        return X
    starts = [slice(stop - size, stop) for size, stop in zip(X.chunks[0], np.cumsum(X.chunks[0]), strict=True)]
    parts = (X[rows].compute(scheduler="synchronous") for rows in starts)
    return da.concatenate(
        [
            da.from_delayed(client.scatter(part), part.shape, part.dtype, name=f"rows-{uuid.uuid4().hex}")
            for part in parts
        ]
    )


@contextmanager
def connection(scheduler: str | None = None, scheduler_file: str | None = None, workers: int = 0) -> Iterator[None]:
    """Use a running scheduler (address or file), a local cluster of `workers` processes, or this process's threads."""
    if sum(map(bool, (scheduler, scheduler_file, workers))) > 1:
        raise InvalidSettingError("Only one of scheduler, scheduler file and workers must be given. Got several.")
    if scheduler is None and scheduler_file is None and workers == 0:
        yield
    elif workers:
        with _local_cluster(workers) as cluster, _client(cluster):
            yield
    else:
        with _client(scheduler, scheduler_file):
            yield


def check_memory(worker_bytes: Callable[[int], int]) -> None:
    """Refuse to start when a worker, or this machine, has less memory than `worker_bytes(threads)`."""
    client = active_client()
    for name, threads, limit in _this_process() if client is None else _workers(client):
        needed = worker_bytes(threads)
        if limit and needed > limit:
            raise NotEnoughMemoryError(
                f"The memory of {name} must be at least {needed / 2**20:.0f} MiB for its {threads} threads. "
                f"Got {limit / 2**20:.0f} MiB. Use fewer threads per worker, or workers with more memory."
            )


def check_path_is_shared(path: str) -> None:
    """Refuse to start when a worker cannot see `path`, where the stages keep their results."""
    client = active_client()
    if client is None:
        return
    blind = [worker for worker, seen in client.run(os.path.isdir, path).items() if not seen]
    if blind:
        raise SchedulerError(
            f"Every worker must see the folder of the result ({path}). {', '.join(blind)} cannot. "
            "Give an output on a disk that all machines share."
        )


def _workers(client: Any) -> Iterator[tuple[str, int, int]]:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    if not workers:
        raise SchedulerError("The scheduler must have at least one worker. Got none. Start workers first.")
    for address, worker in workers.items():
        yield f"worker {address}", worker["nthreads"], worker["memory_limit"]


def _this_process() -> Iterator[tuple[str, int, int]]:
    import psutil
    from distributed.system import MEMORY_LIMIT  # knows the limits of containers

    serial = dask.base.get_scheduler() is dask.local.get_sync
    threads = 1 if serial else dask.config.get("num_workers", None) or dask.system.CPU_COUNT
    yield "this machine", threads, min(MEMORY_LIMIT, psutil.virtual_memory().available)


@contextmanager
def _local_cluster(workers: int) -> Iterator[Any]:
    from distributed import LocalCluster

    threads = max(1, dask.system.CPU_COUNT // workers)
    with LocalCluster(
        n_workers=workers, threads_per_worker=threads, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


def _wait_for(path: Path) -> None:
    """Give a scheduler that is just starting time to write its file; Dask itself would wait for ever."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while not path.is_file():
        if time.monotonic() > deadline:
            raise FileNotFoundError(f"there is no file {path}")
        time.sleep(0.1)


@contextmanager
def _client(address: Any = None, scheduler_file: str | None = None) -> Iterator[None]:
    from distributed import Client

    named = scheduler_file or address
    try:
        if scheduler_file is not None:
            _wait_for(Path(scheduler_file))
        # not the default before it is connected: Dask would go on using a client that never was
        client = Client(address, scheduler_file=scheduler_file, timeout=CONNECT_SECONDS, set_as_default=False)
    except Exception as error:  # distributed also fails with assertions on files and addresses that are none
        raise SchedulerError(
            f"A Dask scheduler must answer at {named} within {CONNECT_SECONDS} s. Got: {error}. "
            "Start one with `dask scheduler`, or leave the option out to run in this process."
        ) from error
    with client, client.as_current():
        yield
