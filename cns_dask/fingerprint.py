"""What tells one data set from another, without a copy of it: shape, type, and marks or hashes of its content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.missing import KEPT, row_codes
from cns_dask.places import Place
from cns_dask.progress import Progress
from cns_dask.runtime import run
from cns_dask.types import Data


@dataclass(frozen=True)
class Look:
    """What one reading of the data told: hashes of their chunks, and how many rows of each can be clustered."""

    digests: tuple[str, ...]
    counts: tuple[int, ...]


def look(X: da.Array, *, hashed: bool, counted: bool, here: bool, progress: Progress) -> Look:
    """Read the data once, chunk by chunk, if there is a reason to; `here` if they are in this process's memory."""
    if not (hashed or counted):
        return Look((), X.chunks[0])
    tasks = [dask.delayed(look_at)(block, hashed, counted) for block in X.to_delayed().ravel()]
    with progress.stage("look", len(tasks)) as advance:
        seen = dask.compute(*tasks, scheduler="synchronous") if here else run(tasks, advance)
    digests, counts = zip(*seen, strict=True)
    return Look(digests, counts)


def look_at(block: Any, hashed: bool, counted: bool) -> tuple[str, int]:
    """Hash of a chunk, and the number of its rows that can be clustered: all, unless they are `counted`."""
    word = hashlib.blake2b(np.ascontiguousarray(block).data, digest_size=16).hexdigest() if hashed else ""
    return word, int((row_codes(block) == KEPT).sum()) if counted else len(block)


def content_of(data: Data, progress: Progress, digests: tuple[str, ...] | None = None) -> dict[str, Any]:
    """What tells data apart: shape, type, and marks that their store keeps (of a path or URL), or hashes of chunks."""
    if data.files:
        marks: Any = [Place(file).marks() for file in data.files]
    elif digests is None:
        marks = look(data.X, hashed=True, counted=False, here=data.in_memory, progress=progress).digests
    else:
        marks = digests
    read = {"reading": data.reading} if data.reading else {}
    return {"shape": list(data.X.shape), "dtype": str(data.X.dtype), "content": digest(marks), **read}


def way_of(*plans: Any) -> dict[str, str]:
    """What else must be the same to go on with unfinished work: how it is cut into pieces, and by which version."""
    return {"plan": digest(plans), "cns_dask": version("cns_dask")}


def digest(value: Any) -> str:
    """A short word for plain values."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()
