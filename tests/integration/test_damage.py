"""Files of an unfinished run are damaged, or its input changes: it is done again, or refused; never silently wrong."""

import json
import shutil

import dask
import numpy as np
import pytest
import small
import zarr

from cns_dask import open_result
from cns_dask.errors import CNSError, DamagedError, OutputError
from cns_dask.pipeline import fit
from cns_dask.progress import LineProgress, Progress
from cns_dask.results.predict import predict
from cns_dask.settings import Settings

CELLS = Settings(method="cells")


class StopError(Exception):
    """The end of a run."""


class Stopper(Progress):
    """Ends a run when a stage begins, or after so many of its pieces."""

    def __init__(self, stage, pieces):
        super().__init__()
        self._stage, self._pieces, self._left = stage, pieces, -1

    def _begin(self, name, total):
        self._left = self._pieces if name == self._stage else -1
        if self._left == 0:
            raise StopError

    def _advance(self):
        self._left -= 1
        if self._left == 0:
            raise StopError


def stopped_at(stage, source, out, pieces=0):
    with pytest.raises(StopError):
        fit(source, CELLS, out=out, progress=Stopper(stage, pieces))
    (work,) = (path for path in (out.parent / f".{out.name}.unfinished").iterdir() if path.is_dir())
    return work


def chunks(folder):
    return sorted(path for path in (folder / "c").rglob("*") if path.is_file())


def cut(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def lose(path):
    path.unlink()


ARRAYS = [
    ("neighbors", "result.zarr/points"),
    ("neighbors", "result.zarr/cells/points"),
    ("candidates", "result.zarr/graph/indices"),
    ("absorption", "result.zarr/graph/distances"),
    ("absorption", "scratch.zarr/walk-8"),
    ("memberships", "result.zarr/absorption"),
]


def one_by_default(cases):
    """All with -m slow, one of three by default."""
    return [
        pytest.param(*case, marks=() if at % 3 == at // 3 % 3 else pytest.mark.slow) for at, case in enumerate(cases)
    ]


@pytest.mark.parametrize(
    ("stage", "array", "damage"), one_by_default([(*at, damage) for at in ARRAYS for damage in (cut, flip, lose)])
)
def test_a_damaged_chunk_is_made_again(stored_rows, undisturbed, small_plan, tmp_path, stage, array, damage):
    work = stopped_at(stage, stored_rows, tmp_path / "r.zarr")
    damage(chunks(work / array)[-1])
    result = fit(stored_rows, CELLS, out=tmp_path / "r.zarr")
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)
    assert not work.parent.exists()


RECORDS = ["points/transform-2.json", "graph.json", "evaluate/choose-16.json", "preprocess.json"]


@pytest.mark.parametrize(
    ("record", "damage"), one_by_default([(record, damage) for record in RECORDS for damage in (cut, flip, lose)])
)
def test_a_lost_or_damaged_record_is_not_believed(stored_rows, undisturbed, small_plan, tmp_path, record, damage):
    work = stopped_at("absorption", stored_rows, tmp_path / "r.zarr")
    damage(work / "done" / record)
    result = fit(stored_rows, CELLS, out=tmp_path / "r.zarr")
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)


def test_a_lost_record_of_a_block_whose_criterion_is_known(stored_rows, undisturbed, small_plan, tmp_path):
    """Its absorption is gone already: all of that k is done again."""
    work = stopped_at("absorption", stored_rows, tmp_path / "r.zarr")
    next((work / "done" / "evaluate").glob("solve-16-*-0.json")).unlink()
    result = fit(stored_rows, CELLS, out=tmp_path / "r.zarr")
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)


@pytest.mark.parametrize("damage", [cut, flip, lose])
@pytest.mark.parametrize(("stage", "array", "pieces"), [("neighbors", "lists-neighbors", 6), ("cells", "sorted", 7)])
def test_damaged_scratch_arrays_are_made_again(
    stored_rows, undisturbed, small_plan, tmp_path, stage, array, pieces, damage
):
    work = stopped_at(stage, stored_rows, tmp_path / "r.zarr", pieces)
    damage(chunks(work / "scratch.zarr" / array)[1])
    result = fit(stored_rows, CELLS, out=tmp_path / "r.zarr")
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)


@pytest.mark.parametrize(
    ("file", "damage"),
    one_by_default(
        [(f"{name}zarr.json", damage) for name in ("absorption/", "", "graph/", "points/") for damage in (cut, lose)]
    ),
)
def test_a_damaged_description_is_made_again(stored_rows, undisturbed, small_plan, tmp_path, file, damage):
    work = stopped_at("memberships", stored_rows, tmp_path / "r.zarr")
    damage(work / "result.zarr" / file)
    result = fit(stored_rows, CELLS, out=tmp_path / "r.zarr")
    labels = result.labels.compute(scheduler="threads")
    np.testing.assert_array_equal(labels, undisturbed)
    assert result.graph.method == "cells"
    assert result.transform.n_features == 5


@pytest.mark.slow
def test_rounds_of_a_search_are_made_again_together(stored_rows, small_plan, tmp_path, monkeypatch):
    """They write to the same lists: what one has left must not be taken for what another wrote."""
    monkeypatch.setattr(
        "cns_dask.neighbors.approximate.CALIBRATED_MISSES", 60
    )  # so little reach that one round is not enough
    whole = fit(stored_rows, CELLS)
    work = stopped_at("candidates", stored_rows, tmp_path / "r.zarr")
    assert (work / "done" / "round-neighbors-2.json").exists()
    flip(chunks(work / "result.zarr/graph/indices")[1])
    result = fit(stored_rows, CELLS, out=tmp_path / "r.zarr")
    for ours, theirs in ((result.graph.indices, whole.graph.indices), (result.labels, whole.labels)):
        np.testing.assert_array_equal(ours.compute(scheduler="threads"), theirs.compute(scheduler="threads"))


def test_all_records_lost(stored_rows, undisturbed, small_plan, tmp_path):
    work = stopped_at("absorption", stored_rows, tmp_path / "r.zarr")
    shutil.rmtree(work / "done")
    result = fit(stored_rows, CELLS, out=tmp_path / "r.zarr")
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)


def test_changed_input_is_refused_with_the_field(stored_rows, small_plan, tmp_path):
    copy = tmp_path / "x.zarr"
    shutil.copytree(stored_rows, copy)
    stopped_at("evaluate", copy, tmp_path / "r.zarr")
    array = zarr.open_array(str(copy))
    array[7, 2] = array[7, 2] + 1
    with pytest.raises(OutputError, match=r"unfinished work .* for .*r\.zarr: the data hold other values"):
        fit(copy, CELLS, out=tmp_path / "r.zarr")
    result = fit(copy, CELLS, out=tmp_path / "r.zarr", overwrite=True)
    array[7, 2] = array[7, 2] - 1
    with pytest.raises(OutputError, match=r"r\.zarr already holds .* settings: the data hold other values"):
        fit(copy, CELLS, out=tmp_path / "r.zarr")
    assert open_result(result.path).n_rows == 4000


def test_other_settings_are_refused_with_the_fields(stored_rows, small_plan, tmp_path):
    stopped_at("evaluate", stored_rows, tmp_path / "r.zarr")
    with pytest.raises(OutputError, match=r"lam was None, now it is 0\.1, tol was 1e-09, now it is 1e-06"):
        fit(stored_rows, Settings(method="cells", lam=0.1, tol=1e-6), out=tmp_path / "r.zarr")


def test_data_in_memory_are_told_apart_too(rows, undisturbed, small_plan, tmp_path):
    told = []
    stopped_at("evaluate", rows, tmp_path / "r.zarr")
    with pytest.raises(OutputError, match="the data hold other values"):
        fit(rows + 1e-12, CELLS, out=tmp_path / "r.zarr")
    result = fit(rows.copy(), CELLS, out=tmp_path / "r.zarr", progress=LineProgress(told.append))
    assert "graph: all done by an earlier run" in told
    np.testing.assert_array_equal(result.labels.compute(scheduler="threads"), undisturbed)


@pytest.fixture(scope="module")
def whole(stored_rows, tmp_path_factory):
    """A finished result."""
    out = tmp_path_factory.mktemp("whole") / "r.zarr"
    with dask.config.set({"cns_dask.sizes": small.SIZES}):
        fit(stored_rows, Settings(n_neighbors=8, lam=0.05), out=out)
    return out


@pytest.mark.parametrize("damage", [cut, flip, lose])
@pytest.mark.parametrize("name", ["labels", "memberships", "absorption", "graph/indices", "points"])
def test_a_damaged_result_is_an_error(whole, stored_rows, tmp_path, name, damage):
    shutil.copytree(whole, tmp_path / "r.zarr")
    result = open_result(tmp_path / "r.zarr")
    damage(chunks(tmp_path / "r.zarr" / name)[0])
    opened = {
        "labels": lambda: result.labels,
        "memberships": lambda: result.memberships,
        "absorption": lambda: predict(result, stored_rows).labels,
        "graph/indices": lambda: result.graph.indices,
        "points": lambda: result.points,
    }[name]
    with pytest.raises(DamagedError):
        opened().compute(scheduler="synchronous")


@pytest.fixture(scope="module")
def whole_by_cells(stored_rows, tmp_path_factory):
    """A finished result whose rows are searched in cells."""
    out = tmp_path_factory.mktemp("whole") / "cells.zarr"
    with dask.config.set({"cns_dask.sizes": small.SIZES}):
        fit(stored_rows, Settings(n_neighbors=8, lam=0.05, method="cells"), out=out)
    return out


def zero_half(path):
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))


@pytest.mark.parametrize("damage", [cut, flip, lose, zero_half])
@pytest.mark.parametrize("name", ["points", "rows", "centers", "starts", "offset"])
def test_new_rows_are_never_searched_in_damaged_cells(whole_by_cells, rows, tmp_path, name, damage):
    shutil.copytree(whole_by_cells, tmp_path / "r.zarr")
    result = open_result(tmp_path / "r.zarr")
    damage(chunks(tmp_path / "r.zarr" / "cells" / name)[-1])
    with pytest.raises(DamagedError):
        predict(result, rows).labels.compute(scheduler="synchronous")


@pytest.mark.parametrize("damage", [cut, flip, lose])
@pytest.mark.parametrize("name", ["graph/indices", "at/*/absorption"])
def test_another_number_of_clusters_is_never_made_from_damaged_arrays(whole, tmp_path, name, damage):
    shutil.copytree(whole, tmp_path / "r.zarr")
    result = open_result(tmp_path / "r.zarr")
    if name.startswith("at"):
        result.at(2)
    (folder,) = (tmp_path / "r.zarr").glob(name)
    damage(chunks(folder)[0])
    with dask.config.set(scheduler="synchronous"), pytest.raises(DamagedError):
        open_result(tmp_path / "r.zarr").at(2).labels.compute()


HOSTILE = "\x1b]0;owned\x07<script>alert(1)</script>../../../etc/passwd"


@pytest.mark.parametrize(
    "at",
    [
        "choice",
        "selection",
        "verdict",
        "settings",
        "versions",
        "fingerprint",
        "seconds",
        "started",
        "graph",
        "format_version",
        "memory",
        "transform",
    ],
)
def test_a_hostile_store_reaches_neither_terminal_nor_page(whole, tmp_path, at, capsys):
    """Whatever a store says of itself: it is refused, or shown as harmless text."""
    from cns_dask.cli.show import print_result
    from cns_dask.results.report import write_report

    shutil.copytree(whole, tmp_path / "r.zarr")
    file = tmp_path / "r.zarr" / ("graph/zarr.json" if at == "graph" else "zarr.json")
    known = json.loads(file.read_text())
    there = known["attributes"]
    if at == "graph":
        there |= {"method": HOSTILE, "recall": [{"n_neighbors": HOSTILE}]}
    elif isinstance(there[at], dict):
        there[at] = {HOSTILE: HOSTILE, **dict.fromkeys(there[at], HOSTILE)}
    else:
        there[at] = HOSTILE
    file.write_text(json.dumps(known))
    try:
        result = open_result(tmp_path / "r.zarr")
        print_result(result)
        write_report(result, tmp_path / "r.html")
    except CNSError:
        pass
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err
    if (tmp_path / "r.html").exists():
        page = (tmp_path / "r.html").read_text(encoding="utf-8")
        assert page.count("<script") == 2  # its own
        assert HOSTILE not in page
    assert {path.name for path in tmp_path.iterdir()} <= {"r.zarr", "r.html"}
