"""Recipes of deploy/, run: exactly as their READMEs print them, or the commands of their containers as processes."""

import os
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import zarr
from processes import background, free_ports, wait_until
from test_deploy import DEPLOY, commands, documents

from cns_dask import CNS, open_result
from cns_dask.demo import demo_points

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


@pytest.fixture(scope="module")
def reference():
    return CNS().fit(demo_points())


def store_rows(where):
    rows = demo_points()
    zarr.create_array(where, shape=rows.shape, chunks=(500, 8), dtype="f8")[...] = rows


@pytest.fixture
def folder(tmp_path, request):
    """A copy of a recipe's folder, with data in it."""
    copy = tmp_path / request.param
    shutil.copytree(DEPLOY / request.param, copy)
    store_rows(str(copy / "data.zarr"))
    return copy


def run_readme(folder, **environment):
    """The three commands, as one who types them; what is still running in the end is ended."""
    script = "set -e\n" + "\n".join(commands(folder.name)) + "\necho all three are done >done\n"
    env = os.environ | {"PATH": PATH} | environment
    with (folder / "said").open("w") as log, background("bash", "-c", script, cwd=folder, env=env, log=log) as process:
        process.wait(900)
    assert (folder / "done").exists(), (folder / "said").read_text()


@pytest.mark.parametrize("folder", ["local", "tls"], indirect=True)
def test_a_scheduler_and_workers_by_hand(folder, reference):
    run_readme(folder)
    said = (folder / "said").read_text()
    assert f"{reference.n_clusters_} clusters in 3000 rows" in said
    assert said.count("cns_dask is warmed up") == 4
    assert ("tls://" in said) == (folder.name == "tls")
    assert ("tcp://" in said) == (folder.name == "local")
    np.testing.assert_array_equal(open_result(folder / "clusters.zarr").labels.compute(), reference.labels_)


@pytest.fixture
def login(tmp_path):
    """How to log in to node1, node2, ..., which all are this machine."""
    server = shutil.which("sshd", path=f"{PATH}:/usr/sbin")
    if server is None or shutil.which("ssh") is None:
        pytest.skip("needs OpenSSH (Debian: openssh-server, openssh-client)")
    at, (port,) = tmp_path / "ssh-server", free_ports(1)
    at.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", at / name], check=True)
    (at / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {at}/host\nAuthorizedKeysFile {at}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile {at}/pid\n"
    )
    (at / "ssh_config").write_text(
        f"Host node*\n  HostName 127.0.0.1\n  Port {port}\n  IdentityFile {at}/user\n  IdentitiesOnly yes\n"
        f"  StrictHostKeyChecking no\n  UserKnownHostsFile {at}/known\n  LogLevel ERROR\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    words = ["ssh", "-F", str(at / "ssh_config")]
    with background(server, "-D", "-f", at / "sshd_config"):
        wait_until(lambda: subprocess.run([*words, "node1", "true"], check=False).returncode == 0, "login", 30)
        yield " ".join(words)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run an SSH server")
@pytest.mark.parametrize("folder", ["ssh"], indirect=True)
def test_machines_that_one_can_log_in_to(folder, login, reference):
    run_readme(folder, SSH=login, INTERFACE="lo")
    np.testing.assert_array_equal(open_result(folder / "clusters.zarr").labels.compute(), reference.labels_)
    for number in range(1, 5):
        assert "cns_dask is warmed up" in (folder / f"worker-node{number}.log").read_text()
    assert not list(folder.glob("*.pid"))
    assert not (folder / "scheduler.json").exists()
    wait_until(lambda: "Stopped scheduler" in (folder / "scheduler.log").read_text(), "end of the scheduler", 30)


def of_compose():
    services = documents("compose")["compose"]["services"]
    return {name: (services[name]["command"], services[name].get("deploy", {}).get("replicas", 1)) for name in PARTS}


def of_kubernetes():
    manifests = documents("kubernetes")
    cluster, job = manifests["cluster"]["spec"], manifests["job"]["spec"]["template"]["spec"]
    return {
        "scheduler": (cluster["scheduler"]["spec"]["containers"][0]["args"], 1),
        "worker": (cluster["worker"]["spec"]["containers"][0]["args"], cluster["worker"]["replicas"]),
        "job": (job["containers"][0]["args"], 1),
    }


PARTS = ("scheduler", "worker", "job")


@pytest.mark.parametrize("containers", [of_compose, of_kubernetes])
def test_what_containers_run(containers, object_store, tmp_path, reference):
    """There is no engine here: every container's command runs as a process, with names of hosts put right."""
    (port,) = free_ports(1)
    if not object_store.exists("cns-dask"):
        object_store.mkdir("cns-dask")
    if object_store.exists("cns-dask/clusters.zarr"):
        object_store.rm("cns-dask/clusters.zarr", recursive=True)
    store_rows(str(tmp_path / "data.zarr"))
    store_rows(zarr.storage.FsspecStore.from_url(f"s3://cns-dask/{containers.__name__}.zarr"))
    here = {
        "tcp://scheduler:8786": f"tcp://127.0.0.1:{port}",
        "tcp://cns-dask-scheduler:8786": f"tcp://127.0.0.1:{port}",
        "/data/": f"{tmp_path}/",
        "s3://cns-dask/data.zarr": f"s3://cns-dask/{containers.__name__}.zarr",
        "0.0.0.0": "127.0.0.1",
        ":8788": "127.0.0.1:0",
    }

    def words(command, name=""):
        for before, now in here.items():
            command = [word.replace(before, now) for word in command]
        return [str(port) if word == "8786" else word.replace("$(DASK_WORKER_NAME)", name) for word in command]

    parts = containers()
    scheduler = words(parts["scheduler"][0])
    if "--port" not in scheduler:
        scheduler += ["--port", str(port), "--host", "127.0.0.1"]
    env = os.environ | {"PATH": PATH, "DASK_SCHEDULER_ADDRESS": f"tcp://127.0.0.1:{port}"}  # as the operator tells it
    command, replicas = parts["worker"]
    with ExitStack() as running, (tmp_path / "said").open("w") as log:
        running.enter_context(background(*scheduler, "--no-dashboard", env=env, log=log, cwd=tmp_path))
        for number in range(replicas):
            worker = words(command, f"worker-{number}")
            running.enter_context(background(*worker, env=env, log=log, cwd=tmp_path))
        done = subprocess.run(
            words(parts["job"][0]), env=env, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
        )
    assert done.returncode == 0, done.stderr + (tmp_path / "said").read_text()
    found = open_result("s3://cns-dask/clusters.zarr")
    np.testing.assert_array_equal(found.labels.compute(), reference.labels_)
    assert len(found.details["memory"]["peak_bytes"]) == 4
