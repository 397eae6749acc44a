"""Clusterings of data of which some rows were skipped: these are put back, marked as such."""

from collections.abc import Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.inputs.missing import CLUSTERED
from cns_dask.smoothing.memberships import Clustering, clustering_block, from_blocks

Codes = np.ndarray[Any, np.dtype[np.int8]]


def with_skipped(
    absorption: da.Array,
    numbers: Sequence[int] | None,
    n_clusters: int,
    codes: da.Array,
    counts: tuple[int, ...],
    *,
    noise: bool = False,
) -> Clustering:
    """The clustering of all rows from the absorption (clustered, K) of those that were not skipped, lazily."""
    P = absorption[:, :n_clusters].rechunk({1: -1})
    ends = np.cumsum(counts)
    blocks = []
    for block, count, end in zip(codes.to_delayed().ravel(), counts, ends, strict=True):
        rows = P[int(end) - count : int(end)].rechunk(-1).to_delayed().ravel()
        blocks.append(dask.delayed(with_skipped_block)(block, rows[0] if count else None, numbers, n_clusters, noise))
    return from_blocks(blocks, codes.chunks[0], n_clusters)


def with_skipped_block(
    codes: Codes, P: FloatArray | None, numbers: Sequence[int] | None, n_clusters: int, noise: bool = False
) -> Clustering:
    """The clustering of some rows, of which `P` holds the absorption of those that were not skipped."""
    whole = np.zeros((len(codes), n_clusters))
    if P is not None:
        whole[codes == CLUSTERED] = P
    return mark_skipped(clustering_block(whole, numbers, noise=noise), codes)


def mark_skipped(answers: Clustering, codes: Codes) -> Clustering:
    """The same, with skipped rows marked: no membership, no confidence, the code as label."""
    skipped = codes != CLUSTERED
    if not skipped.any():
        return answers
    return Clustering(
        memberships=np.where(skipped[:, None], np.nan, answers.memberships),
        labels=np.where(skipped, codes, answers.labels),
        confidence=np.where(skipped, 0.0, answers.confidence),
    )
