"""Rows to search among, and what all lists of neighbours must be."""

import numpy as np
from generators import mixture


def blobs_of(n_rows, n_features, seed=0):
    """Eight overlapping clusters (n_rows, n_features)."""
    return mixture(n_rows, n_features, n_clusters=8, spread=3, seed=seed)


def assert_well_formed(indices, distances):
    """Every list is full: the row itself first, then different rows by distance."""
    np.testing.assert_array_equal(indices[:, 0], np.arange(len(indices)))
    ordered = np.sort(indices, axis=1)
    assert (ordered[:, 1:] > ordered[:, :-1]).all()
    assert ordered[:, 0].min() >= 0
    assert ordered[:, -1].max() < len(indices)
    assert (np.diff(distances, axis=1) >= 0).all()


def sorted_lists(queries, query_rows, points, rows, k):
    """The k nearest others of every query, from a full sort: squared distances and row numbers; inf and -1 if fewer."""
    squared = ((queries[:, None] - points[None]) ** 2).sum(axis=2)
    distances, indices = np.full((len(queries), k), np.inf, queries.dtype), np.full((len(queries), k), -1)
    for i, row in enumerate(query_rows):
        others = np.flatnonzero(rows != row)
        nearest = others[np.lexsort((rows[others], squared[i, others]))][:k]
        distances[i, : len(nearest)], indices[i, : len(nearest)] = squared[i, nearest], rows[nearest]
    return distances, indices
