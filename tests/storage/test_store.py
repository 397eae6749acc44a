import gc
import pickle
from pathlib import Path

import numpy as np
import pytest
import zarr

from cns_dask.errors import DamagedError, DataNotFoundError, NotAResultError
from cns_dask.storage.layout import LAYOUT, Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.outputs import new_output
from cns_dask.storage.store import ResultStore, TemporaryStore, open_store


def temporary(folder):
    """A store in which work goes on."""
    root = Location(folder)
    store = ResultStore(root / "r.zarr", root / "scratch.zarr", root / "done")
    store.begin()
    return store


def test_what_is_not_a_finished_result(tmp_path):
    with pytest.raises(DataNotFoundError, match="does not exist"):
        open_store(tmp_path / "none.zarr")
    zarr.create_group(str(tmp_path / "other.zarr"))
    with pytest.raises(NotAResultError, match="something else"):
        open_store(tmp_path / "other.zarr")
    with new_output(tmp_path / "p.zarr", Kind.PREDICTION, {}, {}):
        pass
    with pytest.raises(NotAResultError, match="something else"):
        open_store(tmp_path / "p.zarr")
    with new_output(tmp_path / "new.zarr", Kind.RESULT, {}, {}) as store:
        pass
    store.describe(format_version=99)
    with pytest.raises(NotAResultError, match=r"format version 3\. Got 99"):
        open_store(tmp_path / "new.zarr")


def test_an_unfinished_result_is_told_as_such(tmp_path):
    with pytest.raises(RuntimeError), new_output(tmp_path / "r.zarr", Kind.RESULT, {}, {}):
        raise RuntimeError
    with pytest.raises(DataNotFoundError, match="It is unfinished: run the same command again"):
        open_store(tmp_path / "r.zarr")


@pytest.mark.parametrize("name", ["labels", "memberships"])
def test_a_lost_or_changed_chunk_is_an_error_and_never_a_value(tmp_path, name):
    store = temporary(tmp_path)
    values = np.arange(4000.0).reshape(1000, 4)
    values = values[:, 0].astype(int) if name == "labels" else values
    store.create(name, values.shape, (500, *values.shape[1:]))[...] = values
    np.testing.assert_array_equal(store.read(name), values)
    chunk = next(path for path in (tmp_path / "r.zarr" / name / "c").rglob("*") if path.is_file())
    content = chunk.read_bytes()
    for damaged in (content[: len(content) // 2], content[:99] + bytes([content[99] ^ 1]) + content[100:], b""):
        chunk.write_bytes(damaged)
        with pytest.raises(DamagedError, match=f"chunk of /{name} must be as it was written"):
            store.read(name)
        with pytest.raises(DamagedError):
            store.open(name).compute()
    chunk.unlink()
    with pytest.raises(DamagedError, match=f"Got none for {name}/c/0"):
        store.read(name)


def test_a_truncated_chunk_is_not_mapped(tmp_path):
    store = temporary(tmp_path)
    array = store.scratch("x", (100, 3), (50, 3), "float32")
    array[...] = 1
    base = array[:50]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    chunk = tmp_path / "scratch.zarr" / "x" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:100])
    with pytest.raises(DamagedError):
        array[:10]


def test_arrays_that_are_not_those_of_the_layout(tmp_path):
    store = temporary(tmp_path)
    group = zarr.open_group(str(tmp_path / "r.zarr"))
    group.create_array("labels", shape=(3, 3), dtype="f8")
    group.create_group("memberships")
    for name in ("labels", "memberships"):
        with pytest.raises(NotAResultError, match=f"The array {name} must have"):
            store.read(name)
    with pytest.raises(DamagedError, match="must hold the array points"):
        store.read("points")


def test_chunks_of_empty_values_are_written(tmp_path):
    """A chunk that is not there was never written, so one that holds nothing but fill values must be there."""
    store = temporary(tmp_path)
    store.put("memberships", np.full((5, 2), np.nan))
    assert np.isnan(store.read("memberships")).all()


def test_a_temporary_result_pickles_with_its_content_and_is_removed():
    store = TemporaryStore()
    store.put("labels", np.arange(4))
    store.describe(a=1)
    copy = pickle.loads(pickle.dumps(store))
    path = store.path
    del store
    gc.collect()  # zarr leaves a cycle behind when it makes a group
    assert not Path(path).parent.exists()
    assert copy.path != path
    assert copy.attributes == {"a": 1}
    np.testing.assert_array_equal(copy.read("labels"), np.arange(4))


def test_every_array_names_its_dimensions_and_meaning():
    for spec in LAYOUT.values():
        assert spec.dims
        assert spec.meaning


def test_scratch_goes_one_by_one_or_all(tmp_path):
    store = temporary(tmp_path)
    for name in ("a", "b", "c"):
        store.scratch(name, (4,), (4,), "uint32")[:] = 1
    store.drop_scratch("a")
    assert (tmp_path / "scratch.zarr" / "b").exists()
    assert not (tmp_path / "scratch.zarr" / "a").exists()
    store.drop_scratch()
    assert [path.name for path in (tmp_path / "scratch.zarr").iterdir()] == ["zarr.json"]


def test_an_array_that_was_begun_is_continued_and_another_is_replaced(tmp_path):
    store = temporary(tmp_path)
    store.scratch("a", (4,), (2,), "int64")[:2] = [7, 8]
    assert store.scratch("a", (4,), (2,), "int64")[:2].tolist() == [7, 8]
    store.scratch("a", (6,), (2,), "int64")
    with pytest.raises(DamagedError):
        store.array("scratch/a")[:2]
