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

import dask
import dask.array as da
import numpy as np

from cns_dask import columns, criterion, selection
from cns_dask.data import is_lazy, open_data
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotConvergedWarning
from cns_dask.given import listed, open_graph
from cns_dask.graphs import find_neighbors
from cns_dask.memberships import clustering
from cns_dask.neighbors import choose_method
from cns_dask.plan import SUMMED_AT_ONCE, GraphPlan, Plan, make_plan, plan_graph
from cns_dask.preprocess import apply_transform, learn_transform
from cns_dask.result import Result
from cns_dask.runtime import Progress, check_memory, check_path_is_shared, in_worker_memory, run
from cns_dask.settings import Settings
from cns_dask.store import RESULT, ResultStore, TemporaryStore, check_space, new_result, write_block
from cns_dask.transition import walk_on as neighbors_at
from cns_dask.types import ArrayLike, Candidates, Choice, FloatArray, Grid, IntArray, NeighborGraph, Transform

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
    _warn_if_not_converged(result.largest_residual, settings.tol)
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
    plan = make_plan(n_rows, graph_plan, grid, settings.max_candidates)
    check_memory(plan.worker_bytes)
    check_space(store.path, plan.disk_bytes)
    check_path_is_shared(str(store.path))
    work = _Work(store, plan, progress)

    if X is not None:
        work.points(X, settings)
    indices = work.graph(given, graph_plan, grid, settings)
    candidates = work.candidates(indices, grid, settings)
    surface, picks = work.cells(indices, candidates, grid, settings)
    choice = criterion.choose(surface, grid, settings.n_clusters)
    picked = picks[grid.ks.index(choice.n_neighbors), grid.lams.index(choice.lam)]
    picked = picked[picked >= 0]
    picked_columns = work.picked_columns(indices, picked, choice, settings)
    work.clusters(picked_columns, choice.n_clusters)

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
        largest_residual=work.largest_residual if np.isfinite(work.largest_residual) else None,  # JSON has no NaN
        most_passes=work.most_passes,
        versions={name: version(name) for name in RECORDED_VERSIONS},
        seconds=progress.seconds,
    )
    return Result(store)


class _Work:
    """The stages of one fit: each builds tasks, runs them, and returns what it stored."""

    def __init__(self, store: ResultStore, plan: Plan, progress: Progress) -> None:
        self._store, self._plan, self._progress = store, plan, progress
        self.largest_residual, self.most_passes = 0.0, 0

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

    def graph(self, given: NeighborGraph | None, plan: GraphPlan, grid: Grid, settings: Settings) -> da.Array:
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
        return self._store.open("graph/indices")

    def candidates(self, indices: da.Array, grid: Grid, settings: Settings) -> dict[int, Candidates]:
        """Find the points that may represent clusters, one k after the other: each needs its whole graph."""
        points = self._store.array("points") if "points" in self._store else None
        limit = settings.max_candidates
        found: dict[int, Candidates] = {}
        with self._progress.stage("candidates", len(grid.ks)) as advance:
            for k in grid.ks:
                task = dask.delayed(selection.find_candidates)(neighbors_at(indices, k), points, limit)
                (found[k],) = run([task], advance)
        most = max(len(candidates.rows) for candidates in found.values())
        if settings.n_clusters is not None and settings.n_clusters > most:
            raise InvalidSettingError(
                f"n_clusters must be at most the number of candidates ({most}). Got {settings.n_clusters}. "
                "Use fewer clusters, a smaller n_neighbors (more local maxima), or a larger max_candidates."
            )
        return found

    def cells(
        self, indices: da.Array, candidates: dict[int, Candidates], grid: Grid, settings: Settings
    ) -> tuple[FloatArray, IntArray]:
        """Evaluate every (k, lam): criterion and picked rows, both (k, lam, K). One k after the other is in scratch."""
        n_rows, width = indices.shape[0], self._plan.columns_per_block
        shape = (len(grid.ks), len(grid.lams), grid.max_clusters)
        surface, picks = np.full(shape, np.nan), np.full(shape, -1)
        n_pieces = sum(-(-len(found.rows) // width) + len(grid.lams) for found in candidates.values())
        with self._progress.stage("cells", n_pieces) as advance:
            for at_k, (k, found) in enumerate(candidates.items()):
                scratch = self._store.scratch(
                    "columns", (len(grid.lams), n_rows, len(found.rows)), (1, self._plan.rows_per_column_chunk, width)
                )
                self._solve(neighbors_at(indices, k), found.rows, grid.lams, settings, scratch, advance)
                for at_lam, (values, picked) in enumerate(run(_cell_tasks(scratch, k, grid), advance)):
                    surface[at_k, at_lam] = values
                    picks[at_k, at_lam, : len(picked)] = found.rows[picked]
            self._store.drop_scratch()
        return surface, picks

    def picked_columns(self, indices: da.Array, picked: IntArray, choice: Choice, settings: Settings) -> da.Array:
        """Solve the picked columns of the winning cell once more, to keep them: any K is a view of them."""
        width = self._plan.columns_per_block
        target = self._store.create("columns", (indices.shape[0], len(picked)), (self._plan.rows_per_chunk, width))
        with self._progress.stage("columns", -(-len(picked) // width)) as advance:
            self._solve(neighbors_at(indices, choice.n_neighbors), picked, (choice.lam,), settings, target, advance)
        return self._store.open("columns")

    def clusters(self, picked_columns: da.Array, n_clusters: int) -> None:
        """Store memberships, labels and confidence."""
        self._write("memberships", vars(clustering(picked_columns, n_clusters)))

    def _solve(
        self, neighbors: Any, rows: IntArray, lams: tuple[float, ...], settings: Settings, target: Any, advance: Any
    ) -> None:
        """Solve columns block by block and write P, lam times the columns, into `target`."""
        width = self._plan.columns_per_block
        nodes = dask.delayed(columns.ritz_values)(neighbors, settings.random_state)
        tasks = [
            dask.delayed(solve_and_write)(
                neighbors, rows[start : start + width], lams, nodes, settings.tol, target, start
            )
            for start in range(0, len(rows), width)
        ]
        residuals, passes = zip(*run(tasks, advance), strict=True)
        self.largest_residual = float(np.max([self.largest_residual, *residuals]))  # a NaN stays one
        self.most_passes = max(self.most_passes, *passes)

    def _write(self, stage: str, arrays: dict[str, da.Array]) -> None:
        """Compute arrays with one row per data row into the store."""
        rows = self._plan.rows_per_chunk
        tasks = [task for name, values in arrays.items() for task in self._store.fill(name, values, rows)]
        with self._progress.stage(stage, len(tasks)) as advance:
            run(tasks, advance)


def solve_and_write(
    neighbors: IntArray,
    rows: IntArray,
    lams: tuple[float, ...],
    nodes: Any,
    tol: float,
    target: ArrayLike,
    start: int,
) -> tuple[float, int]:
    """Solve one block and write P = lam x to `target` from column `start` on; return its largest residual and passes.

    The target is (lam, row, column), or (row, column) for a single lam.
    """
    block = columns.column_block(neighbors, rows, np.array(lams), nodes, tol)
    P = np.multiply(block.values, np.array(lams)[:, None, None], out=block.values)
    region = (slice(None), slice(start, start + len(rows)))
    if target.ndim == 2:
        write_block(P[0], target, region)
    else:
        write_block(P, target, (slice(None), *region))
    return float(block.residuals.max()), block.n_passes


def _cell_tasks(scratch: ArrayLike, n_neighbors: int, grid: Grid) -> list[Any]:
    """One task for every lam of a k: (criterion of every K, picked positions). Rows are reduced chunk by chunk."""
    n_rows, step = scratch.shape[1], scratch.chunks[1]
    parts = [slice(start, start + step) for start in range(0, n_rows, step)]
    tasks = []
    for at, lam in enumerate(grid.lams):
        grams = [dask.delayed(selection.gram_block)(scratch, at, rows) for rows in parts]
        while len(grams) > 1:
            grams = [
                dask.delayed(selection.sum_grams)(grams[i : i + SUMMED_AT_ONCE])
                for i in range(0, len(grams), SUMMED_AT_ONCE)
            ]
        picks = dask.delayed(selection.greedy_picks)(grams[0], grid.max_clusters)
        largest = [dask.delayed(criterion.largest_memberships_block)(scratch, at, rows, picks) for rows in parts]
        values = dask.delayed(criterion.cell_criterion)(largest, n_rows, n_neighbors, lam, grid.max_clusters)
        tasks.append(dask.delayed((values, picks)))
    return tasks


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
