"""Search in cells: what it promises, on inputs that are hard for it."""

import dask.array as da
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cns_dask import neighbor_graph
from cns_dask.errors import InvalidDataError, InvalidSettingError, LowRecallWarning
from cns_dask.neighbors.cell_tasks import cell_cuts, search_parts
from cns_dask.neighbors.cells import gaps, nearest_centers


def blobs_of(n_rows, n_features, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 3, (8, n_features))[rng.integers(8, size=n_rows)] + rng.standard_normal((n_rows, n_features))


def checked(X, k, **options):
    """Indices of an approximate graph whose lists are well formed and, to float32, as near as the exact ones."""
    graph = neighbor_graph(X, k, method="cells", **options)
    indices, distances = da.compute(graph.indices, graph.distances)
    rows = np.arange(len(X))
    np.testing.assert_array_equal(indices[:, 0], rows)
    ordered = np.sort(indices, axis=1)
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    assert ordered[:, 0].min() >= 0
    assert ordered[:, -1].max() < len(X)
    assert (np.diff(distances[:, 1:], axis=1) >= 0).all()
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


def test_the_graph_does_not_depend_on_chunks():
    X = blobs_of(5000, 5)
    graphs = []
    for chunks in (5000, 1234, (1, 2499, 2500)):
        graph = neighbor_graph(da.from_array(X, chunks=(chunks, 5)), 15, method="cells")
        graphs.append(da.compute(graph.indices, graph.distances))
    for indices, distances in graphs[1:]:
        np.testing.assert_array_equal(indices, graphs[0][0])
        np.testing.assert_array_equal(distances, graphs[0][1])


def test_many_small_chunks_of_everything(small_chunks):
    X = blobs_of(1500, 4)
    X[100:160] = X[100]
    checked(X, 10)


def test_another_seed_samples_other_rows():
    X = blobs_of(4000, 8)
    first, second = (neighbor_graph(X, 10, method="cells", recall=0.5, random_state=seed) for seed in (0, 1))
    assert first.recall != second.recall


def test_a_higher_recall_is_reached_by_a_larger_reach():
    X = np.random.default_rng(0).standard_normal((6000, 16))
    low, high = (neighbor_graph(X, 12, method="cells", recall=recall).recall[-1] for recall in (0.6, 0.995))
    assert low.low >= 0.6
    assert high.low >= 0.995
    assert high.mean > low.mean


def test_a_recall_that_no_sample_can_show_is_told():
    with pytest.warns(LowRecallWarning, match=r"at least 0.99999 of the true neighbours. Got 1.0000 \(0\.\d+ to 1"):
        graph = neighbor_graph(blobs_of(3000, 3), 10, method="cells", recall=0.99999)
    assert graph.recall[-1].mean == 1  # a reach of 1 misses nothing


def test_bad_input():
    X = blobs_of(3000, 3)
    with pytest.raises(InvalidSettingError, match="n_neighbors must be an integer from 1 to 2999. Got 3000"):
        neighbor_graph(X, 3000, method="cells")
    with pytest.raises(InvalidSettingError, match="recall must be a number between 0 and 1"):
        neighbor_graph(X, 5, method="cells", recall=1.5)
    X[[7, 9], 0] = np.nan
    with pytest.raises(InvalidDataError, match=r"NaN or infinity in 2 row\(s\): 7, 9"):
        neighbor_graph(da.from_array(X), 5, method="cells")
    X[[7, 9]] = 0
    with pytest.raises(InvalidDataError, match="norm 0: 7, 9"):
        neighbor_graph(X, 5, method="cells", metric="cosine")


@settings(max_examples=40)
@given(seed=st.integers(0, 1000), n_features=st.integers(1, 12))
def test_no_row_of_a_cell_is_nearer_than_its_gap(seed, n_features):
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((300, n_features)).astype(np.float32)
    centers = points[:7]
    cells = nearest_centers(points, centers)[:, 0]
    for own in range(7):
        queries = points[cells == own]
        found = gaps(queries, centers[own], centers)
        for other in set(range(7)) - {own}:
            far = np.linalg.norm(queries[:, None].astype(float) - points[cells == other][None], axis=2)
            assert (far >= found[other][:, None] - 1e-4).all()


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
