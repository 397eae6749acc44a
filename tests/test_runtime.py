import io
import re

import dask
import numpy as np
import pytest
from rich.console import Console

from cns_dask import runtime
from cns_dask.errors import InvalidSettingError, NotEnoughMemoryError, SchedulerError
from cns_dask.runtime import BarProgress, LineProgress, check_memory, connection, run


def test_run_returns_values_in_order_and_counts_each():
    done = []
    tasks = [dask.delayed(pow)(2, dask.delayed(int)(n)) for n in range(5)]
    for scheduler in ("synchronous", "threads"):
        with dask.config.set(scheduler=scheduler):
            assert run(tasks, lambda: done.append(1)) == [1, 2, 4, 8, 16]
    assert len(done) == 10


def test_lines_tell_counts_and_times(monkeypatch):
    lines = []
    progress = LineProgress(lines.append)
    with progress.stage("neighbors", 3) as advance:
        advance()
        monkeypatch.setattr(runtime, "LINE_SECONDS", -1)
        advance()
    assert lines[0] == "neighbors: 0 of 3"
    assert re.fullmatch(r"neighbors: 2 of 3, \d+ s so far", lines[1])
    assert re.fullmatch(r"neighbors: 2 of 3, \d+\.\d s", lines[2])
    assert progress.seconds["neighbors"] >= 0


def test_bars_tell_counts_and_times_on_a_terminal():
    text = io.StringIO()
    progress = BarProgress(Console(file=text, force_terminal=True, width=80))
    with progress.stage("cells", 2) as advance:
        advance()
        advance()
    with progress.stage("columns", 1) as advance:
        advance()
    shown = text.getvalue()
    assert re.search(r"cells.*2/2.*0:00:00", shown.replace("\n", " "))
    assert "cells" not in shown[shown.index("columns") :]  # a finished stage is not drawn again


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
