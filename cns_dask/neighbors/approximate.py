"""The approximate search for neighbours, stage by stage, into a store.

Rows are moved to cells; a sample tells how far a search in them has to reach, and whether descent in partitions would
be cheaper; then the graph is improved until another sample shows the recall that was asked for.

This starts work and writes; the mathematics is in `cells`, `descent` and `recall`, the tasks in `cell_tasks`.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dask
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import NotEnoughMemoryError
from cns_dask.execution.cluster import check_memory, on_every_worker
from cns_dask.execution.run import Piece, Run, RunningStage
from cns_dask.neighbors import cell_tasks, descent
from cns_dask.neighbors.cells import Cells, learn_centers, shifted
from cns_dask.neighbors.exact import with_self_first
from cns_dask.neighbors.exchange import slices_of_blocks
from cns_dask.neighbors.graph import GraphSummary
from cns_dask.neighbors.plan import (
    CALIBRATION_ROWS,
    OVERLAP,
    RECALL_ROWS,
    SAMPLED_PER_CELL,
    GraphSizes,
    calibrate_stage,
    cell_search_stage,
    cells_stage,
    descent_stage,
    descent_worker_bytes,
)
from cns_dask.neighbors.recall import recall_interval, recall_of_rows, sample_of_rows
from cns_dask.storage.arrays import StoredArray
from cns_dask.storage.chunks import row_slices
from cns_dask.storage.records import recordable

CALIBRATED_MISSES = 0.7  # the reach aims at this share of the allowed misses, as a safety margin
MAX_DESCENTS = 4  # rounds with other borders

CELL_ARRAYS = tuple(f"cells/{name}" for name in ("centers", "starts", "points", "rows", "offset"))
GRAPH_ARRAYS = ("graph/indices", "graph/distances")

Graph = tuple[StoredArray, StoredArray]  # indices and distances
Lists = tuple[FloatArray, IntArray]  # distances and indices of some rows


@recordable
@dataclass(frozen=True)
class Samples:
    """Rows of the two samples: those that the reach is learned from (as the cells hold them), and the measured ones."""

    calibrated: FloatArray
    measured: FloatArray


class ApproximateSearch:
    """One approximate search: each method runs a stage and stores what it leaves behind."""

    def __init__(self, run: Run, sizes: GraphSizes, seed: int) -> None:
        self._points = run.writer.array("points")
        sizes = replace(sizes, n_features=int(self._points.shape[1]))  # constant features are dropped
        self._run, self._sizes, self._seed = run, sizes, seed
        self._row_slices = row_slices(sizes.n_rows, sizes.rows_per_chunk)
        self._measured_rows = sample_of_rows(sizes.n_rows, RECALL_ROWS, seed + 2)

    def find(self, method: str, recall: float, smallest_k: int) -> GraphSummary:
        """Find nearly all neighbours: improve the graph until the sample shows the recall."""
        run, k = self._run, self._sizes.n_neighbors
        samples: Samples = run.load("cells", CELL_ARRAYS) or run.save("cells", self._fill_cells())
        arrays = {name.removeprefix("cells/"): run.writer.array(name) for name in CELL_ARRAYS}
        cells, visited, truth = self._calibrate(Cells(**arrays, reach=1.0), samples, recall)
        if method == "auto":  # saved: another run may have larger workers
            method = run.load("method") or run.save("method", self._cheaper_method(visited), drop_scratch=False)
        if run.has_saved("round-") and not run.are_undamaged(GRAPH_ARRAYS):
            run.forget("round-", "neighbors", "descent")  # rounds write to the same lists: all or nothing
        rounds = self._descents(cells) if method == "descent" else self._searches(cells)
        for lists, reach in rounds:  # noqa: B007 - the last one is stored
            measured = tuple(
                recall_interval(recall_of_rows(lists, truth, each), each) for each in sorted({smallest_k, k})
            )
            if measured[-1].low >= recall:
                break
        return GraphSummary(method, measured, reach, visited)

    def _fill_cells(self) -> Samples:
        """Learn centres from a sample, and move every row to the cell of its nearest one."""
        with self._run.stage(cells_stage(self._sizes)) as stage:
            cells, samples = self._learn_cells(stage)
            self._move_rows(cells, stage)
        return samples

    def _learn_cells(self, stage: RunningStage) -> tuple[Cells, Samples]:
        """Learn the centres; with the same reading, take the rows of the two small samples."""
        writer, sizes = self._run.writer, self._sizes
        samples = (
            sample_of_rows(sizes.n_rows, sizes.sampled_rows, self._seed),
            sample_of_rows(sizes.n_rows, CALIBRATION_ROWS, self._seed + 1),
            self._measured_rows,
        )
        by_chunk = zip(*(_by_slice(rows, self._row_slices) for rows in samples), strict=True)
        chunks = [
            dask.delayed(cell_tasks.take_rows, nout=3)(self._points, part, *rows)
            for part, rows in zip(self._row_slices, by_chunk, strict=True)
        ]
        learn = Piece(learn_centers, ([chunk[0] for chunk in chunks], sizes.n_cells, self._seed))
        ((centers, offset),) = stage.run("learn_centers", [learn])
        takes = [Piece(np.concatenate, ([chunk[at] for chunk in chunks],)) for at in (1, 2)]
        calibrated, measured = stage.run("take_samples", takes)
        writer.put("cells/centers", centers)
        writer.put("cells/offset", offset)
        points, rows = stage.create("cells/points"), stage.create("cells/rows")
        cells = Cells(writer.array("cells/centers"), None, points, rows, writer.array("cells/offset"), reach=1.0)
        return cells, Samples(shifted(calibrated, offset), measured)

    def _move_rows(self, cells: Cells, stage: RunningStage) -> None:
        """Move every row to its cell."""
        sizes, stride = self._sizes, self._sizes.rows_per_chunk
        scratch = stage.create("sorted")
        sorts = [
            Piece(
                cell_tasks.sort_into_cells,
                (self._points, part, cells.centers, cells.offset, scratch, at * stride),
                ((scratch, _block(at, stride)),),
            )
            for at, part in enumerate(self._row_slices)
        ]
        counts = np.array(stage.run("sort", sorts))
        self._run.writer.put("cells/starts", np.concatenate([[0], np.cumsum(counts.sum(axis=0))]))
        chunks = row_slices(sizes.n_rows, sizes.rows_per_cell_chunk)
        cuts = cell_tasks.cell_cuts(counts, _edges(chunks))
        fills = [
            Piece(
                cell_tasks.fill_chunk,
                (scratch, slices_of_blocks(cuts, at, stride), sizes.n_rows, cells, part),
                ((cells.points, (part, slice(None))), (cells.rows, (part,))),
            )
            for at, part in enumerate(chunks)
        ]
        stage.run("fill", fills)

    def _calibrate(self, cells: Cells, samples: Samples, recall: float) -> tuple[Cells, float, Lists]:
        """The cells with the reach that a search needs, rows that it then meets on average, true lists of a sample."""
        k, share = self._sizes.n_neighbors, 1 - CALIBRATED_MISSES * (1 - recall)
        nobody = np.full(len(samples.calibrated), -1)
        with self._run.stage(calibrate_stage(self._sizes)) as stage:
            nearest = self._compare_sample(stage, "calibrated", samples.calibrated, cells.points, k, nobody)
            exact = self._compare_sample(stage, "measured", samples.measured, self._points, k - 1, self._measured_rows)
            learn = Piece(cell_tasks.reach_for, (samples.calibrated, nearest, cells, share))
            ((reach, visited),) = stage.run("reach", [learn])
            (squared,) = stage.run("truth", [Piece(tuple, (exact,))])
        return replace(cells, reach=reach), visited, with_self_first(squared, self._measured_rows)

    def _compare_sample(
        self, stage: RunningStage, name: str, queries: FloatArray, points: StoredArray, k: int, rows: IntArray
    ) -> Any:
        """Task: exact lists of a small sample, found in every chunk of the points and merged in a tree."""
        sample = stage.create(name, shape=queries.shape, chunks=queries.shape)
        sample[...] = queries
        lists = [
            stage.delayed("compare_samples", cell_tasks.nearest_in_part, sample, rows, points, part, k)
            for part in row_slices(self._sizes.n_rows, points.chunks[0])
        ]
        return stage.merged("compare_samples", lists, cell_tasks.merge_parts, rows)

    def _cheaper_method(self, visited: float) -> str:
        """Descent where a search in cells visits too many rows, if the workers have the memory for it."""
        if visited <= self._sizes.max_visited:
            return "cells"
        try:
            self._check_descent_memory()
        except NotEnoughMemoryError:
            return "cells"
        return "descent"

    def _check_descent_memory(self) -> None:
        check_memory(partial(descent_worker_bytes, self._sizes))

    def _searches(self, cells: Cells) -> Iterator[tuple[Lists, float]]:
        """Search in cells, with a larger reach each time; one of 1 (times the k-th distance) misses nothing."""
        reach = cells.reach
        for number in itertools.count(1):
            name = "neighbors" if number == 1 else f"neighbors-{number}"
            lists = self._run.load(f"round-{name}", GRAPH_ARRAYS)
            yield lists or self._run.save(f"round-{name}", self._search(replace(cells, reach=reach), name)), reach
            if reach == 1:
                return
            reach = min(1.0, 1.25 * reach + 0.05)

    def _search(self, cells: Cells, name: str) -> Lists:
        """Search in the cells, write the lists in row order, and return those of the measured rows."""
        parts = cell_tasks.search_parts(np.asarray(cells.starts[...]), self._sizes.rows_per_search)
        stride, edges = max(part.stop - part.start for part in parts), _edges(self._row_slices)
        description = cell_search_stage(self._sizes, name)
        entry = description.array(f"lists-{name}").shape[1]
        with self._run.stage(description) as stage:
            graph = stage.create("graph/indices"), stage.create("graph/distances")
            scratch = stage.create(f"lists-{name}", shape=(len(parts) * stride, entry), chunks=(stride, entry))
            searches = [
                Piece(
                    cell_tasks.search_and_sort,
                    (cells, part, self._sizes.n_neighbors, scratch, at * stride, edges),
                    ((scratch, _block(at, stride)),),
                )
                for at, part in enumerate(parts)
            ]
            cuts = np.array(stage.run("search", searches))
            collects = [
                Piece(
                    cell_tasks.collect_chunk,
                    (scratch, slices_of_blocks(cuts, at, stride), graph, part, rows),
                    _graph_regions(graph, part),
                )
                for at, (part, rows) in enumerate(self._measured_by_chunk())
            ]
            return _joined(stage.run("collect", collects))

    def _measured_by_chunk(self) -> Iterator[tuple[slice, IntArray]]:
        return zip(self._row_slices, _by_slice(self._measured_rows, self._row_slices), strict=True)

    def _descents(self, cells: Cells) -> Iterator[tuple[Lists, float]]:
        """Descend in partitions, with other borders each time."""
        self._check_descent_memory()
        sizes = self._sizes
        if sizes.n_rows * OVERLAP > sizes.exact_partition_rows:
            with self._run.progress.stage("compile", 1) as advance:  # of pynndescent, in every process
                on_every_worker(descent.warm_up, sizes.n_features, sizes.n_neighbors)
                advance()
        for number in range(1, MAX_DESCENTS + 1):
            name = "descent" if number == 1 else f"descent-{number}"
            lists = self._run.load(f"round-{name}", GRAPH_ARRAYS)
            yield lists or self._run.save(f"round-{name}", self._descend(number, name, cells)), cells.reach

    def _descend(self, number: int, name: str, cells: Cells) -> Lists:
        """Send every row to its nearest partitions, descend in each, merge the lists, and return the measured ones."""
        sizes, seed, offset = self._sizes, self._seed + 100 * number, np.asarray(cells.offset[...])
        chunks, edges = self._row_slices, _edges(self._row_slices)
        description = descent_stage(sizes, name)
        with self._run.stage(description) as stage:
            graph = stage.create("graph/indices"), stage.create("graph/distances")
            centers, partitions = self._learn_partitions(offset, seed, stage)
            sent = stage.create(f"sent-{name}")
            stride = sent.chunks[0]
            sends = [
                Piece(
                    descent.send_to_partitions,
                    (self._points, part, offset, centers, partitions, sent, at * stride),
                    ((sent, _block(at, stride)),),
                )
                for at, part in enumerate(chunks)
            ]
            counts = np.array(stage.run("send", sends))
            cuts = np.concatenate([np.zeros((len(chunks), 1), int), np.cumsum(counts, axis=1)], axis=1)
            n_sent = counts.sum(axis=0)
            largest, entry = int(n_sent.max()), description.array(f"lists-{name}").shape[1]
            lists = stage.create(f"lists-{name}", shape=(len(n_sent) * largest, entry), chunks=(largest, entry))
            descents = [
                Piece(
                    descent.descend_and_sort,
                    (sent, slices_of_blocks(cuts, at, stride), sizes, seed, lists, at * largest, edges),
                    ((lists, _block(at, largest)),),
                )
                for at in np.flatnonzero(n_sent).tolist()
            ]
            ends = np.zeros((len(n_sent), len(edges)), int)  # equal rows may leave the last partitions empty
            ends[n_sent > 0] = stage.run("descend", descents)
            merges = [
                Piece(
                    descent.merge_chunk,
                    (lists, slices_of_blocks(ends, at, largest), graph, part, rows, number > 1),
                    _graph_regions(graph, part),
                )
                for at, (part, rows) in enumerate(self._measured_by_chunk())
            ]
            return _joined(stage.run("merge", merges))

    def _learn_partitions(self, offset: FloatArray, seed: int, stage: RunningStage) -> tuple[FloatArray, IntArray]:
        """Centres of partitions, and the partition of each."""
        n_partitions = -(-self._sizes.n_rows // self._sizes.rows_per_partition)
        n_centers = n_partitions * descent.CENTERS_PER_PARTITION
        sample = sample_of_rows(self._sizes.n_rows, SAMPLED_PER_CELL * n_centers, seed)
        split = zip(self._row_slices, _by_slice(sample, self._row_slices), strict=True)
        chunks = [dask.delayed(cell_tasks.take_rows, nout=1)(self._points, part, rows)[0] for part, rows in split]
        learn = Piece(descent.learn_partitions, (chunks, n_partitions, n_centers, offset, seed))
        return stage.run("learn_partitions", [learn])[0]  # type: ignore[no-any-return]


def _block(at: int, stride: int) -> tuple[slice, slice]:
    """The region of block `at` in a scratch array with `stride` entries for each block."""
    return slice(at * stride, (at + 1) * stride), slice(None)


def _graph_regions(graph: Graph, part: slice) -> tuple[tuple[StoredArray, tuple[slice, slice]], ...]:
    """The regions of the lists of some rows."""
    return tuple((array, (part, slice(None))) for array in graph)


def _edges(parts: list[slice]) -> IntArray:
    return np.array([0, *(part.stop for part in parts)])


def _by_slice(rows: IntArray, parts: list[slice]) -> list[IntArray]:
    """Ascending row numbers, split by the slice that they are in."""
    return np.split(rows, np.searchsorted(rows, [part.stop for part in parts[:-1]]))


def _joined(lists: list[Lists]) -> Lists:
    distances, indices = zip(*lists, strict=True)
    return np.concatenate(distances), np.concatenate(indices)
