"""One reading of the data before a fit: hashes of their chunks, and how many rows can be clustered."""

import hashlib
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.execution.compute import compute
from cns_dask.inputs.forms import Data
from cns_dask.inputs.missing import CLUSTERED, row_codes
from cns_dask.progress import Progress
from cns_dask.storage.fingerprints import digest
from cns_dask.storage.locations import Location


@dataclass(frozen=True)
class Scan:
    """What one reading of the data told: hashes of their chunks, and how many rows of each can be clustered."""

    hashes: tuple[str, ...]
    counts: tuple[int, ...]


def scan(X: da.Array, *, hashed: bool, counted: bool, in_memory: bool, progress: Progress) -> Scan:
    """Read the data once, chunk by chunk, if hashes or counts are wanted."""
    if not (hashed or counted):
        return Scan((), X.chunks[0])
    tasks = [dask.delayed(scan_block)(block, hashed, counted) for block in X.to_delayed().ravel()]
    with progress.stage("scan", len(tasks)) as advance:
        scheduler = {"scheduler": "synchronous"} if in_memory else {}  # where the rows are
        with dask.config.set(scheduler):
            blocks = compute(tasks, lambda _: advance())
    hashes, counts = zip(*blocks, strict=True)
    return Scan(hashes, counts)


def scan_block(block: Any, hashed: bool, counted: bool) -> tuple[str, int]:
    """Hash of a chunk, and the number of its rows that can be clustered: all, unless they are `counted`."""
    word = hashlib.blake2b(np.ascontiguousarray(block).data, digest_size=16).hexdigest() if hashed else ""
    return word, int((row_codes(block) == CLUSTERED).sum()) if counted else len(block)


def fingerprint_of(data: Data, progress: Progress, hashes: tuple[str, ...] | None = None) -> dict[str, Any]:
    """What tells data apart: shape, type, and versions of their files (of a path or URL), or hashes of their chunks."""
    if data.files:
        content: Any = [Location(file).versions() for file in data.files]
    elif hashes is None:
        content = scan(data.X, hashed=True, counted=False, in_memory=data.in_memory, progress=progress).hashes
    else:
        content = hashes
    options = {"options": data.options} if data.options else {}
    return {"shape": list(data.X.shape), "dtype": str(data.X.dtype), "content": digest(content), **options}
