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
from cns_dask.neighbors.graph import NeighborGraph
from cns_dask.settings import Grid
from cns_dask.smoothing.candidates import find_candidates
from cns_dask.smoothing.criterion import choose, criterion_of_lams, largest_memberships_block
from cns_dask.smoothing.memberships import clustering_block
from cns_dask.smoothing.nodes import node_sets
from cns_dask.smoothing.picks import gram_block, picks_of_lams
from cns_dask.smoothing.solver import BLOCK_WIDTHS, solve_block
from cns_dask.smoothing.walk import order_rows, positions_in, walk_on


def overlapping_clusters(n_rows: int, n_features: int, n_clusters: int = 10, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = 1.2 * rng.standard_normal((n_clusters, n_features))
    return centers[rng.integers(n_clusters, size=n_rows)] + rng.standard_normal((n_rows, n_features))


def by_polynomial(neighbors: np.ndarray, rows: np.ndarray, lams: np.ndarray, tol: float) -> np.ndarray:
    order, width = order_rows(neighbors), BLOCK_WIDTHS[0]
    place, walk = positions_in(order), walk_on(neighbors, order=order)
    nodes = node_sets(walk, 0, lams.min(), tol)[0]
    near = np.argsort(place[rows])
    blocks = [
        solve_block(walk, place[rows[near[at : at + width]]], lams, nodes, tol, width)
        for at in range(0, len(rows), width)
    ]
    return np.concatenate([block.values for block in blocks], axis=2)[:, place][:, :, np.argsort(near)]


def by_factorisation(W: Any, rows: np.ndarray, lams: np.ndarray) -> np.ndarray:
    units = np.zeros((W.shape[0], len(rows)))
    units[rows, np.arange(len(rows))] = 1
    columns = []
    for lam in lams:
        started = time.perf_counter()
        columns.append(splu((eye_array(W.shape[0]) - (1 - lam) * W).tocsc()).solve(units))
        print(f"    LU at lam = {lam:.4f}: {time.perf_counter() - started:.1f} s", flush=True)
    return np.array(columns)


def picks_and_criterion(columns: np.ndarray, rows: np.ndarray, k: int, grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    columns = np.ascontiguousarray(columns.transpose(0, 2, 1))
    everything, slots = slice(0, columns.shape[2]), np.arange(columns.shape[1])
    picks = picks_of_lams(gram_block(columns, everything, rows), slots, grid.max_clusters)
    sums = largest_memberships_block(columns, everything, slots, picks)
    return picks, criterion_of_lams([sums], columns.shape[2], columns.shape[2], k, grid.lams, grid.max_clusters).values


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
    tol = settings.tol_of_grid(arguments.rows)
    by_polynomial(graph.indices[:, :2], np.array([0]), lams, tol)  # compile

    seconds = {"polynomial": 0.0, "factorisation": 0.0}
    surfaces: dict[str, list[Any]] = {"polynomial": [], "factorisation": []}
    memberships: dict[tuple[str, int, float], np.ndarray] = {}
    same_picks = 0
    for k in grid.ks:
        neighbors = graph.indices[:, :k]
        found = find_candidates(neighbors, X, settings.max_candidates)
        print(f"k = {k}: {len(found.rows)} candidates", flush=True)
        all_picks = {}
        for name in seconds:
            started = time.perf_counter()
            if name == "polynomial":
                columns = by_polynomial(neighbors, found.rows, lams, tol)
            else:
                columns = by_factorisation(transition_matrix(graph, k), found.rows, lams)
            seconds[name] += time.perf_counter() - started
            columns *= lams[:, None, None]
            all_picks[name], values = picks_and_criterion(columns, found.rows, k, grid)
            surfaces[name].append(values)
            for at, lam in enumerate(grid.lams):
                memberships[name, k, lam] = columns[at][:, all_picks[name][at]]
        same_picks += sum(map(np.array_equal, *all_picks.values()))
    choices = {name: choose(np.array(surface), grid, len(X)) for name, surface in surfaces.items()}
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
