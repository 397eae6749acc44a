"""Pieces of work that are not done twice."""

import logging

import dask
import dask.array as da
import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.errors import OutputError, OutputInUseError
from cns_dask.execution.cluster import span_of
from cns_dask.execution.plan import Stage, Step
from cns_dask.execution.run import MISSING_RECORD, Piece, Run, decode_record
from cns_dask.progress import LineProgress
from cns_dask.storage.layout import ArrayPlan
from cns_dask.storage.locations import Location
from cns_dask.storage.records import encode
from cns_dask.storage.store import ResultWriter, TemporaryFolder

CALLS = []
SQUARES = ArrayPlan("squares", (5,), (1,), "int64", scratch=True)
STAGE = Stage("squares", (Step("square", tasks=5),), writes=(SQUARES,))


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
        CALLS.clear()
        told.clear()
        run = Run(ResultWriter(root / "r.zarr", root / "scratch.zarr", root / "done"), LineProgress(told.append))
        run.told = told
        return run

    with dask.config.set(scheduler="synchronous"):
        yield begin


def squares(run):
    with run.stage(STAGE) as stage:
        target = stage.create("squares")
        pieces = [Piece(square, (at, target), ((target, (slice(at, at + 1),)),)) for at in range(5)]
        return [int(value[0]) for _, value in stage.run("square", pieces)]


def test_work_beside_a_run_is_recorded_apart_and_goes_with_the_scratch(begin, tmp_path):
    run = begin()
    assert squares(run.beside("other")) == [0, 1, 4, 9, 16]
    assert (tmp_path / "scratch.zarr" / "other" / "scratch.zarr" / "squares").is_dir()
    assert any(line.startswith("other squares: 5 of 5") for line in run.told)
    again = begin()
    assert squares(again.beside("other")) == [0, 1, 4, 9, 16]
    assert CALLS == []
    assert squares(again) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == [0, 1, 2, 3, 4]
    again.writer.drop_scratch()
    assert not (tmp_path / "scratch.zarr" / "other").exists()


def test_what_was_done_is_not_done_again(begin, tmp_path):
    assert squares(begin()) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == [0, 1, 2, 3, 4]
    run = begin()
    assert squares(run) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == []
    assert "squares: 5 of 5 pieces done by an earlier run" in run.told
    for at in (1, 3):
        (tmp_path / "done" / "squares" / f"square-{at}.json").unlink()
    run = begin()
    assert squares(run) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == [1, 3]
    assert "squares: 3 of 5 pieces done by an earlier run" in run.told
    assert run.told[-1].startswith("squares: 5 of 5, ")  # what was done by an earlier run counts


@pytest.mark.parametrize("damage", ["lost", "cut", "flipped", "record", "array"])
def test_a_piece_whose_output_is_damaged_is_done_again(begin, tmp_path, damage):
    squares(begin())
    chunk, record = tmp_path / "scratch.zarr" / "squares" / "c" / "2", tmp_path / "done" / "squares" / "square-2.json"
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
    run = begin()
    assert squares(run) == [0, 1, 4, 9, 16]
    assert sorted(CALLS) == ([0, 1, 2, 3, 4] if damage == "array" else [2])
    np.testing.assert_array_equal(run.writer.create(SQUARES)[:], [0, 1, 4, 9, 16])


def test_stages_that_are_through_are_not_looked_into(begin, tmp_path):
    def compute_all(run):
        values = squares(run)
        run.writer.put("k", values)
        return sum(values)

    def total(run):
        return run.load("all", ("k",)) or run.save("all", compute_all(run))

    assert total(begin()) == 30
    assert [path.name for path in (tmp_path / "scratch.zarr").iterdir()] == ["zarr.json"]  # scratch arrays go
    run = begin()
    assert total(run) == 30
    assert sorted(CALLS) == []
    assert run.told == ["all: all done by an earlier run"]
    (tmp_path / "r.zarr" / "k" / "c" / "0").unlink()  # then it is made again, with what it needs
    assert total(begin()) == 30
    assert sorted(CALLS) == [0, 1, 2, 3, 4]


def test_arrays_are_written_chunk_by_chunk_together(begin):
    memberships, labels = da.ones((10, 2), chunks=(4, 2)), da.arange(10, chunks=4)
    writes = (ArrayPlan("memberships", (10, 2), (4, 2)), ArrayPlan("labels", (10,), (4,)))
    stage = Stage("memberships", (Step("memberships", 3),), writes=writes)

    def write():
        run = begin()
        run.write(stage, {"memberships": memberships, "labels": labels})
        np.testing.assert_array_equal(run.writer.read("labels"), np.arange(10))
        np.testing.assert_array_equal(run.writer.read("memberships"), np.ones((10, 2)))
        return run.told

    assert len(write()) == 2
    assert "memberships: 3 of 3 pieces done by an earlier run" in write()


def test_a_failure_keeps_what_was_done_before_it(begin):
    def fails(number, target):
        if len(CALLS) == 3:  # not a piece by its number: nothing says in which order they are computed
            raise RuntimeError("boom")
        return square(number, target)

    def run_with(function, run):
        with run.stage(STAGE) as stage:
            target = stage.create("squares")
            return stage.run("square", [Piece(function, (at, target)) for at in range(5)])

    with pytest.raises(RuntimeError, match="boom"):
        run_with(fails, begin())
    done = list(CALLS)
    assert len(done) == 3
    run_with(square, begin())
    assert sorted(done + CALLS) == [0, 1, 2, 3, 4]


def test_records_are_named_by_step_and_number_or_by_what_the_piece_says(begin, tmp_path):
    stage = Stage("powers", (Step("square", 2), Step("cube", 2, after=(0,))))
    with begin().stage(stage) as running:
        assert running.run("square", [Piece(pow, (2, 2)), Piece(pow, (3, 2))]) == [4, 9]
        assert running.run("cube", [Piece(pow, (2, 3), record="two"), Piece(pow, (3, 3), record="three")]) == [8, 27]
    names = sorted(path.name for path in (tmp_path / "done" / "powers").iterdir())
    assert names == ["cube-three.json", "cube-two.json", "square-0.json", "square-1.json"]


def test_a_step_that_the_stage_does_not_have_is_refused(begin):
    with (
        begin().stage(STAGE) as stage,
        pytest.raises(ValueError, match=r"The stage squares has no step cube: it has \['square'\]"),
    ):
        stage.run("cube", [Piece(pow, (2, 3))])


def test_tasks_that_are_not_recorded_are_computed_each_time(begin, tmp_path):
    stage = Stage("doubles", (Step("double", 3, recorded=False),))
    for _ in range(2):
        run = begin()
        with run.stage(stage) as running:
            tasks = [running.delayed("double", lambda number: 2 * number, number) for number in range(3)]
            assert running.compute(tasks) == [0, 2, 4]
        assert not (tmp_path / "done" / "doubles").exists()


def test_the_log_names_each_piece_as_it_is_finished(begin, caplog):
    with caplog.at_level(logging.INFO, "cns_dask"):
        squares(begin())
    assert sorted(caplog.messages) == [f"squares: finished square-{at}" for at in range(5)]


def test_fields_of_the_plan_of_an_array_may_be_changed_once_they_are_known(begin):
    with begin().stage(STAGE) as stage:
        array = stage.create("squares", shape=(7,), chunks=(3,))
    assert (array.shape, array.chunks, array.dtype) == ((7,), (3,), np.int64)


def test_without_records_nothing_is_resumed():
    folder = TemporaryFolder()
    with dask.config.set(scheduler="synchronous"):
        for _ in range(2):
            CALLS.clear()
            run = Run(folder.writer(), LineProgress([].append))
            assert squares(run) == [0, 1, 4, 9, 16]
            assert sorted(CALLS) == [0, 1, 2, 3, 4]
            assert run.save("all", 5) == 5
            assert run.load("all") is None
            assert not run.has_saved("all")


def test_records_are_forgotten_by_how_their_names_begin(begin):
    run = begin()
    for name in ("round-1", "round-2", "grid"):
        run.save(name, name)
    squares(run)
    run = begin()
    assert run.has_saved("round-")
    run.forget("round-", "squares")
    assert not run.has_saved("round-")
    assert (run.load("round-1"), run.load("grid")) == (None, "grid")
    squares(run)
    assert sorted(CALLS) == [0, 1, 2, 3, 4]


def test_a_stage_does_not_begin_once_another_run_has_taken_over(begin):
    def taken_over():
        raise OutputInUseError("lost")

    run = begin()
    run.writer.check_lock = taken_over
    with pytest.raises(OutputInUseError, match="lost"):
        squares(run)
    assert (CALLS, run.told) == ([], [])


def test_room_is_asked_for_by_a_new_run_only(begin):
    run = begin()
    run.check_ready(disk_bytes=1)
    with pytest.raises(OutputError, match="needs 953674316 MiB on the disk"):
        run.check_ready(disk_bytes=10**15)
    squares(run)
    begin().check_ready(disk_bytes=10**15)  # part of the work is there already


def test_a_record_that_is_missing_or_damaged_is_told_from_one_of_nothing(tmp_path):
    records = Location(tmp_path)
    records.write("nothing.json", encode(None))
    records.write("damaged.json", encode(None)[:-1])
    assert decode_record(records.read("nothing.json")) is None
    assert decode_record(records.read("damaged.json")) is MISSING_RECORD
    assert decode_record(records.read("missing.json")) is MISSING_RECORD


def test_rows_in_memory_are_shared_with_workers_only(begin, client):
    run, X = begin(), da.from_array(np.arange(20.0).reshape(10, 2), chunks=(4, 2))
    with dask.config.set(scheduler="threads"):
        assert run.share(X) is X
    assert run.writer.scratch.names() == ["zarr.json"]
    shared = run.share(X)
    assert run.writer.scratch.names() == ["input", "zarr.json"]
    assert shared.chunks == X.chunks
    np.testing.assert_array_equal(shared.compute(), np.arange(20.0).reshape(10, 2))


def kinds_of_tasks(dask_scheduler):
    """The spans that there were, each with the kinds of its tasks."""
    spans = dask_scheduler.extensions["spans"].spans.values()
    return {(span.name, group.prefix.name) for span in spans for group in span.groups}


def test_stages_are_spans_which_change_neither_tasks_nor_results(client, small_chunks, monkeypatch):
    """Other kinds of tasks would mean that Dask fused other ones."""
    X = np.random.default_rng(0).normal(size=(300, 3))
    model = CNS(method="cells").fit(X)
    kinds = client.run_on_scheduler(kinds_of_tasks)
    stages = model.result_.details["seconds"].keys() - {"preprocess"}  # dask-ml computes there by itself
    assert {("cns_dask", name) for name in stages} <= {span for span, _ in kinds}
    assert (("cns_dask", "evaluate"), "solve") in kinds
    monkeypatch.setattr("cns_dask.execution.run.span_of", lambda *names: {})
    other = CNS(method="cells").fit(X)
    without = client.run_on_scheduler(kinds_of_tasks) - kinds
    assert {span for span, _ in without} <= {("default",)}
    assert {kind for _, kind in without} <= {kind for _, kind in kinds}
    np.testing.assert_array_equal(other.memberships_, model.memberships_)


def test_without_workers_there_are_no_spans():
    assert span_of("cns_dask", "points") == {}
    assert dask.get_annotations() == {}
