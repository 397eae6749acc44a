"""The method as one page: each stage in order, its result stored before the next begins.

This is the only place where the work of a fit is started and written (but for the first look at the data, which dask-ml
computes in `preprocess`). Every stage reads what the one before it has stored, so the graph handed to the scheduler
never grows across stages.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import dask.array as da
import numpy as np

from cns_dask import criterion
from cns_dask.changes import Comparison, added, are_at_their_places, follow, tally_block
from cns_dask.data import Arrays, open_data
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotConvergedWarning
from cns_dask.fingerprint import Look, content_of, digest, look, way_of
from cns_dask.given import listed, open_graph
from cns_dask.graphs import check_begin, find_neighbors
from cns_dask.grid import GridWork
from cns_dask.memberships import clustering
from cns_dask.memory import watched_memory
from cns_dask.missing import kept_numbers, kept_rows, put_back, row_codes
from cns_dask.neighbors import choose_method
from cns_dask.outputs import Fingerprint, make
from cns_dask.plan import GraphPlan, Plan, make_plan, plan_graph
from cns_dask.plan import rows_per_chunk as rows_that_fit
from cns_dask.predict import Predictor
from cns_dask.preprocess import apply_transform, learn_transform
from cns_dask.progress import Progress
from cns_dask.result import Result
from cns_dask.runtime import check_memory
from cns_dask.settings import Settings
from cns_dask.store import RESULT, ResultStore, TemporaryStore
from cns_dask.types import Candidates, Data, Grid, NeighborGraph, Transform
from cns_dask.work import Piece, Work

RECORDED_VERSIONS = ("cns_dask", "dask", "numpy", "scipy", "zarr")


def fit(
    source: Any,
    settings: Settings,
    *,
    graph: Any = None,
    like: Any = None,
    out: str | os.PathLike[str] | None = None,
    overwrite: bool = False,
    scratch: str | os.PathLike[str] | None = None,
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
    like
        An earlier result, or its path: clusters that are the same keep their numbers.
    out
        Where the result is written; a temporary folder if None. What an earlier run has left unfinished is continued,
        and a finished result of the same data and settings is returned at once.
    overwrite
        Replace a result of other data or settings that is already there, once the new one is complete.
    scratch
        Folder for intermediate values; beside the output if None.
    progress
        Is told about stages and counts.
    """
    progress = progress or Progress()
    task = _task(source, graph, settings, out is not None, progress)
    task = replace(task, like=_earlier(like, task))
    if out is None:
        return _fit(task, settings, TemporaryStore(), progress)
    fingerprint = _fingerprint(graph, settings, task)

    def fill(store: ResultStore) -> None:
        _fit(task, settings, store, progress)
        if task.data is not None and task.data.files and content_of(task.data, progress) != fingerprint["data"]:
            raise InvalidDataError(f"The data must not change while they are clustered. Got changes in {source}.")

    way = way_of(task.plan, task.graph_plan)
    return Result(make(out, RESULT, fingerprint, way, fill, overwrite=overwrite, scratch=scratch, tell=progress.tell))


@dataclass(frozen=True)
class _Task:
    """What is to be done: the data, opened, and the plan for them.

    `data.X` are all rows, in chunks of which `look.counts` rows can be clustered.
    """

    data: Data | None
    given: NeighborGraph | None
    look: Look
    grid: Grid
    graph_plan: GraphPlan
    plan: Plan
    like: Result | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows that are clustered."""
        return sum(self.look.counts)

    @property
    def lists(self) -> tuple[str, ...]:
        """The stored arrays of the graph; a given one may come without distances."""
        with_distances = self.given is None or self.given.distances is not None
        return ("graph/indices", "graph/distances") if with_distances else ("graph/indices",)

    @property
    def skips(self) -> bool:
        """Whether some rows are left out."""
        return self.data is not None and self.n_rows < self.data.X.shape[0]


def _task(source: Any, graph: Any, settings: Settings, kept: bool, progress: Progress) -> _Task:
    data = None if source is None else open_data(source)
    given = None if graph is None else open_graph(graph)
    n_rows = _number_of_rows(data, given)
    seen, n_features = Look((), (n_rows,)), 1
    if data is not None:
        n_features = data.X.shape[1]
        data = replace(data, X=data.X.rechunk({0: rows_that_fit(*data.X.shape)}))
        skips, hashed = settings.missing == "skip", kept and not data.files
        seen = look(data.X, hashed=hashed, counted=skips, here=data.in_memory, progress=progress)
        n_rows = _check_kept(sum(seen.counts), n_rows, given)
    grid = settings.grid(n_rows)
    if given is not None and given.indices.shape[1] < grid.ks[-1] - 1:
        raise InvalidSettingError(
            f"The graph must list at least {grid.ks[-1] - 1} neighbours besides the row itself, for the largest k. "
            f"Got {given.indices.shape[1]} at most. Use a larger graph, or smaller n_neighbors or k_multipliers."
        )
    exact = given is not None or choose_method(n_rows, settings.method) == "exact"
    graph_plan = plan_graph(n_rows, n_features, grid.ks[-1], settings.max_components, exact=exact)
    plan = make_plan(n_rows, graph_plan, grid, settings.max_candidates, settings.tol_of_grid(n_rows))
    check_memory(plan.worker_bytes)
    return _Task(data, given, seen, grid, graph_plan, plan)


def _earlier(like: Any, task: _Task) -> Result | None:
    """The earlier result whose numbers are kept."""
    if like is None:
        return None
    result = Predictor(like).result
    if task.data is None:
        raise InvalidSettingError("A fit like another needs rows. Got a graph alone. Give the rows too.")
    if task.data.X.shape[1] != result.transform.n_features:
        raise InvalidDataError(
            f"The rows must have the {result.transform.n_features} features of the earlier fit. "
            f"Got {task.data.X.shape[1]}."
        )
    return result


def _check_kept(n_kept: int, n_rows: int, given: NeighborGraph | None) -> int:
    if n_kept < 2:
        raise InvalidDataError(f"At least 2 rows must have finite values only. Got {n_kept} of {n_rows}.")
    if given is not None and n_kept < n_rows:
        raise InvalidDataError(
            f"The rows of a given graph must have finite values. Got {n_rows - n_kept} row(s) with NaN or infinity. "
            "Remove them from data and graph, or leave the graph out."
        )
    return n_kept


def _fingerprint(graph: Any, settings: Settings, task: _Task) -> Fingerprint:
    """What makes two fits the same."""
    data = None if task.data is None else content_of(task.data, Progress(), task.look.digests)
    files = (os.fspath(graph),) if isinstance(graph, str | os.PathLike) else ()
    lists = None
    if task.given is not None:
        lists = content_of(Data(task.given.indices, Arrays(lazy=True), files=files), Progress())
    like = None if task.like is None else digest(task.like.details)
    return {"data": data, "graph": lists, "settings": settings.as_dict(), "like": like}


def _number_of_rows(data: Data | None, given: NeighborGraph | None) -> int:
    arrays = (None if data is None else data.X, None if given is None else given.indices)
    sizes = {int(array.shape[0]) for array in arrays if array is not None}
    if not sizes:
        raise InvalidSettingError("Data or a graph must be given. Got neither.")
    if len(sizes) > 1:
        raise InvalidDataError(f"The data and the graph must have as many rows. Got {sorted(sizes)}.")
    return sizes.pop()


def _fit(task: _Task, settings: Settings, store: ResultStore, progress: Progress) -> Result:
    plan, grid = task.plan, task.grid
    store.skips = task.skips
    stages = _Stages(Work(store, progress), plan)
    check_begin(stages.work, plan.disk_bytes)
    with watched_memory(plan.worker_bytes, progress.tell) as memory:
        transform = None if task.data is None else stages.points(task.data, task, settings)
        known = stages.work.once("graph", lambda: stages.graph(task, settings), task.lists)
        found = stages.work.once("grid", lambda: stages.grid(grid, settings), ("columns",))
        choice, picks, picked = found["choice"], found["picks"], found["picked"]
        numbers = stages.numbers(task, choice.n_clusters)
        stages.clusters(task, numbers)

    if task.skips:
        rows = store.array("rows")
        picks, picked = np.where(picks < 0, -1, _rows_at(rows, np.maximum(picks, 0))), _rows_at(rows, picked)
    store.describe_graph(**known)
    if transform is not None:
        _keep_transform(store, transform)
    store.put("k", grid.ks)
    store.put("lam", grid.lams)
    store.put("n_clusters", np.arange(1, grid.max_clusters + 1))
    store.put("criterion", found["surface"])
    store.put("picks", picks)
    store.put("representatives", picked[: choice.n_clusters][np.argsort(numbers)])
    store.put("cluster", np.sort(numbers))
    store.describe(
        reading={} if task.data is None else task.data.reading,
        features=None if task.data is None else _plain_names(task.data.names),
        settings=settings.as_dict(),
        choice=asdict(choice),
        n_candidates={str(k): count for k, count in found["n_candidates"].items()},
        largest_residual=_as_json(found["residuals"]["kept"]),
        grid_residual=_as_json(found["residuals"]["grid"]),
        most_passes=found["most_passes"],
        versions={name: version(name) for name in RECORDED_VERSIONS},
        seconds=progress.seconds,
        memory=memory.as_dict(),
    )
    for reached, tol in (
        (found["residuals"]["kept"], settings.tol),
        (found["residuals"]["grid"], settings.tol_of_grid(task.n_rows)),
    ):
        _warn_if_not_converged(reached, tol)
    return Result(store)


def _rows_at(rows: Any, numbers: Any) -> Any:
    """Row numbers of the input for numbers among the clustered rows; few of them."""
    different, at = np.unique(numbers, return_inverse=True)
    return np.asarray(rows[different])[at].reshape(numbers.shape)


def _check_candidates(candidates: dict[int, Candidates], settings: Settings) -> None:
    most = max(len(found.rows) for found in candidates.values())
    if settings.n_clusters is not None and settings.n_clusters > most:
        raise InvalidSettingError(
            f"n_clusters must be at most the number of candidates ({most}). Got {settings.n_clusters}. "
            "Use fewer clusters, a smaller n_neighbors (more local maxima), or a larger max_candidates."
        )


def _plain_names(names: tuple[Any, ...] | None) -> list[Any] | None:
    """Names that can be stored and found again: others are left out."""
    return list(names) if names and all(type(name) in (str, int) for name in names) else None


def _as_json(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON has no NaN


class _Stages:
    """The stages of one fit: each builds pieces of work, runs them, and leaves its result in the store."""

    def __init__(self, work: Work, plan: Plan) -> None:
        self.work, self._plan = work, plan

    def points(self, data: Data, task: _Task, settings: Settings) -> Transform:
        """Find rows that are left out; scale and project the others."""
        rows, counts = self._plan.rows_per_chunk, task.look.counts
        X = self.work.sent(data.X) if data.in_memory else data.X
        if task.skips:
            codes = X.map_blocks(row_codes, drop_axis=1, dtype=np.int8)
            self.work.run("rows", self.work.fill({"codes": codes}, codes.chunksize[0]))
            numbers = kept_numbers(self.work.store.open("codes"), counts).rechunk(rows)
            self.work.run("kept", self.work.fill({"rows": numbers}, rows))
            X = kept_rows(X, counts)
        X = X.rechunk({0: rows})
        transform: Transform = self.work.once("preprocess", lambda: self._transform(X, settings), drop=False)
        self.work.run("points", self.work.fill({"points": apply_transform(X, transform)}, rows))
        return transform

    def _transform(self, X: da.Array, settings: Settings) -> Transform:
        names = ("metric", "scale", "max_components")
        with self.work.progress.stage("preprocess", 1) as advance:
            transform = learn_transform(X, **{name: getattr(settings, name) for name in names})
            advance()
        return transform

    def graph(self, task: _Task, settings: Settings) -> dict[str, Any]:
        """Find the neighbours, once for every k; or take them as given."""
        ks, given = task.grid.ks, task.given
        if given is None:
            return find_neighbors(
                self.work, (ks[0], ks[-1]), task.graph_plan, settings.method, settings.recall, settings.random_state
            )
        lists = listed(given, ks[-1], self._plan.rows_per_chunk)
        arrays = {"graph/indices": lists.indices, "graph/distances": lists.distances}
        present = {name: values for name, values in arrays.items() if values is not None}
        self.work.run("neighbors", self.work.fill(present, self._plan.rows_per_chunk))
        return {"method": given.method, "recall": [asdict(value) for value in given.recall]}

    def grid(self, grid: Grid, settings: Settings) -> dict[str, Any]:
        """Evaluate all cells, choose, and keep the winner's columns."""
        work = GridWork(self.work, self._plan, grid)
        tol = settings.tol_of_grid(work.n_rows)
        candidates = work.starts(settings.max_candidates, tol, settings.random_state)
        _check_candidates(candidates, settings)
        surface, picks = work.cells(tol)
        choice = criterion.choose(surface, grid, work.n_rows, settings.n_clusters)
        picked = picks[grid.ks.index(choice.n_neighbors), grid.lams.index(choice.lam)]
        picked = picked[picked >= 0]
        work.keep_columns(picked, choice.n_neighbors, choice.lam, settings.tol)
        return {
            "surface": surface,
            "picks": picks,
            "choice": choice,
            "picked": picked,
            "n_candidates": {k: len(found.rows) for k, found in candidates.items()},
            "residuals": work.residuals,
            "most_passes": work.most_passes,
        }

    def numbers(self, task: _Task, n_clusters: int) -> list[int]:
        """The numbers of the clusters: 0, 1, ..., or those of the same clusters in an earlier fit."""
        if task.like is None:
            return list(range(n_clusters))
        assert task.data is not None
        X = self.work.sent(task.data.X) if task.data.in_memory else task.data.X
        X = (kept_rows(X, task.look.counts) if task.skips else X).rechunk({0: self._plan.rows_per_chunk})
        P = self.work.store.open("columns")[:, :n_clusters].rechunk({1: -1})
        gaps = task.skips or task.like.n_skipped > 0
        comparison = Comparison(task.like, by_place=not gaps and are_at_their_places(task.like, X))
        starts = range(0, X.shape[0], self._plan.rows_per_chunk)
        parts = zip(X.to_delayed().ravel(), starts, P.to_delayed().ravel(), strict=True)
        tally = added(self.work.run("match", [Piece(tally_block, (comparison, *part)) for part in parts]))
        numbers, changes = follow(tally, task.like)
        next_number = max(task.like.next_number, max(numbers) + 1)
        self.work.store.describe(numbers=numbers, next_number=next_number, changes=asdict(changes))
        return numbers

    def clusters(self, task: _Task, numbers: list[int]) -> None:
        """Store memberships, labels and confidence."""
        n_clusters = len(numbers)
        store, rows = self.work.store, self._plan.rows_per_chunk
        columns = store.open("columns")
        if task.skips:
            codes = store.open("codes")
            found, rows = put_back(columns, numbers, n_clusters, codes, task.look.counts), codes.chunksize[0]
        else:
            found = clustering(columns, n_clusters, numbers)
        self.work.run("memberships", self.work.fill(vars(found), rows))


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
