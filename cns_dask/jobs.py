"""What a fit has to do, before it does it: the data are opened and scanned, all stages are sized, memory is checked."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import dask
import dask.array as da

from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.execution.cluster import check_memory
from cns_dask.execution.plan import Plan, Stage
from cns_dask.execution.run import Run
from cns_dask.inputs.data import open_data
from cns_dask.inputs.forms import ArrayForm, Data
from cns_dask.inputs.missing import clustered_rows, skip_stages, within_cluster
from cns_dask.inputs.preprocess import preprocess_stages
from cns_dask.inputs.scan import Scan, fingerprint_of, scan
from cns_dask.inputs.spool import needs_spool, spool_stage, spooled
from cns_dask.neighbors.given import open_graph
from cns_dask.neighbors.graph import NeighborGraph
from cns_dask.neighbors.plan import GraphSizes, given_stage, search_stages, size_search
from cns_dask.progress import Progress
from cns_dask.results.changes import match_stage
from cns_dask.results.predict import Predictor, feature_positions
from cns_dask.results.result import Result
from cns_dask.settings import Grid, Settings, as_plain
from cns_dask.smoothing.plan import SmoothingSizes, shared_bytes, size_smoothing, smoothing_stages
from cns_dask.storage.chunks import rows_per_chunk
from cns_dask.storage.fingerprints import digest
from cns_dask.storage.outputs import Fingerprint


@dataclass(frozen=True)
class Job:
    """What a fit has to do: the data, opened, and the plan for them.

    `data.X` are all rows, of which `scan.counts` can be clustered in each chunk of the plan. They are in these chunks,
    or in the caller's if they have to be written to scratch first.
    """

    data: Data | None
    given_graph: NeighborGraph | None
    previous: Result | None
    within: tuple[Result, int] | None
    settings: Settings
    scan: Scan
    graph_sizes: GraphSizes
    sizes: SmoothingSizes

    @property
    def grid(self) -> Grid:
        """The (k, lam, K) that are tried."""
        return self.sizes.grid

    @property
    def n_rows(self) -> int:
        """Number of rows that are clustered."""
        return sum(self.scan.counts)

    @property
    def skips(self) -> bool:
        """Whether some rows are skipped."""
        return self.data is not None and self.n_rows < self.data.X.shape[0]

    @property
    def graph_arrays(self) -> tuple[str, ...]:
        """The stored arrays of the graph; a given one may come without distances."""
        has_distances = self.given_graph is None or self.given_graph.distances is not None
        return ("graph/indices", "graph/distances") if has_distances else ("graph/indices",)

    @cached_property
    def plan(self) -> Plan:
        """All stages."""
        n_features = None if self.data is None else self.data.X.shape[1]
        has_distances = len(self.graph_arrays) == 2
        of_given = None if self.given_graph is None else given_stage(self.graph_sizes, with_distances=has_distances)
        plan = plan_stages(n_features, self.graph_sizes, self.sizes, of_given)
        stages, rows = list(plan.stages), self.graph_sizes.rows_per_chunk
        if self.data is not None and self.skips:
            stages[:0] = skip_stages(self.data.X.shape, self.n_rows, self.scan.rows, rows)
        if self.data is not None and self.is_spooled:
            stages[:0] = [spool_stage(self.data.X, self.scan.rows)]
        if n_features is not None and self.previous is not None:
            stages[-1:-1] = [match_stage(self.n_rows, n_features, rows)]  # before the memberships
        return replace(plan, stages=tuple(stages))

    def rows(self, run: Run) -> da.Array:
        """All rows, where workers can read them, in the chunks that were scanned."""
        assert self.data is not None
        if self.data.in_memory:
            return run.share(self.data.X)
        return spooled(self.data.X, self.scan.rows, run) if self.is_spooled else self.data.X

    @property
    def sparse_rows(self) -> da.Array | None:
        """The rows that are clustered as sparse chunks, if they are sparse and none is skipped."""
        if self.data is None or self.data.sparse is None or self.skips:
            return None
        return self.data.sparse.rechunk({0: self.graph_sizes.rows_per_chunk})

    @property
    def is_spooled(self) -> bool:
        """Whether the rows are written to scratch first."""
        return self.data is not None and needs_spool(self.data, self.scan.rows)

    def clustered_rows(self, X: da.Array) -> da.Array:
        """The rows that are not skipped, in the chunks of the plan."""
        rows = clustered_rows(X, self.scan.counts) if self.skips else X
        return rows.rechunk({0: self.graph_sizes.rows_per_chunk})

    def inputs(self, graph: Any) -> tuple[str, ...]:
        """Paths or URLs of the data and of the graph, where they have some."""
        return (*(() if self.data is None else self.data.files), *_files_of(graph))

    def fingerprint(self, graph: Any) -> Fingerprint:
        """What makes two fits the same: data, graph, settings and the previous fit."""
        form, files = ArrayForm(is_lazy=True), _files_of(graph)
        lists = None if self.given_graph is None else Data(self.given_graph.indices, form, files=files)
        return {
            "data": None if self.data is None else fingerprint_of(self.data, Progress(), self.scan.hashes),
            "graph": None if lists is None else fingerprint_of(lists, Progress()),
            "settings": self.settings.as_dict(),
            "previous": None if self.previous is None else digest(self.previous.details),
            "within": None if self.within is None else [digest(self.within[0].details), self.within[1]],
        }

    def check_unchanged(self, fingerprint: Fingerprint) -> None:
        """Refuse data whose files have changed while they were clustered."""
        if not fingerprint or self.data is None or not self.data.files:
            return
        if fingerprint_of(self.data, Progress()) != fingerprint["data"]:
            raise InvalidDataError(f"The data changed while they were clustered: {', '.join(self.data.files)}.")


def prepare(
    source: Any,
    settings: Settings,
    *,
    graph: Any = None,
    previous: Any = None,
    within: Any = None,
    hashed: bool = False,
    progress: Progress | None = None,
) -> Job:
    """Open the data, scan them once if need be, size everything, and check that the workers can hold it."""
    data = None if source is None else open_data(source)
    given = None if graph is None else open_graph(graph)
    n_rows, n_features = _number_of_rows(data, given), 1
    overrides, scanned = size_overrides(), Scan((), (n_rows,))
    of_cluster = _open_within(within, data, given)
    if data is not None:
        n_features = data.X.shape[1]
        rows = overrides.get("rows_per_chunk", rows_per_chunk(*data.X.shape))
        if not needs_spool(data, rows):
            data = replace(data, X=data.X.rechunk({0: rows}))
        if of_cluster is not None:
            data = replace(data, X=within_cluster(data.X, of_cluster[0].labels, of_cluster[1]))
        scanned = scan(
            data.X,
            rows,
            hashed=hashed and not data.files,
            counted=settings.missing == "skip" or of_cluster is not None,
            in_memory=data.in_memory,
            progress=progress or Progress(),
        )
        n_rows = _check_clustered(sum(scanned.counts), n_rows, given)
        if of_cluster is not None and settings.missing == "error":
            _check_whole_cluster(n_rows, *of_cluster)
    graph_sizes, sizes = plan_sizes(n_rows, n_features, settings, "exact" if given is not None else None)
    _check_given(given, sizes.grid)
    job = Job(data, given, _open_previous(previous, data), of_cluster, settings, scanned, graph_sizes, sizes)
    check_memory(job.plan.worker_bytes)
    return job


def _files_of(graph: Any) -> tuple[str, ...]:
    return (os.fspath(graph),) if isinstance(graph, str | os.PathLike) else ()


def size_overrides() -> Mapping[str, int]:
    """Sizes of chunks and blocks from Dask's configuration: `dask.config.set({"cns_dask.sizes": {"n_cells": 12}})`."""
    overrides = {name.replace("-", "_"): value for name, value in dask.config.get("cns_dask.sizes", {}).items()}
    names = {field.name for sizes in (GraphSizes, SmoothingSizes) for field in fields(sizes)}
    unknown = sorted(overrides.keys() - names)
    if unknown:
        raise InvalidSettingError(
            f"cns_dask.sizes in Dask's configuration has unknown names {unknown}. The names are {sorted(names)}."
        )
    return overrides


def plan_sizes(
    n_rows: int, n_features: int, settings: Settings, method: str | None = None, n_candidates: list[int] | None = None
) -> tuple[GraphSizes, SmoothingSizes]:
    """Size all stages of a fit of so many rows."""
    grid, overrides = settings.grid(n_rows), size_overrides()
    method = settings.method if method is None else method
    graph_sizes = size_search(n_rows, n_features, grid.ks[-1], method, settings.max_components, overrides)
    counts = settings.max_candidates if n_candidates is None else n_candidates
    tol = settings.tol_of_grid(n_rows)
    tightens = settings.tightens(n_rows)
    rows = graph_sizes.rows_per_chunk
    options = {"tightens": tightens, "every_row": settings.selection == "paper"}
    return graph_sizes, size_smoothing(n_rows, rows, grid, counts, tol, overrides, **options)


def plan_stages(
    n_features: int | None, graph_sizes: GraphSizes, sizes: SmoothingSizes, of_given: Stage | None = None
) -> Plan:
    """All stages of a fit; without rows (`n_features` None) those of a graph alone, stored by the stage `of_given`."""
    points = (graph_sizes.n_rows, n_features, graph_sizes.n_features, graph_sizes.rows_per_chunk)
    preprocess = () if n_features is None else preprocess_stages(*points)  # type: ignore[arg-type]
    search = search_stages(graph_sizes) if of_given is None else (of_given,)
    return Plan((*preprocess, *search, *smoothing_stages(sizes)), shared_bytes(sizes))


def _open_previous(previous: Any, data: Data | None) -> Result | None:
    """The previous result whose numbers are kept."""
    if previous is None:
        return None
    result = Predictor(previous).result
    if data is None:
        raise InvalidSettingError(
            "Numbers of a previous fit can only be kept with rows. Give the rows, not a graph alone."
        )
    feature_positions(result, data)
    return result


def _open_within(within: Any, data: Data | None, given: NeighborGraph | None) -> tuple[Result, int] | None:
    """The result and the cluster of it whose rows are clustered further."""
    if within is None:
        return None
    if not isinstance(within, tuple) or len(within) != 2:
        raise InvalidSettingError("within must be a pair: a result, and the number of one of its clusters.")
    result, cluster = Predictor(within[0]).result, as_plain(within[1])
    if data is None or given is not None:
        raise InvalidSettingError("A cluster can only be clustered further with its rows. Give the rows, and no graph.")
    if data.X.shape[0] != result.n_rows:
        raise InvalidDataError(
            f"The data have {data.X.shape[0]} rows, and the result has {result.n_rows}. Give the data of that fit."
        )
    if type(cluster) is not int or cluster not in result.clusters:
        raise InvalidSettingError(f"The result has no cluster {cluster!r}: it has {result.clusters}.")
    return result, cluster


def _check_whole_cluster(n_rows: int, result: Result, cluster: int) -> None:
    n_expected = int(result.sizes()[result.clusters.index(cluster)])
    if n_rows < n_expected:
        raise InvalidDataError(
            f"There are NaN or infinite values in {n_expected - n_rows} row(s) of cluster {cluster}. "
            "Remove or fill them, or skip these rows with missing='skip'."
        )


def _check_given(given: NeighborGraph | None, grid: Grid) -> None:
    if given is not None and given.indices.shape[1] < grid.ks[-1] - 1:
        raise InvalidSettingError(
            f"The graph lists {given.indices.shape[1]} neighbours, and the largest k needs {grid.ks[-1] - 1} besides "
            "the row itself. Use a larger graph, or smaller n_neighbors or k_multipliers."
        )


def _check_clustered(n_clustered: int, n_rows: int, given: NeighborGraph | None) -> int:
    if n_clustered < 2:
        raise InvalidDataError(f"At least 2 rows must have finite values only. Got {n_clustered} of {n_rows}.")
    if given is not None and n_clustered < n_rows:
        raise InvalidDataError(
            f"There are NaN or infinite values in {n_rows - n_clustered} row(s), which a given graph does not allow. "
            "Remove them from data and graph, or leave the graph out."
        )
    return n_clustered


def _number_of_rows(data: Data | None, given: NeighborGraph | None) -> int:
    arrays = (None if data is None else data.X, None if given is None else given.indices)
    sizes = [int(array.shape[0]) for array in arrays if array is not None]
    if not sizes:
        raise InvalidSettingError("There is nothing to cluster: give data or a graph.")
    if len(set(sizes)) > 1:
        raise InvalidDataError(f"The data have {sizes[0]} rows, and the graph has {sizes[1]}.")
    return sizes[0]
