"""Communities of basins: clusters in many dimensions, from the links of the graph alone.

Walks see clusters that they leave slowly. Real clusters in many dimensions are rarely so clear, and their number comes
out far too small. Modularity sees them, but where it may move every row it also cuts dense cores into pieces. So whole
basins are merged, and single rows move only in the end:

1. *Basins.* Every row steps to the neighbor of largest in-degree among its first `CLIMBED`, again and again, until it
   reaches a local maximum: the top of its basin. Copies of a row are in its basin.
2. *Links.* S = k (W + W^T), summed over pairs of basins: a small graph of integer weights, with loops.
3. *Communities* of that graph: the partition of largest modularity (Louvain's method), and their parts: the finest
   level with at most `MOST_PARTS` of them. More clusters than communities are made of these.
4. *Settling.* Rows move to the part that their neighbors name most often, in `SWEEPS` passes over the graph. This is
   the gain in modularity with W alone: a pass reads the lists of some rows and the labels of all.

Weights are integers and nodes are visited in the order of their density, so the communities depend neither on rounding,
chunks or threads, nor on the order of rows.
Functions named `*_part` work on consecutive rows of the walk; rows are numbered by position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numba
import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.storage.records import recordable

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Modularity relative to data without clusters from which all communities stand: see `borders`.
LEAST_STRUCTURE_RATIO = 1.15
#: Neighbors that a step uphill chooses from, the row itself included.
CLIMBED = 5
#: Rows above which a step chooses from the whole list, so that there are fewer basins than one task can hold.
WIDE_ROWS = 2**21
#: Units of the weight of a link where rows have copies.
LINK_UNITS = 2**16
#: Parts of communities, at most, from which clusters of any number are joined.
MOST_PARTS = 256
#: Passes over all rows in which they settle in parts, and again in clusters that are joined from parts. Six instead of
#: three change the mean AMI by less than 0.3; more than two let small clusters grow into a large one beside them.
SWEEPS, JOINED_SWEEPS = 3, 2
#: Passes over the nodes of a graph of basins, at most.
MAX_PASSES = 100
#: Gains that differ by less are ties, relative to the weight of a node.
TIE = 1e-9


@recordable
@dataclass(frozen=True)
class Communities:
    """The communities of a graph, and which of their borders are real."""

    clusters: IntArray  # cluster of every part of a community if there are K of them (K, part)
    n_clusters: int  # clusters that have borders
    modularity: float
    ratio: float | None  # modularity relative to rows without clusters; None without rows
    adds_borders: bool = False  # in few dimensions: whether borders in density split clusters of the scales
    hint: str = ""  # where no border is found: what another treatment of the features would show
    confirms_scales: bool = True  # whether clusters of the best scale cut few communities
    stand: bool = False  # whether all communities stand, because their modularity is that of data with clusters


def climbed(n_rows: int, n_neighbors: int) -> int:
    """Return the number of neighbors that a step uphill chooses from.

    Examples
    --------
    >>> climbed(10**6, 26), climbed(10**7, 32)
    (5, 32)
    """
    return n_neighbors if n_rows > WIDE_ROWS else min(CLIMBED, n_neighbors)


def uphill_part(neighbors: IntArray, degrees: IntArray, reach: FloatArray) -> IntArray:
    """Return the neighbor of largest in-degree of each row of a part; of several the one of smallest reach.

    The reach is the distance to the last neighbor, so that the answer does not depend on the order of rows.

    Examples
    --------
    >>> uphill_part(np.array([[0, 1], [1, 0], [2, 1]]), np.array([2, 3, 1]), np.array([1.0, 1.0, 2.0]))
    array([1, 1, 1])
    """
    near = neighbors[:, : climbed(len(degrees), neighbors.shape[1])].astype(np.int64)
    heights = degrees[near]
    is_highest = heights == heights.max(axis=1, keepdims=True)
    highest = np.where(is_highest, reach[near], np.inf).argmin(axis=1)  # a row stays if it is as high: no cycles
    return np.asarray(near[np.arange(len(near)), highest])


def basins_of(uphill: IntArray, reach: FloatArray) -> tuple[IntArray, IntArray]:
    """Follow the steps uphill to their ends: return the tops in the order of their reach, and the basin of every row.

    Examples
    --------
    >>> basins_of(np.array([1, 1, 1, 3, 3]), np.array([1.0, 0.5, 1.0, 0.2, 1.0]))
    (array([3, 1]), array([1, 1, 1, 0, 0]))
    """
    ends = uphill
    while not np.array_equal(further := ends[ends], ends):
        ends = further
    tops = np.flatnonzero(ends == np.arange(len(ends)))
    order = np.argsort(reach[tops], kind="stable")
    number = np.empty(len(tops), np.int64)
    number[order] = np.arange(len(tops))
    return tops[order], number[np.searchsorted(tops, ends)]


def links_part(
    neighbors: IntArray, first_row: int, groups: IntArray, n_groups: int, masses: IntArray | None = None
) -> csr_matrix:
    """Count the links of a part from group to group (n_groups, n_groups); rows do not link to themselves.

    With the `masses` (n,) of rows that have copies links are weighted: see `link_weights`.
    """
    from scipy.sparse import coo_matrix, csr_matrix

    listed = neighbors[:, 1:] if masses is None else neighbors
    weights = np.ones(listed.size, np.int64) if masses is None else link_weights(neighbors, masses).ravel()
    of_rows = np.repeat(groups[first_row : first_row + len(listed)], listed.shape[1])
    return csr_matrix(coo_matrix((weights, (of_rows, groups[listed.ravel()])), (n_groups, n_groups)))


def link_weights(neighbors: IntArray, masses: IntArray) -> IntArray:
    """Return the weight of every link of some rows (m, k) where rows have copies, in units of 1 / LINK_UNITS.

    A row steps to each of the k places on its list as often as these have rows: `masses` (n,) are the rows that equal
    each. It links to its own place only as far as that has more rows than the places around it on average, so that
    copies of everything change nothing, and rows without copies do not link to themselves.

    Examples
    --------
    >>> link_weights(np.array([[0, 1, 2]]), np.array([1, 1, 2])).tolist()
    [[0, 16384, 32768]]
    """
    shares = masses[neighbors].astype(np.float64)
    shares /= shares.sum(axis=1, keepdims=True)
    shares[:, 0] = np.maximum(0.0, shares[:, 0] - 1 / neighbors.shape[1])
    return np.rint(LINK_UNITS * shares).astype(np.int64)


def mass_degrees(neighbors: IntArray, first_row: int, masses: IntArray, first_copies: IntArray) -> IntArray:
    """Return the steps of a part to each place (n,), at its first row: the in-degree where rows have copies."""
    weights = masses[neighbors].astype(np.float64)
    weights = np.rint(LINK_UNITS * weights / weights.sum(axis=1, keepdims=True))
    places = neighbors.astype(np.int64)
    places[:, 0] = first_copies[first_row : first_row + len(neighbors)]
    return np.bincount(places.ravel(), weights.ravel(), len(masses)).astype(np.int64)


def add_links(links: list[csr_matrix]) -> csr_matrix:
    """Add the links of several parts."""
    total: csr_matrix = sum(links[1:], links[0])
    return total


def modularity(links: FloatArray) -> float:
    """Return the modularity of a partition from the symmetric links between its groups (K, K).

    Examples
    --------
    >>> modularity(np.array([[4.0, 0.0], [0.0, 4.0]]))
    0.5
    """
    total = links.sum()
    return float(np.trace(links) / total - ((links.sum(axis=1) / total) ** 2).sum()) if total > 0 else 0.0


def louvain(links: csr_matrix, most: int | None = None) -> IntArray:
    """Return the community of every node of a graph with symmetric integer weights (b, b), by Louvain's method.

    With `most` the method ends as soon as there are at most as many communities: each is a part of a final one.

    Examples
    --------
    >>> from scipy.sparse import csr_matrix
    >>> louvain(csr_matrix(np.array([[0, 9, 1, 0], [9, 0, 0, 0], [1, 0, 0, 9], [0, 0, 9, 0]])))
    array([0, 0, 1, 1])
    """
    communities, graph = np.arange(links.shape[0]), links
    while graph.sum() > 0 and (most is None or graph.shape[0] > most):
        labels = np.arange(graph.shape[0])
        graph.sort_indices()
        move_nodes(graph.indptr, graph.indices, graph.data, np.asarray(graph.sum(axis=1), float).ravel(), labels)
        present, labels = np.unique(labels, return_inverse=True)
        communities = labels[communities]
        if len(present) == graph.shape[0]:
            break
        graph = merged_links(graph, labels, len(present))
    return np.asarray(communities)


def merged_links(links: csr_matrix, groups: IntArray, n_groups: int) -> csr_matrix:
    """Sum links (b, b) over groups of their nodes (n_groups, n_groups)."""
    from scipy.sparse import csr_matrix

    members = csr_matrix((np.ones(len(groups), np.int64), (groups, np.arange(len(groups)))), (n_groups, len(groups)))
    return csr_matrix(members @ links @ members.T)


def settle_part(
    neighbors: IntArray, first_row: int, labels: IntArray, n_groups: int, masses: IntArray | None = None
) -> IntArray:
    """Move each row of a part to the group that its neighbors name more often than chance; return the new groups.

    Chance is the share of the rows that a group has. All rows move at once, so that the answer depends neither on their
    order nor on the parts; rows without a group (-1) keep none. With `masses` links count as in `link_weights`.

    Examples
    --------
    >>> settle_part(np.array([[0, 1], [1, 0], [2, 0], [3, 4], [4, 3]]), 0, np.array([0, 0, 1, 1, 1]), 2)
    array([0, 0, 0, 1, 1])
    """
    shares = np.bincount(labels[labels >= 0], minlength=n_groups) / max(1, len(labels))
    settled = labels[first_row : first_row + len(neighbors)].copy()
    weights = np.ones(neighbors.shape, np.int64) if masses is None else link_weights(neighbors, masses)
    if masses is None:
        weights[:, 0] = 0
    _vote(neighbors, weights, labels, shares, settled)
    return settled


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def _vote(neighbors: IntArray, weights: IntArray, labels: IntArray, shares: FloatArray, settled: IntArray) -> None:
    votes, k = np.zeros(len(shares)), neighbors.shape[1]
    for row in range(len(neighbors)):
        own = settled[row]
        if own < 0:
            continue
        total = max(1.0, float(weights[row].sum()))
        for at in range(k):
            group = labels[neighbors[row, at]]
            if group >= 0:
                votes[group] += weights[row, at]
        best, most = own, votes[own] / total - shares[own] + TIE
        for at in range(k):
            group = labels[neighbors[row, at]]
            if group >= 0:
                value = votes[group] / total - shares[group]
                if value > most or (value == most and group < best and best != own):
                    best, most = group, value
        for at in range(k):
            group = labels[neighbors[row, at]]
            if group >= 0:
                votes[group] = 0.0
        settled[row] = best


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def move_nodes(
    indptr: IntArray,
    indices: IntArray,
    links: IntArray,
    weights: FloatArray,
    labels: IntArray,
) -> None:
    """Move nodes, one after the other, to the group of largest gain in modularity, until none moves.

    Every node starts in a group of its own; `labels` (b,) are changed in place.
    """
    volumes, total = weights.copy(), weights.sum()
    linked = np.zeros(len(volumes))
    for _ in range(MAX_PASSES):
        n_moved = 0
        for node in range(len(labels)):
            own, weight = labels[node], weights[node]
            volumes[own] -= weight
            for at in range(indptr[node], indptr[node + 1]):
                if indices[at] != node:
                    linked[labels[indices[at]]] += links[at]
            best, gain = own, linked[own] - weight * volumes[own] / total
            for at in range(indptr[node], indptr[node + 1]):
                group = labels[indices[at]]
                value = linked[group] - weight * volumes[group] / total
                if value > gain + TIE * weight or (group < best and best != own and value >= gain):
                    best, gain = group, value
            for at in range(indptr[node], indptr[node + 1]):
                linked[labels[indices[at]]] = 0.0
            volumes[best] += weight
            if best != own:
                labels[node] = best
                n_moved += 1
        if n_moved == 0:
            return


def hierarchy(links: FloatArray, sizes: ArrayLike, groups: IntArray) -> IntArray:
    """Return the cluster of every part of a community (K, part) for K = 1, 2, ... clusters, one nested in the next.

    Parts are joined by their links relative to what their weights let expect: first those that are in one group at all
    levels of `groups` (level, part), each coarser than the one before. Clusters are numbered by their `sizes`, the
    largest first.

    Examples
    --------
    >>> links = np.array([[9.0, 1.0, 0.0], [1.0, 9.0, 2.0], [0.0, 2.0, 9.0]])
    >>> hierarchy(links, np.array([5, 4, 3]), np.array([[0, 0, 1]]))
    array([[0, 0, 0],
           [0, 0, 1],
           [0, 1, 2]])
    """
    K, cluster = len(links), np.arange(len(links))
    clusters = np.zeros((K, K), np.int64)
    links = links.copy()
    for n_clusters in range(K, 0, -1):
        order = np.argsort(-np.bincount(cluster, weights=np.asarray(sizes, float), minlength=K), kind="stable")
        present = order[np.isin(order, cluster)]
        clusters[n_clusters - 1] = np.argsort(present)[np.searchsorted(np.sort(present), cluster)]
        if n_clusters == 1:
            break
        first, second = next_join(links, np.unique(cluster), groups)
        join(links, first, second)
        cluster[cluster == second] = first
    return clusters


def next_join(links: FloatArray, present: IntArray, groups: IntArray) -> tuple[int, int]:
    """Return the two clusters to join: those of one group at most levels, then by their linkage."""
    weights = links.sum(axis=1)[present]
    linkage = links[np.ix_(present, present)] / np.maximum(np.outer(weights, weights), np.finfo(float).tiny)
    linkage += (groups[:, present, None] == groups[:, None, present]).sum(axis=0)  # linkages are far below 1
    linkage[np.tril_indices(len(present))] = -1
    first, second = np.unravel_index(int(linkage.argmax()), linkage.shape)
    return int(present[first]), int(present[second])


def join(links: FloatArray, first: int, second: int) -> None:
    """Add the links of one cluster to those of another, in place."""
    links[first] += links[second]
    links[:, first] += links[:, second]
    links[second], links[:, second] = 0, 0
