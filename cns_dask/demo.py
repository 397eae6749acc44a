"""A small data set to try the method on."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from cns_dask.array_types import FloatArray

if TYPE_CHECKING:
    from cns_dask.results.result import Result


def demo_points(n_rows: int = 3000, n_features: int = 8, n_clusters: int = 6, seed: int = 1) -> FloatArray:
    """Overlapping clusters of different size and spread (n_rows, n_features), in random order."""
    rng = np.random.default_rng(seed)
    centers = 2.0 * rng.standard_normal((n_clusters, n_features))
    spreads = rng.uniform(0.7, 1.3, n_clusters)
    of_row = rng.choice(n_clusters, n_rows, p=rng.dirichlet(np.full(n_clusters, 8.0)))
    return np.asarray(centers[of_row] + spreads[of_row, None] * rng.standard_normal((n_rows, n_features)))


@cache
def demo_result() -> Result:
    """The result of a fit of 300 demo points: what examples in docstrings look at."""
    from cns_dask.estimator import CNS

    return CNS().fit(demo_points(300)).result_
