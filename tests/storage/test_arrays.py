import pickle

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.errors import InvalidDataError
from cns_dask.storage.arrays import aligned_regions, create_array, open_array, write_blocks
from cns_dask.storage.locations import Location


def group_at(folder):
    return Location(folder / "g.zarr")


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
    with pytest.raises(ValueError, match=r"multiples of 4 to be written whole\. Got \(3, 3, 3, 1\)"):
        aligned_regions(values.rechunk((3, 3)), target)
    with pytest.raises(ValueError, match="Shapes must be equal"):
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
    with pytest.raises(InvalidDataError, match="pickled objects|does not open as one"):
        open_array(str(path)).compute()
    assert not mark.exists()
