"""The memory of this process; that of workers is watched in tests/integration/test_memory.py."""

import os
import time
from dataclasses import asdict

import dask
import numpy as np
import psutil
import pytest

from cns_dask.execution.memory import MOST_MOMENTS, Memory, peak, reset_peak, watched_memory

MIB = 2**20


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this system does not forget a peak")
def test_the_peak_is_what_was_held_at_most_since_it_was_reset():
    reset_peak()
    before = peak()
    held = np.ones(200 * MIB, np.uint8)
    assert peak() >= before + 190 * MIB
    del held
    assert peak() >= before + 190 * MIB  # it is over, and not forgotten
    reset_peak()
    assert peak() <= before + 50 * MIB


def test_the_peak_is_never_below_what_is_held_now():
    reset_peak()
    assert peak() >= 0.9 * psutil.Process().memory_info().rss
    assert peak() < psutil.virtual_memory().total


def test_where_the_system_does_not_tell_the_peak_since_a_reset_that_of_the_whole_process_counts(monkeypatch):
    def unreadable(*arguments, **options):
        raise OSError("no /proc here")

    told = peak()
    monkeypatch.setattr("pathlib.Path.read_text", unreadable)
    monkeypatch.setattr("pathlib.Path.write_text", unreadable)
    reset_peak()
    assert peak() >= 0.9 * told


def test_a_run_without_workers_is_planned_and_measured_for_this_machine():
    with dask.config.set(scheduler="threads", num_workers=3), watched_memory(lambda threads: threads * MIB) as memory:
        assert memory.planned == {"this machine": 3 * MIB}
        assert memory.peaks == {}
        np.ones(100 * MIB, np.uint8)
    assert list(memory.peaks) == ["this machine"]
    assert 100 * MIB < memory.peaks["this machine"] <= peak()
    assert asdict(memory.record()) == {
        "planned_bytes": {"this machine": 3 * MIB},
        "peak_bytes": memory.peaks,
        "short_of_memory": {},
        "moments": [asdict(moment) for moment in memory.moments],
    }


def test_an_error_in_the_block_is_raised_as_it_is():
    with pytest.raises(ZeroDivisionError), watched_memory(lambda threads: 1) as memory:
        raise ZeroDivisionError
    assert memory.planned == {"this machine": 1}


def test_the_largest_of_all_moments_counts():
    memory = Memory({"worker a": 10})
    for used in (3, 8, 5):
        memory.saw("worker a", used)
    memory.saw("worker b", 1)
    assert memory.peaks == {"worker a": 8, "worker b": 1}


class Scheduler:
    """What a client says about its workers."""

    def __init__(self):
        self.workers = {}

    def scheduler_info(self, n_workers):
        assert n_workers == -1  # all of them
        return {"workers": self.workers}


def test_what_this_process_does_is_seen_now_and_then(monkeypatch):
    monkeypatch.setattr("cns_dask.execution.memory.POLL_SECONDS", 0.08)
    began = time.time()
    with watched_memory(lambda threads: 1) as memory:
        while len(memory.moments) < 4:
            sum(range(10_000))
    assert all(began - 0.1 <= moment.time <= time.time() + 0.1 for moment in memory.moments)
    assert all(moment.used["this machine"][0] > 10 * MIB for moment in memory.moments)
    assert max(moment.used["this machine"][1] for moment in memory.moments) > 20


def test_long_runs_keep_few_moments_that_are_spread_over_all():
    memory = Memory({"a": 1})
    for used in range(1000):
        memory.note({"a": (used, 0.0)})
    kept = [moment.used["a"][0] for moment in memory.moments]
    assert MOST_MOMENTS / 2 <= len(kept) <= MOST_MOMENTS
    assert len(set(np.diff(kept))) == 1
    assert kept[0] == 0
    assert kept[-1] > 900
