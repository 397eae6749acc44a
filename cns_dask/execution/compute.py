"""Compute tasks on whatever scheduler is active, and turn its failures into errors that say what to do."""

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import dask
from dask.callbacks import Callback
from dask.utils import key_split, parse_timedelta

from cns_dask.errors import SchedulerLostError, WorkersLostError
from cns_dask.execution.cluster import active_client, inside_task
from cns_dask.execution.plan import MERGED_AT_ONCE

LOG = logging.getLogger("cns_dask")
POLL_SECONDS = 1.0
NO_WORKERS_TIMEOUT = "10 minutes"  # by default


def compute(
    tasks: Sequence[Any],
    done: Callable[[int], None] = lambda _: None,
    stage: str = "",
    tell: Callable[[str], None] = LOG.warning,
    annotations: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Compute Delayed objects and return their values in order.

    On a cluster they have these `annotations`, as those of a span.

    `done` is called with the position of each as it is finished. On a cluster the first error cancels the rest; the
    work of a worker that dies is done by others, until a task has seen too many of them die. If none is left, see
    `waiting_for_workers`.
    """
    if not tasks:
        return []
    client = active_client()
    if client is None:
        return _on_threads(tasks, done)
    with inside_task(), waiting_for_workers(tell):
        return _on_cluster(client, tasks, done, stage, annotations or {})


def merged(parts: Sequence[Any], merge: Callable[..., Any], *arguments: Any, task: Any = None) -> Any:
    """One task for what many tasks return, merged in a tree by `merge(values, *arguments)`: few are held at a time.

    `task(merge, values, *arguments)` makes each task; None: without a name.
    """
    make = task or (lambda function, *values: dask.delayed(function)(*values))
    tasks = list(parts)
    while len(tasks) > 1:
        groups = [tasks[at : at + MERGED_AT_ONCE] for at in range(0, len(tasks), MERGED_AT_ONCE)]
        tasks = [make(merge, group, *arguments) if len(group) > 1 else group[0] for group in groups]
    return tasks[0]


@functools.cache
def _blas() -> Any:
    """The linear algebra of NumPy and SciPy. To find it takes milliseconds, and a fit computes twenty times."""
    import scipy.linalg  # noqa: F401 - loads its own
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


def _on_threads(tasks: Sequence[Any], done: Callable[[int], None]) -> list[Any]:
    positions = {task.key: position for position, task in enumerate(tasks)}

    def finished(key: Any, *_: Any) -> None:
        if key in positions:
            done(positions[key])

    with Callback(posttask=finished), _blas().limit(limits=1):  # a task has one core, as on workers
        return list(dask.compute(*tasks))


def _on_cluster(
    client: Any, tasks: Sequence[Any], done: Callable[[int], None], stage: str, annotations: Mapping[str, Any]
) -> list[Any]:
    from distributed import KilledWorker, as_completed

    with dask.annotate(**annotations):
        futures = client.compute(list(tasks))
    positions = {future.key: position for position, future in enumerate(futures)}
    values: dict[int, Any] = {}
    try:
        for future in as_completed(futures, raise_errors=False):
            position = positions[future.key]
            values[position] = future.result()
            future.release()  # or it would be computed again if its worker died
            done(position)
        return [values[position] for position in range(len(tasks))]
    except CancelledError as error:  # distributed's own inherits it: nobody else cancels
        raise SchedulerLostError(
            f"The scheduler does not answer any more ({error}). What was done is kept: the same run goes on from "
            "there, on this or another scheduler."
        ) from error
    except KilledWorker as error:
        raise _workers_lost(error, stage) from error
    finally:
        pending = [future for future in futures if not future.done()]
        if pending and client.status == "running":
            client.cancel(pending)


def _workers_lost(error: Any, stage: str) -> WorkersLostError:
    return WorkersLostError(
        f"The task {key_split(error.task)}{stage and f' of stage {stage}'} was on {error.allowed_failures + 1} workers "
        f"when they died, the last of them {error.last_worker.address}. Most often they lack memory: give them more, "
        "or fewer threads; `cns-dask plan` says what a fit needs. What was done is kept: the same run goes on."
    )


_is_watched: ContextVar[bool] = ContextVar("_is_watched", default=False)


@contextmanager
def waiting_for_workers(tell: Callable[[str], None] = LOG.warning) -> Iterator[None]:
    """Tell when the cluster has no workers, and end what runs in here when it has had none for too long.

    How long they are waited for is `cns_dask.no-workers-timeout` in Dask's configuration: ten minutes by default.
    """
    client = active_client()
    if client is None or _is_watched.get():
        yield
        return
    watch, token = _Watch(client, tell), _is_watched.set(True)
    watch.start()
    try:
        yield
    except (CancelledError, SchedulerLostError) as error:
        if not watch.gave_up:
            raise
        raise WorkersLostError(
            f"There were no workers for {watch.seconds:.0f} s (cns_dask.no-workers-timeout in Dask's configuration). "
            "What was done is kept: start workers, and the same run goes on from there."
        ) from error
    finally:
        _is_watched.reset(token)
        watch.stop()


class _Watch(threading.Thread):
    """Looks whether a cluster has workers; cancels what was begun since, when it has had none for too long."""

    def __init__(self, client: Any, tell: Callable[[str], None]) -> None:
        super().__init__(daemon=True, name="cns-dask-workers")
        self._client, self._tell, self._stopped = client, tell, threading.Event()
        self._others = set(client.futures)
        self.seconds = float(parse_timedelta(dask.config.get("cns_dask.no-workers-timeout", NO_WORKERS_TIMEOUT)))
        self.gave_up = False

    def run(self) -> None:
        """Look now and then."""
        from distributed import Future

        since = None
        while not self._stopped.wait(POLL_SECONDS) and self._client.status == "running":
            if self._client.scheduler_info(n_workers=-1)["workers"]:
                since = None
            elif since is None:
                since = time.monotonic()
                self._tell(
                    f"no workers since {time.strftime('%H:%M:%S')}: waiting up to {self.seconds:.0f} s for others. "
                    "Start some, or stop and run the same again later: it goes on."
                )
            elif time.monotonic() - since > self.seconds:
                self.gave_up = True
                ours = set(self._client.futures) - self._others
                self._client.cancel([Future(key, self._client) for key in ours])

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self.join()
