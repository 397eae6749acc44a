"""Other clusterings of the rows of a result: another number of clusters, or the other way to choose it.

They need no new graph and no new grid. What represents their clusters is stored; only its absorption is solved for, on
the workers, when it is first asked for. It is kept in the result, in the folder `at`, or in a temporary folder where
that cannot be written to.
"""

from collections.abc import Sequence
from dataclasses import replace

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import ArrayLike, IntArray
from cns_dask.errors import InvalidSettingError, NotAResultError, StoreError
from cns_dask.execution.compute import compute
from cns_dask.settings import Grid, Settings
from cns_dask.smoothing.communities import Communities
from cns_dask.smoothing.criterion import Choice
from cns_dask.smoothing.grid import Sources, sources_of
from cns_dask.smoothing.nodes import node_sets
from cns_dask.smoothing.partition import settled_clusters
from cns_dask.smoothing.reach import spread_reach
from cns_dask.smoothing.scales import Basis, Evidence, Selection, best_scale, select
from cns_dask.smoothing.solver import BLOCK_WIDTHS, solve_block, warn_if_not_converged
from cns_dask.smoothing.walk import order_rows, positions_in, walk_on
from cns_dask.storage.arrays import StoredArray, create_array, open_group, require_group
from cns_dask.storage.fingerprints import digest
from cns_dask.storage.locations import Location
from cns_dask.storage.store import ResultStore, TemporaryFolder

COMPLETE = "complete"  # attribute of a group whose absorption is all there: of which result it is


def stored_evidence(store: ResultStore, dimension: float | None, n_rows: int) -> Evidence:
    """The evidence for every number of clusters."""
    return Evidence(store.read("evidence"), store.read("evidence_with_borders"), dimension, n_rows)


def choice_at(
    store: ResultStore,
    grid: Grid,
    evidence: Evidence,
    selection: Selection,
    settings: Settings,
    n_clusters: int | None,
) -> Choice:
    """What a fit with these settings would have chosen, or with a given number of clusters."""
    basis = Basis(store.read("criterion"), evidence, grid, stored_communities(store, selection))
    if n_clusters is not None and not any(
        (basis.paper(n_clusters), best_scale(evidence, grid, [n_clusters]), basis.in_communities(n_clusters))
    ):
        raise InvalidSettingError(f"There are no {n_clusters} clusters: there are fewer candidates. Use fewer.")
    if settings.selection == "communities" and basis.communities is None:
        raise InvalidSettingError(
            "This result has no communities. Fit the data again with selection='auto' or selection='communities'."
        )
    return select(basis, settings.selection, n_clusters=n_clusters).used


def stored_communities(store: ResultStore, selection: Selection) -> Communities | None:
    """The communities of a result; None if none were looked for."""
    if "community_clusters" not in store or selection.communities is None:
        return None
    found = selection.communities
    clusters = store.read("community_clusters")
    return Communities(
        clusters,
        found.n_clusters,
        found.value,
        selection.ratio,
        selection.used == found,
        selection.hint,
        selection.confirmed,
        selection.stand,
    )


def sources_at(store: ResultStore, grid: Grid, choice: Choice) -> Sources:
    """The rows that represent the clusters of a choice, by their numbers among the clustered rows."""
    if choice.selection == "communities":
        return Sources(np.zeros(0, np.int64), np.zeros(0, np.int64))
    sources = sources_of(choice, grid, *(store.read(name) for name in ("picks", "candidates", "candidate_clusters")))
    if "rows" not in store:
        return sources
    numbers = da.searchsorted(store.open("rows"), da.from_array(sources.rows)).compute()
    return replace(sources, rows=np.asarray(numbers))


def absorption_at(store: ResultStore, choice: Choice, sources: Sources, tol: float, seed: int) -> StoredArray:
    """The absorption at the representatives of each cluster (n, K), solved for if it is not there yet."""
    folder, of_result = _place(store, choice)
    if _is_complete(folder, of_result):
        return StoredArray(open_group(folder, strict=True)["absorption"], owner=store)
    indices = store.array("graph/indices")
    by_cluster: Sequence[IntArray | int] = range(choice.n_clusters)
    members = None
    if choice.selection == "communities":
        first = store.array("first_copy") if "first_copy" in store else None
        members = store.array("communities"), store.read("community_clusters")[choice.n_clusters - 1], first
    else:
        by_cluster = sources.by_cluster()
    owner = None
    try:
        target = _create(folder, indices, len(by_cluster))
    except (OSError, StoreError):
        owner = TemporaryFolder()
        folder = owner.location / folder.name
        target = _create(folder, indices, len(by_cluster))
    width = BLOCK_WIDTHS[0]
    tasks = [
        dask.delayed(solve_on_graph)(
            indices, choice, by_cluster[start : start + width], members, tol, seed, target, start
        )
        for start in range(0, len(by_cluster), width)
    ]
    residual = float(np.max(compute(tasks, stage="absorption")))
    warn_if_not_converged(residual, "tol", tol, "memberships may be off by as much")
    open_group(folder, "r+").attrs.update({COMPLETE: of_result})
    return StoredArray(open_group(folder, strict=True)["absorption"], owner=owner or store)


def is_solved(store: ResultStore, choice: Choice) -> bool:
    """Whether the absorption of a choice is kept in the result, so that nothing has to be solved for."""
    return _is_complete(*_place(store, choice))


def _place(store: ResultStore, choice: Choice) -> tuple[Location, str]:
    """Where the absorption of a choice is kept, and the mark of the result that it belongs to."""
    name = f"{choice.selection}-{choice.n_neighbors}-{choice.lam:.6g}-{choice.n_clusters}"
    return store.location / "at" / name, digest(store.attributes.get("fingerprint"))


def _is_complete(folder: Location, of_result: str) -> bool:
    """Whether the absorption in a folder is all there, and of this result: one that was replaced may have left it."""
    return folder.exists("zarr.json") and open_group(folder).attrs.get(COMPLETE) == of_result


def _create(folder: Location, indices: StoredArray, n_clusters: int) -> StoredArray:
    """An array for the absorption, in chunks of rows as the graph has them."""
    for each in (folder.parent, folder):
        each.make()
        require_group(each)
    shape, chunks = (indices.shape[0], n_clusters), (indices.chunks[0], BLOCK_WIDTHS[0])
    return create_array(folder, "absorption", shape, chunks, "float64", compressed=True, dims=("row", "chosen"))


def solve_on_graph(
    indices: ArrayLike,
    choice: Choice,
    sources: Sequence[IntArray | int],
    members: tuple[ArrayLike, IntArray, ArrayLike | None] | None,
    tol: float,
    seed: int,
    target: StoredArray,
    start: int,
) -> float:
    """Solve for the representatives of some clusters on a stored graph and write P = lam x; the largest residual.

    With `members`, the part of a community that every row is in, the cluster of every part, and the first copies of
    rows, `sources` are numbers of clusters.
    """
    n_neighbors, lam = choice.n_neighbors, choice.lam
    unordered = walk_on(indices, n_neighbors).neighbors
    if members is not None:
        of_rows = settled_clusters(unordered, *checked_members(*members, len(unordered)))
        sources = [np.flatnonzero(of_rows == each) for each in sources]
    order = order_rows(unordered)
    walk, positions = walk_on(indices, n_neighbors, order), positions_in(order)
    nodes = node_sets(walk, seed, lam, tol)[0]
    block = solve_block(walk, [positions[each] for each in sources], np.array([lam]), nodes, tol)
    P = lam * block.values[0]
    spread_reach(walk, P, lam)
    target[:, start : start + len(sources)] = P[positions]
    return float(block.residuals.max())


def checked_members(
    parts: ArrayLike, clusters: IntArray, first_copy: ArrayLike | None, n_rows: int
) -> tuple[IntArray, IntArray, IntArray | None]:
    """Return the part of a community of every row and the first copies in memory, if they are numbers of these."""
    of_rows, first = np.asarray(parts[:]), None if first_copy is None else np.asarray(first_copy[:])
    is_known = of_rows.min() >= -1 and of_rows.max() < len(clusters)
    if not is_known or (first is not None and not (first.min() >= 0 and first.max() < n_rows)):
        raise NotAResultError("This is not a result of cns_dask: its communities are not those of its rows.")
    return of_rows, clusters, first
