"""Sizes of the search for neighbours, and the description of its stages.

Sizes follow from the data alone, never from the workers, because the order of additions follows from them: the same
data give the same graph on any cluster.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from cns_dask.execution.plan import Stage, Step, memory_limit
from cns_dask.neighbors.distances import FEW_CENTERS, POINTS_AT_ONCE, QUERIES_AT_ONCE
from cns_dask.neighbors.exchange import list_entry, point_entry
from cns_dask.settings import EXACT_ROWS, choose_method
from cns_dask.storage.chunks import CHUNK_BYTES, FLOAT_BYTES, clip, rows_per_chunk
from cns_dask.storage.layout import ArrayPlan

#: Memory for one tile of distance bounds and its sorted copy.
PAIRS_BYTES = 2 * FLOAT_BYTES * QUERIES_AT_ONCE * POINTS_AT_ONCE
#: Every search reads all chunks of points in its reach, so these are smaller than others.
CELL_CHUNK_BYTES = 8 * 2**20
#: Rows of an average cell: half as many are slower, twice as many no faster.
CELL_ROWS = 1024
#: Above so many, cells grow instead: every chunk of rows counts its rows in every cell.
MAX_CELLS = 16384
#: Rows per cell from which the centres are learned, at most SAMPLE_BYTES in all.
SAMPLED_PER_CELL = 32
SAMPLE_BYTES = 256 * 2**20
#: Samples that the reach is learned from, and that recall is measured on.
CALIBRATION_ROWS, RECALL_ROWS = 500, 1000
#: Descent sends every row to so many partitions.
OVERLAP = 3
#: The time of a query grows as n^0.4: measured on a mixture from 40 000 to 10^6 rows.
SEARCH_GROWTH = 0.4
#: Work of starting to learn centres, in comparisons of a feature: all that a small sample costs.
LEARN_OVERHEAD = 1.5e6
#: Work for a row when it is sorted into its cell, besides the comparison with every centre, in such comparisons.
SORT_COMPARISONS = 150


@dataclass(frozen=True)
class GraphSizes:
    """What the search for neighbours is cut into."""

    n_rows: int
    n_features: int  # after projection
    n_neighbors: int  # length of the lists, the row itself included
    exact_rows: int = EXACT_ROWS  # up to so many rows "auto" compares all pairs
    rows_per_chunk: int = 1  # rows of one chunk of points and neighbours
    n_cells: int = 0  # cells of the approximate search; 0 for an exact one
    sampled_rows: int = 0  # rows from which the centres of cells are learned
    rows_per_cell_chunk: int = 0  # rows of one chunk of points in the order of the cells
    rows_per_search: int = 0  # rows that one task finds the neighbours of
    rows_per_partition: int = 65_536  # rows of one partition for descent
    #: Up to so many rows of a partition all pairs are compared: estimated from 2 ns a pair, 150 us a row of descent
    exact_partition_rows: int = 50_000
    #: Descent is cheaper where a search in cells visits more rows on average: estimated at d = 64, n = 150 000
    max_visited: int = 200_000

    @property
    def is_exact(self) -> bool:
        """Whether all pairs of rows are compared."""
        return self.n_cells == 0

    @property
    def n_chunks(self) -> int:
        """Chunks of points and neighbours."""
        return math.ceil(self.n_rows / self.rows_per_chunk)

    @property
    def points(self) -> ArrayPlan:
        """The rows as the neighbours see them."""
        return ArrayPlan("points", (self.n_rows, self.n_features), (self.rows_per_chunk, self.n_features))

    def lists(self, dtypes: tuple[str | None, str | None] = (None, None)) -> tuple[ArrayPlan, ArrayPlan]:
        """The stored lists: indices and distances."""
        shape, chunks = (self.n_rows, self.n_neighbors), (self.rows_per_chunk, self.n_neighbors)
        return ArrayPlan("graph/indices", shape, chunks, dtypes[0]), ArrayPlan(
            "graph/distances", shape, chunks, dtypes[1]
        )


def size_search(
    n_rows: int,
    n_features: int,
    n_neighbors: int,
    method: str,
    n_components: int | None = None,
    overrides: Mapping[str, int] | None = None,
) -> GraphSizes:
    """Size the search among rows of `n_features` features, which are projected on `n_components` if these are fewer.

    `overrides` replace sizes by name.

    Examples
    --------
    >>> size_search(1_000_000, 16, 52, "cells").n_cells
    977
    """
    overrides = dict(overrides or {})
    exact_rows = overrides.get("exact_rows", EXACT_ROWS)
    is_exact = choose_method(n_rows, method, exact_rows) == "exact"
    rows = rows_per_chunk(n_rows, max(n_features, n_neighbors))
    n_raw, n_features = n_features, min(n_features, n_components or n_features)
    sizes = GraphSizes(n_rows, n_features, n_neighbors, exact_rows, rows)
    if not is_exact:
        few = min(n_rows, 16 * CELL_ROWS, CHUNK_BYTES // (FLOAT_BYTES * max(n_raw, n_neighbors)))
        n_cells = min(MAX_CELLS, math.ceil(n_rows / CELL_ROWS))
        sizes = replace(
            sizes,
            rows_per_chunk=max(rows, few),
            n_cells=n_cells,
            sampled_rows=min(
                n_rows, SAMPLED_PER_CELL * n_cells, max(n_cells, SAMPLE_BYTES // (FLOAT_BYTES * n_features))
            ),
            rows_per_cell_chunk=clip(CELL_CHUNK_BYTES // (FLOAT_BYTES // 2 * n_features), 1024, n_rows),
            rows_per_search=clip(math.ceil(n_rows / 8), 1024, 16 * CELL_ROWS),
        )
        overrides.setdefault("n_cells", n_cells)
    else:
        overrides["n_cells"] = 0
    names = {field.name for field in fields(GraphSizes)}
    return replace(sizes, **{name: value for name, value in overrides.items() if name in names})


def search_stages(sizes: GraphSizes) -> tuple[Stage, ...]:
    """The stages of the search."""
    return (
        (exact_stage(sizes),)
        if sizes.is_exact
        else (cells_stage(sizes), calibrate_stage(sizes), cell_search_stage(sizes))
    )


def exact_stage(sizes: GraphSizes) -> Stage:
    """Every chunk of rows against every other."""
    n, d, rows, chunks = sizes.n_rows, sizes.n_features, sizes.rows_per_chunk, sizes.n_chunks
    task_bytes = rows * FLOAT_BYTES * (3 * d + 4 * sizes.n_neighbors) + PAIRS_BYTES
    steps = (
        Step("compare", chunks * chunks, task_bytes, work=n * d * n, recorded=False),
        Step("neighbors", chunks, task_bytes, after=(0,)),
    )
    return Stage("neighbors", steps, reads=(sizes.points,), writes=sizes.lists())


def given_stage(sizes: GraphSizes, *, with_distances: bool) -> Stage:
    """The lists of a graph that the caller has: checked and stored."""
    task_bytes = 6 * sizes.rows_per_chunk * FLOAT_BYTES * sizes.n_neighbors
    step = Step("neighbors", sizes.n_chunks, task_bytes, work=sizes.n_rows * sizes.n_neighbors)
    return Stage("neighbors", (step,), writes=sizes.lists()[: 2 if with_distances else 1])


def compared_centers(n_cells: int) -> float:
    """Centres, and groups of them, that a row is compared with: a tenth of many on a mixture in 16 dimensions."""
    return n_cells if n_cells <= FEW_CENTERS else 2 * math.sqrt(n_cells) + n_cells / 10


def cells_stage(sizes: GraphSizes) -> Stage:
    """Learn centres of cells from a sample, and move every row to the cell of its nearest centre."""
    n, d, rows = sizes.n_rows, sizes.n_features, sizes.rows_per_chunk
    row, entry = FLOAT_BYTES * d, point_entry(d).itemsize
    task_bytes = rows * (2 * row + 3 * entry) + FLOAT_BYTES * sizes.n_cells * d + PAIRS_BYTES
    learn_bytes = 4 * sizes.sampled_rows * row + FLOAT_BYTES * sizes.n_cells * (256 + 4 * d)
    compared, learned = compared_centers(sizes.n_cells), min(sizes.n_cells, 2 * math.sqrt(sizes.n_cells))
    steps = (
        Step("learn_centers", 1, learn_bytes, work=LEARN_OVERHEAD + sizes.sampled_rows * learned * d),
        Step("take_samples", 2, after=(0,)),
        Step("sort", sizes.n_chunks, task_bytes, work=n * d * (compared + SORT_COMPARISONS), after=(1,)),
        Step(
            "fill", math.ceil(n / sizes.rows_per_cell_chunk), 4 * sizes.rows_per_cell_chunk * entry, n * d, after=(2,)
        ),
    )
    stored = (
        ArrayPlan("cells/points", (n, d), (sizes.rows_per_cell_chunk, d)),
        ArrayPlan("cells/rows", (n,), (sizes.rows_per_cell_chunk,)),
        ArrayPlan("sorted", (sizes.n_chunks * rows, entry), (rows, entry), "int8", scratch=True),
    )
    return Stage("cells", steps, reads=(sizes.points, sizes.points), writes=stored)


def calibrate_stage(sizes: GraphSizes) -> Stage:
    """Exact neighbours of two samples: one tells how far a search has to reach, the other measures its recall."""
    n, d = sizes.n_rows, sizes.n_features
    chunks = sizes.n_chunks + math.ceil(n / sizes.rows_per_cell_chunk)
    task_bytes = sizes.rows_per_chunk * FLOAT_BYTES * d + PAIRS_BYTES
    steps = (
        Step("compare_samples", chunks, task_bytes, work=n * d, recorded=False),
        Step("reach", 1, after=(0,)),
        Step("truth", 1, after=(0,)),
    )
    samples = (
        ArrayPlan("calibrated", (CALIBRATION_ROWS, d), (CALIBRATION_ROWS, d), "float32", scratch=True),
        ArrayPlan("measured", (RECALL_ROWS, d), (RECALL_ROWS, d), scratch=True),
    )
    return Stage("calibrate", steps, reads=(sizes.points, sizes.points), writes=samples)


def cell_search_stage(sizes: GraphSizes, name: str = "neighbors") -> Stage:
    """Find the lists of the rows of some cells, and collect them in the order of the data."""
    n, d, k, rows = sizes.n_rows, sizes.n_features, sizes.n_neighbors, sizes.rows_per_chunk
    searched, entry = sizes.rows_per_search, point_entry(d).itemsize
    list_dtype = list_entry(k, n)
    centers = FLOAT_BYTES // 2 * sizes.n_cells * d
    task_bytes = (
        2 * searched * (2 * entry + 4 * FLOAT_BYTES * k) + sizes.rows_per_cell_chunk * entry + 3 * centers + PAIRS_BYTES
    )
    searches = math.ceil(n / searched)
    steps = (
        Step("search", searches, task_bytes, work=n * d * n**SEARCH_GROWTH),
        Step("collect", sizes.n_chunks, 6 * rows * FLOAT_BYTES * (1 + 2 * k), work=n * k, after=(0,)),
    )
    scratch = ArrayPlan(
        f"lists-{name}",
        (searches * searched, list_dtype.itemsize),
        (searched, list_dtype.itemsize),
        "int8",
        scratch=True,
    )
    lists = sizes.lists((str(list_dtype["indices"].base), "float32"))
    return Stage(name, steps, reads=(sizes.points,), writes=(*lists, scratch))


def descent_stage(sizes: GraphSizes, name: str) -> Stage:
    """Send every row to several partitions, descend in each, and merge the lists."""
    n, d, k, rows = sizes.n_rows, sizes.n_features, sizes.n_neighbors, sizes.rows_per_chunk
    n_partitions = math.ceil(n / sizes.rows_per_partition)
    overlap = min(OVERLAP, n_partitions)
    list_dtype, entry = list_entry(k, n), point_entry(d).itemsize
    steps = (
        Step("learn_partitions", 1),
        Step("send", sizes.n_chunks, after=(0,)),
        Step("descend", n_partitions, after=(1,)),
        Step("merge", sizes.n_chunks, after=(2,)),
    )
    sent = ArrayPlan(
        f"sent-{name}", (sizes.n_chunks * overlap * rows, entry), (overlap * rows, entry), "int8", scratch=True
    )
    shape = (overlap * n, list_dtype.itemsize)
    lists = ArrayPlan(f"lists-{name}", shape, shape, "int8", scratch=True)
    stored = sizes.lists((str(list_dtype["indices"].base), "float32"))
    return Stage(name, steps, reads=(sizes.points,), writes=(*stored, sent, lists))


def descent_worker_bytes(sizes: GraphSizes, n_threads: int) -> int:
    """Memory that a worker process needs for descent: a partition per thread, some of them twice as large as others.

    pynndescent holds the rows, a heap and the candidates of every row (about 60 bytes per neighbour), and trees.
    """
    rows = 2 * OVERLAP * sizes.rows_per_partition
    return memory_limit(n_threads * rows * (3 * FLOAT_BYTES // 2 * sizes.n_features + 60 * sizes.n_neighbors + 600))
