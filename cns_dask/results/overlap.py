"""How much clusters overlap.

| symbol | variable   | shape     | meaning                                                                           |
|--------|------------|-----------|-----------------------------------------------------------------------------------|
| F      | F          | (rows, K) | memberships: 1/K + P - rowsum(P)/K                                                |
| c      | confidence | (rows,)   | largest share of P in its row, rescaled: 0 for 1/K, 1 for the whole               |
| Q      | shares     | (rows, K) | shares: P / rowsum(P), of the walks that end at a representative, those of each   |

Memberships differ little, because most walks end at rows that represent no cluster; shares tell how a row is divided.
They follow from what is stored: F gives the differences of P within a row, and c the largest share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dask
import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.execution.compute import compute, merged
from cns_dask.smoothing.memberships import Clustering


def shares_block(F: FloatArray, confidence: FloatArray) -> FloatArray:
    """The shares of each cluster in some rows (m, K), which sum to 1; NaN where no cluster is in reach.

    Examples
    --------
    >>> shares_block(np.array([[0.6, 0.4]]), np.array([0.5]))  # P = 0.3, 0.1
    array([[0.75, 0.25]])
    """
    K = F.shape[1]
    if K == 1:
        return np.ones_like(F)
    largest = F.max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        reached = (K * largest - 1) / ((K - 1) * confidence[:, None])  # rowsum(P)
        shares = (confidence[:, None] * (K - 1) + 1) / K - (largest - F) / reached
    return np.clip(np.where(confidence[:, None] > 0, shares, np.nan), 0, 1)


def overlap_of(clustering: Clustering) -> FloatArray:
    """Overlap of clusters (K, K), O[a, b] = sum_i Q_ia Q_ib / sum_i Q_ia: the share of b in the rows of a.

    Rows count for a as much as they belong to it; those that reach no cluster do not count. Rows of O sum to 1, and it
    is the identity where no row could belong to two clusters.
    """
    products = over_blocks(clustering, products_block, sum)
    totals = products.sum(axis=1, keepdims=True)  # shares of a row sum to 1
    return np.asarray(np.divide(products, totals, out=np.eye(len(products)), where=totals > 0))


def products_block(F: FloatArray, labels: Any, confidence: FloatArray, first_row: int) -> FloatArray:  # noqa: ARG001
    """Sums of the products of shares over some rows (K, K)."""
    shares = np.nan_to_num(shares_block(F, confidence))
    return np.asarray(shares.T @ shares)


def over_blocks(
    clustering: Clustering, function: Callable[..., Any], merge: Callable[..., Any], *arguments: Any
) -> Any:
    """Merged values of `function(memberships, labels, confidence, first_row, *arguments)` of all chunks."""
    F: Any = clustering.memberships
    of_rows: Sequence[Any] = clustering.labels, clustering.confidence
    starts = np.cumsum([0, *F.chunks[0][:-1]]).tolist()
    blocks = [F.rechunk({1: -1}), *(values.rechunk({0: F.chunks[0]}) for values in of_rows)]
    parts = [
        dask.delayed(function)(*each, *arguments)
        for each in zip(*(values.to_delayed().ravel() for values in blocks), starts, strict=True)
    ]
    return compute([merged(parts, merge)], stage="clusters")[0]
