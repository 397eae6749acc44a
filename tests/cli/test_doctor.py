import json
import os
import sys

import pytest
from processes import background
from typer.testing import CliRunner

from cns_dask.cli import doctor
from cns_dask.cli.commands import app
from cns_dask.cli.options import SchedulerOptions


def findings(scratch=None, **options):
    return {each.subject: each for each in doctor.examine(SchedulerOptions(**options), scratch)}


def test_this_machine_is_well(tmp_path):
    found = findings(str(tmp_path))
    assert {"Python", "dask", "numba", "threads", "memory", "scratch", "kernels", "scheduler"} <= found.keys()
    assert [each for each in found.values() if each.status == "wrong"] == []
    assert list(tmp_path.iterdir()) == []  # what was tried is gone


@pytest.mark.parametrize("place", ["nowhere", "file"])
def test_scratch_that_cannot_be_used_is_wrong(tmp_path, place):
    (tmp_path / "file").write_text("")
    assert findings(str(tmp_path / place))["scratch"].status == "wrong"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_scratch_that_cannot_be_written_is_wrong(tmp_path):
    tmp_path.chmod(0o500)
    assert findings(str(tmp_path))["scratch"].status == "wrong"


def test_a_package_that_is_not_there_is_wrong_if_a_fit_needs_it(monkeypatch):
    monkeypatch.setattr(doctor, "PACKAGES", ("dask", "no-such-package"))
    monkeypatch.setattr(doctor, "OPTIONAL", {"no-such-option": "nothing"})
    found = findings()
    assert (found["no-such-package"].status, found["no-such-option"].status) == ("wrong", "note")


def test_too_little_memory_is_wrong(monkeypatch):
    monkeypatch.setattr("cns_dask.execution.cluster.machine_memory", lambda: 2**20)
    assert findings()["memory"].status == "wrong"


def test_kernels_that_are_not_compiled_are_noted(monkeypatch):
    monkeypatch.setattr("cns_dask.warmup.compiled_kernels", lambda: (["a"], ["b"]))
    assert findings()["kernels"].found.startswith("1 of 2 compiled")


def test_a_scheduler_is_looked_at(tmp_path, monkeypatch):
    file, dask = tmp_path / "scheduler.json", [sys.executable, "-m", "dask"]
    options = ["--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard"]
    with (
        background(*dask, "scheduler", "--port", "0", *options, cwd=tmp_path),
        background(*dask, "worker", "--nthreads", "1", *options, cwd=tmp_path),
    ):
        line = ["doctor", "--scheduler-file", str(file), "--json", "--scratch", str(tmp_path)]
        for _ in range(20):  # the worker may not have joined yet
            done = CliRunner().invoke(app, line)
            document = json.loads(done.stdout)
            if document["is_well"]:
                break
        assert done.exit_code == 0, document
        found = {each["subject"]: each["found"] for each in document["findings"]}
        assert "answers: 1 worker(s), 1 thread(s)" in found["scheduler"]


def test_a_scheduler_that_does_not_answer_ends_with_code_1(monkeypatch):
    monkeypatch.setattr("cns_dask.execution.cluster.CONNECT_SECONDS", 0.2)
    done = CliRunner().invoke(app, ["doctor", "--scheduler", "tcp://127.0.0.1:1"])
    assert done.exit_code == 1
    assert "No Dask scheduler answers" in done.output
