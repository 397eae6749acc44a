"""The whole fit against the dense oracle, and its invariances."""

import warnings

import dask
import dask.array as da
import numpy as np
import oracle
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cns_dask.errors import InvalidDataError, InvalidSettingError, NotConvergedWarning
from cns_dask.pipeline import fit
from cns_dask.progress import Progress
from cns_dask.settings import Settings
from cns_dask.smoothing import newton, solver

lattice = hnp.arrays(float, st.tuples(st.integers(2, 40), st.integers(1, 3)), elements=st.integers(-2, 2).map(float))


@st.composite
def clusters(draw, repeats=True):
    """Gaussian clusters, some rows of which may be repeated."""
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    n, d = draw(st.integers(5, 60)), draw(st.integers(1, 4))
    X = draw(st.floats(0, 6)) * rng.standard_normal((3, d))[rng.integers(3, size=n)] + rng.standard_normal((n, d))
    repeated = draw(st.integers(0, n // 2)) if repeats else 0
    X[rng.integers(n, size=repeated)] = X[rng.integers(n, size=repeated)]
    return X


PAPER_CASES = {"X": clusters() | lattice, "max_clusters": st.integers(1, 12), "cap": st.sampled_from([3, 300])}


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(**PAPER_CASES)
@example(X=np.zeros((2, 1)), max_clusters=5, cap=300)  # two rows
@example(X=np.array([[0.0], [1.0]]), max_clusters=5, cap=300)
@example(X=np.full((30, 3), 7.0), max_clusters=5, cap=300)  # constant data
@example(X=np.arange(9.0)[:, None] ** 2, max_clusters=5, cap=300)  # n just above k_max, one feature
@example(X=np.repeat(np.eye(3), 12, axis=0), max_clusters=5, cap=300)  # duplicates only
def test_every_step_equals_the_dense_oracle(X, max_clusters, cap):
    with dask.config.set(scheduler="synchronous"):
        result = fit(X, Settings(selection="paper", max_clusters=max_clusters, max_candidates=cap, tol=1e-13))
        ours = dask.compute(result.points, result.graph.indices, result.memberships, result.labels)
    points, indices, F, labels = ours
    grid = result.grid
    dense = oracle.fit(points, grid.ks, grid.lams, grid.max_clusters, cap)
    np.testing.assert_array_equal(indices, dense.neighbors)
    np.testing.assert_allclose(result.criterion, dense.criterion, atol=1e-8)
    choice = result.choice
    assert (choice.n_neighbors, choice.lam, choice.n_clusters) == dense.choice
    np.testing.assert_array_equal(
        result.representatives, dense.picks[choice.n_neighbors, choice.lam][: choice.n_clusters]
    )
    np.testing.assert_allclose(F, dense.F, atol=1e-10)
    assert_same_labels(labels, dense.F, tie=1e-9)


@pytest.mark.slow
@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(**PAPER_CASES)
def test_every_step_equals_the_dense_oracle_many_times(X, max_clusters, cap):
    test_every_step_equals_the_dense_oracle.hypothesis.inner_test(X, max_clusters, cap)


def assert_same_labels(labels, F, tie):
    """Every row has a largest membership as its label; there may be several, as in the middle of a symmetric graph."""
    np.testing.assert_array_less(F.max(axis=1) - tie, F[np.arange(len(F)), labels])


SIMPLE_CASES = {"X": clusters(repeats=False), "metric": st.sampled_from(["euclidean", "cosine"])}


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(**SIMPLE_CASES)
def test_the_default_tolerance_gives_every_decision_of_the_direct_solve(X, metric):
    """On rows without duplicates: among these, ties may come out in another order unless the tolerance is tight."""
    X = np.c_[X, np.random.default_rng(0).standard_normal((len(X), 2))]  # in a line, cosine leaves only two directions
    with dask.config.set(scheduler="synchronous"):
        result = fit(X, Settings(selection="paper", metric=metric))
        points, F, labels = dask.compute(result.points, result.memberships, result.labels)
    grid, choice = result.grid, result.choice
    dense = oracle.fit(points, grid.ks, grid.lams, grid.max_clusters)
    np.testing.assert_allclose(result.criterion, dense.criterion, atol=1e-4)
    assert (choice.n_neighbors, choice.lam, choice.n_clusters) == dense.choice
    np.testing.assert_array_equal(
        result.representatives, dense.picks[choice.n_neighbors, choice.lam][: choice.n_clusters]
    )
    np.testing.assert_allclose(F, dense.F, atol=1e-8)
    assert_same_labels(labels, dense.F, tie=1e-7)


@pytest.mark.slow
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(**SIMPLE_CASES)
def test_the_default_tolerance_gives_every_decision_of_the_direct_solve_many_times(X, metric):
    test_the_default_tolerance_gives_every_decision_of_the_direct_solve.hypothesis.inner_test(X, metric)


@pytest.fixture(scope="module")
def reference(blobs):
    return fit(blobs, Settings())


def assert_same(result, reference):
    np.testing.assert_array_equal(result.labels.compute(), reference.labels.compute())
    np.testing.assert_allclose(result.memberships.compute(), reference.memberships.compute(), rtol=0, atol=1e-13)
    np.testing.assert_array_equal(result.representatives, reference.representatives)


@pytest.fixture
def many_chunks(small_chunks, blobs):
    result = fit(blobs, Settings())
    assert result.points.numblocks[0] == 8
    return result


def test_small_and_large_chunks_give_the_same_result(many_chunks, reference):
    """Other blocks of columns stop after another number of passes: equal up to the tolerance."""
    np.testing.assert_array_equal(many_chunks.graph.indices.compute(), reference.graph.indices.compute())
    np.testing.assert_allclose(many_chunks.graph.distances.compute(), reference.graph.distances.compute(), rtol=1e-13)
    np.testing.assert_array_equal(many_chunks.labels.compute(), reference.labels.compute())
    np.testing.assert_array_equal(many_chunks.picks, reference.picks)
    np.testing.assert_allclose(many_chunks.memberships.compute(), reference.memberships.compute(), atol=1e-8)
    np.testing.assert_allclose(many_chunks.criterion, reference.criterion, atol=1e-7)


@pytest.mark.parametrize("chunks", [(600, 5), (599, 5), (100, 1), (37, 2), ((1, 299, 300), (5,))])
def test_chunking_of_the_input_does_not_change_the_result(blobs, many_chunks, chunks):
    assert_same(fit(da.from_array(blobs, chunks=chunks), Settings()), many_chunks)


@pytest.mark.parametrize("scheduler", ["synchronous", "threads"])
def test_local_schedulers_give_the_same_result(blobs, many_chunks, scheduler):
    with dask.config.set(scheduler=scheduler):
        assert_same(fit(blobs, Settings()), many_chunks)


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_chunking_does_not_change_the_result_of_projected_data_with_duplicates(small_chunks, metric):
    rng = np.random.default_rng(3)
    X = rng.standard_normal((400, 30)) + 2 * rng.standard_normal((3, 30))[rng.integers(3, size=400)]
    X[200:260] = X[:60]
    chosen = Settings(metric=metric, max_components=10)
    whole = fit(X, chosen)
    for chunks in (33, 150):
        assert_same(fit(da.from_array(X, chunks=(chunks, 7)), chosen), whole)


def test_a_permutation_of_the_rows_renames_clusters_at_most(blobs, reference):
    order = np.random.default_rng(1).permutation(len(blobs))
    permuted = fit(blobs[order], Settings())
    old, new = reference.labels.compute()[order], permuted.labels.compute()
    assert permuted.choice.n_clusters == reference.choice.n_clusters
    names = dict(zip(new.tolist(), old.tolist(), strict=True))
    assert sorted(names.values()) == list(range(reference.choice.n_clusters))
    np.testing.assert_array_equal([names[label] for label in new.tolist()], old)
    F = permuted.memberships.compute()[:, np.argsort([names[K] for K in range(len(names))])]
    np.testing.assert_allclose(F, reference.memberships.compute()[order], atol=1e-8)
    assert set(order[permuted.representatives]) == set(reference.representatives)


def test_fixed_values_are_used(blobs):
    result = fit(blobs, Settings(n_neighbors=9, lam=0.1, n_clusters=5))
    choice = result.choice
    assert (choice.n_neighbors, choice.lam, choice.n_clusters) == (9, 0.1, 5)
    assert choice.margin is None
    assert result.memberships.shape == (600, 5)


def test_lam_near_one_gives_the_start_solution(blobs):
    """lam -> 1: every row but the representatives is undecided."""
    result = fit(blobs, Settings(n_neighbors=9, lam=1 - 1e-9, n_clusters=3, selection="paper"))
    F = result.memberships.compute()
    expected = np.full((600, 3), 1 / 3)
    expected[result.representatives] = np.eye(3)
    np.testing.assert_allclose(F, expected, atol=1e-8)


def test_more_clusters_than_candidates_is_an_error_that_leaves_nothing_behind(blobs, tmp_path):
    with pytest.raises(InvalidSettingError, match=r"at most the number of candidates \(\d+\)\. Got 500"):
        fit(blobs, Settings(n_clusters=500), out=tmp_path / "r.zarr")
    X = blobs.copy()
    X[3, 1] = np.nan
    with pytest.raises(InvalidDataError, match="infinite values"):
        fit(da.from_array(X), Settings(), out=tmp_path / "r.zarr")
    assert list(tmp_path.iterdir()) == []


def test_a_solve_that_does_not_converge_warns_with_the_residual(blobs, monkeypatch):
    monkeypatch.setattr(newton, "MAX_CYCLES", 1)
    monkeypatch.setattr(solver, "find_nodes", lambda *_: np.array([1.0, 0.5], complex))
    monkeypatch.setattr(solver, "DIRECT_BYTES", 0)
    monkeypatch.setattr(solver, "krylov_vectors", lambda n_rows: 3)
    monkeypatch.setattr(solver, "KRYLOV_CYCLES", 1)
    with pytest.warns(
        NotConvergedWarning, match=r"reached a residual of \S+ instead of (grid_)?tol = 1\.0e-09"
    ) as told:
        result = fit(blobs, Settings(n_neighbors=6, lam=0.05))
    assert ["memberships may be off" in str(each.message) for each in told] == [True, False]
    assert result.largest_residual > 1e-9


def test_a_residual_that_is_no_number_warns_too(blobs, monkeypatch):
    block = solver.solve_block

    def broken(*arguments):
        solved = block(*arguments)
        solved.residuals[0, 0] = np.nan
        return solved

    monkeypatch.setattr(solver, "solve_block", broken)
    with pytest.warns(NotConvergedWarning, match="reached a residual of nan instead of"):
        result = fit(blobs, Settings(n_neighbors=6, lam=0.05))
    assert np.isnan(result.largest_residual)


def test_progress_counts_every_piece_of_every_stage(blobs):
    class Counting(Progress):
        def __init__(self):
            super().__init__()
            self.pieces = []

        def _begin(self, name, total):
            self.pieces.append([name, total, 0])

        def _advance(self):
            self.pieces[-1][2] += 1

    progress = Counting()
    fit(blobs, Settings(), progress=progress)
    assert [name for name, *_ in progress.pieces] == [
        "preprocess",
        "points",
        "copies",
        "neighbors",
        "candidates",
        "evaluate",
        "communities",
        "absorption",
        "memberships",
    ]
    assert all(total == done > 0 for _, total, done in progress.pieces)
    assert set(progress.seconds) == {name for name, *_ in progress.pieces}


def test_a_fit_raises_no_warnings(blobs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(blobs, Settings(metric="cosine"))


@pytest.mark.slow
def test_many_candidates_and_many_clusters_equal_the_dense_version():
    """The cap and K_max well above their defaults."""
    X = np.random.default_rng(5).standard_normal((5000, 2))
    result = fit(X, Settings(selection="paper", n_neighbors=3, lam=0.2, max_candidates=2000, max_clusters=300))
    points = oracle.prepare(X, "euclidean")
    D = oracle.distances(points)
    N = oracle.neighbors(D, 3)
    found = oracle.candidates(N, D, 2000)
    assert result.details["n_candidates"] == {"3": len(found)}
    assert len(found) > 700
    x = 0.2 * np.linalg.solve(np.eye(5000) - 0.8 * oracle.transition(N), np.eye(5000)[:, found])
    chosen = result.picks[0, 0]
    assert (chosen >= 0).all()
    assert len(set(chosen)) == 300
    sums, products = x.sum(0), x.T @ x
    position = {row: at for at, row in enumerate(found)}
    picks = [position[row] for row in chosen]
    assert sums[picks[0]] == pytest.approx(sums.max())
    for count in range(1, 300):
        worst = (products[:, picks[:count]] / sums[:, None] ** 2).max(axis=1)
        worst[picks[:count]] = np.inf
        assert worst[picks[count]] <= worst.min() + 1e-9


@pytest.mark.parametrize("method", ["cells", "descent"])
def test_constant_features_make_no_difference_to_an_approximate_search(method):
    rows = np.random.default_rng(0).standard_normal((1500, 4))
    rows[:700] += 6
    settings = Settings(method=method, recall=0.9)
    wider = np.column_stack([rows[:, :2], np.full(1500, 3.0), rows[:, 2:], np.zeros(1500)])
    plain, other = (fit(each, settings).labels.compute() for each in (rows, wider))
    np.testing.assert_array_equal(plain, other)
