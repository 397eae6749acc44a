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
