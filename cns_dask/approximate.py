"""The approximate search for neighbours, stage by stage, into a store.

Rows are moved to cells; a sample tells how far a search in them has to reach, and whether descent in partitions would
be cheaper; then the graph is improved until an audit of another sample shows the recall that was asked for.

Like `pipeline`, whose part it is, this starts work and writes; the mathematics is in `cells`, `descent` and `audit`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import dask
import numpy as np

from cns_dask import descent, partitions
from cns_dask.audit import recall_interval, recall_of_rows, sample_of_rows
from cns_dask.cells import learn_centers, shifted
from cns_dask.errors import NotEnoughMemoryError
from cns_dask.exchange import list_entry, point_entry
from cns_dask.neighbors import with_self_first
from cns_dask.plan import OVERLAP, PARTITION_ROWS, SAMPLED_PER_CELL, SUMMED_AT_ONCE, GraphPlan, descent_worker_bytes
from cns_dask.runtime import check_memory, on_every_worker
from cns_dask.types import ArrayLike, Cells, FloatArray, IntArray, Recall
from cns_dask.work import Piece, Stage, Work

AUDITED_ROWS = 1000
CALIBRATED_ROWS = 500
SPARED = 0.7  # of the misses that the target allows: the reach is set for so few, and the rest is for chance

CELLS = tuple(f"cells/{name}" for name in ("centers", "starts", "points", "rows", "offset"))
GRAPH = ("graph/indices", "graph/distances")
MOST_DESCENTS = 4  # rounds with other borders

Graph = tuple[ArrayLike, ArrayLike]  # stored indices and distances
Lists = tuple[FloatArray, IntArray]  # distances and indices of some rows


class ApproximateWork:
    """The stages of one approximate search: each builds tasks, runs them, and stores what they found."""

    def __init__(self, work: Work, n_neighbors: int, plan: GraphPlan, seed: int) -> None:
        self._work, self._store, self._plan, self._seed = work, work.store, plan, seed
        self._points, self._k = work.store.array("points"), n_neighbors
        self.n_rows = self._points.shape[0]
        self.known: dict[str, Any] = {}  # what is to be told about the graph

    def build(self, method: str, recall: float, smallest_k: int) -> Recall:
        """Find nearly all neighbours: improve the graph until the audit shows the recall, and return that."""
        calibrated = sample_of_rows(self.n_rows, CALIBRATED_ROWS, self._seed + 1)
        audited = sample_of_rows(self.n_rows, AUDITED_ROWS, self._seed + 2)
        queries, audit_queries = self._work.once("cells", lambda: self._make_cells(calibrated, audited), CELLS)
        arrays = {name.removeprefix("cells/"): self._store.array(name) for name in CELLS}
        cells = Cells(**arrays, reach=1.0)
        with self._work.stage("calibrate", 2) as stage:
            nearest = self._sample_search("calibrated", queries, cells.points, self._k, np.full(len(queries), -1))
            exact = self._sample_search("audited", audit_queries, self._points, self._k - 1, audited)
            share = 1 - SPARED * (1 - recall)
            pieces = [Piece(partitions.reach_for, (queries, nearest, cells, share)), Piece(as_it_is, (exact,))]
            (reach, candidates), squared = stage.run(pieces)
        cells, truth = replace(cells, reach=reach), with_self_first(squared, audited)
        if method == "auto":  # noted: another run may have larger workers
            dear = candidates > descent.CHEAP_CANDIDATES
            method = self._work.once("method", lambda: self._cheaper(dear=dear), drop=False)
        if self._work.is_through("all-") and not self._work.are_whole(GRAPH):
            self._work.forget(("all-", "neighbors", "descent"))  # rounds write to the same lists: all or nothing
        graph, improve = self._create_graph(), {"cells": self._searches, "descent": self._descents}[method]
        for lists, used_reach in improve(cells, graph, audited):
            reach = used_reach
            found = [recall_interval(recall_of_rows(lists, truth, k), k) for k in sorted({smallest_k, self._k})]
            if found[-1].low >= recall:
                break
        self.known = {
            "method": method,
            "reach": reach,
            "candidates_per_row": candidates,
            "recall": [asdict(value) for value in found],
        }
        return found[-1]

    def _searches(self, cells: Cells, graph: Graph, audited: IntArray) -> Iterator[tuple[Lists, float]]:
        """Search in cells, with a larger reach each time; 1 misses nothing."""
        reach = cells.reach
        for number in itertools.count(1):
            name = "neighbors" if number == 1 else f"neighbors-{number}"
            found = partial(self._search, replace(cells, reach=reach), graph, audited, name)
            yield self._work.once(f"all-{name}", found, GRAPH), reach
            if reach == 1:
                return
            reach = min(1.0, 1.25 * reach + 0.05)

    def _check_descent(self) -> None:
        n_features = self._points.shape[1]
        check_memory(lambda n_threads: descent_worker_bytes(n_features, self._k, n_threads))

    def _cheaper(self, *, dear: bool) -> str:
        return "descent" if dear and self._fits_descent() else "cells"

    def _fits_descent(self) -> bool:
        try:
            self._check_descent()
        except NotEnoughMemoryError:
            return False
        return True

    def _descents(self, cells: Cells, graph: Graph, audited: IntArray) -> Iterator[tuple[Lists, float]]:
        """Descend in partitions, with other borders each time."""
        self._check_descent()
        if self.n_rows * OVERLAP > descent.EXACT_PART:
            with self._work.progress.stage("compile", 1) as advance:  # of pynndescent, in every process
                on_every_worker(descent.warm_up, self._points.shape[1], self._k)
                advance()
        for number in range(MOST_DESCENTS):
            found = partial(self._descend, number, np.asarray(cells.offset[...]), graph, audited)
            yield self._work.once(f"all-descent-{number}", found, GRAPH), cells.reach

    def _row_parts(self) -> list[slice]:
        return _parts(self.n_rows, self._plan.rows_per_chunk)

    def _cell_parts(self) -> list[slice]:
        return _parts(self.n_rows, self._plan.rows_per_cell_chunk)

    def _create_graph(self) -> Graph:
        shape, chunks = (self.n_rows, self._k), (self._plan.rows_per_chunk, self._k)
        create, index = self._store.create, str(list_entry(self._k, self.n_rows)["indices"].base)
        return create("graph/indices", shape, chunks, index), create("graph/distances", shape, chunks, "float32")

    def _make_cells(self, calibrated: IntArray, audited: IntArray) -> tuple[FloatArray, FloatArray]:
        """Move every row to a cell; return the rows of two small samples."""
        with self._work.stage("partitions", 3 + len(self._row_parts()) + len(self._cell_parts())) as stage:
            cells, queries, audit_queries = self._learn_cells(calibrated, audited, stage)
            self._fill_cells(cells, stage)
        return queries, audit_queries

    def _learn_cells(
        self, calibrated: IntArray, audited: IntArray, stage: Stage
    ) -> tuple[Cells, FloatArray, FloatArray]:
        """Learn the centres from a sample of the rows; with the same reading, return the rows of two small samples."""
        store, n_cells = self._store, self._plan.n_cells
        sample = sample_of_rows(self.n_rows, self._plan.sampled_rows, self._seed)
        samples = zip(*(_by_part(rows, self._row_parts()) for rows in (sample, calibrated, audited)), strict=True)
        parts = [
            dask.delayed(partitions.take_rows, nout=3)(self._points, part, *rows)
            for part, rows in zip(self._row_parts(), samples, strict=True)
        ]
        learned = Piece(learn_centers, ([part[0] for part in parts], n_cells, self._seed))
        samples_of = [Piece(np.concatenate, ([part[at] for part in parts],)) for at in (1, 2)]
        (centers, offset), queries, audit_queries = stage.run([learned, *samples_of])
        store.put("cells/centers", centers)
        store.put("cells/offset", offset)
        shape, chunks = (self.n_rows, centers.shape[1]), (self._plan.rows_per_cell_chunk, centers.shape[1])
        points, numbers = store.create("cells/points", shape, chunks), store.create("cells/rows", shape[:1], chunks[:1])
        cells = Cells(store.array("cells/centers"), None, points, numbers, store.array("cells/offset"), reach=1.0)
        return cells, shifted(queries, offset), audit_queries

    def _fill_cells(self, cells: Cells, stage: Stage) -> None:
        """Move every row to its cell."""
        blocks, chunks = self._row_parts(), self._cell_parts()
        stride = self._plan.rows_per_chunk
        scratch = self._scratch("sorted", len(blocks), stride, point_entry(cells.points.shape[1]))
        pieces = [
            Piece(
                partitions.sort_into_cells,
                (self._points, part, cells.centers, cells.offset, scratch, at * stride),
                _in_scratch("sorted", at, stride),
            )
            for at, part in enumerate(blocks)
        ]
        counts = np.array(stage.run(pieces))
        self._store.put("cells/starts", np.concatenate([[0], np.cumsum(counts.sum(axis=0))]))
        cuts = partitions.cell_cuts(counts, _edges(chunks))
        pieces = [
            Piece(
                partitions.fill_chunk,
                (scratch, _slices(cuts, at, stride), self.n_rows, cells, part),
                (("cells/points", (part, slice(None))), ("cells/rows", (part,))),
            )
            for at, part in enumerate(chunks)
        ]
        stage.run(pieces)

    def _scratch(self, name: str, n_blocks: int, rows: int, entry: np.dtype[Any]) -> ArrayLike:
        """A scratch array for blocks of up to `rows` entries, each in a chunk of its own."""
        shape = n_blocks * rows, entry.itemsize
        return self._store.scratch(name, shape, (rows, entry.itemsize), dtype="int8")

    def _sample_search(self, name: str, queries: FloatArray, points: ArrayLike, k: int, rows: IntArray) -> Any:
        """Task: exact lists of a small sample of queries, found in every chunk of the points and merged in a tree."""
        sample = self._store.scratch(name, queries.shape, queries.shape, dtype=str(queries.dtype))
        sample[...] = queries
        parts = _parts(self.n_rows, points.chunks[0])
        found = [dask.delayed(partitions.nearest_in_part)(sample, rows, points, part, k) for part in parts]
        while len(found) > 1:
            groups = [found[at : at + SUMMED_AT_ONCE] for at in range(0, len(found), SUMMED_AT_ONCE)]
            found = [dask.delayed(partitions.merge_found)(group, rows) for group in groups]
        return found[0]

    def _search(self, cells: Cells, graph: Graph, audited: IntArray, name: str) -> Lists:
        """Search in the cells, write the lists in row order, and return those of some rows."""
        parts = partitions.search_parts(np.asarray(cells.starts[...]), self._plan.rows_per_search)
        outputs = self._row_parts()
        stride = max(part.stop - part.start for part in parts)
        scratch = self._scratch(f"lists-{name}", len(parts), stride, list_entry(self._k, self.n_rows))
        edges = _edges(outputs)
        searches = [
            Piece(
                partitions.search_and_sort,
                (cells, part, self._k, scratch, at * stride, edges),
                _in_scratch(f"lists-{name}", at, stride),
            )
            for at, part in enumerate(parts)
        ]
        with self._work.stage(name, len(searches) + len(outputs)) as stage:
            cuts = np.array(stage.run(searches))
            collected = [
                Piece(partitions.collect_chunk, (scratch, _slices(cuts, at, stride), graph, part, rows), _lists(part))
                for at, (part, rows) in enumerate(zip(outputs, _by_part(audited, outputs), strict=True))
            ]
            return _in_one(stage.run(collected))

    def _descend(self, number: int, offset: FloatArray, graph: Graph, audited: IntArray) -> Lists:
        """Send every row to its nearest partitions, descend in each, merge the lists, and return those of some rows."""
        blocks, seed = self._row_parts(), self._seed + 100 * (number + 1)
        n_parts = -(-self.n_rows // PARTITION_ROWS)
        overlap = min(OVERLAP, n_parts)
        shape, edges = self._points.shape, _edges(blocks)
        name = "descent" if number == 0 else f"descent-{number + 1}"
        with self._work.stage(name, 1 + 2 * len(blocks) + n_parts) as stage:
            centers, parts = self._learn_parts(n_parts, offset, seed, stage)
            stride = overlap * self._plan.rows_per_chunk
            sent = self._scratch(f"sent-{number}", len(blocks), stride, point_entry(shape[1]))
            sending = [
                Piece(
                    descent.send_to_parts,
                    (self._points, block, offset, centers, parts, sent, at * stride),
                    _in_scratch(f"sent-{number}", at, stride),
                )
                for at, block in enumerate(blocks)
            ]
            counts = np.array(stage.run(sending))
            cuts = np.concatenate([np.zeros((len(blocks), 1), int), np.cumsum(counts, axis=1)], axis=1)
            sizes = counts.sum(axis=0)
            places = int(sizes.max())
            lists = self._scratch(f"lists-{number}", len(sizes), places, list_entry(self._k, self.n_rows))
            descents = [
                Piece(
                    descent.descend_and_sort,
                    (sent, _slices(cuts, at, stride), shape, self._k, seed, lists, at * places, edges),
                    _in_scratch(f"lists-{number}", at, places),
                )
                for at in np.flatnonzero(sizes).tolist()
            ]
            ends = np.zeros((len(sizes), len(edges)), int)  # equal rows may leave the last partitions out
            ends[sizes > 0] = stage.run(descents)
            merges = [
                Piece(
                    descent.merge_chunk,
                    (lists, _slices(ends, at, places), graph, block, rows, number > 0),
                    _lists(block),
                )
                for at, (block, rows) in enumerate(zip(blocks, _by_part(audited, blocks), strict=True))
            ]
            return _in_one(stage.run(merges))

    def _learn_parts(self, n_parts: int, offset: FloatArray, seed: int, stage: Stage) -> tuple[FloatArray, IntArray]:
        """Centres of partitions, and the partition of each."""
        n_centers = n_parts * descent.CENTERS_PER_PART
        sample = sample_of_rows(self.n_rows, SAMPLED_PER_CELL * n_centers, seed)
        split = zip(self._row_parts(), _by_part(sample, self._row_parts()), strict=True)
        parts = [dask.delayed(partitions.take_rows, nout=1)(self._points, part, rows)[0] for part, rows in split]
        (learned,) = stage.run([Piece(descent.learn_parts, (parts, n_parts, n_centers, offset, seed))])
        return learned  # type: ignore[no-any-return]


def as_it_is(value: Any) -> Any:
    """A value that other tasks have made."""
    return value


def _in_scratch(name: str, at: int, stride: int) -> tuple[tuple[str, tuple[slice, ...]], ...]:
    """What block `at` leaves in a scratch array with so many places for each block."""
    return ((f"scratch/{name}", (slice(at * stride, (at + 1) * stride), slice(None))),)


def _lists(part: slice) -> tuple[tuple[str, tuple[slice, ...]], ...]:
    """What is stored of the lists of some rows."""
    return tuple((name, (part, slice(None))) for name in GRAPH)


def _parts(n_rows: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def _edges(parts: list[slice]) -> IntArray:
    return np.array([0, *(part.stop for part in parts)])


def _by_part(rows: IntArray, parts: list[slice]) -> list[IntArray]:
    """Ascending row numbers, split by the part that they are in."""
    return np.split(rows, np.searchsorted(rows, [part.stop for part in parts[:-1]]))


def _slices(cuts: IntArray, at: int, stride: int) -> list[slice]:
    """Where each block keeps what belongs to output chunk `at`."""
    return [
        slice(block * stride + int(low), block * stride + int(high))
        for block, (low, high) in enumerate(cuts[:, at : at + 2])
    ]


def _in_one(lists: list[Lists]) -> Lists:
    distances, indices = zip(*lists, strict=True)
    return np.concatenate(distances), np.concatenate(indices)
