import numpy as np
import oracle
import pytest

from cns_dask.smoothing import newton, solver
from cns_dask.smoothing.nodes import node_sets
from cns_dask.smoothing.solver import find_nodes, residual_of, solve_block
from cns_dask.smoothing.walk import order_rows, positions_in, walk_on

LAMS = np.array([0.05, 0.1, 0.3])


def graph(n_rows, n_features=2, k=6, seed=0, apart=0.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features))
    X[: n_rows // 2] += apart
    return oracle.neighbors(oracle.distances(X), k)


def solve(neighbors, rows, lams, tol, nodes=None, **more):
    walk = walk_on(neighbors)
    nodes = node_sets(walk, 0, lams.min(), tol)[0] if nodes is None else nodes
    return solve_block(walk, rows, lams, nodes, tol, **more)


@pytest.mark.parametrize("n_rows", [7, 60, 400])
@pytest.mark.parametrize("n_features", [1, 2, 8])
@pytest.mark.parametrize("k", [1, 2, 6])
def test_columns_equal_a_direct_solve(n_rows, n_features, k):
    neighbors = graph(n_rows, n_features, k)
    rows = np.array([0, n_rows // 2, n_rows - 1])
    block = solve(neighbors, rows, LAMS, 1e-12)
    for at, lam in enumerate(LAMS):
        dense = oracle.columns(oracle.transition(neighbors), lam, rows)
        np.testing.assert_allclose(block.values[at], dense, atol=1e-11 / lam)
    assert block.residuals.max() <= 1e-12
    assert block.residuals.shape == (3, 3)


@pytest.mark.parametrize(("tol", "dtype"), [(1e-4, np.float32), (1e-7, np.float64)])
def test_error_bound_lam_x_is_at_most_the_residual(tol, dtype):
    """The residual is known from the passes alone, with what was rounded and dropped on the way."""
    neighbors = graph(800, k=8)
    rows = np.arange(5)
    block = solve(neighbors, rows, LAMS, tol)
    assert block.values.dtype == dtype
    for at, lam in enumerate(LAMS):
        dense = oracle.columns(oracle.transition(neighbors), lam, rows)
        errors = np.abs(lam * (block.values[at] - dense)).max(axis=0)
        assert (errors <= block.residuals[at]).all()
        exact = [residual_of(walk_on(neighbors), row, lam, block.values[at, :, row].astype(float)) for row in rows]
        np.testing.assert_array_less(exact, block.residuals[at])
        np.testing.assert_allclose(block.residuals[at], exact, atol=0.2 * tol)
    assert tol / 1e4 < block.residuals.max() <= tol


@pytest.mark.parametrize("tol", [1e-4, 1e-10])
def test_rows_that_cannot_reach_the_point_stay_exactly_zero(tol):
    neighbors = graph(200, apart=100.0)
    block = solve(neighbors, np.array([0, 150]), LAMS, tol)
    assert (block.values[:, 100:, 0] == 0).all()
    assert (block.values[:, :100, 1] == 0).all()
    assert (block.values[:, 0, 0] > 0).all()


@pytest.mark.parametrize("tol", [1e-4, 1e-12])
def test_columns_do_not_depend_on_their_block_to_the_last_bit(tol):
    walk, rows = walk_on(graph(2000)), np.arange(12)
    nodes = node_sets(walk, 0, LAMS[0], tol)[0]
    whole = solve_block(walk, rows, LAMS, nodes, tol, 16)
    for width in (16, 8, 4):
        for start in range(0, 12, width):
            some = slice(start, start + width)
            part = solve_block(walk, rows[some], LAMS, nodes, tol, width)
            np.testing.assert_array_equal(part.values, whole.values[:, :, some])
            np.testing.assert_array_equal(part.residuals, whole.residuals[:, some])


def test_tiles_that_are_left_out_change_nothing_but_small_values(monkeypatch):
    """A long chain of points: a column is felt by a few tiles of its rows alone."""
    neighbors = oracle.neighbors(oracle.distances(np.arange(3000.0)[:, None]), 5)
    lams, rows = np.array([0.01, 0.03]), np.array([1500])
    nodes = node_sets(walk_on(neighbors), 0, 0.01, 1e-5)[0]
    local = solve(neighbors, rows, lams, 1e-5, nodes)
    assert (local.values[0, :, 0] != 0).mean() < 0.2
    monkeypatch.setattr(newton, "DROPPED_SHARE", 0.0)
    full = solve(neighbors, rows, lams, 1e-5, nodes)
    assert (full.values[0, :, 0] != 0).mean() > (local.values[0, :, 0] != 0).mean()
    np.testing.assert_allclose(lams[:, None, None] * local.values, lams[:, None, None] * full.values, atol=1e-5)


def test_numbering_of_the_rows_does_not_matter():
    neighbors = graph(500)
    order = order_rows(neighbors)
    position = positions_in(order)
    walk, rows = walk_on(neighbors, order=order), np.array([3, 77])
    block = solve_block(walk, position[rows], LAMS, node_sets(walk, 0, LAMS[0], 1e-12)[0], 1e-12)
    plain = solve(neighbors, rows, LAMS, 1e-12)
    np.testing.assert_allclose(block.values[:, position], plain.values, atol=1e-10)


@pytest.mark.parametrize(
    "nodes",
    [
        np.array([0.0 + 0j]),  # powers of W: far too slow
        np.array([0.3 + 0.9j, -0.9 + 0j]),  # nowhere near the spectrum: diverges
    ],
)
@pytest.mark.parametrize(("method", "memory"), [("_direct", solver.DIRECT_BYTES), ("_krylov", 0)])
def test_bad_nodes_fall_back_to_other_methods(nodes, method, memory, monkeypatch):
    calls, used = [], getattr(solver, method)
    monkeypatch.setattr(solver, "DIRECT_BYTES", memory)
    monkeypatch.setattr(solver, method, lambda *a: calls.append(a) or used(*a))
    neighbors = graph(300)
    lams = np.array([0.01, 0.2])
    block = solve(neighbors, np.array([3, 9]), lams, 1e-10, nodes)
    assert calls
    assert block.residuals.max() <= 1e-10
    dense = oracle.columns(oracle.transition(neighbors), 0.01, np.array([3, 9]))
    np.testing.assert_allclose(block.values[0], dense, atol=1e-7)


def chain(length, k):
    """k rows that list each other, then rows that each list those before them: eigenvalues are 0, 1 and 1/k."""
    lists = np.arange(k + length)[:, None] - np.arange(k)
    lists[:k] = (np.arange(k)[:, None] + np.arange(k)) % k
    return walk_on(lists)


@pytest.mark.parametrize("k", [2, 3, 5])
@pytest.mark.parametrize("tol", [1e-4, 1e-10])
def test_long_jordan_chains_are_solved_by_the_polynomial(k, tol, monkeypatch):
    """As rows with many copies have them: other nodes leave a residual that grows with every pass."""
    monkeypatch.setattr(solver, "_without_polynomial", None)
    walk, points, nodes = chain(30, k), np.array([0, k]), np.array([1.0, 0.0], complex)
    block = solve_block(walk, points, LAMS, nodes, tol)
    assert block.residuals.max() <= tol
    for at, lam in enumerate(LAMS):
        dense = oracle.columns(oracle.transition(walk.neighbors), lam, points)
        np.testing.assert_allclose(lam * block.values[at], dense * lam, atol=tol)


def test_a_residual_may_grow_for_a_while(monkeypatch):
    """Each round takes a link off the chain, and the residual grows before it vanishes."""
    arguments = chain(5, 5), np.array([0]), np.array([0.1]), np.array([1.0, 0.2, 0.2], complex), 1e-4
    monkeypatch.setattr(solver, "with_chains", None)  # the nodes that are given suffice
    assert solve_block(*arguments).residuals.max() <= 1e-4


SETS = [np.array([0]), np.array([3, 77, 140]), np.array([150, 9]), np.arange(20, 60)]


@pytest.mark.parametrize("tol", [1e-4, 1e-12])
def test_several_points_in_the_place_of_one_are_the_sum_of_their_columns(tol):
    neighbors = graph(200, apart=3.0)
    block = solve(neighbors, SETS, LAMS, tol)
    assert block.values.shape == (3, 200, 4)
    assert (block.residuals <= tol).all()
    singles = solve(neighbors, np.arange(200), LAMS, tol, width=200)
    for column, points in enumerate(SETS):
        for at, lam in enumerate(LAMS):
            of_points = singles.values[at][:, points].sum(axis=1)
            bound = block.residuals[at, column] + singles.residuals[at, points].sum()
            assert np.abs(lam * (block.values[at, :, column] - of_points)).max() <= bound
            dense = oracle.columns(oracle.transition(neighbors), lam, points).sum(axis=1)
            assert np.abs(lam * (block.values[at, :, column] - dense)).max() <= block.residuals[at, column]
            exact = residual_of(walk_on(neighbors), points, lam, block.values[at, :, column].astype(float))
            assert exact <= block.residuals[at, column]


def test_a_krylov_method_solves_for_several_points_too():
    neighbors = graph(200, apart=3.0)
    block = solve(neighbors, SETS, np.array([0.01]), 1e-10, np.array([0.0 + 0j]))
    assert block.residuals.max() <= 1e-10
    for column, points in enumerate(SETS):
        dense = oracle.columns(oracle.transition(neighbors), 0.01, points).sum(axis=1)
        np.testing.assert_allclose(block.values[0, :, column], dense, atol=1e-7)


def test_a_lam_far_below_one_over_the_root_of_n_is_solved_directly():
    """What a column cannot reach stays 0, and points that stand for one cluster are solved for together."""
    neighbors = graph(1000, apart=30.0)
    sets = [np.array([3]), np.array([9, 700, 800])]
    for lam in (1e-4, 1e-6):
        block = solve(neighbors, sets, np.array([lam]), 1e-9)
        assert block.residuals.max() <= 1e-9
        assert (block.values[0, 500:, 0] == 0).all()
        dense = oracle.columns(oracle.transition(neighbors), lam, np.array([3, 9, 700, 800]))
        expected = np.column_stack([dense[:, 0], dense[:, 1:].sum(axis=1)])
        np.testing.assert_allclose(lam * block.values[0], lam * expected, atol=1e-9)


@pytest.mark.parametrize("n_features", [1, 2, 8])
def test_the_factors_are_never_larger_than_was_said(n_features):
    from scipy.sparse import csc_matrix
    from scipy.sparse.linalg import splu

    neighbors = walk_on(graph(500, n_features), order=order_rows(graph(500, n_features))).neighbors
    matrix = csc_matrix(np.eye(500) - 0.999 * oracle.transition(neighbors))
    factors = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    assert solver.FACTOR_BYTES * (factors.L.nnz + factors.U.nnz - 500) <= solver._factor_bytes(neighbors)


def test_the_krylov_method_keeps_its_budget_and_shares_it_out(monkeypatch):
    monkeypatch.setattr(solver, "DIRECT_BYTES", 0)
    monkeypatch.setattr(solver, "KRYLOV_PASSES", 60)
    spent, krylov = [], solver._krylov
    monkeypatch.setattr(solver, "_krylov", lambda *a: spent.append(krylov(*a)) or spent[-1])
    neighbors = graph(1000)
    block = solve(neighbors, np.arange(6), np.array([1e-5]), 1e-9, np.array([0.0 + 0j]))
    passes = [n_passes for _, _, n_passes in spent]
    assert len(passes) == 6
    assert min(passes) > 1
    assert sum(passes) <= 60 + 2 * 6  # GMRES looks at its start and its end too
    alone = solve(neighbors, np.arange(1), np.array([1e-5]), 1e-9, np.array([0.0 + 0j]))
    assert alone.residuals[0, 0] < block.residuals[0, 0] < 1
    assert (block.residuals > 1e-9).all()


def test_what_even_the_krylov_method_misses_is_reported(monkeypatch):
    monkeypatch.setattr(solver, "DIRECT_BYTES", 0)
    monkeypatch.setattr(solver, "krylov_vectors", lambda n_rows: 2)
    monkeypatch.setattr(solver, "KRYLOV_CYCLES", 1)
    neighbors = graph(300)
    block = solve(neighbors, np.array([3]), np.array([0.01]), 1e-10, np.array([0.0 + 0j]))
    assert block.residuals.max() > 1e-10
    assert block.residuals[0, 0] == residual_of(walk_on(neighbors), 3, 0.01, block.values[0, :, 0])


@pytest.mark.parametrize("tol", [1e-4, 1e-10])
def test_columns_at_some_rows_are_those_at_all_rows(tol):
    """Also those that are solved once more in double precision, or without the polynomial."""
    walk, points, rows = walk_on(graph(500, 2)), np.array([3, 77, 400]), np.array([499, 3, 0, 3])
    for nodes in (node_sets(walk, 0, LAMS[0], tol)[0], np.array([0.5 + 0j])):
        whole, some = (solve_block(walk, points, LAMS, nodes, tol, 4, each) for each in (None, rows))
        np.testing.assert_allclose(some.values, whole.values[:, rows], atol=30 * tol)
        np.testing.assert_allclose(some.sums, whole.values.sum(axis=1, dtype=float), rtol=1e-3)
        np.testing.assert_allclose(some.sums, whole.sums, rtol=1e-3)
        assert some.residuals.max() <= tol


def test_what_single_precision_does_not_solve_is_solved_in_double(monkeypatch):
    """With a hopeless limit that float32 always exceeds, the same polynomial in float64 has to do it alone."""
    walk = walk_on(graph(500, 2))
    nodes, types = node_sets(walk, 0, LAMS[0], 1e-4)[0], []
    solve_by_polynomial = solver.solve_by_polynomial

    def counted(*arguments):
        types.append(arguments[-1])
        block = solve_by_polynomial(*arguments)
        if arguments[-1] is np.float32:
            block.residuals[:, 1] = np.inf
        return block

    expected = solve_block(walk, np.array([3, 77, 400]), LAMS, nodes, 1e-4)
    monkeypatch.setattr(solver, "solve_by_polynomial", counted)
    monkeypatch.setattr(solver, "_without_polynomial", None)
    block = solve_block(walk, np.array([3, 77, 400]), LAMS, nodes, 1e-4)
    assert types == [np.float32, np.float64]
    assert block.residuals.max() <= 1e-4
    np.testing.assert_allclose(block.values, expected.values, atol=1e-2)
    np.testing.assert_array_equal(block.values[:, :, [0, 2]], expected.values[:, :, [0, 2]])


def test_nodes_are_those_that_solve_for_a_few_points(monkeypatch):
    """Where the iteration has not come to its end there are several sets; one of no use is passed over."""
    walk, points = walk_on(graph(2000, 2)), np.arange(0, 2000, 40)
    lams = np.array([0.004, 0.02])
    sets = node_sets(walk, 0, 0.004, 1e-4)
    assert len(sets) == 3
    assert [int(np.where(nodes.imag > 0, 2, 1).sum()) for nodes in sets] == [48, 64, 32]
    np.testing.assert_array_equal(find_nodes(walk, points, lams, 0, 1e-4, 4), sets[0])
    monkeypatch.setattr(solver, "node_sets", lambda *_: [np.array([-0.9 + 0j]), sets[1], sets[0]])
    np.testing.assert_array_equal(find_nodes(walk, points, lams, 0, 1e-4, 4), sets[1])
    monkeypatch.setattr(solver, "node_sets", lambda *_: [sets[2]])
    np.testing.assert_array_equal(find_nodes(walk, points, lams, 0, 1e-4, 4), sets[2])


def test_sums_of_large_clusters_are_settled_at_a_loose_tolerance():
    """Entries of a column are about 1 / (rows of its cluster): far below the tolerance where clusters are large."""
    rng, n_rows, k = np.random.default_rng(0), 120_000, 11
    half = n_rows // 2  # two clusters; every row is on k lists, so the sum of each column is 1 / lam
    lists = [np.concatenate([rng.permutation(half), half + rng.permutation(half)]) for _ in range(k - 1)]
    walk = walk_on(np.stack([np.arange(n_rows), *lists], axis=1))
    lams, rows = np.array([1.0, 5.0]) / np.sqrt(n_rows), np.array([5, 70_000])
    nodes = node_sets(walk, 0, lams.min(), 1e-4)[0]
    block = solve_block(walk, rows, lams, nodes, 1e-4, 2, rows)
    np.testing.assert_allclose(block.sums, np.repeat(1 / lams[:, None], 2, axis=1), rtol=0.02)
