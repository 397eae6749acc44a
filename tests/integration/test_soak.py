"""Sixty fits on one cluster, as Dask is by default: what every process holds, and what is left behind."""

import gc
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

import dask.array as da
import numpy as np
import pytest
from generators import mixture
from processes import background, wait_until

from cns_dask import CNS

N_FITS = 60
#: MiB that the median of the last third may be above that of the second, twenty fits earlier. Measured: 5 on the
#: scheduler, 2 on the workers and in the client. Dask's spans (dask/distributed#7977), and the digests that workers
#: keep of every span, are never dropped; what else grows are Dask's logs and caches of bounded length.
SLACK = {"scheduler": 9, "worker": 5, "client": 5}


@pytest.fixture
def client(tmp_path):
    """A client of a scheduler and two workers that are processes of their own."""
    from distributed import Client

    dask, file = [sys.executable, "-m", "dask"], tmp_path / "scheduler.json"
    here = ["--scheduler-file", file, "--host", "127.0.0.1"]
    two = ["--nworkers", "2", "--nthreads", "1", "--memory-limit", "4GiB", "--local-directory", tmp_path]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # they run functions of this file
    with (
        background(*dask, "scheduler", "--port", "0", "--dashboard-address", "127.0.0.1:0", *here, env=env),
        background(*dask, "worker", *here, *two, env=env),
    ):
        wait_until(file.exists, "scheduler", 60)
        with Client(scheduler_file=str(file)) as connected:
            connected.wait_for_workers(2, timeout=60)
            yield connected


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder that temporary results are made in."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def uncollected():
    """No garbage is collected: what goes, goes with the last reference to it."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(0)  # not gc.disable(): libraries enable it again
    yield
    gc.set_threshold(*before)


def figures(processes):
    """Memory of its own in MiB, files and threads of every process."""
    memory = {name: process.memory_info() for name, process in processes.items()}
    return {
        name: {
            "MiB": round((memory[name].rss - memory[name].shared) / 2**20, 2),  # shared: of libraries, as others do
            "files": process.num_fds(),
            "threads": process.num_threads(),
        }
        for name, process in processes.items()
    }


def live_objects():
    """How many objects of ours and of zarr are alive, by type."""
    gc.collect()
    types = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in gc.get_objects())
    return Counter({name: count for name, count in types.items() if name.startswith(("cns_dask.", "zarr."))})


def held_by_scheduler(dask_scheduler):
    """Tasks that are more than a name, kinds of tasks, and the spans that Dask keeps."""
    return {
        "tasks": sum(task.state != "released" for task in dask_scheduler.tasks.values()),
        "prefixes": len(dask_scheduler.task_prefixes),
        "spans": len(dask_scheduler.extensions["spans"].spans),
    }


def held_by_worker(dask_worker):
    """Tasks and their values; digests that Dask keeps for every span."""
    return {
        "tasks": len(dask_worker.state.tasks),
        "values": len(dask_worker.data),
        "digests": len(dask_worker.digests_total),
    }


def one_fit(rows, number, folder):
    """Fit and predict: of rows in memory, of lazy ones, and of a file; two kept, two temporary."""
    is_lazy = number % 2 == 1
    data = da.from_array(rows, chunks=(500, 5)) if is_lazy else rows
    if number % 4 == 3:
        data = folder / "rows.npy"
        np.save(data, rows)
    model = CNS().fit(data, out=folder / f"{number}.zarr" if number % 4 >= 2 else None)
    new = da.from_array(rows[:50], chunks=(25, 5)) if is_lazy else rows[:50]
    np.testing.assert_array_equal(np.asarray(model.predict(new)), np.asarray(model.labels_)[:50])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::cns_dask.errors.ChoiceWarning")  # pytest would keep each of them
def test_sixty_fits(client, temporary, tmp_path):
    """Growth ends, or is Dask's; no task, no value, no object of ours and no temporary folder stays."""
    import psutil

    processes = {"client": psutil.Process(), "scheduler": psutil.Process(client.run_on_scheduler(os.getpid))}
    workers = client.run(os.getpid).values()
    processes |= {f"worker {at}": psutil.Process(pid) for at, pid in enumerate(workers)}
    rows, seen, held, folders, objects = mixture(2000, 5, n_clusters=5, spread=2.2, seed=11), [], [], [], Counter()
    for number in range(N_FITS):
        one_fit(rows + number, number, tmp_path)
        folders.append(len(list(temporary.iterdir())))
        seen.append(figures(processes))
        held.append(client.run_on_scheduler(held_by_scheduler))
        if number == 9:
            objects = live_objects()
    of_workers = client.run(held_by_worker)
    file = Path(os.environ.get("CNS_DASK_FIGURES", tmp_path)) / "soak60.json"
    file.write_text(json.dumps({"seen": seen, "scheduler": held, "workers": of_workers}, indent=1), encoding="utf-8")

    assert folders == [0] * N_FITS
    assert not live_objects() - objects
    wait_until(lambda: not client.futures, "end of the futures", 30)
    wait_until(lambda: not client.run_on_scheduler(held_by_scheduler)["tasks"], "end of the tasks", 30)
    assert all(each["tasks"] == each["values"] == 0 for each in client.run(held_by_worker).values())
    assert held[-1]["prefixes"] == held[9]["prefixes"]  # keys of tasks begin with the same few words
    second, third = seen[N_FITS // 3 : 2 * N_FITS // 3], seen[2 * N_FITS // 3 :]
    for name in processes:
        for what, slack in (("MiB", SLACK[name.split()[0]]), ("files", 3), ("threads", 2)):
            before, after = (np.median([each[name][what] for each in some]) for some in (second, third))
            assert after <= before + slack, (name, what, before, after)


@pytest.mark.slow
@pytest.mark.parametrize("is_lazy", [False, True])
def test_a_temporary_result_goes_with_its_model_at_once(client, temporary, uncollected, is_lazy):
    """No cycle keeps it: an error of zarr, raised in `sync`, would keep the frames of all who called."""
    rows = mixture(600, 5, n_clusters=4, spread=2.5, seed=7)
    data = da.from_array(rows, chunks=(200, 5)) if is_lazy else rows
    model = CNS().fit(data)
    np.asarray(model.predict(data)), np.asarray(model.result_.at(2).labels)
    assert len(list(temporary.iterdir())) == 1
    del model
    assert not list(temporary.iterdir())


@pytest.mark.slow
def test_rows_in_memory_are_not_lost_on_their_way(client):
    """Dask's `to_delayed` forgets the Futures in what it optimizes: the rows were dropped before they were used."""
    rows = mixture(600, 5, n_clusters=4, spread=2.5, seed=7)
    model = CNS().fit(rows)
    for number in range(30):
        assert model.predict(rows[:50] + number).shape == (50,)
