"""Sizes of the smoothing stages, and their descriptions.

Like those of the search they follow from the data and the grid alone: the same data give the same clusters on any
cluster.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from cns_dask.execution.plan import Stage, Step
from cns_dask.settings import Grid
from cns_dask.smoothing.passes import TILE_READS, number_of_tiles
from cns_dask.smoothing.solver import BLOCK_WIDTHS, RING_PASSES, SPECTRUM_STEPS, fallback_bytes, precision_for
from cns_dask.storage.chunks import CHUNK_BYTES, FLOAT_BYTES, clip
from cns_dask.storage.layout import ArrayPlan

#: Target memory of one solve; it is exceeded only at the narrowest block.
BLOCK_BYTES = 2 * 2**30
#: Partial sums over rows that one task adds.
SUMMED_AT_ONCE = 4
#: Chunks of neighbour distances that tell the intrinsic dimension, at most.
SAMPLED_CHUNKS = 64


@dataclass(frozen=True)
class SmoothingSizes:
    """What the smoothing stages are cut into."""

    n_rows: int  # number of rows
    grid: Grid  # the (k, lam, K) that are tried
    n_candidates: tuple[int, ...]  # candidates at every k: at most so many before they are found
    rows_per_chunk: int  # rows of one chunk of absorption and memberships as they are stored
    block_width: int  # candidates whose absorption is solved together
    rows_per_absorption_chunk: int  # rows of one chunk of solved absorption in scratch
    number_bytes: int  # size of a number in scratch
    tightens: bool = False  # whether what could win is evaluated once more, to the final tolerance

    @property
    def solve_bytes_per_candidate(self) -> int:
        """Memory of one candidate while it is solved: every lam's solution and the ring of passes, or, when it is
        solved again in double precision, one solution, the ring and what is written.
        """
        searched = self.number_bytes * (len(self.grid.lams) + RING_PASSES + 1)
        return self.n_rows * max(searched, FLOAT_BYTES * (RING_PASSES + 4))

    def n_blocks(self, count: int) -> int:
        """Blocks of so many candidates."""
        return math.ceil(count / self.block_width)


def size_smoothing(
    n_rows: int,
    rows_per_chunk: int,
    grid: Grid,
    n_candidates: int | Sequence[int],
    tol: float,
    overrides: Mapping[str, int] | None = None,
    *,
    tightens: bool = False,
) -> SmoothingSizes:
    """Size the blocks and chunks. `tol` is the residual to which the absorption of candidates is solved.

    `tightens` tells that the ks which could win are evaluated again to the final one.

    Examples
    --------
    >>> grid = Grid((9, 18), (0.01, 0.02), 30)
    >>> size_smoothing(8_000, 1024, grid, 300, tol=1e-4).block_width
    16
    """
    counts = [n_candidates] * len(grid.ks) if isinstance(n_candidates, int) else n_candidates
    largest, number = min(max(counts), n_rows), np.dtype(precision_for(tol)).itemsize
    chunk = clip(max(CHUNK_BYTES // (number * largest), 8 * largest, n_rows // 1024), 1, n_rows)
    at_most = tuple(min(count, n_rows) for count in counts)
    sizes = SmoothingSizes(n_rows, grid, at_most, rows_per_chunk, BLOCK_WIDTHS[-1], chunk, number, tightens)
    width = next(
        (width for width in BLOCK_WIDTHS if width * sizes.solve_bytes_per_candidate <= BLOCK_BYTES), BLOCK_WIDTHS[-1]
    )
    names = {field.name for field in fields(SmoothingSizes)}
    changed: dict[str, Any] = {name: value for name, value in (overrides or {}).items() if name in names}
    return replace(sizes, **({"block_width": width} | changed))


def n_sampled_chunks(sizes: SmoothingSizes) -> int:
    """Chunks of neighbour distances that tell the intrinsic dimension."""
    return min(SAMPLED_CHUNKS, math.ceil(sizes.n_rows / sizes.rows_per_chunk))


def smoothing_stages(sizes: SmoothingSizes) -> tuple[Stage, ...]:
    """The stages from the graph to the memberships."""
    again = (tighten_stage(sizes, sizes.grid.ks[-1]),) if sizes.tightens else ()
    return candidates_stage(sizes), evaluate_stage(sizes), *again, absorption_stage(sizes), memberships_stage(sizes)


def sizes_of_one(sizes: SmoothingSizes, k: int) -> SmoothingSizes:
    """The same for one k alone, in double precision."""
    count = sizes.n_candidates[sizes.grid.ks.index(k)]
    return replace(sizes, grid=replace(sizes.grid, ks=(k,)), n_candidates=(count,), number_bytes=FLOAT_BYTES)


def tighten_stage(sizes: SmoothingSizes, k: int) -> Stage:
    """The grid points of one k once more, to the final tolerance."""
    return replace(evaluate_stage(sizes_of_one(sizes, k)), name="tighten")


def _graph(sizes: SmoothingSizes) -> ArrayPlan:
    k = sizes.grid.ks[-1]
    return ArrayPlan("graph/indices", (sizes.n_rows, k), (sizes.rows_per_chunk, k))


def _walk(sizes: SmoothingSizes, k: int) -> tuple[ArrayPlan, ArrayPlan]:
    """The walk of one k: neighbours in the order of the walk, and the tiles that each tile reads; one file each."""
    neighbors, reads = (sizes.n_rows, k), (number_of_tiles(sizes.n_rows), TILE_READS)
    return (
        ArrayPlan(f"walk-{k}", neighbors, neighbors, "uint32", scratch=True),
        ArrayPlan(f"reads-{k}", reads, reads, "uint32", scratch=True),
    )


def shared_bytes(sizes: SmoothingSizes) -> int:
    """What the threads of a process share: the walk of the largest k, which is mapped."""
    return 4 * sizes.n_rows * sizes.grid.ks[-1]


def candidates_stage(sizes: SmoothingSizes, *, with_distances: bool = True) -> Stage:
    """Number the rows so that neighbours are close in memory; for every k write the walk and find the candidates.

    And estimate the intrinsic dimension, where the graph has distances.
    """
    n, ks = sizes.n_rows, sizes.grid.ks
    symmetric_graph_bytes = 40 * n * ks[0]  # both directions of the graph, and their sum
    number = FLOAT_BYTES if sizes.tightens else sizes.number_bytes
    start_bytes = n * (12 * ks[-1] + 8 * FLOAT_BYTES + number * (SPECTRUM_STEPS + 4))
    steps = (
        Step("order", 1, symmetric_graph_bytes, work=n * ks[0]),
        *(Step("start", 1, start_bytes, work=n * k, after=(0,)) for k in ks),
    )
    if with_distances:
        block = 4 * FLOAT_BYTES * sizes.rows_per_chunk * ks[-1]
        steps += (Step("dimension", n_sampled_chunks(sizes), block, work=n * ks[-1]),)
    order = ArrayPlan("order", (n,), (n,), "int64", scratch=True)
    walks = (array for k in ks for array in _walk(sizes, k))
    return Stage("candidates", steps, reads=(_graph(sizes),) * (len(ks) + 1), writes=(order, *walks))


def evaluate_stage(sizes: SmoothingSizes) -> Stage:
    """Every (k, lam): absorption of all candidates, in blocks; sums and inner products; picks; the criterion."""
    n, grid, number = sizes.n_rows, sizes.grid, sizes.number_bytes
    chunks = math.ceil(n / sizes.rows_per_absorption_chunk)
    largest, n_lams = max(sizes.n_candidates), len(grid.lams)
    solve_bytes = sizes.block_width * sizes.solve_bytes_per_candidate + fallback_bytes(n)
    gram = FLOAT_BYTES * n_lams * largest * (largest + 1)
    reduce_bytes = 3 * number * largest * sizes.rows_per_absorption_chunk + (SUMMED_AT_ONCE + 2) * gram
    steps: list[Step] = []
    for k, count in zip(grid.ks, sizes.n_candidates, strict=True):
        blocks, at = sizes.n_blocks(count), len(steps)
        passes = n * k * sizes.block_width * blocks
        steps += [
            Step("solve", blocks, solve_bytes, work=passes, gathers=True),
            Step("gram", chunks, reduce_bytes, work=n * count**2, after=(at,), recorded=False),
            Step("criterion", chunks, reduce_bytes, work=n * grid.max_clusters, after=(at + 1,), recorded=False),
            Step("choose", 1, after=(at + 2,)),
        ]
    width, rows = sizes.block_width, sizes.rows_per_absorption_chunk
    solved = tuple(
        ArrayPlan(f"absorption-{k}", (n_lams, count, n), (n_lams, width, rows), f"float{8 * number}", scratch=True)
        for k, count in zip(grid.ks, sizes.n_candidates, strict=True)
    )
    walks = tuple(array for k in grid.ks for array in _walk(sizes, k))
    return Stage("evaluate", tuple(steps), reads=(*walks, *solved), writes=solved)


def absorption_stage(sizes: SmoothingSizes, n_picks: int | None = None) -> Stage:
    """The absorption at the representatives of the chosen clusters, solved to the final tolerance and stored."""
    n, k = sizes.n_rows, sizes.grid.ks[-1]
    n_picks = sizes.grid.max_clusters if n_picks is None else n_picks
    solve_bytes = sizes.block_width * sizes.solve_bytes_per_candidate + fallback_bytes(n)
    step = Step("absorb", sizes.n_blocks(n_picks), solve_bytes, work=n * k * n_picks, gathers=True)
    stored = ArrayPlan("absorption", (n, n_picks), (sizes.rows_per_chunk, sizes.block_width))
    return Stage("absorption", (step,), reads=_walk(sizes, k), writes=(stored,))


def memberships_stage(
    sizes: SmoothingSizes, n_clusters: int | None = None, shape: tuple[int, int] | None = None
) -> Stage:
    """Memberships, labels and confidence; `shape` tells rows and rows per chunk where skipped rows are put back."""
    n, rows = shape or (sizes.n_rows, sizes.rows_per_chunk)
    return clustering_stage("memberships", n, rows, n_clusters or sizes.grid.max_clusters)


def clustering_stage(name: str, n_rows: int, rows: int, n_clusters: int, task_bytes: int = 0) -> Stage:
    """A stage that writes a clustering of so many rows, in chunks of `rows`."""
    step = Step(name, math.ceil(n_rows / rows), task_bytes or 6 * FLOAT_BYTES * rows * n_clusters, n_rows * n_clusters)
    absorption = ArrayPlan("absorption", (n_rows, n_clusters), (rows, n_clusters))
    return Stage(
        name,
        (step,),
        reads=(absorption,),
        writes=(
            ArrayPlan("memberships", (n_rows, n_clusters), (rows, n_clusters)),
            ArrayPlan("labels", (n_rows,), (rows,)),
            ArrayPlan("confidence", (n_rows,), (rows,)),
        ),
    )


def with_counts(sizes: SmoothingSizes, counts: Mapping[int, int]) -> SmoothingSizes:
    """The sizes once the candidates of every k are found."""
    return replace(sizes, n_candidates=tuple(counts[k] for k in sizes.grid.ks))
