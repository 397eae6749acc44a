"""One reading of the data before a fit: hashes of their chunks, and how many rows can be clustered."""

import hashlib
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.execution.cluster import delayed_chunks
from cns_dask.execution.compute import compute
from cns_dask.inputs.forms import Data
from cns_dask.inputs.missing import CLUSTERED, row_codes
from cns_dask.inputs.sampling import Draw
from cns_dask.progress import Progress
from cns_dask.storage.arrays import WIDE_FEATURES
from cns_dask.storage.chunks import row_slices
from cns_dask.storage.fingerprints import digest
from cns_dask.storage.locations import Location


@dataclass(frozen=True)
class Scan:
    """What one reading of the data told: hashes of their chunks, and how many rows of each can be clustered."""

    hashes: tuple[str, ...]
    counts: tuple[int, ...]
    rows: int = 0  # of a chunk


def scan(
    X: da.Array,
    rows: int,
    *,
    hashed: bool,
    counted: bool,
    in_memory: bool,
    progress: Progress,
    draw: Draw | None = None,
) -> Scan:
    """Read the data once, if hashes or counts are wanted: those of chunks of `rows` rows, whatever chunks X has.

    With `draw` only the rows of a sample count.
    """
    parts = row_slices(X.shape[0], rows)
    if not (hashed or counted):
        count = draw.count if draw is not None else lambda part: part.stop - part.start
        return Scan((), tuple(map(count, parts)), rows)
    by_row = X.shape[1] > WIDE_FEATURES
    X = X if by_row else X.rechunk({0: rows})
    starts = np.cumsum([0, *X.chunks[0][:-1]]).tolist()
    blocks = zip(delayed_chunks(X), starts, strict=True)
    tasks = [dask.delayed(scan_block)(block, hashed, counted, start, draw) for block, start in blocks]
    with progress.stage("scan", len(tasks)) as advance:
        scheduler = {"scheduler": "synchronous"} if in_memory else {}  # where the rows are
        with dask.config.set(scheduler):
            scanned = compute(tasks, lambda _: advance())
    words, counts = (np.concatenate(each) for each in zip(*scanned, strict=True))
    if not by_row:
        return Scan(tuple(map(str, words)), tuple(map(int, counts)), rows)
    hashes = tuple(_word(words[part]) for part in parts) if hashed else ()
    return Scan(hashes, tuple(int(counts[part].sum()) for part in parts), rows)


def scan_block(
    block: Any, hashed: bool, counted: bool, first_row: int = 0, draw: Draw | None = None
) -> tuple[Any, Any]:
    """Hash of a chunk, and the number of its rows that can be clustered: all of the draw, unless they are `counted`.

    Of wide rows both of each row: so a chunk of the caller need not be one of the plan.
    """
    clustered = row_codes(block) == CLUSTERED if counted else np.ones(len(block), np.bool_)
    if draw is not None:
        clustered &= draw.marks(first_row, first_row + len(block))
    if block.shape[1] <= WIDE_FEATURES:
        return [_word(block) if hashed else ""], [int(clustered.sum())]
    words = [hashlib.blake2b(row.data, digest_size=8).digest() for row in np.ascontiguousarray(block)] if hashed else []
    return np.frombuffer(b"".join(words), np.uint64), clustered


def _word(values: Any) -> str:
    return hashlib.blake2b(np.ascontiguousarray(values).data, digest_size=16).hexdigest()


def fingerprint_of(
    data: Data, progress: Progress, hashes: tuple[str, ...] | None = None, rows: int | None = None
) -> dict[str, Any]:
    """What tells data apart: shape, type, and versions of their files (of a path or URL), or hashes of their chunks."""
    if data.files:
        content: Any = [Location(file).versions() for file in data.files]
    elif hashes is None:
        options: dict[str, Any] = {"hashed": True, "counted": False, "in_memory": data.in_memory, "progress": progress}
        content = scan(data.X, rows or data.X.chunksize[0], **options).hashes
    else:
        content = hashes
    read = {"options": data.options} if data.options else {}
    return {"shape": list(data.X.shape), "dtype": str(data.X.dtype), "content": digest(content), **read}
