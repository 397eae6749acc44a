"""Sizes of the smoothing stages, and their descriptions.

Like those of the search they follow from the data and the grid alone: the same data give the same clusters on any
cluster.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import combinations_with_replacement
from typing import Any

import numpy as np

from cns_dask.execution.forecast import Group, makespan
from cns_dask.execution.plan import MERGED_AT_ONCE, Stage, Step
from cns_dask.settings import Grid
from cns_dask.smoothing.communities import CLIMBED, JOINED_SWEEPS, SWEEPS, climbed
from cns_dask.smoothing.newton import ring_passes
from cns_dask.smoothing.nodes import precision_for, spectrum_steps
from cns_dask.smoothing.passes import TILE_READS, TILE_ROWS, number_of_tiles
from cns_dask.smoothing.solver import BLOCK_WIDTHS, fallback_bytes
from cns_dask.storage.chunks import CHUNK_BYTES, FLOAT_BYTES, clip
from cns_dask.storage.layout import ArrayPlan

#: Target memory of one solve; it is exceeded only at the narrowest block.
BLOCK_BYTES = 2 * 2**30
#: Rows at which the absorption of all candidates is kept while the grid is evaluated: one in `ROWS_PER_KEPT_ROW`,
#: evenly spaced in the order in which rows lie close together, but at least and at most this many. Means over 2^14 of
#: them estimate means over all rows to about one part in 128.
KEPT_ROWS, ROWS_PER_KEPT_ROW = (2**14, 2**16), 16
#: Rows of one part of a walk: a file, and the work of one task.
WALK_PART_ROWS = 2**18
#: Up to so many rows every k has nodes of its own; above, all have those of the smallest k, which are nearly as good.
OWN_NODES_ROWS = 2**21
#: Widths of the blocks in which the final absorption is solved in double precision: 8 are a line of the cache; above so
#: many rows 4, so that there are more tasks, of less memory, or 2 where there are threads for them.
FINAL_WIDTHS, WIDE_ROWS = (8, 4, 2), 2**20
#: Rows above which narrow blocks are worth their compilation: two columns take half of the time of eight.
SLIM_ROWS = 2**16
#: Above so many rows blocks are narrower where there would be fewer than threads: see `narrow`. Fewer take seconds.
NARROW_ROWS = 2**20
#: Time of a pass for each vector, by the bytes of a row of its block: relative to rows that fill a line of the cache.
ROW_COSTS = {64: 1.0, 32: 1.4, 16: 1.8}
#: Rows of a basin on average, at least (measured: 12, and more in the ratio of the neighbors that are climbed),
#: and memory of a link between two basins.
ROWS_PER_BASIN, LINK_BYTES = 8, 16
#: Rows and features of the largest sample on which borders of communities are examined.
SAMPLE_ROWS, SAMPLE_FEATURES = 40_000, 100
#: Chunks of neighbour distances that tell the intrinsic dimension, at most.
SAMPLED_CHUNKS = 64


@dataclass(frozen=True)
class SmoothingSizes:
    """What the smoothing stages are cut into."""

    n_rows: int  # number of rows
    grid: Grid  # the (k, lam, K) that are tried
    n_candidates: tuple[int, ...]  # candidates at every k: at most so many before they are found
    rows_per_chunk: int  # rows of one chunk of absorption and memberships as they are stored
    block_width: int  # candidates whose absorption is solved together, at most
    rows_per_absorption_chunk: int  # rows of one chunk of solved absorption in scratch
    number_bytes: int  # size of a number in scratch
    kept_rows: int  # rows at which the absorption of all candidates is kept while the grid is evaluated
    rows_per_walk_part: int  # rows of one part of a walk, a multiple of TILE_ROWS
    absorption_width: int  # clusters whose final absorption is solved together, at most
    n_distinct: int = 0  # number of different rows; 0 if all differ, or copies count as different rows
    communities: bool = False  # whether communities are looked for
    tightens: bool = False  # whether what could win is evaluated once more, to the final tolerance
    #: Of the blocks of every k, and of the final absorption last, once it is known how many threads there are.
    widths: tuple[int, ...] | None = None

    @property
    def copies(self) -> float:
        """Mean number of rows that are equal."""
        return self.n_rows / self.n_distinct if self.n_distinct else 1.0

    @property
    def keeps_all_rows(self) -> bool:
        """Whether the grid is evaluated with all rows."""
        return self.kept_rows >= self.n_rows

    @property
    def nodes_of_every_k(self) -> bool:
        """Whether every k has nodes of its own."""
        return self.n_rows <= OWN_NODES_ROWS

    def n_kept(self, count: int) -> int:
        """Entries of the absorption of so many candidates that are kept: those of rows, and of the candidates."""
        return self.n_rows if self.keeps_all_rows else self.kept_rows + count

    @property
    def solve_bytes(self) -> int:
        """Memory of one block of candidates while it is solved: every lam's solution, what of it is written, and the
        ring of passes or what takes its place.
        """
        rows, width = self.n_kept(max(self.n_candidates)), self.block_width * self.number_bytes
        ring = width * self.n_rows * (ring_passes(self.n_rows, some_rows=not self.keeps_all_rows) + 1)
        return width * rows * (len(self.grid.lams) + 1) + max(ring, fallback_bytes(self.n_rows))

    def width_of(self, k: int) -> int:
        """Candidates of this k whose absorption is solved together."""
        return self.block_width if self.widths is None else self.widths[self.grid.ks.index(k)]

    @property
    def final_width(self) -> int:
        """Clusters whose final absorption is solved together."""
        return self.absorption_width if self.widths is None else self.widths[-1]

    def width_for(self, n_clusters: int) -> int:
        """Return the same for a number of clusters: with many rows a block of few clusters is as narrow as these."""
        if self.n_rows <= SLIM_ROWS:
            return self.final_width
        return min(self.final_width, max(FINAL_WIDTHS[-1], 1 << (n_clusters - 1).bit_length()))


def size_smoothing(  # noqa: PLR0913 - one parameter per choice
    n_rows: int,
    rows_per_chunk: int,
    grid: Grid,
    n_candidates: int | Sequence[int],
    tol: float,
    overrides: Mapping[str, int] | None = None,
    *,
    tightens: bool = False,
    every_row: bool = False,
    communities: bool = False,
) -> SmoothingSizes:
    """Size the blocks and chunks. `tol` is the residual to which the absorption of candidates is solved.

    `tightens` tells that the ks which could win are evaluated again to the final one, `every_row` that the grid must be
    evaluated with all rows, `communities` that communities are looked for.

    Examples
    --------
    >>> grid = Grid((9, 18), (0.01, 0.02), 30)
    >>> size_smoothing(8_000, 1024, grid, 300, tol=1e-4).block_width
    16
    """
    counts = [n_candidates] * len(grid.ks) if isinstance(n_candidates, int) else n_candidates
    largest, number = min(max(counts), n_rows), np.dtype(precision_for(tol)).itemsize
    some = clip(n_rows // ROWS_PER_KEPT_ROW, *KEPT_ROWS)
    kept = n_rows if every_row else min(n_rows, (overrides or {}).get("kept_rows", some))
    chunk = clip(max(CHUNK_BYTES // (number * largest), 8 * largest, kept // 1024), 1, kept)
    sizes = SmoothingSizes(
        n_rows=n_rows,
        grid=grid,
        n_candidates=tuple(min(count, n_rows) for count in counts),
        rows_per_chunk=rows_per_chunk,
        block_width=BLOCK_WIDTHS[0],
        rows_per_absorption_chunk=chunk,
        number_bytes=number,
        kept_rows=kept,
        rows_per_walk_part=WALK_PART_ROWS,
        absorption_width=FINAL_WIDTHS[n_rows > WIDE_ROWS],
        communities=communities,
        tightens=tightens,
    )
    of_widths = [replace(sizes, block_width=width) for width in BLOCK_WIDTHS]
    if every_row:
        sizes = next((each for each in of_widths if each.solve_bytes <= BLOCK_BYTES), of_widths[-1])
    names = {field.name for field in fields(SmoothingSizes)} - {"kept_rows"}
    changed: dict[str, Any] = {name: value for name, value in (overrides or {}).items() if name in names}
    return replace(sizes, **changed)


def row_cost(width: int, number_bytes: int) -> float:
    """Time of a pass for each vector of a block so wide, relative to one that fills a line of the cache."""
    return ROW_COSTS.get(width * number_bytes, 1.0)


def narrow(sizes: SmoothingSizes, n_threads: int) -> SmoothingSizes:
    """Blocks with which so many threads are done first: narrow ones take longer in all, but there are more of them.

    What is solved does not depend on the width of a block to the last bit.

    Examples
    --------
    >>> sizes = size_smoothing(10**7, 2**16, Grid((24, 48, 72, 96), (0.01, 0.02), 30), 150, tol=1e-4)
    >>> narrow(sizes, 16).widths, narrow(sizes, 100).widths
    ((16, 16, 16, 16, 2), (16, 16, 4, 4, 2))
    """
    if sizes.n_rows <= NARROW_ROWS:
        return sizes
    ks, counts, number = sizes.grid.ks, sizes.n_candidates, sizes.number_bytes

    def seconds(widths: tuple[int, ...]) -> float:
        return makespan(
            [
                Group("solve", math.ceil(count / width), k * width * row_cost(width, number))
                for k, count, width in zip(ks, counts, widths, strict=True)
            ],
            n_threads,
        )

    def final_seconds(width: int) -> float:
        tasks = math.ceil(sizes.grid.max_clusters / width)
        return makespan([Group("absorb", tasks, width * row_cost(width, FLOAT_BYTES))], n_threads)

    allowed = [width for width in BLOCK_WIDTHS if width <= sizes.block_width] or [sizes.block_width]
    final = [sizes.absorption_width, *(width for width in FINAL_WIDTHS if width < sizes.absorption_width)]
    widths = min(combinations_with_replacement(allowed, len(ks)), key=seconds)  # never wider at a larger k
    return replace(sizes, widths=(*widths, min(final, key=final_seconds)))


def n_sampled_chunks(sizes: SmoothingSizes) -> int:
    """Chunks of neighbour distances that tell the intrinsic dimension."""
    return min(SAMPLED_CHUNKS, math.ceil(sizes.n_rows / sizes.rows_per_chunk))


def smoothing_stages(sizes: SmoothingSizes) -> tuple[Stage, ...]:
    """The stages from the graph to the memberships."""
    again = (tighten_stage(sizes, sizes.grid.ks[-1]),) if sizes.tightens else ()
    between = (communities_stage(sizes),) if sizes.communities else ()
    first, last = (candidates_stage(sizes), evaluate_stage(sizes)), (absorption_stage(sizes), memberships_stage(sizes))
    return *first, *again, *between, *last


def sizes_of_one(sizes: SmoothingSizes, k: int) -> SmoothingSizes:
    """The same for one k alone, in double precision."""
    count, widths = sizes.n_candidates[sizes.grid.ks.index(k)], (sizes.width_of(k), sizes.final_width)
    grid = replace(sizes.grid, ks=(k,))
    return replace(sizes, grid=grid, n_candidates=(count,), number_bytes=FLOAT_BYTES, widths=widths)


def tighten_stage(sizes: SmoothingSizes, k: int) -> Stage:
    """The grid points of one k once more, to the final tolerance."""
    return replace(evaluate_stage(sizes_of_one(sizes, k)), name="tighten")


def _graph(sizes: SmoothingSizes) -> ArrayPlan:
    k = sizes.grid.ks[-1]
    return ArrayPlan("graph/indices", (sizes.n_rows, k), (sizes.rows_per_chunk, k))


def walk_entry(n_neighbors: int) -> np.dtype[Any]:
    """Entry of one row's list by position, while rows are put into the order of the walk."""
    return np.dtype([("key", "int64"), ("neighbors", "uint32", (n_neighbors,))])


def _walk(sizes: SmoothingSizes, k: int) -> tuple[ArrayPlan, ArrayPlan]:
    """The walk of one k: neighbours in the order of the walk, and the tiles that each tile reads; files of parts."""
    neighbors, reads = (sizes.n_rows, k), (number_of_tiles(sizes.n_rows), TILE_READS)
    rows = min(sizes.rows_per_walk_part, sizes.n_rows)
    return (
        ArrayPlan(f"walk-{k}", neighbors, (rows, k), "uint32", scratch=True),
        ArrayPlan(f"reads-{k}", reads, (number_of_tiles(rows), TILE_READS), "uint32", scratch=True),
    )


def shared_bytes(sizes: SmoothingSizes) -> int:
    """What the threads of a process share: the walk of the largest k, which is mapped."""
    return sizes.n_rows * (4 * sizes.grid.ks[-1] + 4 * TILE_READS // TILE_ROWS)


def candidates_stage(sizes: SmoothingSizes, *, with_distances: bool = True, with_cells: bool = True) -> Stage:
    """Number the rows so that neighbours are close in memory; for every k write the walk and find the candidates.

    And estimate the intrinsic dimension, where the graph has distances. Where there are no cells, one task finds an
    order from the whole graph.
    """
    n, ks, rows, part = sizes.n_rows, sizes.grid.ks, sizes.rows_per_chunk, min(sizes.rows_per_walk_part, sizes.n_rows)
    chunks, parts, entry = math.ceil(n / rows), math.ceil(n / part), walk_entry(ks[-1]).itemsize
    order_rows = part if with_cells else n
    order_bytes = (
        64 * FLOAT_BYTES * part if with_cells else 40 * n * ks[0]
    )  # both directions of the graph, and their sum
    number = FLOAT_BYTES if sizes.tightens else sizes.number_bytes
    of_nodes = ks if sizes.nodes_of_every_k else ks[:1]
    steps = [
        Step("order", math.ceil(n / order_rows), order_bytes, work=n * ks[0]),
        Step("positions", 1, 3 * FLOAT_BYTES * n, work=n, after=(0,)),
        Step("renumber", chunks, 8 * n + 4 * rows * entry, work=n * ks[-1], after=(1,)),
        Step("walk", parts, 4 * part * entry, work=n * sum(ks), after=(2,)),
        Step("maxima", len(ks) * parts, 4 * FLOAT_BYTES * n, work=n * sum(ks), after=(3,), recorded=False),
        Step("choose_candidates", len(ks), FLOAT_BYTES * n, after=(4,)),
        *(
            Step("nodes", 1, n * number * (spectrum_steps(n) + 5), work=n * k * spectrum_steps(n), after=(5,))
            for k in of_nodes
        ),
    ]
    if with_distances:
        block = 4 * FLOAT_BYTES * rows * ks[-1]
        steps.append(Step("dimension", n_sampled_chunks(sizes), block, work=n * ks[-1]))
    scratch = (
        ArrayPlan("order", (n,), (order_rows,), "int64", scratch=True),
        ArrayPlan("positions", (n,), (n,), "uint32", scratch=True),
        ArrayPlan("renumbered", (chunks * rows, entry), (rows, entry), "int8", scratch=True),
    )
    walks = (array for k in ks for array in _walk(sizes, k))
    return Stage("candidates", tuple(steps), reads=(_graph(sizes), scratch[-1]), writes=(*scratch, *walks))


def evaluate_stage(sizes: SmoothingSizes) -> Stage:
    """Every (k, lam): absorption of all candidates, in blocks; sums and inner products; picks; the criterion."""
    n, grid, number = sizes.n_rows, sizes.grid, sizes.number_bytes
    kept = sizes.kept_rows
    chunks = math.ceil(kept / sizes.rows_per_absorption_chunk)
    largest, n_lams = max(sizes.n_candidates), len(grid.lams)
    gram = FLOAT_BYTES * n_lams * largest * (largest + 1)
    block = largest * sizes.rows_per_absorption_chunk  # as stored, and in double precision
    reduce_bytes = (2 * number + FLOAT_BYTES) * block + (MERGED_AT_ONCE + 2) * gram
    steps: list[Step] = []
    for k, count in zip(grid.ks, sizes.n_candidates, strict=True):
        width, at = sizes.width_of(k), len(steps)
        blocks = math.ceil(count / width)
        passes = n * k * width * blocks * row_cost(width, number)
        steps += [
            Step("solve", blocks, sizes.solve_bytes, work=passes, gathers=True),
            Step("gram", chunks, reduce_bytes, work=kept * count**2, after=(at,), recorded=False),
            Step("criterion", chunks, reduce_bytes, work=kept * grid.max_clusters, after=(at + 1,), recorded=False),
            Step("choose", 1, after=(at + 2,)),
        ]
    solved = tuple(
        ArrayPlan(
            f"absorption-{k}",
            (n_lams, count, sizes.n_kept(count)),
            (n_lams, sizes.width_of(k), sizes.rows_per_absorption_chunk),
            f"float{8 * number}",
            scratch=True,
        )
        for k, count in zip(grid.ks, sizes.n_candidates, strict=True)
    )
    walks = tuple(array for k in grid.ks for array in _walk(sizes, k))
    return Stage("evaluate", tuple(steps), reads=(*walks, *solved), writes=solved)


def community_k(grid: Grid) -> int:
    """Return the number of neighbors of the graph in which communities are found: the second one, 2 floor(ln n)."""
    return grid.ks[min(1, len(grid.ks) - 1)]


def communities_stage(sizes: SmoothingSizes) -> Stage:
    """Find communities of basins: passes over the parts of one walk, and a task that examines their borders."""
    n, k, part = sizes.n_rows, community_k(sizes.grid), min(sizes.rows_per_walk_part, sizes.n_rows)
    parts, n_basins = math.ceil(n / part), math.ceil(n * CLIMBED / (ROWS_PER_BASIN * climbed(n, k)))
    links = LINK_BYTES * min(n_basins * k, n * k)
    held = 8 * n + 6 * FLOAT_BYTES * part * k
    sample = 8 * FLOAT_BYTES * min(n, SAMPLE_ROWS) * SAMPLE_FEATURES
    steps = (
        Step("reach", 1, 3 * FLOAT_BYTES * n, work=n),
        Step("copies", 1, 5 * FLOAT_BYTES * n, recorded=False),
        Step("degrees", 1, 3 * FLOAT_BYTES * n, work=n * k),
        Step("climb", parts, held, work=n * k, after=(2,)),
        Step("basins", 1, 4 * FLOAT_BYTES * n, work=n, after=(3,)),
        Step("links", 2 * parts, held + (MERGED_AT_ONCE + 2) * links, work=2 * n * k, after=(4,), recorded=False),
        Step("group", 1, 3 * links + 2 * FLOAT_BYTES * n, work=n, after=(5,)),
        Step("settle", SWEEPS * parts, held, work=SWEEPS * n * k, after=(6,)),
        Step("borders", 1, 8 * FLOAT_BYTES * n + 4 * n * k + sample, work=n, after=(7,)),
    )
    scratch = dict.fromkeys(("first-at", "masses", "degrees", "uphill", "basins"), "int64") | {"reach": "float64"}
    scratch |= dict.fromkeys((*(f"settled-{at}" for at in range(SWEEPS + 1)), "members"), "int32")
    writes = tuple(ArrayPlan(name, (n,), (part,), dtype, scratch=True) for name, dtype in scratch.items())
    stored = ArrayPlan("communities", (n,), (sizes.rows_per_chunk,))
    return Stage("communities", steps, reads=_walk(sizes, k), writes=(*writes, stored))


def absorption_stage(sizes: SmoothingSizes, n_picks: int | None = None) -> Stage:
    """The absorption at the representatives of the chosen clusters, solved to the final tolerance and stored."""
    n, k = sizes.n_rows, sizes.grid.ks[-1]
    n_picks = sizes.grid.max_clusters if n_picks is None else n_picks
    width = sizes.width_for(n_picks)
    ring = FLOAT_BYTES * width * n * (ring_passes(n) + 1)
    solve_bytes = 2 * FLOAT_BYTES * width * n + max(ring, fallback_bytes(n))  # the solution, and it by rows
    passes = n * k * n_picks * row_cost(width, FLOAT_BYTES)
    steps = [Step("absorb", math.ceil(n_picks / width), solve_bytes, work=passes, gathers=True)]
    arrays = [ArrayPlan("absorption", (n, n_picks), (sizes.rows_per_chunk, width))]
    if sizes.communities:
        part, names = min(sizes.rows_per_walk_part, n), [f"clusters-{at}" for at in range(JOINED_SWEEPS + 1)]
        held, work = 4 * FLOAT_BYTES * n + 8 * FLOAT_BYTES * part * k, JOINED_SWEEPS * n * k
        steps.insert(0, Step("settle", 2 + JOINED_SWEEPS * math.ceil(n / part), held, work=work, recorded=False))
        steps.insert(0, Step("copies", 1, 5 * FLOAT_BYTES * n, recorded=False))
        arrays += [ArrayPlan(name, (n,), (part,), "int32", scratch=True) for name in names]
        arrays += [ArrayPlan(name, (n,), (part,), "int64", scratch=True) for name in ("first-at", "masses")]
    return Stage("absorption", tuple(steps), reads=_walk(sizes, k), writes=tuple(arrays))


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
