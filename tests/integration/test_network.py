"""A cluster of several hosts, each in a network of its own: links are cut, and hosts die."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from cns_dask import open_result

SMALL = str(Path(__file__).parents[1] / "small.py")
HOSTS = ("scheduler", "first", "second", "third")
CUT_SECONDS = 60


def ip(*words, check=True):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=check)


@pytest.fixture
def network():
    """Hosts on one switch, 10.77.0.2 and up; this one is 10.77.0.1."""
    if shutil.which("ip") is None:
        pytest.skip("needs iproute2")
    tried = ip("netns", "add", "cns-try", check=False)
    if tried.returncode:
        pytest.skip(f"needs network namespaces, which only root can make: {tried.stderr.strip()}")
    ip("netns", "del", "cns-try")
    try:
        ip("link", "add", "cns-switch", "type", "bridge")
        ip("addr", "add", "10.77.0.1/24", "dev", "cns-switch")
        ip("link", "set", "cns-switch", "up")
        for number, host in enumerate(HOSTS, start=2):
            space, plug = f"cns-{host}", f"cns-{number}"
            ip("netns", "add", space)
            ip("link", "add", plug, "type", "veth", "peer", "name", "eth0", "netns", space)
            ip("link", "set", plug, "master", "cns-switch", "up")
            ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", space, "link", "set", device, "up")
        yield
    finally:
        for host in HOSTS:
            ip("netns", "del", f"cns-{host}", check=False)
        ip("link", "del", "cns-switch", check=False)


@contextmanager
def on_host(host, *words):
    command = ["ip", "netns", "exec", f"cns-{host}", sys.executable, "-m", "dask", *words]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def cut(plug):
    """Take a plug out of the switch, and put it in again a minute later."""
    ip("link", "set", plug, "down")

    def mend():
        time.sleep(CUT_SECONDS)
        ip("link", "set", plug, "up", check=False)

    thread = threading.Thread(target=mend)
    thread.start()
    return thread


@pytest.mark.slow
def test_a_link_is_cut_and_a_host_dies(network, stored_rows, undisturbed, tmp_path):
    address = "tcp://10.77.0.2:8786"
    with ExitStack() as running:
        running.enter_context(on_host("scheduler", "scheduler", "--host", "10.77.0.2", "--no-dashboard"))
        workers = [
            running.enter_context(
                on_host(host, "worker", address, "--host", f"10.77.0.{number}", "--nthreads", "1", "--no-nanny",
                        "--no-dashboard", "--local-directory", str(tmp_path / host))
            )
            for number, host in enumerate(HOSTS[1:], start=3)
        ]  # fmt: skip
        time.sleep(8)  # all three are there
        words = [
            "fit",
            str(stored_rows),
            "--method",
            "cells",
            "--out",
            str(tmp_path / "r.zarr"),
            "--scheduler",
            address,
        ]
        process = running.enter_context(
            subprocess.Popen([sys.executable, SMALL, *words, "--scheduler", address], stderr=subprocess.PIPE, text=True)
        )
        told, mending = [], None
        for line in process.stderr:
            told.append(line)
            if line.startswith("neighbors: 0"):
                mending = cut("cns-3")
            if line.startswith("evaluate: 0"):
                os.kill(workers[1].pid, signal.SIGKILL)
        process.wait()
        assert mending is not None
        mending.join()
        assert process.returncode == 0, "".join(told)
    np.testing.assert_array_equal(open_result(tmp_path / "r.zarr").labels.compute(), undisturbed)
