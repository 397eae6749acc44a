"""The grid's work: walks, columns and cells for every (k, lam), all of them at once over all workers.

Each k's walk is written to scratch once, as one file that every process maps: a host holds it once, whatever the number
of its processes and threads. A task solves one block of columns for all lam and writes it to scratch by chunks of rows.
When the blocks of a k are there, its chunks are reduced to sums and inner products, these to picks, and these to the
criterion. No k waits for another. Its columns are removed as soon as its cells are known, and Dask works on one k after
the other where it can, so that with few workers hardly more than one of them is on disk.

All of this is sums over rows, so columns stay in the order of the walk. Those that are kept go back to row order.
"""

from __future__ import annotations

from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from cns_dask import columns, criterion, selection
from cns_dask.arrays import StoredArray
from cns_dask.fingerprint import digest
from cns_dask.plan import SUMMED_AT_ONCE, TILE_READS, Plan, column_type, number_of_tiles
from cns_dask.transition import order_rows, places_in, walk_on
from cns_dask.types import ArrayLike, Candidates, FloatArray, Grid, IntArray, Start, Walk
from cns_dask.work import ABSENT, Piece, Work


class GridWork:
    """The stages between the graph and the memberships: each builds tasks, runs them, and returns what is small."""

    def __init__(self, work: Work, plan: Plan, grid: Grid) -> None:
        self._work, self._store, self._plan, self._grid = work, work.store, plan, grid
        self.n_rows = work.store.array("graph/indices").shape[0]
        self._walks: dict[int, tuple[StoredArray, ...]] = {}  # neighbours and reads of each k, and the order of rows
        self._starts: dict[int, Start] = {}
        #: Largest residual of the columns that were solved for the "grid" and of those that were "kept".
        self.residuals: dict[str, float] = {}
        self.most_passes = 0

    def starts(self, limit: int, tol: float, seed: int) -> dict[int, Candidates]:
        """Number the rows for the walks, write these, and find the points that may represent clusters, for every k."""
        store, ks, n_rows = self._store, self._grid.ks, self.n_rows
        indices = store.array("graph/indices")
        points = store.array("points") if "points" in store else None
        shapes = {k: {"neighbors": (n_rows, k), "reads": (number_of_tiles(n_rows), TILE_READS)} for k in ks}
        order = store.scratch("order", (n_rows,), (n_rows,), "int64")
        self._walks = {
            k: (*(store.scratch(f"{name}-{k}", shape, shape, "uint32") for name, shape in shapes[k].items()), order)
            for k in ks
        }
        with self._work.stage("candidates", 1 + len(ks)) as stage:
            stage.run([Piece(order_and_write, (indices, ks[0], order), (("scratch/order", (slice(None),)),))])
            shared = indices, points, limit, self._grid.lams[0], tol, seed
            pieces = [
                Piece(
                    start_walk,
                    (k, self._walks[k], *shared),
                    tuple((f"scratch/{name}-{k}", (slice(None), slice(None))) for name in shapes[k]),
                )
                for k in reversed(ks)  # the longest first
            ]
            self._starts = dict(zip(reversed(ks), stage.run(pieces), strict=True))
        return {k: self._starts[k].candidates for k in ks}

    def cells(self, tol: float) -> tuple[FloatArray, IntArray]:
        """Evaluate every (k, lam): criterion and picked rows, both (k, lam, K)."""
        grid, width, step = self._grid, self._plan.columns_per_block, self._plan.rows_per_column_chunk
        near = {k: np.argsort(start.places) for k, start in self._starts.items()}  # such candidates share a block
        solved: dict[int, list[Any]] = {}
        tasks: dict[tuple[int, int | None], Any] = {}  # by k and block; None: the cells of that k
        with self._work.stage("cells", len(grid.ks) + sum(-(-len(each) // width) for each in near.values())) as stage:
            ends = dict(zip(grid.ks, stage.found([_cells_piece(k) for k in grid.ks]), strict=True))
            for k in grid.ks:
                shape, chunks = (len(grid.lams), len(near[k]), self.n_rows), (len(grid.lams), width, step)
                scratch = self._store.scratch(f"columns-{k}", shape, chunks, np.dtype(column_type(tol)).name)
                pieces = self._solves(k, self._starts[k].places[near[k]], grid.lams, tol, scratch, "scratch/columns-")
                if ends[k] is not ABSENT:
                    solved[k] = stage.found(pieces, check=False)
                    self._store.drop_scratch(f"columns-{k}")
                    if not any(value is ABSENT for value in solved[k]):
                        continue
                    scratch = self._store.scratch(f"columns-{k}", shape, chunks, np.dtype(column_type(tol)).name)
                solved[k] = stage.found(pieces)
                made = {(k, at): stage.task(pieces[at]) for at, value in enumerate(solved[k]) if value is ABSENT}
                blocks = [made.get((k, at), value) for at, value in enumerate(solved[k])]
                end = _cells_piece(k, *_cells_tasks(scratch, blocks, np.argsort(near[k]), k, grid))
                tasks |= made | {(k, None): stage.task(end)}
            order = sorted(tasks, key=lambda task: task[1] is None)  # as a list they are handed over: solves first

            def finished(number: int) -> None:
                k, block = order[number]
                if block is None:
                    self._store.drop_scratch(f"columns-{k}")

            for (k, block), value in zip(order, stage.compute([tasks[task] for task in order], finished), strict=True):
                if block is None:
                    ends[k] = value
                else:
                    solved[k][block] = value
        self._note("grid", [value for values in solved.values() for value in values])
        shape = (len(grid.ks), len(grid.lams), grid.max_clusters)
        surface, picks = np.full(shape, np.nan), np.full(shape, -1)
        for at, k in enumerate(grid.ks):
            surface[at], picked = ends[k]
            picks[at, :, : picked.shape[1]] = self._starts[k].candidates.rows[picked]
        return surface, picks

    def keep_columns(self, picked: IntArray, n_neighbors: int, lam: float, tol: float) -> None:
        """Solve the picked columns of the winning cell once more, to `tol`, and keep them: any K is a view of them."""
        width, start = self._plan.columns_per_block, self._starts[n_neighbors]
        target = self._store.create("columns", (self.n_rows, len(picked)), (self._plan.rows_per_chunk, width))
        place = dict(zip(start.candidates.rows.tolist(), start.places.tolist(), strict=True))
        places = np.array([place[row] for row in picked.tolist()])
        self._note("kept", self._work.run("columns", self._solves(n_neighbors, places, (lam,), tol, target)))

    def _solves(
        self,
        n_neighbors: int,
        places: IntArray,
        lams: tuple[float, ...],
        tol: float,
        target: StoredArray,
        prefix: str = "",
    ) -> list[Piece]:
        """One piece for every block of columns: of the grid, in scratch, or of those that are kept."""
        width, nodes = self._plan.columns_per_block, self._starts[n_neighbors].nodes
        shared = self._walks[n_neighbors], lams, nodes, tol, width, target
        name = f"{prefix}{n_neighbors}" if prefix else "columns"
        pieces = []
        for start in range(0, len(places), width):
            some = places[start : start + width]
            region = (slice(None), slice(start, start + len(some)), slice(None))[: target.ndim]
            label = f"columns-{n_neighbors}-{digest((lams, places.tolist(), tol))[:8]}-{start // width}.json"
            pieces.append(Piece(solve_and_write, (some, start, *shared), ((name, region),), label))
        return pieces

    def _note(self, what: str, solved: list[tuple[float, int]]) -> None:
        residuals, passes = zip(*solved, strict=True)
        self.residuals[what] = float(np.max(residuals))  # a NaN stays one
        self.most_passes = max(self.most_passes, *passes)


def order_and_write(indices: ArrayLike, n_neighbors: int, target: StoredArray) -> None:
    """Number the rows anew, by the graph of the smallest k."""
    target[:] = order_rows(walk_on(indices, n_neighbors).neighbors)


def start_walk(
    n_neighbors: int,
    walk: tuple[StoredArray, ...],
    indices: ArrayLike,
    points: ArrayLike | None,
    limit: int,
    lam: float,
    tol: float,
    seed: int,
) -> Start:
    """Write the walk of one k, and find what its columns start from."""
    neighbors, reads, stored_order = walk
    order = stored_order[:]
    made = walk_on(indices, n_neighbors, order)
    neighbors[:], reads[:] = made.neighbors, made.reads
    found = selection.find_candidates(made.neighbors, points, limit, order)
    return Start(found, places_in(order)[found.rows], columns.ritz_values(made.neighbors, seed, lam, tol))


def solve_and_write(
    places: IntArray,
    start: int,
    walk: tuple[StoredArray, ...],
    lams: tuple[float, ...],
    nodes: NDArray[np.complex128],
    tol: float,
    width: int,
    target: StoredArray,
) -> tuple[float, int]:
    """Solve one block and write P = lam x to `target` from column `start` on; return its largest residual and passes.

    The target is (lam, column, place), or (row, column) for a single lam.
    """
    neighbors, reads, order = walk
    block = columns.column_block(Walk(neighbors[:], reads[:]), places, np.array(lams), nodes, tol, width)
    P = block.values
    for at, lam in enumerate(lams):
        P[at] *= lam
    some = slice(start, start + len(places))
    if target.ndim == 2:
        target[:, some] = P[0][places_in(order[:])]
    else:
        target[:, some] = P.transpose(0, 2, 1)
    return float(block.residuals.max()), block.n_passes


def gram_of_rows(_solved: list[Any], scratch: ArrayLike, rows: slice) -> tuple[FloatArray, FloatArray]:
    """Reduce the columns of some rows, once all of them are there.

    It depends on the blocks themselves, not on one task that gathers them: all such tasks would go to where that ran.
    """
    return selection.gram_block(scratch, rows)


def as_pair(values: FloatArray, picks: IntArray) -> tuple[FloatArray, IntArray]:
    """Criterion and picked candidates (lam, K) of the cells of one k."""
    return values, picks


def _cells_piece(n_neighbors: int, *arguments: Any) -> Piece:
    return Piece(as_pair, arguments, name=f"cells-{n_neighbors}.json")


def _cells_tasks(
    scratch: StoredArray, blocks: list[Any], slots: IntArray, n_neighbors: int, grid: Grid
) -> tuple[Any, Any]:
    """Tasks of all cells of one k: criterion and picked candidates (lam, K). Rows are reduced chunk by chunk.

    `slots` tells the column in which each candidate stands.
    """
    n_rows, step = scratch.shape[2], scratch.chunks[2]
    parts = [slice(start, start + step) for start in range(0, n_rows, step)]
    grams = [dask.delayed(gram_of_rows)(blocks, scratch, rows) for rows in parts]
    while len(grams) > 1:
        grams = [
            dask.delayed(selection.sum_grams)(grams[i : i + SUMMED_AT_ONCE])
            for i in range(0, len(grams), SUMMED_AT_ONCE)
        ]
    picks = dask.delayed(selection.picks_of_lams)(grams[0], slots, grid.max_clusters)
    largest = [dask.delayed(criterion.largest_memberships_block)(scratch, rows, slots, picks) for rows in parts]
    values = dask.delayed(criterion.cells_criterion)(largest, n_rows, n_neighbors, grid.lams, grid.max_clusters)
    return values, picks
