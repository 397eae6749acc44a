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
from cns_dask.fingerprint import content_of, way_of
from cns_dask.memberships import clustering_block, from_blocks
from cns_dask.missing import KEPT, marked, row_codes
from cns_dask.neighbors import exact_search
from cns_dask.outputs import make
from cns_dask.plan import rows_per_chunk
from cns_dask.preprocess import apply_transform
from cns_dask.result import Result
from cns_dask.runtime import Progress, check_path_is_shared, in_worker_memory
from cns_dask.store import PREDICTION, ResultStore
from cns_dask.types import ArrayLike, Clustering, FloatArray, IntArray, Transform
from cns_dask.work import Work


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
    X = X if is_lazy(new) else in_worker_memory(X)
    skips = result.settings.missing == "skip"
    transform = result.transform
    queries = apply_transform(X.map_blocks(filled_block, transform, dtype=X.dtype) if skips else X, transform)
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
    clusterings = [dask.delayed(clustering_block)(block) for block in P]
    if skips:
        rows = X.to_delayed().ravel()
        clusterings = [dask.delayed(marked_block)(each, block) for each, block in zip(clusterings, rows, strict=True)]
    like = da.empty((queries.shape[0], choice.n_clusters), chunks=(queries.chunks[0], choice.n_clusters))
    return from_blocks(clusterings, like)


def filled_block(block: FloatArray, transform: Transform) -> FloatArray:
    """The rows, with one that can be clustered in the place of each that cannot."""
    other = np.zeros(transform.n_features)
    other[transform.kept] = transform.center + transform.scale
    return np.where((row_codes(block) == KEPT)[:, None], block, other)


def marked_block(found: Clustering, block: FloatArray) -> Clustering:
    """What was found, with rows that cannot be clustered marked as such."""
    return marked(found, row_codes(block))


def predict_to(
    out: str | os.PathLike[str], result: Result, new: Any, *, overwrite: bool = False, progress: Progress | None = None
) -> None:
    """Cluster new rows and store labels, memberships and confidence in a Zarr group at `out`.

    What an earlier run has left unfinished is continued; a finished output of the same rows and model stays as it is.
    """
    progress = progress or Progress()
    X = open_data(new, min_rows=1)
    rows = rows_per_chunk(X.shape[0], max(X.shape[1], result.choice.n_neighbors, result.choice.n_clusters))
    X = X.rechunk({0: rows})
    found = vars(predict(result, X))
    model = result.details.get("fingerprint") or content_of(result.path, result.labels, progress)  # of a temporary one
    fingerprint = {"data": content_of(new, X, progress), "model": model}

    def fill(store: ResultStore) -> None:
        check_path_is_shared(store.place)
        work = Work(store, progress)
        work.run("predict", work.fill(found, rows))
        store.describe(model=result.path, choice=asdict(result.choice))

    make(out, PREDICTION, fingerprint, way_of(rows), fill, overwrite=overwrite, tell=progress.tell)


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
