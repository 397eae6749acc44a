"""The method as one page: each stage in order, its result stored before the next begins.

This is the only place where the work of a fit is started and written (but for the first look at the data, which dask-ml
computes in `preprocess`). Every stage reads what the one before it has stored, so the graph handed to the scheduler
never grows across stages.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np

from cns_dask import criterion
from cns_dask.data import is_lazy, open_data
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotConvergedWarning
from cns_dask.given import listed, open_graph
from cns_dask.graphs import find_neighbors
from cns_dask.grid import GridWork
from cns_dask.memberships import clustering
from cns_dask.neighbors import choose_method
from cns_dask.plan import GraphPlan, Plan, make_plan, plan_graph
from cns_dask.preprocess import apply_transform, learn_transform
from cns_dask.result import Result
from cns_dask.runtime import Progress, check_memory, check_path_is_shared, in_worker_memory, run
from cns_dask.settings import Settings
from cns_dask.store import RESULT, ResultStore, TemporaryStore, check_space, new_result
from cns_dask.types import Candidates, Grid, NeighborGraph, Transform

RECORDED_VERSIONS = ("cns_dask", "dask", "numpy", "scipy", "zarr")


def fit(
    source: Any,
    settings: Settings,
    *,
    graph: Any = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Cluster the rows of `source` and store everything that was found.

    Parameters
    ----------
    source
        The data (n, d): see `open_data`. None for a graph alone.
    settings
        The method's parameters.
    graph
        A kNN graph of the rows to use instead of searching for one: see `open_graph`.
    out
        Where the result is written; a temporary folder if None.
    overwrite
        Replace a result that is already there, once the new one is complete.
    progress
        Is told about stages and counts.
    """
    progress = progress or Progress()
    X = None if source is None else open_data(source) if is_lazy(source) else in_worker_memory(open_data(source))
    given = None if graph is None else open_graph(graph)
    n_rows = _number_of_rows(X, given)
    grid = settings.grid(n_rows)
    if given is not None and given.indices.shape[1] < grid.ks[-1] - 1:
        raise InvalidSettingError(
            f"The graph must list at least {grid.ks[-1] - 1} neighbours besides the row itself, for the largest k. "
            f"Got {given.indices.shape[1]} at most. Use a larger graph, or smaller n_neighbors or k_multipliers."
        )
    if out is None:
        result = _fit(X, given, settings, grid, TemporaryStore(), progress)
    else:
        with new_result(out, RESULT, overwrite=overwrite) as store:
            result = _fit(X, given, settings, grid, store, progress)
    for reached, tol in (result.largest_residual, settings.tol), (result.grid_residual, settings.tol_of_grid(n_rows)):
        _warn_if_not_converged(reached, tol)
    return result


def _number_of_rows(X: da.Array | None, given: NeighborGraph | None) -> int:
    sizes = {int(array.shape[0]) for array in (X, None if given is None else given.indices) if array is not None}
    if not sizes:
        raise InvalidSettingError("Data or a graph must be given. Got neither.")
    if len(sizes) > 1:
        raise InvalidDataError(f"The data and the graph must have as many rows. Got {sorted(sizes)}.")
    return sizes.pop()


def _fit(
    X: da.Array | None,
    given: NeighborGraph | None,
    settings: Settings,
    grid: Grid,
    store: ResultStore,
    progress: Progress,
) -> Result:
    n_rows, n_features = _number_of_rows(X, given), 1 if X is None else X.shape[1]
    exact = given is not None or choose_method(n_rows, settings.method) == "exact"
    graph_plan = plan_graph(n_rows, n_features, grid.ks[-1], exact=exact)
    plan = make_plan(n_rows, graph_plan, grid, settings.max_candidates, settings.tol_of_grid(n_rows))
    check_memory(plan.worker_bytes)
    check_space(store.path, plan.disk_bytes)
    check_path_is_shared(str(store.path))
    work = _Work(store, plan, progress)

    if X is not None:
        work.points(X, settings)
    work.graph(given, graph_plan, grid, settings)
    columns, tol = GridWork(store, plan, grid, progress), settings.tol_of_grid(n_rows)
    candidates = columns.starts(settings.max_candidates, tol, settings.random_state)
    _check_candidates(candidates, settings)
    surface, picks = columns.cells(tol)
    choice = criterion.choose(surface, grid, n_rows, settings.n_clusters)
    picked = picks[grid.ks.index(choice.n_neighbors), grid.lams.index(choice.lam)]
    picked = picked[picked >= 0]
    columns.keep_columns(picked, choice.n_neighbors, choice.lam, settings.tol)
    work.clusters(choice.n_clusters)

    store.put("k", grid.ks)
    store.put("lam", grid.lams)
    store.put("n_clusters", np.arange(1, grid.max_clusters + 1))
    store.put("criterion", surface)
    store.put("picks", picks)
    store.put("representatives", picked[: choice.n_clusters])
    store.describe(
        settings=settings.as_dict(),
        choice=asdict(choice),
        n_candidates={str(k): len(found.rows) for k, found in candidates.items()},
        largest_residual=_as_json(columns.residuals["kept"]),
        grid_residual=_as_json(columns.residuals["grid"]),
        most_passes=columns.most_passes,
        versions={name: version(name) for name in RECORDED_VERSIONS},
        seconds=progress.seconds,
    )
    return Result(store)


def _check_candidates(candidates: dict[int, Candidates], settings: Settings) -> None:
    most = max(len(found.rows) for found in candidates.values())
    if settings.n_clusters is not None and settings.n_clusters > most:
        raise InvalidSettingError(
            f"n_clusters must be at most the number of candidates ({most}). Got {settings.n_clusters}. "
            "Use fewer clusters, a smaller n_neighbors (more local maxima), or a larger max_candidates."
        )


def _as_json(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON has no NaN


class _Work:
    """The stages of one fit: each builds tasks, runs them, and returns what it stored."""

    def __init__(self, store: ResultStore, plan: Plan, progress: Progress) -> None:
        self._store, self._plan, self._progress = store, plan, progress

    def points(self, X: da.Array, settings: Settings) -> None:
        """Scale and project the rows."""
        X = X.rechunk({0: self._plan.rows_per_chunk})
        with self._progress.stage("preprocess", 1) as advance:
            transform = learn_transform(
                X, metric=settings.metric, scale=settings.scale, max_components=settings.max_components
            )
            _keep_transform(self._store, transform)
            advance()
        self._write("points", {"points": apply_transform(X, transform)})

    def graph(self, given: NeighborGraph | None, plan: GraphPlan, grid: Grid, settings: Settings) -> None:
        """Find the neighbours, once for every k; or take them as given."""
        if given is None:
            ks = grid.ks[0], grid.ks[-1]
            find_neighbors(
                self._store, ks, plan, settings.method, settings.recall, settings.random_state, self._progress
            )
        else:
            lists = listed(given, grid.ks[-1], self._plan.rows_per_chunk)
            arrays = {"graph/indices": lists.indices, "graph/distances": lists.distances}
            self._write("neighbors", {name: values for name, values in arrays.items() if values is not None})
            self._store.describe_graph(method=given.method, recall=[asdict(value) for value in given.recall])

    def clusters(self, n_clusters: int) -> None:
        """Store memberships, labels and confidence."""
        self._write("memberships", vars(clustering(self._store.open("columns"), n_clusters)))

    def _write(self, stage: str, arrays: dict[str, da.Array]) -> None:
        """Compute arrays with one row per data row into the store."""
        rows = self._plan.rows_per_chunk
        tasks = [task for name, values in arrays.items() for task in self._store.fill(name, values, rows)]
        with self._progress.stage(stage, len(tasks)) as advance:
            run(tasks, advance)


def _warn_if_not_converged(largest_residual: float, tol: float) -> None:
    """Tell the caller when a column was not solved to the tolerance."""
    if not largest_residual <= tol:
        warnings.warn(
            f"Every column must be solved to a residual of {tol:.1e}. Got {largest_residual:.1e}: memberships may be "
            "off by as much. Use a larger tol or lam.",
            NotConvergedWarning,
            stacklevel=3,
        )


def _keep_transform(store: ResultStore, transform: Transform) -> None:
    for name in ("kept", "center", "scale", "components"):
        values = getattr(transform, name)
        if values is not None:
            store.put(f"transform/{name}", values)
    plain = ("n_features", "normalize", "magnitude")
    store.describe(transform={name: getattr(transform, name) for name in plain})
