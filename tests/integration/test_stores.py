"""Results in object stores, on stores that fail now and then, and on disks that fill up."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tenacity
import zarr

from cns_dask import CNS, open_result
from cns_dask.errors import OutputError, OutputInUseError
from cns_dask.pipeline import fit
from cns_dask.progress import LineProgress, Progress
from cns_dask.settings import Settings
from cns_dask.storage import locations
from cns_dask.storage.layout import Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.outputs import new_output

SMALL = str(Path(__file__).parents[1] / "small.py")


@pytest.fixture(scope="session")
def s3(object_store, rows):
    """A bucket with the rows in it."""
    object_store.mkdir("bucket")
    store = zarr.storage.FsspecStore.from_url("s3://bucket/x.zarr")
    zarr.create_array(store, shape=rows.shape, chunks=(1000, 5), dtype="f8")[...] = rows
    return "s3://bucket"


def line(*words):
    return [sys.executable, SMALL, *map(str, words)]


def test_places_in_an_object_store(s3):
    place = Location(f"{s3}/place")
    assert (place.names(), place.read("a"), place.exists("a")) == ([], None, False)
    place.write("a", b"1")
    place.write("b/c", b"2")
    before = place.versions()
    place.write("a", b"3")
    assert place.versions() != before
    assert (place.names(), place.names("b"), place.read("a")) == (["a", "b"], ["c"], b"3")
    assert place.claim("lock", b"1")
    assert not place.claim("lock", b"2")
    assert place.read("lock") == b"1"
    place.remove("b")
    place.remove("none")
    assert place.names() == ["a", "lock"]
    place.remove()
    assert not place.exists()


def test_one_writer_in_an_object_store(s3):
    out = f"{s3}/locked.zarr"
    with (
        new_output(out, Kind.RESULT, {}, {}),
        pytest.raises(OutputInUseError, match="Another run is writing to this output"),
        new_output(out, Kind.RESULT, {}, {}),
    ):
        pass


def test_a_fit_in_an_object_store(s3, blobs):
    """Everything there, on few rows; the longer test kills such a run."""
    out = f"{s3}/few.zarr"
    model = CNS(n_neighbors=9, lam=0.05).fit(blobs, out=out, scratch=f"{s3}/scratch")
    result = open_result(out)
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), model.labels_)
    np.testing.assert_array_equal(model.labels_, CNS(n_neighbors=9, lam=0.05).fit(blobs).labels_)
    again = CNS(n_neighbors=9, lam=0.05).fit(blobs, out=out)
    assert again.result_.seconds == result.seconds  # at once
    assert not {".few.zarr.unfinished", "scratch"} & set(Location(f"{s3}/x").parent.names())


@pytest.mark.slow
def test_data_scratch_and_result_in_an_object_store(s3, undisturbed, rows):
    """The run is killed, goes on where it was, and its result is used and replaced."""
    out, words = f"{s3}/r.zarr", ("--method", "cells", "--scratch", f"{s3}/scratch")
    with subprocess.Popen(
        line("fit", f"{s3}/x.zarr", "--out", out, *words), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        for told in process.stderr:
            if told.startswith("evaluate: 0"):
                break
        time.sleep(2)
        os.killpg(process.pid, signal.SIGKILL)
    assert {".r.zarr.unfinished", "scratch"} <= set(Location(f"{s3}/x").parent.names())
    done = subprocess.run(
        line("fit", f"{s3}/x.zarr", "--out", out, *words), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "graph: all done by an earlier run" in done.stderr
    result = open_result(out)
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)
    assert not {".r.zarr.unfinished", "scratch"} & set(Location(f"{s3}/x").parent.names())
    again = subprocess.run(
        line("fit", f"{s3}/x.zarr", "--out", out, *words), capture_output=True, text=True, check=False
    )
    assert "r.zarr is finished already" in again.stderr
    other = subprocess.run(
        line("fit", f"{s3}/x.zarr", "--out", out, "--n-neighbors", "9", "--lam", "0.05"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert other.returncode == 2
    assert "settings.method is 'cells', not 'auto'" in other.stderr
    assert subprocess.run(line("show", out), capture_output=True, check=False).returncode == 0
    predicted = subprocess.run(
        line("predict", out, f"{s3}/x.zarr", "--out", f"{s3}/p.zarr"), capture_output=True, text=True, check=False
    )
    assert predicted.returncode == 0, predicted.stderr
    model = CNS(n_neighbors=9, lam=0.05, n_clusters=2).fit(rows, out=out, overwrite=True)
    assert open_result(out).choice.n_clusters == 2
    np.testing.assert_array_equal(open_result(out).labels.compute(), model.labels_)


def test_a_store_that_fails_now_and_then(stored_rows, undisturbed, small_plan, tmp_path, monkeypatch):
    import flaky

    monkeypatch.setitem(locations.RETRY_POLICY, "wait", tenacity.wait_fixed(0.005))
    out = f"flaky://{tmp_path}/r.zarr"
    result = fit(f"flaky://{stored_rows}", Settings(method="cells"), out=out)
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)
    assert min(flaky.FAILURES.values()) > 20
    monkeypatch.setattr(flaky, "SHARE", 1.0)
    with pytest.raises(OSError, match=r"failed 6 times in a row \(OSError: \[Errno 5\] injected"):
        open_result(out).labels.compute(scheduler="synchronous")


def test_a_disk_that_fills_up(stored_rows, undisturbed, small_plan, tmp_path):
    """A small disk of its own, which another program fills while the fit runs."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(disk)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"needs a disk of its own, which only root can make: {mounted.stderr.strip()}")

    class Filler(Progress):
        def _begin(self, name, total):
            if name == "evaluate":
                with contextlib.suppress(OSError), (disk / "filler").open("wb") as file:
                    while True:
                        file.write(b"x" * 4096)

    told = []
    try:
        with pytest.raises(OutputError, match=r"disk is full \(No space left on device\).*run the same again"):
            fit(stored_rows, Settings(method="cells"), out=disk / "r.zarr", progress=Filler())
        (disk / "filler").unlink()
        result = fit(stored_rows, Settings(method="cells"), out=disk / "r.zarr", progress=LineProgress(told.append))
        assert "graph: all done by an earlier run" in told
        np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
