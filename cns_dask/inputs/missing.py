"""Rows that are skipped, because a value is missing (NaN) or infinite; labels as in scikit-learn's HDBSCAN.

Rows outside a sample (`inputs.sampling`) have a code too: they are not clustered, but get a label all the same.
A fit within one cluster skips the rows of all others. They are marked in the data by a NaN of their own, as R marks its
missing values: so whatever reads a chunk of rows knows which of them count.
"""

from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.execution.plan import Stage, Step
from cns_dask.storage.chunks import FLOAT_BYTES
from cns_dask.storage.layout import ArrayPlan

CLUSTERED, HAS_INFINITE, HAS_MISSING, ELSEWHERE, OUTSIDE_SAMPLE = 0, -2, -3, -4, -5  # codes of rows
ELSEWHERE_BITS = np.uint64(0x7FF8_0000_0000_0C25)

Codes = np.ndarray[Any, np.dtype[np.int8]]


def skip_stages(shape: tuple[int, int], n_clustered: int, chunk: int, rows: int) -> tuple[Stage, Stage]:
    """Find the rows to skip among data of this shape, read in chunks of `chunk` rows; number the others, by `rows`."""
    n_rows, n_features = shape
    find = Step("skip_codes", -(-n_rows // chunk), 3 * FLOAT_BYTES * chunk * n_features, work=n_rows * n_features)
    codes = ArrayPlan("codes", (n_rows,), (chunk,))
    return Stage("skip_codes", (find,), writes=(codes,)), numbers_stage(codes, n_clustered, rows)


def numbers_stage(codes: ArrayPlan, n_clustered: int, rows: int) -> Stage:
    """Number the rows that are clustered, by `rows`."""
    number = Step("clustered_rows", -(-n_clustered // rows), 3 * FLOAT_BYTES * rows, work=codes.shape[0])
    return Stage("clustered_rows", (number,), (codes,), (ArrayPlan("rows", (n_clustered,), (rows,)),))


def row_codes(block: FloatArray) -> Codes:
    """Why each row is skipped, or CLUSTERED; a missing value counts before an infinite one.

    Examples
    --------
    >>> row_codes(np.array([[0.0, 1.0], [np.nan, np.inf], [np.inf, 2.0]]))
    array([ 0, -3, -2], dtype=int8)
    """
    codes = np.where(np.isinf(block).any(axis=1), HAS_INFINITE, CLUSTERED)
    codes = np.where(np.isnan(block).any(axis=1), HAS_MISSING, codes)
    if block.dtype == np.float64 and block.shape[1]:
        bits = np.ascontiguousarray(block[:, 0]).view(np.uint64)
        codes = np.where(bits == ELSEWHERE_BITS, ELSEWHERE, codes)
    return codes.astype(np.int8)


def within_cluster(X: da.Array, labels: da.Array, cluster: int) -> da.Array:
    """X (n, d) with the rows of all other clusters marked as being elsewhere."""
    labels = labels.rechunk((X.chunks[0],))
    return da.blockwise(mark_elsewhere, "ij", X, "ij", labels, "i", cluster=cluster, dtype=np.float64, concatenate=True)


def mark_elsewhere(block: FloatArray, labels: Any, cluster: int) -> FloatArray:
    """Some rows, with those of other clusters marked.

    Examples
    --------
    >>> row_codes(mark_elsewhere(np.zeros((3, 1)), np.array([0, 1, 1]), 1))
    array([-4,  0,  0], dtype=int8)
    """
    marked = np.array(block, np.float64)
    marked[labels != cluster] = ELSEWHERE_BITS.view(np.float64)
    return marked


def clustered_block(block: FloatArray) -> FloatArray:
    """The rows that are clustered."""
    return np.asarray(block[row_codes(block) == CLUSTERED])


def clustered_rows(X: da.Array, counts: tuple[int, ...]) -> da.Array:
    """The rows of X (n, d) that are clustered, of which each chunk has as many as `counts` tells."""
    kept = X.map_blocks(clustered_block, chunks=(counts, X.chunks[1]), dtype=X.dtype)
    return kept.rechunk({0: tuple(count for count in counts if count)})


def clustered_numbers(codes: da.Array, counts: tuple[int, ...]) -> da.Array:
    """Row number of every row that is clustered."""
    starts = np.cumsum([0, *codes.chunks[0][:-1]]).tolist()
    blocks = [
        da.from_delayed(dask.delayed(_numbers)(block, start), (count,), np.int64)
        for block, start, count in zip(codes.to_delayed().ravel(), starts, counts, strict=True)
        if count
    ]
    return da.concatenate(blocks)


def _numbers(codes: Codes, start: int) -> Any:
    return start + np.flatnonzero(codes == CLUSTERED)
