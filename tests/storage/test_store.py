import gc
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

from cns_dask.errors import DamagedError, DataNotFoundError, NotAResultError
from cns_dask.pipeline import fit
from cns_dask.results.predict import predict_to
from cns_dask.settings import Settings
from cns_dask.storage.layout import FORMAT_VERSION, ArrayPlan, Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.outputs import new_output
from cns_dask.storage.store import ResultStore, ResultWriter, TemporaryFolder, kind_of, open_store, result_files


@pytest.fixture
def writer(tmp_path):
    """The writer of a group that is being filled."""
    root = Location(tmp_path)
    return ResultWriter(root / "r.zarr", root / "scratch.zarr", root / "done")


def test_what_is_not_a_finished_result(tmp_path):
    with pytest.raises(DataNotFoundError, match=r"There is no result at .*none\.zarr: nothing exists there\.$"):
        open_store(tmp_path / "none.zarr", Kind.RESULT)
    zarr.create_group(str(tmp_path / "other.zarr"))
    with pytest.raises(NotAResultError, match=r"other\.zarr is not a finished result of cns_dask, but something else"):
        open_store(tmp_path / "other.zarr", Kind.RESULT)
    with new_output(tmp_path / "p.zarr", Kind.PREDICTION, {}, {}):
        pass
    with pytest.raises(NotAResultError, match=r"p\.zarr is not a finished result of cns_dask, but something else"):
        open_store(tmp_path / "p.zarr", Kind.RESULT)
    assert open_store(tmp_path / "p.zarr", Kind.RESULT, Kind.PREDICTION).location == Location(tmp_path / "p.zarr")


def test_a_result_of_another_version_is_refused_with_both_numbers(tmp_path):
    with new_output(tmp_path / "new.zarr", Kind.RESULT, {}, {}):
        pass
    assert open_store(tmp_path / "new.zarr", Kind.RESULT).attributes["format_version"] == FORMAT_VERSION
    zarr.open_group(str(tmp_path / "new.zarr")).attrs["format_version"] = 99
    with pytest.raises(NotAResultError, match=rf"format version 99, .* reads version {FORMAT_VERSION}\. Fit again"):
        open_store(tmp_path / "new.zarr", Kind.RESULT)


def test_an_unfinished_result_is_told_as_such(tmp_path):
    with pytest.raises(RuntimeError), new_output(tmp_path / "r.zarr", Kind.RESULT, {}, {}):
        raise RuntimeError
    with pytest.raises(DataNotFoundError, match="It is unfinished: run the same command again"):
        open_store(tmp_path / "r.zarr", Kind.RESULT)


@pytest.mark.parametrize("settings", [Settings(method="cells"), Settings(missing="skip", max_components=2)])
def test_the_files_of_a_result_are_known_without_a_listing(tmp_path, blobs, settings):
    rows = blobs.copy()
    rows[7] = np.nan if settings.missing == "skip" else rows[7]
    result = fit(rows, settings, out=tmp_path / "r.zarr")
    predict_to(tmp_path / "p.zarr", result, blobs[:50])
    for path in (tmp_path / "r.zarr", tmp_path / "p.zarr"):
        files = [str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()]
        assert sorted(result_files(Location(path))) == sorted(files)


@pytest.mark.parametrize("kind", list(Kind))
def test_a_finished_group_says_what_it_is(tmp_path, kind):
    with new_output(tmp_path / "r.zarr", kind, {}, {}) as writer:
        assert kind_of(writer.location) is None
    assert kind_of(Location(tmp_path / "r.zarr")) is kind
    assert kind_of(Location(tmp_path)) is None


@pytest.mark.parametrize("name", ["labels", "memberships"])
def test_a_lost_or_changed_chunk_is_an_error_and_never_a_value(tmp_path, writer, name):
    values = np.arange(4000.0).reshape(1000, 4)
    values = values[:, 0].astype(int) if name == "labels" else values
    writer.create(ArrayPlan(name, values.shape, (500, *values.shape[1:])))[...] = values
    np.testing.assert_array_equal(writer.read(name), values)
    chunk = next(path for path in (tmp_path / "r.zarr" / name / "c").rglob("*") if path.is_file())
    content = chunk.read_bytes()
    for damaged in (content[: len(content) // 2], content[:99] + bytes([content[99] ^ 1]) + content[100:], b""):
        chunk.write_bytes(damaged)
        with pytest.raises(DamagedError, match=f"A chunk of /{name} is damaged"):
            writer.read(name)
        with pytest.raises(DamagedError):
            writer.open(name).compute()
    chunk.unlink()
    with pytest.raises(DamagedError, match=f"The chunk {name}/c/0.* of a result is missing"):
        writer.read(name)


def test_arrays_that_are_not_those_of_the_layout(tmp_path, writer):
    group = zarr.open_group(str(tmp_path / "r.zarr"))
    group.create_array("labels", shape=(3, 3), dtype="f8")
    group.create_group("memberships")
    with pytest.raises(
        NotAResultError, match=r"labels has 2 dimension\(s\) of type float64 instead of 1 dimension\(s\) of"
    ):
        writer.read("labels")
    with pytest.raises(NotAResultError, match=r"memberships has no dimensions instead of 2 dimension\(s\)"):
        writer.read("memberships")
    with pytest.raises(DamagedError, match=r"The array points is missing or damaged in .*r\.zarr"):
        writer.read("points")


def test_chunks_of_empty_values_are_written(writer):
    """A chunk that is not there was never written, so one that holds nothing but fill values must be there."""
    writer.put("memberships", np.full((5, 2), np.nan))
    assert np.isnan(writer.read("memberships")).all()


def test_a_temporary_result_pickles_with_its_content_and_is_removed():
    folder = TemporaryFolder()
    writer, store = folder.writer(), folder.store()
    writer.put("labels", np.arange(4))
    writer.describe(a=1)
    copy = pickle.loads(pickle.dumps(store))
    path = Path(store.location)
    del folder, writer, store
    gc.collect()  # zarr leaves a cycle behind when it makes a group
    assert not path.parent.exists()
    assert copy.location != Location(path)
    assert copy.attributes == {"a": 1}
    np.testing.assert_array_equal(copy.read("labels"), np.arange(4))


def test_a_temporary_result_lives_as_long_as_a_lazy_array_of_it():
    folder = TemporaryFolder()
    folder.writer().put("labels", np.arange(4))
    path, labels = Path(folder.location), folder.store().open("labels")
    del folder
    gc.collect()
    assert labels.compute(scheduler="synchronous").tolist() == [0, 1, 2, 3]
    del labels
    gc.collect()
    assert not path.exists()


def test_a_writer_reaches_workers_as_a_reader_of_the_same_location(writer):
    writer.put("labels", [3, 1])
    copy = pickle.loads(pickle.dumps(writer))
    assert type(copy) is ResultStore
    assert copy.location == writer.location
    assert copy.read("labels").tolist() == [3, 1]


def test_what_is_described_is_found(writer):
    writer.describe(settings={"tol": 1e-9}, numbers=[0, 2])
    writer.describe_graph(method="exact")
    writer.describe_graph(recall=None)
    store = ResultStore(writer.location)
    assert store.attributes == {"settings": {"tol": 1e-9}, "numbers": [0, 2]}
    assert store.graph_attributes == {"method": "exact", "recall": None}


def test_a_writer_shows_what_it_has_described_since_it_was_last_asked(writer):
    writer.describe(a=1)
    assert writer.attributes == {"a": 1}
    writer.describe(b=2)
    assert writer.attributes == {"a": 1, "b": 2}


def test_where_rows_were_skipped_the_others_have_a_dimension_of_their_own(tmp_path, writer):
    def dims(name):
        return zarr.open_array(str(tmp_path / "r.zarr" / name)).metadata.dimension_names

    writer.put("points", np.zeros((3, 2)))
    assert dims("points") == ("row", "component")
    writer.put("rows", [0, 2, 3])
    for name in ("absorption", "graph/indices"):
        writer.put(name, np.zeros((3, 2)))
    writer.put("labels", np.zeros(4))
    assert dims("absorption") == ("clustered", "chosen")
    assert dims("graph/indices") == ("clustered", "neighbor")
    assert dims("labels") == ("row",)
    assert "graph/indices" in writer
    assert "graph/distances" not in writer


def scratch(name, size=4, chunk=4, dtype="int64"):
    return ArrayPlan(name, (size,), (chunk,), dtype, scratch=True)


def test_scratch_goes_one_by_one_or_all(tmp_path, writer):
    for name in ("a", "b", "c"):
        writer.create(scratch(name, dtype="uint32"))[:] = 1
    writer.drop_scratch("a")
    assert (tmp_path / "scratch.zarr" / "b").exists()
    assert not (tmp_path / "scratch.zarr" / "a").exists()
    writer.drop_scratch()
    assert [path.name for path in (tmp_path / "scratch.zarr").iterdir()] == ["zarr.json"]


def test_an_array_that_was_begun_is_continued_and_another_is_replaced(writer):
    writer.create(scratch("a", 4, 2))[:2] = [7, 8]
    assert writer.create(scratch("a", 4, 2))[:2].tolist() == [7, 8]
    replaced = writer.create(scratch("a", 6, 2))
    with pytest.raises(DamagedError, match="a/c/0 of a result is missing"):
        replaced[:2]
