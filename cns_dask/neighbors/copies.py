"""Copies of rows: equal rows are one place, whose neighbors are the nearest other places.

Lists of k rows would be filled with copies where these are many, and a table in which every row stands twice would
have other neighbors than the table itself. So neighbors are searched among the first rows of each kind, and the
further copies take the list of the first one:

| row          | its list                                      |
|--------------|-----------------------------------------------|
| a first row  | itself, then the nearest other first rows     |
| a copy of it | itself, then the same rows                    |

No list names a further copy. Rows are compared by hashes of 64 bits: two different rows among 10^8 have the same one
with a chance of 3 in 10 000.
"""

from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.execution.compute import compute
from cns_dask.execution.plan import Stage, Step
from cns_dask.execution.run import Piece, Run
from cns_dask.neighbors.plan import GraphSizes
from cns_dask.storage.arrays import StoredArray
from cns_dask.storage.chunks import FLOAT_BYTES, row_slices
from cns_dask.storage.layout import ArrayPlan

Hashes = np.ndarray[Any, np.dtype[np.uint64]]

#: The word before the stages of the search among first rows.
DISTINCT = "distinct"
CELL_PARTS = ("centers", "starts", "points", "rows", "offset")


def copies_stage(sizes: GraphSizes) -> Stage:
    """Find the copies of rows; where there are some, copy the first rows, and give the lists of these to all."""
    n, d, rows = sizes.n_rows, sizes.n_features, sizes.rows_per_chunk
    steps = (
        Step("hash", sizes.n_chunks, 3 * FLOAT_BYTES * rows * d, work=n * d),
        Step("number", 1, 6 * FLOAT_BYTES * n, work=n, after=(0,)),
    )
    hashes = ArrayPlan("hashes", (n,), (rows,), "uint64", scratch=True)
    return Stage("copies", steps, reads=(sizes.points,), writes=(hashes, _first(sizes)))


def _first(sizes: GraphSizes) -> ArrayPlan:
    return ArrayPlan("first", (sizes.n_rows,), (sizes.rows_per_chunk,), "int64", scratch=True)


def expand_stage(sizes: GraphSizes) -> Stage:
    """Give every row the list of the first row that equals it."""
    n, k, rows = sizes.n_rows, sizes.n_neighbors, sizes.rows_per_chunk
    step = Step("expand", sizes.n_chunks, FLOAT_BYTES * (2 * n + 6 * rows * k), work=n * k)
    cells = (ArrayPlan(f"cells/{name}", (1,), (1,)) for name in CELL_PARTS)
    return Stage("expand", (step,), writes=(ArrayPlan("first_copy", (n,), (rows,)), *sizes.lists(), *cells))


def find_copies(run: Run, sizes: GraphSizes) -> int:
    """Find the first row that equals each row; return the number of different rows."""
    points = run.writer.array("points")
    parts = row_slices(sizes.n_rows, sizes.rows_per_chunk)
    with run.stage(copies_stage(sizes)) as stage:
        hashes = stage.create("hashes")
        stage.run("hash", [Piece(write_hashes, (points, part, hashes), ((hashes, (part,)),)) for part in parts])
        first, whole = stage.create("first"), (slice(None),)
        (n_distinct,) = stage.run("number", [Piece(write_first_copies, (hashes, first), ((first, whole),))])
    return int(n_distinct)


def distinct_rows(run: Run, sizes: GraphSizes, of_distinct: GraphSizes) -> Run:
    """Write the points of first rows beside those of all; return the work that searches among them."""
    first, points, beside = run.writer.create(_first(sizes)), run.writer.array("points"), run.beside(DISTINCT)
    parts = row_slices(sizes.n_rows, sizes.rows_per_chunk)
    counts = compute([dask.delayed(count_first_rows)(first, part) for part in parts])
    blocks = [
        da.from_delayed(dask.delayed(first_points)(points, first, part), (count, points.shape[1]), points.dtype)
        for part, count in zip(parts, counts, strict=True)
        if count
    ]
    rows = of_distinct.rows_per_chunk
    plan = replace(of_distinct.points, shape=(of_distinct.n_rows, points.shape[1]), chunks=(rows, points.shape[1]))
    stage = Stage("points", (Step("take", len(parts)),), writes=(plan,))
    beside.write(stage, {"points": da.concatenate(blocks).rechunk({0: rows})})
    return beside


def expand_lists(run: Run, beside: Run, sizes: GraphSizes) -> None:
    """Store the lists of all rows, and the cells, from those of the search among first rows."""
    first, names = run.writer.create(_first(sizes)), ("graph/indices", "graph/distances")
    of_first = [beside.writer.array(name) for name in names]
    with run.stage(expand_stage(sizes)) as stage:
        graph = [
            stage.create(name, shape=(sizes.n_rows, found.shape[1]), chunks=(sizes.rows_per_chunk, found.shape[1]))
            for name, found in zip(names, of_first, strict=True)
        ]
        parts = row_slices(sizes.n_rows, sizes.rows_per_chunk)
        kept = stage.create("first_copy")
        pieces = [
            Piece(
                expand_part,
                (first, part, of_first, graph, kept),
                (*((array, (part, slice(None))) for array in graph), (kept, (part,))),
            )
            for part in parts
        ]
        stage.run("expand", pieces)
        if "cells/points" in beside.writer:
            copied = []
            for name in CELL_PARTS:
                source = beside.writer.array(f"cells/{name}")
                target = stage.create(f"cells/{name}", shape=source.shape, chunks=source.chunks)
                rows = first if name == "rows" else None
                regions = target.regions()
                copied += [stage.delayed("expand", copy_part, source, region, rows, target) for region in regions]
            stage.compute(copied)


def hash_rows(rows: FloatArray) -> Hashes:
    """Return a number of 64 bits for each row (m, d), the same for equal rows.

    Examples
    --------
    >>> first, second, third = hash_rows(np.array([[0.0, 1.0], [1.0, 0.0], [-0.0, 1.0]]))
    >>> bool(first == third), bool(first == second)
    (True, False)
    """
    bits = np.ascontiguousarray(rows + 0.0, dtype=np.float64).view(np.uint64)  # -0.0 becomes 0.0
    hashes: Hashes = np.zeros(len(bits), np.uint64)
    for column in bits.T:
        hashes = _mixed(hashes + _mixed(column + np.uint64(0x9E37_79B9_7F4A_7C15)))
    return hashes


def _mixed(values: Hashes) -> Hashes:
    """Mix the bits of numbers: the last steps of Steele's splitmix64."""
    for shift, factor in (30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    return values ^ (values >> np.uint64(31))


def first_copies(hashes: Hashes | IntArray) -> IntArray:
    """Return the first row with the hash of each row (n,).

    Examples
    --------
    >>> first_copies(np.array([5, 7, 5, 7, 2]))
    array([0, 1, 0, 1, 4])
    """
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    is_first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    first = np.empty(len(hashes), np.int64)
    first[order] = order[is_first][np.cumsum(is_first) - 1]
    return first


def write_hashes(points: ArrayLike, part: slice, target: StoredArray) -> None:
    """Write the hashes of some rows."""
    target[part] = hash_rows(np.asarray(points[part]))


def write_first_copies(hashes: ArrayLike, target: StoredArray) -> int:
    """Write the first row that equals each row; return the number of different rows."""
    target[:] = first = first_copies(np.asarray(hashes[:]))
    return int((first == np.arange(len(first))).sum())


def first_rows(first: ArrayLike, part: slice) -> IntArray:
    """Return the numbers of those of some rows that no earlier row equals."""
    rows = np.arange(part.start, part.stop)
    return np.asarray(rows[np.asarray(first[part]) == rows])


def count_first_rows(first: ArrayLike, part: slice) -> int:
    """Count those of some rows that no earlier row equals."""
    return len(first_rows(first, part))


def first_points(points: ArrayLike, first: ArrayLike, part: slice) -> FloatArray:
    """Return the points of those of some rows that no earlier row equals."""
    values: FloatArray = np.asarray(points[part])[first_rows(first, part) - part.start]
    return values


def rows_of_places(first: ArrayLike) -> IntArray:
    """Return the number of every row that no earlier row equals."""
    return first_rows(first, slice(0, first.shape[0]))


def expand_part(
    first: ArrayLike, part: slice, of_first: list[ArrayLike], graph: list[StoredArray], kept: StoredArray
) -> None:
    """Write the lists of some rows: each takes that of the first row that equals it, itself in front."""
    rows = rows_of_places(first)
    wanted, which = np.unique(np.searchsorted(rows, np.asarray(first[part])), return_inverse=True)
    indices, distances = (_some_rows(array, wanted)[which] for array in of_first)
    indices = rows[indices]
    indices[:, 0] = np.arange(part.start, part.stop)
    graph[0][part], graph[1][part], kept[part] = indices, distances, np.asarray(first[part])


def copy_part(source: ArrayLike, region: tuple[slice, ...], first: ArrayLike | None, target: StoredArray) -> None:
    """Copy a region of an array; numbers of places become those of rows."""
    values = np.asarray(source[region])
    target[region] = values if first is None else rows_of_places(first)[values]


def _some_rows(array: ArrayLike, rows: IntArray) -> Any:
    """Return some rows in ascending order, chunk by chunk."""
    parts = []
    for part in row_slices(array.shape[0], array.chunks[0]):
        low, high = np.searchsorted(rows, [part.start, part.stop])
        if high > low:
            parts.append(np.asarray(array[part])[rows[low:high] - part.start])
    return np.concatenate(parts)
