"""Places on a disk here; those in an object store are tried in tests/integration/test_stores.py."""

import errno
import threading

import pytest

from cns_dask.errors import StoreError
from cns_dask.storage import locations as locations
from cns_dask.storage.locations import Location, is_transient, with_retries


@pytest.fixture
def place(tmp_path):
    return Location(tmp_path / "p")


def test_files_are_written_read_listed_and_removed(place):
    assert place.read("a") is None
    assert place.names() == []
    place.write("a", b"1")
    place.write("b/c", b"2")
    place.write("a", b"3")
    assert (place.read("a"), place.read("b/c"), place.read("a/x")) == (b"3", b"2", None)
    assert (place.names(), place.names("b"), place.names("none")) == (["a", "b"], ["c"], [])
    assert [mark[0] for mark in place.marks()] == ["a", "b/c"]
    place.remove("b")
    place.remove("none")
    assert place.names() == ["a"]
    place.remove()
    assert not place.exists()


def test_marks_tell_a_change(place):
    place.write("a", b"1")
    before = place.marks()
    assert place.marks() == before
    place.write("a", b"2")
    assert place.marks() != before


def test_names_and_parents():
    place = Location("s3://bucket/a/b.zarr/")
    assert (place.name, place.parent, place / "c") == (
        "b.zarr",
        Location("s3://bucket/a"),
        Location("s3://bucket/a/b.zarr/c"),
    )
    assert not place.is_local
    assert Location("file:///tmp/x") == Location("/tmp/x")
    assert {Location("/a"), Location("/a/")} == {Location("/a")}


def test_of_many_claims_one_succeeds(place):
    got = []
    barrier = threading.Barrier(8)

    def claim(number):
        barrier.wait()
        got.append(place.claim("lock", str(number).encode()))

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]
    assert place.names() == ["lock"]


def test_what_falters_is_tried_again_and_what_fails_is_not(monkeypatch):
    monkeypatch.setattr(locations, "FIRST_PAUSE", 0.001)
    calls = []

    def falters(times, error):
        calls.append(1)
        if len(calls) <= times:
            raise error
        return "done"

    assert with_retries(falters, 3, OSError(errno.EIO, "no")) == "done"
    assert len(calls) == 4
    calls.clear()
    with pytest.raises(StoreError, match=r"within 6 attempts\. Got TimeoutError: slow"):
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
    with pytest.raises(StoreError, match=r"kind of store must be known\. Got nowhere://x/y"):
        Location("nowhere://x/y").exists()


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/", "s3://bucket/run*.zarr", "s3://b/r[1].zarr", "s3://b/?"]
)
def test_urls_that_could_mean_more_than_one_thing(url):
    with pytest.raises(StoreError, match="must name a bucket and something in it"):
        Location(url)


def test_a_claim_whose_answer_was_lost_is_ours(place):
    place.write("lock", b"mine")
    assert place.claim("lock", b"mine")
    assert not place.claim("lock", b"theirs")


def test_an_error_that_lasts_after_some_that_pass_is_raised_as_it_is(monkeypatch):
    monkeypatch.setattr(locations, "FIRST_PAUSE", 0.001)
    errors = [OSError(errno.EIO, "no")] * 2 + [OSError(errno.ENOSPC, "full")]
    with pytest.raises(OSError, match="full") as raised:
        with_retries(lambda: (_ for _ in ()).throw(errors.pop(0)))
    assert raised.value.__cause__ is None
