"""Move rows to another order out of core: every block is sorted and written once, then every output chunk collects its
stretch of each block.

Entries are records with a field "key", an integer that says where they go. A block's entries are sorted by key, so what
one output chunk needs of a block is one slice. They lie as bytes in one scratch array with a chunk for every block; the
store maps it where the disk is local, so that a slice reads no more than itself. Two passes over the data, tasks linear
in their number, and no task holds more than a block or a chunk.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from cns_dask.array_types import ArrayLike, IntArray


def point_entry(n_features: int) -> np.dtype[Any]:
    """Entry of one row of the points."""
    return np.dtype([("key", "int64"), ("point", "float32", (n_features,))])


def list_entry(n_neighbors: int, n_rows: int) -> np.dtype[Any]:
    """Entry of one row's list among `n_rows`; its key is the row number."""
    index = "int32" if n_rows <= np.iinfo(np.int32).max else "int64"
    return np.dtype([("key", "int64"), ("indices", index, (n_neighbors,)), ("distances", "float32", (n_neighbors,))])


def write_sorted(entry: DTypeLike, keys: IntArray, target: ArrayLike, start: int, **values: ArrayLike) -> IntArray:
    """Write the entries of one block, by key, from `start` on in the scratch array; return the sorted keys."""
    order = np.argsort(keys, kind="stable")
    entries = np.empty(len(order), entry)
    for name, array in {"key": keys, **values}.items():
        entries[name] = array[order]
    whole = getattr(target, "chunks", (len(order),))[0]  # a whole chunk: what was there is not read, it may be damaged
    padded = np.zeros((whole, entries.itemsize), np.int8)
    padded[: len(order)] = entries.view(np.int8).reshape(len(order), -1)
    target[start : start + whole] = padded
    return keys[order]


def collect(entry: DTypeLike, source: ArrayLike, parts: Sequence[slice]) -> Any:
    """Entries of these parts of the scratch array, in the order of their keys."""
    read = [np.asarray(source[part]) for part in parts if part.stop > part.start]
    entries = np.concatenate(read).view(entry)[:, 0]
    del read
    return entries[np.argsort(entries["key"], kind="stable")]


def slices_of_blocks(cuts: IntArray, at: int, stride: int) -> list[slice]:
    """Where each block keeps what belongs to output chunk `at`: `cuts` (block, edge) are its positions in the block."""
    return [
        slice(block * stride + int(low), block * stride + int(high))
        for block, (low, high) in enumerate(cuts[:, at : at + 2])
    ]
