"""W, the transition matrix of the random walk on the graph: 1/k at each of a row's k neighbours.

W is never stored with values: it is the integer graph, and a product with it is a mean of gathered rows. The time of a
product is that of reaching these rows in memory, so for products the rows are numbered anew, neighbours close together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cns_dask.array_types import ArrayLike, IntArray
from cns_dask.errors import InvalidTypeError, NotAResultError
from cns_dask.neighbors.graph import NeighborGraph
from cns_dask.settings import check_integer
from cns_dask.smoothing.passes import tile_reads

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Walk:
    """The random walk on the graph of one k, that is W, with rows numbered so that neighbours lie close together."""

    #: The k neighbours of every row, by their new numbers (n, k), unsigned: they index without a check of their sign
    neighbors: ArrayLike
    reads: ArrayLike  # tiles of rows in which each tile has neighbours (tile, TILE_READS)


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
        listed = np.asarray(indices[rows])[:, :k]
        if listed.min() < 0 or listed.max() >= n_rows:
            raise NotAResultError("This is not a result of cns_dask: its graph lists rows that do not exist.")
        neighbors[position[rows]] = position[listed]
    return Walk(neighbors, tile_reads(neighbors))


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
