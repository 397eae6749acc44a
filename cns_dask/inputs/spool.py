"""Wide rows that come in other chunks than those of the plan: written to scratch once, and read from there.

Through Dask's rechunk most of them would be in memory together: a chunk of the plan waits for several of the caller's,
and what is left over of these waits for the next. And every pass over them would compute them again.
"""

from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.execution.cluster import delayed_chunks
from cns_dask.execution.plan import Stage, Step
from cns_dask.execution.run import Piece, Run
from cns_dask.inputs.forms import Data
from cns_dask.storage.arrays import WIDE_FEATURES, StoredArray
from cns_dask.storage.chunks import FLOAT_BYTES, row_slices
from cns_dask.storage.layout import ArrayPlan


def needs_spool(data: Data, rows_per_chunk: int) -> bool:
    """Whether rows should not go through Dask's rechunk; sparse ones are small, and those in memory are shared."""
    n_rows, n_features = data.X.shape
    fits = data.X.chunks[0] == da.core.normalize_chunks((rows_per_chunk,), (n_rows,))[0]
    return n_features > WIDE_FEATURES and not (fits or data.in_memory or data.is_sparse)


def spool_stage(X: da.Array, rows_per_chunk: int) -> Stage:
    """Write every chunk of the caller to an array of its own."""
    n_features = X.shape[1]
    arrays = tuple(
        ArrayPlan(f"input-{number}", (size, n_features), (min(size, rows_per_chunk), n_features), scratch=True)
        for number, size in enumerate(X.chunks[0])
    )
    held = 3 * FLOAT_BYTES * max(X.chunks[0]) * n_features
    return Stage("input", (Step("input", len(arrays), held, work=X.shape[0] * n_features),), writes=arrays)


def spooled(X: da.Array, rows_per_chunk: int, run: Run) -> da.Array:
    """The same rows in the chunks of the plan, read from scratch."""
    stage = spool_stage(X, rows_per_chunk)
    with run.stage(stage) as running:
        arrays = [running.create(array.name) for array in stage.writes]
        whole = slice(None), slice(None)
        pieces = [
            Piece(write_rows, (block, array), ((array, whole),))
            for block, array in zip(delayed_chunks(X), arrays, strict=True)
        ]
        running.run("input", pieces)
    return joined([(array, slice(0, array.shape[0])) for array in arrays], rows_per_chunk)


def joined(parts: list[tuple[StoredArray, slice]], rows_per_chunk: int) -> da.Array:
    """Rows of stored arrays, one after the other, read in chunks of `rows_per_chunk`."""
    parts = [(array, rows) for array, rows in parts if rows.stop > rows.start]
    edges, blocks = np.cumsum([0, *(rows.stop - rows.start for _, rows in parts)]).tolist(), []
    for rows in row_slices(edges[-1], rows_per_chunk):
        first, last = np.searchsorted(edges, [rows.start, rows.stop - 1], side="right") - 1
        pieces = []
        for (array, part), start in zip(parts[first : last + 1], edges[first:], strict=False):
            shift = part.start - start
            pieces.append((array, slice(max(part.start, rows.start + shift), min(part.stop, rows.stop + shift))))
        shape = rows.stop - rows.start, parts[0][0].shape[1]
        blocks.append(da.from_delayed(dask.delayed(read_rows)(pieces), shape, np.float64))
    return da.concatenate(blocks)


def write_rows(block: FloatArray, target: StoredArray) -> None:
    """Write a chunk of the caller."""
    target[...] = block


def read_rows(parts: list[tuple[StoredArray, slice]]) -> Any:
    """Some rows of stored arrays, one after the other."""
    return np.concatenate([np.asarray(array[rows]) for array, rows in parts])
