"""Tasks that move rows to cells and search there: each against its result on whole arrays."""

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from neighbor_lists import assert_well_formed, blobs_of, sorted_lists

from cns_dask.neighbors.cell_tasks import (
    cell_cuts,
    collect_chunk,
    fill_chunk,
    merge_parts,
    nearest_in_part,
    reach_for,
    search_and_sort,
    search_parts,
    sort_into_cells,
    take_rows,
)
from cns_dask.neighbors.cells import Cells, nearest_centers, needed_reach, shifted
from cns_dask.neighbors.exchange import list_entry, point_entry

N_ROWS, N_CELLS, STRIDE = 230, 6, 50
BLOCKS = [slice(start, min(start + STRIDE, N_ROWS)) for start in range(0, N_ROWS, STRIDE)]
CHUNKS = [slice(start, min(start + 70, N_ROWS)) for start in range(0, N_ROWS, 70)]


def array(values, chunk):
    return zarr.array(values, chunks=(chunk, *values.shape[1:]))


def slices(cuts, at, stride=STRIDE):
    return [
        slice(block * stride + int(low), block * stride + int(high))
        for block, (low, high) in enumerate(cuts[:, at : at + 2])
    ]


@pytest.fixture(scope="module")
def points():
    return blobs_of(N_ROWS, 3)


@pytest.fixture(scope="module")
def cells(points):
    """The rows, moved to their cells block by block and chunk by chunk."""
    offset = points.mean(axis=0)
    centers = shifted(points[:N_CELLS], offset)
    entry = point_entry(3)
    scratch = np.zeros((len(BLOCKS) * STRIDE, entry.itemsize), np.int8)
    counts = np.array(
        [sort_into_cells(points, block, centers, offset, scratch, at * STRIDE) for at, block in enumerate(BLOCKS)]
    )
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    filled = array(np.zeros((N_ROWS, 3), np.float32), 70), array(np.zeros(N_ROWS, int), 70)
    cells = Cells(centers, starts, *filled, offset, reach=1.0)
    cuts = cell_cuts(counts, np.array([0, *(chunk.stop for chunk in CHUNKS)]))
    for at, chunk in enumerate(CHUNKS):
        fill_chunk(scratch, slices(cuts, at), N_ROWS, cells, chunk)
    return cells


def test_rows_of_several_samples_are_taken_with_one_reading(points):
    class Counted:
        reads = 0

        def __getitem__(self, part):
            self.reads += 1
            return points[part]

    opened = Counted()
    first, second = take_rows(opened, slice(100, 150), np.array([100, 149]), np.array([], int))
    np.testing.assert_array_equal(first, points[[100, 149]])
    assert second.shape == (0, 3)
    assert opened.reads == 1


def test_every_row_comes_to_the_cell_of_its_nearest_centre_ordered_by_number(points, cells):
    own = nearest_centers(shifted(points, cells.offset), cells.centers)
    expected = np.lexsort((np.arange(N_ROWS), own))
    np.testing.assert_array_equal(cells.rows[...], expected)
    np.testing.assert_array_equal(cells.points[...], shifted(points, cells.offset)[expected])
    np.testing.assert_array_equal(np.diff(cells.starts), np.bincount(own, minlength=N_CELLS))


@given(counts=st.lists(st.lists(st.integers(0, 5), min_size=4, max_size=4), min_size=1, max_size=6), data=st.data())
def test_cuts_find_every_row_of_a_chunk(counts, data):
    counts = np.array(counts)
    total = int(counts.sum())
    step = data.draw(st.integers(1, max(1, total)))
    edges = np.array([*range(0, total, step), total])
    # the long way: where each entry of each block goes
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    cuts = cell_cuts(counts, edges)
    for block, row in enumerate(counts):
        goal = [starts[cell] + counts[:block, cell].sum() + at for cell, count in enumerate(row) for at in range(count)]
        np.testing.assert_array_equal(cuts[block], np.searchsorted(goal, edges))


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=30), step=st.integers(1, 40))
def test_searched_parts_cover_all_positions_and_stay_small(sizes, step):
    starts = np.concatenate([[0], np.cumsum(sizes)])
    parts = search_parts(starts, step)
    assert [position for part in parts for position in range(part.start, part.stop)] == list(range(starts[-1]))
    assert max((part.stop - part.start for part in parts), default=0) < 2 * step + (step == 1)


def test_lists_from_parts_of_the_points_merge_to_those_from_all(points):
    rows = np.array([3, 50, 229])
    parts = [nearest_in_part(points[rows], rows, points, part, 5) for part in (*BLOCKS[2:], *BLOCKS[:2])]
    squared, indices = merge_parts(parts, rows)
    expected = sorted_lists(points[rows], rows, points, np.arange(N_ROWS), 5)
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_allclose(squared, expected[0], rtol=1e-12)
    assert (parts[0][1] >= 100).all()  # what was merged is left as it was


def test_searched_lists_are_collected_in_the_order_of_the_rows(points, cells):
    k, edges = 8, np.array([0, 90, 180, N_ROWS])
    parts = search_parts(cells.starts, 40)
    stride, entry = max(part.stop - part.start for part in parts), list_entry(8, N_ROWS)
    scratch = np.zeros((len(parts) * stride, entry.itemsize), np.int8)
    cuts = np.array([search_and_sort(cells, part, k, scratch, at * stride, edges) for at, part in enumerate(parts)])
    graph = np.full((N_ROWS, k), -1), np.full((N_ROWS, k), np.nan, np.float32)
    measured = [np.array([4, 89]), np.array([], int), np.array([200])]
    answers = [
        collect_chunk(scratch, slices(cuts, at, stride), graph, slice(*edges[at : at + 2].tolist()), measured[at])
        for at in range(3)
    ]
    assert_well_formed(*graph)
    rounded = shifted(points, cells.offset)
    squared, indices = sorted_lists(rounded, np.arange(N_ROWS), rounded, np.arange(N_ROWS), k - 1)
    np.testing.assert_array_equal(graph[0][:, 1:], indices)  # a reach of 1 misses nothing
    np.testing.assert_allclose(graph[1][:, 1:], np.sqrt(squared), rtol=1e-6)
    for rows, (distances, lists) in zip(measured, answers, strict=True):
        np.testing.assert_array_equal(lists, graph[0][rows])
        np.testing.assert_array_equal(distances, graph[1][rows])


def test_the_reach_is_the_quantile_of_what_known_neighbors_need(points, cells):
    queries = shifted(points[::7], cells.offset)
    nearest = nearest_in_part(queries, np.full(len(queries), -1), np.asarray(cells.points[...]), slice(0, N_ROWS), 6)
    needed, visits = needed_reach(queries, np.sqrt(nearest[0]), nearest[1], cells)
    sizes = np.diff(cells.starts)
    before = 0.0
    for share in (0.5, 0.9, 0.99, 1.0):
        reach, candidates = reach_for(queries, nearest, cells, share)
        assert 0.05 <= reach <= 1
        assert (needed <= reach).mean() >= share
        met = [sum(size for size, visit in zip(sizes, row, strict=True) if visit < reach) for row in visits]
        assert candidates == pytest.approx(np.mean(met))
        assert candidates >= before
        before = candidates
