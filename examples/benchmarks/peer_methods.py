"""The methods that `peers.py` compares, and the program that runs one of them in a process of its own.

    python examples/benchmarks/peer_methods.py METHOD DATA OUT [--clusters K] [--warm-up DATA2 | --started TIME]

DATA is a folder with the rows twice, as `x.npy` and as the Zarr array `x.zarr`. OUT is a folder for `labels.npy` and
`outcome.json`; the file `ready` appears there when the measured run begins. With `--warm-up` the rows of another folder
are clustered first; with `--started` everything counts since that time, the start of the process included. Nothing but
NumPy is imported before a method asks for it, so that nobody waits for the imports of others.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SILHOUETTE_ROWS = 5000
MOST_CLUSTERS = 30
COMPILED_WARM_UP = 25_000  # above 20 000 rows our search is another one, with kernels of its own


def rows_of(data: Path) -> np.ndarray:
    return np.load(data / "x.npy")


def single_precision(data: Path) -> np.ndarray:
    return rows_of(data).astype(np.float32)


def graph(data: Path, _: int) -> None:
    """Neighbours alone, as many as our largest k."""
    from pynndescent import NNDescent

    X = single_precision(data)
    index = NNDescent(X, n_neighbors=4 * math.floor(math.log(len(X))), random_state=0)
    np.shape(index.neighbor_graph[0])  # sorted when it is asked for


def ours(data: Path, _: int) -> Callable[[], np.ndarray]:
    from cns_dask import CNS

    model = CNS().fit(str(data / "x.zarr"), out=data / "clusters.zarr", overwrite=True)
    return lambda: np.asarray(model.labels_)


def leiden(data: Path, _: int) -> np.ndarray:
    import igraph
    from pynndescent import NNDescent

    X = single_precision(data)
    random.seed(0)  # igraph draws from it
    neighbors, _ = NNDescent(X, n_neighbors=15, random_state=0).neighbor_graph
    edges = np.stack([np.repeat(np.arange(len(X)), neighbors.shape[1]), neighbors.ravel()], axis=1)
    edges = edges[edges[:, 1] >= 0]  # -1: fewer were found
    links = igraph.Graph(n=len(X), edges=edges).simplify()
    return np.array(links.community_leiden(objective_function="modularity").membership)


def evoc(data: Path, _: int) -> np.ndarray:
    from evoc import EVoC

    return EVoC(random_state=0).fit_predict(single_precision(data))


def fast_hdbscan(data: Path, _: int) -> np.ndarray:
    from fast_hdbscan import HDBSCAN

    return HDBSCAN().fit_predict(rows_of(data))


def hdbscan(data: Path, _: int) -> np.ndarray:
    from sklearn.cluster import HDBSCAN

    return HDBSCAN(copy=True).fit_predict(rows_of(data))


def kmeans(data: Path, _: int) -> np.ndarray:
    """The K with the largest silhouette."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    X, best, labels = rows_of(data), -2.0, np.zeros(0, int)
    for n_clusters in range(2, min(MOST_CLUSTERS, len(X) - 1) + 1):
        found = KMeans(n_clusters, random_state=0).fit_predict(X)
        score = silhouette_score(X, found, sample_size=min(len(X), SILHOUETTE_ROWS), random_state=0)
        if score > best:
            best, labels = score, found
    return labels


def minibatch(data: Path, n_clusters: int) -> np.ndarray:
    from sklearn.cluster import MiniBatchKMeans

    return MiniBatchKMeans(n_clusters, random_state=0).fit_predict(rows_of(data))


def dask_kmeans(data: Path, n_clusters: int) -> np.ndarray:
    import dask.array as da
    from dask_ml.cluster import KMeans

    return KMeans(n_clusters, random_state=0).fit(da.from_zarr(str(data / "x.zarr"))).labels_.compute()


def dask_spectral(data: Path, n_clusters: int) -> np.ndarray:
    import dask.array as da
    from dask_ml.cluster import SpectralClustering

    model = SpectralClustering(n_clusters, random_state=0).fit(da.from_zarr(str(data / "x.zarr")))
    return np.asarray(model.assign_labels_.labels_)


def genie(data: Path, n_clusters: int) -> np.ndarray:
    from genieclust import Genie

    return Genie(n_clusters).fit_predict(rows_of(data))


@dataclass(frozen=True)
class Method:
    """How one method is run, and what a reader has to know about it."""

    run: Callable[[Path, int], np.ndarray | Callable[[], np.ndarray] | None]
    label: str
    packages: tuple[str, ...]  # as pip names them
    call: str  # with everything that is not a default
    needs_k: bool = False
    warm_up: int = 2000  # rows of the small run before a warm one

    def missing(self) -> list[str]:
        """Packages that are not installed."""
        return [name for name in self.packages if not version(name)]

    def versions(self) -> str:
        """Versions of its packages, and of what all of them stand on."""
        common = ("numpy", "numba", "scikit-learn")
        names = dict.fromkeys((*self.packages, *common))
        return ", ".join(f"{name} {version(name)}" for name in names if version(name))


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


METHODS = {
    "graph": Method(
        graph,
        "pynndescent: the graph alone",
        ("pynndescent",),
        "NNDescent(X, n_neighbors=4 * floor(log(n)), random_state=0)",
        warm_up=COMPILED_WARM_UP,
    ),
    "ours": Method(
        ours,
        "cns_dask",
        ("cns_dask", "dask", "zarr", "pynndescent"),
        'CNS().fit("x.zarr", out="clusters.zarr")',
        warm_up=COMPILED_WARM_UP,
    ),
    "leiden": Method(
        leiden,
        "pynndescent + Leiden",
        ("pynndescent", "igraph"),
        'NNDescent(X, n_neighbors=15, random_state=0); Graph.community_leiden(objective_function="modularity") of '
        "igraph on its links, without weights",
        warm_up=COMPILED_WARM_UP,
    ),
    "evoc": Method(evoc, "EVoC", ("evoc",), "EVoC(random_state=0)", warm_up=COMPILED_WARM_UP),
    "fast_hdbscan": Method(
        fast_hdbscan, "fast_hdbscan", ("fast_hdbscan",), "fast_hdbscan.HDBSCAN()", warm_up=COMPILED_WARM_UP
    ),
    "hdbscan": Method(hdbscan, "scikit-learn HDBSCAN", ("scikit-learn",), "sklearn.cluster.HDBSCAN(copy=True)"),
    "kmeans": Method(
        kmeans,
        "K-means, silhouette",
        ("scikit-learn",),
        f"KMeans(K, random_state=0) for K from 2 to {MOST_CLUSTERS}; the largest "
        f"silhouette_score(sample_size={SILHOUETTE_ROWS}, random_state=0)",
    ),
    "minibatch": Method(
        minibatch, "MiniBatchKMeans", ("scikit-learn",), "MiniBatchKMeans(K, random_state=0)", needs_k=True
    ),
    "dask_kmeans": Method(
        dask_kmeans,
        "dask-ml KMeans",
        ("dask-ml", "dask", "zarr"),
        'dask_ml.cluster.KMeans(K, random_state=0).fit(da.from_zarr("x.zarr"))',
        needs_k=True,
    ),
    "dask_spectral": Method(
        dask_spectral,
        "dask-ml SpectralClustering",
        ("dask-ml", "dask", "zarr"),
        'dask_ml.cluster.SpectralClustering(K, random_state=0).fit(da.from_zarr("x.zarr"))',
        needs_k=True,
    ),
    "genie": Method(genie, "genieclust", ("genieclust",), "Genie(K)", needs_k=True),
}


def measured(method: Method, data: Path, n_clusters: int, started: float | None) -> tuple[float, np.ndarray | None]:
    """Seconds from the stored rows to the labels, or since `started`; and the labels."""
    began = started or time.time()
    labels = method.run(data, n_clusters)
    seconds = time.time() - began
    return seconds, labels() if callable(labels) else labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=METHODS)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--clusters", type=int, default=0, help="K, for methods that need it")
    parser.add_argument("--warm-up", type=Path, help="folder with the rows of a run before the measured one")
    parser.add_argument("--started", type=float, help="seconds since the epoch, as time.time() gives them")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    method, outcome = METHODS[options.method], {}
    try:
        if options.warm_up:
            method.run(options.warm_up, options.clusters)
        (options.out / "ready").touch()
        seconds, labels = measured(method, options.data, options.clusters, options.started)
        outcome["seconds"] = seconds
        if labels is not None:
            np.save(options.out / "labels.npy", labels)
    except Exception as error:  # whatever a peer raises is its outcome
        outcome["error"] = f"{type(error).__name__}: {error}"
    (options.out / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")


if __name__ == "__main__":
    main()
