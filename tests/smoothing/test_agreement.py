"""The choice does not hang on rounding: looser and tighter grids, and other seeds, give the same clusters."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from cns_dask import CNS

pytestmark = pytest.mark.slow

#: Clusters, features, distance of their centers in standard deviations, rows.
SETS = [
    (2, 2, 6, 25_000),
    pytest.param(2, 2, 4, 40_000, marks=pytest.mark.xfail(reason="two clusters overlap: seeds agree with ARI 0.96")),
    (3, 2, 5, 60_000),
    (5, 2, 6, 30_000),
    (2, 3, 6, 120_000),
    (2, 3, 4, 30_000),
    (3, 3, 5, 25_000),
    (4, 3, 6, 50_000),
    pytest.param(2, 4, 4, 40_000, marks=pytest.mark.xfail(reason="two clusters overlap: seeds agree with ARI 0.90")),
    (3, 4, 6, 100_000),
    (5, 4, 5, 25_000),
    (2, 6, 6, 30_000),
    (4, 6, 4, 40_000),
    (6, 6, 5, 60_000),
    (2, 8, 4, 120_000),
    (3, 8, 6, 30_000),
    (5, 8, 4, 25_000),
    (2, 10, 6, 200_000),
    (3, 10, 4, 40_000),
    (6, 10, 5, 30_000),
]


@pytest.mark.parametrize(("n_clusters", "n_features", "apart", "n_rows"), SETS)
def test_tolerances_and_seeds_agree(n_clusters, n_features, apart, n_rows):
    rng = np.random.default_rng(n_clusters * n_features)
    centers = rng.standard_normal((n_clusters, n_features))
    distances = np.linalg.norm(centers[:, None] - centers, axis=-1)
    centers *= apart / distances[distances > 0].min()
    X = centers[rng.integers(n_clusters, size=n_rows)] + rng.standard_normal((n_rows, n_features))
    first = CNS().fit(X).labels_
    for options in ({"grid_tol": 1e-7}, {"random_state": 1}, {"random_state": 2}):
        labels = CNS(**options).fit(X).labels_
        assert len(np.unique(labels)) == len(np.unique(first)), options
        assert adjusted_rand_score(first, labels) > 0.97, options
