"""Sizes of everything before anything runs: integers in, a frozen Plan out.

Sizes follow from the data and the grid alone, never from the workers, because the order of additions follows from
them: the same data give the same clusters on any cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cns_dask.types import Grid

FLOAT = 8  # bytes of a float64
PROCESS_BYTES = 450 * 2**20  # of a worker that has imported everything and holds no data
USABLE = 0.8  # share of its limit that a worker uses without being paused (Dask's default)
CHUNK_BYTES = 32 * 2**20  # of one chunk of rows
WIDE = 100  # columns: rows of more are larger than all that a worker holds for them later
BLOCK_BYTES = 2 * 2**30  # of all arrays that a block of columns needs while it is solved, if it can be
LANES = 16, 8, 4  # columns of a block: a line of the cache in single precision, or less where memory ends
QUERIES_AT_ONCE, POINTS_AT_ONCE = 2048, 4096  # whose distance bounds are in memory together: fewer are slower
PAIRS_BYTES = 2 * FLOAT * QUERIES_AT_ONCE * POINTS_AT_ONCE  # and once more to rank them
CELL_CHUNK_BYTES = 8 * 2**20  # of one chunk of points in cells: every search reads all chunks in its reach
CELL_ROWS = 1024  # of an average cell of the approximate search: half as many are slower, twice as many no faster
MAX_CELLS = 8192  # above, cells grow: every row is compared with every centre
PARTITION_ROWS = 65_536  # of one partition for descent,
OVERLAP = 3  # and every row goes to so many of them
SAMPLED_PER_CELL = 32  # rows that the centres are learned from,
SAMPLE_BYTES = 256 * 2**20  # and at most so many bytes of them
SPECTRUM_STEPS = 64  # of the Arnoldi run that finds the nodes, at most
KRYLOV_VECTORS = 100  # of the fallback, between restarts, at most
SUMMED_AT_ONCE = 4  # partial sums over rows that one task adds
DEFERRED_PASSES = 8  # smoothed blocks that are kept and added to the solution together
SINGLE_PRECISION = 1e-6  # columns that need no smaller residual are solved in it
TILE_ROWS = 64  # rows that are computed or left out together,
TILE_READS = 64  # if their neighbours lie in at most so many tiles; in more than a few dimensions they do not


@dataclass(frozen=True)
class GraphPlan:
    """What the search for neighbours will use.

    Attributes
    ----------
    rows_per_chunk
        Rows of one chunk of points and neighbours.
    n_cells
        Cells of the approximate search; 0 for an exact one.
    sampled_rows
        Rows that their centres are learned from.
    rows_per_cell_chunk
        Rows of one chunk of points in the order of the cells.
    rows_per_search
        Rows that one task finds the neighbours of.
    bytes_per_task
        The largest task of each stage.
    disk_bytes
        Room for the graph and what is kept for searches of new rows, with what is there for a while.
    n_tasks
        Tasks of the whole search.
    """

    rows_per_chunk: int
    n_cells: int
    sampled_rows: int
    rows_per_cell_chunk: int
    rows_per_search: int
    bytes_per_task: dict[str, int]
    disk_bytes: int
    n_tasks: int

    def worker_bytes(self, n_threads: int) -> int:
        """Memory limit that a worker process with `n_threads` threads needs."""
        return _limit(PROCESS_BYTES + n_threads * max(self.bytes_per_task.values()))


def plan_graph(
    n_rows: int, n_features: int, n_neighbors: int, n_components: int | None = None, *, exact: bool
) -> GraphPlan:
    """Size the search for neighbours among rows of `n_features` columns, which are projected on `n_components` if more.

    Examples
    --------
    >>> plan_graph(1_000_000, 16, 52, exact=False).n_cells
    977
    """
    rows = rows_per_chunk(n_rows, max(n_features, n_neighbors))
    chunks = math.ceil(n_rows / rows)
    n_raw, n_features = n_features, min(n_features, n_components or n_features)
    axes = FLOAT * n_raw * n_features if n_raw > n_features else 0  # and partial sums as large while they are found
    points = {"points": 5 * (FLOAT * rows * n_raw + axes)}  # as stored, as numbers, and what scaling leaves in between
    entry = FLOAT * n_neighbors  # of one row's list: indices, or distances
    if exact:
        held = {"neighbors": rows * (3 * FLOAT * n_features + 4 * entry) + PAIRS_BYTES}
        disk = n_rows * (FLOAT * n_features + 2 * entry)
        return GraphPlan(rows, 0, 0, rows, rows, points | held, disk, chunks * (chunks + 3))
    few = min(n_rows, 16 * CELL_ROWS, CHUNK_BYTES // (FLOAT * max(n_raw, n_neighbors)))
    rows = max(rows, few)  # a smaller task would wait longer for its turn than it works
    chunks = math.ceil(n_rows / rows)
    n_cells = min(MAX_CELLS, math.ceil(n_rows / CELL_ROWS))
    per_search = _clip(math.ceil(n_rows / 8), 1024, 16 * CELL_ROWS)
    cell_chunk = _clip(CELL_CHUNK_BYTES // (FLOAT // 2 * n_features), 1024, n_rows)
    searches = math.ceil(n_rows / per_search)
    row, kept = FLOAT * n_features, FLOAT // 2 * n_features + FLOAT  # a row as it comes; rounded, with its number
    sampled = min(n_rows, SAMPLED_PER_CELL * n_cells, max(n_cells, SAMPLE_BYTES // row))
    centers = FLOAT // 2 * n_cells * n_features
    return GraphPlan(
        rows_per_chunk=rows,
        n_cells=n_cells,
        sampled_rows=sampled,
        rows_per_cell_chunk=cell_chunk,
        rows_per_search=per_search,
        bytes_per_task=points
        | {
            "centers": 4 * sampled * row + FLOAT * n_cells * (256 + 4 * n_features),
            "cells": rows * (2 * row + 3 * kept) + 2 * centers + PAIRS_BYTES,
            "neighbors": 2 * per_search * (2 * kept + 4 * entry) + cell_chunk * kept + 3 * centers + PAIRS_BYTES,
            "collect": 6 * rows * (FLOAT + 2 * entry),  # entries, sorted, and on their way to the disk
        },
        disk_bytes=n_rows * (row + 2 * entry + 2 * kept + 2 * entry),
        n_tasks=6 * chunks + 3 * math.ceil(n_rows / cell_chunk) + searches + 10,
    )


def descent_worker_bytes(n_features: int, n_neighbors: int, n_threads: int) -> int:
    """Memory that a worker process needs for descent: a partition per thread, some of them twice as large as others.

    pynndescent holds the rows, a heap and the candidates of every row (about 60 bytes per neighbour), and trees.
    """
    rows = 2 * OVERLAP * PARTITION_ROWS
    return _limit(PROCESS_BYTES + n_threads * rows * (3 * FLOAT // 2 * n_features + 60 * n_neighbors + 600))


def _limit(peak_bytes: int) -> int:
    """The limit of a worker that uses so much at its peak: Dask pauses workers above a share of their limit."""
    return math.ceil(peak_bytes / USABLE)


@dataclass(frozen=True)
class Plan:
    """What a fit will use.

    Attributes
    ----------
    rows_per_chunk
        Rows of one chunk of points, neighbours and memberships.
    columns_per_block
        Candidate columns that are solved together.
    rows_per_column_chunk
        Rows of one chunk of solved columns in the scratch space.
    bytes_per_task
        The largest task of each stage.
    bytes_per_process
        What the threads of a worker process share: the process itself and the graph for one k, which is mapped: other
        processes of the same host share it too.
    disk_bytes
        Room that the result takes uncompressed, with the walks and columns of all k that are there for a while: with
        few workers hardly more than those of one k are there together.
    n_tasks
        Tasks of the whole fit.
    """

    rows_per_chunk: int
    columns_per_block: int
    rows_per_column_chunk: int
    bytes_per_task: dict[str, int]
    bytes_per_process: int
    disk_bytes: int
    n_tasks: int

    def worker_bytes(self, n_threads: int) -> int:
        """Memory limit that a worker process with `n_threads` threads needs."""
        return _limit(self.bytes_per_process + n_threads * max(self.bytes_per_task.values()))


def make_plan(n_rows: int, graph: GraphPlan, grid: Grid, max_candidates: int, tol: float) -> Plan:
    """Size the chunks and blocks of a fit whose neighbours are found as planned in `graph`.

    `tol` is the residual to which the columns of the grid are solved.

    Examples
    --------
    >>> graph = plan_graph(8_000, 16, 18, exact=True)
    >>> plan = make_plan(8_000, graph, Grid((9, 18), (0.01, 0.02), 30), max_candidates=300, tol=1e-4)
    >>> plan.rows_per_chunk, plan.columns_per_block
    (1024, 16)
    """
    n_lams, n_ks, k_max = len(grid.lams), len(grid.ks), grid.ks[-1]
    count, number = min(max_candidates, n_rows), np.dtype(column_type(tol)).itemsize
    # per column: every lam's solution and the ring of passes; or one in double precision, and as it is written
    per_column = n_rows * max(number * (n_lams + DEFERRED_PASSES + 1), FLOAT * (DEFERRED_PASSES + 4))
    width = next((lanes for lanes in LANES if lanes * per_column <= BLOCK_BYTES), LANES[-1])
    column_rows = _clip(max(CHUNK_BYTES // (number * count), 8 * count, n_rows // 1024), 1, n_rows)
    column_chunks, blocks = math.ceil(n_rows / column_rows), math.ceil(count / width)
    gram = FLOAT * n_lams * count * (count + 1)
    walks = 4 * n_rows * (sum(grid.ks) + 3)
    return Plan(
        rows_per_chunk=graph.rows_per_chunk,
        columns_per_block=width,
        rows_per_column_chunk=column_rows,
        bytes_per_task=graph.bytes_per_task
        | {
            "order": 40 * n_rows * grid.ks[0],  # both directions of the graph, and their sum
            "walks": n_rows * (12 * k_max + 8 * FLOAT + number * (SPECTRUM_STEPS + 4)),
            "columns": width * per_column + FLOAT * n_rows * (krylov_vectors(n_rows) + 4),
            "reduction": 3 * number * count * column_rows + (SUMMED_AT_ONCE + 2) * gram,
        },
        bytes_per_process=PROCESS_BYTES + 4 * n_rows * k_max,
        disk_bytes=graph.disk_bytes + walks + n_rows * (number * n_ks * n_lams * count + 2 * FLOAT * grid.max_clusters),
        n_tasks=graph.n_tasks
        + 3 * math.ceil(n_rows / graph.rows_per_chunk)
        + 1
        + n_ks * (1 + blocks + 3 * column_chunks),
    )


def krylov_vectors(n_rows: int) -> int:
    """Vectors that the fallback of the solver keeps between restarts."""
    return _clip(BLOCK_BYTES // (FLOAT * n_rows), 20, min(KRYLOV_VECTORS, n_rows))


def number_of_tiles(n_rows: int) -> int:
    """Tiles of rows of a walk."""
    return math.ceil(n_rows / TILE_ROWS)


def column_type(tol: float) -> type[np.floating[Any]]:
    """Precision in which columns are solved to a residual of `tol`."""
    return np.float32 if tol >= SINGLE_PRECISION else np.float64


def rows_per_chunk(n_rows: int, width: int) -> int:
    """Rows of a chunk: an eighth of the data (for a few cores), within 1 024 rows and CHUNK_BYTES, which counts more.

    Examples
    --------
    >>> rows_per_chunk(100_000, 16), rows_per_chunk(3_000, 16), rows_per_chunk(100_000, 9_500)
    (12500, 1024, 441)
    """
    most = max(128, CHUNK_BYTES // (FLOAT * width))
    return min(n_rows, most, max(1024, math.ceil(n_rows / 8)))


def _clip(value: int, low: int, high: int) -> int:
    return max(low, min(value, high))
