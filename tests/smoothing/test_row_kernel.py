"""The sum over one row's neighbours, against the same sum in NumPy."""

import numba
import numpy as np
import pytest

from cns_dask.smoothing.passes import aligned_zeros
from cns_dask.smoothing.row_kernel import smooth_row


@numba.njit
def smooth_rows(neighbors, block, previous, out, peaks, rows, numbers, lanes):
    for row in rows:
        smooth_row(neighbors, block, previous, out, peaks, row, 0, numbers[0], numbers[1], numbers[2], lanes)


def blocks_of(n_rows, width, dtype, count=2, seed=0):
    blocks = aligned_zeros((count, n_rows, width), dtype)
    blocks[:] = np.random.default_rng(seed).standard_normal(blocks.shape)
    return blocks


def in_pairs(neighbors, block):
    """The sum over the neighbours as the kernel adds: an odd one first, then pair by pair."""
    odd = neighbors.shape[1] % 2
    total = block[neighbors[:, 0]] if odd else np.zeros_like(block)
    for at in range(odd, neighbors.shape[1], 2):
        total = total + (block[neighbors[:, at]] + block[neighbors[:, at + 1]])
    return total


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("width", "k"), [(16, 7), (16, 8), (4, 1), (1, 2)])
def test_a_row_is_the_weighted_sum_in_a_fixed_order_of_additions(dtype, width, k):
    """To the last bit, in columns of any block: no operation is fused or reordered."""
    block, previous = blocks_of(50, width, dtype)
    neighbors = np.random.default_rng(1).integers(50, size=(50, k)).astype(np.uint32)
    out, peaks = aligned_zeros((50, width), dtype), np.zeros((2, width), dtype)
    mean, own, keep = numbers = tuple(dtype(number) for number in (0.3, -0.7, 0.1))
    smooth_rows(neighbors, block, previous, out, peaks, np.arange(50), numbers, (0,) * width)
    np.testing.assert_array_equal(out, (mean * in_pairs(neighbors, block) + own * block) + keep * previous)
    np.testing.assert_array_equal(peaks[0], np.abs(out).max(axis=0))
    np.testing.assert_array_equal(peaks[1], np.add.accumulate(out, axis=0)[-1])


@pytest.mark.parametrize("index", [np.uint32, np.int64])
def test_only_the_row_is_written_and_peaks_only_grow(index):
    block, previous = blocks_of(20, 4, np.float64)
    neighbors = np.random.default_rng(1).integers(20, size=(20, 3)).astype(index)
    out, peaks = np.full((20, 4), 9.0), np.array([[0.0, 100.0, 0.0, 100.0], [1.0, 2.0, 3.0, 4.0]])
    smooth_rows(neighbors, block, previous, out, peaks, np.array([7]), (1 / 3, 0.0, 0.0), (0,) * 4)
    np.testing.assert_allclose(out[7], block[neighbors[7]].mean(axis=0), rtol=1e-15)
    assert (np.delete(out, 7, axis=0) == 9).all()
    np.testing.assert_array_equal(peaks[0], np.where([True, False, True, False], np.abs(out[7]), 100))
    np.testing.assert_array_equal(peaks[1], [1, 2, 3, 4] + out[7])


def test_a_column_does_not_depend_on_the_width_of_its_block():
    wide, previous = blocks_of(30, 16, np.float32)
    neighbors = np.random.default_rng(2).integers(30, size=(30, 5)).astype(np.uint32)
    numbers, outs = tuple(np.float32(number) for number in (0.2, 0.5, -0.25)), []
    for width in (16, 8, 4):
        block, before = (np.ascontiguousarray(each[:, :width]) for each in (wide, previous))
        out = aligned_zeros((30, width), np.float32)
        smooth_rows(
            neighbors, block, before, out, np.zeros((2, width), np.float32), np.arange(30), numbers, (0,) * width
        )
        outs.append(out)
    for out in outs[1:]:
        np.testing.assert_array_equal(out, outs[0][:, : out.shape[1]])
