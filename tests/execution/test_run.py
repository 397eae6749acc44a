"""Pieces of work that are not done twice."""

import dask
import dask.array as da
import numpy as np
import pytest

from cns_dask.execution.run import Piece, Run
from cns_dask.progress import LineProgress
from cns_dask.storage.locations import Location
from cns_dask.storage.store import ResultStore

CALLS = []


def square(number, target):
    CALLS.append(number)
    target[number : number + 1] = number**2
    return number, np.array([number**2])


@pytest.fixture
def begin(tmp_path):
    """Begin a run in the same folder as the one before; what is told and done begins anew."""
    told = []

    def begin():
        root = Location(tmp_path)
        store = ResultStore(root / "r.zarr", root / "scratch.zarr", root / "done")
        store.begin()
        CALLS.clear()
        told.clear()
        work = Run(store, LineProgress(told.append))
        work.told = told
        return work

    with dask.config.set(scheduler="synchronous"):
        yield begin


def squares(work, n=5):
    target = work.store.scratch("squares", (n,), (1,), "int64")
    pieces = [Piece(square, (at, target), (("scratch/squares", (slice(at, at + 1),)),)) for at in range(n)]
    return [int(value[0]) for _, value in work.run("squares", pieces)]


def test_what_was_done_is_not_done_again(begin, tmp_path):
    assert squares(begin()) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == [0, 1, 2, 3, 4]
    work = begin()
    assert squares(work) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == []
    assert "squares: 5 of 5 pieces were there" in work.told
    for at in (1, 3):
        (tmp_path / "done" / "squares" / f"1-square-{at}.json").unlink()
    work = begin()
    assert squares(work) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == [1, 3]
    assert "squares: 3 of 5 pieces were there" in work.told


@pytest.mark.parametrize("damage", ["lost", "cut", "flipped", "record", "array"])
def test_a_piece_whose_output_is_damaged_is_done_again(begin, tmp_path, damage):
    squares(begin())
    chunk, record = tmp_path / "scratch.zarr" / "squares" / "c" / "2", tmp_path / "done" / "squares" / "1-square-2.json"
    content = chunk.read_bytes()
    if damage == "lost":
        chunk.unlink()
    elif damage == "cut":
        chunk.write_bytes(content[:5])
    elif damage == "flipped":
        chunk.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    elif damage == "record":
        record.write_bytes(record.read_bytes()[:-3])
    else:
        (tmp_path / "scratch.zarr" / "squares" / "zarr.json").unlink()
    work = begin()
    assert squares(work) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == ([0, 1, 2, 3, 4] if damage == "array" else [2])
    np.testing.assert_array_equal(work.store.array("scratch/squares")[:], [0, 1, 4, 9, 16])


def test_stages_that_are_through_are_not_looked_into(begin, tmp_path):
    def all_of(work):
        def make():
            values = squares(work)
            work.store.put("k", values)
            return sum(values)

        return work.once("all", make, ("k",))

    assert all_of(begin()) == 30
    assert [path.name for path in (tmp_path / "scratch.zarr").iterdir()] == ["zarr.json"]  # intermediate values go
    work = begin()
    assert all_of(work) == 30
    assert sorted(CALLS) == []
    assert work.told == ["all: all of it was there"]
    (tmp_path / "r.zarr" / "k" / "c" / "0").unlink()  # then it is made again, with what it needs
    assert all_of(begin()) == 30
    assert sorted(CALLS) == [0, 1, 2, 3, 4]


def test_arrays_are_written_chunk_by_chunk_together(begin):
    def run():
        work = begin()
        memberships, labels = da.ones((10, 2), chunks=(4, 2)), da.arange(10, chunks=4)
        pieces = work.fill({"memberships": memberships, "labels": labels}, 4)
        work.run("memberships", pieces)
        np.testing.assert_array_equal(work.store.read("labels"), np.arange(10))
        return work.told

    assert len(run()) == 2
    assert "memberships: 3 of 3 pieces were there" in run()


def test_a_failure_keeps_what_was_done_before_it(begin):
    def fails(number, target):
        if number == 3:
            raise RuntimeError("boom")
        return square(number, target)

    fails.__name__ = "square"

    def run(work, function):
        target = work.store.scratch("squares", (5,), (1,), "int64")
        return work.run("squares", [Piece(function, (at, target)) for at in range(5)])

    with pytest.raises(RuntimeError, match="boom"):
        run(begin(), fails)
    done = list(CALLS)
    run(begin(), square)
    assert sorted(done + CALLS) == [0, 1, 2, 3, 4]
