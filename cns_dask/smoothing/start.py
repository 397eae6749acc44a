"""What the solves start from: an order of the rows, the walk of every k, its candidates, and the polynomial's nodes.

The walk is written to scratch in parts of consecutive rows, files that every process maps: a host holds them once,
whatever the number of its processes and threads. Everything is reductions over row chunks and parts; a task holds a few
numbers for each row at most, never the graph.

Rows move from the order of the data to that of the walk as they did into cells: see `neighbors.exchange`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import ArrayLike, IntArray
from cns_dask.execution.run import MISSING_RECORD, Piece, Run, RunningStage
from cns_dask.neighbors.exchange import collect, slices_of_blocks, write_sorted
from cns_dask.settings import TIGHT_ROWS
from cns_dask.smoothing import scales, solver
from cns_dask.smoothing.candidates import Candidates, highest_near, in_degrees, in_row_order, local_maxima, most_of
from cns_dask.smoothing.passes import TILE_ROWS
from cns_dask.smoothing.plan import (
    SmoothingSizes,
    candidates_stage,
    n_sampled_chunks,
    walk_entry,
)
from cns_dask.smoothing.walk import (
    Walk,
    WalkPart,
    order_in_cells,
    order_rows,
    positions_in,
    renumbered,
    walk_on,
    walk_part,
)
from cns_dask.storage.arrays import StoredArray
from cns_dask.storage.chunks import row_slices
from cns_dask.storage.layout import ArrayPlan
from cns_dask.storage.records import recordable

#: Rows that are put in order together where some rows are copies.
ORDERED_ROWS = 2**18


@recordable
@dataclass(frozen=True)
class Start:
    """What the solves of one k start from."""

    candidates: Candidates  # the points whose absorption is wanted
    positions: IntArray  # their positions in the walk (c,)
    nodes: NDArray[np.complex128]  # interpolation nodes for the solver


@dataclass(frozen=True)
class WalkFiles:
    """The walk of one k in scratch: neighbours and reads of every part, positions of rows, rows of positions."""

    neighbors: StoredArray
    reads: StoredArray
    positions: StoredArray
    order: StoredArray

    def open(self) -> Walk:
        """The walk, mapped part by part."""
        parts = zip(self.neighbors.regions(), self.reads.regions(), strict=True)
        return Walk(tuple(WalkPart(rows[0].start, self.neighbors[rows], self.reads[tiles]) for rows, tiles in parts))


@dataclass(frozen=True)
class StoredWalk:
    """The walk of one k in scratch, and where solves start."""

    files: WalkFiles
    start: Start


def start_walks(
    run: Run, sizes: SmoothingSizes, max_candidates: int, tol: float, seed: int, *, cover: bool
) -> tuple[dict[int, StoredWalk], float | None]:
    """Number the rows for the walks, write these, and find the candidates, for every k; and the intrinsic dimension.

    Where there are many rows and walks mix, communities choose the clusters. Then there are only `max_clusters`
    candidates, and what fills the last of their blocks.
    """
    writer, grid = run.writer, sizes.grid
    points = writer.array("points") if "points" in writer else None
    has = {"with_distances": "graph/distances" in writer, "with_cells": "cells/points" in writer}
    with run.stage(candidates_stage(sizes, **has)) as stage:
        order, positions = stage.create("order"), stage.create("positions")
        _find_order(run, stage, order, positions, grid.ks[0])
        walks = _write_walks(run, stage, sizes, positions, order)
        dimension = _dimension(run, stage, sizes)
        if sizes.communities and sizes.n_rows > TIGHT_ROWS and scales.walks_mix(dimension):
            width = solver.BLOCK_WIDTHS[0]
            max_candidates = min(max_candidates, -(-grid.max_clusters // width) * width)
        limit = max_candidates if cover else None
        chosen = [_choose(run, stage, walks[k], (order, points, max_candidates), limit, k) for k in grid.ks]
        searched = grid.ks[::-1] if sizes.nodes_of_every_k else grid.ks[:1]
        positions_of = {k: positions for k, (_, positions) in zip(grid.ks, chosen, strict=True)}
        of_solves = grid.lams, seed, tol, sizes.block_width
        pieces = [Piece(nodes_of, (walks[k], positions_of[k], *of_solves)) for k in searched]
        nodes = dict(zip(searched, stage.run("nodes", pieces), strict=True))
    starts = {k: Start(*each, nodes.get(k, nodes[grid.ks[0]])) for k, each in zip(grid.ks, chosen, strict=True)}
    return {k: StoredWalk(walks[k], starts[k]) for k in grid.ks}, dimension


def _find_order(run: Run, stage: RunningStage, order: StoredArray, positions: StoredArray, k: int) -> None:
    """Number the rows: in cells, where there are some, else by the graph of the smallest k."""
    writer = run.writer
    if "cells/points" in writer:
        cells = tuple(writer.array(f"cells/{name}") for name in ("points", "rows", "starts"))
        pieces = [Piece(order_part, (*cells, rows[0], order), ((order, rows),)) for rows in order.regions()]
        if "first_copy" in writer:  # the cells hold first rows
            whole = (slice(None),)
            pieces = [Piece(order_with_copies, (*cells, writer.array("first_copy"), order), ((order, whole),))]
    else:
        pieces = [Piece(order_and_write, (writer.array("graph/indices"), k, order), ((order, (slice(None),)),))]
    stage.run("order", pieces)
    stage.run("positions", [Piece(write_positions, (order, positions), ((positions, (slice(None),)),))])


def _write_walks(
    run: Run, stage: RunningStage, sizes: SmoothingSizes, positions: StoredArray, order: StoredArray
) -> dict[int, WalkFiles]:
    """Write the walks of all ks: lists by position, in parts."""
    indices, stride, ks = run.writer.array("graph/indices"), sizes.rows_per_chunk, sizes.grid.ks
    walks = {k: WalkFiles(stage.create(f"walk-{k}"), stage.create(f"reads-{k}"), positions, order) for k in ks}
    parts = row_slices(sizes.n_rows, sizes.rows_per_walk_part)
    edges = np.array([0, *(part.stop for part in parts)])
    scratch = stage.create("renumbered")
    sorts = [
        Piece(
            renumber_chunk,
            (indices, rows, ks[-1], positions, scratch, at * stride, edges),
            ((scratch, (slice(at * stride, (at + 1) * stride), slice(None))),),
        )
        for at, rows in enumerate(row_slices(sizes.n_rows, stride))
    ]
    cuts = np.array(stage.run("renumber", sorts))
    arrays = [array for walk in walks.values() for array in (walk.neighbors, walk.reads)]
    regions = [array.regions() for array in arrays]
    writes = [
        Piece(
            write_part,
            (scratch, slices_of_blocks(cuts, at, stride), walks, part),
            tuple((array, of_array[at]) for array, of_array in zip(arrays, regions, strict=True)),
        )
        for at, part in enumerate(parts)
    ]
    stage.run("walk", writes)
    return walks


def _choose(
    run: Run, stage: RunningStage, walk: WalkFiles, among: tuple[Any, ...], limit: int | None, k: int
) -> tuple[Candidates, IntArray]:
    """The candidates of one k, and their positions: those that an earlier run has recorded, or found now."""
    record = stage.named("choose_candidates", [Piece(tuple, (), record=str(k))])
    (value,) = stage.recorded(record)
    if value is MISSING_RECORD:
        maxima = _find_maxima(run, stage, walk, limit, k)
        (value,) = stage.run("choose_candidates", [Piece(choose_candidates, (maxima, *among), record=str(k))])
    return value  # type: ignore[no-any-return]


def _find_maxima(run: Run, stage: RunningStage, walk: WalkFiles, limit: int | None, k: int) -> Candidates:
    """The local maxima of in-degree of one k, by position; wider ones until there are at most `limit` of them.

    This is `local_maxima` over parts: a walk in one part is looked at by one task.
    """
    regions = walk.neighbors.regions()
    if len(regions) == 1:
        return stage.compute([stage.delayed("maxima", maxima_of_whole, walk.neighbors, limit)])[0]  # type: ignore[no-any-return]
    n_rows, rows = walk.neighbors.shape[0], walk.neighbors.chunks[0]

    def values(nth: int) -> StoredArray:
        return run.writer.create(ArrayPlan(f"highest-{k}-{nth}", (n_rows,), (rows,), "int64", scratch=True))

    degrees = highest = values(0)
    counts = [stage.delayed("maxima", count_part, walk.neighbors, part[0]) for part in regions]
    total = stage.merged("maxima", counts, add_counts)
    stage.compute([stage.delayed("maxima", write_counts, total, degrees)])
    n_maxima, nth = 0, 1
    while True:
        wider = values(nth)
        lists = walk.neighbors, degrees, highest, wider
        found = stage.compute([stage.delayed("maxima", widen_part, part[0], *lists) for part in regions])
        positions = np.concatenate([each for each, _, _ in found])
        n_maxima = n_maxima or len(positions)
        is_widest = nth > 1 and not any(changed for _, _, changed in found)
        if limit is None or len(positions) <= limit or is_widest:
            return Candidates(positions, np.concatenate([each for _, each, _ in found]), n_maxima)
        if highest is not degrees:
            run.writer.drop_scratch(f"highest-{k}-{nth - 1}")
        highest, nth = wider, nth + 1


def _dimension(run: Run, stage: RunningStage, sizes: SmoothingSizes) -> float | None:
    """The intrinsic dimension of the data; None without distances, or if all rows are copies of a few.

    It is at most their number of features: equal distances, as on a lattice, would raise it.
    """
    if "graph/distances" not in run.writer:
        return None
    distances = run.writer.array("graph/distances")
    parts = row_slices(sizes.n_rows, sizes.rows_per_chunk)
    some = np.unique(np.linspace(0, len(parts) - 1, n_sampled_chunks(sizes), dtype=int)).tolist()
    pieces = [Piece(dimension_of_rows, (distances, parts[at])) for at in some]
    total, count = np.sum(stage.run("dimension", pieces), axis=0)
    most = run.writer.array("points").shape[1] if "points" in run.writer else np.inf
    return float(min(count / total, most)) if total > 0 else None


def order_part(points: ArrayLike, rows: ArrayLike, starts: ArrayLike, part: slice, target: StoredArray) -> None:
    """Number the rows of some cells."""
    target[part] = np.asarray(rows[part])[order_in_cells(np.asarray(points[part]), _cells_at(starts, part))]


def _cells_at(starts: ArrayLike, part: slice) -> IntArray:
    """Return the cell of each of some positions."""
    return np.searchsorted(np.asarray(starts[...]), np.arange(part.start, part.stop), side="right")


def order_with_copies(
    points: ArrayLike, rows: ArrayLike, starts: ArrayLike, first: ArrayLike, target: StoredArray
) -> None:
    """Number first rows as they lie in cells, and copies behind theirs."""
    ordered = [
        np.asarray(rows[part])[order_in_cells(np.asarray(points[part]), _cells_at(starts, part))]
        for part in row_slices(rows.shape[0], ORDERED_ROWS)
    ]
    of_first = np.asarray(first[:])
    place = np.empty(len(of_first), np.int64)
    place[np.concatenate(ordered)] = np.arange(rows.shape[0])
    target[:] = np.argsort(place[of_first], kind="stable")


def order_and_write(indices: ArrayLike, n_neighbors: int, target: StoredArray) -> None:
    """Number the rows by the graph of the smallest k."""
    target[:] = order_rows(walk_on(indices, n_neighbors).neighbors)


def write_positions(order: ArrayLike, target: StoredArray) -> None:
    """Write the position of every row."""
    target[:] = positions_in(np.asarray(order[:]))


def renumber_chunk(
    indices: ArrayLike, rows: slice, k: int, positions: ArrayLike, scratch: StoredArray, start: int, edges: IntArray
) -> IntArray:
    """Write the lists of some rows by position; count those before each of the positions in `edges`."""
    everywhere = np.asarray(positions[:])
    listed = renumbered(np.asarray(indices[rows])[:, :k], everywhere)
    keys = everywhere[rows].astype(np.int64)
    return np.searchsorted(write_sorted(walk_entry(k), keys, scratch, start, neighbors=listed), edges)


def write_part(scratch: ArrayLike, slices: list[slice], walks: dict[int, WalkFiles], part: slice) -> None:
    """Collect one part of the walks, and write it."""
    entries = collect(walk_entry(max(walks)), scratch, slices)["neighbors"]
    for k, walk in walks.items():
        made = walk_part(np.ascontiguousarray(entries[:, :k]), part.start, walk.neighbors.shape[0])
        walk.neighbors[part] = made.neighbors
        first_tile = part.start // TILE_ROWS
        walk.reads[first_tile : first_tile + len(made.reads)] = made.reads


def maxima_of_whole(neighbors: ArrayLike, limit: int | None) -> Candidates:
    """The local maxima of a walk in one part."""
    return local_maxima(np.asarray(neighbors[:]), limit)


def count_part(neighbors: ArrayLike, part: slice) -> tuple[IntArray, IntArray]:
    """Positions that some rows list, and how many of the rows list each."""
    return without_zeros(in_degrees(np.asarray(neighbors[part]), neighbors.shape[0]))


def add_counts(counts: list[tuple[IntArray, IntArray]]) -> tuple[IntArray, IntArray]:
    """The same of several parts together."""
    return without_zeros(_sum_of_counts(counts, 1 + max(int(positions[-1]) for positions, _ in counts)))


def write_counts(counts: tuple[IntArray, IntArray], target: StoredArray) -> None:
    """Write the in-degrees of all rows."""
    target[:] = _sum_of_counts([counts], target.shape[0])


def _sum_of_counts(counts: list[tuple[IntArray, IntArray]], n_rows: int) -> IntArray:
    total = np.zeros(n_rows, np.int64)
    for positions, times in counts:
        total[positions] += times
    return total


def without_zeros(degrees: IntArray) -> tuple[IntArray, IntArray]:
    """Return the positions of degrees above 0, and these."""
    listed = np.flatnonzero(degrees)
    return listed, degrees[listed]


def widen_part(
    part: slice, neighbors: ArrayLike, degrees: ArrayLike, highest: ArrayLike, target: StoredArray
) -> tuple[IntArray, IntArray, bool]:
    """Write the largest in-degree one step farther; return positions and degrees of maxima, and if anything changed."""
    everywhere = np.asarray(highest[:])
    target[part] = wider = highest_near(np.asarray(neighbors[part]), everywhere)
    own = np.asarray(degrees[part])
    maxima = np.flatnonzero(own >= wider)
    return part.start + maxima, own[maxima], not np.array_equal(wider, everywhere[part])


def choose_candidates(
    maxima: Candidates, order: ArrayLike, points: ArrayLike | None, limit: int
) -> tuple[Candidates, IntArray]:
    """The candidates of one k, of its local maxima by position; and their positions."""
    rows = np.asarray(order[:])[maxima.rows]
    candidates = most_of(in_row_order(maxima, rows), points, limit)
    position = dict(zip(rows.tolist(), maxima.rows.tolist(), strict=True))
    return candidates, np.array([position[row] for row in candidates.rows.tolist()])


def nodes_of(
    walk: WalkFiles, points: IntArray, lams: tuple[float, ...], seed: int, tol: float, width: int
) -> NDArray[np.complex128]:
    """Nodes for the solves of one k, at these points."""
    return solver.find_nodes(walk.open(), points, np.array(lams), seed, tol, width)


def dimension_of_rows(distances: ArrayLike, rows: slice) -> tuple[float, int]:
    """What some rows tell about the intrinsic dimension."""
    return scales.intrinsic_dimension(np.asarray(distances[rows]))
