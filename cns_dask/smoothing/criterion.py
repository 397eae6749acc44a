"""The criterion C / R over (k, lam, K), and the choice.

C(lam, k, K) = mean_i max_j F_ij - (n - K + K^2) / (n K)         R(lam, k) = (1 - lam) (1/sqrt(k) - 1/sqrt(n))^2

max_j F_ij for K clusters is 1/K + cummax_K(P_i) - cumsum_K(P_i) / K, so one pass over the absorption P at the picks
gives the criterion of every K.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.numeric import TIE
from cns_dask.settings import Grid
from cns_dask.storage.records import recordable


@recordable
@dataclass(frozen=True)
class Choice:
    """A (k, lam, K) and its criterion: the chosen one."""

    n_neighbors: int  # which it is: k, lam and K
    lam: float
    n_clusters: int
    value: float  # its criterion C / R, or the evidence for its scale
    margin: float | None  # by how much that of the second best is smaller; None if there was no other
    selection: str = "paper"  # what has chosen it: the paper's criterion, or "scales"


#: Parts that rows are dealt out to: how the criterion differs between them tells its noise.
PARTS = 8


def largest_memberships_block(
    absorption: ArrayLike, rows: slice, slots: IntArray, picks: IntArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Sum over some rows of max_j F_ij, for every lam and K = 1, 2, ..., number of picks (lam, K).

    Also the same sums of the rows of each part (part, lam, K), and the number of rows in each of K clusters (lam, K,
    cluster). `absorption` (lam, slot, row) may be anything that is sliced like an array, `slots` tells the slot of each
    candidate, and `picks` (lam, K) the picked candidates.
    """
    K = np.arange(1, picks.shape[1] + 1)
    sums, parts = np.empty(picks.shape), np.empty((PARTS, *picks.shape))
    sizes = np.zeros((*picks.shape, picks.shape[1]), np.int64)
    for at, picked in enumerate(slots[picks].tolist()):
        P = np.stack([np.asarray(absorption[at, slot, rows]) for slot in picked])  # nothing else is read
        largest = np.maximum.accumulate(P, axis=0)
        every = [slice(None), *(slice((part - rows.start) % PARTS, None, PARTS) for part in range(PARTS))]
        for some, total in zip(every, (sums, *parts), strict=True):
            values, tops = P[:, some], largest[:, some].sum(axis=1, dtype=np.float64)
            total[at] = values.shape[1] / K + tops - np.cumsum(values.sum(axis=1, dtype=np.float64)) / K
        label = np.zeros(P.shape[1], np.intp)
        for nth in range(len(P)):
            label[P[nth] > largest[max(nth - 1, 0)]] = nth
            sizes[at, nth, : nth + 1] = np.bincount(label, minlength=nth + 1)
    return sums, parts, sizes


def grid_point_criterion(sums: FloatArray, n_rows: int, n_neighbors: int, lam: float, limit: int) -> FloatArray:
    """C / R of one (k, lam) for K = 1, ..., limit; NaN for more clusters than candidates.

    `sums` (K,) are the sums of largest memberships over all rows.
    """
    mean = sums / n_rows
    K = np.arange(1, len(mean) + 1)
    C = mean - (n_rows - K + K**2) / (n_rows * K)
    C[0] = 0.0  # by definition: one cluster explains nothing
    values = np.full(limit, np.nan)
    values[: len(C)] = C / penalty(n_rows, n_neighbors, lam)
    return values


@recordable
@dataclass(frozen=True)
class Criterion:
    """C / R of one k, for every lam and K (lam, K)."""

    values: FloatArray
    parts: FloatArray  # the same of every part of the rows (part, lam, K)
    smallest: IntArray  # rows of the smallest cluster (lam, K)


def criterion_of_lams(
    blocks: list[tuple[FloatArray, FloatArray, IntArray]],
    n_rows: int,
    n_summed: int,
    n_neighbors: int,
    lams: tuple[float, ...],
    limit: int,
) -> Criterion:
    """The criterion of one k for K = 1, ..., limit, from the sums of blocks of all rows, or of `n_summed` of them."""
    total, parts, sizes = (sum(each[1:], each[0]) for each in zip(*blocks, strict=True))
    total, sizes = total * (n_rows / n_summed), np.rint(sizes * (n_rows / n_summed)).astype(np.int64)

    def of(sums: FloatArray) -> FloatArray:
        return np.array(
            [grid_point_criterion(sums[at], n_rows, n_neighbors, lam, limit) for at, lam in enumerate(lams)]
        )

    rows_of_parts = [len(range(part, n_summed, PARTS)) or np.nan for part in range(PARTS)]
    smallest = np.zeros((len(lams), limit), np.int64)
    for nth in range(sizes.shape[1]):
        smallest[:, nth] = sizes[:, nth, : nth + 1].min(axis=1)
    of_parts = np.array([of(sums * (n_rows / rows)) for sums, rows in zip(parts, rows_of_parts, strict=True)])
    return Criterion(of(total), of_parts, smallest)


def penalty(n_rows: int, n_neighbors: int, lam: float) -> float:
    """R(lam, k)."""
    return float((1 - lam) * (n_neighbors**-0.5 - n_rows**-0.5) ** 2)


def choose(surface: FloatArray, grid: Grid, n_rows: int, n_clusters: int | None = None) -> Choice:
    """The (k, lam, K) with the largest criterion; ties go to the smallest lam, then k, then K.

    Ties are ties of C, a mean of solved memberships: the small R of large k would turn their last digits into a choice.

    Parameters
    ----------
    surface
        Criterion (k, lam, K).
    grid
        The ks and lams of its axes; its third axis is K = 1, 2, ...
    n_rows
        Number of rows of the fit.
    n_clusters
        Look only at this K.
    """
    allowed = surface.copy()
    if n_clusters is not None:
        allowed[:, :, np.arange(surface.shape[2]) != n_clusters - 1] = np.nan
    if np.isnan(allowed).all():
        raise ValueError(f"No grid point has {n_clusters or 'any number of'} clusters.")
    by_lam = allowed.transpose(1, 0, 2)
    value = float(np.nanmax(by_lam))
    known_to = TIE / np.array([[[penalty(n_rows, k, lam)] for k in grid.ks] for lam in grid.lams])  # (lam, k, 1)
    least = np.nanmax(by_lam - known_to)
    tied: NDArray[np.bool_] = by_lam + known_to >= least
    at_lam, at_k, at_K = np.unravel_index(int(np.argmax(tied)), by_lam.shape)
    others = by_lam.copy()
    others[at_lam, at_k, at_K] = np.nan
    margin = None if np.isnan(others).all() else value - float(np.nanmax(others))
    return Choice(grid.ks[at_k], grid.lams[at_lam], int(at_K) + 1, value, margin)


def best_by_n_clusters(surface: FloatArray, grid: Grid, n_rows: int) -> list[Choice]:
    """The best (k, lam) of every available K, best first."""
    available = np.flatnonzero(~np.isnan(surface).all(axis=(0, 1))) + 1
    return sorted((choose(surface, grid, n_rows, int(K)) for K in available), key=lambda choice: -choice.value)
