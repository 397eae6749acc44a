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
from lagging import lagging_listings
from last_moments import CASES, last_moments, old_and_new

from cns_dask import CNS, open_result
from cns_dask.errors import NotAResultError, OutputError, OutputInUseError, StoreError
from cns_dask.pipeline import fit
from cns_dask.progress import LineProgress, Progress
from cns_dask.settings import Settings
from cns_dask.storage import locations
from cns_dask.storage.layout import Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.locks import locked
from cns_dask.storage.outputs import new_output, open_output
from cns_dask.storage.store import open_store

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
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_killed_before_any_request_of_its_end_is_run_again(s3, case):
    """What is read is the old result, the new one, or nothing while files are copied; never some of both."""
    killed, (old, new, last) = last_moments(f"{s3}/killed-{case}", case), old_and_new(case)
    assert [each["before"].split()[0] for each in killed].count("copy_object") == 5  # files of the result
    for each in killed:
        assert each["between"] in (old, None, new), each
        assert (each["error"], each["after"], each["left"]) == ("", last, ["r.zarr"]), each


def half_copied(out, fingerprint, **options):
    """Fill an output, and fail while it is copied to its place."""
    copy = Location.copy_to

    def fail(self, target, names, last, unwanted=()):
        copy(self, target, [name for name in names if name.startswith("labels/")], "labels/zarr.json", unwanted)
        raise RuntimeError("killed")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(Location, "copy_to", fail)
        write(out, fingerprint, **options)


def write(out, value, **options):
    with open_output(out, Kind.RESULT, {"data": value}, {"plan": 1}, **options) as output:
        output.writer.put("labels", np.full(3, value))
        output.writer.put("confidence", np.full(3, value))


def read(out):
    store = open_store(out, Kind.RESULT)
    return {store.attributes["fingerprint"]["data"], *store.read("labels").tolist(), *store.read("confidence").tolist()}


def test_half_a_copy_is_no_result_and_other_work_may_replace_it(s3):
    out = f"{s3}/half.zarr"
    half_copied(out, 1)
    assert Location(out).exists("labels/zarr.json")
    with pytest.raises(NotAResultError, match="is not a finished result"):
        open_store(out, Kind.RESULT)
    with pytest.raises(OutputError, match="There is unfinished work of other data or settings"):
        write(out, 2)
    write(out, 2, overwrite=True)
    assert read(out) == {2}
    assert not Location(out).parent.exists(".half.zarr.unfinished")


def test_a_listing_that_lags_behind_loses_nothing_of_a_result(s3):
    """Neither of a new one, nor of one that replaces another, of which nothing is left."""
    out = f"{s3}/lagging.zarr"
    with lagging_listings():
        with open_output(out, Kind.RESULT, {"data": 1}, {"plan": 1}) as output:
            assert not output.writer.location.parent.names()  # the listing does lag
            for name in ("labels", "confidence", "codes"):
                output.writer.put(name, np.ones(3))
        assert read(out) == {1}
        with pytest.raises(OutputError, match="already exists"), new_output(out, Kind.RESULT, {}, {}):
            pass
        write(out, 2, overwrite=True)
        assert read(out) == {2}
        assert "codes" not in open_store(out, Kind.RESULT)
    assert read(out) == {2}


def test_a_file_that_is_missing_ends_the_move_and_keeps_the_others(s3):
    out = f"{s3}/missing.zarr"
    with (
        pytest.raises(StoreError, match=r"A file of .*result.zarr is missing \(.*labels/c/0.* run the same again"),
        open_output(out, Kind.RESULT, {}, {}) as output,
    ):
        output.writer.put("confidence", np.ones(3))
        output.writer.put("labels", np.ones(3))
        output.writer.location.remove("labels/c/0")
    assert output.writer.location.exists("confidence/c/0")
    with pytest.raises(NotAResultError):
        open_store(out, Kind.RESULT)


def test_a_listing_that_lags_behind_breaks_no_lock(s3):
    folder = Location(f"{s3}/lagging-lock")
    with lagging_listings():
        with locked(folder) as check_lock:
            check_lock()
            with pytest.raises(OutputInUseError, match="Another run is writing to this output"), locked(folder):
                pass
            check_lock()
            folder.write("lock-2", b"{}")
            with pytest.raises(OutputInUseError, match="lost its lock"):
                check_lock()
            folder.remove("lock-2")
        assert not folder.exists("lock-1")
        folder.write("lock-1", b'{"host": "elsewhere"}')  # of a run that was killed
        with locked(folder, dead_seconds=1):
            assert folder.exists("lock-2")


@pytest.mark.parametrize("some_are_seen", [False, True])
@pytest.mark.slow
def test_records_that_a_listing_does_not_show_are_made_again(s3, blobs, some_are_seen):
    """Two fits are cut short; the third sees nothing of what they have recorded, or only what the first has."""
    out, settings = f"{s3}/seen-{some_are_seen}.zarr", Settings(method="cells", n_neighbors=9, lam=0.05)
    expected = fit(blobs, settings).labels.compute()

    class Stop(Progress):
        def __init__(self, stage):
            super().__init__()
            self._stage = stage

        def _begin(self, name, total):
            if name == self._stage:
                raise RuntimeError("stop")

    def cut_short(stage):
        with pytest.raises(RuntimeError, match="stop"):
            fit(blobs, settings, out=out, progress=Stop(stage))

    if some_are_seen:
        cut_short("evaluate")
    with lagging_listings():
        cut_short("absorption")
        told = []
        fit(blobs, settings, out=out, progress=LineProgress(told.append))
        assert ("graph: all done by an earlier run" in told) == some_are_seen
        np.testing.assert_array_equal(open_result(out).labels.compute(scheduler="threads"), expected)


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
    assert "method was 'cells', now it is 'auto'" in other.stderr
    assert subprocess.run(line("show", out), capture_output=True, check=False).returncode == 0
    predicted = subprocess.run(
        line("predict", out, f"{s3}/x.zarr", "--out", f"{s3}/p.zarr"), capture_output=True, text=True, check=False
    )
    assert predicted.returncode == 0, predicted.stderr
    model = CNS(n_neighbors=9, lam=0.05, n_clusters=2).fit(rows, out=out, overwrite=True)
    assert open_result(out).choice.n_clusters == 2
    np.testing.assert_array_equal(open_result(out).labels.compute(), model.labels_)


@pytest.mark.slow
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
