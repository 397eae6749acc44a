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
        with self._progress.stage("partitions", 3 * self._plan_chunks() + 1) as advance:
            cells = self._fill_cells(self._learn_cells(advance), advance)
        with self._progress.stage("calibrate", CHAINS + 1) as advance:
            reach, candidates = self._calibrate(cells, 1 - (1 - recall) / 2, advance)
        rows = sample_of_rows(self._n_rows, AUDITED_ROWS, self._seed + 2)
        with self._progress.stage("audit", CHAINS) as advance:
            exact = self._exact_sample(rows, advance)
        shape, chunks = (self._n_rows, self._k), (self._plan.rows_per_chunk, self._k)
        graph = [
            self._store.create("graph/indices", shape, chunks),
            self._store.create("graph/distances", shape, chunks, dtype="float32"),
        ]
        while True:
            self._search(replace(cells, reach=reach), graph)
            found = self._audit(rows, exact, sorted({self._k, smallest_k}))
            if found[-1].low >= recall or reach >= 1:
                break
            reach = min(1.0, 1.25 * reach + 0.05)
        self._store.drop_scratch()
        self._store.describe_graph(
            method="cells", reach=reach, candidates_per_row=candidates, recall=[asdict(value) for value in found]
        )
        return found[-1]

    def _plan_chunks(self) -> int:
        return len(self._row_parts())

    def _row_parts(self) -> list[slice]:
        return _parts(self._n_rows, self._plan.rows_per_chunk)

    def _sampled(self, rows: IntArray) -> list[Any]:
        """Tasks that read some rows of the points, chunk by chunk."""
        return [dask.delayed(take_rows)(self._points, some) for some in _by_part(rows, self._row_parts())]

    def _learn_cells(self, advance: Advance) -> Cells:
        """Learn the centres from a sample."""
        store, n_cells = self._store, self._plan.n_cells
        rows = sample_of_rows(self._n_rows, SAMPLED_PER_CELL * n_cells, self._seed)
        ((centers, offset),) = run([dask.delayed(learn_centers)(self._sampled(rows), n_cells, self._seed)], advance)
        store.put("cells/centers", centers)
        store.put("cells/offset", offset)
        shape, chunks = (self._n_rows, centers.shape[1]), (self._plan.rows_per_cell_chunk, centers.shape[1])
        points, numbers = store.create("cells/points", shape, chunks), store.create("cells/rows", shape[:1], chunks[:1])
        return Cells(store.array("cells/centers"), None, points, numbers, store.array("cells/offset"), reach=1.0)

    def _fill_cells(self, cells: Cells, advance: Advance) -> Cells:
        """Move every row to its cell."""
        blocks, chunks = self._row_parts(), _parts(self._n_rows, self._plan.rows_per_cell_chunk)
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

    def _calibrate(self, cells: Cells, share: float, advance: Advance) -> tuple[float, float]:
        """The reach that finds this share of the neighbours of a sample, and how many rows a query then meets."""
        rows = sample_of_rows(self._n_rows, CALIBRATED_ROWS, self._seed + 1)
        (queries,) = run([dask.delayed(shifted_rows)(self._sampled(rows), cells.offset)], advance)
        found = exact_search(_chained(queries), cells.points, min(self._k, self._n_rows))
        task = dask.delayed(reach_for)(queries, found.distances, found.indices, cells, share)
        (answer,) = run([task], advance)
        return answer  # type: ignore[no-any-return]

    def _exact_sample(self, rows: IntArray, advance: Advance) -> tuple[FloatArray, IntArray]:
        """Exact neighbours of some rows, the row itself first: distances and row numbers."""
        (queries,) = run([dask.delayed(np.concatenate)(self._sampled(rows))])
        found = exact_search(_chained(queries), self._points, self._k - 1, rows)
        blocks = zip(found.distances.to_delayed().ravel(), found.indices.to_delayed().ravel(), strict=True)
        distances, indices = zip(*run([dask.delayed(block) for block in blocks], advance), strict=True)
        return np.insert(np.concatenate(distances), 0, 0, axis=1), np.insert(np.concatenate(indices), 0, rows, axis=1)

    def _search(self, cells: Cells, graph: list[ArrayLike]) -> None:
        """Search in the cells, and write the lists in row order."""
        parts, outputs = search_parts(np.asarray(cells.starts[...]), self._plan.rows_per_search), self._row_parts()
        stride, scratch = self._scratch(len(parts), 2 * self._plan.rows_per_search, list_entry(self._k), len(outputs))
        edges = np.array([0, *(part.stop for part in outputs)])
        searches = [
            dask.delayed(search_and_sort)(cells, part, self._k, scratch, at * stride, edges)
            for at, part in enumerate(parts)
        ]
        with self._progress.stage("neighbors", len(searches) + len(outputs)) as advance:
            cuts = np.array(run(searches, advance))
            collected = [
                dask.delayed(collect_chunk)(scratch, _slices(cuts, at, stride), graph, part)
                for at, part in enumerate(outputs)
            ]
            run(collected, advance)

    def _audit(self, rows: IntArray, exact: tuple[FloatArray, IntArray], ks: list[int]) -> list[Recall]:
        """Recall of the stored graph on some rows, for each of `ks`."""
        parts = _by_part(rows, self._row_parts())
        found = [
            np.concatenate(run([dask.delayed(take_rows)(self._store.array(name), some) for some in parts]))
            for name in ("graph/distances", "graph/indices")
        ]
        return [recall_interval(recall_of_rows((found[0], found[1]), exact, k), k) for k in ks]


def take_rows(array: ArrayLike, rows: IntArray) -> Any:
    """Some rows of an opened array, which lie close together: what is between them is read too."""
    first = rows[0]
    return np.asarray(array[first : rows[-1] + 1])[rows - first]


def shifted_rows(parts: list[FloatArray], offset: ArrayLike) -> FloatArray:
    """Rows as the cells hold them."""
    return shifted(np.concatenate(parts), np.asarray(offset[...]))


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


def collect_chunk(scratch: ArrayLike, slices: list[slice], graph: list[ArrayLike], part: slice) -> None:
    """Collect the lists of one chunk of rows, and write them."""
    entries = collect(list_entry(graph[0].shape[1]), scratch, slices)
    graph[0][part], graph[1][part] = entries["indices"], entries["distances"]


def search_parts(starts: IntArray, step: int) -> list[slice]:
    """Positions that are searched together: about `step`, never twice as many, whole cells where they are not too large.

    Examples
    --------
    >>> search_parts(np.array([0, 5, 6, 30]), 4)
    [slice(0, 5, None), slice(5, 8, None), slice(8, 12, None), ..., slice(28, 30, None)]
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
    """Ascending row numbers, split by the part that they are in; parts without one are left out."""
    split = np.split(rows, np.searchsorted(rows, [part.stop for part in parts[:-1]]))
    return [some for some in split if len(some)]


def _slices(cuts: IntArray, at: int, stride: int) -> list[slice]:
    """Where each block keeps what belongs to output chunk `at`."""
    return [
        slice(block * stride + int(low), block * stride + int(high))
        for block, (low, high) in enumerate(cuts[:, at : at + 2])
    ]


def _chained(queries: FloatArray) -> da.Array:
    """A small sample of queries as a Dask array of a few chunks."""
    return da.from_array(queries, chunks=(-(-len(queries) // CHAINS), -1), name=False)
