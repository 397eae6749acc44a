"""Communities on Dask: reductions over the parts of a walk, then one small task that examines their borders.

Rows are numbered by their position in the walk until the communities are stored.
"""

from dataclasses import dataclass

import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.execution.run import Piece, Run, RunningStage
from cns_dask.smoothing import borders
from cns_dask.smoothing.borders import LinkDensities
from cns_dask.smoothing.candidates import in_degrees
from cns_dask.smoothing.communities import (
    LEAST_STRUCTURE_RATIO,
    SWEEPS,
    Communities,
    add_links,
    basins_of,
    hierarchy,
    links_part,
    louvain,
    modularity,
    settle_part,
    uphill_part,
)
from cns_dask.smoothing.plan import SmoothingSizes, communities_stage
from cns_dask.smoothing.scales import join_small, walks_mix
from cns_dask.smoothing.start import StoredWalk, WalkFiles, add_counts, count_part, write_counts
from cns_dask.storage.arrays import StoredArray

#: Rows whose links are sampled for the density at borders.
LINK_ROWS = 20_000


@dataclass(frozen=True)
class Surroundings:
    """Points and distances of the rows of a walk; None where the caller gave a graph without them."""

    points: ArrayLike | None
    distances: ArrayLike | None
    dimension: float | None  # intrinsic dimension


def find_communities(
    run: Run,
    sizes: SmoothingSizes,
    walk: StoredWalk,
    dimension: float | None,
    scale: IntArray | None,
    least: int | None,
) -> tuple[Communities, StoredArray]:
    """Find the communities of a walk, store that of every row, and examine their borders.

    Return them, and the community of every row by position.

    Parameters
    ----------
    run, sizes, walk
        The run, its sizes, and the walk.
    dimension
        The intrinsic dimension of the data, if it is known.
    scale
        The cluster of every candidate of the walk by its scale; None if scales see one cluster.
    least
        Fewest rows of a community; None: half of the neighbors of a row, below which links are mostly to other rows.
    """
    writer, files = run.writer, walk.files
    around = Surroundings(
        writer.array("points") if "points" in writer else None,
        writer.array("graph/distances") if "graph/distances" in writer else None,
        dimension,
    )
    with run.stage(communities_stage(sizes)) as stage:
        basins, n_basins = _climb(stage, files)
        links = _links(stage, files, basins, n_basins)
        labels = stage.create("settled-0")
        write = Piece(group_basins, (links, basins, labels), ((labels, (slice(None),)),))
        (n_groups,) = stage.run("group", [write])
        for sweep in range(1, SWEEPS + 1):
            labels = _settle(stage, files, labels, n_groups, f"settled-{sweep}")
        links = _links(stage, files, labels, n_groups)
        least = least or files.neighbors.shape[1] // 2
        candidates = None if scale is None else (walk.start.positions, scale)
        target, members = stage.create("communities"), stage.create("members")
        whole = (slice(None),)
        piece = Piece(
            examine,
            (links, labels, files, around, candidates, least, target, members),
            ((target, whole), (members, whole)),
        )
        (found,) = stage.run("borders", [piece])
    return found, members


def _climb(stage: RunningStage, files: WalkFiles) -> tuple[StoredArray, int]:
    """Find the basin of every row, and their number."""
    whole, degrees, uphill, basins = (slice(None),), *(stage.create(name) for name in ("degrees", "uphill", "basins"))
    regions = files.neighbors.regions()
    counts = [stage.delayed("degrees", count_part, files.neighbors, part[0]) for part in regions]
    total = stage.merged("degrees", counts, add_counts)
    stage.run("degrees", [Piece(write_counts, (total, degrees), ((degrees, whole),))])
    pieces = [Piece(climb_part, (files.neighbors, part[0], degrees, uphill), ((uphill, part[:1]),)) for part in regions]
    stage.run("climb", pieces)
    (n_basins,) = stage.run("basins", [Piece(write_basins, (uphill, basins), ((basins, whole),))])
    return basins, n_basins


def _links(stage: RunningStage, files: WalkFiles, groups: StoredArray, n_groups: int) -> object:
    """Return a task that counts the links between groups of rows, in both directions."""
    parts = [
        stage.delayed("links", count_links, files.neighbors, part[0], groups, n_groups)
        for part in files.neighbors.regions()
    ]
    return stage.merged("links", parts, add_links)


def _settle(stage: RunningStage, files: WalkFiles, labels: StoredArray, n_groups: int, name: str) -> StoredArray:
    target = stage.create(name)
    pieces = [
        Piece(settle_rows, (files.neighbors, part[0], labels, n_groups, target), ((target, part[:1]),), f"{name}-{at}")
        for at, part in enumerate(files.neighbors.regions())
    ]
    stage.run("settle", pieces)
    return target


def settle_members(stage: RunningStage, files: WalkFiles, members: StoredArray, clusters: IntArray) -> StoredArray:
    """Return the cluster of every row by position, from the clusters (community,) of a partition.

    Where communities were joined, rows settle once more. It takes a moment, so a resumed run repeats it.
    """
    n_clusters = int(clusters.max()) + 1
    labels = stage.create("clusters-0")
    stage.compute([stage.delayed("settle", write_clusters, members, clusters, labels)])
    for sweep in range(1, SWEEPS + 1) if n_clusters < len(clusters) else ():
        target, lists = stage.create(f"clusters-{sweep}"), files.neighbors
        parts = [part[0] for part in lists.regions()]
        stage.compute([stage.delayed("settle", settle_rows, lists, part, labels, n_clusters, target) for part in parts])
        labels = target
    return labels


def climb_part(neighbors: ArrayLike, part: slice, degrees: ArrayLike, target: StoredArray) -> None:
    """Write the steps uphill of some rows."""
    target[part] = uphill_part(np.asarray(neighbors[part, :]), part.start, np.asarray(degrees[:]))


def write_basins(uphill: ArrayLike, target: StoredArray) -> int:
    """Write the basin of every row; return their number."""
    tops, basins = basins_of(np.asarray(uphill[:]))
    target[:] = basins
    return len(tops)


def count_links(neighbors: ArrayLike, part: slice, groups: ArrayLike, n_groups: int) -> object:
    """Count the links of some rows between groups."""
    links = links_part(np.asarray(neighbors[part, :]), part.start, np.asarray(groups[:]), n_groups)
    return (links + links.T).tocsr()


def group_basins(links: object, basins: ArrayLike, target: StoredArray) -> int:
    """Write the community of every row from those of the basins; return their number."""
    communities = louvain(links)  # type: ignore[arg-type]
    target[:] = communities[np.asarray(basins[:])]
    return int(communities.max()) + 1


def settle_rows(neighbors: ArrayLike, part: slice, labels: ArrayLike, n_groups: int, target: StoredArray) -> None:
    """Write the groups of some rows after they have settled."""
    target[part] = settle_part(np.asarray(neighbors[part, :]), part.start, np.asarray(labels[:]), n_groups)


def write_clusters(members: ArrayLike, clusters: IntArray, target: StoredArray) -> None:
    """Write the cluster of every row from that of its community."""
    target[:] = clusters_of(np.asarray(members[:]), clusters)


def clusters_of(communities: IntArray, clusters: IntArray) -> IntArray:
    """Return the cluster of every row; -1 where it has no community."""
    return np.append(clusters, -1)[communities]


def examine(
    links: object,
    labels: ArrayLike,
    files: WalkFiles,
    around: Surroundings,
    candidates: tuple[IntArray, IntArray] | None,
    least: int,
    target: StoredArray,
    members: StoredArray,
) -> Communities:
    """Join small communities, write that of every row, and find the clusters that have borders."""
    counts: FloatArray = links.toarray().astype(np.float64)  # type: ignore[attr-defined]
    labels, flows = without_small(np.asarray(labels[:]), counts, least)
    K = len(flows)
    members[:] = labels
    target[:] = labels[np.asarray(files.positions[:])]
    sizes = np.bincount(labels[labels >= 0], minlength=K)
    ratio, groups, adds = None, np.arange(K), False
    some = evenly(len(labels), borders.CENTER_ROWS)
    rows = np.asarray(files.order[:])[some]
    if around.points is not None:
        ratio = borders.structure_ratio(_rows_at(around.points, rows[evenly(len(rows), borders.STRUCTURE_ROWS)]))
    if around.dimension is not None and around.distances is not None and not walks_mix(around.dimension):
        groups, adds = split_scales(labels, files, around, candidates, K)
    elif around.points is not None and ratio is not None and ratio < LEAST_STRUCTURE_RATIO:
        known = labels[some] >= 0
        groups = borders.groups_between_dips(_rows_at(around.points, rows[known]), labels[some][known], flows)
    clusters = hierarchy(flows, sizes, groups)
    return Communities(clusters, int(groups.max()) + 1, modularity(flows), ratio, adds)


def without_small(labels: IntArray, links: FloatArray, least: int) -> tuple[IntArray, FloatArray]:
    """Join communities of fewer than `least` rows to those they have most links with; -1 if they have none."""
    sizes = np.bincount(labels, minlength=len(links)).astype(float)
    group = join_small(links, sizes, least)
    if (group < 0).all():
        group = np.arange(len(links))
    present, joined = np.unique(group[group >= 0]), np.full(len(group), -1)
    joined[group >= 0] = np.searchsorted(present, group[group >= 0])
    member = (joined[None, :] == np.arange(len(present))[:, None]).astype(float)
    return joined[labels], member @ links @ member.T


def split_scales(
    labels: IntArray,
    files: WalkFiles,
    around: Surroundings,
    candidates: tuple[IntArray, IntArray] | None,
    n_communities: int,
) -> tuple[IntArray, bool]:
    """Group communities that neither scales nor dips in density separate; and tell whether dips separate more."""
    assert around.dimension is not None
    assert around.distances is not None
    some = evenly(len(labels), LINK_ROWS)
    neighbors = _lists_at(files.neighbors, some)[:, 1:].astype(np.int64)
    k, order = files.neighbors.shape[1], np.asarray(files.order[:])
    reach = np.empty(len(labels))
    step = getattr(around.distances, "chunks", (len(labels),))[0]
    for start in range(0, len(labels), step):
        reach[start : start + step] = np.asarray(around.distances[start : start + step])[:, k - 1]
    smallest = reach[reach > 0].min(initial=np.inf)
    density = -around.dimension * np.log(np.maximum(reach, smallest if np.isfinite(smallest) else 1.0))[order]
    first, second = np.repeat(labels[some], k - 1), labels[neighbors].ravel()
    of_links = np.minimum(np.repeat(density[some], k - 1), density[neighbors].ravel())
    known = (first >= 0) & (second >= 0)
    ends, share = (first[known], second[known]), len(some) / len(labels)
    links = LinkDensities.of_links(ends, of_links[known], n_communities, len(labels), k, share)
    dips = borders.groups_between_gaps(links)
    if candidates is None:
        return dips, bool(dips.max() > 0)
    scale = majority(labels[candidates[0]], candidates[1], n_communities)
    both = np.unique(np.stack([scale, dips]), axis=1, return_inverse=True)[1].ravel()
    return both, bool(both.max() > np.unique(scale).size - 1)


def _lists_at(neighbors: StoredArray, rows: IntArray) -> IntArray:
    """Return the lists of some rows in ascending order, part by part."""
    parts = [part[0] for part in neighbors.regions()]
    return np.concatenate(
        [np.asarray(neighbors[part, :])[rows[(rows >= part.start) & (rows < part.stop)] - part.start] for part in parts]
    )


def majority(communities: IntArray, clusters: IntArray, n_communities: int) -> IntArray:
    """Return the most frequent cluster of the candidates in each community; that of all where it has none."""
    known = (communities >= 0) & (clusters >= 0)
    counts = np.zeros((n_communities, int(clusters.max(initial=0)) + 1), np.int64)
    np.add.at(counts, (communities[known], clusters[known]), 1)
    counts[counts.sum(axis=1) == 0] = counts.sum(axis=0)
    return np.asarray(counts.argmax(axis=1))


def settled_clusters(neighbors: IntArray, communities: IntArray, clusters: IntArray) -> IntArray:
    """Return the cluster of every row from the clusters (community,) of a partition: see `settle_members`."""
    labels, n_clusters = clusters_of(communities, clusters), int(clusters.max()) + 1
    for _ in range(SWEEPS) if n_clusters < len(clusters) else ():
        labels = settle_part(neighbors, 0, labels, n_clusters)
    return labels


def evenly(n_rows: int, limit: int) -> IntArray:
    """Return at most `limit` evenly spaced numbers below `n_rows`.

    Examples
    --------
    >>> evenly(10, 4)
    array([0, 2, 5, 7])
    """
    count = min(limit, n_rows)
    return np.arange(count) * n_rows // count


def _rows_at(points: ArrayLike, rows: IntArray) -> FloatArray:
    """Return some rows, in their order."""
    by_number = np.argsort(rows)
    found = np.empty((len(rows), points.shape[1]))
    found[by_number] = np.asarray(points[rows[by_number], :], dtype=float)
    return found


def prominent_members(labels: ArrayLike, files: WalkFiles, n_clusters: int) -> IntArray:
    """Return the row of largest in-degree in each cluster, the first of several."""
    of_rows, rows, neighbors = np.asarray(labels[:]), np.asarray(files.order[:]), files.neighbors
    degrees = np.zeros(len(rows), np.int64)
    for part in neighbors.regions():
        degrees += in_degrees(np.asarray(neighbors[part]), len(rows))
    by_degree = np.lexsort((rows, -degrees))
    return np.array([rows[by_degree[np.argmax(of_rows[by_degree] == each)]] for each in range(n_clusters)])
