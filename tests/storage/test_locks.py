import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from cns_dask.errors import OutputInUseError
from cns_dask.storage.locations import Location
from cns_dask.storage.locks import locked

HOLD = """
import sys, time
from cns_dask.storage.locks import locked
from cns_dask.storage.locations import Location
with locked(Location(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path):
    return Location(tmp_path)


def test_a_second_one_is_refused_while_the_first_lives(folder):
    with locked(folder):
        with (
            pytest.raises(OutputInUseError, match=rf"Another run is writing to this output: process {os.getpid()} on"),
            locked(folder),
        ):
            pass
        assert folder.names() == ["lock-1"]
    assert folder.names() == []
    with locked(folder):
        pass


def test_the_lock_of_a_killed_process_is_taken_over(folder):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(OutputInUseError, match=f"process {process.pid}"), locked(folder):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert folder.names() == ["lock-1"]
    with locked(folder):
        assert folder.names() == ["lock-1", "lock-2"]
    assert folder.names() == []


def test_a_process_with_the_number_of_a_dead_one_is_watched(folder):
    """Or the clock was set: only what is not renewed is dead."""
    with locked(folder):
        holder = json.loads(folder.read("lock-1"))
    folder.write("lock-1", json.dumps(holder | {"born": holder["born"] - 1000}).encode())
    told = []
    with locked(folder, told.append, dead_seconds=1.5):
        assert "lock-2" in folder.names()
    assert "to see whether it lives" in told[0]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[1]", b'{"host": "elsewhere", "pid": 1}'])
def test_a_lock_from_elsewhere_is_watched(folder, content):
    folder.write("lock-1", content)
    told = []
    with locked(folder, told.append, dead_seconds=1.5):
        pass
    assert "waiting up to 1.5 s" in told[0]


def renew(path):
    for number in range(20):
        Location(path).write("lock-1", json.dumps({"host": "else\x1bwhere", "pid": 7, "renewed": number}).encode())
        time.sleep(0.2)


def test_a_lock_from_elsewhere_that_is_renewed_lives(folder):
    process = multiprocessing.get_context("spawn").Process(target=renew, args=(str(folder),))
    process.start()
    while not folder.exists("lock-1"):
        time.sleep(0.05)
    with (
        pytest.raises(OutputInUseError, match=r"process 7 on 'else\\x1bwhere'"),
        locked(folder, dead_seconds=3),
    ):
        pass
    process.terminate()
    process.join()


def test_a_run_that_slept_too_long_notices(folder):
    with locked(folder, renew_seconds=0.1) as check_lock:
        check_lock()
        first = folder.read("lock-1")
        time.sleep(0.4)
        assert folder.read("lock-1") != first  # it renews
        folder.write("lock-2", b"{}")
        with pytest.raises(OutputInUseError, match="lost its lock on .*another run may have taken over"):
            check_lock()
    assert folder.names() == ["lock-2"]


def test_a_store_that_falters_does_not_end_the_renewal(folder, monkeypatch):
    write, fails = Location.write, []

    def sometimes(self, name, content):
        if len(fails) < 3:
            fails.append(1)
            raise OSError("no")
        write(self, name, content)

    monkeypatch.setattr(Location, "write", sometimes)
    with locked(folder, renew_seconds=0.05) as check_lock:
        first = folder.read("lock-1")
        time.sleep(1)
        assert folder.read("lock-1") != first
        check_lock()


def test_a_run_that_could_not_renew_for_too_long_has_lost_its_lock(folder):
    """Even if nobody has taken over yet: somebody may at any moment."""
    with locked(folder, renew_seconds=60, dead_seconds=1) as check_lock:
        check_lock()
        time.sleep(1.1)
        assert folder.names() == ["lock-1"]
        with pytest.raises(OutputInUseError, match="silent for too long and lost its lock"):
            check_lock()


def test_one_that_comes_while_another_goes_withdraws(folder, monkeypatch):
    claim = Location.claim

    def late(self, name, content):
        claim(self, "lock-7", b'{"pid": 3, "host": "h"}')
        return claim(self, name, content)

    monkeypatch.setattr(Location, "claim", late)
    with pytest.raises(OutputInUseError, match="process 3"), locked(folder):
        pass
    assert folder.names() == ["lock-7"]
