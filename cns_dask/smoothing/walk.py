"""W, the transition matrix of the random walk on the graph: 1/k at each of a row's k neighbours.

W is never stored with values: it is the integer graph, and a product with it is a mean of gathered rows. The time of a
product is that of reaching these rows in memory, so for products the rows are numbered anew, neighbours close together.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.errors import InvalidTypeError, NotAResultError
from cns_dask.neighbors.graph import NeighborGraph
from cns_dask.settings import check_integer
from cns_dask.smoothing.passes import smooth, tile_reads

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

LEAF_ROWS = 32  # that are not put in any order


@dataclass(frozen=True)
class WalkPart:
    """Consecutive rows of a walk: whole tiles of them, but for the last part."""

    first_row: int
    #: The k neighbours of each of its rows, by their new numbers (m, k), unsigned: they index without a check of sign
    neighbors: ArrayLike
    reads: ArrayLike  # tiles of rows in which each of its tiles has neighbours (tile, TILE_READS)


@dataclass(frozen=True)
class Walk:
    """The random walk on the graph of one k, that is W, with rows numbered so that neighbours lie close together.

    It comes in parts, which may be mapped from files: several tasks write them, and every solve reads them all.
    """

    parts: tuple[WalkPart, ...]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.parts[-1].first_row + len(self.parts[-1].neighbors)

    @property
    def n_neighbors(self) -> int:
        """K."""
        return int(self.parts[0].neighbors.shape[1])

    @property
    def neighbors(self) -> IntArray:
        """The lists of all rows (n, k), in memory."""
        return np.concatenate([part.neighbors for part in self.parts])

    def product(self, values: FloatArray) -> FloatArray:
        """W @ values (n,)."""
        return np.concatenate([smooth(part.neighbors, values) for part in self.parts])


def order_rows(neighbors: IntArray) -> IntArray:
    """Rows in an order in which neighbours lie close together: reverse Cuthill-McKee.

    Examples
    --------
    >>> order_rows(np.array([[0, 2], [1, 3], [2, 0], [3, 1]]))
    array([3, 1, 2, 0])
    """
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    return np.asarray(reverse_cuthill_mckee(_matrix(neighbors, np.ones(neighbors.size, np.int8))), dtype=np.int64)


def positions_in(order: IntArray) -> IntArray:
    """Position of each row in an order."""
    positions = np.empty(len(order), np.int64)
    positions[order] = np.arange(len(order))
    return positions


def order_in_cells(points: FloatArray, cells: IntArray) -> IntArray:
    """Positions of points that lie cell after cell (m,), in an order in which near ones are closer still.

    Each cell is halved along its widest axis, and each half again. It costs a fraction of an order of the whole graph,
    needs no more than the cell at a time, and products with W are as fast or faster (measured against reverse
    Cuthill-McKee: two moons twice as fast, MNIST 1.2 times, a 16-d mixture the same).

    Examples
    --------
    >>> order_in_cells(np.array([[3.0], [1.0], [2.0], [0.0], [5.0]] * 9), np.zeros(45, int))[:9]
    array([ 3,  8, 13, 18, 23, 28, 33, 38, 43])
    """
    edges = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), len(cells)]
    leaves = [leaf for start, stop in itertools.pairwise(edges) for leaf in _halves(points, np.arange(start, stop))]
    return np.concatenate(leaves)


def _halves(points: FloatArray, some: IntArray) -> list[IntArray]:
    if len(some) <= LEAF_ROWS:
        return [some]
    values = points[some]
    axis, half = int(np.argmax(np.ptp(values, axis=0))), len(some) // 2
    ordered = some[np.argsort(values[:, axis], kind="stable")]
    return [*_halves(points, ordered[:half]), *_halves(points, ordered[half:])]


def walk_on(indices: ArrayLike, n_neighbors: int | None = None, order: IntArray | None = None) -> Walk:
    """W for one k: the first `n_neighbors` of every list, with rows numbered by their position in `order`.

    `indices` (n, k_max) may be anything that is sliced like an array; it is read chunk by chunk where it has chunks.
    """
    n_rows, k = indices.shape[0], n_neighbors or indices.shape[1]
    position = (np.arange(n_rows) if order is None else positions_in(order)).astype(np.uint32)
    neighbors = np.empty((n_rows, k), np.uint32)
    step = getattr(indices, "chunks", (n_rows,))[0]
    for start in range(0, n_rows, step):
        rows = slice(start, start + step)
        neighbors[position[rows]] = renumbered(np.asarray(indices[rows])[:, :k], position)
    return Walk((walk_part(neighbors, 0, n_rows),))


def walk_part(neighbors: IntArray, first_row: int, n_rows: int) -> WalkPart:
    """Some rows of a walk of `n_rows`, from their lists."""
    return WalkPart(first_row, neighbors, tile_reads(neighbors, first_row, n_rows))


def renumbered(listed: IntArray, position: ArrayLike) -> IntArray:
    """Lists of rows by their positions in the walk; `position` (n,) tells that of every row."""
    if listed.min() < 0 or listed.max() >= len(position):
        raise NotAResultError("This is not a result of cns_dask: its graph lists rows that do not exist.")
    return np.asarray(position[listed])


def transition_matrix(graph: NeighborGraph, n_neighbors: int | None = None) -> csr_matrix:
    """Export W as a SciPy matrix.

    Parameters
    ----------
    graph
        A kNN graph, of `neighbor_graph` or of a stored result.
    n_neighbors
        k: the first so many neighbours of every row are used. None: all.

    Examples
    --------
    >>> graph = NeighborGraph(np.array([[0, 1], [1, 0]]), np.zeros((2, 2)))
    >>> transition_matrix(graph).toarray()
    array([[0.5, 0.5],
           [0.5, 0.5]])
    """
    if not isinstance(graph, NeighborGraph):
        raise InvalidTypeError(f"transition_matrix needs a NeighborGraph, not {type(graph).__name__}.")
    available = graph.indices.shape[1]
    k = check_integer("n_neighbors", available if n_neighbors is None else n_neighbors, 1, available)
    neighbors = np.asarray(graph.indices[:, :k])
    return _matrix(neighbors, np.full(neighbors.size, 1 / k))


def _matrix(neighbors: IntArray, values: ArrayLike) -> csr_matrix:
    from scipy.sparse import csr_matrix

    n_rows, k = neighbors.shape
    return csr_matrix((values, neighbors.ravel(), np.arange(0, n_rows * k + 1, k)), shape=(n_rows, n_rows))
