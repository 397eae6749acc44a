"""The grid, against the dense version: candidates, criterion, choice and what is kept, however the work is cut."""

from dataclasses import replace

import numpy as np
import oracle
import pytest
from generators import mixture
from runs import run_in
from sklearn.neighbors import NearestNeighbors

from cns_dask.errors import InvalidSettingError
from cns_dask.settings import Grid
from cns_dask.smoothing import grid as grid_module
from cns_dask.smoothing import plan as plan_module
from cns_dask.smoothing.candidates import Candidates
from cns_dask.smoothing.grid import (
    Sources,
    gram_of_all,
    gram_of_rows,
    kept_positions,
    most_prominent_sources,
    search_grid,
    sources_of,
    start_walks,
)
from cns_dask.smoothing.plan import size_smoothing, smoothing_stages
from cns_dask.smoothing.solver import solve_block

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
    arrays = {}
    if points is not None:
        distances = np.linalg.norm(points[neighbors] - points[:, None], axis=2)
        arrays = {"points": points, "graph__distances": distances}
    run = run_in(folder, 70, graph__indices=neighbors, **arrays)
    return run, size_smoothing(N_ROWS, 70, GRID, cap, grid_tol, overrides)


def searched(
    folder, neighbors, points=None, cap=300, grid_tol=TOL, n_clusters=None, overrides=SMALL, selection="paper"
):
    """Result, kept absorption and run of a search of the grid."""
    run, sizes = begin(folder, neighbors, points, cap, grid_tol, overrides)
    result = search_grid(
        run,
        sizes,
        selection=selection,
        n_clusters=n_clusters,
        min_cluster_size=None,
        max_candidates=cap,
        grid_tol=grid_tol,
        tol=TOL,
        seed=0,
    )
    return result, np.asarray(run.writer.array("absorption")[...]), run


def assert_equals_the_dense_version(result, absorption, dense):
    np.testing.assert_allclose(result.evaluation.surface, dense.criterion, atol=1e-8)
    picks = result.evaluation.picks
    for at_k, k in enumerate(GRID.ks):
        assert result.n_candidates[k] == len(dense.candidates[k])
        for at_lam, lam in enumerate(GRID.lams):
            expected = dense.picks[k, lam]
            assert picks[at_k, at_lam, : len(expected)].tolist() == expected.tolist()
            assert (picks[at_k, at_lam, len(expected) :] == -1).all()
    choice = result.selection.used
    assert (choice.n_neighbors, choice.lam, choice.n_clusters) == dense.choice
    assert choice == result.selection.paper
    assert result.rows.tolist() == dense.picks[dense.choice[:2]][: choice.n_clusters].tolist()
    assert result.clusters.tolist() == list(range(choice.n_clusters))
    assert result.representatives.tolist() == result.rows.tolist()
    np.testing.assert_allclose(oracle.memberships(absorption), dense.F, atol=1e-9)


@pytest.mark.parametrize("overrides", [{}, SMALL, {"block_width": 16, "rows_per_absorption_chunk": 23}])
def test_the_grid_equals_the_dense_version_however_it_is_cut(overrides, neighbors, points, dense, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors, points, overrides=overrides)
    assert_equals_the_dense_version(result, absorption, dense)
    assert 0 < result.residual <= TOL
    assert 0 < result.grid_residual <= TOL


def test_blocks_for_many_threads_give_the_same_to_the_last_bit(neighbors, points, dense, tmp_path, monkeypatch):
    wide, of_wide, _ = searched(tmp_path / "wide", neighbors, points, overrides={"block_width": 16})
    monkeypatch.setattr(plan_module, "NARROW_ROWS", 0)
    monkeypatch.setattr(grid_module, "processes", lambda: [("many", 100, 0)])
    narrow, of_narrow, _ = searched(tmp_path / "narrow", neighbors, points, overrides={"block_width": 16})
    resumed, _ = begin(tmp_path / "narrow", neighbors, points)
    assert max(resumed.load("widths")[:-1]) < 16
    assert_equals_the_dense_version(narrow, of_narrow, dense)
    np.testing.assert_array_equal(of_narrow, of_wide)
    np.testing.assert_array_equal(narrow.evaluation.surface, wide.evaluation.surface)


def test_a_resumed_run_keeps_the_blocks_that_it_began_with(neighbors, points, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_module, "NARROW_ROWS", 0)
    seen = []
    for threads in 100, 1:
        monkeypatch.setattr(grid_module, "processes", lambda threads=threads: [("some", threads, 0)])
        run, sizes = begin(tmp_path, neighbors, points, overrides={"block_width": 16})
        seen.append(grid_module.with_widths(run, sizes).widths)
    assert seen[0] == seen[1] != grid_module.narrow(sizes, 1).widths


def test_limited_candidates_equal_the_dense_version(neighbors, points, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors, points, cap=9)
    assert max(result.n_candidates.values()) == 9
    assert_equals_the_dense_version(
        result, absorption, oracle.fit(points, GRID.ks, GRID.lams, GRID.max_clusters, cap=9)
    )


def test_a_graph_alone_needs_no_points(neighbors, dense, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors)
    assert_equals_the_dense_version(result, absorption, dense)
    assert result.selection.dimension is None


def test_progress_comes_to_its_end_without_distances_too(neighbors, tmp_path):
    _, _, run = searched(tmp_path, neighbors)
    assert run.progress.finished == run.progress.planned


@pytest.mark.parametrize("selection", ["auto", "scales"])
def test_the_choice_of_the_paper_is_stored_whatever_chooses(selection, neighbors, points, dense, tmp_path):
    result, _, _ = searched(tmp_path, neighbors, points, selection=selection)
    np.testing.assert_allclose(result.evaluation.surface, dense.criterion, atol=1e-8)
    paper, found = result.selection.paper, result.evaluation
    assert (paper.n_neighbors, paper.lam, paper.n_clusters) == dense.choice
    assert (
        sources_of(paper, GRID, found.picks, found.candidates, found.clusters).rows.tolist()
        == dense.picks[dense.choice[:2]][: paper.n_clusters].tolist()
    )


@pytest.mark.parametrize("n_clusters", [4, 5])
def test_absorption_is_that_at_all_candidates_of_a_cluster(n_clusters, neighbors, points, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors, points, n_clusters=n_clusters, selection="scales")
    used, evaluation = result.selection.used, result.evaluation
    assert (used.selection, used.n_clusters, used.lam) == ("scales", n_clusters, GRID.lams[0])
    at, W = GRID.ks.index(used.n_neighbors), oracle.transition(neighbors[:, : used.n_neighbors])
    of_candidates = evaluation.clusters[at, n_clusters - 1]
    assert set(of_candidates[of_candidates >= 0].tolist()) == set(range(n_clusters))
    assert result.rows.tolist() == evaluation.candidates[at][of_candidates >= 0].tolist()
    assert result.clusters.tolist() == of_candidates[of_candidates >= 0].tolist()
    x = oracle.columns(W, used.lam, result.rows)
    dense = used.lam * np.stack([x[:, result.clusters == K].sum(axis=1) for K in range(n_clusters)], axis=1)
    assert absorption.shape == (N_ROWS, n_clusters)
    np.testing.assert_allclose(absorption, dense, atol=1e-10)
    degrees = np.bincount(neighbors[:, : used.n_neighbors].ravel(), minlength=N_ROWS)
    for K, row in enumerate(result.representatives):
        members = result.rows[result.clusters == K]
        assert row == min(members, key=lambda each: (-degrees[each], each))


def test_candidates_of_every_k_and_their_clusters_are_known_for_every_number_of_clusters(
    neighbors, points, dense, tmp_path
):
    evaluation = searched(tmp_path, neighbors, points, selection="scales")[0].evaluation
    for at, k in enumerate(GRID.ks):
        count = len(dense.candidates[k])
        assert evaluation.candidates[at, :count].tolist() == dense.candidates[k].tolist()
        assert (evaluation.candidates[at, count:] == -1).all()
        n_rates = np.isfinite(evaluation.rates[at]).sum()
        assert (np.diff(evaluation.rates[at, : n_rates - 1]) >= 0).all()
        for K in range(1, GRID.max_scale + 1):
            clusters = evaluation.clusters[at, K - 1]
            expected = set(range(K)) if n_rates > K else set()  # one rate more than groups
            assert set(clusters.tolist()) - {-1} == expected
            assert (clusters[count:] == -1).all()


def test_rows_of_the_smallest_cluster_equal_those_of_labels(neighbors, points, dense, tmp_path):
    smallest = searched(tmp_path, neighbors, points)[0].evaluation.smallest
    for at_k, k in enumerate(GRID.ks):
        for at_lam, lam in enumerate(GRID.lams):
            P = lam * oracle.columns(oracle.transition(neighbors[:, :k]), lam, dense.picks[k, lam])
            for K in range(1, P.shape[1] + 1):
                sizes = np.bincount(P[:, :K].argmax(axis=1), minlength=K)
                assert smallest[at_k, at_lam, K - 1] == sizes.min()


@pytest.mark.parametrize("overrides", [{}, {"block_width": 16, "rows_per_absorption_chunk": 23}])
def test_scales_do_not_depend_on_how_the_work_is_cut(overrides, neighbors, points, tmp_path):
    one, P, _ = searched(tmp_path / "one", neighbors, points, selection="scales")
    two, Q, _ = searched(tmp_path / "two", neighbors, points, selection="scales", overrides=overrides)
    np.testing.assert_array_equal(two.evaluation.clusters, one.evaluation.clusters)
    np.testing.assert_allclose(two.evaluation.rates, one.evaluation.rates, atol=1e-8)
    np.testing.assert_allclose(two.evidence, one.evidence, atol=1e-5)
    np.testing.assert_allclose(Q, P, atol=1e-9)


def test_a_cluster_is_represented_by_its_first_candidate_of_largest_degree():
    candidates = Candidates(np.array([2, 5, 7, 9]), np.array([4, 8, 8, 3]), 4)
    sources = Sources(np.array([2, 5, 7, 9]), np.array([1, 0, 0, 1]))
    assert [rows.tolist() for rows in sources.by_cluster()] == [[5, 7], [2, 9]]
    assert most_prominent_sources(sources, candidates).tolist() == [5, 2]


def dimension_of(folder, X, k, rows_per_chunk=100):
    """The intrinsic dimension as a fit finds it, from k neighbours of every row."""
    distances, neighbors = NearestNeighbors(n_neighbors=k).fit(X).kneighbors(X)
    run = run_in(folder, rows_per_chunk, graph__indices=neighbors, graph__distances=distances)
    sizes = size_smoothing(len(X), rows_per_chunk, Grid((2, k), (0.1,), 3), 10, 1e-4)
    _, dimension = start_walks(run, sizes, 10, 1e-4, seed=0, cover=False)
    assert run.progress.finished == run.progress.planned
    return dimension


@pytest.mark.parametrize(("n_features", "low", "high"), [(1, 0.95, 1.05), (2, 1.9, 2.15), (10, 8.5, 10.5)])
@pytest.mark.parametrize("k", [5, 28])
def test_the_intrinsic_dimension_is_known(n_features, low, high, k, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((1500, n_features))
    assert low < dimension_of(tmp_path / "plain", X, k) < high
    turned = X @ np.linalg.qr(rng.standard_normal((12, n_features)))[0].T  # more features, and the same dimension
    assert low < dimension_of(tmp_path / "turned", turned, k) < high


def test_a_curve_in_space_has_one_dimension(tmp_path):
    t = np.random.default_rng(0).uniform(1, 9, 1500)
    assert 0.9 < dimension_of(tmp_path, np.column_stack([t * np.cos(t), t * np.sin(t), t]), 10) < 1.1


def test_a_sample_of_the_chunks_tells_the_dimension_of_many(tmp_path):
    X = np.random.default_rng(0).standard_normal((1500, 2))
    assert 1.8 < dimension_of(tmp_path, X, 10, rows_per_chunk=10) < 2.2


def test_copies_of_rows_tell_nothing_about_the_dimension(tmp_path):
    X = np.random.default_rng(0).standard_normal((700, 2))
    assert 1.8 < dimension_of(tmp_path / "some", np.concatenate([X, X[:400], X[:400]]), 20) < 2.3
    assert dimension_of(tmp_path / "all", np.repeat(X[:100], 12, axis=0), 10) is None
    assert dimension_of(tmp_path / "constant", np.zeros((200, 2)), 10) is None
    assert dimension_of(tmp_path / "short", X, 2) is None  # one neighbour besides the row has no other to compare with


@pytest.mark.parametrize(("n_features", "side"), [(1, 1500), (2, 40), (3, 11)])
def test_a_lattice_has_about_its_own_dimension(n_features, side, tmp_path):
    X = np.stack(np.meshgrid(*[np.arange(float(side))] * n_features), axis=-1).reshape(-1, n_features)
    assert dimension_of(tmp_path, X, 28) == pytest.approx(n_features, rel=0.25)


def test_a_looser_tolerance_of_the_grid_leads_to_the_same_decisions(neighbors, points, dense, tmp_path):
    result, absorption, _ = searched(tmp_path, neighbors, points, grid_tol=1e-4)
    tight, _, _ = searched(tmp_path / "tight", neighbors, points)
    np.testing.assert_array_equal(result.evaluation.picks, tight.evaluation.picks)
    assert TOL < result.grid_residual <= 1e-4
    assert result.residual <= TOL  # what is kept is solved once more
    np.testing.assert_allclose(oracle.memberships(absorption), dense.F, atol=1e-9)


def test_what_could_win_is_evaluated_again_to_the_final_tolerance(neighbors, points, dense, tmp_path):
    run, sizes = begin(tmp_path, neighbors, points, grid_tol=1e-4)
    result = search_grid(
        run,
        replace(sizes, tightens=True),
        selection="paper",
        n_clusters=None,
        min_cluster_size=None,
        max_candidates=300,
        grid_tol=1e-4,
        tol=TOL,
        seed=0,
    )
    choice = result.selection.used
    assert (choice.n_neighbors, choice.lam, choice.n_clusters) == dense.choice
    at = GRID.ks.index(choice.n_neighbors)
    np.testing.assert_allclose(result.evaluation.surface[at], dense.criterion[at], atol=1e-8)
    np.testing.assert_allclose(result.evaluation.surface, dense.criterion, atol=1e-2)
    assert run.progress.stages == ["candidates", "evaluate", "tighten", "absorption"]
    assert run.progress.finished == run.progress.planned


@pytest.mark.parametrize("k", GRID.ks)
def test_a_residual_that_is_no_number_stays_one(k, neighbors, points, tmp_path, monkeypatch):
    def broken(walk, *arguments):
        solved = solve_block(walk, *arguments)
        if walk.neighbors.shape[1] == k:
            solved.residuals[0, 0] = np.nan
        return solved

    monkeypatch.setattr(grid_module.solver, "solve_block", broken)
    assert np.isnan(searched(tmp_path, neighbors, points)[0].grid_residual)


def test_a_fixed_number_of_clusters_is_chosen_among_those_only(neighbors, points, dense, tmp_path):
    result, _, _ = searched(tmp_path, neighbors, points, n_clusters=6)
    at_k, at_lam = np.unravel_index(np.nanargmax(dense.criterion[:, :, 5]), (3, 3))
    choice = result.selection.used
    assert (choice.n_neighbors, choice.lam, choice.n_clusters) == (GRID.ks[at_k], GRID.lams[at_lam], 6)
    assert choice.value == pytest.approx(dense.criterion[at_k, at_lam, 5])


def test_more_clusters_than_candidates_are_refused_before_the_grid_is_evaluated(neighbors, points, tmp_path):
    with pytest.raises(InvalidSettingError, match=r"number of candidates \(5\)\. Got 6\. Use fewer clusters"):
        searched(tmp_path, neighbors, points, cap=5, n_clusters=6)
    assert not (tmp_path / "scratch.zarr/absorption-4").exists()


@pytest.mark.parametrize("selection", ["paper", "scales"])
def test_what_is_recorded_is_not_solved_again_and_absorption_of_the_grid_is_gone(
    selection, neighbors, points, tmp_path, monkeypatch
):
    result, absorption, run = searched(tmp_path, neighbors, points, selection=selection)
    assert not [name for name in run.writer.scratch.names() if name.startswith("absorption")]

    def refuse(*arguments):
        raise AssertionError("solved again")

    monkeypatch.setattr(grid_module.solver, "solve_block", refuse)
    again, same, run = searched(tmp_path, neighbors, points, selection=selection)
    np.testing.assert_array_equal(again.evaluation.surface, result.evaluation.surface)
    np.testing.assert_array_equal(same, absorption)
    assert again.selection == result.selection
    np.testing.assert_array_equal(again.evidence, result.evidence)
    assert (again.residual, again.n_passes) == (result.residual, result.n_passes)
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
    np.testing.assert_array_equal(again.evaluation.surface, result.evaluation.surface)
    np.testing.assert_array_equal(same, absorption)
    assert any("evaluate" in line and "done by an earlier run" in line for line in run.progress.lines)


def test_stages_run_as_they_are_described(neighbors, points, tmp_path):
    result, _, run = searched(tmp_path, neighbors, points, n_clusters=6)
    assert run.progress.stages == ["candidates", "evaluate", "absorption"]
    assert run.progress.finished == run.progress.planned
    counts = [result.n_candidates[k] for k in GRID.ks]
    blocks, kept = sum(-(-count // 4) for count in counts), -(-result.selection.used.n_clusters // 8)
    assert kept == 1
    chunks, of_walks = 5, 1 + 1 + 3 + 3  # order and positions; candidates and nodes of every k
    assert run.progress.planned == {"candidates": of_walks + 2 * chunks + 1, "evaluate": blocks + 3, "absorption": kept}
    described = {stage.name: stage for stage in smoothing_stages(begin(tmp_path, neighbors, points)[1])}
    assert set(run.progress.stages) < set(described)


def test_sums_over_rows_do_not_depend_on_what_tells_that_blocks_are_there():
    absorption = np.random.default_rng(0).random((2, 5, 40))
    gram = gram_of_rows([(1e-9, 30, None)], absorption, slice(10, 30), np.array([3, 12, 29, 30, 39]))
    np.testing.assert_allclose(gram.sums, absorption[:, :, 10:30].sum(axis=2))
    np.testing.assert_allclose(gram.products, np.einsum("lir,ljr->lij", *[absorption[:, :, 10:30]] * 2))


def test_rows_that_are_kept_stand_for_all(neighbors, points, tmp_path):
    """The grid with the absorption at most rows only: exact sums, nearly the same criterion, the same clusters."""
    whole, P, _ = searched(tmp_path / "whole", neighbors, points, selection="scales")
    some, P_some, run = searched(
        tmp_path / "some", neighbors, points, selection="scales", overrides=SMALL | {"kept_rows": 280}
    )
    assert some.selection.used.n_clusters == whole.selection.used.n_clusters == 4
    np.testing.assert_allclose(some.evaluation.surface, whole.evaluation.surface, rtol=0.15, atol=0.02)
    np.testing.assert_array_equal(some.evaluation.candidates, whole.evaluation.candidates)
    np.testing.assert_array_equal(some.evaluation.picks[:, :, 0], whole.evaluation.picks[:, :, 0])  # by exact sums
    assert some.selection.used.n_neighbors == whole.selection.used.n_neighbors
    by_size = [each[:, np.argsort(each.sum(axis=0))] for each in (P_some, P)]
    np.testing.assert_allclose(*by_size, atol=1e-9)  # what is stored is known at all rows
    assert run.progress.finished == run.progress.planned


def test_kept_rows_are_spread_evenly_and_the_candidates_follow(neighbors, points, tmp_path):
    _, sizes = begin(tmp_path, neighbors, points, overrides=SMALL | {"kept_rows": 100})
    kept = kept_positions(sizes, np.array([7, 250]))
    assert kept.tolist() == [*range(0, 300, 3), 7, 250]
    assert sizes.n_kept(2) == len(kept)
    gram = gram_of_rows([], np.ones((2, 2, 102)), slice(0, 100), np.array([7, 250]))
    solved = [(0.0, 1, np.array([[5.0], [6.0]])), (0.0, 1, np.array([[7.0], [8.0]]))]
    tail = np.arange(2 * 2 * 102.0).reshape(2, 2, 102)
    of_all = gram_of_all(gram, solved, tail, 300, 100)
    assert of_all.sums.tolist() == [[5, 7], [6, 8]]
    np.testing.assert_allclose(of_all.products, 300)
    assert of_all.masses.sum() == 300
    np.testing.assert_array_equal(of_all.absorbed, tail[0, :, 100:].T)
