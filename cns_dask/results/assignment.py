"""Clusters of all rows, from the fit of a sample.

A row of the sample has its own absorption. Every other row takes that of its nearest sampled rows, as a new row does
(`results.predict`), chunk by chunk: a worker never needs more than for the sample.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.execution.cluster import delayed_chunks
from cns_dask.execution.plan import Stage, Step
from cns_dask.execution.run import Piece, Run
from cns_dask.inputs.missing import CLUSTERED, OUTSIDE_SAMPLE, row_codes
from cns_dask.inputs.preprocess import TransformSummary
from cns_dask.inputs.sampling import Draw
from cns_dask.neighbors.cells import stored_cells
from cns_dask.neighbors.plan import PAIRS_BYTES, SEARCH_GROWTH, GraphSizes
from cns_dask.results.description import stored_transform
from cns_dask.results.predict import HELD_BYTES, LoadedModel, rows_at_once
from cns_dask.results.result import Result
from cns_dask.results.samples import Agreement, agreement_of
from cns_dask.results.scales import count_pairs
from cns_dask.results.skipped import Codes, mark_skipped
from cns_dask.settings import Settings
from cns_dask.smoothing.criterion import Choice
from cns_dask.smoothing.memberships import Clustering, clustering_block, from_blocks
from cns_dask.smoothing.plan import clustering_stage
from cns_dask.storage.arrays import StoredArray
from cns_dask.storage.chunks import FLOAT_BYTES, row_slices
from cns_dask.storage.fingerprints import digest
from cns_dask.storage.layout import ArrayPlan
from cns_dask.storage.locations import Location
from cns_dask.storage.store import ResultStore


class StoredModel:
    """What predicts, in a store that may be unfinished: it travels with a task as a path, opened once in a process.

    Parameters
    ----------
    path
        Where points, absorption, cells and transform are stored.
    choice, numbers, settings, summary
        What else predicts: the choice, the numbers of its clusters, the settings and the summary of the transform.
    opening
        Tells this use of the store from those before, which may have seen other content.
    absorption
        That of another choice; None for the one that is stored.
    """

    def __init__(
        self,
        path: str,
        choice: Choice,
        numbers: Sequence[int],
        settings: Settings,
        summary: TransformSummary,
        opening: str = "",
        absorption: StoredArray | None = None,
    ) -> None:
        self._key = path, choice, tuple(numbers), settings, summary, opening
        self._absorption, self.n_clusters = absorption, choice.n_clusters

    @property
    def opened(self) -> LoadedModel:
        """Its parts, loaded or opened."""
        model = _opened(*self._key)
        return model if self._absorption is None else replace(model, absorption=self._absorption)


@lru_cache(maxsize=8)
def _opened(
    path: str, choice: Choice, numbers: tuple[int, ...], settings: Settings, summary: TransformSummary, _: str
) -> LoadedModel:
    """The parts of a stored model in this process."""
    store = ResultStore(Location(path))
    return LoadedModel(
        choice,
        stored_transform(store, summary),
        list(numbers),
        settings,
        stored_cells(store),
        store.array("points"),
        store.array("absorption"),
        store.array("first_copy") if "first_copy" in store else None,
    )


def assign_stage(shape: tuple[int, int], rows: int, sizes: GraphSizes, n_clusters: int) -> Stage:
    """Clusters of all rows of data of this shape, in chunks of `rows`; `sizes` are those of the sample."""
    n_rows, n_features = shape
    at_once = min(rows, rows_at_once(n_features, sizes.n_neighbors, n_clusters))
    near = min(sizes.n_rows, at_once * sizes.n_neighbors)  # different sampled rows that are near some of them
    is_held = sizes.n_rows * n_clusters * FLOAT_BYTES <= HELD_BYTES
    task_bytes = PAIRS_BYTES + FLOAT_BYTES * (
        rows * (3 * n_features + 6 * n_clusters)
        + at_once * (4 * sizes.n_features + 8 * sizes.n_neighbors + 3 * n_clusters)
        + (sizes.n_rows if is_held else 2 * near) * n_clusters
        + 2 * max(sizes.rows_per_chunk, sizes.rows_per_cell_chunk) * sizes.n_features
        + 3 * sizes.n_cells * sizes.n_features
    )
    work = n_rows * sizes.n_features * sizes.n_rows ** (1 if sizes.is_exact else SEARCH_GROWTH)
    stage = clustering_stage("assign", n_rows, rows, n_clusters, task_bytes)
    return replace(stage, steps=(replace(stage.steps[0], work=work),), reads=(ArrayPlan("raw rows", shape, shape),))


def assigned(X: da.Array, codes: da.Array, counts: Sequence[int], model: StoredModel) -> Clustering:
    """The clustering of all rows X (n, d), lazily, in the chunks of their codes, `counts` of each in the sample."""
    parts = row_slices(X.shape[0], codes.chunksize[0])
    firsts = np.cumsum([0, *counts[:-1]]).tolist()
    blocks = [
        dask.delayed(assign_block)(model, rows, part_codes, part.start, first)
        for rows, part_codes, part, first in zip(
            delayed_chunks(X), codes.to_delayed().ravel(), parts, firsts, strict=True
        )
    ]
    return from_blocks(blocks, codes.chunks[0], model.n_clusters)


def assigned_at(
    result: Result, X: da.Array, codes: da.Array, counts: Sequence[int], choice: Choice, absorption: StoredArray
) -> Clustering:
    """The same for another choice than that of a finished result."""
    numbers, key = range(choice.n_clusters), digest(result.details)
    model = StoredModel(result.path, choice, numbers, result.settings, result.transform.summary, key, absorption)
    return assigned(X, codes, counts, model)


def assign_block(model: StoredModel, rows: FloatArray, codes: Codes, first_row: int, first_sampled: int) -> Clustering:
    """The clustering of some rows, the first of which has these numbers among all and among the sampled ones."""
    opened, own, outside = model.opened, codes == CLUSTERED, codes == OUTSIDE_SAMPLE
    P = np.zeros((len(rows), model.n_clusters))
    n_own = int(own.sum())
    if n_own:
        P[own] = opened.absorption[first_sampled : first_sampled + n_own, : model.n_clusters]
    P[outside] = opened.absorption_of(rows[outside], first_row + np.flatnonzero(outside))
    answers = clustering_block(P, opened.numbers, noise=opened.settings.noise)
    return mark_skipped(answers, np.where(outside, CLUSTERED, codes).astype(np.int8))


def compare_stage(shape: tuple[int, int], rows: int) -> Stage:
    """Labels of some rows by two models, in chunks of `rows`."""
    n_rows, n_features = shape
    step = Step("compare", -(-n_rows // rows), 4 * FLOAT_BYTES * rows * n_features, work=n_rows * n_features)
    return Stage("compare", (step,), reads=(ArrayPlan("raw rows", shape, (rows, n_features)),))


def compare(X: da.Array, rows: int, draw: Draw, clusters: Sequence[int], second: StoredModel, run: Run) -> Agreement:
    """How the stored labels of the drawn rows of X (n, d), in chunks of `rows`, agree with those of a second model."""
    labels, numbers = run.writer.array("labels"), np.asarray(clusters)
    parts = zip(delayed_chunks(X), row_slices(X.shape[0], rows), strict=True)
    pieces = [Piece(compare_block, (second, block, part, draw, labels, numbers)) for block, part in parts]
    with run.stage(compare_stage(X.shape, rows)) as stage:
        return agreement_of(np.sum(stage.run("compare", pieces), axis=0))


def compare_block(
    model: StoredModel, block: FloatArray, rows: slice, draw: Draw, labels: StoredArray, clusters: IntArray
) -> IntArray:
    """The number of drawn rows in each of the stored clusters and of those of another model (K, K')."""
    marks = draw.marks(rows.start, rows.stop) & (row_codes(block) == CLUSTERED)
    first, table = np.asarray(labels[rows])[marks], np.zeros((len(clusters), model.n_clusters), np.int64)
    P = model.opened.absorption_of(block[marks], rows.start + np.flatnonzero(marks))
    second = clustering_block(P, noise=model.opened.settings.noise).labels
    known = first >= 0
    pairs = count_pairs(np.searchsorted(clusters, first[known]), np.asarray(second)[known])
    table[: pairs.shape[0], : pairs.shape[1]] += pairs
    return table
