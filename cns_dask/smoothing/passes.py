"""Passes over the graph: products with W of a block of vectors, tile by tile.

| symbol | variable    | shape       | meaning                                                              |
|--------|-------------|-------------|----------------------------------------------------------------------|
| W      | `neighbors` | (n, k)      | transition matrix: 1/k at each listed neighbour                       |
| u      | `ring`      | (s, n, b)   | the last few Newton polynomials of W times the unit vectors, in turns |
| x      | `solution`  | (lam, m, b) | sums of multiples of them, at all rows or at some                    |

A block is as wide as one line of the cache (16 vectors in single precision): a pass then costs one line for every
entry of the graph, and nothing else matters. Numba does not keep a row's sum in registers by itself (measured: three
times slower), so the sum over a row's neighbours is written as LLVM vectors: `smooth_row`.

Rows come in tiles. A tile in which a vector is nowhere above `drop` is set to 0 in that vector, and a tile that reads
only tiles of 0 is not computed. What is dropped that way is at most `drop` in every entry and pass.

Every entry is computed by the same operations in the same order whatever the other vectors of its block are, so a
vector does not depend on its block to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cns_dask.numeric import compiled
from cns_dask.smoothing.row_kernel import smooth_row

if TYPE_CHECKING:
    from numpy.typing import NDArray


CACHE_LINE = 64  # bytes
#: Rows that are computed or skipped together, if their neighbours lie in at most so many tiles.
TILE_ROWS, TILE_READS = 64, 64
READS_MANY = 2**32 - 1  # instead of a tile


def number_of_tiles(n_rows: int) -> int:
    """Tiles of rows of a walk."""
    return -(-n_rows // TILE_ROWS)


def aligned_zeros(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Zeros from the start of a line of the cache on: a row of a block must not lie in two of them."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + CACHE_LINE, np.uint8)
    return np.asarray(raw[-raw.ctypes.data % CACHE_LINE :][:size].view(dtype).reshape(shape))


@compiled
def smooth(neighbors: NDArray[Any], values: NDArray[Any]) -> NDArray[Any]:
    """W @ values: the mean of each row's neighbours (n,).

    Examples
    --------
    >>> smooth(np.array([[0, 1], [1, 0]]), np.array([0.0, 4.0]))
    array([2., 2.])
    """
    n_rows, k = neighbors.shape
    out = np.empty(n_rows, values.dtype)
    for i in range(n_rows):
        total = values[neighbors[i, 0]]
        for t in range(1, k):
            total += values[neighbors[i, t]]
        out[i] = total / k
    return out


@compiled
def smooth_tiles(
    neighbors: NDArray[Any],
    reads: NDArray[Any],
    first_row: int,
    ring: NDArray[Any],
    live: NDArray[Any],
    now: int,
    shift: float,
    scale: float,
    keep: float,
    drop: float,
    lanes: tuple[int, ...],
    peaks: NDArray[Any],
    totals: NDArray[Any],
) -> None:
    """One pass: write `scale * (W - shift I) @ ring[now] + keep * ring[now - 1]` into `ring[now + 1]`.

    Parameters
    ----------
    neighbors, first_row
        The lists of some rows, from the first on: whole tiles of them.
    reads
        Tiles that the rows of each tile have neighbours in (tile, TILE_READS), filled up with the tile itself;
        READS_MANY in front for more than that.
    live
        Which tiles of each member of the ring are not 0 (s, tile); kept up here.
    drop
        Columns that stay below it in a tile become 0 there.
    lanes
        A tuple as long as a block is wide.
    peaks, totals
        Grow to the largest absolute value of every vector, and by the sum of its values (b,).
    """
    n_rows, k = first_row + neighbors.shape[0], neighbors.shape[1]
    before, then = (now - 1) % len(ring), (now + 1) % len(ring)
    block, out = ring[now], ring[then]
    previous = block if keep == 0 else ring[before]  # what is not needed is not read
    number = ring.dtype.type
    mean, own, kept, drop = number(scale / k), number(-scale * shift), number(keep), number(drop)
    highest = np.empty((2, len(peaks)), ring.dtype)
    for at in range(len(reads)):
        first = first_row + at * TILE_ROWS
        tile, last = first // TILE_ROWS, min(first + TILE_ROWS, n_rows)
        needed = reads[at, 0] == READS_MANY or (keep != 0 and live[before, tile])
        if not needed:
            for other in reads[at]:
                needed = needed or live[now, other]
        if not needed:
            if live[then, tile]:
                out[first:last] = 0
                live[then, tile] = False
            continue
        highest[:] = 0
        for row in range(first, last):
            smooth_row(neighbors, block, previous, out, highest, row, first_row, mean, own, kept, lanes)
        live[then, tile] = False
        for vector in range(len(peaks)):
            if highest[0, vector] >= drop:
                live[then, tile] = True
                peaks[vector] = max(peaks[vector], highest[0, vector])
                totals[vector] += highest[1, vector]
            elif highest[0, vector] > 0:
                out[first:last, vector] = 0


@compiled
def add_tiles(
    weights: NDArray[Any], ring: NDArray[Any], live: NDArray[Any], first: int, solution: NDArray[Any]
) -> None:
    """Add sum_p weights[l, p] * ring[first + p] to solution[l], in place.

    The solution is read and written once for all p: that costs more than to multiply.
    """
    n_lams, count = weights.shape
    size, width = TILE_ROWS * ring.shape[2], ring.shape[1] * ring.shape[2]
    flat, total = ring.reshape(len(ring), width), solution.reshape(n_lams, width)
    for tile in range(live.shape[1]):
        start, stop = tile * size, min((tile + 1) * size, width)
        for p in range(count):
            slot = (first + p) % len(ring)
            if live[slot, tile]:
                values = flat[slot, start:stop]
                for at in range(n_lams):
                    weight, sums = weights[at, p], total[at, start:stop]
                    for i in range(stop - start):
                        sums[i] += weight * values[i]


@compiled
def add_rows(
    weights: NDArray[Any],
    ring: NDArray[Any],
    live: NDArray[Any],
    first: int,
    rows: NDArray[Any],
    solution: NDArray[Any],
) -> None:
    """The same at some rows only: to solution[l, i] what belongs to row rows[i]."""
    n_lams, count = weights.shape
    for i in range(len(rows)):
        row = rows[i]
        for p in range(count):
            slot = (first + p) % len(ring)
            if live[slot, row // TILE_ROWS]:
                values = ring[slot, row]
                for at in range(n_lams):
                    weight, sums = weights[at, p], solution[at, i]
                    for vector in range(len(values)):
                        sums[vector] += weight * values[vector]


@compiled
def tile_reads(neighbors: NDArray[Any], first_row: int, n_rows: int) -> NDArray[np.uint32]:
    """Tiles that the rows of each tile have neighbours in: see `smooth_tiles`. Of some of `n_rows` rows."""
    k = neighbors.shape[1]
    n_tiles = -(-len(neighbors) // TILE_ROWS)
    reads = np.empty((n_tiles, TILE_READS), np.uint32)
    seen = np.full(-(-n_rows // TILE_ROWS), -1)
    for tile in range(n_tiles):
        reads[tile] = first_row // TILE_ROWS + tile
        count = 0
        for row in range(tile * TILE_ROWS, min((tile + 1) * TILE_ROWS, len(neighbors))):
            for t in range(k):
                other = neighbors[row, t] // TILE_ROWS
                if seen[other] != tile:
                    seen[other] = tile
                    if count < TILE_READS:
                        reads[tile, count] = other
                    count += 1
        if count > TILE_READS:
            reads[tile, 0] = READS_MANY
    return reads
