import json
import threading
import time

import dask
import numpy as np
import pytest
from distributed import LocalCluster

from cns_dask.errors import InvalidSettingError, NotEnoughMemoryError, SchedulerError
from cns_dask.execution import cluster as runtime
from cns_dask.execution.cluster import check_memory, connection, run


def test_run_returns_values_in_order_and_counts_each():
    done = []
    tasks = [dask.delayed(pow)(2, dask.delayed(int)(n)) for n in range(5)]
    for scheduler in ("synchronous", "threads"):
        with dask.config.set(scheduler=scheduler):
            assert run(tasks, lambda: done.append(1)) == [1, 2, 4, 8, 16]
    assert len(done) == 10


def test_memory_that_is_too_small_is_refused_with_both_numbers():
    with pytest.raises(NotEnoughMemoryError, match=r"at least \d+ MiB for its \d+ threads\. Got \d+ MiB"):
        check_memory(lambda threads: 10**15)
    check_memory(lambda threads: threads)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x", "127.0.0.1"])
def test_a_scheduler_that_does_not_answer(address, monkeypatch):
    monkeypatch.setattr(runtime, "CONNECT_SECONDS", 1)
    with pytest.raises(SchedulerError, match=r"must answer at .* within 1 s"), connection(scheduler=address):
        pass
    assert runtime.active_client() is None


def test_a_scheduler_and_workers_that_come_later_are_waited_for(tmp_path, capsys):
    file, started = tmp_path / "scheduler.json", []

    def later():
        time.sleep(1)
        started.append(LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0"))
        file.write_text(json.dumps({"address": started[0].scheduler_address}))
        time.sleep(1)
        started[0].scale(2)

    thread = threading.Thread(target=later)
    thread.start()
    try:
        with connection(scheduler_file=str(file), wait_for=2):
            assert len(runtime.active_client().scheduler_info(n_workers=-1)["workers"]) == 2
        assert "waiting: 2 workers must have joined. Got 0 so far." in capsys.readouterr().err
    finally:
        thread.join()
        started[0].close()


def test_only_one_place_to_run_can_be_named():
    with pytest.raises(InvalidSettingError, match="Only one of"), connection(scheduler="tcp://x:1", workers=2):
        pass


def test_the_memory_check_counts_the_threads_that_will_run():
    seen = []
    for options, expected in (({"scheduler": "synchronous"}, 1), ({"num_workers": 3}, 3)):
        with dask.config.set(**options):
            check_memory(lambda threads: seen.append(threads) or 0)
        assert seen[-1] == expected


def test_a_scheduler_file_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.setattr(runtime, "CONNECT_SECONDS", 1)
    with (
        pytest.raises(SchedulerError, match="must answer at .*none.json"),
        connection(scheduler_file=str(tmp_path / "none.json")),
    ):
        pass


def test_a_cluster_of_this_machine_is_used_while_connected():
    with connection(workers=1):
        assert runtime.active_client() is not None
        assert run([dask.delayed(np.sum)([1, 2])]) == [3]
    assert runtime.active_client() is None


def test_no_client_is_active_by_default():
    assert runtime.active_client() is None
    with connection():
        assert runtime.active_client() is None
        assert run([dask.delayed(np.sum)([1, 2])]) == [3]
