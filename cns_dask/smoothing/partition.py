"""Communities on Dask: reductions over the parts of a walk, then one small task that examines their borders.

Rows are numbered by their position in the walk until the communities are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.execution.run import Piece, Run, RunningStage
from cns_dask.smoothing import borders, islands
from cns_dask.smoothing.borders import LinkDensities
from cns_dask.smoothing.candidates import in_degrees
from cns_dask.smoothing.communities import (
    JOINED_SWEEPS,
    LEAST_STRUCTURE_RATIO,
    MOST_PARTS,
    SWEEPS,
    Communities,
    add_links,
    basins_of,
    hierarchy,
    links_part,
    louvain,
    mass_degrees,
    merged_links,
    modularity,
    settle_part,
    uphill_part,
)
from cns_dask.smoothing.plan import SmoothingSizes, communities_stage
from cns_dask.smoothing.scales import join_small, walks_mix
from cns_dask.smoothing.start import StoredWalk, WalkFiles, add_counts, count_part, without_zeros, write_counts
from cns_dask.storage.arrays import StoredArray
from cns_dask.storage.chunks import row_slices
from cns_dask.storage.store import ResultWriter

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Smallest norm and deviation that rows and features are divided by.
TINY = float(np.finfo(np.float64).tiny)
#: Rows whose links are sampled for the density at borders.
LINK_ROWS = 20_000


@dataclass(frozen=True)
class Surroundings:
    """Points and distances of the rows of a walk; points are None where the caller gave a graph without them."""

    points: ArrayLike | None
    reach: ArrayLike  # distance to the last neighbor of each row, by position
    dimension: float | None  # intrinsic dimension
    copies: Copies | None = None  # None if all rows differ
    scale: FloatArray | None = None  # divided out of the features; None if they were projected too


@dataclass(frozen=True)
class Copies:
    """Rows that are equal, by position: the first of those that equal each, and their number."""

    first: ArrayLike
    masses: ArrayLike

    def loaded(self) -> Copies:
        """Return them in memory."""
        return Copies(np.asarray(self.first[:]), np.asarray(self.masses[:]))


@dataclass(frozen=True)
class ScaleClusters:
    """The clusters of the best scale, by the candidates of a walk."""

    positions: IntArray  # of the candidates
    clusters: IntArray  # -1 for outlying candidates
    is_clear: bool  # whether the gap of the rates is as large as it can be

    @property
    def n_clusters(self) -> int:
        """Number of clusters."""
        return int(self.clusters.max()) + 1


def find_communities(
    run: Run,
    sizes: SmoothingSizes,
    walk: StoredWalk,
    dimension: float | None,
    scale: ScaleClusters | None,
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
        The clusters of the best scale; None if scales see one cluster.
    least
        Fewest rows of a community; None: half of the neighbors of a row, below which links are mostly to other rows.
    """
    writer, files = run.writer, walk.files
    with run.stage(communities_stage(sizes)) as stage:
        around = _surroundings(stage, writer, files, dimension)
        copies = around.copies
        basins, n_basins = _climb(stage, files, around)
        links = _links(stage, files, basins, n_basins, copies)
        labels = stage.create("settled-0")
        write = Piece(group_basins, (links, basins, labels), ((labels, (slice(None),)),))
        ((n_groups, communities),) = stage.run("group", [write])
        for sweep in range(1, SWEEPS + 1):
            labels = _settle(stage, files, labels, n_groups, f"settled-{sweep}", copies)
        links = _links(stage, files, labels, n_groups, copies)
        least = least or round(sizes.copies * (files.neighbors.shape[1] // 2))
        target, members = stage.create("communities"), stage.create("members")
        whole = (slice(None),)
        piece = Piece(
            examine,
            (links, labels, communities, files, around, scale, least, target, members),
            ((target, whole), (members, whole)),
        )
        (found,) = stage.run("borders", [piece])
    return found, members


def _copies(stage: RunningStage, first_copy: StoredArray, files: WalkFiles) -> Copies:
    """Write the first of the rows that equal each, and their number, by position; a resumed run does so again."""
    copies = Copies(stage.create("first-at"), stage.create("masses"))
    stage.compute([stage.delayed("copies", write_copies, first_copy, files.positions, files.order, copies)])
    return copies


def _surroundings(stage: RunningStage, writer: ResultWriter, files: WalkFiles, dimension: float | None) -> Surroundings:
    """Write how far the neighbors of each row are, and its copies, by position."""
    reach, has_distances = stage.create("reach"), "graph/distances" in writer
    distances = writer.array("graph/distances") if has_distances else None
    stage.run("reach", [Piece(write_reach, (distances, files, reach), ((reach, (slice(None),)),))])
    copies = _copies(stage, writer.array("first_copy"), files) if "first_copy" in writer else None
    points = writer.array("points") if "points" in writer else None
    is_known = "transform/scale" in writer and "transform/components" not in writer
    scale = np.asarray(writer.array("transform/scale")[:]) if is_known else None
    return Surroundings(points, reach, dimension if has_distances else None, copies, scale)


def _climb(stage: RunningStage, files: WalkFiles, around: Surroundings) -> tuple[StoredArray, int]:
    """Find the basin of every row, and their number."""
    whole, degrees, uphill, basins = (slice(None),), *(stage.create(name) for name in ("degrees", "uphill", "basins"))
    regions, copies, reach = files.neighbors.regions(), around.copies, around.reach
    counts = [stage.delayed("degrees", count_degrees, files.neighbors, part[0], copies) for part in regions]
    total = stage.merged("degrees", counts, add_counts)
    stage.run("degrees", [Piece(write_counts, (total, degrees), ((degrees, whole),))])
    pieces = [
        Piece(climb_part, (files.neighbors, part[0], degrees, reach, uphill), ((uphill, part[:1]),)) for part in regions
    ]
    stage.run("climb", pieces)
    (n_basins,) = stage.run("basins", [Piece(write_basins, (uphill, reach, copies, basins), ((basins, whole),))])
    return basins, n_basins


def _links(stage: RunningStage, files: WalkFiles, groups: StoredArray, n_groups: int, copies: Copies | None) -> Any:
    """Return a task that counts the links between groups of rows, in both directions."""
    parts = [
        stage.delayed("links", count_links, files.neighbors, part[0], groups, n_groups, copies)
        for part in files.neighbors.regions()
    ]
    return stage.merged("links", parts, add_links)


def _settle(
    stage: RunningStage, files: WalkFiles, labels: StoredArray, n_groups: int, name: str, copies: Copies | None
) -> StoredArray:
    target = stage.create(name)
    shared = labels, n_groups, copies, target
    pieces = [
        Piece(settle_rows, (files.neighbors, part[0], *shared), ((target, part[:1]),), f"{name}-{at}")
        for at, part in enumerate(files.neighbors.regions())
    ]
    stage.run("settle", pieces)
    return target


def settle_members(
    stage: RunningStage, files: WalkFiles, members: StoredArray, clusters: IntArray, first_copy: StoredArray | None
) -> StoredArray:
    """Return the cluster of every row by position, from the clusters (part,) of a partition.

    Where parts were joined rows settle once more. It takes a moment, so a resumed run repeats it.
    """
    n_clusters, lists = int(clusters.max()) + 1, files.neighbors
    copies = None if first_copy is None else _copies(stage, first_copy, files)
    labels = stage.create("clusters-0")
    stage.compute([stage.delayed("settle", write_clusters, members, clusters, labels)])
    for sweep in range(1, JOINED_SWEEPS + 1) if n_clusters < len(clusters) else ():
        shared = labels, n_clusters, copies, (labels := stage.create(f"clusters-{sweep}"))
        stage.compute([stage.delayed("settle", settle_rows, lists, part[0], *shared) for part in lists.regions()])
    return labels


def write_reach(distances: ArrayLike | None, files: WalkFiles, target: StoredArray) -> None:
    """Write the distance of each row to its last neighbor by position; without distances the position itself."""
    n_rows, k = files.neighbors.shape
    if distances is None:
        target[:] = np.arange(n_rows)
        return
    parts = row_slices(n_rows, distances.chunks[0])
    target[:] = np.concatenate([np.asarray(distances[part])[:, k - 1] for part in parts])[np.asarray(files.order[:])]


def write_copies(first_copy: ArrayLike, positions: ArrayLike, order: ArrayLike, copies: Copies) -> None:
    """Write the first of the rows that equal each, and their number, by position."""
    first = np.asarray(positions[:]).astype(np.int64)[np.asarray(first_copy[:])[np.asarray(order[:])]]
    copies.first[:], copies.masses[:] = first, np.bincount(first, minlength=len(first))[first]


def count_degrees(neighbors: ArrayLike, part: slice, copies: Copies | None) -> tuple[IntArray, IntArray]:
    """Return the positions that some rows list, and how many of the rows list each."""
    if copies is None:
        return count_part(neighbors, part)
    known = copies.loaded()
    return without_zeros(mass_degrees(np.asarray(neighbors[part, :]), part.start, known.masses, known.first))


def masses_of(copies: Copies | None) -> IntArray | None:
    """Return the number of rows that equal each; None if all rows differ."""
    return None if copies is None else np.asarray(copies.masses[:])


def climb_part(neighbors: ArrayLike, part: slice, degrees: ArrayLike, reach: ArrayLike, target: StoredArray) -> None:
    """Write the steps uphill of some rows."""
    target[part] = uphill_part(np.asarray(neighbors[part, :]), np.asarray(degrees[:]), np.asarray(reach[:]))


def write_basins(uphill: ArrayLike, reach: ArrayLike, copies: Copies | None, target: StoredArray) -> int:
    """Write the basin of every row, copies that of the first; return their number."""
    steps = np.asarray(uphill[:])
    steps = steps if copies is None else steps[np.asarray(copies.first[:])]
    tops, basins = basins_of(steps, np.asarray(reach[:]))
    target[:] = basins
    return len(tops)


def count_links(
    neighbors: ArrayLike, part: slice, groups: ArrayLike, n_groups: int, copies: Copies | None
) -> csr_matrix:
    """Count the links of some rows between groups."""
    lists = np.asarray(neighbors[part, :])
    links = links_part(lists, part.start, np.asarray(groups[:]), n_groups, masses_of(copies))
    both: csr_matrix = (links + links.T).tocsr()
    return both


def group_basins(links: csr_matrix, basins: ArrayLike, target: StoredArray) -> tuple[int, IntArray]:
    """Write the part of a community that every row is in; return the number of parts, and the community of each."""
    parts = louvain(links, MOST_PARTS)
    n_parts = int(parts.max()) + 1
    target[:] = parts[np.asarray(basins[:])]
    return n_parts, louvain(merged_links(links, parts, n_parts))


def settle_rows(
    neighbors: ArrayLike, part: slice, labels: ArrayLike, n_groups: int, copies: Copies | None, target: StoredArray
) -> None:
    """Write the groups of some rows after they have settled."""
    lists = np.asarray(neighbors[part, :])
    target[part] = settle_part(lists, part.start, np.asarray(labels[:]), n_groups, masses_of(copies))


def write_clusters(members: ArrayLike, clusters: IntArray, target: StoredArray) -> None:
    """Write the cluster of every row from that of its part of a community."""
    target[:] = clusters_of(np.asarray(members[:]), clusters)


def clusters_of(communities: IntArray, clusters: IntArray) -> IntArray:
    """Return the cluster of every row; -1 where it has no community."""
    return np.append(clusters, -1)[communities]


def examine(  # noqa: PLR0913, PLR0917 - the arguments of a task
    links: csr_matrix,
    labels: ArrayLike,
    communities: IntArray,
    files: WalkFiles,
    around: Surroundings,
    scale: ScaleClusters | None,
    least: int,
    target: StoredArray,
    members: StoredArray,
) -> Communities:
    """Join small parts of communities, write that of every row, and find the communities that have borders."""
    parts, flows, kept = without_small(np.asarray(labels[:]), links.toarray().astype(np.float64), least)
    K, communities = len(flows), np.unique(communities[kept], return_inverse=True)[1]
    members[:] = parts
    target[:] = parts[np.asarray(files.positions[:])]
    sizes = np.bincount(parts[parts >= 0], minlength=K)
    member = (communities[None, :] == np.arange(communities.max() + 1)[:, None]).astype(float)
    joined = member @ flows @ member.T
    of_rows = clusters_of(parts, communities)
    ratio, groups, adds = find_borders(of_rows, joined, files, around, scale)
    stand = are_modular(ratio, around.dimension) and len(groups) == int(groups.max()) + 1
    coarse = groups[communities]
    groups = find_islands(parts, flows, coarse, files, around, ratio)
    n_clusters = int(groups.max()) + 1
    levels = np.stack([different(np.stack([communities, groups])), groups, coarse])
    return Communities(
        hierarchy(flows, sizes, levels),
        n_clusters,
        modularity(joined),
        ratio,
        adds or n_clusters > int(coarse.max()) + 1,
        "" if n_clusters > 1 else hint_of(files, around),
        scale is None or confirms(of_rows[scale.positions], scale.clusters),
        stand,
    )


def are_modular(ratio: float | None, dimension: float | None) -> bool:
    """Tell whether communities are as modular as those of data with clusters; in few dimensions that tells nothing."""
    return ratio is not None and ratio >= LEAST_STRUCTURE_RATIO and (dimension is None or walks_mix(dimension))


def hint_of(files: WalkFiles, around: Surroundings) -> str:
    """Say what another treatment of the features would show, from a sample of the rows; nothing if that is no more."""
    if around.points is None or not walks_mix(around.dimension):
        return ""
    order, scale = np.asarray(files.order[:]), around.scale
    rows = _rows_at(around.points, order[evenly(len(order), borders.STRUCTURE_ROWS)])
    treated = {"metric='cosine'": rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), TINY)}
    if scale is not None:
        is_scaled = not np.allclose(scale, scale[0])
        treated[f"scale={not is_scaled}"] = rows * scale if is_scaled else rows / np.maximum(rows.std(axis=0), TINY)
    found = {name: borders.number_of_clusters(each) for name, each in treated.items()}
    shown = [f"{name} there would be {number}" for name, number in found.items() if number > 1]
    return f"With {', and with '.join(shown)}." if shown else ""


def find_borders(
    labels: IntArray,
    flows: FloatArray,
    files: WalkFiles,
    around: Surroundings,
    scale: ScaleClusters | None,
) -> tuple[float | None, IntArray, bool]:
    """Group communities without a border between them.

    In many dimensions all communities stand if the graph is more modular than that of data without clusters, unless a
    clear scale and dips in density, seen with enough rows, agree on fewer clusters.

    Return the modularity relative to data without clusters, the group of every community, and whether dips in density
    separate more clusters than scales do. `labels` are the communities of the rows by position, `flows` their links.
    """
    ratio, groups, adds = None, np.arange(len(flows)), False
    order, places = np.asarray(files.order[:]), places_by_reach(around)
    if around.points is not None:
        counts: IntArray = np.ones(len(places), np.int64) if around.copies is None else counts_of(around.copies, places)
        sampled = evenly(len(places), borders.STRUCTURE_ROWS)
        ratio = borders.structure_ratio(_rows_at(around.points, order[places[sampled]]), counts[sampled])
    if around.dimension is not None and not walks_mix(around.dimension):
        groups, adds = split_scales(labels, files, around, scale, len(flows), places)
        return ratio, groups, adds
    stand = ratio is None or are_modular(ratio, around.dimension)
    some = places[evenly(len(places), borders.CENTER_ROWS)]  # without copies, which would look like peaks
    some = some[labels[some] >= 0]
    are_sure = scale is not None and scale.is_clear and len(some) >= borders.SURE_ROWS * len(flows)
    if around.points is not None and (are_sure or not stand):
        dips = borders.groups_between_dips(_rows_at(around.points, order[some]), labels[some], flows)
        if not stand or (scale is not None and int(dips.max()) + 1 == scale.n_clusters):
            groups = dips
    return ratio, groups, adds


def find_islands(
    parts: IntArray, flows: FloatArray, groups: IntArray, files: WalkFiles, around: Surroundings, ratio: float | None
) -> IntArray:
    """Split islands off groups of parts of communities; return the group of every part.

    Where the graph is more modular than that of data without clusters all communities stand, and nothing is split.
    """
    if around.points is None or around.dimension is None or ratio is None or are_modular(ratio, around.dimension):
        return groups
    places = places_by_reach(around)
    some = places[evenly(len(places), islands.ISLAND_ROWS)]
    some = some[parts[some] >= 0]
    return islands.with_islands(_rows_at(around.points, np.asarray(files.order[:])[some]), parts[some], flows, groups)


def confirms(communities: IntArray, clusters: IntArray) -> bool:
    """Tell whether communities are cut by few clusters of a scale, from those of its candidates.

    Modularity cuts more than there is, so clusters that cut communities are none. Most candidates must lie in the
    cluster that is the most frequent one of their community, and more than one cluster must be.

    Examples
    --------
    >>> confirms(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])), confirms(np.array([0, 0, 0]), np.array([0, 1, 2]))
    (True, False)
    """
    known = (communities >= 0) & (clusters >= 0)
    communities, clusters = communities[known], clusters[known]
    if not communities.size:
        return False
    of = majority(communities, clusters, np.zeros(int(communities.max()) + 1, np.int64))[communities]
    return bool((of == clusters).mean() > 0.5 and len(np.unique(of)) > 1)


def different(columns: IntArray) -> IntArray:
    """Return the number of each of some columns (., m) among the different ones.

    Examples
    --------
    >>> different(np.array([[0, 0, 1, 0], [1, 0, 0, 1]]))
    array([1, 0, 2, 1])
    """
    return np.asarray(np.unique(columns, axis=1, return_inverse=True)[1]).ravel()


def without_small(labels: IntArray, links: FloatArray, least: int) -> tuple[IntArray, FloatArray, IntArray]:
    """Join groups of fewer than `least` rows to those they have most links with; -1 if they have none.

    Return the group of every row, the links between groups, and the former number of each.
    """
    sizes = np.bincount(labels, minlength=len(links)).astype(float)
    group = join_small(links, sizes, least)
    if (group < 0).all():
        group = np.arange(len(links))
    present, joined = np.unique(group[group >= 0]), np.full(len(group), -1)
    joined[group >= 0] = np.searchsorted(present, group[group >= 0])
    member = (joined[None, :] == np.arange(len(present))[:, None]).astype(float)
    return joined[labels], member @ links @ member.T, present


def split_scales(
    labels: IntArray,
    files: WalkFiles,
    around: Surroundings,
    scale: ScaleClusters | None,
    n_communities: int,
    places: IntArray,
) -> tuple[IntArray, bool]:
    """Group communities that neither scales nor dips in density separate; and tell whether dips separate more."""
    assert around.dimension is not None
    some = np.sort(places[evenly(len(places), LINK_ROWS)])
    neighbors = _lists_at(files.neighbors, some)[:, 1:].astype(np.int64)
    k, reach = files.neighbors.shape[1], np.asarray(around.reach[:])
    smallest = reach[reach > 0].min(initial=np.inf)
    density = -around.dimension * np.log(np.maximum(reach, smallest if np.isfinite(smallest) else 1.0))
    if around.copies is not None:
        density += log_mass(files.neighbors, np.asarray(around.copies.masses[:]))
    first, second = np.repeat(labels[some], k - 1), labels[neighbors].ravel()
    of_links = np.minimum(np.repeat(density[some], k - 1), density[neighbors].ravel())
    known = (first >= 0) & (second >= 0)
    ends, share = (first[known], second[known]), len(some) / len(places)
    links = LinkDensities.of_links(ends, of_links[known], n_communities, len(places), k, share)
    dips = borders.groups_between_gaps(links)
    if scale is None:
        return dips, bool(dips.max() > 0)
    of_scale = majority(labels[scale.positions], scale.clusters, dips)
    both = refinement(of_scale, dips, np.bincount(labels[labels >= 0], minlength=n_communities))
    return both, bool(both.max() > np.unique(of_scale).size - 1)


def refinement(first: IntArray, second: IntArray, sizes: IntArray) -> IntArray:
    """Return the group of every community (m,) in the common refinement of two groupings.

    An intersection that is the largest part of neither of its groups is where they disagree on a border. It belongs to
    the largest part of its second group.

    Examples
    --------
    >>> refinement(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), np.array([9, 9, 1, 9]))
    array([0, 0, 0, 1])
    >>> refinement(np.array([0, 0, 1, 1]), np.array([0, 0, 0, 0]), np.array([9, 9, 1, 9]))
    array([0, 0, 1, 1])
    """
    both = different(np.stack([first, second]))
    rows = np.bincount(both, weights=sizes)
    of_first, of_second = (np.zeros(len(rows), np.int64) for _ in range(2))
    of_first[both], of_second[both] = first, second
    by_size = np.argsort(rows, kind="stable")
    largest_of_first, largest_of_second = (np.zeros(groups.max() + 1, np.int64) for groups in (first, second))
    largest_of_first[of_first[by_size]], largest_of_second[of_second[by_size]] = by_size, by_size
    parts = np.arange(len(rows))
    is_largest = (largest_of_first[of_first] == parts) | (largest_of_second[of_second] == parts)
    return different(np.where(is_largest, parts, largest_of_second[of_second])[both][None, :])


def places_by_reach(around: Surroundings) -> IntArray:
    """Return the positions of different rows by their reach, so that samples do not depend on the order of rows."""
    reach = np.asarray(around.reach[:])
    places = np.arange(len(reach)) if around.copies is None else places_of(around.copies)
    return places[np.argsort(reach[places], kind="stable")]


def places_of(copies: Copies) -> IntArray:
    """Return the positions of rows that no earlier row equals, ascending."""
    first = np.asarray(copies.first[:])
    return np.flatnonzero(first == np.arange(len(first)))


def counts_of(copies: Copies, places: IntArray) -> IntArray:
    """Return how often the rows at some positions stand for a row of their own: a whole table twice is no more rows."""
    masses: IntArray = np.asarray(copies.masses[:], np.int64)[places]
    return np.asarray(masses // np.gcd.reduce(masses))


def log_mass(neighbors: StoredArray, masses: IntArray) -> FloatArray:
    """Return the logarithm of the number of rows at the places on each list (n,)."""
    parts = (np.asarray(neighbors[part[0], :]) for part in neighbors.regions())
    return np.asarray(np.log(np.concatenate([masses[lists].sum(axis=1) for lists in parts])))


def _lists_at(neighbors: StoredArray, rows: IntArray) -> IntArray:
    """Return the lists of some rows in ascending order, part by part."""
    parts = [part[0] for part in neighbors.regions()]
    return np.concatenate(
        [np.asarray(neighbors[part, :])[rows[(rows >= part.start) & (rows < part.stop)] - part.start] for part in parts]
    )


def majority(communities: IntArray, clusters: IntArray, groups: IntArray) -> IntArray:
    """Return the most frequent cluster of the candidates in each community.

    Where a community has none, it is that of the candidates in its group, or else of all; `groups` are those of the
    communities.
    """
    known = (communities >= 0) & (clusters >= 0)
    counts = np.zeros((len(groups), int(clusters.max(initial=0)) + 1), np.int64)
    np.add.at(counts, (communities[known], clusters[known]), 1)
    of_groups = np.zeros((int(groups.max()) + 1, counts.shape[1]), np.int64)
    np.add.at(of_groups, groups, counts)
    of_groups[of_groups.sum(axis=1) == 0] = counts.sum(axis=0)
    has_none = counts.sum(axis=1) == 0
    counts[has_none] = of_groups[groups[has_none]]
    return np.asarray(counts.argmax(axis=1))


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
    different, at = np.unique(rows, return_inverse=True)
    return np.asarray(points[different, :], dtype=float)[at]


def settled_clusters(
    neighbors: IntArray, communities: IntArray, clusters: IntArray, first_copy: IntArray | None = None
) -> IntArray:
    """Return the cluster of every row from the clusters (part,) of a partition: see `settle_members`."""
    labels, n_clusters = clusters_of(communities, clusters), int(clusters.max()) + 1
    masses = None if first_copy is None else np.bincount(first_copy, minlength=len(first_copy))[first_copy]
    for _ in range(JOINED_SWEEPS) if n_clusters < len(clusters) else ():
        labels = settle_part(neighbors, 0, labels, n_clusters, masses)
    return labels


def prominent_members(labels: ArrayLike, files: WalkFiles, n_clusters: int) -> IntArray:
    """Return the row of largest in-degree in each cluster, the first of several."""
    of_rows, rows, neighbors = np.asarray(labels[:]), np.asarray(files.order[:]), files.neighbors
    degrees = np.zeros(len(rows), np.int64)
    for part in neighbors.regions():
        degrees += in_degrees(np.asarray(neighbors[part]), len(rows))
    by_degree = np.lexsort((rows, -degrees))
    return np.array([rows[by_degree[np.argmax(of_rows[by_degree] == each)]] for each in range(n_clusters)])
