"""Slurm for real, on one node: both recipes run a fit to the end, and jobs are cancelled on the way."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import zarr
from processes import background, free_ports, wait_until

from cns_dask import CNS, open_result
from cns_dask.demo import demo_points

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs=16 RealMemory=65536 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in PROGRAMS) or os.geteuid() != 0,
        reason="needs Slurm (Debian: slurm-wlm, munge) and root",
    ),
]


@pytest.fixture(scope="module")
def slurm():
    """A controller and one node: the environment in which its commands work."""
    at = Path("/tmp") / f"cns-dask-slurm-{os.getpid()}"  # short: the path of a socket must be
    for folder in (at, at / "state", at / "spool"):
        folder.mkdir(mode=0o755)
    key = at / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    (at / "slurm.conf").write_text(CONFIGURATION.format(host=host, at=at, ports=free_ports(2)))
    (at / "cgroup.conf").write_text("CgroupPlugin=autodetect\n")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = os.environ | {"SLURM_CONF": str(at / "slurm.conf"), "PATH": path, "INTERFACE": "lo"}
    munge = {"key-file": key, **{f"{name}-file": at / f"munge.{name}" for name in ("pid", "log", "seed")}}
    options = [f"--{name}={file}" for name, file in munge.items()]
    daemons = [["munged", "--foreground", "--force", f"--socket={at}/munge.socket", *options]]
    daemons += [["slurmctld", "-D"], ["slurmd", "-D"]]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, at, ignore_errors=True)
        for words in daemons:
            log = stack.enter_context((at / f"{words[0]}.said").open("w"))
            stack.enter_context(background(*words, env=env, log=log))
            time.sleep(1)
        wait_until(lambda: "idle" in told("sinfo", "-h", "-o", "%t", env=env), "idle node", 60)
        yield env
        subprocess.run(["scancel", "--user=root"], env=env, check=False)
        time.sleep(2)


def told(*words, env):
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False).stdout


@pytest.fixture(scope="module")
def reference():
    return CNS().fit(demo_points(25_000))


@pytest.fixture
def folder(tmp_path):
    rows = demo_points(25_000)
    zarr.create_array(str(tmp_path / "data.zarr"), shape=rows.shape, chunks=(4_000, 8), dtype="f8")[...] = rows
    for path in (ROOT / "deploy" / "slurm").iterdir():
        shutil.copy(path, tmp_path)
    return tmp_path


def submit(folder, env, name):
    said = subprocess.run(
        ["sbatch", f"--job-name={name}", "fit.sbatch", "data.zarr", "clusters.zarr"],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    number = re.search(r"Submitted batch job (\d+)", said)[1]
    return number, folder / f"{name}.out"


def state(number, env):
    return told("squeue", "-h", "-j", number, "-o", "%T", env=env).strip()


def test_a_batch_job_that_is_cancelled_and_submitted_again(slurm, folder, reference):
    first, log = submit(folder, slurm, "first")
    wait_until(lambda: log.exists() and re.search(r"neighbors: (\d+) of \1,", log.read_text()), "neighbours")
    subprocess.run(["scancel", first], env=slurm, check=True)
    wait_until(lambda: state(first, slurm) == "", "end")
    assert not (folder / "clusters.zarr").exists()
    second, log = submit(folder, slurm, "second")
    wait_until(lambda: log.exists() and state(second, slurm) == "", "end")
    said = log.read_text()
    assert "graph: all done by an earlier run" in said  # it went on
    assert f"{reference.n_clusters_} clusters in 25000 rows" in said
    np.testing.assert_array_equal(open_result(folder / "clusters.zarr").labels.compute(), reference.labels_)
    assert not list(folder.glob(".scheduler-*"))


def test_workers_as_jobs_of_which_one_is_cancelled(slurm, folder, reference):
    env = slurm | {"DASK_CONFIG": str(folder / "jobqueue.yaml"), "DASK_JOBQUEUE__SLURM__INTERFACE": "lo"}
    script = ROOT / "examples" / "slurm" / "fit.py"
    words = [sys.executable, "-u", str(script), "data.zarr", "clusters.zarr", "--jobs", "2"]
    with (folder / "said").open("w") as said:
        process = subprocess.Popen(words, cwd=folder, env=env, stdout=said, stderr=said)
    try:
        output = folder / "said"
        wait_until(
            lambda: re.search(r"neighbors: \d+ of", output.read_text()) or process.poll() is not None, "neighbours"
        )
        jobs = told("squeue", "-h", "-t", "RUNNING", "-o", "%A", env=env).split()
        assert jobs, output.read_text()
        subprocess.run(["scancel", jobs[0]], env=env, check=True)
        assert process.wait(timeout=900) == 0, output.read_text()
    finally:
        process.kill()
    assert f"{reference.n_clusters_} clusters in 25000 rows" in output.read_text()
    np.testing.assert_array_equal(open_result(folder / "clusters.zarr").labels.compute(), reference.labels_)
    wait_until(lambda: told("squeue", "-h", env=env) == "", "empty queue")
