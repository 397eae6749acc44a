"""The neighbour graph alone, as a step of its own."""

import os
from dataclasses import asdict, replace
from typing import Any

import dask.array as da
import numpy as np

from cns_dask.config import default_scratch
from cns_dask.execution.cluster import check_memory, inside_task
from cns_dask.execution.compute import waiting_for_workers
from cns_dask.execution.plan import Plan
from cns_dask.execution.run import Run
from cns_dask.execution.typical import expected_seconds
from cns_dask.inputs.data import open_data
from cns_dask.inputs.preprocess import (
    Transform,
    apply_transform,
    learn_transform,
    preprocess_stages,
    units_of,
    warn_of_axes,
    with_components,
)
from cns_dask.inputs.scaling import known_scaling
from cns_dask.inputs.scan import fingerprint_of
from cns_dask.inputs.spool import needs_spool, spool_stage, spooled
from cns_dask.neighbors.graph import NeighborGraph, Preprocessing, stored_graph
from cns_dask.neighbors.plan import search_stages, size_search
from cns_dask.neighbors.search import find_neighbors
from cns_dask.progress import Progress
from cns_dask.seeds import chosen_seed
from cns_dask.settings import Settings, check_integer, check_setting
from cns_dask.sizing import size_overrides
from cns_dask.storage.fingerprints import resume_key
from cns_dask.storage.layout import Kind
from cns_dask.storage.outputs import open_output


def neighbor_graph(  # noqa: PLR0913 - one parameter per choice
    X: Any,
    n_neighbors: int,
    *,
    metric: str = "euclidean",
    method: str = "auto",
    recall: float = 0.99,
    scale: bool = False,
    random_state: int | None = 0,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> NeighborGraph:
    """Find the nearest rows of every row, out of core, on the active Dask client or on this process's threads.

    Parameters
    ----------
    X
        The data (n, d): anything that `open_data` takes, and what it returns. They are used as they are, without
        centring or scaling, in any unit; but sparse rows of more than 100 features are projected on as many axes. With
        `scale="auto"` they are treated as a fit treats them by default.
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
    scale
        True: centre and scale features, and project more than 100 of them on as many axes. "auto": scale them only
        where a fit does so by default. What was done is stored with the graph, and a fit with `graph=` does it too.
    random_state
        Seed of the samples. The same seed gives the same graph for any chunking, workers, threads and scheduler. None:
        a new one, which is stored.
    out
        Where the graph is kept, as a Zarr group that `CNS.fit(graph=...)` takes; a temporary folder if None. An
        unfinished one is continued; one that is finished, of the same data and parameters, is taken as it is.
    overwrite
        Replace a graph of other data or parameters that is already at `out`.
    scratch
        Folder (path or URL) for intermediate arrays; beside the output if None.
    progress
        Is told about stages and counts.
    **options
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
    given = {"metric": metric, "method": method, "recall": recall, "scale": scale, "random_state": random_state}
    chosen = {name: check_setting(name, value) for name, value in given.items()}
    metric, method, recall, scale, _ = chosen.values()
    seed = chosen["random_state"] = chosen_seed(chosen["random_state"], out, overwrite=overwrite)
    progress = progress or Progress()
    data = open_data(X, **options)
    n_rows, n_features = data.X.shape
    n_neighbors = check_integer("n_neighbors", n_neighbors, 1, n_rows - 1)
    n_components = Settings().max_components if data.is_sparse or scale else None
    preprocessing = Preprocessing(metric, bool(scale), n_components, center=bool(scale))
    sizes = size_search(n_rows, n_features, n_neighbors, method, n_components, size_overrides())
    rows = sizes.rows_per_chunk
    preprocess, points = preprocess_stages(n_rows, n_features, sizes.n_features, rows)
    is_spooled = needs_spool(data, rows)
    plan = Plan((*([spool_stage(data.X, rows)] if is_spooled else []), preprocess, points, *search_stages(sizes)))
    if not is_spooled:
        data = replace(data, X=data.X.rechunk({0: rows}))
    check_memory(plan.worker_bytes)
    fingerprint = (
        {}
        if out is None
        else {"data": fingerprint_of(data, progress, rows=rows), "settings": {"n_neighbors": n_neighbors, **chosen}}
    )
    scratch = default_scratch() if scratch is None else scratch
    options = {"overwrite": overwrite, "scratch": scratch, "inputs": data.files, "tell": progress.tell}
    output_of = open_output(out, Kind.GRAPH, fingerprint, resume_key(sizes), **options)
    with inside_task(), waiting_for_workers(progress.tell), output_of as output:
        if output.writer is not None:
            run = Run(output.writer, progress)
            run.check_ready(plan.disk_bytes)
            progress.expect(expected_seconds(plan))
            raw = run.share(data.X) if data.in_memory else spooled(data.X, rows, run) if is_spooled else data.X
            sparse = None if data.sparse is None else data.sparse.rechunk({0: rows})
            transform = run.load("preprocess") or run.save(
                "preprocess", _learn(raw, preprocessing, scale, sizes.n_features, sparse), drop_scratch=False
            )
            warn_of_axes(transform)
            prepared = apply_transform(raw, transform)
            array = replace(points.array("points"), shape=prepared.shape, chunks=(rows, prepared.shape[1]))
            run.write(replace(points, writes=(array,)), {"points": prepared})  # constant features may be dropped
            summary = find_neighbors(run, sizes, n_neighbors, method, recall, seed)
            unit = 1.0 if transform.normalize or transform.is_scaled else float(transform.scale[0])
            treated = replace(preprocessing, scale=transform.scale_setting)
            summary = replace(summary, unit=unit, preprocessing=treated)
            output.writer.describe_graph(**summary.as_attributes())
            output.writer.describe(n_neighbors=n_neighbors, seconds=progress.seconds, **chosen)
    return stored_graph(output.store)


def _learn(
    X: da.Array, preprocessing: Preprocessing, scale: bool | str, n_components: int, sparse: da.Array | None
) -> Transform:
    """Learn what is done to the rows."""
    if not scale:
        return _unchanged(X, preprocessing.metric, n_components, sparse)
    scaling = known_scaling(scale, "auto", is_sparse=sparse is not None)
    return learn_transform(X, **{**asdict(preprocessing), "scale": scaling}, sparse=sparse)


def _unchanged(X: da.Array, metric: str, n_components: int, sparse: da.Array | None) -> Transform:
    """Features as they are, but in another unit where their squares would leave the range; on axes if they are many."""
    n_features = X.shape[1]
    unit = units_of(np.asarray(da.absolute(X).max(axis=0).compute()), scale=False)
    kept, zeros = np.arange(n_features), np.zeros(n_features)
    transform = Transform(n_features, kept, zeros, unit, None, metric == "cosine", magnitude=0.0, is_scaled=False)
    return with_components(X, transform, n_components, sparse) if n_components < n_features else transform
