"""Move rows to another order out of core: every block is sorted and written once, then every output chunk collects its
stretch of each block.

Entries carry an integer key that says where they go. A block's entries are sorted by key, so what one output chunk
needs of a block is one slice; the scratch arrays are stored in shards of small chunks, of which a slice reads few.
Two passes over the data, tasks linear in their number, and no task holds more than a block or a chunk.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cns_dask.types import ArrayLike, IntArray


def write_sorted(keys: IntArray, values: Sequence[ArrayLike], targets: Sequence[ArrayLike], start: int) -> IntArray:
    """Write the entries of one block, by key, from position `start` of the targets on; return the sorted keys.

    `targets` are the scratch arrays of the keys and of each of the values.
    """
    order = np.argsort(keys, kind="stable")
    for array, target in zip((keys, *values), targets, strict=True):
        target[start : start + len(order)] = np.asarray(array)[order]
    return keys[order]


def collect(sources: Sequence[ArrayLike], parts: Sequence[slice]) -> list[ArrayLike]:
    """Entries of these parts of the scratch arrays, in the order of their keys: keys first, then the values."""
    parts = [part for part in parts if part.stop > part.start]
    read = [np.concatenate([np.asarray(source[part]) for part in parts]) for source in sources]
    order = np.argsort(read[0], kind="stable")
    return [array[order] for array in read]
