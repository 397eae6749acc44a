"""The search for neighbours, stage by stage, into a store: exact, or approximate with a measured recall.

Like `pipeline`, whose part it is, this starts work and writes; the mathematics is in `neighbors`, `cells` and `audit`.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np

from cns_dask.approximate import ApproximateWork
from cns_dask.data import is_lazy, open_data
from cns_dask.errors import LowRecallWarning
from cns_dask.neighbors import choose_method, exact_graph
from cns_dask.plan import GraphPlan, plan_graph
from cns_dask.preprocess import apply_transform
from cns_dask.result import stored_graph
from cns_dask.runtime import Progress, check_memory, check_path_is_shared, in_worker_memory, run
from cns_dask.settings import check_integer, check_setting
from cns_dask.store import GRAPH, ResultStore, TemporaryStore, check_space, new_result
from cns_dask.types import NeighborGraph, Transform


def neighbor_graph(  # noqa: PLR0913 - one parameter per choice
    X: Any,
    n_neighbors: int,
    *,
    metric: str = "euclidean",
    method: str = "auto",
    recall: float = 0.99,
    random_state: int = 0,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> NeighborGraph:
    """Find the nearest rows of every row, out of core, on the active Dask client or on this process's threads.

    Parameters
    ----------
    X
        The data (n, d): anything that `CNS.fit` takes. They are used as they are, without centring or scaling.
    n_neighbors
        Neighbours per row, the row itself included: at least 1, below n.
    metric
        "euclidean", or "cosine": Euclidean between rows divided by their norms.
    method
        "exact": every pair of chunks is compared. "cells": rows are moved to cells around centres, and each is compared
        with the cells in its reach; right up to some hundred thousand rows or in few dimensions. "descent": large
        overlapping partitions, and pynndescent in each; right for millions of rows in many dimensions. "auto": "exact"
        for up to 20 000 rows, else "cells", or "descent" where a sample shows that this is cheaper.
    recall
        Share of the true neighbours that an approximate search has to find: it is measured on 1 000 rows, and the
        search goes on until the lower end of the 95 % interval reaches it. A `LowRecallWarning` tells if it never does.
    random_state
        Seed of the samples. The same seed gives the same graph for any chunking, workers, threads and scheduler.
    out
        Where the graph is kept, as a Zarr group that `CNS.fit(graph=...)` takes; a temporary folder if None.
    overwrite
        Replace a graph that is already at `out`.
    progress
        Is told about stages and counts.

    Returns
    -------
    NeighborGraph
        Lazy `indices` and `distances` (n, n_neighbors), the `method` that was used, and the measured `recall`.

    Examples
    --------
    >>> graph = neighbor_graph([[0.0], [1.0], [3.0], [3.5]], n_neighbors=2)
    >>> graph.indices.compute()
    array([[0, 1],
           [1, 0],
           [2, 3],
           [3, 2]])
    """
    chosen = {"metric": metric, "method": method, "recall": recall, "random_state": random_state}
    for name, value in chosen.items():
        check_setting(name, value)
    progress = progress or Progress()
    data = open_data(X) if is_lazy(X) else in_worker_memory(open_data(X))
    n_rows, n_features = data.shape
    check_integer("n_neighbors", n_neighbors, 1, n_rows - 1)
    plan = plan_graph(n_rows, n_features, n_neighbors, exact=choose_method(n_rows, method) == "exact")
    as_is = Transform(
        n_features, np.arange(n_features), np.zeros(n_features), np.ones(n_features), None, metric == "cosine", 0.0
    )
    points = apply_transform(data.rechunk({0: plan.rows_per_chunk}), as_is)
    with nullcontext(TemporaryStore()) if out is None else new_result(out, GRAPH, overwrite=overwrite) as store:
        check_memory(plan.worker_bytes)
        check_space(store.path, plan.disk_bytes)
        check_path_is_shared(str(store.path))
        tasks = store.fill("points", points, plan.rows_per_chunk)
        with progress.stage("points", len(tasks)) as advance:
            run(tasks, advance)
        find_neighbors(store, (n_neighbors, n_neighbors), plan, method, recall, random_state, progress)
        store.describe(n_neighbors=n_neighbors, seconds=progress.seconds, **chosen)
    return stored_graph(store)


def find_neighbors(
    store: ResultStore,
    ks: tuple[int, int],
    plan: GraphPlan,
    method: str,
    recall: float,
    seed: int,
    progress: Progress,
) -> None:
    """Find the neighbours of the stored points at the larger of `ks`, and store them with their recall at both."""
    points = store.array("points")
    if choose_method(points.shape[0], method) == "exact":
        graph = exact_graph(points, ks[1])
        tasks = store.fill("graph/indices", graph.indices, plan.rows_per_chunk)
        tasks += store.fill("graph/distances", graph.distances, plan.rows_per_chunk)
        with progress.stage("neighbors", len(tasks)) as advance:
            run(tasks, advance)
        store.describe_graph(method="exact", recall=[])
        return
    reached = ApproximateWork(store, ks[1], plan, seed, progress).build(method, recall, ks[0])
    if reached.low < recall:
        warnings.warn(
            f"The graph must hold at least {recall} of the true neighbours. Got {reached.mean:.4f} "
            f"({reached.low:.4f} to {reached.high:.4f}) at k = {reached.n_neighbors}. "
            "Use method='exact', or a lower recall.",
            LowRecallWarning,
            stacklevel=4,
        )
