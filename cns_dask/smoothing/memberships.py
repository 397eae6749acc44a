"""Memberships, labels and confidence from the absorption at the picks, for any number of clusters.

| symbol | variable | shape      | meaning                                                                      |
|--------|----------|------------|------------------------------------------------------------------------------|
| P      | P        | (rows, K)  | absorption: chance that a walk from i is absorbed at pick j                  |
| F      | F        | (rows, K)  | memberships: 1/K + P - rowsum(P)/K                                           |

Memberships are small numbers even for perfect clusters, because most walks end at points that represent nothing. The
confidence looks only at walks that end at a representative: the share of the largest cluster among them, rescaled so
that 0 is the even share 1/K (nothing preferred, or nothing in reach) and 1 is the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray


@dataclass(frozen=True)
class Clustering:
    """Soft and hard clusters of some rows."""

    memberships: ArrayLike  # F, rows on the simplex (row, cluster)
    labels: ArrayLike  # first largest membership of every row (row,)
    confidence: ArrayLike  # 0 where no cluster is preferred to 1 where only one is in reach (row,)


#: Absorption below which all memberships of a row are rounded to 1/K, and the absorption itself tells its cluster.
ROUNDED = 1e-12
NOISE = -1  # label of a row that no cluster reaches, where such rows are marked


def clustering_block(P: FloatArray, numbers: Sequence[int] | None = None, *, noise: bool = False) -> Clustering:
    """Memberships, labels and confidence of some rows.

    `numbers` are those of the clusters of the columns, 0, 1, ... if None; memberships are in their order. With `noise`
    rows whose walks reach no cluster are labelled so, instead of as the first one.

    Examples
    --------
    >>> clustering_block(np.array([[0.3, 0.1], [0.0, 0.0]])).memberships
    array([[0.6, 0.4],
           [0.5, 0.5]])
    """
    K = P.shape[1]
    if numbers is not None:
        P = P[:, np.argsort(numbers)]
    F = 1 / K + P - P.sum(axis=1, keepdims=True) / K if K > 1 else np.ones_like(P)  # where rounding would not give 1
    chances = np.maximum(P, 0)  # solved absorption may be negative by its residual
    total = chances.sum(axis=1)
    share = np.divide(chances.max(axis=1), total, out=np.full(len(P), 1 / K), where=total > 0)
    confidence = np.ones(len(P)) if K == 1 else (share - 1 / K) / (1 - 1 / K)
    largest = np.where(chances.max(axis=1) > ROUNDED, F.argmax(axis=1), chances.argmax(axis=1))
    labels = largest if numbers is None else np.sort(numbers)[largest]
    if noise:
        labels = np.where(total > 0, labels, NOISE)
    return Clustering(F, labels, np.clip(confidence, 0, 1))


def clustering(
    absorption: da.Array, n_clusters: int, numbers: Sequence[int] | None = None, *, noise: bool = False
) -> Clustering:
    """The same, lazily, for the absorption (n, clusters), chunk by chunk."""
    P = absorption[:, :n_clusters].rechunk({1: -1})
    blocks = [dask.delayed(clustering_block)(block, numbers, noise=noise) for block in P.to_delayed().ravel()]
    return from_blocks(blocks, P.chunks[0], n_clusters)


def from_blocks(blocks: list[dask.delayed.Delayed], sizes: tuple[int, ...], n_clusters: int) -> Clustering:
    """A lazy Clustering from tasks that return one for each chunk of so many rows, which may be NaN: unknown."""

    def stacked(field: str, shape: tuple[int, ...], dtype: type) -> da.Array:
        parts = [
            da.from_delayed(getattr(block, field), (size, *shape), dtype)
            for block, size in zip(blocks, sizes, strict=True)
        ]
        return da.concatenate(parts)

    return Clustering(
        memberships=stacked("memberships", (n_clusters,), np.float64),
        labels=stacked("labels", (), np.int64),
        confidence=stacked("confidence", (), np.float64),
    )
