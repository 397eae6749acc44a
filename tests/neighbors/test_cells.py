"""Search in cells: what it promises, on inputs that are hard for it."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from neighbor_lists import assert_well_formed, blobs_of, sorted_lists
from threadpoolctl import threadpool_limits

from cns_dask import neighbor_graph
from cns_dask.neighbors.cells import (
    FEW_CENTERS,
    Cells,
    gaps,
    learn_centers,
    nearest_centers,
    needed_reach,
    search_cells,
    search_new_rows,
    shifted,
    stored_cells,
)
from cns_dask.storage.layout import Kind
from cns_dask.storage.store import open_store


def checked(X, k, **options):
    """Indices of an approximate graph whose lists are well formed and, to float32, as near as the exact ones."""
    graph = neighbor_graph(X, k, method="cells", **options)
    indices, distances = da.compute(graph.indices, graph.distances)
    assert_well_formed(indices, distances)
    tied = np.diff(distances[:, 1:], axis=1) == 0
    assert (np.diff(indices[:, 1:], axis=1)[tied] > 0).all()
    assert graph.recall[-1].low >= 0.99
    exact = neighbor_graph(X, k, method="exact").distances[:, -1].compute()
    assert np.mean(distances <= exact[:, None] * (1 + 1e-5) + 1e-30) > 0.99
    return indices


@pytest.mark.parametrize("n_features", [1, 2, 16])
def test_lists_are_full_sorted_and_near_the_truth(n_features):
    checked(blobs_of(6000, n_features), 20)


def test_784_features():
    checked(blobs_of(3000, 784), 10)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_both_metrics(metric):
    X = blobs_of(4000, 6)
    graph, exact = (neighbor_graph(X, 12, metric=metric, method=method) for method in ("cells", "exact"))
    assert graph.recall[0].n_rows == 1000
    found, truth = graph.indices.compute(), exact.indices.compute()
    assert np.mean([np.isin(a, b).mean() for a, b in zip(found, truth, strict=True)]) > 0.99
    same = (found == truth).all(axis=1)
    assert same.mean() > 0.9
    np.testing.assert_allclose(graph.distances.compute()[same], exact.distances.compute()[same], rtol=1e-5)


def test_duplicates_and_a_block_of_identical_rows():
    X = blobs_of(12_000, 4)
    X[3000:8000] = 1.5  # 5 000 identical rows
    X[8000:] = X[np.random.default_rng(1).integers(0, 3000, size=4000)]  # a third of all are duplicates
    indices = checked(X, 16)
    np.testing.assert_array_equal(indices[5000], [5000, *range(3000, 3015)])  # of equal rows, those first in the data


def test_constant_column_and_a_far_outlier():
    X = blobs_of(5000, 5)
    X[:, 2] = 7.0
    X[77] = 1e6
    checked(X, 15)


def test_all_rows_identical():
    indices = checked(np.ones((3000, 3)), 5)
    np.testing.assert_array_equal(indices[10], [10, 0, 1, 2, 3])


def test_few_distinct_rows_leave_cells_empty():
    X = np.repeat(np.arange(3.0), 2000)[:, None] * np.ones(2)
    checked(X, 8)


def test_values_far_from_zero_keep_their_neighbors():
    X = blobs_of(3000, 3)
    near, far = (neighbor_graph(X + shift, 10, method="cells").indices.compute() for shift in (0.0, 1e7))
    assert np.mean([np.isin(a, b).mean() for a, b in zip(near, far, strict=True)]) > 0.999


def test_many_small_chunks_of_everything(small_chunks):
    X = blobs_of(1500, 4)
    X[100:160] = X[100]
    checked(X, 10)


@settings(max_examples=40)
@given(seed=st.integers(0, 1000), n_features=st.integers(1, 12))
def test_no_row_of_a_cell_is_nearer_than_its_gap(seed, n_features):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((300, n_features)).astype(np.float32)
    centers = points[:7]
    cells = nearest_centers(points, centers)
    for own in range(7):
        queries = points[cells == own]
        found = gaps(queries, centers[own], centers)
        for other in set(range(7)) - {own}:
            far = np.linalg.norm(queries[:, None].astype(float) - points[cells == other][None], axis=2)
            assert (far >= found[other][:, None] - 1e-4).all()


@pytest.mark.parametrize(("n_centers", "n_features"), [(30, 2), (FEW_CENTERS, 3), (2000, 2), (2000, 12)])
def test_nearest_centers_are_those_of_smallest_distance_ties_by_number(n_centers, n_features):
    """To the last of them, in groups too; whole numbers, so that there are ties."""
    rng = np.random.default_rng(0)
    points, centers = (rng.integers(-9, 9, (count, n_features)).astype(np.float32) for count in (700, n_centers))
    squared = ((points[:, None] - centers) ** 2).sum(axis=2)
    np.testing.assert_array_equal(nearest_centers(points, centers), squared.argmin(axis=1))


def test_many_centers_are_learned_in_groups():
    rows = np.random.default_rng(1).standard_normal((20_000, 5))
    centers, offset = learn_centers([rows[:15_000], rows[15_000:]], 700, seed=0)
    again, _ = learn_centers([rows], 700, seed=0)
    np.testing.assert_array_equal(centers, again)
    assert centers.shape == (700, 5)
    np.testing.assert_allclose(offset, rows.mean(axis=0))
    sizes = np.bincount(nearest_centers(shifted(rows, offset), centers), minlength=700)
    assert sizes.min() > 0
    assert sizes.max() < 8 * sizes.mean()  # compact and about as large as each other


def test_centers_depend_neither_on_the_parts_of_the_sample_nor_on_threads():
    sample = 1e6 + blobs_of(3000, 4)
    centers, offset = learn_centers([sample], 40, seed=0)
    assert (centers.shape, centers.dtype) == ((40, 4), np.float32)
    np.testing.assert_allclose(offset, sample.mean(axis=0))
    with threadpool_limits(2):
        again = learn_centers(np.array_split(sample, 7), 40, seed=0)
    np.testing.assert_array_equal(again[0], centers)
    np.testing.assert_array_equal(again[1], offset)
    spread = np.linalg.norm(centers - centers.mean(axis=0), axis=1).mean()
    assert np.linalg.norm(np.diff(centers, axis=0), axis=1).mean() < spread  # near ones next to each other
    assert len(learn_centers([sample[:5]], 40, seed=0)[0]) == 5


def cells_of(points, n_cells, chunk, offset=None):
    """Rows in cells around the first of them; the rows as they are held there, and their cells."""
    offset = points.mean(axis=0) if offset is None else offset
    rounded = shifted(points, offset)
    centers = rounded[:n_cells]
    own = nearest_centers(rounded, centers)
    rows = np.argsort(own, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(own, minlength=n_cells))])
    stored = zarr.array(rounded[rows], chunks=(chunk, points.shape[1])), zarr.array(rows, chunks=(chunk,))
    return Cells(centers, starts, *stored, offset, reach=1.0), rounded, own


@settings(max_examples=25)
@given(seed=st.integers(0, 99), n_features=st.integers(1, 6), chunk=st.sampled_from([7, 60, 500]), ties=st.booleans())
def test_a_reach_of_1_misses_nothing_for_any_chunks(seed, n_features, chunk, ties):
    rng = np.random.default_rng(seed)
    points = rng.integers(-2, 3, (240, n_features)).astype(float) if ties else rng.standard_normal((240, n_features))
    cells, rounded, own = cells_of(points, 9, chunk, offset=np.zeros(n_features))  # integers stay tied
    order = np.argsort(own, kind="stable")[40:180]
    found = search_cells(rounded[order], order, own[order], cells, 6)
    expected = sorted_lists(rounded[order], order, rounded, np.arange(240), 6)
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-6)
    if not ties:  # a row on the border of a cell may be left out for an equally near one
        np.testing.assert_array_equal(found[1], expected[1])


def test_only_chunks_in_reach_are_read():
    points = np.repeat(np.arange(4.0), 50)[:, None] * [1000.0, 0] + blobs_of(200, 2) / 10
    order = np.argsort(np.tile(np.arange(50), 4), kind="stable")  # the first four rows, the centres, are far apart
    cells, rounded, own = cells_of(points[order], 4, 50)
    reads = []

    class Watched:
        shape, chunks = cells.points.shape, cells.points.chunks

        def __getitem__(self, part):
            reads.append(part.start)
            return cells.points[part]

    some = np.flatnonzero(own == 2)
    search_cells(rounded[some], some, own[some], replace(cells, points=Watched()), 5)
    assert reads == [100]


def test_rows_from_outside_find_their_nearest_in_the_order_that_they_came_in():
    points, new = blobs_of(400, 3), blobs_of(37, 3, seed=1)
    cells, rounded, _ = cells_of(points, 11, 90)
    distances, indices = search_new_rows(new, cells, 5, len(points))
    expected = sorted_lists(shifted(new, cells.offset), np.full(37, -1), rounded, np.arange(400), 5)
    np.testing.assert_array_equal(indices, expected[1])
    np.testing.assert_allclose(distances, np.sqrt(expected[0]), rtol=1e-6)
    distances, indices = search_new_rows(points[100:103], cells, 1, len(points))  # rows of the data: not skipped
    assert indices[:, 0].tolist() == [100, 101, 102]
    assert (distances == 0).all()


def test_every_neighbor_is_found_with_the_reach_that_it_needs():
    points = blobs_of(500, 8)
    cells, rounded, own = cells_of(points, 25, 100)
    position = np.argsort(cells.rows[...])
    queries = np.argsort(own, kind="stable")[::9]
    squared, nearest = sorted_lists(rounded[queries], np.full(len(queries), -1), rounded, np.arange(500), 6)
    needed, visits = needed_reach(rounded[queries], np.sqrt(squared), position[nearest], cells)
    assert visits.shape == (len(queries), 25)
    assert (needed <= 1).all()
    np.testing.assert_array_equal(needed == -np.inf, own[nearest] == own[queries][:, None])
    for reach in (0.1, 0.3, 0.6):
        some = replace(cells, reach=reach)
        found = search_cells(rounded[queries], np.full(len(queries), -1), own[queries], some, 6)[1]
        in_reach = needed < reach - 1e-5
        assert 0 < in_reach.mean() < 1
        assert all(np.isin(nearest[i][in_reach[i]], found[i]).all() for i in range(len(queries)))


def test_stored_cells_are_those_of_the_graph(tmp_path):
    X = blobs_of(2500, 4)
    neighbor_graph(X, 10, method="cells", out=tmp_path / "cells.zarr")
    cells = stored_cells(open_store(tmp_path / "cells.zarr", Kind.GRAPH))
    np.testing.assert_allclose(cells.points[...] + cells.offset[...], X[cells.rows[...]], atol=1e-5)
    assert 0.05 <= cells.reach <= 1
    neighbor_graph(X, 10, method="exact", out=tmp_path / "exact.zarr")
    assert stored_cells(open_store(tmp_path / "exact.zarr", Kind.GRAPH)) is None
