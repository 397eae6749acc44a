"""Rows to look at: the ones deepest in each cluster, and those that two clusters share."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.results.overlap import over_blocks, shares_block
from cns_dask.smoothing.memberships import Clustering

Ranked = tuple[IntArray, FloatArray, IntArray]  # group, score and row number of some rows


def deepest_rows(clustering: Clustering, clusters: Sequence[int], n: int) -> IntArray:
    """Row numbers of the n rows deepest in each cluster (K, n), deepest first; -1 where it has fewer.

    A row is deep in its cluster if its membership there lies far above that in any other.
    """
    numbers = np.asarray(clusters)
    group, _, rows = over_blocks(clustering, depths_block, partial(best_of, n=n), numbers, n)
    found = np.full((len(numbers), n), -1)
    for at, number in enumerate(numbers):
        some = rows[group == number]
        found[at, : len(some)] = some
    return found


def undecided_rows(clustering: Clustering, first: int, second: int, n: int) -> IntArray:
    """Row numbers of the n rows, or fewer, most undecided between two clusters, which are given by position.

    A row counts by how far the smaller of its two shares lies above those of all other clusters, and only if it does.
    """
    return np.asarray(over_blocks(clustering, doubts_block, partial(best_of, n=n), first, second, n)[2])


def depths_block(
    F: FloatArray, labels: IntArray, confidence: FloatArray, first_row: int, clusters: IntArray, n: int
) -> Ranked:
    """The deepest of some rows in each cluster."""
    del confidence
    known = np.flatnonzero(np.isin(labels, clusters) & ~np.isnan(F[:, 0]))
    ordered = np.sort(F[known], axis=1)
    depth = ordered[:, -1] - (ordered[:, -2] if F.shape[1] > 1 else 0)
    return best_of([(labels[known], depth, first_row + known)], n)


def doubts_block(
    F: FloatArray, labels: IntArray, confidence: FloatArray, first_row: int, first: int, second: int, n: int
) -> Ranked:
    """The most undecided of some rows between two clusters."""
    shares = shares_block(F, confidence)
    both = np.minimum(shares[:, first], shares[:, second])
    others = np.delete(shares, [first, second], axis=1).max(axis=1, initial=0)
    score = both - others
    kept = np.flatnonzero((score > 0) & (labels >= 0))
    return best_of([(np.zeros_like(kept), score[kept], first_row + kept)], n)


def best_of(parts: Sequence[Any], n: int) -> Ranked:
    """The n rows of each group with the largest scores, by group, score and row number.

    Examples
    --------
    >>> best_of([(np.array([0, 1]), np.array([0.5, 0.1]), np.array([8, 9])), ([0], [0.7], [3])], 1)[2]
    array([3, 9])
    """
    group, score, row = (np.concatenate(values) for values in zip(*parts, strict=True))
    order = np.lexsort((row, -score, group))
    rank = np.arange(len(order)) - np.searchsorted(group[order], group[order])
    kept = order[rank < n]
    return group[kept], score[kept], row[kept]
