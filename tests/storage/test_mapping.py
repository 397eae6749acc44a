"""Chunks that are mapped as they lie in their files."""

import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.errors import DamagedError
from cns_dask.storage.arrays import create_array
from cns_dask.storage.locations import Location
from cns_dask.storage.mapping import mapped_chunks


def group_at(folder):
    return Location(folder / "g.zarr")


@pytest.fixture
def numbers(tmp_path):
    """0, 1, ..., 9 in chunks of four, as they are in their files."""
    array = create_array(group_at(tmp_path), "x", (10,), (4,), "int64", compressed=False)
    array[:] = np.arange(10)
    return array


@given(data=st.data())
def test_any_region_of_plain_chunks_is_mapped_as_zarr_reads_it(tmp_path_factory, data):
    group = group_at(tmp_path_factory.mktemp("mapped"))
    shape, chunks = (3, 10, 23), (3, 4, 7)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array = create_array(group, "x", shape, chunks, "float32", compressed=False)
    array[:] = values

    def part(size):
        start = data.draw(st.integers(-size, size - 1))
        return data.draw(st.sampled_from([start, slice(None), slice(start, None), slice(abs(start) // 2, abs(start))]))

    selection = tuple(part(size) for size in shape[: data.draw(st.integers(1, 3))])
    np.testing.assert_array_equal(array[selection], values[selection])
    np.testing.assert_array_equal(array[::2], values[::2])  # not plain: read by zarr


def test_a_truncated_chunk_is_not_mapped(tmp_path):
    array = create_array(group_at(tmp_path), "x", (100, 3), (50, 3), "float32", compressed=False)
    array[...] = 1
    base = array[:50]
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base, np.memmap)
    chunk = tmp_path / "g.zarr" / "x" / "c" / "0" / "0"
    chunk.write_bytes(chunk.read_bytes()[:100])
    with pytest.raises(DamagedError, match=r"A chunk of /x is damaged"):
        array[:10]


def test_a_mapped_chunk_is_checked_once_and_again_when_it_changes(tmp_path, numbers, monkeypatch):
    checked, checksum = [], google_crc32c.value
    monkeypatch.setattr(google_crc32c, "value", lambda content: checked.append(1) or checksum(content))
    for _ in range(3):
        assert numbers[:4].tolist() == [0, 1, 2, 3]
    assert len(checked) == 1
    chunk = tmp_path / "g.zarr" / "x" / "c" / "0"
    content = bytearray(chunk.read_bytes())
    content[8] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(DamagedError, match=r"A chunk of /x is damaged \(its checksum does not fit\)"):
        numbers[:4]


def test_only_chunks_that_lie_as_they_are_in_memory_are_mapped(tmp_path, numbers):
    assert mapped_chunks(numbers._array) is not None
    packed = create_array(group_at(tmp_path), "y", (10,), (4,), "int64", compressed=True)
    assert mapped_chunks(packed._array) is None


@pytest.mark.parametrize("selection", [..., (slice(None), slice(4, 8)), (slice(0, 3), slice(8, 10), slice(14, None))])
def test_whole_chunks_are_written_as_zarr_would(tmp_path, selection):
    """Edges of the array too; zarr itself reads them, with their checksums."""
    array = create_array(group_at(tmp_path), "x", (3, 10, 23), (3, 4, 7), "float32", compressed=False)
    array._array[...] = expected = np.ones((3, 10, 23), np.float32)
    expected[selection] = values = np.random.default_rng(0).random(expected[selection].shape)
    assert array._mapped.write(selection, values)
    np.testing.assert_array_equal(array._array[...], expected)
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize("selection", [0, slice(1, 4), (slice(None), slice(0, 5)), (slice(None), [0, 1])])
def test_parts_of_chunks_are_left_to_zarr(tmp_path, selection):
    array = create_array(group_at(tmp_path), "x", (3, 10), (3, 4), "float32", compressed=False)
    array[...] = expected = np.zeros((3, 10), np.float32)
    assert not array._mapped.write(selection, expected[selection] + 1)
    array[selection] = expected[selection] = expected[selection] + 1
    np.testing.assert_array_equal(array._array[...], expected)


def test_a_chunk_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    array = create_array(group_at(tmp_path), "x", (4, 4), (2, 4), "float32", compressed=False)
    array[...] = np.ones((4, 4))
    monkeypatch.setattr("pathlib.Path.replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    assert not array._mapped.write(..., np.zeros((4, 4)))
    monkeypatch.undo()
    assert not list(tmp_path.rglob("*.partial"))
    np.testing.assert_array_equal(array[...], np.ones((4, 4)))
