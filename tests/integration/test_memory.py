"""The plan's memory: enough when it says so, refused when it is not, measured afterwards."""

import json
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from processes import background, local_cluster, wait_until

from cns_dask.errors import MemoryPressureWarning, NotEnoughMemoryError
from cns_dask.execution.memory import Memory, _poll, peak, watched_memory
from cns_dask.jobs import prepare
from cns_dask.pipeline import fit
from cns_dask.settings import Settings


def cluster_of(limit, workers=2):
    return local_cluster(workers, memory_limit=limit)


def test_at_the_minimum_of_the_plan_and_at_half_of_it(tmp_path):
    from distributed import Client

    X = np.random.default_rng(3).standard_normal((30_000, 8))
    np.save(tmp_path / "x.npy", X)
    needed = prepare(tmp_path / "x.npy", Settings(), hashed=True).plan.worker_bytes(1)
    with cluster_of(needed) as cluster, Client(cluster) as client:
        pids = set(client.run(os.getpid).values())
        result = fit(tmp_path / "x.npy", Settings(), out=tmp_path / "r.zarr")  # and nobody paused: that would warn
        assert set(client.run(os.getpid).values()) == pids  # nobody was killed
        memory = result.details["memory"]
        assert set(memory["planned_bytes"].values()) == {needed}
        peaks = memory["peak_bytes"]
        assert set(peaks) == set(memory["planned_bytes"])
        assert min(peaks.values()) > 50 * 2**20
        assert max(peaks.values()) <= needed
    with cluster_of(needed // 2) as cluster, Client(cluster):
        mib, half = f"{needed / 2**20:.0f} MiB", f"{needed // 2 / 2**20:.0f} MiB"
        with pytest.raises(NotEnoughMemoryError, match=rf"needs {mib} of memory on .* 1 thread\(s\), which has {half}"):
            fit(tmp_path / "x.npy", Settings(), out=tmp_path / "s.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.zarr", "x.npy"]


def test_the_memory_of_this_process_is_measured_too(blobs):
    memory = fit(blobs, Settings()).details["memory"]
    (peak,) = memory["peak_bytes"].values()
    assert peak > 50 * 2**20


class Scheduler:
    """What a client says about its workers."""

    def __init__(self):
        self.workers = {}

    def scheduler_info(self, n_workers):
        return {"workers": self.workers}


def test_workers_that_run_short_are_told_once():
    client, told = Scheduler(), []
    metrics = {"memory": 5, "spilled_bytes": {"memory": 0, "disk": 0}}
    client.workers = {"a": {"status": "running", "metrics": metrics}}
    memory = Memory({"worker a": 10})
    _poll(client, memory, told.append)
    assert (memory.short, told) == ({}, [])
    client.workers["a"] = {"status": "paused", "metrics": metrics | {"memory": 9}}
    client.workers["b"] = {"status": "running", "metrics": metrics | {"spilled_bytes": {"memory": 1, "disk": 10**9}}}
    for _ in range(3):
        _poll(client, memory, told.append)
    assert memory.short == {"worker a": "paused", "worker b": "wrote memory to disk"}
    assert len(told) == 1
    assert "worker a paused" in told[0]
    assert "more memory or fewer threads" in told[0]
    assert memory.peaks == {"worker a": 9, "worker b": 5}


def fill(n_bytes):
    return np.ones(n_bytes, np.uint8)


@pytest.mark.slow
def test_a_worker_that_spills_is_reported():
    """A real worker, whose memory another task has filled."""
    from distributed import Client

    told = []
    with cluster_of("700MiB", workers=1) as cluster, Client(cluster) as client:

        def work():
            with watched_memory(lambda threads: 10**9, told.append) as memory:
                held = [client.submit(fill, 120 * 2**20, pure=False) for _ in range(6)]
                client.gather(client.map(len, held))
                threading.Event().wait(3)
            return memory

        with pytest.warns(MemoryPressureWarning, match=r"worker tcp://.* (wrote memory to disk|paused)"):
            memory = work()
    assert told
    assert memory.record().short_of_memory


CLIENT = """
import sys
import dask, dask.dataframe as dd, numpy as np, pandas as pd
from distributed import Client
from cns_dask import CNS
from cns_dask.execution.memory import peak, reset_peak

def part(rows):
    start, stop = rows
    rng = np.random.default_rng(start)
    X = rng.standard_normal((stop - start, 4)) + 6 * rng.integers(3, size=(stop - start, 1))
    frame = pd.DataFrame(X, columns=list("abcd"))
    frame.index = pd.Index([f"row number {row}" for row in range(start, stop)], dtype="string", name="id")
    return frame

if __name__ == "__main__":
    n_rows, file, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    edges = np.linspace(0, n_rows, 200).astype(int)
    bounds = [*zip(edges[:-1], edges[1:]), (n_rows, n_rows)]  # the last of 200 is empty
    with Client(scheduler_file=file) as client:
        client.wait_for_workers(2)
        table = dd.from_map(part, bounds, meta=part((0, 0)))
        reset_peak()
        model = CNS(n_neighbors=12, lam=0.01, max_candidates=20).fit(table)
        found = table.assign(cluster=model.labels_, confidence=model.confidence_)
        found.to_parquet(folder)
        assert model.labels_.npartitions == table.npartitions == 200
        lengths = dask.compute(table.map_partitions(len), model.labels_.map_partitions(len))
        assert (lengths[0] == lengths[1]).all() and lengths[0].iloc[-1] == 0
        same = model.labels_.map_partitions(
            lambda labels, frame: pd.Series([labels.index.equals(frame.index)]), table, meta=(None, bool))
        assert same.compute().all()
        print(peak())
"""


@pytest.mark.slow
def test_the_memory_of_the_client_does_not_grow_with_the_rows(tmp_path):
    (tmp_path / "client.py").write_text(CLIENT)
    dask, file = [sys.executable, "-m", "dask"], tmp_path / "scheduler.json"
    here = ["--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard"]
    peaks = {}
    with (
        background(*dask, "scheduler", "--port", "0", *here),
        background(*dask, "worker", *here, "--nworkers", "2", "--nthreads", "1", "--memory-limit", "6GiB"),
    ):
        wait_until(file.exists, "scheduler", 60)
        for n_rows in (30_000, 300_000):
            words = [sys.executable, tmp_path / "client.py", str(n_rows), file, tmp_path / f"{n_rows}.parquet"]
            done = subprocess.run(words, capture_output=True, text=True, timeout=540, check=False)
            assert done.returncode == 0, done.stderr
            peaks[n_rows] = int(done.stdout)
    grown = peaks[300_000] - peaks[30_000]
    file = Path(os.environ.get("CNS_DASK_FIGURES", tmp_path)) / "client.json"
    file.write_text(json.dumps({"peak_bytes": peaks}), encoding="utf-8")
    assert grown < 8 * 270_000, peaks  # less than one number for each row that came


def wide_rows(at):
    """A chunk of 5 000 rows of 1 000 features: five clusters."""
    rng = np.random.default_rng(at)
    return rng.standard_normal((5000, 1000)) + 3 * np.repeat(
        rng.integers(5, size=(5000, 1)) == np.arange(5), 200, axis=1
    )


@pytest.mark.slow
def test_wide_lazy_rows_in_other_chunks_than_the_plan_at_its_limit(tmp_path):
    """400 MB in chunks of 40 MB on two workers with as much memory as the plan asks for; nothing is spilled."""
    blocks = [da.from_delayed(dask.delayed(wide_rows)(at), (5000, 1000), float) for at in range(10)]
    X, settings = (
        da.concatenate(blocks),
        Settings(n_neighbors=8, lam=0.05, max_components=10, max_candidates=20, n_clusters=5),
    )
    limit = prepare(X, settings).plan.worker_bytes(1)
    with cluster_of(limit) as cluster, Client(cluster) as client, warnings.catch_warnings():
        warnings.simplefilter("error", MemoryPressureWarning)
        before = max(client.run(peak).values())
        result = fit(X, settings, out=tmp_path / "r.zarr")
    used, planned = result.memory
    assert used <= planned <= limit
    assert used - before < 400 * 2**20
