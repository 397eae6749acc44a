"""Memberships of new points, from a stored result.

f(x) = (1-lam) * mean of F over the k nearest training points of x + lam/K

F is affine in P, so this is the F of P(x) = (1-lam) * mean of P over these points. A point that coincides with a
training row (the first of equal ones) takes that row's P: up to the solver's tolerance the same number, unless that row
is a representative, which keeps its own.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.cells import search_new_rows
from cns_dask.data import is_lazy, open_data
from cns_dask.errors import NotAResultError
from cns_dask.memberships import clustering_block, from_blocks
from cns_dask.neighbors import exact_search
from cns_dask.plan import rows_per_chunk
from cns_dask.preprocess import apply_transform
from cns_dask.result import Result
from cns_dask.runtime import Progress, check_path_is_shared, in_worker_memory, run
from cns_dask.store import PREDICTION, new_result
from cns_dask.types import ArrayLike, Clustering, FloatArray, IntArray


def predict(result: Result, new: Any) -> Clustering:
    """Cluster new rows with a stored result, lazily and chunk by chunk.

    Parameters
    ----------
    result
        An opened result.
    new
        Rows with the features of the training data (m, d): see `open_data`.
    """
    choice, cells = result.choice, result.cells
    if result.points is None:
        raise NotAResultError(
            "The result must hold the training rows. Got a fit of a graph alone. Fit with the rows too."
        )
    X = open_data(new, min_rows=1)
    queries = apply_transform(X if is_lazy(new) else in_worker_memory(X), result.transform)
    if cells is None:
        found = exact_search(queries, result.stored("points"), choice.n_neighbors)
    else:
        found = search_new_rows(queries, cells, choice.n_neighbors)
    columns = result.stored("columns")
    P = [
        dask.delayed(visits_block)(indices, distances, columns, choice.n_clusters, choice.lam)
        for indices, distances in zip(
            found.indices.to_delayed().ravel(), found.distances.to_delayed().ravel(), strict=True
        )
    ]
    like = da.empty((queries.shape[0], choice.n_clusters), chunks=(queries.chunks[0], choice.n_clusters))
    return from_blocks([dask.delayed(clustering_block)(block) for block in P], like)


def predict_to(
    out: str | os.PathLike[str], result: Result, new: Any, *, overwrite: bool = False, progress: Progress | None = None
) -> None:
    """Cluster new rows and store labels, memberships and confidence in a Zarr group at `out`."""
    X = open_data(new, min_rows=1)
    rows = rows_per_chunk(X.shape[0], max(X.shape[1], result.choice.n_neighbors, result.choice.n_clusters))
    found = vars(predict(result, X.rechunk({0: rows})))
    with new_result(out, PREDICTION, overwrite=overwrite) as store:
        check_path_is_shared(str(store.path))
        tasks = [task for name, values in found.items() for task in store.fill(name, values, rows)]
        with (progress or Progress()).stage("predict", len(tasks)) as advance:
            run(tasks, advance)
        store.describe(model=result.path, choice=asdict(result.choice))


def visits_block(
    indices: IntArray, distances: FloatArray, columns: ArrayLike, n_clusters: int, lam: float
) -> FloatArray:
    """P of some new rows (m, K) from their nearest training rows (m, k); only the needed rows of `columns` are read."""
    needed, position = np.unique(indices, return_inverse=True)
    P, position = np.asarray(columns[needed, :n_clusters]), position.reshape(indices.shape)
    if np.isnan(P).any():
        raise NotAResultError("The columns of the result must be complete. Got some that are missing. Fit again.")
    mean = np.zeros((len(indices), n_clusters))
    for column in position.T:  # neighbour by neighbour: (m, k, K) never exists at once
        mean += P[column] / indices.shape[1]
    known = distances[:, :1] == 0
    return np.where(known, P[position[:, 0]], (1 - lam) * mean)
