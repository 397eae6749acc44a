"""What solves start from: the same walks, candidates and nodes however the work is cut."""

import numpy as np
import oracle
import pytest
from generators import mixture
from runs import run_in

from cns_dask.settings import Grid
from cns_dask.smoothing.plan import size_smoothing
from cns_dask.smoothing.start import add_counts, count_part, start_walks, write_counts
from cns_dask.smoothing.walk import positions_in, walk_on
from cns_dask.storage.layout import ArrayPlan

N_ROWS, GRID, TOL = 300, Grid((4, 7, 10), (0.04, 0.1, 0.2), 8), 1e-11


@pytest.fixture(scope="module")
def points():
    return mixture(N_ROWS, 3, n_clusters=4, spread=3, seed=3)


@pytest.fixture(scope="module")
def neighbors(points):
    return oracle.neighbors(oracle.distances(points), GRID.ks[-1])


def started(folder, points, neighbors, *, cover, cells=False, cap=10, **overrides):
    arrays = {}
    if cells:
        of_rows = (points[:, 0] > np.median(points[:, 0])).astype(int)
        rows = np.argsort(of_rows, kind="stable")
        arrays = {"cells__points": points[rows].astype("float32"), "cells__rows": rows}
        arrays["cells__starts"] = np.array([0, (of_rows == 0).sum(), N_ROWS])
    distances = np.linalg.norm(points[neighbors] - points[:, None], axis=2)
    run = run_in(folder, 70, points=points, graph__indices=neighbors, graph__distances=distances, **arrays)
    sizes = size_smoothing(N_ROWS, 70, GRID, cap, TOL, overrides)
    return start_walks(run, sizes, cap, TOL, seed=0, cover=cover), run


@pytest.mark.parametrize("part", [1024, 128, 64])
@pytest.mark.parametrize("cells", [True, False])
def test_walks_are_those_of_the_graph_in_one_order_for_all_k(neighbors, points, tmp_path, part, cells):
    (walks, dimension), _ = started(tmp_path, points, neighbors, cover=False, cells=cells, rows_per_walk_part=part)
    assert dimension is not None
    positions = walks[4].files.positions[...].astype(int)
    order = positions_in(positions)
    np.testing.assert_array_equal(np.sort(order), np.arange(N_ROWS))
    for k, walk in walks.items():
        opened, expected = walk.files.open(), walk_on(neighbors, k, order)
        assert len(opened.parts) == -(-N_ROWS // part)
        np.testing.assert_array_equal(opened.neighbors, expected.neighbors)
        np.testing.assert_array_equal(np.concatenate([each.reads for each in opened.parts]), expected.parts[0].reads)
        np.testing.assert_array_equal(walk.start.positions, positions[walk.start.candidates.rows])
        candidates = oracle.candidates(neighbors[:, :k], oracle.distances(points), 10)
        np.testing.assert_array_equal(walk.start.candidates.rows, candidates)


@pytest.mark.parametrize("cap", [2, 5, 300])
@pytest.mark.parametrize("cover", [True, False])
def test_candidates_do_not_depend_on_the_parts(neighbors, points, tmp_path, cap, cover):
    (whole, _), _ = started(tmp_path / "whole", points, neighbors, cover=cover, cap=cap)
    (parts, _), run = started(tmp_path / "parts", points, neighbors, cover=cover, cap=cap, rows_per_walk_part=64)
    for k in GRID.ks:
        one, other = (walks[k].start.candidates for walks in (whole, parts))
        assert (one.rows.tolist(), one.degrees.tolist()) == (other.rows.tolist(), other.degrees.tolist())
        assert one.n_maxima == other.n_maxima
        degrees = run.writer.create(ArrayPlan(f"highest-{k}-0", (N_ROWS,), (64,), "int64", scratch=True))[...]
        np.testing.assert_array_equal(degrees[parts[k].start.positions], one.degrees)


def test_nodes_of_the_smallest_k_serve_all_where_rows_are_many(neighbors, points, tmp_path, monkeypatch):
    monkeypatch.setattr("cns_dask.smoothing.plan.OWN_NODES_ROWS", N_ROWS - 1)
    (shared, _), _ = started(tmp_path / "shared", points, neighbors, cover=True)
    monkeypatch.undo()
    (own, _), _ = started(tmp_path / "own", points, neighbors, cover=True)
    for k in GRID.ks:
        np.testing.assert_array_equal(shared[k].start.nodes, own[4].start.nodes)
    assert len({own[k].start.nodes.tobytes() for k in GRID.ks}) == 3


def test_in_degrees_are_added_part_by_part():
    neighbors = np.random.default_rng(0).integers(40, size=(100, 5))
    parts = [count_part(neighbors, slice(start, start + 30)) for start in range(0, 100, 30)]
    target = np.zeros(100, int)
    write_counts(add_counts([add_counts(parts[:2]), add_counts(parts[2:])]), target)
    np.testing.assert_array_equal(target, np.bincount(neighbors.ravel(), minlength=100))
