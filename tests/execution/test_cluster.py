import json
import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
from processes import local_cluster

from cns_dask.errors import InvalidSettingError, NotEnoughMemoryError, SchedulerError
from cns_dask.execution import cluster as module
from cns_dask.execution.cluster import (
    active_client,
    check_location_is_shared,
    check_memory,
    configured_workers,
    connection,
    delayed_chunks,
    inside_task,
    on_every_worker,
    processes,
)
from cns_dask.storage.locations import Location


def test_memory_that_is_too_small_is_refused_with_both_numbers():
    with pytest.raises(
        NotEnoughMemoryError,
        match=r"needs 953674316 MiB of memory on this machine for its \d+ thread\(s\), which has \d+ MiB",
    ):
        check_memory(lambda threads: 10**15)
    check_memory(lambda threads: threads)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense://x", "127.0.0.1"])
def test_a_scheduler_that_does_not_answer(address, monkeypatch):
    monkeypatch.setattr(module, "CONNECT_SECONDS", 1)
    with (
        pytest.raises(SchedulerError, match=rf"No Dask scheduler answers at {address} within 1 s"),
        connection(scheduler=address),
    ):
        pass
    assert active_client() is None


def test_a_scheduler_and_workers_that_come_later_are_waited_for(tmp_path, capsys):
    file, started = tmp_path / "scheduler.json", []

    def later():
        time.sleep(1)
        started.append(local_cluster(0))
        file.write_text(json.dumps({"address": started[0].scheduler_address}))
        time.sleep(1)
        started[0].scale(2)

    thread = threading.Thread(target=later)
    thread.start()
    try:
        with connection(scheduler_file=str(file), wait_for=2):
            assert len(active_client().scheduler_info(n_workers=-1)["workers"]) == 2
        assert "waiting: 0 of 2 workers have joined." in capsys.readouterr().err
    finally:
        thread.join()
        started[0].close()


def test_only_one_place_to_run_can_be_named():
    with (
        pytest.raises(InvalidSettingError, match="Give only one of scheduler, scheduler file and workers"),
        connection(scheduler="tcp://x:1", workers=2),
    ):
        pass


def test_the_memory_check_counts_the_threads_that_will_run():
    seen = []
    for options, expected in (({"scheduler": "synchronous"}, 1), ({"num_workers": 3}, 3)):
        with dask.config.set(**options):
            check_memory(lambda threads: seen.append(threads) or 0)
        assert seen[-1] == expected


def test_a_scheduler_file_that_does_not_exist(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CONNECT_SECONDS", 1)
    with (
        pytest.raises(SchedulerError, match="No Dask scheduler answers at .*none.json within 1 s"),
        connection(scheduler_file=str(tmp_path / "none.json")),
    ):
        pass


def test_a_cluster_of_this_machine_is_used_while_connected():
    with connection(workers=1):
        assert active_client() is not None
        assert dask.delayed(np.sum)([1, 2]).compute() == 3
    assert active_client() is None


def test_no_client_is_active_by_default():
    assert active_client() is None
    with connection():
        assert active_client() is None
        assert dask.delayed(np.sum)([1, 2]).compute() == 3


def test_this_process_is_the_only_one_without_a_cluster(tmp_path):
    ((name, threads, limit),) = processes()
    assert name == "this machine"
    assert threads == dask.system.CPU_COUNT
    assert 2**26 < limit < 2**50
    assert on_every_worker(pow, 2, 5) == {"this process": 32}
    check_location_is_shared(Location(tmp_path / "nowhere"))  # nobody else has to see it


def test_what_every_worker_says_is_told_by_its_address(client):
    workers = [f"worker {address}" for address in client.scheduler_info(n_workers=-1)["workers"]]
    assert on_every_worker(pow, 2, 5) == dict.fromkeys(workers, 32)
    assert [name for name, _, _ in processes()] == workers
    assert {threads for _, threads, _ in processes()} == {1}
    with pytest.raises(SchedulerError, match=r"No worker could run pow \(ZeroDivisionError: .*\)"):
        on_every_worker(pow, 0, -1)


def test_a_folder_that_workers_cannot_see_is_refused(client, tmp_path):
    folder = Location(tmp_path)
    folder.write("zarr.json", b"")
    check_location_is_shared(folder)
    with pytest.raises(SchedulerError, match=r"Some workers cannot see the folder of the result \(.*nowhere\): tcp://"):
        check_location_is_shared(folder / "nowhere")


def test_chunks_in_the_memory_of_workers_stay_as_long_as_tasks_need_them(client):
    for _ in range(5):
        chunks = delayed_chunks(da.arange(10, chunks=4).persist())  # nobody else holds them
        assert [int(part.sum()) for part in dask.compute(*chunks)] == [6, 22, 17]


def count_inside():
    with inside_task():
        return active_client() is not None, int(da.ones(10, chunks=5).sum().compute())


def test_a_task_starts_work_of_its_own_where_it_runs(client):
    assert client.submit(count_inside, pure=False).result() == (True, 10)
    with dask.config.set(scheduler="threads"):
        assert dask.delayed(count_inside)().compute() == (False, 10)


def test_tls_needs_all_three_files(tmp_path):
    (tmp_path / "ca.pem").write_text("")
    tls = (str(tmp_path / "ca.pem"), None, str(tmp_path / "none.pem"))
    with (
        pytest.raises(
            InvalidSettingError, match="TLS needs three files that exist. There is none for --tls-cert, --tls"
        ),
        connection(scheduler="tls://127.0.0.1:1", tls=tls),
    ):
        pass


def test_a_cluster_without_workers_is_refused():
    with (
        local_cluster(0) as empty,
        connection(scheduler=empty.scheduler_address),
        pytest.raises(SchedulerError, match="The scheduler has no workers. Start some first"),
    ):
        check_memory(lambda threads: 0)


def test_workers_have_the_memory_that_was_asked_for_and_the_dashboard_is_told(monkeypatch):
    told = []
    monkeypatch.setattr(module, "has_bokeh", lambda: True)
    with connection(workers=1, memory=700 * 2**20, tell=told.append):
        [(_, _, limit)] = processes()
    assert limit == 700 * 2**20
    assert len(told) == 1
    assert told[0].startswith("dashboard at http://127.0.0.1:")
    monkeypatch.setattr(module, "has_bokeh", lambda: False)
    with connection(workers=1, tell=told.append):
        pass
    assert len(told) == 1  # there is none


def test_a_client_that_is_active_is_used_instead_of_configured_workers(client):
    with dask.config.set({"cns-dask.workers": 1}), configured_workers():
        assert active_client() is client
