"""Fits of a sample: what is stored about it, and how well two samples agree on rows that are in neither."""

from dataclasses import dataclass
from typing import Annotated

import msgspec
import numpy as np

from cns_dask.array_types import IntArray
from cns_dask.storage.records import recordable

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Share = Annotated[float, msgspec.Meta(ge=-1, le=1)]


@recordable
@dataclass(frozen=True)
class Agreement:
    """Two fits of samples without a common row, compared on rows of neither."""

    n_rows: Count  # rows that were compared
    rand: Share  # adjusted Rand index of their labels: 1 if they are the same, about 0 by chance
    same: Share  # share of the rows with the same cluster, after the best matching of clusters
    n_clusters: tuple[int, int]  # of the fit that is stored, and of the other


@dataclass(frozen=True)
class Sample:
    """How the rows were drawn that were clustered; all others take the memberships of their nearest ones."""

    size: int | float  # rows, or their share, as asked for
    n_rows: Count  # rows that were drawn and clustered
    n_skipped: Count  # rows of all, drawn or not, with missing or infinite values
    agreement: Agreement | None = None  # with a second sample, if that was asked for


def agreement_of(table: IntArray) -> Agreement:
    """How far two clusterings agree, from the number of rows in each pair of clusters (first, second).

    Examples
    --------
    >>> agreement_of(np.array([[0, 50], [45, 5]])).same
    0.95
    """
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics import adjusted_rand_score

    n_rows = int(table.sum())
    first, second = (np.repeat(labels.ravel(), table.ravel()) for labels in np.indices(table.shape))
    matched = int(table[linear_sum_assignment(table, maximize=True)].sum())
    rand = float(adjusted_rand_score(first, second)) if n_rows else 0.0
    return Agreement(n_rows, rand, matched / max(1, n_rows), (table.shape[0], table.shape[1]))


def sample_in_words(sample: Sample, n_rows: int) -> str:
    """What a reader should know about a sample, in a sentence or two.

    Examples
    --------
    >>> sample_in_words(Sample(1000, 998, 0), 50_000)
    'Sample: 998 of 50000 rows were clustered, the others take the memberships of their nearest ones. How well they \
speak for all was not measured: check_sample=True does.'
    """
    share = (
        f"Sample: {sample.n_rows} of {n_rows} rows were clustered, the others take the memberships of their nearest "
        "ones."
    )
    agreement = sample.agreement
    if agreement is None:
        return f"{share} How well they speak for all was not measured: check_sample=True does."
    ours, other = agreement.n_clusters
    return (
        f"{share} A second sample gave {other} cluster{'s' if other != 1 else ''} ({ours} here), and the same one for "
        f"{agreement.same:.1%} of {agreement.n_rows} rows of neither (adjusted Rand index {agreement.rand:.3f})."
    )
