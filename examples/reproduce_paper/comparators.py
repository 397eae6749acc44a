"""The methods that are compared. Each takes the rows of a data set and returns a label for every row.

Names are the paper's. KM, GMM and HDB run as its protocol says, MS and SC as near to it as libraries allow. CNSe and
CNSc choose by the paper's criterion, AUTOe and AUTOc as this package does by default; e is the Euclidean, c the cosine
distance. MCL is Markov clustering, which has no column in the paper.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from math import ceil, log

import numpy as np
from scipy.sparse import eye_array
from scipy.sparse.csgraph import laplacian
from scipy.sparse.linalg import eigsh
from sklearn.cluster import KMeans, SpectralClustering
from sklearn.decomposition import PCA
from sklearn.metrics import silhouette_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors, kneighbors_graph
from sklearn.preprocessing import StandardScaler

MOST_CLUSTERS = 30
MOST_FEATURES = 100
#: Method -> the package that it needs beyond those of cns_dask.
PACKAGES = {"HDB": "hdbscan", "MCL": "markov_clustering"}


def prepare(X: np.ndarray) -> np.ndarray:
    """Features of mean 0 and variance 1 without constant ones, or their first 100 principal components."""
    X = StandardScaler().fit_transform(X[:, np.ptp(X, axis=0) > 0].astype(float))
    return PCA(MOST_FEATURES, svd_solver="full").fit_transform(X) if X.shape[1] > MOST_FEATURES else X


def cns(X: np.ndarray, metric: str, selection: str) -> np.ndarray:
    from cns_dask import CNS

    return CNS(metric=metric, selection=selection).fit(X).labels_


def k_means(X: np.ndarray) -> np.ndarray:
    """Ten k-means++ starts for every K from 2 to 30; the K with the largest silhouette."""
    X = prepare(X)
    tried = [KMeans(K, n_init=10, random_state=0).fit_predict(X) for K in range(2, MOST_CLUSTERS + 1)]
    return max(tried, key=lambda labels: silhouette_score(X, labels))


def gaussian_mixture(X: np.ndarray) -> np.ndarray:
    """Up to 30 components with full, tied, diagonal or spherical covariances; the model with the smallest BIC."""
    X = prepare(X)
    models = (
        GaussianMixture(K, covariance_type=kind, random_state=0).fit(X)
        for kind in ("full", "tied", "diag", "spherical")
        for K in range(1, MOST_CLUSTERS + 1)
    )
    return min(models, key=lambda model: model.bic(X)).predict(X)


def hdbscan(X: np.ndarray) -> np.ndarray:
    """min_samples and min_cluster_size both 1/3, 1/2, 1, 2, 3 or 4 times log n; the one with the largest DBCV.

    DBCV is `hdbscan.validity.validity_index`. It is not defined where a cluster consists of copies of one row; if that
    is so for every size, hdbscan's own approximation decides. Noise joins the cluster of the nearest row that has one.
    """
    from hdbscan import HDBSCAN

    X = prepare(X)
    sizes = {max(2, ceil(factor * log(len(X)))) for factor in (1 / 3, 1 / 2, 1, 2, 3, 4)}
    models = [HDBSCAN(size, min_samples=size, gen_min_span_tree=True).fit(X) for size in sorted(sizes)]
    models = [model for model in models if model.labels_.max() > 0]  # DBCV needs two clusters
    if not models:
        return np.zeros(len(X), int)
    validities = [dbcv(X, model.labels_) for model in models]
    if np.isnan(validities).all():
        validities = [model.relative_validity_ for model in models]
    chosen = models[np.nanargmax(validities)].labels_
    in_cluster = chosen >= 0
    nearest = NearestNeighbors(n_neighbors=1).fit(X[in_cluster]).kneighbors(X, return_distance=False)[:, 0]
    return np.where(in_cluster, chosen, chosen[in_cluster][nearest])


def dbcv(X: np.ndarray, labels: np.ndarray) -> float:
    from hdbscan.validity import validity_index

    try:
        return float(validity_index(X, labels))
    except (AssertionError, ValueError):  # a cluster of copies only
        return float("nan")


def mean_shift(X: np.ndarray) -> np.ndarray:
    """Every row moves to the densest of its ceil(log n) nearest rows until it stays; rows that meet are a cluster.

    The density is the inverse of the distance to the last of them. Written here because no maintained library has it:
    scikit-learn's MeanShift has a window of fixed width. Rows that move to the mean of their nearest rows, not to one
    of them, end at nearly as many places as there are rows when k is this small.
    """
    X = prepare(X)
    distances, neighbors = NearestNeighbors(n_neighbors=ceil(log(len(X))) + 1).fit(X).kneighbors(X)
    neighbors[:, 0] = np.arange(len(X))  # the row itself, also where others are equal to it
    densest = np.argmin(distances[neighbors, -1], axis=1)
    target = neighbors[np.arange(len(X)), densest]
    while (target != target[target]).any():
        target = target[target]
    return np.unique(target, return_inverse=True)[1]


def spectral(X: np.ndarray) -> np.ndarray:
    """Normalized cuts of scikit-learn's graph of 10 neighbours, with the K of the largest eigengap.

    The paper chooses K and the scale by how well densities separate, which is in no library.
    """
    X = prepare(X)
    graph = kneighbors_graph(X, 10, include_self=True)
    graph = (graph + graph.T) / 2
    L = laplacian(graph, normed=True)
    start = np.random.default_rng(0).standard_normal(len(X))
    # the smallest eigenvalues of L, as the largest of 2 - L, which converge fast
    values = 2 - np.sort(eigsh(2 * eye_array(len(X)) - L, MOST_CLUSTERS + 1, v0=start, return_eigenvectors=False))[::-1]
    K = 2 + int(np.argmax(np.diff(values)[1:]))
    model = SpectralClustering(K, affinity="precomputed", random_state=0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected")
        return model.fit_predict(graph)


def markov(X: np.ndarray) -> np.ndarray:
    """The flow of `markov_clustering` with its defaults, on the graph of ceil(log n) neighbours.

    The paper has no numbers for it. The package works, but has had no release since 2018; its sparse matrices are
    slower than dense ones up to thousands of rows.
    """
    import markov_clustering

    X = prepare(X)
    graph = kneighbors_graph(X, ceil(log(len(X)))).toarray()
    flow = markov_clustering.run_mcl(np.maximum(graph, graph.T))
    labels = np.empty(len(X), int)
    for label, rows in enumerate(markov_clustering.get_clusters(flow)):
        labels[list(rows)] = label
    return labels


METHODS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "CNSe": partial(cns, metric="euclidean", selection="paper"),
    "CNSc": partial(cns, metric="cosine", selection="paper"),
    "AUTOe": partial(cns, metric="euclidean", selection="auto"),
    "AUTOc": partial(cns, metric="cosine", selection="auto"),
    "KM": k_means,
    "GMM": gaussian_mixture,
    "HDB": hdbscan,
    "MS": mean_shift,
    "SC": spectral,
    "MCL": markov,
}
