"""The grid, against the dense version: candidates, criterion, choice and what is kept, however the work is cut."""

import numpy as np
import oracle
import pytest
from generators import mixture
from runs import run_in

from cns_dask.errors import InvalidSettingError
from cns_dask.settings import Grid
from cns_dask.smoothing import grid as grid_module
from cns_dask.smoothing.grid import gram_of_rows, search_grid, start_walks
from cns_dask.smoothing.plan import size_smoothing, smoothing_stages
from cns_dask.smoothing.solver import solve_block
from cns_dask.smoothing.walk import positions_in, walk_on

GRID = Grid((4, 7, 10), (0.04, 0.1, 0.2), 8)
N_ROWS, TOL = 300, 1e-11
SMALL = {"block_width": 4, "rows_per_absorption_chunk": 50}


@pytest.fixture(scope="module")
def points():
    return mixture(N_ROWS, 3, n_clusters=4, spread=3, seed=3)


@pytest.fixture(scope="module")
def neighbors(points):
    return oracle.neighbors(oracle.distances(points), GRID.ks[-1])


@pytest.fixture(scope="module")
def dense(points):
    return oracle.fit(points, GRID.ks, GRID.lams, GRID.max_clusters)


def begin(folder, neighbors, points=None, cap=300, grid_tol=TOL, overrides=SMALL):
    """A run with a stored graph, and the sizes of its smoothing."""
    arrays = {} if points is None else {"points": points}
    run = run_in(folder, 70, graph__indices=neighbors, **arrays)
    return run, size_smoothing(N_ROWS, 70, GRID, cap, grid_tol, overrides)


def searched(folder, neighbors, points=None, cap=300, grid_tol=TOL, n_clusters=None, overrides=SMALL):
    """Result, kept absorption and run of a search of the grid."""
    run, sizes = begin(folder, neighbors, points, cap, grid_tol, overrides)
    result = search_grid(run, sizes, n_clusters=n_clusters, max_candidates=cap, grid_tol=grid_tol, tol=TOL, seed=0)
    return result, np.asarray(run.writer.array("absorption")[...]), run


def assert_equals_the_dense_version(result, absorption, dense):
    np.testing.assert_allclose(result.surface, dense.criterion, atol=1e-8)
    for at_k, k in enumerate(GRID.ks):
        assert result.n_candidates[k] == len(dense.candidates[k])
        for at_lam, lam in enumerate(GRID.lams):
            expected = dense.picks[k, lam]
            assert result.picks[at_k, at_lam, : len(expected)].tolist() == expected.tolist()
            assert (result.picks[at_k, at_lam, len(expected) :] == -1).all()
    choice = result.choice
    assert (choice.n_neighbors, choice.lam, choice.n_clusters) == dense.choice
    assert result.chosen_picks.tolist() == dense.picks[dense.choice[:2]].tolist()
    np.testing.assert_allclose(oracle.memberships(absorption[:, : choice.n_clusters]), dense.F, atol=1e-9)


@pytest.mark.parametrize("overrides", [{}, SMALL, {"block_width": 16, "rows_per_absorption_chunk": 23}])
def test_the_grid_equals_the_dense_version_however_it_is_cut(overrides, neighbors, points, dense, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors, points, overrides=overrides)
    assert_equals_the_dense_version(result, absorption, dense)
    assert 0 < result.residual <= TOL
    assert 0 < result.grid_residual <= TOL


def test_limited_candidates_equal_the_dense_version(neighbors, points, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors, points, cap=9)
    assert max(result.n_candidates.values()) == 9
    assert_equals_the_dense_version(
        result, absorption, oracle.fit(points, GRID.ks, GRID.lams, GRID.max_clusters, cap=9)
    )


def test_a_graph_alone_needs_no_points(neighbors, dense, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors)
    assert_equals_the_dense_version(result, absorption, dense)


def test_a_looser_tolerance_of_the_grid_leads_to_the_same_decisions(neighbors, points, dense, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors, points, grid_tol=1e-4)
    np.testing.assert_array_equal(result.picks, searched(tmp_path / "tight", neighbors, points)[0].picks)
    assert TOL < result.grid_residual <= 1e-4
    assert result.residual <= TOL  # what is kept is solved once more
    np.testing.assert_allclose(oracle.memberships(absorption[:, : result.choice.n_clusters]), dense.F, atol=1e-9)


def test_a_fixed_number_of_clusters_is_chosen_among_those_only(neighbors, points, dense, tmp_path):
    result, _, _ = searched(tmp_path, neighbors, points, n_clusters=6)
    at_k, at_lam = np.unravel_index(np.nanargmax(dense.criterion[:, :, 5]), (3, 3))
    choice = result.choice
    assert (choice.n_neighbors, choice.lam, choice.n_clusters) == (GRID.ks[at_k], GRID.lams[at_lam], 6)
    assert choice.value == pytest.approx(dense.criterion[at_k, at_lam, 5])


def test_more_clusters_than_candidates_are_refused_before_the_grid_is_evaluated(neighbors, points, tmp_path):
    with pytest.raises(InvalidSettingError, match=r"number of candidates \(5\)\. Got 6\. Use fewer clusters"):
        searched(tmp_path, neighbors, points, cap=5, n_clusters=6)
    assert not (tmp_path / "scratch.zarr/absorption-4").exists()


def test_what_is_recorded_is_not_solved_again_and_absorption_of_the_grid_is_gone(
    neighbors, points, tmp_path, monkeypatch
):
    result, absorption, run = searched(tmp_path, neighbors, points)
    assert not [name for name in run.writer.scratch.names() if name.startswith("absorption")]

    def refuse(*arguments):
        raise AssertionError("solved again")

    monkeypatch.setattr(grid_module.solver, "solve_block", refuse)
    again, same, run = searched(tmp_path, neighbors, points)
    np.testing.assert_array_equal(again.surface, result.surface)
    np.testing.assert_array_equal(same, absorption)
    assert (again.choice, again.residual, again.n_passes) == (result.choice, result.residual, result.n_passes)
    assert not [name for name in run.writer.scratch.names() if name.startswith("absorption")]


def test_a_k_that_was_stopped_goes_on_with_the_blocks_that_are_left(neighbors, points, tmp_path, monkeypatch):
    result, absorption, _ = searched(tmp_path / "whole", neighbors, points)
    solved = []

    def solve_some(*arguments):
        if len(solved) == 3:
            raise OSError("stopped")
        solved.append(arguments[1])
        return solve_block(*arguments)

    monkeypatch.setattr(grid_module.solver, "solve_block", solve_some)
    with pytest.raises(OSError, match="stopped"):
        searched(tmp_path / "stopped", neighbors, points)
    monkeypatch.undo()
    again, same, run = searched(tmp_path / "stopped", neighbors, points)
    np.testing.assert_array_equal(again.surface, result.surface)
    np.testing.assert_array_equal(same, absorption)
    assert any("evaluate" in line and "done by an earlier run" in line for line in run.progress.lines)


def test_stages_run_as_they_are_described(neighbors, points, tmp_path):
    result, _, run = searched(tmp_path, neighbors, points)
    assert run.progress.stages == ["candidates", "evaluate", "absorption"]
    assert run.progress.finished == run.progress.planned
    counts = [result.n_candidates[k] for k in GRID.ks]
    blocks, kept = sum(-(-count // 4) for count in counts), -(-len(result.chosen_picks) // 4)
    assert kept == 2
    assert run.progress.planned == {"candidates": 1 + 3, "evaluate": blocks + 3, "absorption": kept}
    described = {stage.name: stage for stage in smoothing_stages(begin(tmp_path, neighbors, points)[1])}
    assert set(run.progress.stages) < set(described)


def test_walks_are_those_of_the_graph_in_one_order_for_all_k(neighbors, points, tmp_path):
    run, sizes = begin(tmp_path, neighbors, points, cap=10)
    walks = start_walks(run, sizes, 10, TOL, seed=0)
    order = walks[4].order[...]
    for k, walk in walks.items():
        expected = walk_on(neighbors, k, order)
        np.testing.assert_array_equal(walk.neighbors[...], expected.neighbors)
        np.testing.assert_array_equal(walk.reads[...], expected.reads)
        np.testing.assert_array_equal(walk.start.positions, positions_in(order)[walk.start.candidates.rows])
        expected = oracle.candidates(neighbors[:, :k], oracle.distances(points), 10)
        np.testing.assert_array_equal(walk.start.candidates.rows, expected)


def test_sums_over_rows_do_not_depend_on_what_tells_that_blocks_are_there():
    absorption = np.random.default_rng(0).random((2, 5, 40))
    sums, products = gram_of_rows([(1e-9, 30)], absorption, slice(10, 30))
    np.testing.assert_allclose(sums, absorption[:, :, 10:30].sum(axis=2))
    np.testing.assert_allclose(products, np.einsum("lir,ljr->lij", *[absorption[:, :, 10:30]] * 2))
