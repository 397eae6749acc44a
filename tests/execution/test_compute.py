import re
import time
from pathlib import Path

import dask
import numpy as np
import pytest
import threadpoolctl
from distributed import Client, get_client
from processes import local_cluster

from cns_dask.errors import WorkersLostError
from cns_dask.execution.compute import _workers_lost, compute, waiting_for_workers


def powers(n):
    return [dask.delayed(pow)(2, dask.delayed(int)(number)) for number in range(n)]


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_values_come_in_order_and_each_is_told_once_by_its_position(scheduler):
    done = []
    with dask.config.set(scheduler=scheduler):
        assert compute(powers(5), done.append) == [1, 2, 4, 8, 16]
    assert sorted(done) == [0, 1, 2, 3, 4]  # tasks that others only need are not told


def test_values_come_in_order_from_workers_too(client):
    done = []
    assert compute(powers(5), done.append, stage="powers") == [1, 2, 4, 8, 16]
    assert sorted(done) == [0, 1, 2, 3, 4]


def test_nothing_to_compute():
    assert compute([]) == []


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_an_error_is_raised_as_it_is(scheduler):
    with dask.config.set(scheduler=scheduler), pytest.raises(ZeroDivisionError):
        compute([dask.delayed(pow)(0, -1), *powers(2)])


def leave_a_file(folder, number):
    time.sleep(0.1)
    Path(folder, str(number)).touch()


def test_the_first_error_of_a_worker_cancels_the_rest(client, tmp_path):
    tasks = [dask.delayed(leave_a_file)(str(tmp_path), number) for number in range(60)]
    with pytest.raises(ZeroDivisionError) as raised:  # held: its traceback keeps the futures
        compute([dask.delayed(pow)(0, -1), *tasks])

    def unfinished(dask_scheduler):
        return [key for key, task in dask_scheduler.tasks.items() if "leave" in key and task.state != "memory"]

    deadline = time.monotonic() + 20
    while client.run_on_scheduler(unfinished) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert raised.value
    assert len(list(tmp_path.iterdir())) < 60


def blas_threads():
    np.ones((2, 2)) @ np.ones((2, 2))
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_a_task_on_threads_has_one_core_for_linear_algebra():
    assert compute([dask.delayed(blas_threads)()]) == [{1}]


class Worker:
    address = "tcp://10.0.0.7:1234"


def test_workers_that_die_are_an_error_that_says_what_to_do():
    from distributed import KilledWorker

    error = _workers_lost(KilledWorker("solve-0123456789abcdef", Worker(), 3), "evaluate")
    assert isinstance(error, WorkersLostError)
    assert str(error).startswith(
        "The task solve of stage evaluate was on 4 workers when they died, the last of them tcp://10.0.0.7:1234."
    )
    assert "`cns-dask plan` says what a fit needs" in str(error)
    assert "The task solve was on" in str(_workers_lost(KilledWorker("solve-0123456789abcdef", Worker(), 3), ""))


@pytest.fixture
def no_workers():
    with (
        local_cluster(n_workers=0) as cluster,
        Client(cluster),
        dask.config.set({"cns_dask.no-workers-timeout": "2 s"}),
    ):
        yield


@pytest.mark.parametrize(
    "work",
    [
        lambda: compute([dask.delayed(int)(1)]),
        lambda: dask.delayed(int)(1).compute(),  # as dask-ml does
    ],
)
def test_workers_that_never_come_are_told_at_once_and_end_the_wait(no_workers, work):
    told = []
    with (
        pytest.raises(WorkersLostError, match=r"no workers for 2 s \(cns_dask.no-workers.*What was done is kept"),
        waiting_for_workers(told.append),
    ):
        work()
    assert len(told) == 1
    assert re.match(r"no workers since \d\d:\d\d:\d\d: waiting up to 2 s for others", told[0])


def test_workers_that_come_late_end_the_wait_too(no_workers):
    told = []

    def tell(text):
        told.append(text)
        cluster = get_client().cluster
        cluster.scale(1)

    with dask.config.set({"cns_dask.no-workers-timeout": "60 s"}), waiting_for_workers(tell):
        assert compute([dask.delayed(int)(1)]) == [1]
    assert len(told) == 1


def test_futures_of_others_are_left_alone(no_workers):
    theirs = get_client().submit(int, 5)
    with pytest.raises(WorkersLostError), waiting_for_workers(lambda _: None):
        compute([dask.delayed(int)(1)])
    assert theirs.status == "pending"
