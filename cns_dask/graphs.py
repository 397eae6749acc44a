"""The search for neighbours, stage by stage, into a store: exact, or approximate with a measured recall.

Like `pipeline`, whose part it is, this starts work and writes; the mathematics is in `neighbors`, `cells` and `audit`.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from cns_dask.approximate import ApproximateWork
from cns_dask.data import open_data
from cns_dask.errors import LowRecallWarning
from cns_dask.fingerprint import content_of, way_of
from cns_dask.neighbors import choose_method, exact_graph
from cns_dask.outputs import check_space, make
from cns_dask.plan import GraphPlan, plan_graph
from cns_dask.preprocess import apply_transform, with_components
from cns_dask.progress import Progress
from cns_dask.result import stored_graph
from cns_dask.runtime import check_memory, check_path_is_shared
from cns_dask.settings import Settings, check_integer, check_setting
from cns_dask.store import GRAPH, ResultStore, TemporaryStore
from cns_dask.types import NeighborGraph, Transform
from cns_dask.work import Work


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
    scratch: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **reading: Any,
) -> NeighborGraph:
    """Find the nearest rows of every row, out of core, on the active Dask client or on this process's threads.

    Parameters
    ----------
    X
        The data (n, d): anything that `open_data` takes, and what it returns. They are used as they are, without
        centring or scaling; but sparse rows of more than 100 columns are projected on their first 100 singular vectors.
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
        Where the graph is kept, as a Zarr group that `CNS.fit(graph=...)` takes; a temporary folder if None. An
        unfinished one is continued; one that is finished, of the same data and parameters, is taken as it is.
    overwrite
        Replace a graph of other data or parameters that is already at `out`.
    scratch
        Folder (path or URL) for intermediate values; beside the output if None.
    progress
        Is told about stages and counts.
    **reading
        Options of `open_data` (`columns`, `component`, `features`).

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
    data = open_data(X, **reading)
    n_rows, n_features = data.X.shape
    check_integer("n_neighbors", n_neighbors, 1, n_rows - 1)
    width = Settings().max_components if data.sparse else None
    plan = plan_graph(n_rows, n_features, n_neighbors, width, exact=choose_method(n_rows, method) == "exact")
    as_is = Transform(
        n_features, np.arange(n_features), np.zeros(n_features), np.ones(n_features), None, metric == "cosine", 0.0
    )
    data = replace(data, X=data.X.rechunk({0: plan.rows_per_chunk}))
    check_memory(plan.worker_bytes)

    def fill(store: ResultStore) -> None:
        work = Work(store, progress)
        check_begin(work, plan.disk_bytes)
        rows, transform = work.sent(data.X) if data.in_memory else data.X, as_is
        if width is not None and n_features > width:
            transform = work.once("preprocess", lambda: with_components(rows, as_is, width), drop=False)
        work.run("points", work.fill({"points": apply_transform(rows, transform)}, plan.rows_per_chunk))
        known = find_neighbors(work, (n_neighbors, n_neighbors), plan, method, recall, random_state)
        store.describe_graph(**known)
        store.describe(n_neighbors=n_neighbors, seconds=progress.seconds, **chosen)

    if out is None:
        store: ResultStore = TemporaryStore()
        fill(store)
        return stored_graph(store)
    fingerprint = {"data": content_of(data, progress), "settings": {"n_neighbors": n_neighbors, **chosen}}
    made = make(out, GRAPH, fingerprint, way_of(plan), fill, overwrite=overwrite, scratch=scratch, tell=progress.tell)
    return stored_graph(made)


def check_begin(work: Work, disk_bytes: int) -> None:
    """Look whether the work can begin: there is room for it, and every worker sees where it goes."""
    if not work.begun:  # else some of it is there already
        check_space(work.store.scratch_place, disk_bytes)
    check_path_is_shared(work.store.place)


def find_neighbors(
    work: Work, ks: tuple[int, int], plan: GraphPlan, method: str, recall: float, seed: int
) -> dict[str, Any]:
    """Find the neighbours of the stored points at the larger of `ks`; return what is to be told about them."""
    points = work.store.array("points")
    if choose_method(points.shape[0], method) == "exact":
        graph = exact_graph(points, ks[1])
        lists = {"graph/indices": graph.indices, "graph/distances": graph.distances}
        work.run("neighbors", work.fill(lists, plan.rows_per_chunk))
        return {"method": "exact", "recall": []}
    search = ApproximateWork(work, ks[1], plan, seed)
    reached = search.build(method, recall, ks[0])
    if reached.low < recall:
        warnings.warn(
            f"The graph must hold at least {recall} of the true neighbours. Got {reached.mean:.4f} "
            f"({reached.low:.4f} to {reached.high:.4f}) at k = {reached.n_neighbors}. "
            "Use method='exact', or a lower recall.",
            LowRecallWarning,
            stacklevel=4,
        )
    return search.known
