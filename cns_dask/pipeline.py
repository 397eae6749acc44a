"""The method as one page: each stage in order, its result stored before the next begins.

This is the only place where the work of a fit is put together. Every stage reads what the one before it has stored, so
the graph handed to the scheduler never grows across stages.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import dask.array as da
import numpy as np

from cns_dask.errors import ChoiceWarning
from cns_dask.execution.cluster import inside_task
from cns_dask.execution.compute import waiting_for_workers
from cns_dask.execution.memory import watched_memory
from cns_dask.execution.run import Piece, Run
from cns_dask.execution.typical import expected_seconds
from cns_dask.inputs.missing import clustered_numbers, row_codes
from cns_dask.inputs.preprocess import Transform, apply_transform, learn_transform, warn_of_axes
from cns_dask.inputs.sampling import take_sample
from cns_dask.inputs.scaling import known_scaling
from cns_dask.jobs import Job, prepare, second_job
from cns_dask.neighbors.copies import find_copies
from cns_dask.neighbors.graph import GraphSummary
from cns_dask.neighbors.search import find_among_distinct, find_neighbors, store_given_graph
from cns_dask.outcome import describe, describe_sample, store_small_arrays, store_transform, verdict_on
from cns_dask.progress import PartProgress, Progress
from cns_dask.results.assignment import StoredModel, assign_stage, assigned, compare
from cns_dask.results.changes import Comparison, follow, keep_row_numbers, sum_tallies, tally_block
from cns_dask.results.description import check_description
from cns_dask.results.history import Numbering
from cns_dask.results.predict import with_features_of
from cns_dask.results.result import Result
from cns_dask.results.samples import Agreement
from cns_dask.results.skipped import with_skipped
from cns_dask.seeds import chosen_seed
from cns_dask.settings import Settings
from cns_dask.smoothing.grid import GridResult, search_grid
from cns_dask.smoothing.memberships import clustering
from cns_dask.smoothing.plan import memberships_stage
from cns_dask.smoothing.solver import warn_if_not_converged
from cns_dask.smoothing.verdict import Verdict
from cns_dask.storage.fingerprints import resume_key
from cns_dask.storage.layout import ArrayPlan, Kind
from cns_dask.storage.outputs import open_output

SECOND = "second"  # the word before the stages of a second sample


def fit(  # noqa: PLR0913 - one parameter per choice
    source: Any,
    settings: Settings,
    *,
    graph: Any = None,
    previous: Any = None,
    within: Any = None,
    sample: float | None = None,
    check_sample: bool = False,
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
    previous
        A previous result, or its path: clusters that are the same keep their numbers.
    within
        A result of the same rows (or its path) and the number of one of its clusters: only the rows of that cluster are
        clustered, further. All others get the label -4.
    sample
        Cluster only so many rows, drawn by row number, or this share of them; every other row takes the memberships of
        its nearest sampled ones, as a new row does.
    check_sample
        Fit a second sample too, and store how well both agree on other rows.
    out
        Where the result is written; a temporary folder if None. What an earlier run has left unfinished is continued,
        and a finished result of the same data and settings is returned at once.
    overwrite
        Replace a result of other data or settings that is already there, once the new one is complete.
    scratch
        Folder for intermediate arrays; beside the output if None.
    progress
        Is told about stages and counts.
    """
    progress = progress or Progress()
    settings = replace(settings, random_state=chosen_seed(settings.random_state, out, overwrite=overwrite))
    options: dict[str, Any] = {"overwrite": overwrite, "scratch": scratch, "tell": progress.tell}
    with inside_task(), waiting_for_workers(progress.tell):
        job = prepare(
            source,
            settings,
            graph=graph,
            previous=previous,
            within=within,
            sample=sample,
            check_sample=check_sample,
            hashed=out is not None,
            progress=progress,
        )
        options["inputs"] = job.inputs(graph)
        fingerprint = {} if out is None else job.fingerprint(graph)
        with open_output(out, Kind.RESULT, fingerprint, resume_key(job.graph_sizes, job.sizes), **options) as output:
            if output.writer is not None:
                run_fit(job, job.settings, Run(output.writer, progress))
                job.check_unchanged(fingerprint)
            else:
                check_description(output.store)
    return Result(output.store)


def run_fit(job: Job, settings: Settings, run: Run) -> None:
    """The method: points, graph, grid, numbers of the clusters, memberships."""
    run.check_ready(job.plan.disk_bytes)
    expect_stages(job, run.progress)
    with watched_memory(job.plan.worker_bytes, run.progress.tell) as memory:
        learned = learn_clusters(job, settings, run)
        job = learned.job
        numbering = number_clusters(job, learned.grid.selection.used.n_clusters, run)
        write_memberships(job, learned, numbering.numbers, run)
        agreement = check_sample(job, settings, numbering.numbers, run)
    run.writer.drop_scratch()
    store_small_arrays(job, learned.grid, numbering.numbers, run.writer)
    verdict, n_unreached, n_skipped = verdict_on(job, settings, learned.grid, run)
    about = describe(job, learned.transform, learned.grid, numbering, verdict, n_unreached, memory, run)
    run.writer.describe(**asdict(replace(about, sample=describe_sample(job, n_skipped, agreement))))
    warn(job, settings, learned, verdict)


def expect_stages(job: Job, progress: Progress) -> None:
    """Tell the progress what is to come."""
    seconds = expected_seconds(job.plan)
    progress.expect(seconds)
    if job.sampling is not None and job.sampling.is_checked:  # the same once more, up to the absorption
        PartProgress(progress, SECOND).expect({name: each for name, each in seconds.items() if name != "assign"})


def warn(job: Job, settings: Settings, learned: Learned, verdict: Verdict) -> None:
    """Tell what is in doubt, or was not reached."""
    if learned.transform is not None:
        warn_of_axes(learned.transform)
    for doubt in verdict.doubts:
        warnings.warn(doubt, ChoiceWarning, stacklevel=4)
    grid, grid_tol = learned.grid, settings.tol_of_grid(job.n_rows)
    warn_if_not_converged(grid.residual, "tol", settings.tol, "memberships may be off by as much")
    warn_if_not_converged(grid.grid_residual, "grid_tol", grid_tol, "another k, lam or K may be the better choice")


@dataclass(frozen=True)
class Learned:
    """What was learned from the rows that are clustered, besides the stored arrays: all that predicts others."""

    job: Job  # with the grid of the different rows
    transform: Transform | None  # None for a graph alone
    grid: GridResult

    def model(self, numbers: Sequence[int], settings: Settings, run: Run) -> StoredModel:
        """The model in the store of a run."""
        assert self.transform is not None
        path, choice, opening = run.writer.location.path, self.grid.selection.used, uuid.uuid4().hex
        return StoredModel(path, choice, numbers, settings, self.transform.summary, opening)


def learn_clusters(job: Job, settings: Settings, run: Run) -> Learned:
    """From rows to the absorption at what represents the clusters."""
    transform = None if job.data is None else make_points(job, settings, run)
    if job.merges_copies:
        n_distinct = run.load("copies") or run.save("copies", find_copies(run, job.graph_sizes), drop_scratch=False)
        job = job.with_distinct(n_distinct)
    if transform is not None:
        store_transform(transform, run.writer)
    graph = run.load("graph", job.graph_arrays) or run.save("graph", find_graph(job, settings, transform, run))
    grid = run.load("grid", ("absorption",)) or run.save("grid", find_clusters(job, settings, run))
    run.writer.describe_graph(**graph.as_attributes())
    return Learned(job, transform, grid)


def make_points(job: Job, settings: Settings, run: Run) -> Transform:
    """Find the rows that are clustered; scale and project them."""
    assert job.data is not None
    done: Transform | None = None if job.draw is None else run.load("points", ("points", "codes", "rows"))
    if done is not None:  # a sample is not taken again
        return done
    X, rows = find_clustered_rows(job, settings, run), job.graph_sizes.rows_per_chunk
    transform: Transform | None = run.load("preprocess")
    if transform is None:
        with run.progress.stage("preprocess", 1) as advance:
            transform = learn_transform(
                X,
                metric=settings.metric,
                scale=known_scaling(settings.scale, settings.selection, is_sparse=job.data.is_sparse),
                max_components=settings.max_components,
                center=job.preprocessing.center,
                sparse=job.sparse_rows,
            )
            advance()
        run.save("preprocess", transform, drop_scratch=False)
    points = apply_transform(X, transform, run.writer.open("rows") if job.skips else None)
    plan = ArrayPlan("points", points.shape, (rows, points.shape[1]))  # constant features are dropped
    run.write(replace(job.plan.stage("points"), writes=(plan,)), {"points": points})
    return transform if job.draw is None else run.save("points", transform, drop_scratch=False)


def find_clustered_rows(job: Job, settings: Settings, run: Run) -> da.Array:
    """The rows that are clustered. Where others are not, store why, and the numbers of those that are."""
    X, rows = job.rows(run), job.graph_sizes.rows_per_chunk
    if not job.skips:
        return job.clustered_rows(X)
    if job.draw is not None:
        stage, skips = job.plan.stage("sample"), settings.missing == "skip"
        clustered = take_sample(X, job.draw, job.scan.counts, rows, stage, run, skips=skips)
    else:
        run.write(job.plan.stage("skip_codes"), {"codes": X.map_blocks(row_codes, drop_axis=1, dtype=np.int8)})
        clustered = job.clustered_rows(X)
    row_numbers = clustered_numbers(run.writer.open("codes"), job.scan.counts)
    run.write(job.plan.stage("clustered_rows"), {"rows": row_numbers.rechunk(rows)})
    return clustered


def find_graph(job: Job, settings: Settings, transform: Transform | None, run: Run) -> GraphSummary:
    """Find the neighbours, once for every k; or take them as given."""
    if job.given_graph is not None:
        return store_given_graph(run, job.graph_sizes, job.given_graph)
    how = job.grid.ks[0], settings.method, settings.recall, settings.seed
    if job.n_distinct is None:
        summary = find_neighbors(run, job.graph_sizes, *how)
    else:
        summary = find_among_distinct(run, job.graph_sizes, job.distinct_sizes, *how)
    scale = True if transform is None else transform.scale_setting
    return replace(summary, preprocessing=replace(job.preprocessing, scale=scale))


def find_clusters(job: Job, settings: Settings, run: Run) -> GridResult:
    """Evaluate the grid, choose, and keep the absorption at what represents the chosen clusters."""
    return search_grid(
        run,
        job.sizes,
        selection=settings.selection,
        n_clusters=settings.n_clusters,
        min_cluster_size=settings.min_cluster_size,
        max_candidates=settings.max_candidates,
        grid_tol=settings.tol_of_grid(job.n_rows),
        tol=settings.tol,
        seed=settings.seed,
    )


def number_clusters(job: Job, n_clusters: int, run: Run) -> Numbering:
    """The numbers of the clusters: 0, 1, ..., or those of the same clusters in a previous fit."""
    if job.previous is None or job.data is None:
        return Numbering(list(range(n_clusters)), n_clusters)
    X = with_features_of(job.previous, job.data, job.clustered_rows(job.rows(run)))
    P = run.writer.open("absorption")[:, :n_clusters].rechunk({1: -1})
    has_gaps = job.skips or job.previous.n_clustered < job.previous.n_rows
    comparison = Comparison(job.previous, by_row_number=not has_gaps and keep_row_numbers(job.previous, X))
    starts = range(0, X.shape[0], job.graph_sizes.rows_per_chunk)
    parts = zip(X.to_delayed().ravel(), starts, P.to_delayed().ravel(), strict=True)
    pieces = [Piece(tally_block, (comparison, *part)) for part in parts]
    with run.stage(job.plan.stage("match")) as stage:
        tally = sum_tallies(stage.run("match", pieces))
    numbers, changes = follow(tally, job.previous)
    return Numbering(numbers, max(job.previous.next_number, max(numbers) + 1), changes)


def write_memberships(job: Job, learned: Learned, numbers: list[int], run: Run) -> None:
    """Store memberships, labels and confidence of all rows."""
    absorption, n_clusters, noise = run.writer.open("absorption"), len(numbers), job.settings.noise
    if not job.skips:
        answers = clustering(absorption, n_clusters, numbers, noise=noise)
        run.write(memberships_stage(job.sizes, n_clusters), vars(answers))
        return
    codes, counts = run.writer.open("codes"), job.scan.counts
    if job.draw is None:
        answers = with_skipped(absorption, numbers, n_clusters, codes, counts, noise=noise)
        stage = memberships_stage(job.sizes, n_clusters, (codes.shape[0], codes.chunksize[0]))
    else:
        X = job.rows(run)
        answers = assigned(X, codes, counts, learned.model(numbers, job.settings, run))
        stage = assign_stage(X.shape, job.scan.rows, job.graph_sizes, n_clusters)
    run.write(stage, vars(answers))


def check_sample(job: Job, settings: Settings, numbers: list[int], run: Run) -> Agreement | None:
    """Fit the second sample in scratch, and compare both on rows of neither; None if nobody asked for it."""
    if job.sampling is None or not job.sampling.is_checked:
        return None
    agreement: Agreement | None = run.load("agreement")
    if agreement is not None:
        return agreement
    beside = run.beside(SECOND)
    second = second_job(job, beside.progress)
    beside.check_ready(second.plan.disk_bytes)
    learned = learn_clusters(second, settings, beside)
    model = learned.model(range(learned.grid.selection.used.n_clusters), settings, beside)
    agreement = compare(job.rows(run), job.scan.rows, job.sampling.compared, sorted(numbers), model, run)
    run.save("agreement", agreement, drop_scratch=False)
    return agreement
