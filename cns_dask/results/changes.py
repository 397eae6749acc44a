"""Clusters over time: which of a new fit are those of a previous one, what has changed, how far the rows drifted.

The old model's predictions say where each row was: a row that it was fitted on takes its old label, any other one that
of its neighbours. Counting rows by old and new cluster gives a table from which the rest follows. Rows that lie outside
the old data tell nothing about old clusters, and are counted apart: a row is outside if it is farther from its nearest
old row than the k-th neighbour of that row is, and than the median of these distances. Where most rows have the values
that they had at the same row number of the old data (a table that rows were added to, or of which some have changed),
the number tells which row it is, and so its old label, whatever its values are now.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.execution.compute import compute
from cns_dask.execution.plan import Stage, Step
from cns_dask.inputs.missing import CLUSTERED, row_codes
from cns_dask.inputs.preprocess import transform_rows
from cns_dask.progress import Progress
from cns_dask.results.history import Changes, Drift
from cns_dask.results.predict import Predictor, check_features, open_new
from cns_dask.results.result import Result
from cns_dask.smoothing.memberships import clustering_block
from cns_dask.storage.chunks import FLOAT_BYTES
from cns_dask.storage.layout import ArrayPlan

#: A cluster is, comes from or goes to another one if they share so much of its rows.
MATCHING_SHARE = 0.5
#: Chunks that tell whether rows have their old row numbers.
SAMPLED_CHUNKS = 16
#: An old cluster has moved if fewer than this share of its rows is still where it was, growth of all clusters included.
STAYING_SHARE = 0.75


def match_stage(n_rows: int, n_features: int, rows: int) -> Stage:
    """Count rows by old and new cluster, in chunks of `rows`: each is searched among the rows of the previous fit."""
    step = Step("match", -(-n_rows // rows), 6 * FLOAT_BYTES * rows * n_features, work=n_rows * n_features)
    return Stage("match", (step,), reads=(ArrayPlan("raw rows", (n_rows, n_features), (rows, n_features)),))


@dataclass(frozen=True)
class Tally:
    """Counts of rows by old and new cluster (old, new), near old rows and outside; and sums over rows that are new.

    Rows that are known by their row number count as near.
    """

    near: IntArray
    outside: IntArray
    n_new: int
    n_outside: int
    confidence: float


class Comparison:
    """A previous result, to compare chunks of rows with; `by_row_number` if rows keep their numbers."""

    def __init__(self, result: Result, *, by_row_number: bool = False) -> None:
        self.predictor, self.clusters, self.by_row_number = (
            Predictor(result),
            np.asarray(result.clusters),
            by_row_number,
        )
        self.labels = result.stored("labels")
        self.radii = None if result.graph.distances is None else result.stored("graph/distances")
        self.typical = _median_radius(result)

    def tally(self, rows: FloatArray, first_row: int, labels: IntArray, n_clusters: int) -> tuple[Any, ...]:
        """Counts for some rows (m, d) whose clusters (0, 1, ...) in the new fit are known: the fields of a `Tally`."""
        opened = self.predictor.opened
        answers, (distances, indices) = opened.clustering_with_neighbors(rows, 0)
        before = np.array(answers.labels)
        numbered = np.asarray(self.labels[first_row : first_row + len(rows)]) if self.by_row_number else before[:0]
        before[: len(numbered)] = numbered
        old: IntArray = np.searchsorted(self.clusters, before)
        is_new, is_outside = distances[:, 0] > 0, distances[:, 0] > self._reach(indices[:, 0], opened)
        near, outside = np.zeros((2, len(self.clusters), n_clusters), np.int64)
        apart = is_outside & (np.arange(len(rows)) >= len(numbered))
        for counts, rows_there in ((near, ~apart), (outside, apart)):
            counted = rows_there & (before >= 0)  # others were in no cluster
            np.add.at(counts, (old[counted], labels[counted]), 1)
        return near, outside, int(is_new.sum()), int(is_outside.sum()), float(answers.confidence[is_new].sum())

    def _reach(self, nearest: IntArray, opened: Any) -> FloatArray:
        """How far a row may be from its nearest old row without being outside."""
        if self.radii is None:
            return np.full(len(nearest), np.inf)
        needed, position = np.unique(nearest, return_inverse=True)
        radii = np.asarray(self.radii[needed, :])[position, opened.choice.n_neighbors - 1]
        return np.asarray(np.maximum(radii, self.typical) * (1 + 1e-6))  # a search in cells rounds to single precision


def _median_radius(result: Result) -> float:
    """Median distance of the k-th neighbour in a previous fit."""
    if result.graph.distances is None:
        return float("inf")
    radii = result.graph.distances[:, result.choice.n_neighbors - 1]
    return float(np.ravel(da.percentile(radii, 50, internal_method="dask").compute())[0])


def tally_block(comparison: Comparison, rows: FloatArray, first_row: int, P: FloatArray) -> tuple[Any, ...]:
    """Counts for one chunk of rows, from their absorption in the new fit."""
    return comparison.tally(rows, first_row, clustering_block(P).labels, P.shape[1])


def unmoved_block(predictor: Predictor, rows: FloatArray, first_row: int) -> int:
    """How many of some rows are those that had the same numbers in a previous fit."""
    opened = predictor.opened
    old = np.asarray(opened.points[first_row : first_row + len(rows)])
    new = transform_rows(rows[: len(old)], opened.transform, np.arange(first_row, first_row + len(old)))
    return int((new == old).all(axis=1).sum())


def keep_row_numbers(previous: Result, X: da.Array) -> bool:
    """Whether most rows of X (n, d) are those that had the same numbers in a previous fit, of all its rows."""
    starts = np.cumsum([0, *X.chunks[0]])
    which = np.unique(np.linspace(0, len(starts) - 2, SAMPLED_CHUNKS, dtype=int)).tolist()
    predictor, blocks = Predictor(previous), X.to_delayed().ravel()
    tasks = [dask.delayed(unmoved_block)(predictor, blocks[at], int(starts[at])) for at in which]
    return bool(sum(compute(tasks, stage="match")) > MATCHING_SHARE * sum(X.chunks[0][at] for at in which))


def sum_tallies(tallies: Sequence[tuple[Any, ...]]) -> Tally:
    """The sum of counts."""
    return Tally(*(sum(values[1:], values[0]) for values in zip(*tallies, strict=True)))


def drift_of(tally: Tally, result: Result) -> Drift:
    """How far the counted rows are from those of a previous fit."""
    labels, confidence = result.labels, result.confidence
    before = float(da.nanmean(da.where(labels >= 0, confidence, np.nan)).compute())
    share = 1 / max(1, tally.n_new)
    n_rows = int(tally.near.sum() + tally.outside.sum())
    mean = tally.confidence * share if tally.n_new else before
    return Drift(n_rows, tally.n_new, tally.n_outside * share, mean, before)


def drift(model: Any, new: Any, *, progress: Progress | None = None, **options: Any) -> Drift:
    """Tell how far new rows are from those of a fit, and so whether it is time for a new one.

    Parameters
    ----------
    model
        A fitted `CNS`, a `Result`, or the path or URL of one.
    new
        Rows with the same features: see `open_data`.
    progress
        Is told about stages and counts.
    **options
        Options of `open_data`; those of the fit are used where they are not given.

    Examples
    --------
    >>> from cns_dask import CNS
    >>> rng = np.random.default_rng(0)
    >>> model = CNS().fit(np.concatenate([rng.normal(center, 1, (100, 3)) for center in (0, 9)]))
    >>> drift(model, rng.normal(30, 1, (50, 3))).outside
    1.0
    """
    comparison = Comparison(Predictor(model).result)
    result = comparison.predictor.result
    data = check_features(result, open_new(result, new, **options))
    blocks = data.X.to_delayed().ravel()
    tasks = [dask.delayed(_tally_of_one)(comparison, block) for block in blocks]
    with (progress or Progress()).stage("drift", len(tasks)) as advance:
        tallies = compute(tasks, lambda _: advance(), stage="drift")
    return drift_of(sum_tallies(tallies), result)


def _tally_of_one(comparison: Comparison, rows: FloatArray) -> tuple[Any, ...]:
    if comparison.predictor.opened.skips:
        rows = rows[row_codes(rows) == CLUSTERED]
    return comparison.tally(rows, 0, np.zeros(len(rows), np.int64), 1)


def shared_rows(tally: Tally, old_sizes: IntArray) -> IntArray:
    """Rows by old and new cluster (old, new): those near old rows, and of a cluster that has left, all.

    A cluster that has lost a good part of its rows, while rows outside are nearest to it, has moved, in whole or
    in part. Rows outside that are nearest to a cluster which is still as large as ever are something else.

    Examples
    --------
    >>> tally = Tally(np.array([[50, 0], [100, 0]]), np.array([[0, 50], [0, 90]]), 140, 140, 0.0)
    >>> shared_rows(tally, np.array([100, 100]))  # the first was cut in two
    array([[ 50,  50],
           [100,   0]])
    """
    there = tally.near.sum(axis=1)
    growth = there / np.maximum(1, old_sizes)
    order = np.argsort(growth)
    middle = np.searchsorted(np.cumsum(old_sizes[order]), old_sizes.sum() / 2, side="right")  # by rows, upper median
    usual = growth[order][min(int(middle), len(order) - 1)]
    has_left = there <= STAYING_SHARE * usual * old_sizes
    return np.asarray(tally.near + np.where(has_left[:, None], tally.outside, 0))


def match(shared: IntArray, new_sizes: IntArray) -> dict[int, int]:
    """New cluster -> old cluster that it is, by position: the pairs with the most rows in common.

    A pair must hold half of one of its clusters at least.

    Examples
    --------
    >>> match(np.array([[0, 90], [80, 5]]), np.array([80, 95]))
    {1: 0, 0: 1}
    """
    from scipy.optimize import linear_sum_assignment

    old_sizes = shared.sum(axis=1)
    pairs = zip(*linear_sum_assignment(shared, maximize=True), strict=True)
    return {
        int(new): int(old)
        for old, new in pairs
        if shared[old, new] >= max(1, MATCHING_SHARE * min(old_sizes[old], new_sizes[new]))
    }


def follow(tally: Tally, previous: Result) -> tuple[list[int], Changes]:
    """The number of every new cluster, that of the old one that it is, or one that none has had; and the changes."""
    clusters, old_sizes = previous.clusters, previous.sizes()
    shared, new_sizes = shared_rows(tally, old_sizes), (tally.near + tally.outside).sum(axis=0)
    same = match(shared, new_sizes)
    fresh = itertools.count(previous.next_number)
    numbers = [clusters[same[new]] if new in same else next(fresh) for new in range(len(new_sizes))]
    came = shared >= np.maximum(1, MATCHING_SHARE * new_sizes)  # most rows of a new cluster came from one old one
    went = shared >= np.maximum(1, MATCHING_SHARE * shared.sum(axis=1, keepdims=True))  # or went there
    parts = {old: _where(came[old]) for old in range(len(clusters)) if came[old].sum() > 1}
    unions = {new: _where(went[:, new]) for new in range(len(numbers)) if went[:, new].sum() > 1}
    gone = set(range(len(clusters))) - {*same.values(), *parts, *itertools.chain(*unions.values())}
    born = set(range(len(numbers))) - {*same, *itertools.chain(*parts.values())}
    kept = sum(int(tally.near[old, new]) for new, old in same.items())
    return numbers, Changes(
        births=tuple(sorted(numbers[new] for new in born)),
        deaths=tuple(sorted(clusters[old] for old in gone)),
        splits=tuple((clusters[old], tuple(sorted(numbers[new] for new in news))) for old, news in parts.items()),
        merges=tuple((numbers[new], tuple(clusters[old] for old in olds)) for new, olds in unions.items()),
        kept=kept / max(1, int(tally.near.sum())),
        drift=drift_of(tally, previous),
    )


def _where(marks: Any) -> list[int]:
    return [int(position) for position in np.flatnonzero(marks)]
