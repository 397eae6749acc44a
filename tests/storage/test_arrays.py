import pickle
import subprocess
import sys
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
import zarr

from cns_dask.errors import DamagedError, InvalidDataError
from cns_dask.storage.arrays import (
    COMPRESSED_CODECS,
    aligned_regions,
    attributes_of,
    create_array,
    is_array_at,
    is_in_memory,
    open_array,
    open_input_array,
    require_group,
    write_blocks,
)
from cns_dask.storage.locations import Location


def group_at(folder):
    return Location(folder / "g.zarr")


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<i8", ">i2", "|u1", "|b1", "<f2"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_arrays_of_others_are_read_as_they_are(tmp_path, dtype, zarr_format):
    """Uncompressed ones too: they may lie otherwise in their files than ours."""
    values = np.arange(60).reshape(12, 5).astype(dtype)
    array = zarr.create_array(
        str(tmp_path / "x.zarr"), shape=(12, 5), chunks=(5, 2), dtype=dtype, compressors=None, zarr_format=zarr_format
    )
    array[...] = values
    np.testing.assert_array_equal(open_array(str(tmp_path / "x.zarr")).compute(scheduler="synchronous"), values)


def test_misaligned_chunks_are_refused_and_aligned_ones_written_whole(tmp_path):
    target = create_array(group_at(tmp_path), "x", (10, 3), (4, 3), "float64", compressed=True)
    values = da.arange(30).reshape(10, 3)
    with pytest.raises(ValueError, match=r"Chunks of \(3, 3, 3, 1\) do not fill whole chunks of 4: two tasks would"):
        aligned_regions(values.rechunk((3, 3)), target)
    with pytest.raises(ValueError, match=r"shape \(5, 3\) does not fit into one of shape \(10, 3\)"):
        aligned_regions(values[:5], target)
    whole = values.rechunk((8, 3))
    for block, region in zip(whole.blocks, aligned_regions(whole, target), strict=True):
        write_blocks([block.compute()], [target], [region])
    np.testing.assert_array_equal(target[...], np.arange(30).reshape(10, 3))


class Harm:
    """What runs when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return (open, (self.file, "w"))


@pytest.mark.parametrize("where", ["filters", "compressor"])
def test_chunks_that_are_pickles_are_never_read(tmp_path, where):
    path, mark = tmp_path / "x.zarr", tmp_path / "harmed"
    array = zarr.create_array(str(path), shape=(4, 2), chunks=(4, 2), dtype="f8", zarr_format=2, compressors=None)
    array[...] = 1
    known = (
        (path / ".zarray").read_text().replace(f'"{where}": null', f'"{where}": [{{"id": "pickle", "protocol": 5}}]')
    )
    (path / ".zarray").write_text(known if where == "filters" else known.replace("[{", "{").replace("}]", "}"))
    (path / "0.0").write_bytes(pickle.dumps(Harm(str(mark))))
    assert "pickle" in (path / ".zarray").read_text()
    with pytest.raises(InvalidDataError, match="holds pickled objects|does not open as a Zarr array"):
        open_array(str(path)).compute()
    assert not mark.exists()


@pytest.mark.parametrize("metadata", [{"filters": [{"id": "pickle"}]}, {"codecs": ({"name": "numcodecs.pickle"},)}])
def test_an_opened_array_of_pickles_is_refused_before_it_is_read(metadata):
    array = SimpleNamespace(metadata=SimpleNamespace(to_dict=lambda: {"shape": [4], **metadata}))
    with pytest.raises(InvalidDataError, match="x.zarr holds pickled objects: only plain numbers are read"):
        open_input_array(array, "x.zarr")


@pytest.fixture
def numbers(tmp_path):
    """0, 1, ..., 9 in chunks of four, as they are in their files."""
    array = create_array(group_at(tmp_path), "x", (10,), (4,), "int64", compressed=False)
    array[:] = np.arange(10)
    return array


def test_damage_is_found_chunk_by_chunk(tmp_path, numbers):
    regions = numbers.regions()
    assert regions == [(slice(0, 4),), (slice(4, 8),), (slice(8, 10),)]
    files = tmp_path / "g.zarr" / "x" / "c"
    content = (files / "1").read_bytes()
    (files / "1").write_bytes(bytes([content[0] ^ 1]) + content[1:])
    (files / "2").unlink()
    assert [numbers.is_undamaged(region) for region in regions] == [True, False, False]
    assert not numbers.is_undamaged((slice(0, 10),))


def test_what_is_read_may_be_changed_and_the_file_stays(numbers):
    part = numbers[2:4]
    part += 100
    assert part.tolist() == [102, 103]
    assert numbers[:].tolist() == list(range(10))


def test_an_array_travels_to_another_process_and_reads_the_same_file(numbers):
    copy = pickle.loads(pickle.dumps(numbers))
    numbers[0:4] = [7, 7, 7, 7]
    assert copy[3:5].tolist() == [7, 4]
    lazy = copy.lazy()
    assert lazy.chunks == ((4, 4, 2),)
    assert copy.lazy((5,)).chunks == ((5, 5),)
    assert int(lazy.sum().compute(scheduler="synchronous")) == 28 + sum(range(4, 10))


def test_an_array_that_was_made_just_so_is_opened_and_another_is_made_anew(tmp_path, numbers):
    group = group_at(tmp_path)
    assert create_array(group, "x", (10,), (4,), "int64", compressed=False)[:].tolist() == list(range(10))
    (tmp_path / "g.zarr" / "x" / "zarr.json").write_text("{")
    anew = create_array(group, "x", (10,), (4,), "int64", compressed=False)
    with pytest.raises(DamagedError, match="x/c/0 of a result is missing"):
        anew[:4]


def test_a_group_whose_description_is_broken_is_described_again_and_keeps_its_arrays(tmp_path, numbers):
    (tmp_path / "g.zarr" / "zarr.json").write_text("{")
    require_group(group_at(tmp_path))
    assert zarr.open_group(str(tmp_path / "g.zarr"), mode="r")["x"][:].tolist() == list(range(10))


@pytest.mark.parametrize("codecs", [COMPRESSED_CODECS, None], ids=["compressed", "plain"])
def test_a_damaged_chunk_of_the_callers_data_is_an_error_in_the_data(tmp_path, codecs):
    array = zarr.create_array(str(tmp_path / "x.zarr"), shape=(4,), chunks=(4,), dtype="f8", compressors=codecs)
    array[...] = 1
    chunk = tmp_path / "x.zarr" / "c" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-1])
    with pytest.raises(InvalidDataError, match=r"A chunk of the data cannot be read \(.*\)\. Write it again"):
        open_array(str(tmp_path / "x.zarr")).compute(scheduler="synchronous")


def test_what_does_not_open_as_an_array_names_those_that_do(tmp_path):
    group = zarr.open_group(str(tmp_path / "g.zarr"))
    group.create_array("a/b", shape=(3,), dtype="f8")
    with pytest.raises(InvalidDataError, match=r"g\.zarr does not open as a Zarr array .*it has a/b\."):
        open_array(str(tmp_path / "g.zarr"))
    with pytest.raises(InvalidDataError, match=r"g\.zarr with component c does not open .*it has a/b\."):
        open_array(str(tmp_path / "g.zarr"), "c")
    with pytest.raises(InvalidDataError, match=r"none\.zarr does not open as a Zarr array"):
        open_array(str(tmp_path / "none.zarr"))
    assert open_array(str(tmp_path / "g.zarr"), "a/b").shape == (3,)


@pytest.mark.parametrize(("width", "rows"), [(100, 700), (101, 1024)])
def test_wide_rows_are_read_in_the_chunks_in_which_they_are_used(tmp_path, width, rows):
    zarr.create_array(str(tmp_path / "x.zarr"), shape=(5000, width), chunks=(700, 10), dtype="f4")
    expected = (rows, width if width > 100 else 10)
    assert open_array(str(tmp_path / "x.zarr")).chunksize == expected


def test_shards_are_read_whole(tmp_path):
    zarr.create_array(str(tmp_path / "x.zarr"), shape=(20, 2), chunks=(5, 2), shards=(10, 2), dtype="f4")
    assert open_array(str(tmp_path / "x.zarr")).chunks == ((10, 10), (2,))


def test_arrays_groups_and_what_is_neither_are_told_apart(tmp_path):
    zarr.create_array(str(tmp_path / "x.zarr"), shape=(3,), dtype="f8")
    zarr.create_group(str(tmp_path / "g.zarr"), attributes={"a": 1})
    (tmp_path / "empty").mkdir()
    names = ("x.zarr", "g.zarr", "empty", "none")
    assert [is_array_at(str(tmp_path / name)) for name in names] == [True, False, False, False]
    assert [attributes_of(str(tmp_path / name)) for name in names] == [{}, {"a": 1}, {}, {}]
    assert is_in_memory(zarr.create_array(zarr.storage.MemoryStore(), shape=(3,), dtype="f8"))
    assert not is_in_memory(zarr.open_array(str(tmp_path / "x.zarr")))


@pytest.mark.slow
def test_python_without_asserts_is_refused_at_once():
    """Zarr reads the description of a group inside asserts."""
    code = "from cns_dask import CNS"
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "UnsupportedPythonError: cns_dask does not run with python -O" in done.stderr
    line = [sys.executable, "-O", "-c", "from cns_dask.cli import main; main()", "show", "r.zarr"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("cns-dask: cns_dask does not run with python -O")
    assert len(done.stderr.splitlines()) == 1
