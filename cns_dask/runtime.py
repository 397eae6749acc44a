"""Where the work runs: schedulers, their memory, and progress. The only door to distributed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import dask
from dask.callbacks import Callback

from cns_dask.errors import NotEnoughMemoryError, SchedulerError

CONNECT_SECONDS = 10


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
            self._end(name, total)

    def _begin(self, name: str, total: int) -> None: ...
    def _advance(self) -> None: ...
    def _end(self, name: str, total: int) -> None: ...


class LineProgress(Progress):
    """One plain line when a stage begins and one when it ends: for logs and pipes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write
        self._done = 0

    def _begin(self, name: str, total: int) -> None:
        self._done = 0
        self._write(f"{name}: 0 of {total}")

    def _advance(self) -> None:
        self._done += 1

    def _end(self, name: str, total: int) -> None:
        self._write(f"{name}: {self._done} of {total}, {self.seconds[name]:.1f} s")


class BarProgress(Progress):
    """A bar for every stage, with counts and elapsed time: for terminals."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        super().__init__()
        columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, redirect_stdout=False)

    def _begin(self, name: str, total: int) -> None:
        self._bars.start()
        self._bar = self._bars.add_task(name, total=total)

    def _advance(self) -> None:
        self._bars.advance(self._bar)

    def _end(self, name: str, total: int) -> None:
        self._bars.stop()


def run(tasks: Sequence[Any], advance: Callable[[], None] = lambda: None) -> list[Any]:
    """Compute Delayed objects on whatever scheduler is active, and return their values in order.

    `advance` is called as each of them is done. On a cluster the first error cancels the rest.
    """
    client = active_client()
    if client is None:
        keys = {task.key for task in tasks}
        with Callback(posttask=lambda key, *_: advance() if key in keys else None):
            return list(dask.compute(*tasks))
    from distributed import as_completed

    futures = client.compute(list(tasks))
    try:
        for future in as_completed(futures, raise_errors=False):
            future.result()
            advance()
        return list(client.gather(futures))
    finally:
        client.cancel([future for future in futures if not future.done()])


def active_client() -> Any | None:
    """The distributed Client that Dask would use here, or None for the schedulers of this process."""
    owner = getattr(dask.base.get_scheduler(), "__self__", None)
    return owner if owner is not None and hasattr(owner, "scheduler_info") else None


@contextmanager
def connection(scheduler: str | None = None, scheduler_file: str | None = None, workers: int = 0) -> Iterator[None]:
    """Use a running scheduler (address or file), a local cluster of `workers` processes, or this process's threads."""
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

    yield "this machine", dask.system.CPU_COUNT, psutil.virtual_memory().available


@contextmanager
def _local_cluster(workers: int) -> Iterator[Any]:
    from distributed import LocalCluster

    threads = max(1, dask.system.CPU_COUNT // workers)
    with LocalCluster(
        n_workers=workers, threads_per_worker=threads, host="127.0.0.1", dashboard_address="127.0.0.1:0"
    ) as cluster:
        yield cluster


@contextmanager
def _client(address: Any = None, scheduler_file: str | None = None) -> Iterator[None]:
    from distributed import Client

    named = scheduler_file or address
    try:
        client = Client(address, scheduler_file=scheduler_file, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise SchedulerError(
            f"A Dask scheduler must answer at {named} within {CONNECT_SECONDS} s. Got: {error}. "
            "Start one with `dask scheduler`, or leave the option out to run in this process."
        ) from error
    with client:
        yield
