"""The grid: absorption and criterion of every (k, lam), the choice, and the picks that are kept.

A task solves one block of candidates for all lam and writes their absorption to scratch by chunks of rows: of all rows,
or, where these are many, of some that stand for all, and of the candidates themselves. When the blocks of a k are
there, its chunks are reduced to sums and inner products, these to picks, and these to the criterion. No k waits for
another. Its absorption is removed as soon as its criterion is known, and Dask works on one k after the other where it
can, so that with few workers hardly more than one of them is on disk.

All of this is sums over rows, so absorption stays in the order of the walk. What is kept goes back to row order.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.errors import InvalidSettingError
from cns_dask.execution.cluster import processes
from cns_dask.execution.plan import Stage
from cns_dask.execution.run import MISSING_RECORD, Piece, Run, RunningStage
from cns_dask.settings import Grid
from cns_dask.smoothing import criterion, picks, scales, solver
from cns_dask.smoothing.candidates import Candidates
from cns_dask.smoothing.communities import Communities
from cns_dask.smoothing.criterion import Choice, Criterion
from cns_dask.smoothing.partition import ScaleClusters, find_communities, prominent_members, settle_members
from cns_dask.smoothing.plan import (
    SmoothingSizes,
    absorption_stage,
    community_k,
    evaluate_stage,
    narrow,
    sizes_of_one,
    tighten_stage,
    with_counts,
)
from cns_dask.smoothing.reach import spread_reach
from cns_dask.smoothing.scales import Basis, Chain, Selection
from cns_dask.smoothing.start import StoredWalk, WalkFiles, start_walks
from cns_dask.storage.arrays import StoredArray
from cns_dask.storage.chunks import row_slices
from cns_dask.storage.fingerprints import digest
from cns_dask.storage.records import recordable


@recordable
@dataclass(frozen=True)
class GridPoints:
    """The grid points of one k: criterion, picked candidates (lam, K), and the chain."""

    criterion: Criterion
    picked: IntArray
    chain: Chain


@recordable
@dataclass(frozen=True)
class Evaluation:
    """Criterion, picked rows and rows of the smallest cluster of every grid point (k, lam, K), and the scales.

    `clusters` (k, K, candidate) are those of the candidates (k, candidate) if there are K of them, by their scale; -1
    where there is none.
    """

    surface: FloatArray
    parts: FloatArray  # the criterion of every part of the rows (part, k, lam, K)
    picks: IntArray
    smallest: IntArray
    candidates: IntArray
    clusters: IntArray
    rates: FloatArray  # rates of the chain (k, K), NaN where there is none
    residual: float  # largest residual of the absorption, and the most passes that a block has needed
    n_passes: int


@dataclass(frozen=True)
class Sources:
    """Rows that represent clusters, and the cluster of each: one for a cluster, or several."""

    rows: IntArray
    clusters: IntArray

    def by_cluster(self) -> list[IntArray]:
        """The rows of each cluster."""
        return [self.rows[self.clusters == each] for each in range(int(self.clusters.max()) + 1)]


@recordable
@dataclass(frozen=True)
class GridResult:
    """What the grid has shown."""

    evaluation: Evaluation
    selection: Selection
    evidence: FloatArray  # for every k and K (k, K), and what is left of it with borders
    evidence_with_borders: FloatArray
    rows: IntArray  # the rows that represent the chosen clusters, and the cluster of each
    clusters: IntArray
    representatives: IntArray  # the one of largest in-degree in each cluster
    n_candidates: dict[int, int]  # candidates of every k, and local maxima of which they were taken
    n_maxima: dict[int, int]
    #: Largest residual of the absorption that the grid was evaluated with, and of that which is kept
    grid_residual: float
    residual: float
    n_passes: int  # most products with W that a block has needed
    communities: Communities | None = None  # None if they were not looked for


def search_grid(  # noqa: PLR0913 - one parameter per setting
    run: Run,
    sizes: SmoothingSizes,
    *,
    selection: str,
    n_clusters: int | None,
    min_cluster_size: int | None,
    max_candidates: int,
    grid_tol: float,
    tol: float,
    seed: int,
) -> GridResult:
    """Evaluate all grid points, choose, and keep the absorption at the representatives of the chosen clusters."""
    nodes_tol = tol if sizes.tightens else grid_tol  # what is tightened is solved just as if all were
    walks, dimension = start_walks(run, sizes, max_candidates, nodes_tol, seed, cover=selection != "paper")
    counts = {k: len(walk.start.candidates.rows) for k, walk in walks.items()}
    _check_enough(counts, n_clusters)
    sizes = with_widths(run, with_counts(sizes, counts))
    evaluated = evaluate(run, sizes, walks, grid_tol, min_cluster_size, evaluate_stage(sizes))
    if sizes.tightens:
        evaluated = tighten(run, sizes, walks, evaluated, tol=tol, least=min_cluster_size, n_clusters=n_clusters)
    evaluation = assemble(sizes, walks, evaluated)
    chains = [evaluated[k].points.chain for k in sizes.grid.ks]
    evidence = scales.evidence_of(chains, dimension, sizes.n_rows, sizes.grid.max_scale, sizes.grid.few_scale)
    communities, members = None, None
    if sizes.communities:
        walk = walks[community_k(sizes.grid)]
        scale = None
        if selection == "auto":
            scale = clusters_of_scale(evidence, sizes.grid, chains, walk.start.positions)
        communities, members = find_communities(run, sizes, walk, dimension, scale, min_cluster_size)
    basis = Basis(evaluation.surface, evidence, sizes.grid, communities)
    selected = scales.select(basis, selection, n_clusters=n_clusters)
    walk = walks[selected.used.n_neighbors]
    if selected.used.selection == "communities":
        assert communities is not None
        assert members is not None
        clusters = communities.clusters[selected.used.n_clusters - 1]
        first = run.writer.array("first_copy") if "first_copy" in run.writer else None
        kept = keep_members(run, sizes, walk, selected.used, (members, clusters, first), tol)
        representatives, residual, n_passes = kept
        sources = Sources(representatives, np.arange(len(representatives)))
    else:
        sources = sources_of(selected.used, sizes.grid, evaluation.picks, evaluation.candidates, evaluation.clusters)
        representatives = most_prominent_sources(sources, walk.start.candidates)
        residual, n_passes = keep_absorption(run, sizes, walk, selected.used, sources, tol)
    return GridResult(
        evaluation,
        selected,
        evidence.values,
        evidence.with_borders,
        sources.rows,
        sources.clusters,
        representatives,
        counts,
        {k: walk.start.candidates.n_maxima for k, walk in walks.items()},
        evaluation.residual,
        residual,
        max(n_passes, evaluation.n_passes),
        communities,
    )


def clusters_of_scale(
    evidence: scales.Evidence, grid: Grid, chains: list[Chain], positions: IntArray
) -> ScaleClusters | None:
    """Return the clusters of the best scale, at the k of communities; None where it has no borders.

    Where walks mix it need not have borders, because communities must confirm it.
    """
    best = scales.best_scale(evidence, grid, range(1, len(evidence.total) + 1))
    clusters = chains[grid.ks.index(community_k(grid))].clusters
    if best is None or not evidence.has_structure or best.n_clusters > len(clusters):
        return None
    if not evidence.mixes and not evidence.has_borders(best.n_clusters):
        return None
    is_clear = scales.clarity(chains, best.n_clusters, evidence.dimension) >= scales.CLEAR
    return ScaleClusters(positions, np.asarray(clusters[best.n_clusters - 1]), is_clear)


def with_widths(run: Run, sizes: SmoothingSizes) -> SmoothingSizes:
    """The sizes with blocks as wide as suits the threads that there are; a resumed run takes those it began with."""
    widths = run.load("widths", is_told=False)  # it is no work that was done
    if widths is None:
        narrowed = narrow(sizes, sum(threads for _, threads, _ in processes()))
        widths = run.save("widths", narrowed.widths or (), drop_scratch=False)
    return replace(sizes, widths=tuple(widths) or None)


def sources_of(choice: Choice, grid: Grid, picks: IntArray, candidates: IntArray, clusters: IntArray) -> Sources:
    """The rows that represent the clusters of a choice: the picks, or all candidates of each cluster."""
    at, K = grid.ks.index(choice.n_neighbors), choice.n_clusters
    if choice.selection == "paper" or K == 1:
        return Sources(picks[at, grid.lams.index(choice.lam), :K], np.arange(K))
    of_candidates = clusters[at, K - 1]
    return Sources(candidates[at][of_candidates >= 0], of_candidates[of_candidates >= 0])


def most_prominent_sources(sources: Sources, candidates: Candidates) -> IntArray:
    """The row of largest in-degree among those that represent each cluster, the first of several."""
    degrees = dict(zip(candidates.rows.tolist(), candidates.degrees.tolist(), strict=True))
    return np.array([max(rows.tolist(), key=lambda row: (degrees[row], -row)) for rows in sources.by_cluster()])


def _check_enough(counts: dict[int, int], n_clusters: int | None) -> None:
    largest = max(counts.values())
    if n_clusters is not None and n_clusters > largest:
        raise InvalidSettingError(
            f"n_clusters must be at most the number of candidates ({largest}). Got {n_clusters}. "
            "Use fewer clusters, a smaller n_neighbors (more local maxima), or a larger max_candidates."
        )


@dataclass(frozen=True)
class EvaluatedK:
    """The grid points of one k, the largest residual of their absorption, and the most passes that a block took."""

    points: GridPoints
    residual: float
    n_passes: int


def evaluate(
    run: Run, sizes: SmoothingSizes, walks: dict[int, StoredWalk], tol: float, least: int | None, stage: Stage
) -> dict[int, EvaluatedK]:
    """Evaluate every (k, lam) of the grid, and the chain of every k; `least` rows make a cluster."""
    with run.stage(stage) as running:
        evaluations = [_GridPointsOfK(running, k, walks[k], sizes, tol, least) for k in sizes.grid.ks]
        for each, value in zip(evaluations, running.recorded([each.end for each in evaluations]), strict=True):
            each.resume(run, value)
        tasks = {task.key: (each, at, task) for each in evaluations for at, task in each.solves.items()}
        tasks |= {each.task.key: (each, None, each.task) for each in evaluations if each.task is not None}
        ordered = list(tasks.values())  # Dask gets all solves before the criterion of any k

        def finished(position: int) -> None:
            each, block, _ = ordered[position]
            if block is None:
                run.writer.drop_scratch(each.name)

        for (each, block, _), value in zip(
            ordered, running.compute([item[2] for item in ordered], finished), strict=True
        ):
            each.take(block, value)
    return {each.k: each.evaluated() for each in evaluations}


def tighten(
    run: Run,
    sizes: SmoothingSizes,
    walks: dict[int, StoredWalk],
    evaluated: dict[int, EvaluatedK],
    *,
    tol: float,
    least: int | None,
    n_clusters: int | None,
) -> dict[int, EvaluatedK]:
    """Evaluate anew, to `tol`, the k that wins, and every other that could: until the choice is certain.

    How far the criterion of a k is off before it is tightened is measured by those that have been.
    """
    grid, tight, error = sizes.grid, set[int](), 0.0
    while True:
        surface = np.array([evaluated[k].points.criterion.values for k in grid.ks])
        allowed = slice(None) if n_clusters is None else slice(n_clusters - 1, n_clusters)
        best = {k: float(np.nanmax(surface[at, :, allowed], initial=-np.inf)) for at, k in enumerate(grid.ks)}
        undecided = [k for k in grid.ks if k not in tight and best[k] + 2 * error >= max(best.values())]
        if not undecided:
            return evaluated
        k = max(undecided, key=best.__getitem__)
        one = sizes_of_one(sizes, k)
        again = evaluate(run, one, walks, tol, least, tighten_stage(sizes, k))[k]
        change = again.points.criterion.values - evaluated[k].points.criterion.values
        error = max(error, float(np.nanmax(np.abs(change), initial=0.0)))
        evaluated = {**evaluated, k: again}
        tight.add(k)


def assemble(sizes: SmoothingSizes, walks: dict[int, StoredWalk], evaluated: dict[int, EvaluatedK]) -> Evaluation:
    """All grid points in arrays."""
    grid = sizes.grid
    shape = (len(grid.ks), len(grid.lams), grid.max_clusters)
    surface, picked_rows, smallest = np.full(shape, np.nan), np.full(shape, -1), np.zeros(shape, np.int64)
    parts = np.full((criterion.PARTS, *shape), np.nan)
    n_most = max(len(walk.start.candidates.rows) for walk in walks.values())
    candidates = np.full((len(grid.ks), n_most), -1)
    clusters = np.full((len(grid.ks), grid.max_scale, n_most), -1)
    rates = np.full((len(grid.ks), grid.max_scale + 1), np.nan)
    for at, k in enumerate(grid.ks):
        points = evaluated[k].points
        surface[at], smallest[at] = points.criterion.values, points.criterion.smallest
        parts[:, at] = points.criterion.parts
        rows = walks[k].start.candidates.rows
        picked_rows[at, :, : points.picked.shape[1]] = rows[points.picked]
        candidates[at, : len(rows)] = rows
        clusters[at, : len(points.chain.clusters), : len(rows)] = points.chain.clusters
        some = points.chain.rates[: grid.max_scale + 1]
        rates[at, : len(some)] = some
    residual = float(np.max([each.residual for each in evaluated.values()]))  # a NaN stays one
    n_passes = max(each.n_passes for each in evaluated.values())
    return Evaluation(surface, parts, picked_rows, smallest, candidates, clusters, rates, residual, n_passes)


class _GridPointsOfK:
    """The grid points of one k: their solves and their criterion, recorded or to be computed."""

    def __init__(
        self,
        stage: RunningStage,
        k: int,
        walk: StoredWalk,
        sizes: SmoothingSizes,
        tol: float,
        min_cluster_size: int | None,
    ) -> None:
        self._stage, self.k, self._grid, self.name = stage, k, sizes.grid, f"absorption-{k}"
        self._least_rows = min_cluster_size or scales.least_rows(round(k * sizes.copies), sizes.n_rows)
        self._is_asked = min_cluster_size is not None
        #: Candidates that are near each other share a block.
        self._near = np.argsort(walk.start.positions)
        positions = self._positions = walk.start.positions[self._near]
        self._scratch, self._sizes = stage.create(self.name), sizes
        rows = None if sizes.keeps_all_rows else kept_positions(sizes, positions)
        pieces = _solve_pieces(walk, positions, sizes.grid.lams, tol, sizes.width_of(k), self._scratch, k, rows)
        self._pieces = stage.named("solve", pieces)
        self.end = stage.named("choose", [Piece(tuple, (), record=str(k))])[0]
        self.value: Any = MISSING_RECORD
        self.solved: list[Any] = []
        self.solves: dict[int, Any] = {}
        self.task: Any = None

    def resume(self, run: Run, value: Any) -> None:
        """Take what an earlier run has recorded, and make tasks of the rest."""
        if value is not MISSING_RECORD:
            self.value, self.solved = value, self._stage.recorded(self._pieces, check=False)
            run.writer.drop_scratch(self.name)
            if not any(each is MISSING_RECORD for each in self.solved):
                return
            self._scratch = self._stage.create(self.name)
        self.solved = self._stage.recorded(self._pieces)
        missing = [at for at, each in enumerate(self.solved) if each is MISSING_RECORD]
        self.solves = {at: self._stage.task("solve", self._pieces[at]) for at in missing}
        self.task = self._end_task([self.solves.get(at, each) for at, each in enumerate(self.solved)])

    def _end_task(self, blocks: list[Any]) -> Any:
        """Task: criterion (lam, K) and picked candidates (lam, K), once all blocks are there.

        Every chunk depends on the blocks themselves, not on one task that gathers them: all chunks would go to where
        that ran.
        """
        task, scratch, grid, sizes = self._stage.delayed, self._scratch, self._grid, self._sizes
        slots = np.argsort(self._near)  # where each candidate stands in the scratch array
        n_rows, parts = sizes.n_rows, row_slices(sizes.kept_rows, scratch.chunks[2])
        grams = [task("gram", gram_of_rows, blocks, scratch, rows, self._positions) for rows in parts]
        gram = self._stage.merged("gram", grams, picks.sum_grams)
        if not sizes.keeps_all_rows:
            gram = task("gram", gram_of_all, gram, blocks, scratch, n_rows, sizes.kept_rows)
        picked = task("criterion", picks.picks_of_lams, gram, slots, grid.max_clusters)
        largest = [
            task("criterion", criterion.largest_memberships_block, scratch, rows, slots, picked) for rows in parts
        ]
        of_grid = n_rows, sizes.kept_rows, self.k, grid.lams, grid.max_clusters
        values = task("criterion", criterion.criterion_of_lams, largest, *of_grid)
        chain = task("criterion", chain_of_candidates, gram, slots, self._least_rows, grid.max_scale, self._is_asked)
        end = Piece(grid_points, (values, picked, chain), record=self.end.record)
        return self._stage.task("choose", end)

    def evaluated(self) -> EvaluatedK:
        """What is known when all is done."""
        residuals, passes, _ = zip(*self.solved, strict=True)
        return EvaluatedK(self.value, float(np.max(residuals)), max(passes))

    def take(self, block: int | None, value: Any) -> None:
        """Take the value of a block, or of the end."""
        if block is None:
            self.value = value
        else:
            self.solved[block] = value


def keep_absorption(
    run: Run, sizes: SmoothingSizes, walk: StoredWalk, choice: Choice, sources: Sources, tol: float
) -> tuple[float, int]:
    """Solve for the representatives of each chosen cluster, to `tol`, and store their absorption."""
    candidates = walk.start.candidates.rows.tolist()
    position = dict(zip(candidates, walk.start.positions.tolist(), strict=True))
    positions = [np.array([position[row] for row in rows.tolist()]) for rows in sources.by_cluster()]
    with run.stage(absorption_stage(sizes, len(positions))) as stage:
        target = stage.create("absorption")
        width = sizes.width_for(len(positions))
        pieces = _solve_pieces(walk, positions, (choice.lam,), tol, width, target, choice.n_neighbors)
        residuals, passes, _ = zip(*stage.run("absorb", pieces), strict=True)
    return float(np.max(residuals)), max(passes)  # a NaN stays one


def keep_members(
    run: Run,
    sizes: SmoothingSizes,
    walk: StoredWalk,
    choice: Choice,
    partition: tuple[StoredArray, IntArray, StoredArray | None],
    tol: float,
) -> tuple[IntArray, float, int]:
    """Solve for all rows of each cluster of communities, to `tol`, and store their absorption.

    Return the most prominent row of each cluster, the residual, and the passes. `partition` are the part of a community
    that every row is in, by position, the cluster of each part, and the first copies of rows, if any.
    """
    K, files = choice.n_clusters, walk.files
    width = sizes.width_for(K)
    with run.stage(absorption_stage(sizes, K)) as stage:
        labels = settle_members(stage, files, *partition)
        (rows,) = stage.compute([stage.delayed("settle", prominent_members, labels, files, K)])
        target = stage.create("absorption")
        shared = files, (choice.lam,), walk.start.nodes, tol, width, target
        mark = digest((choice.lam, K, tol))[:8]
        pieces = [
            Piece(
                solve_members,
                (labels, range(start, min(start + width, K)), *shared),
                ((target, (slice(None), slice(start, min(start + width, K)))),),
                f"members-{mark}-{start}",
            )
            for start in range(0, K, width)
        ]
        residuals, passes, _ = zip(*stage.run("absorb", pieces), strict=True)
    return rows, float(np.max(residuals)), max(passes)


def solve_members(labels: ArrayLike, clusters: range, *shared: Any) -> tuple[float, int, FloatArray]:
    """Solve for all rows of some clusters, and write their absorption: see `solve_and_write`."""
    of_rows = np.asarray(labels[:])
    return solve_and_write([np.flatnonzero(of_rows == each) for each in clusters], clusters.start, *shared)


def _solve_pieces(
    walk: StoredWalk,
    positions: IntArray | list[IntArray],
    lams: tuple[float, ...],
    tol: float,
    width: int,
    target: StoredArray,
    k: int,
    rows: IntArray | None = None,
) -> list[Piece]:
    """One piece for every block of candidates, or of clusters with several; absorption is kept at `rows`, or at all."""
    shared = walk.files, lams, walk.start.nodes, tol, width, target, rows
    mark = digest((lams, [each.tolist() for each in positions], tol))[:8]
    pieces = []
    for start in range(0, len(positions), width):
        some = positions[start : start + width]
        region = (slice(None), slice(start, start + len(some)), slice(None))[: target.ndim]
        pieces.append(
            Piece(solve_and_write, (some, start, *shared), ((target, region),), f"{k}-{mark}-{start // width}")
        )
    return pieces


def kept_positions(sizes: SmoothingSizes, candidates: IntArray) -> IntArray:
    """Positions whose absorption is kept where not all is: evenly spread ones, then those of the candidates."""
    return np.concatenate([np.arange(sizes.kept_rows) * sizes.n_rows // sizes.kept_rows, candidates])


def solve_and_write(  # noqa: PLR0913, PLR0917 - the arguments of a task
    positions: IntArray | list[IntArray],
    start: int,
    walk: WalkFiles,
    lams: tuple[float, ...],
    nodes: NDArray[np.complex128],
    tol: float,
    width: int,
    target: StoredArray,
    rows: IntArray | None = None,
) -> tuple[float, int, FloatArray]:
    """Solve one block and write P = lam x to `target`, from candidate `start` on.

    The target is (lam, candidate, position), or (row, pick) for a single lam. Returns the largest residual, the passes,
    and the sums of P over all rows (lam, candidate).
    """
    block = solver.solve_block(walk.open(), positions, np.array(lams), nodes, tol, width, rows)
    P = block.values
    for at, lam in enumerate(lams):
        P[at] *= lam
    some = slice(start, start + len(positions))
    if target.ndim == 2:
        spread_reach(walk.open(), P[0], lams[0])
        target[:, some] = P[0][np.asarray(walk.positions[:])]
    else:
        target[:, some] = P.transpose(0, 2, 1)
    return float(block.residuals.max()), block.n_passes, np.array(lams)[:, None] * block.sums


def gram_of_rows(_solved: list[Any], absorption: ArrayLike, rows: slice, positions: IntArray) -> picks.Gram:
    """Reduce the absorption of some rows, once all blocks are there."""
    return picks.gram_block(absorption, rows, positions)


def gram_of_all(gram: picks.Gram, solved: list[Any], absorption: ArrayLike, n_rows: int, n_kept: int) -> picks.Gram:
    """Sums over all rows from those over the rows that were kept, behind which the candidates' own absorption lies."""
    return picks.Gram(
        sums=np.concatenate([sums for _, _, sums in solved], axis=1),
        products=gram.products * (n_rows / n_kept),
        masses=gram.masses * (n_rows / n_kept),
        absorbed=np.asarray(absorption[0, :, n_kept:]).T.astype(np.float64),
    )


def chain_of_candidates(gram: picks.Gram, slots: IntArray, least_rows: int, limit: int, is_asked: bool) -> Chain:
    """The chain over the candidates; `slots` tells where each one stands in the Gram matrix."""
    absorbed, masses = gram.absorbed[np.ix_(slots, slots)], gram.masses[slots]
    return scales.chain_of(absorbed, masses, least_rows, limit, is_asked=is_asked)


def grid_points(values: Criterion, picked: IntArray, chain: Chain) -> GridPoints:
    """The grid points of one k."""
    return GridPoints(values, picked, chain)
