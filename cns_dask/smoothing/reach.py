"""Rows that walks leave for a cluster so rarely that a solve rounds it to 0: they reach it all the same.

A solve drops values far below its tolerance, so the absorption P of rows far from every source is 0, as that of rows
from which no walk leads to a source. Only the graph tells these apart. So where P is not positive it is replaced by

    P_i = (1-lam) * mean of P over the neighbors of i,

the equation that it solves, from row to row, until nothing changes. Rows that reach no source keep 0.
"""

import numba
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.smoothing.walk import Walk

#: Smallest absorption of a row that reaches a source.
LEAST_ABSORPTION = 1e-300


def spread_reach(walk: Walk, P: FloatArray, lam: float) -> None:
    """Make the absorption P (n, K) positive wherever walks reach a source, in place; rows are those of the walk."""
    np.maximum(P, 0, out=P)
    parts = [*walk.parts, *reversed(walk.parts)]
    changed = True
    while changed:
        changed = False
        for at, part in enumerate(parts):  # forward, then backward: rows lie in a local order
            changed |= _spread(part.neighbors, part.first_row, P, 1 - lam, at >= len(walk.parts))


@numba.njit(cache=True, nogil=True)  # type: ignore[untyped-decorator, unused-ignore]
def _spread(neighbors: IntArray, first_row: int, P: FloatArray, damping: float, is_backward: bool) -> bool:
    n_rows, k = neighbors.shape
    changed = False
    for step in range(n_rows):
        at = n_rows - 1 - step if is_backward else step
        row = first_row + at
        for column in range(P.shape[1]):
            if P[row, column] > 0:
                continue
            total = 0.0
            for nth in range(k):
                total += P[neighbors[at, nth], column]
            if total > 0:
                P[row, column] = max(damping * total / k, LEAST_ABSORPTION)
                changed = True
    return changed
