"""Data that tests are run on."""

import numpy as np


def mixture(n_rows, n_features, n_clusters, spread, seed):
    """Overlapping Gaussian clusters without ties (n_rows, n_features)."""
    rng = np.random.default_rng(seed)
    centers = spread * rng.standard_normal((n_clusters, n_features))
    return centers[rng.integers(n_clusters, size=n_rows)] + rng.standard_normal((n_rows, n_features))
