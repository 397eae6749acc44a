"""Passes over the graph, against a dense W."""

import itertools

import numpy as np
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.smoothing.passes import (
    CACHE_LINE,
    READS_MANY,
    TILE_READS,
    TILE_ROWS,
    add_rows,
    add_tiles,
    aligned_zeros,
    number_of_tiles,
    smooth,
    smooth_tiles,
    tile_reads,
)
from cns_dask.smoothing.walk import Walk, walk_on, walk_part


@pytest.fixture(scope="module")
def indices():
    return oracle.neighbors(oracle.distances(np.random.default_rng(0).standard_normal((80, 3))), 11)


def ring_of(blocks, dtype):
    ring = aligned_zeros(blocks.shape, dtype)
    ring[:] = blocks
    return ring, np.ones((len(ring), number_of_tiles(ring.shape[1])), np.bool_)


def run_pass(walk, ring, live, now, *numbers):
    """A pass over all parts of a walk; the sums of the vectors."""
    peaks = numbers[-1]
    peaks[:], totals = 0, np.zeros(len(peaks))
    for part in walk.parts:
        smooth_tiles(part.neighbors, part.reads, part.first_row, ring, live, now, *numbers, totals)
    return totals


def in_parts(indices, *starts):
    """The same walk in parts that begin at these rows."""
    (whole,) = walk_on(indices).parts
    edges = itertools.pairwise([0, *starts, len(indices)])
    return Walk(tuple(walk_part(whole.neighbors[slice(*edge)], edge[0], len(indices)) for edge in edges))


@pytest.mark.parametrize("k", [1, 4, 7, 11])
def test_smoothing_is_the_product_with_the_dense_matrix(indices, k):
    v = np.random.default_rng(1).standard_normal(80)
    np.testing.assert_allclose(smooth(indices[:, :k], v), oracle.transition(indices[:, :k]) @ v, atol=1e-15)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 4, 16])
@given(shift=st.floats(-1, 1), scale=st.floats(-2, 2), keep=st.floats(-1, 1), k=st.integers(1, 11))
def test_a_pass_is_the_shifted_product(indices, dtype, width, shift, scale, keep, k):
    ring, live = ring_of(np.random.default_rng(2).standard_normal((3, 80, width)), dtype)
    before, now = ring[0].astype(float), ring[1].astype(float)
    walk, peaks = walk_on(indices, k), np.empty(width, dtype)
    totals = run_pass(walk, ring, live, 1, shift, scale, keep, 0.0, (0,) * width, peaks)
    W = oracle.transition(indices[:, :k])
    np.testing.assert_allclose(ring[2], scale * (W @ now - shift * now) + keep * before, atol=20 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(peaks, np.abs(ring[2]).max(axis=0))
    np.testing.assert_allclose(totals, ring[2].sum(axis=0), atol=100 * np.finfo(dtype).eps)


def test_a_pass_over_parts_is_one_over_the_whole_to_the_bit():
    rng = np.random.default_rng(5)
    indices = np.column_stack([np.arange(300), rng.integers(300, size=(300, 6))])
    blocks, outcomes = rng.standard_normal((3, 300, 4)), []
    for walk in (walk_on(indices), in_parts(indices, 64), in_parts(indices, 128, 192, 256)):
        (ring, live), peaks = ring_of(blocks, np.float32), np.empty(4, np.float32)
        totals = run_pass(walk, ring, live, 1, 0.2, 1.5, 0.3, 0.0, (0,) * 4, peaks)
        outcomes.append((ring.tobytes(), peaks.tobytes(), totals.tobytes()))
        np.testing.assert_allclose(walk.product(blocks[0, :, 0]), blocks[0, indices, 0].mean(axis=1), atol=1e-15)
    assert len(set(outcomes)) == 1


@given(weights=st.lists(st.floats(-2, 2), min_size=4, max_size=4), first=st.integers(0, 2))
def test_sums_at_some_rows_are_those_at_all_rows(weights, first):
    ring, live = ring_of(np.random.default_rng(6).standard_normal((3, 150, 4)), np.float64)
    live[first, 1] = False
    ring[first, 64:128] = 0
    weights, rows = np.array(weights).reshape(2, 2), np.array([3, 149, 70, 3])
    whole, some = np.zeros((2, 150, 4)), np.zeros((2, 4, 4))
    add_tiles(weights, ring, live, first, whole)
    add_rows(weights, ring, live, first, rows, some)
    np.testing.assert_array_equal(some, whole[:, rows])


def test_passes_go_around_the_ring(indices):
    """Five passes in a ring of three: the powers of W, each with the one before it."""
    ring, live = ring_of(np.zeros((3, 80, 4)), np.float64)
    ring[0, [3, 20, 41, 79], range(4)] = 1
    walk, peaks, W = walk_on(indices), np.empty(4), oracle.transition(indices)
    before, now = np.zeros((80, 4)), ring[0].copy()
    for at in range(5):
        keep = 0.25 if at else 0.0
        run_pass(walk, ring, live, at % 3, 0.1, 0.9, keep, 0.0, (0,) * 4, peaks)
        before, now = now, 0.9 * (W @ now - 0.1 * now) + keep * before
        np.testing.assert_allclose(ring[(at + 1) % 3], now, atol=1e-14)


def test_columns_that_are_small_in_a_tile_become_zero_there():
    blocks = np.zeros((3, 80, 2))
    blocks[1, 5], blocks[1, 70, 0] = [1, 1e-9], 1e-9
    ring, live = ring_of(blocks, np.float64)
    walk, peaks = walk_on(np.arange(80)[:, None]), np.empty(2)  # every point its own neighbour: W = I
    run_pass(walk, ring, live, 1, 0.0, 1.0, 0.0, 1e-6, (0, 0), peaks)
    assert ring[2, 5].tolist() == [1, 0]
    assert ring[2, 70].tolist() == [0, 0]
    assert live[2].tolist() == [True, False]
    assert peaks.tolist() == [1, 0]
    ring[0] = 7.0  # stale values, in tiles that are said to hold some
    live[0] = True
    run_pass(walk, ring, live, 2, 0.0, 1.0, 0.0, 1e-6, (0, 0), peaks)
    assert ring[0, 64:].max() == 0
    assert ring[0, 5].tolist() == [1, 0]


def test_tiles_that_are_left_out_are_those_that_read_zeros_alone():
    """A chain of points: with each pass one more tile on either side is reached, and no other is computed."""
    chain = np.clip(np.arange(640)[:, None] + [-64, 0, 64], 0, 639)
    ring, live = ring_of(np.zeros((2, 640, 1)), np.float64)
    live[:] = False
    ring[0, 300], live[0, 300 // TILE_ROWS] = 1, True
    walk, peaks, W = walk_on(chain), np.empty(1), np.zeros((640, 640))
    np.add.at(W, (np.arange(640)[:, None], chain), 1 / 3)
    expected = ring[0].copy()
    for at in range(6):
        run_pass(walk, ring, live, at % 2, 0.0, 1.0, 0.0, 0.0, (0,), peaks)
        now, expected = (at + 1) % 2, W @ expected
        np.testing.assert_allclose(ring[now], expected, atol=1e-15)
        assert np.flatnonzero(live[now]).tolist() == list(range(max(0, 3 - at), min(9, 5 + at) + 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_multiples_are_added_in_place_around_the_ring(dtype):
    rng = np.random.default_rng(3)
    ring, live = ring_of(rng.standard_normal((4, 100, 4)), dtype)
    live[1, 1] = False
    weights, total = rng.standard_normal((2, 3)).astype(dtype), np.ones((2, 100, 4), dtype)
    add_tiles(weights, ring, live, 3, total)
    left_out = ring.copy()
    left_out[1, 64:] = 0
    expected = 1 + np.tensordot(weights, left_out[[3, 0, 1]], axes=1)
    np.testing.assert_allclose(total, expected, atol=10 * np.finfo(dtype).eps)


def test_tiles_know_which_tiles_they_read():
    reads = tile_reads(np.array([[i, (i + 64) % 200] for i in range(200)]), 0, 200)
    assert [set(tiles) for tiles in reads] == [{0, 1}, {1, 2}, {2, 3, 0}, {3, 0}]
    scattered = np.random.default_rng(0).integers(64 * 200, size=(64 * 200, 9))
    assert (tile_reads(scattered, 0, len(scattered))[:, 0] == READS_MANY).all()


@given(n_rows=st.integers(1, 400), k=st.integers(1, 5), seed=st.integers(0, 99))
def test_tiles_that_are_read_equal_a_set_of_the_neighbors(n_rows, k, seed):
    neighbors = np.random.default_rng(seed).integers(n_rows, size=(n_rows, k)).astype(np.uint32)
    reads = tile_reads(neighbors, 0, len(neighbors))
    assert reads.shape == (number_of_tiles(n_rows), TILE_READS)
    for tile, found in enumerate(reads):
        needed = set((neighbors[tile * TILE_ROWS : (tile + 1) * TILE_ROWS] // TILE_ROWS).ravel().tolist())
        assert set(found.tolist()) - {tile} == needed - {tile}


def test_as_many_tiles_as_fit_are_listed_and_one_more_is_too_many():
    for n_others, is_many in ((TILE_READS, False), (TILE_READS + 1, True)):
        neighbors = np.arange(64 * 100)[:, None] // TILE_ROWS * TILE_ROWS  # every tile reads itself
        neighbors[:TILE_ROWS, 0] = np.arange(TILE_ROWS) * TILE_ROWS % (TILE_ROWS * n_others)
        neighbors = np.repeat(neighbors, 2, axis=1)
        neighbors[0, 1] = (n_others - 1) * TILE_ROWS
        assert (tile_reads(neighbors, 0, len(neighbors))[0, 0] == READS_MANY) == is_many


@pytest.mark.parametrize("shape", [(0, 4), (3, 5), (7, 11, 16)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_zeros_begin_with_a_line_of_the_cache(shape, dtype):
    for _ in range(5):
        zeros = aligned_zeros(shape, dtype)
        assert (zeros.shape, zeros.dtype) == (shape, dtype)
        assert zeros.ctypes.data % CACHE_LINE == 0 or zeros.size == 0
        assert not zeros.any()
