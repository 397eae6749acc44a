"""Where the work runs: schedulers, workers and their memory. The only door to distributed."""

from __future__ import annotations

import logging
import math
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import dask
import dask.array as da
import numpy as np
from dask.callbacks import Callback
from dask.utils import key_split

from cns_dask.errors import (
    InvalidSettingError,
    NotEnoughMemoryError,
    SchedulerError,
    SchedulerLostError,
    WorkersLostError,
)
from cns_dask.places import Place
from cns_dask.progress import LINE_SECONDS, visible_progress

CONNECT_SECONDS = 10

T = TypeVar("T")


def run(
    tasks: Sequence[Any],
    advance: Callable[[], None] = lambda: None,
    finished: Callable[[int], None] = lambda _: None,
    stage: str = "",
) -> list[Any]:
    """Compute Delayed objects on whatever scheduler is active, and return their values in order.

    `advance` and `finished` are called as each of them is done, the latter with its position. On a cluster the first
    error cancels the rest; a worker that dies is replaced by others, until a task has seen too many of them die.
    """
    if not tasks:
        return []
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
    from distributed import KilledWorker, as_completed

    futures = client.compute(list(tasks))
    positions = {future.key: position for position, future in enumerate(futures)}
    values: dict[int, Any] = {}
    try:
        for future in as_completed(futures, raise_errors=False):
            position = positions[future.key]
            values[position] = future.result()
            future.release()  # or it would be done again if its worker died
            advance()
            finished(position)
        return [values[position] for position in range(len(tasks))]
    except CancelledError as error:  # distributed's own inherits it: nobody else cancels
        raise SchedulerLostError(
            f"The scheduler must answer until the work is done. Got none any more ({error}). "
            "What was done is kept: the same run goes on from there, on this or another scheduler."
        ) from error
    except KilledWorker as error:
        raise WorkersLostError(
            f"A task must end before its worker does. Got {key_split(error.task)}{stage and f' (of stage {stage})'}, "
            f"which was on {error.allowed_failures + 1} workers when they died, the last of them "
            f"{error.last_worker.address}. Most often this is for want of memory: give the workers more, or fewer "
            "threads; `cns-dask plan` tells what a fit needs. What was done is kept: the same run goes on from there."
        ) from error
    finally:
        pending = [future for future in futures if not future.done()]
        if pending and client.status == "running":
            client.cancel(pending)


@contextmanager
def inside_task() -> Iterator[None]:
    """Let what runs in here, in a task, start work of its own: on the cluster whose task it is, or on threads."""
    from distributed import get_worker, worker_client

    try:
        get_worker()
    except ValueError:
        yield
        return
    with worker_client():
        yield


def on_every_worker(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Call a function once in every process that tasks run in; return what it gave, by the name of the process."""
    client = active_client()
    if client is None:
        return {"this process": function(*arguments)}
    found = client.run(function, *arguments, on_error="return")  # a worker that dies is no matter: others do its work
    values = {f"worker {address}": value for address, value in found.items() if not isinstance(value, Exception)}
    if not values:
        errors = {f"{type(value).__name__}: {value}" for value in found.values()}
        raise SchedulerError(f"A worker must be able to do it. Got none ({', '.join(errors) or 'none is there'}).")
    return values


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
def connection(
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    workers: int = 0,
    tls: tuple[str | None, str | None, str | None] = (None, None, None),
    *,
    wait_for: int = 0,
    quiet: bool = False,
) -> Iterator[None]:
    """Use a running scheduler (address or file), a local cluster of `workers` processes, or this process's threads.

    With `wait_for` a scheduler that is not there yet is waited for, and then until so many workers have joined it: in a
    queue that may take hours.

    `tls` are the files of authority, certificate and key for a scheduler with TLS; without them Dask's configuration
    counts. A local cluster listens on this machine only. `quiet` keeps what Dask logs about lost connections to itself:
    errors say it.
    """
    security = _security(tls)
    if quiet and (scheduler or scheduler_file or workers):
        _silence()
    if sum(map(bool, (scheduler, scheduler_file, workers))) > 1:
        raise InvalidSettingError("Only one of scheduler, scheduler file and workers must be given. Got several.")
    if scheduler is None and scheduler_file is None and workers == 0:
        yield
    elif workers:
        with _local_cluster(workers) as cluster, _client(cluster):
            yield
    else:
        with _client(scheduler, scheduler_file, security, wait_for):
            yield


def _silence() -> None:
    import distributed  # noqa: F401 - it sets the levels of its loggers when it is imported

    for name in ("distributed", "distributed.client", "tornado", "tornado.application", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _security(tls: tuple[str | None, str | None, str | None]) -> Any | None:
    """What distributed needs for TLS; None if no file is given."""
    if not any(tls):
        return None
    options = dict(zip(("--tls-ca", "--tls-cert", "--tls-key"), tls, strict=True))
    without = [name for name, file in options.items() if not file or not Path(file).is_file()]
    if without:
        raise InvalidSettingError(f"TLS needs three files that exist. Got none for {', '.join(without)}.")
    from distributed.security import Security

    ca, cert, key = tls
    return Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)


def check_memory(worker_bytes: Callable[[int], int]) -> None:
    """Refuse to start when a worker, or this machine, has less memory than `worker_bytes(threads)`."""
    for name, threads, limit in processes():
        needed = worker_bytes(threads)
        if limit and needed > limit:
            raise NotEnoughMemoryError(
                f"The memory of {name} must be at least {needed / 2**20:.0f} MiB for its {threads} threads. "
                f"Got {limit / 2**20:.0f} MiB. Use fewer threads per worker, or workers with more memory."
            )


def check_path_is_shared(place: Place, name: str = "zarr.json") -> None:
    """Refuse to start when a worker cannot see what is at the place where results are kept."""
    client, path = active_client(), place.path
    if client is None:
        return
    answers = client.run(place.exists, name, on_error="return")
    there = client.scheduler_info(n_workers=-1)["workers"]  # who has died meanwhile is no matter
    blind = [worker for worker, seen in answers.items() if seen is not True and worker in there]
    if blind:
        raise SchedulerError(
            f"Every worker must see the folder of the result ({path}). {', '.join(blind)} cannot. "
            "Give an output on a disk that all machines share, or in an object store."
        )


def processes() -> Iterator[tuple[str, int, int]]:
    """Name, threads and memory of every process that tasks run in."""
    client = active_client()
    yield from _this_process() if client is None else _workers(client)


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
    with _deaf_to_interrupts():
        cluster = LocalCluster(
            n_workers=workers, threads_per_worker=threads, host="127.0.0.1", dashboard_address="127.0.0.1:0"
        )
    with cluster:
        yield cluster


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Processes that are started here do not hear Ctrl-C, which a terminal sends to all: this one ends them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, heard)


def _wait_for_file(path: Path) -> None:
    """Give a scheduler that is just starting time to write its file; Dask itself would wait for ever."""
    deadline = time.monotonic() + CONNECT_SECONDS
    while not path.is_file():
        if time.monotonic() > deadline:
            raise FileNotFoundError(f"there is no file {path}")
        time.sleep(0.1)


@contextmanager
def _client(
    address: Any = None, scheduler_file: str | None = None, security: Any = None, wait_for: int = 0
) -> Iterator[None]:
    client = _patiently(wait_for > 0, lambda: _connect(address, scheduler_file, security))
    with client, client.as_current():
        _patiently(wait_for > 0, lambda: _check_joined(client, wait_for))
        yield


def _patiently(patient: bool, get: Callable[[], T]) -> T:
    """What `get` returns; if `patient`, as soon as it raises no SchedulerError, which is told now and then."""
    progress, told = visible_progress(), -math.inf
    while True:
        try:
            return get()
        except SchedulerError as error:
            if not patient:
                raise
            if time.monotonic() - told > LINE_SECONDS:
                progress.tell(f"waiting: {error}")
                told = time.monotonic()
            time.sleep(0.5)


def _check_joined(client: Any, count: int) -> None:
    there = len(client.scheduler_info(n_workers=-1)["workers"])
    if there < count:
        raise SchedulerError(f"{count} workers must have joined. Got {there} so far.")


def _connect(address: Any, scheduler_file: str | None, security: Any) -> Any:
    from distributed import Client

    named = scheduler_file or address
    client = Client.__new__(Client)
    try:
        if scheduler_file is not None:
            _wait_for_file(Path(scheduler_file))
        # not the default before it is connected: Dask would go on using a client that never was
        client.__init__(  # made in two steps: there is something to silence if it fails
            address, scheduler_file=scheduler_file, security=security, timeout=CONNECT_SECONDS, set_as_default=False
        )
    except Exception as error:  # distributed also fails with assertions on files and addresses that are none
        client.status = "closed"  # or it would try to close, in vain, when it is collected, and tell so
        raise SchedulerError(
            f"A Dask scheduler must answer at {named} within {CONNECT_SECONDS} s. Got: {error}. "
            "Start one with `dask scheduler`, or leave the option out to run in this process."
        ) from error
    return client
