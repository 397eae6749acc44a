import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest

from cns_dask.errors import OutputInUseError
from cns_dask.storage import locks
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
def place(tmp_path):
    return Location(tmp_path)


def test_a_second_one_is_refused_while_the_first_lives(place):
    with locked(place):
        with (
            pytest.raises(OutputInUseError, match=rf"being written by process {os.getpid()} on"),
            locked(place),
        ):
            pass
        assert place.names() == ["lock-1"]
    assert place.names() == []
    with locked(place):
        pass


def test_the_lock_of_a_killed_process_is_taken_over(place):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(place)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(OutputInUseError, match=f"process {process.pid}"), locked(place):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert place.names() == ["lock-1"]
    with locked(place):
        assert place.names() == ["lock-1", "lock-2"]
    assert place.names() == []


def test_a_process_with_the_number_of_a_dead_one_is_watched(place, monkeypatch):
    """Or the clock was set: only what is not renewed is dead."""
    monkeypatch.setattr(locks, "DEAD_SECONDS", 1.5)
    with locked(place):
        holder = json.loads(place.read("lock-1"))
    place.write("lock-1", json.dumps(holder | {"born": holder["born"] - 1000}).encode())
    told = []
    with locked(place, told.append):
        assert "lock-2" in place.names()
    assert "to see whether it lives" in told[0]


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[1]", b'{"host": "elsewhere", "pid": 1}'])
def test_a_lock_from_elsewhere_is_watched(place, monkeypatch, content):
    monkeypatch.setattr(locks, "DEAD_SECONDS", 1.5)
    place.write("lock-1", content)
    told = []
    with locked(place, told.append):
        pass
    assert "waiting up to 1.5 s" in told[0]


def renew(path):
    for number in range(20):
        Location(path).write("lock-1", json.dumps({"host": "else\x1bwhere", "pid": 7, "renewed": number}).encode())
        time.sleep(0.2)


def test_a_lock_from_elsewhere_that_is_renewed_lives(place, monkeypatch):
    monkeypatch.setattr(locks, "DEAD_SECONDS", 3)
    process = multiprocessing.get_context("spawn").Process(target=renew, args=(str(place),))
    process.start()
    while not place.exists("lock-1"):
        time.sleep(0.05)
    with pytest.raises(OutputInUseError, match=r"process 7 on 'else\\x1bwhere'"), locked(place):
        pass
    process.terminate()
    process.join()


def test_a_run_that_slept_too_long_notices(place, monkeypatch):
    monkeypatch.setattr(locks, "RENEW_SECONDS", 0.1)
    with locked(place) as still_ours:
        still_ours()
        first = place.read("lock-1")
        time.sleep(0.4)
        assert place.read("lock-1") != first  # it renews
        place.write("lock-2", b"{}")
        with pytest.raises(OutputInUseError, match="another may have taken over"):
            still_ours()
    assert place.names() == ["lock-2"]


def test_a_store_that_falters_does_not_end_the_renewal(place, monkeypatch):
    monkeypatch.setattr(locks, "RENEW_SECONDS", 0.05)
    write, fails = Location.write, []

    def sometimes(self, name, content):
        if len(fails) < 3:
            fails.append(1)
            raise OSError("no")
        write(self, name, content)

    monkeypatch.setattr(Location, "write", sometimes)
    with locked(place) as still_ours:
        first = place.read("lock-1")
        time.sleep(1)
        assert place.read("lock-1") != first
        still_ours()
        monkeypatch.setattr(locks, "DEAD_SECONDS", 0)
        with pytest.raises(OutputInUseError):
            still_ours()


def test_one_that_comes_while_another_goes_withdraws(place, monkeypatch):
    claim = Location.claim

    def late(self, name, content):
        claim(self, "lock-7", b'{"pid": 3, "host": "h"}')
        return claim(self, name, content)

    monkeypatch.setattr(Location, "claim", late)
    with pytest.raises(OutputInUseError, match="process 3"), locked(place):
        pass
    assert place.names() == ["lock-7"]
