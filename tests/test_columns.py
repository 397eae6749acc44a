import numpy as np
import oracle
import pytest

from cns_dask import columns
from cns_dask.columns import column_block, column_residuals, leja_order, newton_passes, ritz_values

LAMS = np.array([0.05, 0.1, 0.3])


def graph(n_rows, n_features=2, k=6, seed=0, apart=0.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features))
    X[: n_rows // 2] += apart
    return oracle.neighbors(oracle.distances(X), k).astype(np.int32)


@pytest.mark.parametrize("n_rows", [7, 60, 400])
@pytest.mark.parametrize("n_features", [1, 2, 8])
@pytest.mark.parametrize("k", [1, 2, 6])
def test_columns_equal_a_direct_solve(n_rows, n_features, k):
    neighbors = graph(n_rows, n_features, k)
    rows = np.array([0, n_rows // 2, n_rows - 1])
    block = column_block(neighbors, rows, LAMS, ritz_values(neighbors, 0), 1e-12)
    for at, lam in enumerate(LAMS):
        dense = oracle.columns(oracle.transition(neighbors), lam, rows)
        np.testing.assert_allclose(block.values[at], dense, atol=1e-11 / lam)
    assert block.residuals.max() <= 1e-12
    assert block.residuals.shape == (3, 3)


def test_error_bound_lam_x_is_at_most_the_residual():
    neighbors = graph(300)
    rows = np.arange(5)
    block = column_block(neighbors, rows, LAMS, ritz_values(neighbors, 0), 1e-4)
    for at, lam in enumerate(LAMS):
        dense = oracle.columns(oracle.transition(neighbors), lam, rows)
        errors = np.abs(lam * (block.values[at] - dense)).max(axis=0)
        assert (errors <= block.residuals[at] + 1e-14).all()
    assert 1e-9 < block.residuals.max() <= 1e-4


def test_rows_that_cannot_reach_the_point_stay_exactly_zero():
    neighbors = graph(200, apart=100.0)
    block = column_block(neighbors, np.array([0, 150]), LAMS, ritz_values(neighbors, 0), 1e-10)
    assert (block.values[:, 100:, 0] == 0).all()
    assert (block.values[:, :100, 1] == 0).all()
    assert (block.values[:, 0, 0] > 0).all()


def test_columns_do_not_depend_on_their_block():
    neighbors = graph(300)
    nodes, rows = ritz_values(neighbors, 0), np.arange(12)
    whole = column_block(neighbors, rows, LAMS, nodes, 1e-12)
    for start in range(0, 12, 5):
        part = column_block(neighbors, rows[start : start + 5], LAMS, nodes, 1e-12)
        np.testing.assert_allclose(part.values, whole.values[:, :, start : start + 5], atol=1e-10)


@pytest.mark.parametrize(
    "nodes",
    [
        np.array([0.0 + 0j]),  # powers of W: far too slow
        np.array([0.3 + 0.9j, -0.9 + 0j]),  # nowhere near the spectrum: diverges
    ],
)
def test_bad_nodes_fall_back_to_a_krylov_method(nodes, monkeypatch):
    calls = []
    krylov = columns._krylov
    monkeypatch.setattr(columns, "_krylov", lambda *a: calls.append(a) or krylov(*a))
    neighbors = graph(300)
    lams = np.array([0.01, 0.2])
    block = column_block(neighbors, np.array([3, 9]), lams, nodes, 1e-10)
    assert calls
    assert block.residuals.max() <= 1e-10
    dense = oracle.columns(oracle.transition(neighbors), 0.01, np.array([3, 9]))
    np.testing.assert_allclose(block.values[0], dense, atol=1e-7)


def test_what_even_the_krylov_method_misses_is_reported(monkeypatch):
    monkeypatch.setattr(columns, "KRYLOV_VECTORS", 2)
    monkeypatch.setattr(columns, "KRYLOV_CYCLES", 1)
    neighbors = graph(300)
    block = column_block(neighbors, np.array([3]), np.array([0.01]), np.array([0.0 + 0j]), 1e-10)
    assert block.residuals.max() > 1e-10
    dense = column_residuals(neighbors, np.array([3]), np.array([0.01]), block.values)
    np.testing.assert_array_equal(block.residuals, dense)


def test_ritz_values_are_eigenvalues_when_the_iteration_runs_to_the_end():
    neighbors = graph(30, k=4)
    nodes = ritz_values(neighbors, 0)
    exact = np.linalg.eigvals(oracle.transition(neighbors))
    distance = np.abs(nodes[:, None] - exact[None]).min(axis=1)
    assert distance.max() < 1e-5
    assert (nodes.imag >= 0).all()
    assert abs(nodes - 1).min() < 1e-10


def test_leja_order_keeps_all_nodes_and_starts_at_the_largest():
    nodes = np.array([0.1, 0.5 + 0.2j, 1.0, -0.3, 0.5 + 0.2j], complex)
    ordered = leja_order(nodes)
    assert ordered[0] == 1.0
    np.testing.assert_array_equal(np.sort_complex(ordered), np.sort_complex(nodes))


@pytest.mark.parametrize("w", [0.3, 0.97, 0.2 + 0.1j])
def test_newton_form_of_the_resolvent(w):
    """One cycle on the scalar w: z/(z - w) is the weighted sum plus the known remainder."""
    nodes = np.array([1.0, -0.2, 0.4 + 0.1j, 0.8], complex)
    groups, factor = newton_passes(nodes, LAMS)
    total, u, before = np.zeros(len(LAMS), complex), 1.0 + 0j, 0j
    for group in groups:
        for step in group:
            total += step.weights * u
            u, before = step.scale * (w - step.shift) * u + step.keep * before, u
    z = 1 / (1 - LAMS)
    np.testing.assert_allclose(total + factor * u * z / (z - w), z / (z - w), rtol=1e-12)
