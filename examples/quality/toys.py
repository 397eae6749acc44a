"""Data whose answer anybody can see: scikit-learn's gallery, mixtures, and data without any cluster."""

import numpy as np
from sklearn.datasets import make_blobs, make_circles, make_moons


def moons(n, seed):
    return make_moons(n, noise=0.05, random_state=seed)


def circles(n, seed):
    return make_circles(n, factor=0.5, noise=0.05, random_state=seed)


def blobs(n, seed):
    return make_blobs(n, random_state=8 + seed)


def varied(n, seed):
    return make_blobs(n, cluster_std=[1.0, 2.5, 0.5], random_state=170 + seed)


def anisotropic(n, seed):
    X, y = make_blobs(n, random_state=170 + seed)
    return X @ np.array([[0.6, -0.6], [-0.4, 0.8]]), y


def mixture(n_clusters, n_features, spread):
    """Overlapping Gaussian clusters of unit variance, their centres normal with this spread."""

    def make(n, seed):
        rng = np.random.default_rng(seed)
        centers = spread * rng.standard_normal((n_clusters, n_features))
        y = rng.integers(n_clusters, size=n)
        return centers[y] + rng.standard_normal((n, n_features)), y

    return make


def uniform(n_features):
    def make(n, seed):
        return np.random.default_rng(seed).random((n, n_features)), np.zeros(n, int)

    return make


def gaussian(n_features):
    def make(n, seed):
        return np.random.default_rng(seed).standard_normal((n, n_features)), np.zeros(n, int)

    return make


TOYS = {
    "moons": moons,
    "circles": circles,
    "blobs": blobs,
    "anisotropic": anisotropic,
    "varied": varied,
    "mixture_8x8": mixture(8, 8, 2.0),
    "mixture_25x16": mixture(25, 16, 1.6),
}
WITHOUT_CLUSTERS = {
    "uniform_2d": uniform(2),
    "uniform_3d": uniform(3),
    "gaussian_2d": gaussian(2),
    "gaussian_10d": gaussian(10),
}


def gaussians(n_clusters, separation, n_features, weights=None, *, aligned=False):
    """Gaussians of unit variance, the nearest centers this far apart; `aligned` ones differ in the first features."""

    def make(n, seed):
        rng = np.random.default_rng(seed)
        centers = np.zeros((n_clusters, n_features))
        if n_clusters <= n_features + 1:
            simplex = np.eye(n_clusters) / np.sqrt(2)
            axes = np.linalg.svd(simplex - simplex.mean(axis=0))[2][: n_clusters - 1]
            centers[:, : n_clusters - 1] = separation * (simplex - simplex.mean(axis=0)) @ axes.T
        else:
            centers = rng.standard_normal(centers.shape)
            distances = np.linalg.norm(centers[:, None] - centers[None], axis=-1)
            centers *= separation / distances[distances > 0].min()
        if not aligned:
            centers = centers @ np.linalg.qr(rng.standard_normal((n_features, n_features)))[0]
        y = rng.choice(n_clusters, n, p=weights)
        return centers[y] + rng.standard_normal((n, n_features)), y

    return make


def small_blobs(_, seed):
    """Blobs of 1000, 50 and 20 rows in the plane."""
    rng = np.random.default_rng(seed)
    y = np.repeat([0, 1, 2], [1000, 50, 20])
    return np.array([[0, 0], [7, 0], [0, 7]])[y] + rng.standard_normal((len(y), 2)), y


def touching_blobs(n, seed):
    """Two blobs in the plane, 3.5 standard deviations apart."""
    return gaussians(2, 3.5, 2)(max(n, 50_000), seed)


def noisy_moons(n, seed):
    return make_moons(n, noise=0.15, random_state=seed)


def one_feature(n, seed):
    """Five groups in one of eight features."""
    rng = np.random.default_rng(seed)
    y = rng.integers(5, size=n)
    X = rng.standard_normal((n, 8))
    X[:, 0] += 6 * y
    return X, y


def without(kind, n_features):
    """Data without clusters, of some distribution."""

    def make(n, seed):
        rng, shape = np.random.default_rng(seed), (n, n_features)
        if kind == "sphere":
            X = rng.standard_normal(shape)
            return X / np.linalg.norm(X, axis=1, keepdims=True), np.zeros(n, int)
        draw = {
            "gaussian": rng.standard_normal,
            "uniform": rng.random,
            "t": lambda shape: rng.standard_t(5, shape),
            "exponential": lambda shape: rng.exponential(size=shape),
            "lognormal": lambda shape: rng.lognormal(size=shape),
        }
        return draw[kind](shape), np.zeros(n, int)

    return make


MIXTURES = {
    f"{K} Gaussians, {separation} sigma, {d} features": gaussians(K, separation, d)
    for K in (2, 3, 8)
    for separation in (4, 6)
    for d in (4, 8, 20)
}
ALIGNED = {
    f"{K} aligned Gaussians, {separation} sigma, {d} features": gaussians(K, separation, d, aligned=True)
    for K in (2, 3)
    for separation in (4, 6)
    for d in (4, 8, 20)
}
TOUCHING = {
    "1000, 50 and 20 rows": small_blobs,
    "two blobs, 3.5 sigma": touching_blobs,
    "moons, noise 0.15": noisy_moons,
    "five groups in one of 8 features": one_feature,
}
UNBALANCED = {
    f"{' : '.join(f'{100 * share:.0f}' for share in shares)}, {separation} sigma, {d} features": gaussians(
        len(shares), separation, d, shares
    )
    for shares in ((0.99, 0.01), (0.9, 0.09, 0.01))
    for separation in (4, 5, 6)
    for d in (2, 10)
}
NULLS = {
    f"{kind}, {d} features": without(kind, d)
    for kind in ("gaussian", "uniform", "t", "sphere", "exponential", "lognormal")
    for d in (2, 3, 5, 10, 20, 50)
}
