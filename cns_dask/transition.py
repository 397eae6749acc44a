"""W, the transition matrix of the random walk on the graph: 1/k at each of a row's k neighbours.

W is never stored with values: it is the integer graph, and a product with it is a mean of gathered rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import dask.array as da
import numpy as np

from cns_dask.kernels import smooth_block
from cns_dask.settings import check_integer
from cns_dask.types import FloatArray, IntArray, NeighborGraph

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def neighbors_at(indices: da.Array, n_neighbors: int) -> Any:
    """The graph for one k as a single task: the first k columns, whole, as small integers.

    A worker process holds it once, and its threads share it.
    """
    parts = indices[:, :n_neighbors].map_blocks(compact_neighbors, indices.shape[0], dtype=np.int32)
    return parts.rechunk(-1).to_delayed()[0, 0]


def compact_neighbors(neighbors: IntArray, n_rows: int) -> IntArray:
    """Numbers of `n_rows` rows in the smallest integer type that holds them."""
    small = np.int32 if n_rows <= np.iinfo(np.int32).max else np.int64
    return np.ascontiguousarray(neighbors, dtype=small)


def smooth(neighbors: IntArray, values: FloatArray) -> FloatArray:
    """W @ values: the mean of each row's neighbours (n, b).

    Examples
    --------
    >>> smooth(np.array([[0, 1], [1, 0]]), np.array([[0.0], [4.0]])).ravel()
    array([2., 2.])
    """
    out = np.empty_like(values)
    smooth_block(neighbors, values, 0.0, 1.0, values, 0.0, out)
    return out


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
    from scipy.sparse import csr_matrix

    n_rows, available = graph.indices.shape
    k = available if n_neighbors is None else n_neighbors
    check_integer("n_neighbors", k, 1, available)
    columns = np.asarray(graph.indices[:, :k])
    starts = np.arange(0, n_rows * k + 1, k)
    return csr_matrix((np.full(n_rows * k, 1 / k), columns.ravel(), starts), shape=(n_rows, n_rows))
