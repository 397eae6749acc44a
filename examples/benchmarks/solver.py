"""All (k, lam) cells by one polynomial sequence per k, against a sparse LU factorisation per cell.

    python examples/benchmarks/solver.py [--rows 5000] [--features 10]

Both get the same graph and the same candidates, run one after the other on one thread in one process, and must agree in
every pick of every cell, in the choice and in all labels. The ratio counts: absolute times depend on the machine.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import dask
import numpy as np
from scipy.sparse import eye_array
from scipy.sparse.linalg import splu
from threadpoolctl import threadpool_limits

from cns_dask import Settings, neighbor_graph, transition_matrix
from cns_dask.columns import column_block, ritz_values
from cns_dask.criterion import cell_criterion, choose, largest_memberships_block
from cns_dask.memberships import clustering_block
from cns_dask.selection import find_candidates, gram_block, greedy_picks
from cns_dask.transition import compact_neighbors
from cns_dask.types import Grid, NeighborGraph

BLOCK = 32


def overlapping_clusters(n_rows: int, n_features: int, n_clusters: int = 10, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = 1.2 * rng.standard_normal((n_clusters, n_features))
    return centers[rng.integers(n_clusters, size=n_rows)] + rng.standard_normal((n_rows, n_features))


def by_polynomial(neighbors: np.ndarray, rows: np.ndarray, lams: np.ndarray, tol: float) -> np.ndarray:
    nodes = ritz_values(neighbors, seed=0)
    blocks = [column_block(neighbors, rows[at : at + BLOCK], lams, nodes, tol) for at in range(0, len(rows), BLOCK)]
    return np.concatenate([block.values for block in blocks], axis=2)


def by_factorisation(W: Any, rows: np.ndarray, lams: np.ndarray) -> np.ndarray:
    units = np.zeros((W.shape[0], len(rows)))
    units[rows, np.arange(len(rows))] = 1
    columns = []
    for lam in lams:
        started = time.perf_counter()
        columns.append(splu((eye_array(W.shape[0]) - (1 - lam) * W).tocsc()).solve(units))
        print(f"    LU at lam = {lam:.4f}: {time.perf_counter() - started:.1f} s", flush=True)
    return np.array(columns)


def picks_and_criterion(columns: np.ndarray, k: int, grid: Grid) -> tuple[list[np.ndarray], list[np.ndarray]]:
    everything, n_rows = slice(None), columns.shape[1]
    picks, values = [], []
    for at, lam in enumerate(grid.lams):
        picks.append(greedy_picks(gram_block(columns, at, everything), grid.max_clusters))
        sums = largest_memberships_block(columns, at, everything, picks[-1])
        values.append(cell_criterion([sums], n_rows, k, lam, grid.max_clusters))
    return picks, values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--features", type=int, default=10)
    arguments = parser.parse_args()
    settings = Settings()
    X, grid = overlapping_clusters(arguments.rows, arguments.features), settings.grid(arguments.rows)
    lazy = neighbor_graph(X, grid.ks[-1])
    graph = NeighborGraph(*dask.compute(lazy.indices, lazy.distances))
    lams = np.array(grid.lams)
    by_polynomial(compact_neighbors(graph.indices[:, :2], arguments.rows), np.array([0]), lams, settings.tol)  # compile

    seconds = {"polynomial": 0.0, "factorisation": 0.0}
    surfaces: dict[str, list[Any]] = {"polynomial": [], "factorisation": []}
    memberships: dict[tuple[str, int, float], np.ndarray] = {}
    same_picks = 0
    for k in grid.ks:
        neighbors = compact_neighbors(graph.indices[:, :k], arguments.rows)
        found = find_candidates(neighbors, X, settings.max_candidates)
        print(f"k = {k}: {len(found.rows)} candidates", flush=True)
        all_picks = {}
        for name in seconds:
            started = time.perf_counter()
            if name == "polynomial":
                columns = by_polynomial(neighbors, found.rows, lams, settings.tol)
            else:
                columns = by_factorisation(transition_matrix(graph, k), found.rows, lams)
            seconds[name] += time.perf_counter() - started
            columns *= lams[:, None, None]
            all_picks[name], values = picks_and_criterion(columns, k, grid)
            surfaces[name].append(values)
            for at, lam in enumerate(grid.lams):
                memberships[name, k, lam] = columns[at][:, all_picks[name][at]]
        same_picks += sum(map(np.array_equal, *all_picks.values()))
    choices = {name: choose(np.array(surface), grid) for name, surface in surfaces.items()}
    labels = {
        name: clustering_block(memberships[name, won.n_neighbors, won.lam][:, : won.n_clusters]).labels
        for name, won in choices.items()
    }
    differ = np.nanmax(np.abs(np.array(surfaces["polynomial"]) - np.array(surfaces["factorisation"])))
    won, other = choices["polynomial"], choices["factorisation"]
    same_choice = (won.n_neighbors, won.lam, won.n_clusters) == (other.n_neighbors, other.lam, other.n_clusters)
    print(
        f"polynomial {seconds['polynomial']:.1f} s, factorisation {seconds['factorisation']:.1f} s: "
        f"{seconds['factorisation'] / seconds['polynomial']:.0f} times faster\n"
        f"same picks in {same_picks} of {len(grid.ks) * len(grid.lams)} cells, "
        f"criterion differs by {differ:.1e} at most\n"
        f"same choice: {same_choice} "
        f"(k = {won.n_neighbors}, lam = {won.lam:.4f}, K = {won.n_clusters}), "
        f"labels that differ: {(labels['polynomial'] != labels['factorisation']).sum()} of {len(X)}"
    )


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
