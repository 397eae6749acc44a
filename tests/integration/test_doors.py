"""Closed doors: TLS clusters refuse those without a certificate, and what runs here listens on this machine only."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack

import numpy as np
import pytest
from processes import background, wait_until

from cns_dask import open_result

COMMAND = [sys.executable, "-c", "from cns_dask.cli import main; main()"]


def certificates(folder):
    """Files of an authority, a certificate and a key."""
    pytest.importorskip("cryptography", reason="needs cryptography to make certificates")
    from distributed.security import Security

    folder.mkdir()
    made = Security.temporary()
    files = {"ca": made.tls_ca_file, "cert": made.tls_client_cert, "key": made.tls_client_key}
    for name, content in files.items():
        (folder / f"{name}.pem").write_text(content)
    return {name: str(folder / f"{name}.pem") for name in files}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A scheduler and a worker that talk TLS only: its address, and files that it accepts."""
    folder = tmp_path_factory.mktemp("tls")
    files = certificates(folder / "ours")
    security = ["--tls-ca-file", files["ca"], "--tls-cert", files["cert"], "--tls-key", files["key"]]
    shared = ["--scheduler-file", str(folder / "scheduler.json"), "--protocol", "tls", *security]
    dask = [sys.executable, "-m", "dask"]
    with ExitStack() as running:
        running.enter_context(
            background(*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", *shared)
        )
        running.enter_context(
            background(*dask, "worker", "--host", "127.0.0.1", "--nthreads", "1", "--no-dashboard", *shared)
        )
        wait_until((folder / "scheduler.json").exists, "scheduler", 60)
        yield json.loads((folder / "scheduler.json").read_text())["address"], files


def options(files):
    return [word for name, file in files.items() for word in (f"--tls-{name}", file)]


def fit_on(address, folder, *more, env=None):
    words = [*COMMAND, "fit", "x.npy", "--out", "r.zarr", "--scheduler", address, *more]
    return subprocess.run(
        words, cwd=folder, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **(env or {})}
    )


@pytest.mark.slow
def test_with_a_certificate_and_without(cluster, tmp_path, blobs):
    address, files = cluster
    assert address.startswith("tls://127.0.0.1")
    np.save(tmp_path / "x.npy", blobs)
    others = certificates(tmp_path / "others")
    for refused in ([], options(others)):
        done = fit_on(address, tmp_path, *refused)
        assert done.returncode == 2
        assert f"No Dask scheduler answers at {address}" in done.stderr
        assert "Traceback" not in done.stderr
        assert {path.name for path in tmp_path.iterdir()} == {"x.npy", "others"}
    done = fit_on(address, tmp_path, *options(files))
    assert done.returncode == 0, done.stderr
    assert open_result(tmp_path / "r.zarr").n_rows == 600


@pytest.mark.slow
def test_with_the_configuration_of_dask(cluster, tmp_path, blobs):
    address, files = cluster
    np.save(tmp_path / "x.npy", blobs)
    prefix = "DASK_DISTRIBUTED__COMM__TLS__"
    env = {
        f"{prefix}CA_FILE": files["ca"],
        f"{prefix}CLIENT__CERT": files["cert"],
        f"{prefix}CLIENT__KEY": files["key"],
    }
    done = fit_on(address, tmp_path, env=env)
    assert done.returncode == 0, done.stderr


LISTENING = """
import psutil
from cns_dask.execution.cluster import connection

if __name__ == "__main__":
    with connection(workers=1):
        me = psutil.Process()
        for process in (me, *me.children(recursive=True)):
            for each in process.net_connections(kind="inet"):
                if each.status == psutil.CONN_LISTEN:
                    print(each.laddr.ip)
"""


def test_a_local_cluster_listens_on_this_machine_only(tmp_path):
    (tmp_path / "listening.py").write_text(LISTENING)
    done = subprocess.run([sys.executable, tmp_path / "listening.py"], capture_output=True, text=True, check=True)
    listening = done.stdout.split()
    assert len(listening) >= 3  # scheduler, dashboard, worker
    assert set(listening) == {"127.0.0.1"}
