"""What a fit has to do, before it does it: the data are opened and scanned, all stages are sized, memory is checked."""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import dask.array as da

from cns_dask.errors import InvalidDataError, InvalidSettingError, NotEnoughMemoryError
from cns_dask.execution.cluster import check_memory, processes
from cns_dask.execution.plan import Plan
from cns_dask.execution.run import Run
from cns_dask.inputs.data import open_data
from cns_dask.inputs.forms import ArrayForm, Data
from cns_dask.inputs.missing import clustered_rows, skip_stages, within_cluster
from cns_dask.inputs.sampling import Draw, Sampling, check_sampling, drawn_rows
from cns_dask.inputs.scan import Scan, fingerprint_of, scan
from cns_dask.inputs.spool import needs_spool, spool_stage, spooled
from cns_dask.neighbors.given import open_graph, with_preprocessing_of
from cns_dask.neighbors.graph import NeighborGraph, Preprocessing
from cns_dask.neighbors.plan import GraphSizes, given_stage, size_search
from cns_dask.progress import Progress
from cns_dask.results.changes import match_stage
from cns_dask.results.predict import Predictor, feature_positions
from cns_dask.results.result import Result
from cns_dask.settings import Grid, Settings, as_plain
from cns_dask.sizing import assigned_width, plan_sample, plan_sizes, plan_stages, size_overrides, with_sample
from cns_dask.smoothing.plan import SmoothingSizes
from cns_dask.storage.chunks import rows_per_chunk
from cns_dask.storage.fingerprints import digest
from cns_dask.storage.outputs import Fingerprint

#: Copies count as different rows where there are fewer different rows.
FEWEST_PLACES = 10
ADVISED_SAMPLES = (1_000_000, 300_000, 100_000)


@dataclass(frozen=True)
class Job:
    """What a fit has to do: the data, opened, and the plan for them.

    `data.X` are all rows, of which `scan.counts` can be clustered in each chunk of `scan.rows`. They are in these
    chunks, or in the caller's if they have to be written to scratch first.
    """

    data: Data | None
    given_graph: NeighborGraph | None
    previous: Result | None
    within: tuple[Result, int] | None
    settings: Settings
    scan: Scan
    graph_sizes: GraphSizes
    sizes: SmoothingSizes
    sampling: Sampling | None = None  # None if all rows are clustered
    draw: Draw | None = None  # the rows that are
    n_distinct: int | None = None  # number of different rows, where copies are one place; None before they are counted

    @property
    def merges_copies(self) -> bool:
        """Return True if equal rows count as one: not in the paper's method, nor where the caller gives the graph."""
        return self.given_graph is None and self.settings.selection != "paper"

    def with_distinct(self, n_distinct: int) -> "Job":
        """Return the job with the grid of `n_distinct` different rows, if these are enough for it."""
        width = self.graph_sizes.n_features if self.data is None else self.data.X.shape[1]
        if not FEWEST_PLACES <= n_distinct < self.n_rows:
            return self
        try:
            replace(self.settings, min_cluster_size=None).grid(n_distinct)
            _, sizes = plan_sizes(self.n_rows, width, self.settings, n_distinct=n_distinct)
        except InvalidSettingError:
            return self
        graph_sizes = replace(self.graph_sizes, n_neighbors=sizes.grid.ks[-1])
        return replace(self, graph_sizes=graph_sizes, sizes=sizes, n_distinct=n_distinct)

    @property
    def distinct_sizes(self) -> GraphSizes:
        """Sizes of the search among different rows."""
        assert self.n_distinct is not None
        sizes, settings = self.graph_sizes, self.settings
        options = settings.method, settings.max_components, size_overrides()
        return size_search(self.n_distinct, sizes.n_features, sizes.n_neighbors, *options)

    @property
    def grid(self) -> Grid:
        """The (k, lam, K) that are tried."""
        return self.sizes.grid

    @property
    def n_rows(self) -> int:
        """Number of rows that are clustered."""
        return sum(self.scan.counts)

    @property
    def preprocessing(self) -> Preprocessing:
        """What is done to the rows before their neighbours are searched, or was done where the graph was made.

        With scale="auto" the rows tell whether they are scaled: see `inputs.scaling`.
        """
        if self.given_graph is not None and self.given_graph.preprocessing is not None:
            return self.given_graph.preprocessing
        return Preprocessing(self.settings.metric, self.settings.scale is not False, self.settings.max_components)

    @property
    def skips(self) -> bool:
        """Whether some rows are not clustered: skipped, or outside the sample."""
        return self.draw is not None or (self.data is not None and self.n_rows < self.data.X.shape[0])

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
        plan = plan_stages(n_features, self.graph_sizes, self.sizes, of_given, copies=self.merges_copies)
        if self.data is not None and self.draw is not None:
            most = max(self.scan.counts), self.data.is_sparse
            plan = with_sample(plan, self.data.X.shape, self.scan.rows, self.graph_sizes, self.grid, *most)
        stages, rows = list(plan.stages), self.graph_sizes.rows_per_chunk
        if self.data is not None and self.skips and self.draw is None:
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
        """The rows of X that are clustered, in the chunks of the plan; of a sample all of X is read for them."""
        if self.draw is not None:
            rows = drawn_rows(X, self.draw, self.scan.counts)
        else:
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
            "sample": None if self.sampling is None else [self.sampling.size, self.sampling.is_checked],
        }

    def check_unchanged(self, fingerprint: Fingerprint) -> None:
        """Refuse data whose files have changed while they were clustered."""
        if not fingerprint or self.data is None or not self.data.files:
            return
        if fingerprint_of(self.data, Progress()) != fingerprint["data"]:
            raise InvalidDataError(f"The data changed while they were clustered: {', '.join(self.data.files)}.")


def prepare(  # noqa: PLR0913 - one parameter per choice
    source: Any,
    settings: Settings,
    *,
    graph: Any = None,
    previous: Any = None,
    within: Any = None,
    sample: Any = None,
    check_sample: bool = False,
    hashed: bool = False,
    progress: Progress | None = None,
) -> Job:
    """Open the data, scan them once if need be, size everything, and check that the workers can hold it."""
    data = None if source is None else open_data(source)
    given = None if graph is None else open_graph(graph)
    progress, asked = progress or Progress(), settings
    settings = with_preprocessing_of(given, asked, None if data is None else data.X.shape[1])
    if data is not None and settings != asked:
        progress.tell(f"rows are treated as those of the graph were: {_treatment(settings)}")
    n_rows, n_features = _number_of_rows(data, given), 1
    overrides, scanned = size_overrides(), Scan((), (n_rows,))
    of_cluster = _open_within(within, data, given)
    sampling = check_sampling(sample, n_rows, settings.seed, is_checked=check_sample)
    _check_can_sample(sampling, data, given, of_cluster)
    draw = None if sampling is None else sampling.sample
    if data is not None:
        n_features = data.X.shape[1]
        width = n_features if sampling is None else assigned_width(n_features, settings, sampling.expected_rows)
        rows = overrides.get("rows_per_chunk", rows_per_chunk(n_rows, width))
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
            progress=progress,
            draw=draw,
        )
        n_rows = _check_clustered(sum(scanned.counts), n_rows, given)
        if of_cluster is not None and settings.missing == "error":
            _check_whole_cluster(n_rows, *of_cluster)
    graph_sizes, sizes = plan_sizes(n_rows, n_features, settings, "exact" if given is not None else None)
    _check_given(given, sizes.grid)
    of_before = _open_previous(previous, data)
    job = Job(data, given, of_before, of_cluster, settings, scanned, graph_sizes, sizes, sampling, draw)
    try:
        check_memory(job.plan.worker_bytes)
    except NotEnoughMemoryError as error:
        raise NotEnoughMemoryError(f"{error}{_smaller_sample(job)}") from error
    return job


def second_job(job: Job, progress: Progress) -> Job:
    """The fit of the second sample, which tells how well the first speaks for all rows."""
    assert job.data is not None
    assert job.sampling is not None
    draw, counted = job.sampling.second, job.settings.missing == "skip"
    options: dict[str, Any] = {"hashed": False, "counted": counted, "in_memory": job.data.in_memory}
    scanned = scan(job.data.X, job.scan.rows, **options, progress=progress, draw=draw)
    n_rows = _check_clustered(sum(scanned.counts), job.data.X.shape[0], None)
    graph_sizes, sizes = plan_sizes(n_rows, job.data.X.shape[1], job.settings)
    return replace(job, previous=None, scan=scanned, graph_sizes=graph_sizes, sizes=sizes, draw=draw)


def _treatment(settings: Settings) -> str:
    return f"{'scaled' if settings.scale else 'not scaled'}, {settings.metric} metric"


def _smaller_sample(job: Job) -> str:
    """Advice to cluster a sample, if one fits the workers; with a space in front."""
    if job.data is None or job.given_graph is not None or job.within is not None:
        return ""
    shape = job.data.X.shape
    now = shape[0] if job.sampling is None else job.sampling.expected_rows
    for n_sampled in (size for size in ADVISED_SAMPLES if size < now):
        plan = plan_sample(shape[0], shape[1], job.settings, n_sampled)
        needed = {name: plan.worker_bytes(threads) for name, threads, limit in processes() if limit}
        if all(needed[name] <= limit for name, _, limit in processes() if limit):
            return (
                f" Or cluster a sample, whose clusters smooth out to all rows: sample={n_sampled} "
                f"needs {max(needed.values()) / 2**20:.0f} MiB."
            )
    return ""


def _check_can_sample(
    sampling: Sampling | None, data: Data | None, given: NeighborGraph | None, of_cluster: Any
) -> None:
    if sampling is None:
        return
    if data is None or given is not None:
        raise InvalidSettingError(
            "Only rows can be sampled, because all others are searched among them. Give rows, and no graph."
        )
    if of_cluster is not None:
        raise InvalidSettingError("The rows of one cluster (within) cannot be sampled. Leave sample or within out.")


def _files_of(graph: Any) -> tuple[str, ...]:
    return (os.fspath(graph),) if isinstance(graph, str | os.PathLike) else ()


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
