"""Approximate search in cells: rows lie in the cell of their nearest centre, and queries visit few cells.

A row of the cell C that is nearer to c than to a query's own centre c_0 lies beyond the plane half-way between the two
centres, so it is at least as far away as that plane:

    gap(q, C) = |c - c_0| / 2 - (q - c_0) . (c - c_0) / |c - c_0|

A query visits the cells with gap < reach * (distance of its k-th nearest so far). With reach 1 nothing can be missed;
in more than a few dimensions most of what lies just beyond the plane is far away along it, and a smaller reach finds
nearly all. How small it may be is learned from the exact neighbours of a sample: `needed_reach`.

Everything is float32, measured by direct differences, and ordered by distance and row number, so the result depends on
the rows alone: not on chunks, workers or threads.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.errors import NotAResultError
from cns_dask.neighbors.distances import FEW_CENTERS, QUERIES_AT_ONCE, merge_nearest, shrinkage, visit_cells
from cns_dask.neighbors.exact import with_roots
from cns_dask.neighbors.graph import GraphSummary
from cns_dask.numeric import project_block, workspace
from cns_dask.storage.records import typed_record
from cns_dask.storage.store import ResultStore

LLOYD_STEPS = 8  # of k-means: cells need not be the best, only compact
ROUNDING = 1 - 1e-4  # of a distance in float32, by far


@dataclass(frozen=True)
class Cells:
    """Rows of the data in cells around centres, for search. The arrays may lie on disk."""

    centers: ArrayLike  # centre of every cell (cell, d), float32, shifted by `offset`
    starts: ArrayLike  # position of the first row of every cell, and the number of rows (cell + 1,)
    points: ArrayLike  # the rows, shifted by `offset`, by cell and then by row number (position, d), float32
    rows: ArrayLike  # their row numbers (position,)
    offset: ArrayLike  # subtracted from a row before it is rounded to float32 (d,)
    reach: float  # how far beyond the border of a cell a search looks; 1 misses nothing


def stored_cells(store: ResultStore) -> Cells | None:
    """The cells in a store, opened; None if there are none."""
    if "cells/points" not in store:
        return None
    small = {name: store.read(f"cells/{name}") for name in ("centers", "starts", "offset")}
    large = {name: store.array(f"cells/{name}") for name in ("points", "rows")}
    reach, edges = typed_record(GraphSummary, store.graph_attributes, "its graph").reach, small["starts"]
    is_whole = edges[0] == 0 and edges[-1] == large["rows"].shape[0] and (np.diff(edges) >= 0).all()
    if reach is None or not reach >= 0 or not is_whole:
        raise NotAResultError("This is not a result of cns_dask: its cells do not hold all rows, or have no reach.")
    return Cells(**small, **large, reach=reach)


def learn_centers(sample: list[FloatArray], n_cells: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Centres of cells (cell, d) from parts of a sample, near ones next to each other, and the offset (d,).

    Many centres are learned in two steps: groups of rows, then in each as many centres as its share of them.
    """
    rows = np.concatenate(sample)
    offset = rows.mean(axis=0)
    rows, n_cells = shifted(rows, offset), min(n_cells, len(rows))
    if n_cells <= FEW_CENTERS:
        centers = _k_means(rows, n_cells, seed)[0]
    else:
        _, group = _k_means(rows, math.isqrt(n_cells), seed)
        counts = np.bincount(group)
        ends = np.rint(np.cumsum(counts) * (n_cells / len(rows))).astype(int)
        shares = np.diff(ends, prepend=0)
        of_groups = zip(np.split(np.argsort(group, kind="stable"), np.cumsum(counts)[:-1]), shares, strict=True)
        centers = np.concatenate([_k_means(rows[some], int(share), seed)[0] for some, share in of_groups if share])
    return centers[np.array(_near_together(centers, np.arange(len(centers))))], offset


def _k_means(rows: FloatArray, count: int, seed: int) -> tuple[FloatArray, IntArray]:
    """Centres of some rows, and the one that each row belongs to."""
    import warnings

    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    model = KMeans(count, init="random", n_init=1, max_iter=LLOYD_STEPS, random_state=seed)
    with threadpool_limits(1, user_api="openmp"), warnings.catch_warnings():  # its sums would depend on the threads
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct rows than cells: some stay empty
        model.fit(rows)
    return model.cluster_centers_.astype(np.float32), np.asarray(model.labels_)


def shifted(points: FloatArray, offset: FloatArray) -> FloatArray:
    """Points as the cells hold them: near 0, where float32 is finest."""
    return (points - offset).astype(np.float32)


def _near_together(centers: FloatArray, some: IntArray) -> list[int]:
    """Order by halving: along the widest axis, then each half by itself."""
    if len(some) <= 2:
        return list(some)
    axis = int(np.argmax(np.ptp(centers[some], axis=0)))
    ordered = some[np.argsort(centers[some, axis], kind="stable")]
    half = len(some) // 2
    return [*_near_together(centers, ordered[:half]), *_near_together(centers, ordered[half:])]


def nearest_centers(points: FloatArray, centers: FloatArray) -> IntArray:
    """The nearest centre of every point (m,).

    Many centres are in groups. One whose ball lies farther away than the nearest centre so far is passed over: nothing
    is missed, and on a 16-d mixture with 2 000 centres a point is compared with a tenth of them.
    """
    shape = len(points), 1
    nearest, nobody = (np.full(shape, np.inf, np.float32), np.full(shape, -1)), np.full(len(points), -1)
    if len(centers) <= FEW_CENTERS:
        merge_nearest(points, nobody, centers, np.arange(len(centers)), nearest)
        return nearest[1][:, 0]
    groups = _groups_of_centers(np.ascontiguousarray(centers).tobytes(), centers.shape)
    away = np.empty((len(groups), len(points)), np.float32)
    for at, group in enumerate(groups):
        away[at] = np.sqrt(((points - group.center) ** 2).sum(axis=1)) * ROUNDING - group.radius
    first = away.argmin(axis=0)
    for is_first in (True, False):
        for at, group in enumerate(groups):
            in_reach = (first == at) if is_first else (first != at) & (away[at] <= np.sqrt(nearest[0][:, 0]))
            some = np.flatnonzero(in_reach)
            merge_nearest(points, nobody, centers[group.members], group.members, nearest, some)
    return nearest[1][:, 0]


class _Group(NamedTuple):
    """Centres that are near each other: all lie within `radius` of `center`."""

    members: IntArray
    center: FloatArray
    radius: float


@lru_cache(maxsize=2)
def _groups_of_centers(content: bytes, shape: tuple[int, int]) -> list[_Group]:
    """The groups of some centres, found once in a process: about as many as each has members."""
    centers = np.frombuffer(content, np.float32).reshape(shape)
    middles, group = _k_means(centers, math.isqrt(len(centers)), 0)
    groups = []
    for at, middle in enumerate(middles):
        members = np.flatnonzero(group == at)
        if len(members):
            groups.append(_Group(members, middle, float(np.sqrt(((centers[members] - middle) ** 2).sum(axis=1).max()))))
    return groups


def gaps(queries: FloatArray, own: FloatArray, others: FloatArray) -> FloatArray:
    """Distance to the plane between the own centre (d,) and each of the others, of every query (c, m).

    The array is this thread's: the next call writes over it.
    """
    directions = others - own
    separation = np.sqrt(np.einsum("ij,ij->i", directions, directions))[:, None]
    distances = workspace("gaps", (len(others), len(queries)), np.float32)
    distances[...] = 0
    units = directions / np.where(separation > 0, separation, 1)
    project_block(units, np.ascontiguousarray((own - queries).T), distances)
    distances += np.where(separation > 0, separation / 2, np.float32(-np.inf))
    return distances


def search_cells(
    queries: FloatArray, query_rows: IntArray, query_cells: IntArray, cells: Cells, n_neighbors: int
) -> tuple[FloatArray, IntArray]:
    """Nearest rows of queries that are sorted by cell: squared distances and row numbers (m, k).

    `query_rows` are their own row numbers, -1 for points from outside. One chunk of the stored rows is in memory at a
    time, and only chunks with a cell in reach are read: first the one with a query's own cell, then the others.
    """
    centers, starts = np.asarray(cells.centers[...]), np.asarray(cells.starts[...])
    shape = len(queries), n_neighbors
    nearest = np.full(shape, np.inf, np.float32), np.full(shape, -1)
    groups = list(_groups(query_cells))
    step = cells.points.chunks[0]
    chunks = [_Chunk(cells, starts, slice(at, min(at + step, starts[-1]))) for at in range(0, starts[-1], step)]
    for own in (True, False):
        for chunk in chunks:
            for group in groups:
                cell = query_cells[group.start]
                if chunk.holds(cell) == own:
                    part = queries[group], query_rows[group], (nearest[0][group], nearest[1][group])
                    _visit(chunk, centers, cell, cells.reach, *part)
            chunk.close()
    return nearest


def search_new_rows(queries: FloatArray, cells: Cells, n_neighbors: int, n_rows: int) -> tuple[FloatArray, IntArray]:
    """Distances and row numbers, below `n_rows`, of the nearest rows of some rows from outside (m, k)."""
    points = shifted(queries, np.asarray(cells.offset[...]))
    own = nearest_centers(points, np.asarray(cells.centers[...]))
    order = np.argsort(own, kind="stable")
    found = search_cells(points[order], np.full(len(points), -1), own[order], cells, n_neighbors)
    if found[1].min(initial=-1) < -1 or found[1].max(initial=-1) >= n_rows:
        raise NotAResultError("This is not a result of cns_dask: its cells hold rows that do not exist.")
    nearest = with_roots(found)
    back = np.argsort(order)
    return nearest[0][back], nearest[1][back]


class _Chunk:
    """One chunk of the stored rows: read when first needed, dropped when closed."""

    def __init__(self, cells: Cells, starts: IntArray, part: slice) -> None:
        self._cells, self._part = cells, part
        self._loaded: tuple[FloatArray, IntArray] | None = None
        self.first = int(np.searchsorted(starts, part.start, side="right")) - 1
        self.last = int(np.searchsorted(starts, part.stop, side="left"))  # cells first to last - 1 have rows here
        bounds = np.clip(starts[self.first : self.last + 1], part.start, part.stop) - part.start
        self.edges = np.column_stack([bounds[:-1], bounds[1:]])

    def holds(self, cell: int) -> bool:
        """Whether rows of a cell are here."""
        return self.first <= cell < self.last

    def load(self) -> tuple[FloatArray, IntArray]:
        """Points and row numbers, read once."""
        if self._loaded is None:
            self._loaded = np.asarray(self._cells.points[self._part]), np.asarray(self._cells.rows[self._part])
        return self._loaded

    def close(self) -> None:
        """Forget the rows."""
        self._loaded = None


def _visit(
    chunk: _Chunk,
    centers: FloatArray,
    own: int,
    reach: float,
    queries: FloatArray,
    query_rows: IntArray,
    nearest: tuple[FloatArray, IntArray],
) -> None:
    """Search one group of queries in the cells of one chunk that are in reach: its own, then the nearest first."""
    center, others = centers[own], centers[chunk.first : chunk.last]
    if chunk.holds(own):
        points, rows = chunk.load()
        part = slice(*chunk.edges[own - chunk.first])
        merge_nearest(queries, query_rows, points[part], rows[part], nearest)
    separation = np.sqrt(((others - center) ** 2).sum(axis=1))
    radius = np.sqrt(((queries - center) ** 2).sum(axis=1).max())
    limits = reach * np.sqrt(nearest[0][:, -1])
    filled = chunk.edges[:, 1] > chunk.edges[:, 0]
    close = separation / 2 - radius < limits.max()
    near = np.flatnonzero(close & filled & (np.arange(chunk.first, chunk.last) != own))
    near = near[np.argsort(separation[near], kind="stable")]
    gap = gaps(queries, center, others[near])
    if (gap < limits).any():
        edges, shrink = chunk.edges[near], shrinkage(queries)
        visit_cells(queries, query_rows, center, *chunk.load(), edges, gap, reach, shrink, *nearest)


def _groups(cells: IntArray) -> Iterator[slice]:
    """Stretches of queries in one cell, of at most QUERIES_AT_ONCE."""
    edges = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
    for start, stop in itertools.pairwise(edges):
        for at in range(start, stop, QUERIES_AT_ONCE):
            yield slice(at, min(at + QUERIES_AT_ONCE, stop))


def needed_reach(
    queries: FloatArray, distances: FloatArray, positions: IntArray, cells: Cells
) -> tuple[FloatArray, FloatArray]:
    """For queries whose exact neighbours are known by position: the reach that finds each of them.

    Returns the reach (m, k), -inf for neighbours in the own cell, and for every query the reach that visits each cell
    (m, cell).
    """
    centers, starts = np.asarray(cells.centers[...]), np.asarray(cells.starts[...])
    own = nearest_centers(queries, centers)
    visits = np.empty((len(queries), len(centers)), np.float32)
    for i, cell in enumerate(own):
        visits[i] = gaps(queries[i : i + 1], centers[cell], centers)[:, 0]
        visits[i, cell] = -np.inf
    radius = distances[:, -1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        visits = np.where(radius > 0, visits / radius, np.where(visits < 0, -np.inf, np.inf))
    inside = np.searchsorted(starts, positions, side="right") - 1
    return np.take_along_axis(visits, inside, axis=1), visits
