"""Compute tasks on whatever scheduler is active, and turn its failures into errors that say what to do."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any

import dask
from dask.callbacks import Callback
from dask.utils import key_split

from cns_dask.errors import SchedulerLostError, WorkersLostError
from cns_dask.execution.cluster import active_client


def compute(tasks: Sequence[Any], done: Callable[[int], None] = lambda _: None, stage: str = "") -> list[Any]:
    """Compute Delayed objects and return their values in order.

    `done` is called with the position of each as it is finished. On a cluster the first error cancels the rest; the
    work of a worker that dies is done by others, until a task has seen too many of them die.
    """
    if not tasks:
        return []
    client = active_client()
    return _on_threads(tasks, done) if client is None else _on_cluster(client, tasks, done, stage)


def _on_threads(tasks: Sequence[Any], done: Callable[[int], None]) -> list[Any]:
    from threadpoolctl import threadpool_limits

    positions = {task.key: position for position, task in enumerate(tasks)}

    def finished(key: Any, *_: Any) -> None:
        if key in positions:
            done(positions[key])

    with Callback(posttask=finished), threadpool_limits(1, user_api="blas"):  # a task has one core, as on workers
        return list(dask.compute(*tasks))


def _on_cluster(client: Any, tasks: Sequence[Any], done: Callable[[int], None], stage: str) -> list[Any]:
    from distributed import KilledWorker, as_completed

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
