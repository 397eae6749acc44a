"""Workers and whole runs are killed, and the labels are those of a run that nothing disturbs."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from processes import local_cluster

from cns_dask import open_result
from cns_dask.errors import WorkersLostError
from cns_dask.execution.compute import compute
from cns_dask.pipeline import fit
from cns_dask.progress import Progress
from cns_dask.settings import Settings

SMALL = str(Path(__file__).parents[1] / "small.py")
QUICK = {"evaluate later"}  # the others with -m slow
STAGES = [
    pytest.param(stage, marks=() if stage in QUICK else pytest.mark.slow)
    for stage in (
        "preprocess", "points", "cells", "calibrate", "neighbors", "candidates", "evaluate", "evaluate later",
        "absorption", "memberships",
    )
]  # fmt: skip


@pytest.fixture
def workers(small_plan):
    """Two worker processes that come back when they die."""
    from distributed import Client

    with (
        local_cluster() as cluster,
        Client(cluster) as client,
    ):
        yield client


class Killer(Progress):
    """Kills a worker in the midst of a stage."""

    def __init__(self, client, stage):
        super().__init__()
        self._client, self._stage, self._pids, self.killed = client, stage, [], 0

    def _begin(self, name, total):
        wanted, _, later = self._stage.partition(" ")
        self._countdown = (total // 2 if later else 1 if total > 1 else 0) if name == wanted else -1
        if name == wanted:
            self._pids = list(self._client.run(os.getpid).values())
        self._strike()

    def _advance(self):
        self._countdown -= 1
        self._strike()

    def _strike(self):
        if self._countdown == 0:
            os.kill(self._pids[self.killed % len(self._pids)], signal.SIGKILL)
            self.killed += 1


@pytest.mark.parametrize("stage", STAGES)
def test_a_worker_is_killed(workers, stored_rows, undisturbed, tmp_path, stage):
    workers.wait_for_workers(2, timeout=60)
    killer = Killer(workers, stage)
    result = fit(stored_rows, Settings(method="cells"), out=tmp_path / "r.zarr", progress=killer)
    assert killer.killed == 1
    np.testing.assert_array_equal(result.labels.compute(scheduler="synchronous"), undisturbed)


def end_of_worker():
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_a_task_that_kills_its_workers_ends_the_run(workers):
    import dask

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 1}),
        pytest.raises(WorkersLostError, match=r"The task end_of_worker of stage deadly was on \d+ workers when they "),
    ):
        compute([dask.delayed(end_of_worker)()], stage="deadly")
    workers.wait_for_workers(2, timeout=60)


@pytest.mark.slow
def test_workers_may_join_while_a_run_goes_on(stored_rows, undisturbed, small_plan):
    from distributed import Client

    class Joiner(Progress):
        def _begin(self, name, total):
            if name == "neighbors":
                cluster.scale(2)

    with (
        local_cluster(1) as cluster,
        Client(cluster) as client,
    ):
        result = fit(stored_rows, Settings(method="cells"), progress=Joiner())
        assert len(client.scheduler_info()["workers"]) == 2
        np.testing.assert_array_equal(result.labels.compute(scheduler="synchronous"), undisturbed)


def finished(log):
    """Number of finished pieces of each stage, as a log tells."""
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(match[1] for line in lines if (match := re.search(r"(\S+): finished ", line)))


def command(stored_rows, out, log, *more):
    line = ["fit", str(stored_rows), "--method", "cells", "--out", str(out), "--log", str(log), *more]
    return [sys.executable, SMALL, *line]


@pytest.fixture(scope="module")
def all_pieces(stored_rows, undisturbed, tmp_path_factory):
    """Number of pieces of each stage in a run that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    done = subprocess.run(
        command(stored_rows, folder / "r.zarr", folder / "log"), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(open_result(folder / "r.zarr").labels.compute(), undisturbed)
    return finished(folder / "log")


def kill_when(done, process, log, pieces):
    """Kill a whole run, with its workers, when its log tells so many pieces."""
    while process.poll() is None and done(log) < pieces:
        time.sleep(0.005)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("workers", "share"),
    [
        pytest.param(workers, at / 10 + 0.03, marks=() if (workers, at) == (0, 3) else pytest.mark.slow)
        for workers in (0, 2)
        for at in range(10)
    ],
)
def test_a_whole_run_is_killed_and_started_again(stored_rows, undisturbed, all_pieces, tmp_path, workers, share):
    out, total = tmp_path / "r.zarr", all_pieces.total()
    logs = [tmp_path / "first.log", tmp_path / "second.log"]
    more = ("--workers", str(workers)) if workers else ()
    with subprocess.Popen(
        command(stored_rows, out, logs[0], *more), stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert kill_when(lambda log: finished(log).total(), process, logs[0], int(share * total))
    assert not out.exists()
    done = subprocess.run(command(stored_rows, out, logs[1], *more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if share > 0.1:
        assert "done by an earlier run" in done.stderr
    np.testing.assert_array_equal(open_result(out).labels.compute(), undisturbed)
    assert [path.name for path in tmp_path.iterdir() if "r.zarr" in path.name] == ["r.zarr"]
    first, second = map(finished, logs)
    again = {stage: first[stage] + second[stage] - count for stage, count in all_pieces.items()}
    assert max(again.values()) <= 0, again  # no finished piece was done again


@pytest.mark.parametrize(
    "stage",
    ["assign", *(pytest.param(stage, marks=pytest.mark.slow) for stage in ("sample", "neighbors", "compare"))],
)
def test_a_fit_of_a_sample_is_killed_and_started_again(stored_rows, tmp_path, stage):
    out, logs = tmp_path / "r.zarr", [tmp_path / f"{name}.log" for name in ("whole", "first", "second")]
    more = ("--sample", "1500", *(["--check-sample"] if stage == "compare" else []))
    subprocess.run(command(stored_rows, tmp_path / "w.zarr", logs[0], *more), capture_output=True, check=True)
    with subprocess.Popen(
        command(stored_rows, out, logs[1], *more), stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        assert kill_when(lambda log: finished(log)[stage], process, logs[1], 2)
    done = subprocess.run(command(stored_rows, out, logs[2], *more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "done by an earlier run" in done.stderr
    result, whole = open_result(out), open_result(tmp_path / "w.zarr")
    for name in ("labels", "memberships", "confidence", "codes", "rows"):
        np.testing.assert_array_equal(result.stored(name)[...], whole.stored(name)[...])
    assert result.sample == whole.sample
    all_pieces, first, second = map(finished, logs)
    again = {name: first[name] + second[name] - count for name, count in all_pieces.items()}
    assert max(again.values()) <= 0, again  # the sample is not taken again, and no finished piece is done again
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix == ".zarr") == ["r.zarr", "w.zarr"]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
@pytest.mark.parametrize("more", [(), pytest.param(("--workers", "2"), marks=pytest.mark.slow)])
def test_a_run_that_is_stopped_ends_in_seconds_and_goes_on(stored_rows, undisturbed, tmp_path, number, more):
    out, log = tmp_path / "r.zarr", tmp_path / "log"
    heed = (  # in the background Python does not hear Ctrl-C
        "import runpy, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        f"sys.argv = sys.argv[1:]; runpy.run_path({SMALL!r}, run_name='__main__')"
    )
    line = [sys.executable, "-c", heed, *command(stored_rows, out, log, *more)[1:]]
    with subprocess.Popen(line, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        while finished(log)["neighbors"] < 3:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        started = time.monotonic()
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # as a terminal does: to all processes of the run
        else:
            process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        seconds = time.monotonic() - started
    assert process.returncode == 128 + number
    assert "stopped. What was finished is kept: run the same command again to go on from there." in errors
    assert "Traceback" not in errors
    assert seconds < 20
    done = subprocess.run(command(stored_rows, out, log, *more), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "neighbors: " in done.stderr
    assert "done by an earlier run" in done.stderr
    np.testing.assert_array_equal(open_result(out).labels.compute(), undisturbed)


def test_a_finished_run_answers_at_once(stored_rows, tmp_path, undisturbed):
    out = tmp_path / "r.zarr"
    lines = command(stored_rows, out, tmp_path / "log")
    assert subprocess.run(lines, capture_output=True, check=False).returncode == 0
    done = subprocess.run(lines, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[1:] == [f"{out} is finished already"]  # after what it works with
    other = subprocess.run([*lines, "--metric", "cosine"], capture_output=True, text=True, check=False)
    assert other.returncode == 2
    assert "metric was 'euclidean', now it is 'cosine'" in other.stderr


def test_two_runs_at_the_same_instant(stored_rows, tmp_path, undisturbed):
    out = tmp_path / "r.zarr"
    lines = command(stored_rows, out, tmp_path / "log")
    processes = [subprocess.Popen(lines, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [process.communicate()[1] for process in processes]
    codes = sorted(process.returncode for process in processes)
    assert codes in ([0, 2], [0, 0])  # both if the second began when the first was through: then it answered at once
    if codes == [0, 2]:
        assert any("Another run is writing to this output" in error for error in errors)
    else:
        assert any("is finished already" in error for error in errors)
    np.testing.assert_array_equal(open_result(out).labels.compute(), undisturbed)


@pytest.fixture
def by_hand(tmp_path):
    """Start a scheduler and a worker, each in a process of its own, as often as asked."""
    started = []

    def start(name):
        file = tmp_path / f"{name}.json"
        words = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        kinds = (["scheduler", "--port", "0"], ["worker", "--nthreads", "1"])
        started.extend(subprocess.Popen([sys.executable, "-m", "dask", *kind, *words], **quiet) for kind in kinds)
        return file, started[-2], started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@contextmanager
def amid_the_search(stored_rows, out, log, file):
    """A run on a scheduler, some of whose neighbours are found."""
    with subprocess.Popen(
        command(stored_rows, out, log, "--scheduler-file", str(file)), stderr=subprocess.PIPE, text=True
    ) as process:
        while finished(log)["neighbors"] < 3:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
        yield process


@pytest.mark.slow
def test_the_scheduler_dies(by_hand, stored_rows, undisturbed, tmp_path):
    """The run ends with a clear error, and goes on with another scheduler."""
    file, scheduler, worker = by_hand("first")
    out, log = tmp_path / "r.zarr", tmp_path / "log"
    with amid_the_search(stored_rows, out, log, file) as process:
        scheduler.kill()
        worker.kill()
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 1, errors
    assert "The scheduler does not answer any more" in errors
    assert "Traceback" not in errors
    file, *_ = by_hand("second")
    done = subprocess.run(
        command(stored_rows, out, log, "--scheduler-file", str(file)), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pieces done by an earlier run" in done.stderr
    np.testing.assert_array_equal(open_result(out).labels.compute(), undisturbed)


@pytest.mark.slow
def test_all_workers_die_and_another_comes(by_hand, stored_rows, undisturbed, tmp_path):
    file, _, worker = by_hand("only")
    out, log = tmp_path / "r.zarr", tmp_path / "log"
    with amid_the_search(stored_rows, out, log, file) as process:
        os.kill(worker.pid, signal.SIGKILL)
        for line in process.stderr:
            if line.startswith("no workers since "):
                break
        words = ["worker", "--nthreads", "1", "--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
        with subprocess.Popen(
            [sys.executable, "-m", "dask", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as other:
            process.communicate(timeout=120)
            other.kill()
    assert process.returncode == 0
    np.testing.assert_array_equal(open_result(out).labels.compute(), undisturbed)
