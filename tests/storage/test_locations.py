"""Locations on a disk here; those in an object store are tried in tests/integration/test_stores.py."""

import asyncio
import errno
import shutil
import threading

import fsspec
import pytest
import tenacity

from cns_dask.errors import DataNotFoundError, InvalidLocationError, StoreError, UsageError
from cns_dask.storage import locations
from cns_dask.storage.locations import (
    RETRY_POLICY,
    Location,
    describe_file,
    is_transient,
    read_lines,
    with_retries,
    with_retries_async,
)


@pytest.fixture
def folder(tmp_path):
    return Location(tmp_path / "p")


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setitem(RETRY_POLICY, "wait", tenacity.wait_none())


def test_files_are_written_read_listed_and_removed(folder):
    assert folder.read("a") is None
    assert folder.names() == []
    folder.write("a", b"1")
    folder.write("b/c", b"2")
    folder.write("a", b"3")
    assert (folder.read("a"), folder.read("b/c"), folder.read("a/x")) == (b"3", b"2", None)
    assert (folder.names(), folder.names("b"), folder.names("none")) == (["a", "b"], ["c"], [])
    assert [version[0] for version in folder.versions()] == ["a", "b/c"]
    folder.remove("b")
    folder.remove("none")
    assert folder.names() == ["a"]
    folder.remove()
    assert not folder.exists()


def test_versions_tell_a_change(folder):
    folder.write("a", b"1")
    before = folder.versions()
    assert folder.versions() == before
    folder.write("a", b"2")
    assert folder.versions() != before


def test_names_and_parents():
    folder = Location("s3://bucket/a/b.zarr/")
    assert (folder.name, folder.parent, folder / "c") == (
        "b.zarr",
        Location("s3://bucket/a"),
        Location("s3://bucket/a/b.zarr/c"),
    )
    assert not folder.is_local
    assert Location("file:///tmp/x") == Location("/tmp/x")
    assert {Location("/a"), Location("/a/")} == {Location("/a")}


def test_of_many_claims_one_succeeds(folder):
    got = []
    barrier = threading.Barrier(8)

    def claim(number):
        barrier.wait()
        got.append(folder.claim("lock", str(number).encode()))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]
    assert folder.names() == ["lock"]


def test_what_falters_is_tried_again_and_what_fails_is_not(no_pauses):
    calls = []

    def falters(times, error):
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    assert with_retries(falters, 3, OSError(errno.EIO, "no")) == "done"
    assert len(calls) == 4
    calls.clear()
    with pytest.raises(StoreError, match=r"The store failed 6 times in a row \(TimeoutError: slow\)"):
        with_retries(falters, 99, TimeoutError("slow"))
    assert len(calls) == 6
    for error in (FileNotFoundError("x"), OSError(errno.ENOSPC, "full"), PermissionError("no"), ValueError("bug")):
        calls.clear()
        with pytest.raises(type(error)):
            with_retries(falters, 99, error)
        assert len(calls) == 1


def test_which_errors_pass():
    assert is_transient(ConnectionResetError())
    assert is_transient(OSError(errno.ESTALE, "stale"))
    assert not is_transient(StoreError("given up"))
    assert not is_transient(OSError(errno.EDQUOT, "quota"))
    client_error = type("EndpointConnectionError", (Exception,), {"__module__": "botocore.exceptions"})
    assert is_transient(client_error())


def test_a_kind_of_store_that_nobody_knows():
    with pytest.raises(
        InvalidLocationError, match=r"No package here opens nowhere://x/y \(.*pip install 'cns_dask\[s3\]'"
    ):
        Location("nowhere://x/y").exists()


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/", "s3://bucket/run*.zarr", "s3://b/r[1].zarr", "s3://b/?"]
)
def test_urls_that_could_mean_more_than_one_thing(url):
    with pytest.raises(InvalidLocationError, match="must name a bucket and a path in it, without any of") as raised:
        Location(url)
    assert str(raised.value).startswith(f"{url} ")


@pytest.mark.parametrize("location", [None, 3, b"x", ["x"]])
def test_what_is_no_path_is_refused(location):
    with pytest.raises(InvalidLocationError, match="is no path or URL"):
        Location(location)


def test_paths_that_lead_nowhere(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="~nouser/x.zarr is not a path of this system"):
        Location("~nouser/x.zarr")
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(
        UsageError, match="x.zarr is a relative path, and the working directory does not exist any more"
    ):
        Location("x.zarr")


def test_a_claim_whose_answer_was_lost_is_ours(folder):
    folder.write("lock", b"mine")
    assert folder.claim("lock", b"mine")
    assert not folder.claim("lock", b"theirs")


def test_an_error_that_lasts_after_some_that_pass_is_raised_as_it_is(no_pauses):
    errors = [OSError(errno.EIO, "no")] * 2 + [OSError(errno.ENOSPC, "full")]
    with pytest.raises(OSError, match="full") as raised:
        with_retries(lambda: (_ for _ in ()).throw(errors.pop(0)))
    assert raised.value.__cause__ is None


def test_what_is_awaited_is_tried_again_too(no_pauses):
    errors = [ConnectionResetError("gone")] * 2

    async def falters():
        if errors:
            raise errors.pop()
        return "done"

    async def never():
        raise ConnectionResetError("gone")

    assert asyncio.run(with_retries_async(falters)) == "done"
    with pytest.raises(StoreError, match="failed 6 times in a row .ConnectionResetError: gone") as raised:
        asyncio.run(with_retries_async(never))
    assert isinstance(raised.value.__cause__, ConnectionResetError)


def test_pauses_double_and_differ_by_chance():
    state = tenacity.RetryCallState(tenacity.Retrying(), None, (), {})
    for attempt, pause in enumerate((0.1, 0.2, 0.4, 0.8, 1.6), 1):
        state.attempt_number = attempt
        waits = {RETRY_POLICY["wait"](state) for _ in range(20)}
        assert pause <= min(waits) < max(waits) <= pause + 0.1


def test_a_folder_is_moved_and_what_was_there_is_kept_aside(folder):
    new, old, aside = folder / "new", folder / "old", folder / "aside"
    new.write("zarr.json", b"new")
    new.rename_to(old, aside)
    assert folder.names() == ["old"]
    new.write("zarr.json", b"newer")
    new.rename_to(old, aside)
    assert (old.read("zarr.json"), aside.read("zarr.json")) == (b"newer", b"new")
    assert not new.exists()


def test_files_are_found_by_a_pattern(folder):
    for name in ("b.csv", "a.csv", "c.txt", "deep/d.csv"):
        folder.write(name, b"")
    expected = [f"{folder}/a.csv", f"{folder}/b.csv"]
    assert folder.matches("*.csv") == expected
    assert locations.matches(f"file://{folder}", "?.csv") == expected
    assert locations.matches(str(folder), "*/*.csv") == [f"{folder}/deep/d.csv"]


@pytest.mark.parametrize("root", ["tmp_path", "bucket"])
def test_parts_of_a_file_hold_every_line_once(request, root):
    path = f"{request.getfixturevalue(root)}/x.csv"
    lines = [b"%d" % 7**power + b"\n" for power in range(30)]
    with fsspec.open(path, "wb") as file:
        file.write(b"".join(lines))
    size, version = describe_file(path)
    assert size == sum(map(len, lines))
    assert read_lines(path) == b"".join(lines)
    for step in range(1, 40):
        parts = [read_lines(path, start, step) for start in range(0, size, step)]
        assert b"".join(parts) == b"".join(lines)
        assert all(part.endswith(b"\n") for part in parts if part)
    with fsspec.open(path, "wb") as file:
        file.write(b"other")
    assert describe_file(path)[1] != version


def test_an_empty_path_is_not_the_current_folder():
    for path in ("", "file://"):
        with pytest.raises(DataNotFoundError, match="The path is empty"):
            Location(path)


def test_free_space_is_known_on_disks_only(folder, tmp_path):
    folder.make()
    assert folder.free_bytes() == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.2)
    assert Location("s3://bucket/a").free_bytes() is None


def test_a_folder_whose_removal_was_cut_short_goes_with_the_next_attempt(tmp_path):
    (tmp_path / ".x.gone" / "y").mkdir(parents=True)
    Location(tmp_path).remove("x")
    assert list(tmp_path.iterdir()) == []
