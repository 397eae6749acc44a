"""Rows that cannot be clustered, because a value is missing (NaN) or infinite: found, left out, and put back as such.

Their labels are those of scikit-learn's HDBSCAN.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.memberships import clustering_block, from_blocks
from cns_dask.types import Clustering, FloatArray

KEPT, INFINITE, MISSING = 0, -2, -3

Codes = np.ndarray[Any, np.dtype[np.int8]]


def row_codes(block: FloatArray) -> Codes:
    """Why each row is left out, or KEPT; a missing value counts before an infinite one.

    Examples
    --------
    >>> row_codes(np.array([[0.0, 1.0], [np.nan, np.inf], [np.inf, 2.0]]))
    array([ 0, -3, -2], dtype=int8)
    """
    codes = np.where(np.isinf(block).any(axis=1), INFINITE, KEPT)
    return np.where(np.isnan(block).any(axis=1), MISSING, codes).astype(np.int8)


def kept_block(block: FloatArray) -> FloatArray:
    """The rows that are not left out."""
    return np.asarray(block[row_codes(block) == KEPT])


def kept_rows(X: da.Array, counts: tuple[int, ...]) -> da.Array:
    """The rows of X (n, d) that are not left out, of which each chunk has as many as `counts` tells."""
    kept = X.map_blocks(kept_block, chunks=(counts, X.chunks[1]), dtype=X.dtype)
    return kept.rechunk({0: tuple(count for count in counts if count)})


def kept_numbers(codes: da.Array, counts: tuple[int, ...]) -> da.Array:
    """Row number of every row that is not left out."""
    starts = np.cumsum([0, *codes.chunks[0][:-1]]).tolist()
    blocks = [
        da.from_delayed(dask.delayed(_numbers)(block, start), (count,), np.int64)
        for block, start, count in zip(codes.to_delayed().ravel(), starts, counts, strict=True)
        if count
    ]
    return da.concatenate(blocks)


def _numbers(codes: Codes, start: int) -> Any:
    return start + np.flatnonzero(codes == KEPT)


def put_back(
    columns: da.Array, numbers: Sequence[int] | None, n_clusters: int, codes: da.Array, counts: tuple[int, ...]
) -> Clustering:
    """The clustering of all rows from the columns (kept, picks) of those that were not left out, lazily."""
    P = columns[:, :n_clusters].rechunk({1: -1})
    ends = np.cumsum(counts)
    blocks = []
    for block, count, end in zip(codes.to_delayed().ravel(), counts, ends, strict=True):
        rows = P[int(end) - count : int(end)].rechunk(-1).to_delayed().ravel()
        blocks.append(dask.delayed(put_back_block)(block, rows[0] if count else None, numbers, n_clusters))
    return from_blocks(blocks, codes.chunks[0], n_clusters)


def put_back_block(codes: Codes, P: FloatArray | None, numbers: Sequence[int] | None, n_clusters: int) -> Clustering:
    """The clustering of some rows, of which `P` holds the columns of those that were not left out."""
    whole = np.zeros((len(codes), n_clusters))
    if P is not None:
        whole[codes == KEPT] = P
    return marked(clustering_block(whole, numbers), codes)


def marked(found: Clustering, codes: Codes) -> Clustering:
    """The same, with rows that are left out marked: no membership, no confidence, the code as label."""
    left_out = codes != KEPT
    if not left_out.any():
        return found
    return Clustering(
        memberships=np.where(left_out[:, None], np.nan, found.memberships),
        labels=np.where(left_out, codes, found.labels),
        confidence=np.where(left_out, 0.0, found.confidence),
    )
