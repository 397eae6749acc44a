"""Communities of basins: clusters in many dimensions, from the links of the graph alone.

Walks see clusters that they leave slowly. Real clusters in many dimensions are rarely so clear, and their number comes
out far too small. Modularity sees them, but where it may move every row it also cuts dense cores into pieces. So whole
basins are merged, and single rows move only in the end:

1. *Basins.* Every row steps to the neighbor of largest in-degree among its first `CLIMBED`, again and again, until it
   reaches a local maximum: the top of its basin.
2. *Links.* S = k (W + W^T), summed over pairs of basins: a small graph of integer weights, with loops.
3. *Communities* of that graph: the partition of largest modularity (Louvain's method).
4. *Refinement.* Rows move to the community of largest gain in modularity, in `SWEEPS` passes over the graph.

Weights are integers and nodes are visited in order, so the communities do not depend on rounding, chunks or threads.
Functions named `*_part` work on consecutive rows of the walk; rows are numbered by position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Neighbors that a step uphill chooses from, the row itself included.
CLIMBED = 5
#: Passes of the refinement over all rows. Twelve passes instead of three change the mean AMI by less than 0.1.
SWEEPS = 3
#: Passes over the nodes of a graph of basins, at most.
MAX_PASSES = 100
#: Gains in modularity that differ by less, relative to the weight of a node, are ties.
TIE = 1e-9


def uphill_part(neighbors: IntArray, first_row: int, degrees: IntArray) -> IntArray:
    """Return the neighbor of largest in-degree of each row of a part, the first by position if there are several.

    Examples
    --------
    >>> uphill_part(np.array([[0, 1], [1, 0], [2, 1]]), 0, np.array([2, 3, 1]))
    array([1, 1, 1])
    """
    near = neighbors[:, :CLIMBED].astype(np.int64)
    heights = degrees[near]
    is_highest = heights == heights.max(axis=1, keepdims=True)
    step = np.where(is_highest, near, len(degrees)).min(axis=1)
    own = np.arange(first_row, first_row + len(near))
    is_tie = degrees[step] == degrees[own]
    return np.where(is_tie & (step > own), own, step)  # along ties only towards the first position: no cycles


def basins_of(uphill: IntArray) -> tuple[IntArray, IntArray]:
    """Follow the steps uphill to their ends: return the tops, and the basin of every row.

    Examples
    --------
    >>> basins_of(np.array([1, 1, 1, 3, 3]))
    (array([1, 3]), array([0, 0, 0, 1, 1]))
    """
    ends = uphill
    while not np.array_equal(further := ends[ends], ends):
        ends = further
    tops = np.flatnonzero(ends == np.arange(len(ends)))
    return tops, np.searchsorted(tops, ends)


def links_part(neighbors: IntArray, first_row: int, groups: IntArray, n_groups: int) -> csr_matrix:
    """Count the links of a part from group to group (n_groups, n_groups); rows do not link to themselves."""
    from scipy.sparse import coo_matrix

    listed = neighbors[:, 1:]
    of_rows = np.repeat(groups[first_row : first_row + len(listed)], listed.shape[1])
    counts = coo_matrix((np.ones(listed.size, np.int64), (of_rows, groups[listed.ravel()])), (n_groups, n_groups))
    return counts.tocsr()


def add_links(links: list[csr_matrix]) -> csr_matrix:
    """Add the links of several parts."""
    return sum(links[1:], links[0])


def modularity(links: FloatArray) -> float:
    """Return the modularity of a partition from the symmetric links between its groups (K, K).

    Examples
    --------
    >>> modularity(np.array([[4.0, 0.0], [0.0, 4.0]]))
    0.5
    """
    total = links.sum()
    return float(np.trace(links) / total - ((links.sum(axis=1) / total) ** 2).sum()) if total > 0 else 0.0


def louvain(links: csr_matrix) -> IntArray:
    """Return the community of every node of a graph with symmetric integer weights (b, b), by Louvain's method.

    Examples
    --------
    >>> from scipy.sparse import csr_matrix
    >>> louvain(csr_matrix(np.array([[0, 9, 1, 0], [9, 0, 0, 0], [1, 0, 0, 9], [0, 0, 9, 0]])))
    array([0, 0, 1, 1])
    """
    communities, graph = np.arange(links.shape[0]), links
    while True:
        labels = np.arange(graph.shape[0])
        degrees = np.asarray(graph.sum(axis=1)).ravel().astype(np.float64)
        volumes = degrees.copy()
        move_nodes(*_sorted(graph), degrees, 0, labels, volumes, MAX_PASSES)
        present, labels = np.unique(labels, return_inverse=True)
        communities = labels[communities]
        if len(present) == graph.shape[0]:
            return np.asarray(communities)
        graph = merged_links(graph, labels, len(present))


def merged_links(links: csr_matrix, groups: IntArray, n_groups: int) -> csr_matrix:
    """Sum links (b, b) over groups of their nodes (n_groups, n_groups)."""
    from scipy.sparse import csr_matrix

    members = csr_matrix((np.ones(len(groups), np.int64), (groups, np.arange(len(groups)))), (n_groups, len(groups)))
    return (members @ links @ members.T).tocsr()


def refine_part(
    neighbors: IntArray, first_row: int, labels: IntArray, degrees: IntArray, n_groups: int, n_sweeps: int
) -> IntArray:
    """Move rows of a part to the community of largest gain in modularity; return their communities.

    Links into a row from other parts are left out: with rows in locality order they are few. `degrees` (n,) are the
    in-degrees of all rows.
    """
    from scipy.sparse import csr_matrix

    n_rows, (m, k) = len(labels), neighbors.shape
    listed = neighbors[:, 1:]
    starts = np.arange(0, m * (k - 1) + 1, k - 1)
    out = csr_matrix((np.ones(listed.size, np.int64), listed.ravel().astype(np.int64), starts), (m, n_rows))
    back = out[:, first_row : first_row + m].T.tocsr()
    back = csr_matrix((back.data, back.indices + first_row, back.indptr), (m, n_rows))
    weights = (degrees + (k - 2)).astype(np.float64)  # in-degrees count the row itself
    moved = labels.copy()
    volumes = np.bincount(labels, weights, n_groups)
    move_nodes(*_sorted(out + back), weights, first_row, moved, volumes, n_sweeps)
    return moved[first_row : first_row + m]


def _sorted(graph: csr_matrix) -> tuple[Any, Any, Any]:
    graph.sort_indices()
    return graph.indptr, graph.indices, graph.data


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def move_nodes(
    indptr: IntArray,
    indices: IntArray,
    links: IntArray,
    weights: FloatArray,
    first: int,
    labels: IntArray,
    volumes: FloatArray,
    n_sweeps: int,
) -> None:
    """Move nodes, one after the other, to the group of largest gain in modularity, until none moves.

    The graph has the rows `first`, `first + 1`, ... of a larger one; `weights` and `labels` are of all of its nodes and
    `volumes` the sums of weights in each group. `labels` and `volumes` are changed in place.
    """
    total = volumes.sum()
    linked = np.zeros(len(volumes))
    for _ in range(n_sweeps):
        n_moved = 0
        for row in range(len(indptr) - 1):
            node = first + row
            own, weight = labels[node], weights[node]
            volumes[own] -= weight
            for at in range(indptr[row], indptr[row + 1]):
                if indices[at] != node:
                    linked[labels[indices[at]]] += links[at]
            best, gain = own, linked[own] - weight * volumes[own] / total
            for at in range(indptr[row], indptr[row + 1]):
                group = labels[indices[at]]
                value = linked[group] - weight * volumes[group] / total
                if value > gain + TIE * weight or (group < best and best != own and value >= gain):
                    best, gain = group, value
            for at in range(indptr[row], indptr[row + 1]):
                linked[labels[indices[at]]] = 0.0
            volumes[best] += weight
            if best != own:
                labels[node] = best
                n_moved += 1
        if n_moved == 0:
            return


def hierarchy(links: FloatArray, sizes: ArrayLike, groups: IntArray) -> IntArray:
    """Return the cluster of every community (K, community) for K = 1, 2, ... clusters, one nested in the next.

    Communities are joined by their links relative to what their weights let expect, first those of one of the `groups`
    (community,), then these. Clusters are numbered by their `sizes`, the largest first.

    Examples
    --------
    >>> links = np.array([[9.0, 1.0, 0.0], [1.0, 9.0, 2.0], [0.0, 2.0, 9.0]])
    >>> hierarchy(links, np.array([5, 4, 3]), np.array([0, 0, 1]))
    array([[0, 0, 0],
           [0, 0, 1],
           [0, 1, 2]])
    """
    K, cluster, group = len(links), np.arange(len(links)), groups.copy()
    clusters = np.zeros((K, K), np.int64)
    links = links.copy()
    for n_clusters in range(K, 0, -1):
        order = np.argsort(-np.bincount(cluster, weights=np.asarray(sizes, float), minlength=K), kind="stable")
        present = order[np.isin(order, cluster)]
        clusters[n_clusters - 1] = np.argsort(present)[np.searchsorted(np.sort(present), cluster)]
        if n_clusters == 1:
            break
        first, second = next_join(links, np.unique(cluster), group)
        join(links, first, second)
        cluster[cluster == second] = first
    return clusters


def next_join(links: FloatArray, present: IntArray, group: IntArray) -> tuple[int, int]:
    """Return the two clusters to join: of one group before others, then by their linkage."""
    weights = links.sum(axis=1)[present]
    linkage = links[np.ix_(present, present)] / np.maximum(np.outer(weights, weights), np.finfo(float).tiny)
    linkage += group[present][:, None] == group[present][None, :]  # linkages are far below 1
    linkage[np.tril_indices(len(present))] = -1
    first, second = np.unravel_index(int(linkage.argmax()), linkage.shape)
    return int(present[first]), int(present[second])


def join(links: FloatArray, first: int, second: int) -> None:
    """Add the links of one cluster to those of another, in place."""
    links[first] += links[second]
    links[:, first] += links[:, second]
    links[second], links[:, second] = 0, 0
