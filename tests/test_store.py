import pickle

import dask
import dask.array as da
import numpy as np
import pytest
import zarr

from cns_dask.errors import DataNotFoundError, NotAResultError, OutputError
from cns_dask.store import (
    LAYOUT,
    PREDICTION,
    RESULT,
    TemporaryStore,
    check_output,
    finish,
    new_result,
    open_store,
    write_tasks,
)


def written(path, **options):
    with new_result(path, **options) as store:
        store.put("labels", np.arange(5))
        finish(store, RESULT)
    return store


def test_a_result_appears_whole_or_not_at_all(tmp_path):
    out = tmp_path / "r.zarr"
    with pytest.raises(RuntimeError, match="boom"), new_result(out) as store:
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
    with pytest.raises(RuntimeError), new_result(out, overwrite=True):
        raise RuntimeError
    np.testing.assert_array_equal(open_store(out).read("labels"), np.arange(5))
    with new_result(out, overwrite=True) as store:
        store.put("labels", np.zeros(2))
        finish(store, RESULT)
    assert open_store(out).read("labels").tolist() == [0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"]


def test_only_our_own_results_are_overwritten(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    zarr.create_array(str(tmp_path / "data.zarr"), shape=(3,), dtype="f8")
    for name in ("precious", "data.zarr"):
        with pytest.raises(OutputError, match="Only a result of cns_dask is overwritten"):
            check_output(tmp_path / name, overwrite=True)


def test_outputs_that_cannot_be_written(tmp_path):
    with pytest.raises(OutputError, match=r"folder of the output must exist\. Got .*missing"):
        check_output(tmp_path / "missing" / "r.zarr")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="must exist"):
        check_output(tmp_path / "file" / "r.zarr")
    with pytest.raises(OutputError, match="local or shared disk"):
        check_output("s3://bucket/r.zarr")


def test_a_folder_without_permission(tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(OutputError, match="must be writable"):
        check_output(tmp_path / "r.zarr")


def test_what_is_not_a_finished_result(tmp_path):
    with pytest.raises(DataNotFoundError, match="does not exist"):
        open_store(tmp_path / "none.zarr")
    zarr.create_group(str(tmp_path / "other.zarr"))
    with pytest.raises(NotAResultError, match="something else"):
        open_store(tmp_path / "other.zarr")
    with new_result(tmp_path / "p.zarr") as store:
        finish(store, PREDICTION)
    with pytest.raises(NotAResultError, match="something else"):
        open_store(tmp_path / "p.zarr")
    with new_result(tmp_path / "new.zarr") as store:
        finish(store, RESULT)
        store.describe(format_version=99)
    with pytest.raises(NotAResultError, match=r"format version 1\. Got 99"):
        open_store(tmp_path / "new.zarr")


def test_misaligned_chunks_are_refused_and_aligned_ones_written_whole(tmp_path):
    target = zarr.create_array(str(tmp_path / "t.zarr"), shape=(10, 3), chunks=(4, 3), dtype="f8")
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
