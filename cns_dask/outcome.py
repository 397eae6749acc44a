"""What is stored of a fit besides its large arrays: small arrays, the verdict, and the description of the run."""

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import dask
import numpy as np

from cns_dask.execution.compute import compute
from cns_dask.execution.memory import Memory
from cns_dask.execution.run import Run
from cns_dask.inputs.preprocess import Transform
from cns_dask.jobs import Job
from cns_dask.results.description import Description
from cns_dask.results.history import Numbering
from cns_dask.results.samples import Agreement, Sample
from cns_dask.settings import Settings
from cns_dask.smoothing.grid import GridResult
from cns_dask.smoothing.scales import Evidence
from cns_dask.smoothing.verdict import Verdict, count_confident, judge, low_confidence
from cns_dask.storage.store import ResultWriter

RECORDED_VERSIONS = ("cns_dask", "dask", "numpy", "scipy", "zarr")


def store_small_arrays(job: Job, grid: GridResult, numbers: list[int], writer: ResultWriter) -> None:
    """Store the grid, the scales and the representatives. Row numbers are those of the input."""
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
        "community_clusters": None if grid.communities is None else grid.communities.clusters,
        **rows,
    }
    for name, values in arrays.items():
        if values is not None:
            writer.put(name, values)


def store_transform(transform: Transform, writer: ResultWriter) -> None:
    """Store the arrays of the fitted preprocessing."""
    for name in ("kept", "center", "scale", "components"):
        if getattr(transform, name) is not None:
            writer.put(f"transform/{name}", getattr(transform, name))


def verdict_on(job: Job, settings: Settings, grid: GridResult, run: Run) -> tuple[Verdict, int, int]:
    """How sure the choice is, in words; how many rows no cluster reaches, and how many are skipped."""
    evaluation = grid.evaluation
    verdict = judge(
        grid.selection,
        job.grid,
        evaluation.surface,
        evaluation.parts,
        Evidence(grid.evidence, grid.evidence_with_borders, grid.selection.dimension, job.n_rows),
        settings.n_clusters,
    )
    labels = run.writer.open("labels")
    blocks = (array.to_delayed().ravel() for array in (run.writer.open("confidence"), labels))
    counts = compute([dask.delayed(count_confident)(*pair) for pair in zip(*blocks, strict=True)])
    n_confident, n_unreached, n_skipped = map(int, np.sum(counts, axis=0))
    doubt = low_confidence(n_confident / (labels.shape[0] - n_skipped))
    verdict = verdict if doubt is None else replace(verdict, doubts=(*verdict.doubts, doubt))
    return verdict, n_unreached, n_skipped


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
        started=run.progress.started,
        memory=memory.record(),
        features=None if job.data is None else _storable_names(job.data.names),
        read_options={} if job.data is None else job.data.options,
        transform=None if transform is None else transform.summary,
        within=None if job.within is None else job.within[1],
    )


def describe_sample(job: Job, n_skipped: int, agreement: Agreement | None) -> Sample | None:
    """What is known about the sample that was clustered; None if all rows were."""
    return None if job.sampling is None else Sample(job.sampling.size, job.n_rows, n_skipped, agreement)


def _rows_at(rows: Any, numbers: Any) -> Any:
    """Row numbers of the input for numbers among the clustered rows; few of them."""
    different, at = np.unique(numbers, return_inverse=True)
    return np.asarray(rows[different])[at].reshape(numbers.shape)


def _storable_names(names: tuple[Any, ...] | None) -> list[Any] | None:
    """The names of the features if all of them can be stored; else None."""
    return list(names) if names and all(type(name) in (str, int) for name in names) else None


def _as_json(value: float) -> float | None:
    return value if np.isfinite(value) else None  # JSON has no NaN
