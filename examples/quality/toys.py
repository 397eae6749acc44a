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
