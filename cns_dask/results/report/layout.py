"""A layout of clusters in two dimensions, from how much they overlap, and of rows between them."""

from __future__ import annotations

import numpy as np

from cns_dask.array_types import FloatArray, IntArray

FORCE_STEPS = 300
SPREAD = 0.42  # radius of the disc of a cluster's rows, in units of the distance to the nearest other cluster


def place_clusters(affinity: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Positions (K, 2) and radii (K,) of clusters: near where they overlap much.

    Laplacian eigenvectors of the overlap give the start, and springs the rest: all clusters repel one another, those
    that overlap are drawn together.

    Parameters
    ----------
    affinity
        Symmetric and not negative (K, K); the diagonal does not count.

    Examples
    --------
    >>> nodes, _ = place_clusters(np.array([[0, 0.5, 0], [0.5, 0, 0.1], [0, 0.1, 0]]))
    >>> gaps = np.linalg.norm(nodes[[0, 1, 0]] - nodes[[1, 2, 2]], axis=1)
    >>> bool(gaps[0] < gaps[2]) and bool(gaps[1] < gaps[2])
    True
    """
    K = len(affinity)
    if K == 1:
        return np.zeros((1, 2)), np.ones(1)
    weights = np.array(affinity, np.float64)
    np.fill_diagonal(weights, 0)
    weights /= max(weights.max(), 1e-12)
    nodes = _spring(_spectral(weights), weights)
    gaps = np.linalg.norm(nodes[:, None] - nodes[None], axis=2)
    np.fill_diagonal(gaps, np.inf)
    nearest = gaps.min(axis=1)
    return nodes, SPREAD * np.minimum(nearest, 1.3 * np.median(nearest))


def _spectral(weights: FloatArray) -> FloatArray:
    """The start: the second and third eigenvector of the Laplacian; a little of a circle tells equal ones apart."""
    K = len(weights)
    angles = 2 * np.pi * np.arange(K) / K
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if K == 2:
        return circle
    base = weights + 1e-3  # connected
    root = np.sqrt(base.sum(axis=1))
    vectors = np.linalg.eigh(base / root[:, None] / root)[1][:, ::-1][:, 1:3] / root[:, None]
    signs = np.where(np.take_along_axis(vectors, np.abs(vectors).argmax(axis=0)[None], axis=0) < 0, -1.0, 1.0)
    vectors = vectors * signs
    return np.asarray(vectors / np.maximum(np.abs(vectors).max(axis=0), 1e-12) + 0.15 * circle)


def _spring(nodes: FloatArray, weights: FloatArray) -> FloatArray:
    """Fruchterman and Reingold's forces, with ever smaller steps."""
    K = len(nodes)
    length = 2 / np.sqrt(K)
    pull = 0.05 + np.sqrt(weights)
    for step in range(FORCE_STEPS):
        difference = nodes[:, None] - nodes[None]
        distance = np.maximum(np.linalg.norm(difference, axis=2), 1e-6)
        force = length**2 / distance**2 - pull * distance / length
        np.fill_diagonal(force, 0)
        move = (difference * force[..., None]).sum(axis=1)
        size = np.maximum(np.linalg.norm(move, axis=1, keepdims=True), 1e-12)
        nodes = nodes + move / size * np.minimum(size, 0.1 * (1 - step / FORCE_STEPS))
    return np.asarray(nodes - nodes.mean(axis=0))


def place_rows(shares: FloatArray, nodes: FloatArray, radii: FloatArray, first: int = 0) -> FloatArray:
    """Rows (m, 2) at the mean of their clusters, weighted by their shares (m, K); NaN where these are.

    Rows of one cluster alone would all lie on one spot, so every row is moved inside the disc of its clusters, by its
    row number only: `first` is that of the first.
    """
    moved = in_disc(np.arange(first, first + len(shares)))
    return np.asarray(shares @ nodes + (shares @ radii)[:, None] * moved)


def in_disc(numbers: IntArray) -> FloatArray:
    """Points of the unit disc (m, 2), spread as if at random: each depends on its number alone."""
    golden = np.array([0.7548776662466927, 0.5698402909980532])  # of Roberts' sequence in two dimensions
    u, v = (((numbers + 1)[:, None] * golden) % 1.0).T
    return np.asarray(np.stack([np.cos(2 * np.pi * u), np.sin(2 * np.pi * u)], axis=1) * np.sqrt(v)[:, None])
