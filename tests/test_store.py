import pickle
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.errors import DataNotFoundError, NotAResultError, OutputError
from cns_dask.store import (
    LAYOUT,
    PREDICTION,
    RESULT,
    ResultStore,
    StoredArray,
    TemporaryStore,
    check_output,
    check_space,
    new_result,
    open_store,
    write_tasks,
)


def written(path, **options):
    with new_result(path, RESULT, **options) as store:
        store.put("labels", np.arange(5))
    return store


def test_a_result_appears_whole_or_not_at_all(tmp_path):
    out = tmp_path / "r.zarr"
    with pytest.raises(RuntimeError, match="boom"), new_result(out, RESULT) as store:
        store.put("labels", np.arange(5))
        raise RuntimeError("boom")
    assert list(tmp_path.iterdir()) == []
    store = written(out)
    assert store.path == out
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"]
    np.testing.assert_array_equal(open_store(out).read("labels"), np.arange(5))


def test_an_existing_result_survives_until_the_new_one_is_complete(tmp_path):
    out = tmp_path / "r.zarr"
    written(out)
    with pytest.raises(OutputError, match=r"must not exist\. Got .*r\.zarr"):
        written(out)
    with pytest.raises(RuntimeError), new_result(out, RESULT, overwrite=True):
        raise RuntimeError
    np.testing.assert_array_equal(open_store(out).read("labels"), np.arange(5))
    with new_result(out, RESULT, overwrite=True) as store:
        store.put("labels", np.zeros(2))
    assert open_store(out).read("labels").tolist() == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"]


def test_what_appears_at_the_output_during_the_work_is_kept(tmp_path):
    out = tmp_path / "r.zarr"
    with pytest.raises(OutputError, match="must not exist"), new_result(out, RESULT):
        out.mkdir()
        (out / "file").write_text("keep")
    assert (out / "file").read_text() == "keep"


def test_the_old_result_comes_back_when_the_new_one_cannot_be_moved(tmp_path, monkeypatch):
    out = tmp_path / "r.zarr"
    written(out)
    rename = Path.rename

    def fail(self, target):
        if self.name == "result.zarr":
            raise OSError("no space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        written(out, overwrite=True)
    np.testing.assert_array_equal(open_store(out).read("labels"), np.arange(5))


def test_a_full_disk_is_refused_with_both_numbers(tmp_path):
    with pytest.raises(OutputError, match=r"must have at least 953674316 MiB free\. Got \d+ MiB"):
        check_space(tmp_path, 10**15)


def test_a_link_is_followed(tmp_path):
    written(tmp_path / "real.zarr")
    (tmp_path / "link.zarr").symlink_to(tmp_path / "real.zarr")
    written(tmp_path / "link.zarr", overwrite=True)
    assert (tmp_path / "link.zarr").is_symlink()
    assert open_store(tmp_path / "real.zarr").read("labels").tolist() == [0, 1, 2, 3, 4]
    for name, message in (("x" * 300, "must be a path of this system"), ("x" * 250, "must be writable")):
        with pytest.raises(OutputError, match=message):
            written(tmp_path / name)


def test_a_prediction_never_replaces_a_result(tmp_path):
    written(tmp_path / "r.zarr")
    with pytest.raises(OutputError, match="Only a prediction of cns_dask is overwritten by one"):
        check_output(tmp_path / "r.zarr", PREDICTION, overwrite=True)


def test_a_lost_chunk_does_not_look_like_a_value(tmp_path):
    store = written(tmp_path / "r.zarr")
    (tmp_path / "r.zarr" / "labels" / "c" / "0").unlink()
    assert store.read("labels").tolist() == [-1] * 5


def test_only_our_own_results_are_overwritten(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    zarr.create_array(str(tmp_path / "data.zarr"), shape=(3,), dtype="f8")
    for name in ("precious", "data.zarr"):
        with pytest.raises(OutputError, match="Only a result of cns_dask is overwritten by one"):
            check_output(tmp_path / name, RESULT, overwrite=True)


def test_outputs_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"folder of the output must exist\. Got .*missing"):
        check_output(tmp_path / "missing" / "r.zarr", RESULT)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="must exist"):
        check_output(tmp_path / "file" / "r.zarr", RESULT)
    with pytest.raises(OutputError, match="local or shared disk"):
        check_output("s3://bucket/r.zarr", RESULT)


def test_a_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(OutputError, match="must be writable"):
        check_output(tmp_path / "r.zarr", RESULT)


def test_what_is_not_a_finished_result(tmp_path):
    with pytest.raises(DataNotFoundError, match="does not exist"):
        open_store(tmp_path / "none.zarr")
    zarr.create_group(str(tmp_path / "other.zarr"))
    with pytest.raises(NotAResultError, match="something else"):
        open_store(tmp_path / "other.zarr")
    with new_result(tmp_path / "p.zarr", PREDICTION):
        pass
    with pytest.raises(NotAResultError, match="something else"):
        open_store(tmp_path / "p.zarr")
    with new_result(tmp_path / "new.zarr", RESULT) as store:
        pass
    store.describe(format_version=99)
    with pytest.raises(NotAResultError, match=r"format version 2\. Got 99"):
        open_store(tmp_path / "new.zarr")


def test_misaligned_chunks_are_refused_and_aligned_ones_written_whole(tmp_path):
    target = StoredArray(zarr.create_array(str(tmp_path / "t.zarr"), shape=(10, 3), chunks=(4, 3), dtype="f8"))
    values = da.arange(30).reshape(10, 3)
    with pytest.raises(ValueError, match=r"multiples of 4 to be written whole\. Got \(3, 3, 3, 1\)"):
        write_tasks(values.rechunk((3, 3)), target)
    with pytest.raises(ValueError, match="Shapes must be equal"):
        write_tasks(values[:5], target)
    dask.compute(*write_tasks(values.rechunk((8, 3)), target))
    np.testing.assert_array_equal(target[...], np.arange(30).reshape(10, 3))


def test_a_temporary_result_pickles_with_its_content_and_is_removed():
    store = TemporaryStore()
    store.put("labels", np.arange(4))
    store.describe(a=1)
    copy = pickle.loads(pickle.dumps(store))
    path = store.path
    del store
    assert not path.parent.exists()
    assert copy.path != path
    assert copy.attributes == {"a": 1}
    np.testing.assert_array_equal(copy.read("labels"), np.arange(4))


def test_every_array_names_its_dimensions_and_meaning():
    for spec in LAYOUT.values():
        assert spec.dims
        assert spec.meaning


@given(data=st.data())
def test_any_region_of_plain_chunks_is_mapped_as_zarr_reads_it(tmp_path_factory, data):
    store = ResultStore(tmp_path_factory.mktemp("mapped") / "r.zarr")
    zarr.create_group(str(store.path))
    shape, chunks = (3, 10, 23), (3, 4, 7)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array = store.scratch("x", shape, chunks, "float32")
    array[:] = values

    def part(size):
        start = data.draw(st.integers(-size, size - 1))
        return data.draw(st.sampled_from([start, slice(None), slice(start, None), slice(abs(start) // 2, abs(start))]))

    selection = tuple(part(size) for size in shape[: data.draw(st.integers(1, 3))])
    np.testing.assert_array_equal(array[selection], values[selection])
    np.testing.assert_array_equal(array[::2], values[::2])  # not plain: read by zarr


def test_one_array_of_the_scratch_goes_and_the_others_stay(tmp_path):
    store = ResultStore(tmp_path / "r.zarr")
    zarr.create_group(str(store.path))
    for name in ("a", "b"):
        store.scratch(name, (4,), (4,), "uint32")[:] = 1
    store.drop_scratch("a")
    assert "scratch/a" not in store
    assert "scratch/b" in store
    store.drop_scratch()
    assert "scratch" not in store
