"""Nodes of the polynomial: where they come from, and in which order they are used."""

import numpy as np
import oracle

from cns_dask.smoothing import nodes as nodes_module
from cns_dask.smoothing.nodes import node_sets, order_nodes
from cns_dask.smoothing.walk import walk_on


def graph(n_rows, n_features=2, k=6, seed=0, apart=0.0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n_rows, n_features))
    X[: n_rows // 2] += apart
    return oracle.neighbors(oracle.distances(X), k)


def test_nodes_are_eigenvalues_when_the_iteration_runs_to_the_end():
    neighbors = graph(30, k=4)
    nodes = node_sets(walk_on(neighbors), 0, 0.05, 1e-13)[0]
    exact = np.linalg.eigvals(oracle.transition(neighbors))
    distance = np.abs(nodes[:, None] - exact[None]).min(axis=1)
    assert distance.max() < 1e-5
    assert (nodes.imag >= 0).all()
    assert abs(nodes - 1).min() < 1e-10


def test_order_of_nodes_keeps_all_of_them_and_the_residual_small():
    nodes = np.concatenate([np.linspace(-0.3, 0.97, 30), [0.5 + 0.2j, 0.1 + 0.1j, 0.99, 0.995, 1.0]])
    ordered, pole = order_nodes(nodes, 1.003), 1.003
    np.testing.assert_array_equal(np.sort_complex(ordered), np.sort_complex(nodes))
    size = np.ones(len(nodes))
    for node in ordered[:-1]:
        for member in {node, node.conjugate()}:
            size = size * np.abs((nodes - member) / (pole - member))
        assert size.max() <= 10 * (1 + 1e-9)


def test_harmonic_values_leave_the_smallest_residual(monkeypatch):
    """The polynomial with these zeros is that of GMRES: compared with least squares over the Krylov space."""
    neighbors, lam, count = graph(400, 2), 0.05, 10
    walk, pole = walk_on(neighbors), 1 / (1 - lam)
    monkeypatch.setattr(nodes_module, "spectrum_steps", lambda _: count)
    nodes = node_sets(walk, 0, lam, 1e-13)[1]
    W, start = oracle.transition(neighbors), np.random.default_rng(0).standard_normal(400)
    start /= np.linalg.norm(start)
    krylov = [start]
    for _ in range(count):
        krylov.append(W @ krylov[-1])
    A = pole * np.array(krylov[:-1]).T - np.array(krylov[1:]).T
    smallest = start - A @ np.linalg.lstsq(A, start, rcond=None)[0]
    residual, every = start.astype(complex), np.concatenate([nodes, nodes[nodes.imag > 0].conj()])
    for node in every:
        residual = (W @ residual - node * residual) / (pole - node)
    np.testing.assert_allclose(np.linalg.norm(residual), np.linalg.norm(smallest), rtol=1e-5)
