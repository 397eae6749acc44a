"""The method as one page: each stage in order, its result stored before the next begins.

This is the only place where the work of a fit is put together. Every stage reads what the one before it has stored, so
the graph handed to the scheduler never grows across stages.
"""

import os
import warnings
from dataclasses import asdict, replace
from importlib.metadata import version
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.errors import ChoiceWarning
from cns_dask.execution.cluster import inside_task
from cns_dask.execution.compute import compute, waiting_for_workers
from cns_dask.execution.memory import Memory, watched_memory
from cns_dask.execution.run import Piece, Run
from cns_dask.inputs.missing import clustered_numbers, row_codes
from cns_dask.inputs.preprocess import Transform, apply_transform, learn_transform, warn_of_axes
from cns_dask.jobs import Job, prepare
from cns_dask.neighbors.graph import GraphSummary
from cns_dask.neighbors.search import find_neighbors, store_given_graph
from cns_dask.progress import Progress
from cns_dask.results.changes import Comparison, follow, keep_row_numbers, sum_tallies, tally_block
from cns_dask.results.description import Description, check_description
from cns_dask.results.history import Numbering
from cns_dask.results.predict import with_features_of
from cns_dask.results.result import Result
from cns_dask.results.skipped import with_skipped
from cns_dask.settings import Settings
from cns_dask.smoothing.grid import GridResult, search_grid
from cns_dask.smoothing.memberships import clustering
from cns_dask.smoothing.plan import memberships_stage
from cns_dask.smoothing.scales import Evidence
from cns_dask.smoothing.solver import warn_if_not_converged
from cns_dask.smoothing.verdict import Verdict, count_confident, judge, low_confidence
from cns_dask.storage.fingerprints import resume_key
from cns_dask.storage.layout import ArrayPlan, Kind
from cns_dask.storage.outputs import open_output
from cns_dask.storage.store import ResultWriter

RECORDED_VERSIONS = ("cns_dask", "dask", "numpy", "scipy", "zarr")


def fit(  # noqa: PLR0913 - one parameter per choice
    source: Any,
    settings: Settings,
    *,
    graph: Any = None,
    previous: Any = None,
    within: Any = None,
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
    options: dict[str, Any] = {"overwrite": overwrite, "scratch": scratch, "tell": progress.tell}
    with inside_task(), waiting_for_workers(progress.tell):
        job = prepare(
            source, settings, graph=graph, previous=previous, within=within, hashed=out is not None, progress=progress
        )
        options["inputs"] = job.inputs(graph)
        fingerprint = {} if out is None else job.fingerprint(graph)
        with open_output(out, Kind.RESULT, fingerprint, resume_key(job.graph_sizes, job.sizes), **options) as output:
            if output.writer is not None:
                run_fit(job, settings, Run(output.writer, progress))
                job.check_unchanged(fingerprint)
            else:
                check_description(output.store)
    return Result(output.store)


def run_fit(job: Job, settings: Settings, run: Run) -> None:
    """The method: points, graph, grid, numbers of the clusters, memberships."""
    run.check_ready(job.plan.disk_bytes)
    with watched_memory(job.plan.worker_bytes, run.progress.tell) as memory:
        transform = None if job.data is None else make_points(job, settings, run)
        graph = run.load("graph", job.graph_arrays) or run.save("graph", find_graph(job, settings, run))
        grid = run.load("grid", ("absorption",)) or run.save("grid", find_clusters(job, settings, run))
        numbering = number_clusters(job, grid.selection.used.n_clusters, run)
        write_memberships(job, numbering.numbers, run)
    store_small_arrays(job, grid, numbering.numbers, transform, run.writer)
    verdict, n_unreached = verdict_on(job, settings, grid, run)
    run.writer.describe_graph(**graph.as_attributes())
    run.writer.describe(**asdict(describe(job, transform, grid, numbering, verdict, n_unreached, memory, run)))
    if transform is not None:
        warn_of_axes(transform)
    for doubt in verdict.doubts:
        warnings.warn(doubt, ChoiceWarning, stacklevel=3)
    warn_if_not_converged(grid.residual, "tol", settings.tol, "memberships may be off by as much")
    grid_tol = settings.tol_of_grid(job.n_rows)
    warn_if_not_converged(grid.grid_residual, "grid_tol", grid_tol, "another k, lam or K may be the better choice")


def make_points(job: Job, settings: Settings, run: Run) -> Transform:
    """Find the rows that are skipped; scale and project the others."""
    assert job.data is not None
    X, rows = job.rows(run), job.graph_sizes.rows_per_chunk
    if job.skips:
        find_skipped_rows(job, X, run)
    X = job.clustered_rows(X)
    transform = run.load("preprocess")
    if transform is None:
        with run.progress.stage("preprocess", 1) as advance:
            transform = learn_transform(
                X,
                metric=settings.metric,
                scale=settings.scale,
                max_components=settings.max_components,
                sparse=job.sparse_rows,
            )
            advance()
        run.save("preprocess", transform, drop_scratch=False)
    points = apply_transform(X, transform, run.writer.open("rows") if job.skips else None)
    plan = ArrayPlan("points", points.shape, (rows, points.shape[1]))  # constant features are dropped
    run.write(replace(job.plan.stage("points"), writes=(plan,)), {"points": points})
    return transform


def find_skipped_rows(job: Job, X: da.Array, run: Run) -> None:
    """Store why rows are skipped, and the numbers of the others."""
    run.write(job.plan.stage("skip_codes"), {"codes": X.map_blocks(row_codes, drop_axis=1, dtype=np.int8)})
    row_numbers = clustered_numbers(run.writer.open("codes"), job.scan.counts)
    run.write(job.plan.stage("clustered_rows"), {"rows": row_numbers.rechunk(job.graph_sizes.rows_per_chunk)})


def find_graph(job: Job, settings: Settings, run: Run) -> GraphSummary:
    """Find the neighbours, once for every k; or take them as given."""
    if job.given_graph is not None:
        return store_given_graph(run, job.graph_sizes, job.given_graph)
    return find_neighbors(run, job.graph_sizes, job.grid.ks[0], settings.method, settings.recall, settings.random_state)


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
        seed=settings.random_state,
    )


def number_clusters(job: Job, n_clusters: int, run: Run) -> Numbering:
    """The numbers of the clusters: 0, 1, ..., or those of the same clusters in a previous fit."""
    if job.previous is None or job.data is None:
        return Numbering(list(range(n_clusters)), n_clusters)
    X = with_features_of(job.previous, job.data, job.clustered_rows(job.rows(run)))
    P = run.writer.open("absorption")[:, :n_clusters].rechunk({1: -1})
    has_gaps = job.skips or job.previous.n_skipped > 0
    comparison = Comparison(job.previous, by_row_number=not has_gaps and keep_row_numbers(job.previous, X))
    starts = range(0, X.shape[0], job.graph_sizes.rows_per_chunk)
    parts = zip(X.to_delayed().ravel(), starts, P.to_delayed().ravel(), strict=True)
    pieces = [Piece(tally_block, (comparison, *part)) for part in parts]
    with run.stage(job.plan.stage("match")) as stage:
        tally = sum_tallies(stage.run("match", pieces))
    numbers, changes = follow(tally, job.previous)
    return Numbering(numbers, max(job.previous.next_number, max(numbers) + 1), changes)


def write_memberships(job: Job, numbers: list[int], run: Run) -> None:
    """Store memberships, labels and confidence."""
    absorption, n_clusters, shape = run.writer.open("absorption"), len(numbers), None
    noise = job.settings.noise
    if job.skips:
        codes = run.writer.open("codes")
        answers = with_skipped(absorption, numbers, n_clusters, codes, job.scan.counts, noise=noise)
        shape = codes.shape[0], codes.chunksize[0]
    else:
        answers = clustering(absorption, n_clusters, numbers, noise=noise)
    run.write(memberships_stage(job.sizes, n_clusters, shape), vars(answers))


def store_small_arrays(
    job: Job, grid: GridResult, numbers: list[int], transform: Transform | None, writer: ResultWriter
) -> None:
    """Store the grid, the scales, the representatives and the transform. Row numbers are those of the input."""
    evaluation, in_order = grid.evaluation, np.argsort(numbers)
    rows = {
        "picks": evaluation.picks,
        "candidates": evaluation.candidates,
        "sources": grid.rows,
        "representatives": grid.representatives[in_order],
    }
    if job.skips:
        of_input = writer.array("rows")
        rows = {name: np.where(each < 0, -1, _rows_at(of_input, np.maximum(each, 0))) for name, each in rows.items()}
    arrays = {
        "k": job.grid.ks,
        "lam": job.grid.lams,
        "n_clusters": np.arange(1, job.grid.max_clusters + 1),
        "scale": np.arange(1, job.grid.max_scale + 1),
        "criterion": evaluation.surface,
        "smallest": evaluation.smallest,
        "criterion_parts": evaluation.parts,
        "evidence": grid.evidence,
        "evidence_with_borders": grid.evidence_with_borders,
        "rates": evaluation.rates,
        "candidate_clusters": evaluation.clusters,
        "source_clusters": np.asarray(numbers)[grid.clusters],
        "cluster": np.sort(numbers),
        **rows,
    }
    if transform is not None:
        names = ("kept", "center", "scale", "components")
        arrays |= {f"transform/{name}": getattr(transform, name) for name in names}
    for name, values in arrays.items():
        if values is not None:
            writer.put(name, values)


def verdict_on(job: Job, settings: Settings, grid: GridResult, run: Run) -> tuple[Verdict, int]:
    """How sure the choice is, in words; and how many rows no cluster reaches."""
    evaluation = grid.evaluation
    verdict = judge(
        grid.selection,
        job.grid,
        evaluation.surface,
        evaluation.parts,
        Evidence(grid.evidence, grid.evidence_with_borders, grid.selection.dimension, job.n_rows),
        settings.n_clusters,
    )
    blocks = run.writer.open("confidence").to_delayed().ravel()
    n_confident, n_unreached = np.sum(compute([dask.delayed(count_confident)(block) for block in blocks]), axis=0)
    doubt = low_confidence(n_confident / job.n_rows)
    verdict = verdict if doubt is None else replace(verdict, doubts=(*verdict.doubts, doubt))
    return verdict, int(n_unreached)


def describe(
    job: Job,
    transform: Transform | None,
    grid: GridResult,
    numbering: Numbering,
    verdict: Verdict,
    n_unreached: int,
    memory: Memory,
    run: Run,
) -> Description:
    """What is known about the result besides its arrays."""
    settings = job.settings
    return Description(
        settings=settings,
        choice=grid.selection.used,
        selection=grid.selection,
        verdict=verdict,
        **vars(numbering),
        n_candidates={str(k): count for k, count in grid.n_candidates.items()},
        n_maxima={str(k): count for k, count in grid.n_maxima.items()},
        n_unreached=n_unreached,
        most_passes=grid.n_passes,
        is_certain=job.sizes.tightens or settings.tol_of_grid(job.n_rows) <= settings.tol,
        largest_residual=_as_json(grid.residual),
        grid_residual=_as_json(grid.grid_residual),
        versions={name: version(name) for name in RECORDED_VERSIONS},
        seconds=run.progress.seconds,
        memory=memory.record(),
        features=None if job.data is None else _storable_names(job.data.names),
        read_options={} if job.data is None else job.data.options,
        transform=None if transform is None else transform.summary,
        within=None if job.within is None else job.within[1],
    )


def _rows_at(rows: Any, numbers: Any) -> Any:
    """Row numbers of the input for numbers among the clustered rows; few of them."""
    different, at = np.unique(numbers, return_inverse=True)
    return np.asarray(rows[different])[at].reshape(numbers.shape)


def _storable_names(names: tuple[Any, ...] | None) -> list[Any] | None:
    """The names of the features if all of them can be stored; else None."""
    return list(names) if names and all(type(name) in (str, int) for name in names) else None


def _as_json(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON has no NaN
