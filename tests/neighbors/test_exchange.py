"""Rows on their way to another order: what is written is found again, wherever it goes."""

import itertools

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.neighbors.exchange import collect, list_entry, point_entry, write_sorted


def scratch_for(n_blocks, rows, entry):
    return zarr.create_array(
        zarr.storage.MemoryStore(), shape=(n_blocks * rows, entry.itemsize), chunks=(rows, entry.itemsize), dtype="int8"
    )


@given(seed=st.integers(0, 999), rows=st.integers(1, 9), n_rows=st.integers(1, 40), n_chunks=st.integers(1, 6))
def test_every_chunk_collects_its_rows_in_the_order_of_their_keys(seed, rows, n_rows, n_chunks):
    rng = np.random.default_rng(seed)
    points, keys = rng.random((n_rows, 3)).astype(np.float32), rng.permutation(n_rows)
    edges = np.concatenate([[0], np.sort(rng.integers(0, n_rows + 1, n_chunks - 1)), [n_rows]])
    blocks = [slice(start, min(start + rows, n_rows)) for start in range(0, n_rows, rows)]
    entry, scratch = point_entry(3), np.full((len(blocks) * rows, point_entry(3).itemsize), 7, np.int8)
    cuts = []
    for at, block in enumerate(blocks):
        ordered = write_sorted(entry, keys[block], scratch, at * rows, point=points[block])
        np.testing.assert_array_equal(ordered, np.sort(keys[block]))
        cuts.append(at * rows + np.searchsorted(ordered, edges))
    for chunk, (low, high) in enumerate(itertools.pairwise(edges)):
        parts = [slice(*cut[chunk : chunk + 2].tolist()) for cut in cuts]
        if low == high:
            assert all(part.start == part.stop for part in parts)
            continue
        found = collect(entry, scratch, parts)
        np.testing.assert_array_equal(found["key"], np.arange(low, high))
        np.testing.assert_array_equal(found["point"], points[np.argsort(keys)[low:high]])


def test_equal_keys_stay_in_the_order_of_their_blocks():
    """A row's lists from several partitions have its number as their key."""
    entry = list_entry(2, 100)
    scratch = scratch_for(3, 4, entry)
    for at in range(3):
        indices = np.full((2, 2), at)
        write_sorted(entry, np.array([9, 5]), scratch, 4 * at, indices=indices, distances=indices / 2)
    found = collect(entry, scratch, [slice(4 * at, 4 * at + 2) for at in range(3)])
    assert found["key"].tolist() == [5, 5, 5, 9, 9, 9]
    assert found["indices"][:, 0].tolist() == [0, 1, 2, 0, 1, 2]


def test_a_block_fills_its_whole_chunk_and_nothing_of_the_next():
    entry = point_entry(1)
    scratch = scratch_for(2, 5, entry)
    scratch[...] = 1
    write_sorted(entry, np.array([3, 1]), scratch, 0, point=np.ones((2, 1), np.float32))
    assert (scratch[2:5] == 0).all()  # written, so that a damaged chunk is never read
    assert (scratch[5:] == 1).all()


@pytest.mark.parametrize(("n_rows", "index", "size"), [(2**31 - 1, "int32", 8 + 4 * 5 + 4 * 5), (2**31, "int64", 68)])
def test_row_numbers_are_as_wide_as_the_number_of_rows_needs(n_rows, index, size):
    entry = list_entry(5, n_rows)
    assert entry["indices"].base == index
    assert entry.itemsize == size  # nothing is padded: it is what the plan counts


def test_keys_beyond_the_range_of_32_bits_survive():
    entry, scratch = point_entry(2), np.zeros((3, point_entry(2).itemsize), np.int8)
    keys = np.array([2**40 + 1, 5, 2**40])
    write_sorted(entry, keys, scratch, 0, point=np.zeros((3, 2), np.float32))
    assert collect(entry, scratch, [slice(0, 3)])["key"].tolist() == [5, 2**40, 2**40 + 1]
