"""Block mathematics on NumPy arrays; no Dask, no files.

| symbol | variable    | shape     | meaning                                              |
|--------|-------------|-----------|------------------------------------------------------|
| N_k    | `neighbors` | (n, k)    | the k nearest rows of every row, the row itself first |
| W      | `neighbors` | (n, k)    | transition matrix: 1/k at each listed neighbour       |
| V      | `block`     | (n, b)    | columns that are smoothed together                   |

The kernels that loop are compiled by Numba without fast-math, in one fixed order of operations: a row's result
depends on the row alone, never on its place in a block, so chunking cannot change a bit of it. They hold no lock
(`nogil`) and start no threads of their own: one block per Dask thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from scipy.linalg.blas import dgemm

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Values closer than this count as tied: the order of additions must not decide.
TIE = 1e-9

_compiled = numba.njit(nogil=True, cache=True)


@_compiled
def smooth_block(
    neighbors: NDArray[Any],
    block: NDArray[Any],
    shift: float,
    scale: float,
    previous: NDArray[Any],
    keep: float,
    out: NDArray[Any],
) -> None:
    """Write `scale * (W - shift I) @ block + keep * previous` into `out`: one pass over the graph.

    With shift 0, scale 1 and keep 0 this is the plain smoothing pass: the mean of the k gathered rows.
    """
    n_rows, n_neighbors = neighbors.shape
    width = block.shape[1]
    in_fours = n_neighbors - n_neighbors % 4
    for i in range(n_rows):
        row = out[i]
        row[:] = 0
        for t in range(0, in_fours, 4):  # four gathered rows for each time that the sum is read and written
            first, second = block[neighbors[i, t]], block[neighbors[i, t + 1]]
            third, fourth = block[neighbors[i, t + 2]], block[neighbors[i, t + 3]]
            for c in range(width):
                row[c] = row[c] + first[c] + second[c] + third[c] + fourth[c]
        for t in range(in_fours, n_neighbors):
            gathered = block[neighbors[i, t]]
            for c in range(width):
                row[c] += gathered[c]
        for c in range(width):
            row[c] = scale * (row[c] / n_neighbors - shift * block[i, c]) + keep * previous[i, c]


def add_products(weights: NDArray[Any], blocks: NDArray[Any], total: NDArray[Any]) -> None:
    """Add sum_p weights[l, p] * blocks[p] to total[l], in place: one BLAS call without a temporary array.

    `weights` (l, p), `blocks` (p, n, b) and `total` (l, n, b) are contiguous.
    """
    flat = total.reshape(len(total), -1)
    added = dgemm(1.0, blocks.reshape(len(blocks), -1).T, weights.T, beta=1.0, c=flat.T, overwrite_c=True)
    if not np.shares_memory(added, total):
        raise ValueError("total must be contiguous to be added to in place.")


@_compiled
def nearest_block(
    queries: NDArray[Any],
    query_rows: NDArray[Any],
    rows: NDArray[Any],
    first_row: int,
    bounds: NDArray[Any],
    distances: NDArray[Any],
    indices: NDArray[Any],
) -> None:
    """Merge `rows` into the running nearest lists of `queries`, in place.

    A pair is measured by direct differences (exact, symmetric, the same in every block) only if its cheap lower bound
    does not already exclude it. The lists stay sorted by squared distance, then by row number, because rows arrive in
    ascending order and an equal distance never overtakes.

    Parameters
    ----------
    queries, query_rows
        The query points (m, d) and their own row numbers (m,), which are skipped; -1 for points from outside.
    rows, first_row
        The reference points (r, d), which are the rows `first_row` and following.
    bounds
        Lower bounds of the squared distances (m, r).
    distances, indices
        Squared distances and row numbers of the nearest so far (m, k): inf and -1 where still free.
    """
    n_features = queries.shape[1]
    last = distances.shape[1] - 1
    for i in range(queries.shape[0]):
        for j in range(rows.shape[0]):
            if bounds[i, j] >= distances[i, last] or first_row + j == query_rows[i]:
                continue
            squared = 0.0
            for f in range(n_features):
                difference = queries[i, f] - rows[j, f]
                squared += difference * difference
            if squared >= distances[i, last]:
                continue
            slot = last
            while slot > 0 and distances[i, slot - 1] > squared:
                distances[i, slot] = distances[i, slot - 1]
                indices[i, slot] = indices[i, slot - 1]
                slot -= 1
            distances[i, slot] = squared
            indices[i, slot] = first_row + j


@_compiled
def project_block(rows: NDArray[Any], components: NDArray[Any], out: NDArray[Any]) -> None:
    """Add `rows @ components` to `out`, feature by feature.

    A BLAS product rounds differently with the shape of the block and would tear duplicate rows apart.
    """
    n_features, n_components = components.shape
    for i in range(rows.shape[0]):
        for f in range(n_features):
            for c in range(n_components):
                out[i, c] += rows[i, f] * components[f, c]


def first_best(values: NDArray[Any]) -> int:
    """Position of the first value that ties with the largest.

    Examples
    --------
    >>> first_best(np.array([1.0, 3.0, 3.0]))
    1
    """
    top = values.max()
    return int(np.argmax(values >= top - TIE * abs(top)))
