"""The search for neighbours, stage by stage, into a store: exact, or in cells with a measured recall.

Like `pipeline`, whose part it is, this starts work and writes; the mathematics is in `neighbors`, `cells` and `audit`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.audit import recall_interval, recall_of_rows, sample_of_rows
from cns_dask.cells import learn_centers, nearest_centers, needed_reach, search_cells, shifted
from cns_dask.exchange import collect, entry_type, write_sorted
from cns_dask.neighbors import exact_graph, exact_search, with_self_first
from cns_dask.plan import SAMPLED_PER_CELL, GraphPlan
from cns_dask.runtime import Progress, run
from cns_dask.store import ResultStore
from cns_dask.types import ArrayLike, Cells, FloatArray, IntArray, Recall

AUDITED_ROWS = 1000
CALIBRATED_ROWS = 500
SPARED = 0.6  # of the misses that the target allows: the reach is set for so few, and the rest is for chance
WHOLE_READS = 16  # outputs up to which blocks are read whole: more, and they are stored in pieces
CHAINS = 4  # of searches of a sample through all chunks, side by side

Advance = Callable[[], None]


class GraphWork:
    """The stages of one search: each builds tasks, runs them, and stores what they found."""

    def __init__(self, store: ResultStore, n_neighbors: int, plan: GraphPlan, seed: int, progress: Progress) -> None:
        self._store, self._plan, self._seed, self._progress = store, plan, seed, progress
        self._points, self._k = store.array("points"), n_neighbors
        self._n_rows = self._points.shape[0]

    def exact(self) -> None:
        """Find the exact neighbours."""
        graph = exact_graph(self._points, self._k)
        rows = self._plan.rows_per_chunk
        tasks = self._store.fill("graph/indices", graph.indices, rows)
        tasks += self._store.fill("graph/distances", graph.distances, rows)
        with self._progress.stage("neighbors", len(tasks)) as advance:
            run(tasks, advance)
        self._store.describe_graph(method="exact", recall=[])

    def approximate(self, recall: float, smallest_k: int) -> Recall:
        """Find nearly all neighbours: search in cells until the audit shows the recall, and return that."""
        calibrated = sample_of_rows(self._n_rows, CALIBRATED_ROWS, self._seed + 1)
        audited = sample_of_rows(self._n_rows, AUDITED_ROWS, self._seed + 2)
        with self._progress.stage("partitions", 3 + len(self._row_parts()) + len(self._cell_parts())) as advance:
            cells, queries, audit_queries = self._learn_cells(calibrated, audited, advance)
            cells = self._fill_cells(cells, advance)
        with self._progress.stage("calibrate", 1 + CHAINS) as advance:
            reach_task = self._calibration(queries, cells, 1 - SPARED * (1 - recall))
            (reach, candidates), *exact = run([reach_task, *self._exact_lists(audit_queries, audited)], advance)
        truth = _with_rows(exact, audited)
        graph = self._create_graph("float32")
        while True:
            lists = self._search(replace(cells, reach=reach), graph, audited)
            found = [recall_interval(recall_of_rows(lists, truth, k), k) for k in sorted({smallest_k, self._k})]
            if found[-1].low >= recall or reach >= 1:
                break
            reach = min(1.0, 1.25 * reach + 0.05)
        self._store.drop_scratch()
        self._store.describe_graph(
            method="cells", reach=reach, candidates_per_row=candidates, recall=[asdict(value) for value in found]
        )
        return found[-1]

    def _row_parts(self) -> list[slice]:
        return _parts(self._n_rows, self._plan.rows_per_chunk)

    def _cell_parts(self) -> list[slice]:
        return _parts(self._n_rows, self._plan.rows_per_cell_chunk)

    def _create_graph(self, dtype: str) -> tuple[ArrayLike, ArrayLike]:
        shape, chunks = (self._n_rows, self._k), (self._plan.rows_per_chunk, self._k)
        create = self._store.create
        return create("graph/indices", shape, chunks), create("graph/distances", shape, chunks, dtype=dtype)

    def _learn_cells(
        self, calibrated: IntArray, audited: IntArray, advance: Advance
    ) -> tuple[Cells, FloatArray, FloatArray]:
        """Learn the centres from a sample of the rows; with the same reading, return the rows of two small samples."""
        store, n_cells = self._store, self._plan.n_cells
        sample = sample_of_rows(self._n_rows, SAMPLED_PER_CELL * n_cells, self._seed)
        samples = zip(*(_by_part(rows, self._row_parts()) for rows in (sample, calibrated, audited)), strict=True)
        parts = [
            dask.delayed(take_rows, nout=3)(self._points, part, *rows)
            for part, rows in zip(self._row_parts(), samples, strict=True)
        ]
        learned = dask.delayed(learn_centers)([part[0] for part in parts], n_cells, self._seed)
        tasks = [learned, *(dask.delayed(np.concatenate)([part[at] for part in parts]) for at in (1, 2))]
        (centers, offset), queries, audit_queries = run(tasks, advance)
        store.put("cells/centers", centers)
        store.put("cells/offset", offset)
        shape, chunks = (self._n_rows, centers.shape[1]), (self._plan.rows_per_cell_chunk, centers.shape[1])
        points, numbers = store.create("cells/points", shape, chunks), store.create("cells/rows", shape[:1], chunks[:1])
        cells = Cells(store.array("cells/centers"), None, points, numbers, store.array("cells/offset"), reach=1.0)
        return cells, shifted(queries, offset), audit_queries

    def _fill_cells(self, cells: Cells, advance: Advance) -> Cells:
        """Move every row to its cell."""
        blocks, chunks = self._row_parts(), self._cell_parts()
        entry = entry_type(point=("float32", cells.points.shape[1]))
        stride, scratch = self._scratch(len(blocks), self._plan.rows_per_chunk, entry, len(chunks))
        tasks = [
            dask.delayed(sort_into_cells)(self._points, part, cells.centers, cells.offset, scratch, at * stride)
            for at, part in enumerate(blocks)
        ]
        counts = np.array(run(tasks, advance))
        self._store.put("cells/starts", np.concatenate([[0], np.cumsum(counts.sum(axis=0))]))
        cuts = cell_cuts(counts, np.array([0, *(part.stop for part in chunks)]))
        tasks = [
            dask.delayed(fill_chunk)(scratch, _slices(cuts, at, stride), self._n_rows, cells, part)
            for at, part in enumerate(chunks)
        ]
        run(tasks, advance)
        return replace(cells, starts=self._store.array("cells/starts"))

    def _scratch(self, n_blocks: int, rows: int, entry: np.dtype[Any], n_outputs: int) -> tuple[int, ArrayLike]:
        """A scratch array of blocks of `rows` entries for `n_outputs` chunks, and the rows from block to block."""
        width = entry.itemsize
        piece = max(64, -(-rows // n_outputs)) if n_outputs > WHOLE_READS else rows  # what an output takes of a block
        stride = piece * -(-rows // piece)
        shard = stride if piece < stride else None
        shape = (n_blocks * stride, width)
        return stride, self._store.scratch("sorted", shape, (piece, width), dtype="int8", rows_per_shard=shard)

    def _calibration(self, queries: FloatArray, cells: Cells, share: float) -> Any:
        """Task: the reach that finds this share of the neighbours of a sample, and how many rows a query then meets."""
        found = exact_search(_chained(queries), cells.points, min(self._k, self._n_rows))
        return dask.delayed(reach_for)(queries, found.distances, found.indices, cells, share)

    def _exact_lists(self, queries: FloatArray, rows: IntArray) -> list[Any]:
        """Tasks: exact distances and indices of the neighbours of some rows, some of them in each."""
        found = exact_search(_chained(queries), self._points, self._k - 1, rows)
        blocks = zip(found.distances.to_delayed().ravel(), found.indices.to_delayed().ravel(), strict=True)
        return [dask.delayed(block) for block in blocks]

    def _search(
        self, cells: Cells, graph: tuple[ArrayLike, ArrayLike], audited: IntArray
    ) -> tuple[FloatArray, IntArray]:
        """Search in the cells, write the lists in row order, and return those of some rows."""
        parts, outputs = search_parts(np.asarray(cells.starts[...]), self._plan.rows_per_search), self._row_parts()
        largest = max(part.stop - part.start for part in parts)
        stride, scratch = self._scratch(len(parts), largest, list_entry(self._k), len(outputs))
        edges = np.array([0, *(part.stop for part in outputs)])
        searches = [
            dask.delayed(search_and_sort)(cells, part, self._k, scratch, at * stride, edges)
            for at, part in enumerate(parts)
        ]
        with self._progress.stage("neighbors", len(searches) + len(outputs)) as advance:
            cuts = np.array(run(searches, advance))
            collected = [
                dask.delayed(collect_chunk)(scratch, _slices(cuts, at, stride), graph, part, rows)
                for at, (part, rows) in enumerate(zip(outputs, _by_part(audited, outputs), strict=True))
            ]
            distances, indices = zip(*run(collected, advance), strict=True)
        return np.concatenate(distances), np.concatenate(indices)


def take_rows(points: ArrayLike, part: slice, *samples: IntArray) -> list[FloatArray]:
    """The rows of several samples, all of them in one part of an opened array, which is read once."""
    values = np.asarray(points[part])
    return [values[rows - part.start] for rows in samples]


def sort_into_cells(
    points: ArrayLike, part: slice, centers: ArrayLike, offset: ArrayLike, scratch: ArrayLike, start: int
) -> IntArray:
    """Write some rows in the order of their cells; return the number of them in every cell."""
    values = shifted(np.asarray(points[part]), np.asarray(offset[...]))
    cells = nearest_centers(values, np.asarray(centers[...]))[:, 0]
    keys = cells * points.shape[0] + np.arange(part.start, part.stop)
    write_sorted(entry_type(point=("float32", values.shape[1])), keys, scratch, start, point=values)
    return np.bincount(cells, minlength=centers.shape[0])


def fill_chunk(scratch: ArrayLike, slices: list[slice], n_rows: int, cells: Cells, part: slice) -> None:
    """Collect one chunk of rows in the order of the cells, and write it."""
    entries = collect(entry_type(point=("float32", cells.points.shape[1])), scratch, slices)
    cells.points[part], cells.rows[part] = entries["point"], entries["key"] % n_rows


def cell_cuts(counts: IntArray, edges: IntArray) -> IntArray:
    """Of every block (block, edge): how many of its rows, sorted by cell, lie before each position in `edges`.

    `counts` (block, cell) are the rows of each block in each cell; a cell holds them block after block.
    """
    starts = np.concatenate([[0], np.cumsum(counts.sum(axis=0))])
    cell = np.clip(np.searchsorted(starts, edges, side="right") - 1, 0, counts.shape[1] - 1)
    earlier_blocks = np.cumsum(counts, axis=0) - counts
    earlier_cells = np.cumsum(counts, axis=1) - counts
    inside = np.clip(edges - starts[cell] - earlier_blocks[:, cell], 0, counts[:, cell])
    return np.asarray(earlier_cells[:, cell] + inside)


def reach_for(
    queries: FloatArray, distances: FloatArray, positions: IntArray, cells: Cells, share: float
) -> tuple[float, float]:
    """The reach that finds this share of known neighbours, and the rows that a query then meets on average."""
    needed, visits = needed_reach(queries, distances, positions, cells)
    reach = float(np.clip(np.quantile(needed, share, method="higher"), 0.05, 1.0))
    sizes = np.diff(np.asarray(cells.starts[...]))
    return reach, float(((visits < reach) @ sizes).mean())


def list_entry(n_neighbors: int) -> np.dtype[Any]:
    """Entry of one row's list; its key is the row number."""
    return entry_type(indices=("int64", n_neighbors), distances=("float32", n_neighbors))


def search_and_sort(
    cells: Cells, part: slice, n_neighbors: int, scratch: ArrayLike, start: int, edges: IntArray
) -> IntArray:
    """Find the neighbours of the rows at some positions, and write them by row number; count those before each edge."""
    queries, rows = np.asarray(cells.points[part]), np.asarray(cells.rows[part])
    own = np.searchsorted(np.asarray(cells.starts[...]), np.arange(part.start, part.stop), side="right") - 1
    distances, indices = with_self_first(search_cells(queries, rows, own, cells, n_neighbors - 1), rows)
    keys = write_sorted(list_entry(n_neighbors), rows, scratch, start, indices=indices, distances=distances)
    return np.searchsorted(keys, edges)


def collect_chunk(
    scratch: ArrayLike, slices: list[slice], graph: tuple[ArrayLike, ArrayLike], part: slice, audited: IntArray
) -> tuple[FloatArray, IntArray]:
    """Collect the lists of one chunk of rows and write them; return distances and indices of some of the rows."""
    entries = collect(list_entry(graph[0].shape[1]), scratch, slices)
    graph[0][part], graph[1][part] = entries["indices"], entries["distances"]
    some = entries[audited - part.start]
    return some["distances"], some["indices"]


def search_parts(starts: IntArray, step: int) -> list[slice]:
    """Positions that are searched together: about `step`, never twice as many, whole cells where these are smaller.

    Examples
    --------
    >>> search_parts(np.array([0, 5, 6, 12]), 4)
    [slice(0, 5, None), slice(5, 8, None), slice(8, 12, None)]
    """
    n_rows = int(starts[-1])
    wanted = np.arange(step, n_rows, step)
    ends = starts[np.searchsorted(starts, wanted)]
    edges = [0, *np.unique(np.where(ends - wanted < step, ends, wanted)).tolist()]
    edges += [n_rows] if edges[-1] < n_rows else []
    return [slice(start, stop) for start, stop in itertools.pairwise(edges)]


def _parts(n_rows: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _by_part(rows: IntArray, parts: list[slice]) -> list[IntArray]:
    """Ascending row numbers, split by the part that they are in."""
    return np.split(rows, np.searchsorted(rows, [part.stop for part in parts[:-1]]))


def _slices(cuts: IntArray, at: int, stride: int) -> list[slice]:
    """Where each block keeps what belongs to output chunk `at`."""
    return [
        slice(block * stride + int(low), block * stride + int(high))
        for block, (low, high) in enumerate(cuts[:, at : at + 2])
    ]


def _with_rows(lists: list[tuple[FloatArray, IntArray]], rows: IntArray) -> tuple[FloatArray, IntArray]:
    """Lists of some rows in one piece, the row itself first: distances and indices."""
    distances, indices = zip(*lists, strict=True)
    return np.insert(np.concatenate(distances), 0, 0, axis=1), np.insert(np.concatenate(indices), 0, rows, axis=1)


def _chained(queries: FloatArray) -> da.Array:
    """A small sample of queries as a Dask array of a few chunks."""
    return da.from_array(queries, chunks=(-(-len(queries) // CHAINS), -1), name=False)
