"""Where the work runs: schedulers, workers, and what they can hold. With `compute` the only door to distributed."""

import importlib.util
import logging
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import dask
import dask.array as da

from cns_dask.config import default_memory, default_workers
from cns_dask.errors import InvalidSettingError, NotEnoughMemoryError, OutputError, SchedulerError
from cns_dask.progress import LINE_SECONDS, visible_progress
from cns_dask.storage.locations import Location

CONNECT_SECONDS = 10

T = TypeVar("T")


@contextmanager
def inside_task() -> Iterator[None]:
    """Let what runs in here, perhaps in a task, start work of its own: on the cluster whose task it is, or on threads.

    A task that waits for others must leave its place on the worker to them, or all could wait for one another.
    """
    if not _holds_a_place():
        yield
        return
    from distributed import worker_client

    with worker_client():
        yield


def _holds_a_place() -> bool:
    """Whether this thread runs a task of a worker, and counts as one of the threads that this has."""
    from distributed.threadpoolexecutor import thread_state

    return threading.current_thread() in getattr(getattr(thread_state, "executor", None), "_threads", ())


def on_every_worker(function: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """Call a function once in every process that tasks run in; return its values, by the name of the process."""
    client = active_client()
    if client is None:
        return {"this process": function(*arguments)}
    answers = client.run(function, *arguments, on_error="return")  # others do the work of a worker that dies
    values = {f"worker {address}": value for address, value in answers.items() if not isinstance(value, Exception)}
    if not values:
        errors = {f"{type(value).__name__}: {value}" for value in answers.values()}
        raise SchedulerError(
            f"No worker could run {function.__name__} ({', '.join(errors) or 'there are no workers'})."
        )
    return values


def active_client() -> Any | None:
    """The distributed Client that Dask would use here, or None for the schedulers of this process."""
    try:
        owner = getattr(dask.base.get_scheduler(), "__self__", None)
    except RuntimeError as error:
        raise SchedulerError(
            "The active Dask client is asynchronous, and this would block its event loop. Call it in a thread: "
            "await asyncio.to_thread(model.fit, X)."
        ) from error
    return owner if owner is not None and hasattr(owner, "scheduler_info") else None


def delayed_chunks(X: da.Array) -> list[Any]:
    """The chunks of rows as Delayed objects; chunks that are in the workers' memory stay there as long as these do."""
    from distributed import futures_of

    return list(X.to_delayed(optimize_graph=not futures_of(X)).ravel())  # optimizing would drop the futures


@contextmanager
def connection(
    scheduler: str | None = None,
    scheduler_file: str | None = None,
    workers: int = 0,
    tls: tuple[str | None, str | None, str | None] = (None, None, None),
    *,
    memory: int | None = None,
    wait_for: int = 0,
    quiet: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[None]:
    """Use a running scheduler (address or file), a local cluster of `workers` processes, or this process's threads.

    Each of these workers has `memory` bytes, or its share of the machine.

    With `wait_for` a scheduler that is not there yet is waited for, and then until so many workers have joined it: in a
    queue that may take hours.

    `tls` are the files of authority, certificate and key for a scheduler with TLS; without them Dask's configuration
    counts. A local cluster listens on this machine only. `quiet` keeps what Dask logs about lost connections to itself:
    errors say it. `tell` is told where Dask's dashboard is.
    """
    security = _security(tls)
    if quiet and (scheduler or scheduler_file or workers):
        _silence()
    if sum(map(bool, (scheduler, scheduler_file, workers))) > 1:
        raise InvalidSettingError("Give only one of scheduler, scheduler file and workers.")
    if scheduler is None and scheduler_file is None and workers == 0:
        yield
    elif workers:
        with _local_cluster(workers, memory) as cluster, _client(cluster):
            _tell_dashboard(tell)
            yield
    else:
        with _client(scheduler, scheduler_file, security, wait_for):
            _tell_dashboard(tell)
            yield


@contextmanager
def configured_workers() -> Iterator[None]:
    """Start the workers that Dask's configuration asks for (`cns-dask.workers`), unless a scheduler is chosen."""
    workers = default_workers()
    is_chosen = active_client() is not None or _holds_a_place() or dask.config.get("scheduler", None) is not None
    with nullcontext() if is_chosen or not workers else connection(workers=workers, memory=default_memory()):
        yield


def _tell_dashboard(tell: Callable[[str], None]) -> None:
    client = active_client()
    link = getattr(client, "dashboard_link", None)
    if link and (getattr(client, "cluster", None) is None or has_bokeh()):  # else the page would only say so
        tell(f"dashboard at {link}")


def has_bokeh() -> bool:
    """Whether the package is there that Dask's dashboard and reports need."""
    return importlib.util.find_spec("bokeh") is not None


@contextmanager
def performance_report(path: Path | None) -> Iterator[None]:
    """Write Dask's own page about all tasks that run in the block on its workers."""
    if path is None:
        yield
        return
    check_performance_report(path)
    if active_client() is None:
        raise InvalidSettingError("Only the work of Dask's workers is reported. Give workers, or a scheduler, too.")
    from distributed import performance_report as reported

    with reported(filename=str(path)):
        yield


def check_performance_report(path: Path | None) -> None:
    """Refuse a page of Dask's that cannot be written, before any work."""
    if path is not None and not has_bokeh():
        raise InvalidSettingError("A performance report needs bokeh: pip install 'cns_dask[dashboard]'.")
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise OutputError(f"The page {path} cannot be written: its folder does not exist, or it is a folder itself.")


def span_of(*names: str) -> dict[str, Any]:
    """Annotations for tasks that are to be one span on Dask's dashboard; none without workers.

    They are for the moment at which tasks are submitted. A graph that is built under annotations has them on its
    layers, and Dask does not fuse layers that differ in them.
    """
    if active_client() is None:
        return {}
    from distributed import span

    with span(*names):
        return {"span": dask.get_annotations()["span"]}


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
        raise InvalidSettingError(f"TLS needs three files that exist. There is none for {', '.join(without)}.")
    from distributed.security import Security

    ca, cert, key = tls
    return Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)


def check_memory(worker_bytes: Callable[[int], int]) -> None:
    """Refuse to start when a worker, or this machine, has less memory than `worker_bytes(threads)`."""
    for name, threads, limit in processes():
        needed = worker_bytes(threads)
        if limit and needed > limit:
            raise NotEnoughMemoryError(
                f"The work needs {needed / 2**20:.0f} MiB of memory on {name} for its {threads} thread(s), which has "
                f"{limit / 2**20:.0f} MiB. Use fewer threads per worker, or workers with more memory."
            )


def check_location_is_shared(location: Location, name: str = "zarr.json") -> None:
    """Refuse to start when a worker cannot see where results are kept."""
    client = active_client()
    if client is None:
        return
    answers = client.run(location.exists, name, on_error="return")
    alive = client.scheduler_info(n_workers=-1)["workers"]  # a worker that died meanwhile does not matter
    blind = [worker for worker, seen in answers.items() if seen is not True and worker in alive]
    if blind:
        raise SchedulerError(
            f"Some workers cannot see the folder of the result ({location}): {', '.join(blind)}. "
            "Give an output on a disk that all machines share, or in an object store."
        )


def processes() -> Iterator[tuple[str, int, int]]:
    """Name, threads and memory of every process that tasks run in."""
    client = active_client()
    yield from _this_process() if client is None else _workers(client)


def _workers(client: Any) -> Iterator[tuple[str, int, int]]:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    if not workers:
        raise SchedulerError("The scheduler has no workers. Start some first.")
    for address, worker in workers.items():
        yield f"worker {address}", worker["nthreads"], worker["memory_limit"]


def machine_memory() -> int:
    """Memory that this process may use: that of the machine, or of the container."""
    from distributed.system import MEMORY_LIMIT

    return int(MEMORY_LIMIT)


def _this_process() -> Iterator[tuple[str, int, int]]:
    import psutil

    serial = dask.base.get_scheduler() is dask.local.get_sync
    threads = 1 if serial else dask.config.get("num_workers", None) or dask.system.CPU_COUNT
    yield "this machine", threads, min(machine_memory(), psutil.virtual_memory().available)


@contextmanager
def _local_cluster(workers: int, memory: int | None) -> Iterator[Any]:
    from distributed import LocalCluster

    threads = max(1, dask.system.CPU_COUNT // workers)
    # Python 3.11 before 3.11.10 may deadlock in `sys._current_frames`, which Dask's profiler calls all the time
    with _deaf_to_interrupts(), dask.config.set({"distributed.worker.profile.enabled": False}):
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            memory_limit=memory or "auto",
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
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
    joined = len(client.scheduler_info(n_workers=-1)["workers"])
    if joined < count:
        raise SchedulerError(f"{joined} of {count} workers have joined.")


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
            f"No Dask scheduler answers at {named} within {CONNECT_SECONDS} s ({error}). "
            "Start one with `dask scheduler`, or leave the option out to run in this process."
        ) from error
    return client
