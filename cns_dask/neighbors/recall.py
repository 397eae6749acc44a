"""How good a graph is: its recall on a sample of rows, with a 95 % interval."""

import math
from dataclasses import dataclass

import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.storage.records import recordable

NORMAL_QUANTILE = 1.959964  # of a 95 % interval
TIED = 1e-5  # relative: rows whose distances differ by less are equally near, to the rounding of float32


@recordable
@dataclass(frozen=True)
class Recall:
    """Measured share of the true neighbours that a graph lists."""

    n_neighbors: int  # for lists of so many neighbours, the row itself included in the number but not in the share
    mean: float  # the share on the sample, and its 95 % interval
    low: float
    high: float
    n_rows: int  # size of the sample


def sample_of_rows(n_rows: int, count: int, seed: int) -> IntArray:
    """Row numbers drawn without replacement, ascending: the same for any chunking."""
    return np.sort(np.random.default_rng(seed).choice(n_rows, min(count, n_rows), replace=False))


def recall_of_rows(
    lists: tuple[FloatArray, IntArray], exact: tuple[FloatArray, IntArray], n_neighbors: int
) -> FloatArray:
    """Share of the `n_neighbors` nearest of every row that was found (m,), the row itself not counted.

    Both are (distances, indices) with the row itself first. A neighbour that is not on the exact list but as near as
    its last one counts: which of several equally near rows are listed is no matter of quality.
    """
    others = slice(1, n_neighbors)
    if n_neighbors < 2:
        return np.ones(len(lists[0]))
    listed = (lists[1][:, others, None] == exact[1][:, None, others]).any(axis=2)
    as_near = lists[0][:, others] <= exact[0][:, n_neighbors - 1 : n_neighbors] * (1 + TIED)
    return np.asarray((listed | as_near).mean(axis=1))


def recall_interval(shares: FloatArray, n_neighbors: int) -> Recall:
    """Mean recall of a sample of rows with Wilson's interval.

    The neighbours of a row are missed together or found together, so they count as fewer trials than there are: as
    many as the spread between rows allows, at least one for every row.
    """
    mean, spread = float(shares.mean()), float(shares.var(ddof=1)) if len(shares) > 1 else 0.0
    trials = len(shares) * (mean * (1 - mean) / spread if spread > 1e-12 else 1.0)
    trials = min(max(trials, len(shares)), len(shares) * max(1, n_neighbors - 1))
    center = (mean + NORMAL_QUANTILE**2 / (2 * trials)) / (1 + NORMAL_QUANTILE**2 / trials)
    half = (
        NORMAL_QUANTILE
        / (1 + NORMAL_QUANTILE**2 / trials)
        * math.sqrt(mean * (1 - mean) / trials + NORMAL_QUANTILE**2 / (4 * trials**2))
    )
    return Recall(n_neighbors, mean, max(0.0, center - half), min(1.0, center + half), len(shares))
