"""Greedy picks: which candidates represent clusters.

| symbol | variable   | shape      | meaning                                                    |
|--------|------------|------------|------------------------------------------------------------|
| x_j    | absorption | (c, rows)  | visits to candidate j from every row, up to a common factor |
| s_j    | sums       | (c,)       | sum of x_j                                                 |
| c_jl   | products   | (c, c)     | inner products x_j . x_l                                   |
"""

from typing import NamedTuple

import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.numeric import TIE


class Gram(NamedTuple):
    """Sums over rows of the candidates' absorption, and where walks from the candidates themselves end."""

    sums: FloatArray  # s_j (lam, c)
    products: FloatArray  # c_jl (lam, c, c)
    masses: FloatArray  # rows whose largest absorption is at each candidate, for the smallest lam (c,)
    absorbed: FloatArray  # absorption of walks from candidate i at candidate j, for the smallest lam (c, c)


def gram_block(absorption: ArrayLike, rows: slice, positions: IntArray) -> Gram:
    """The part of some rows in these sums; `positions` are those of the candidates among all rows.

    `absorption` (lam, candidate, row) may be anything that is sliced like an array. A common factor, as lam, does not
    matter: the picks compare s_j, and c_jl / s_j^2.
    """
    n_lams, count, _ = absorption.shape
    sums, products = np.empty((n_lams, count)), np.empty((n_lams, count, count))
    masses, absorbed = np.zeros(count), np.zeros((count, count))
    for at in range(n_lams):
        block = np.asarray(absorption[at, :, rows]).astype(np.float64)  # ties at 1e-9 must not hang on the processor
        sums[at], products[at] = block.sum(axis=1), block @ block.T
        if at == 0:
            largest = block.argmax(axis=0)
            masses += np.bincount(largest[block.max(axis=0) > 0], minlength=count)
            here = (positions >= rows.start) & (positions < rows.stop)
            absorbed[here] = block[:, positions[here] - rows.start].T
    return Gram(sums, products, masses, absorbed)


def sum_grams(grams: list[Gram]) -> Gram:
    """The sums over the rows of several blocks, added in order."""
    return Gram(*(sum(parts[1:], parts[0]) for parts in zip(*grams, strict=True)))


def greedy_picks(sums: FloatArray, products: FloatArray, limit: int) -> IntArray:
    """Positions of the picked candidates, in order; the picks for K clusters are the first K.

    First the largest s_j; then always the candidate that overlaps least with those chosen, by the smallest
    max over chosen l of c_jl / s_j^2. Ties go to the lowest position. The sums (c,) and products (c, c) are
    over all rows.
    """
    overlaps = products / sums[:, None] ** 2
    picks = [first_best(sums)]
    worst = np.full(len(sums), -np.inf)
    while len(picks) < min(limit, len(sums)):
        worst = np.maximum(worst, overlaps[:, picks[-1]])
        worst[picks] = np.inf
        picks.append(first_best(-worst))
    return np.array(picks)


def picks_of_lams(gram: Gram, slots: IntArray, limit: int) -> IntArray:
    """Picked candidates of every lam (lam, picks); `slots` tells where each one stands in the Gram matrix."""
    of_lams = zip(gram.sums, gram.products, strict=True)
    return np.array([greedy_picks(s[slots], c[np.ix_(slots, slots)], limit) for s, c in of_lams])


def first_best(values: FloatArray) -> int:
    """Position of the first value that ties with the largest.

    Examples
    --------
    >>> first_best(np.array([1.0, 3.0, 3.0]))
    1
    """
    top = values.max()
    return int(np.argmax(values >= top - TIE * abs(top)))
