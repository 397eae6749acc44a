"""Cluster points in the plane, and draw how sure the model is everywhere.

    python examples/quickstart/quickstart.py [--out clusters.png]

Nothing is set: the numbers of neighbours and clusters and the smoothing weight are chosen from the data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dask.array as da
import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from cns_dask import CNS


def touching_clusters(n_rows: int = 600, seed: int = 0) -> np.ndarray:
    """Five clusters that touch (n_rows, 2)."""
    rng = np.random.default_rng(seed)
    centers = np.array([(0.0, 0.0), (3.4, 0.6), (6.4, -0.8), (1.2, 3.6), (5.0, 3.2)])
    return centers[rng.integers(len(centers), size=n_rows)] + 0.8 * rng.standard_normal((n_rows, 2))


def soft_background(model: CNS, X: np.ndarray, pixels: int = 160) -> tuple[np.ndarray, list[float]]:
    """An image of the plane: the clusters' colors mixed by their share in each pixel, and its extent."""
    low, high = X.min(axis=0) - 0.5, X.max(axis=0) + 0.5
    grid = np.stack(np.meshgrid(*np.linspace(low, high, pixels).T), axis=-1).reshape(-1, 2)
    lazy = da.from_array(grid, chunks=(4096, 2))  # lazy in, lazy out: this is how a large raster would go
    memberships = model.predict_proba(lazy).compute()
    above = memberships - memberships.min(axis=1, keepdims=True)  # what sets a cluster apart from the least likely one
    share = above / np.maximum(above.sum(axis=1, keepdims=True), 1e-300)
    colors = colormaps["tab10"](np.arange(model.n_clusters_) % 10)[:, :3]
    return (share @ colors).reshape(pixels, pixels, 3), [low[0], high[0], low[1], high[1]]


def draw(model: CNS, X: np.ndarray, out: Path) -> None:
    image, extent = soft_background(model, X)
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(image, extent=extent, origin="lower", alpha=0.45, interpolation="bilinear", aspect="auto")
    axes.scatter(*X.T, c=colormaps["tab10"](model.labels_ % 10), s=12, edgecolors="white", linewidths=0.4)
    axes.scatter(*X[model.representatives_].T, marker="*", s=220, c="black", edgecolors="white")
    axes.set_xticks([])
    axes.set_yticks([])
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("clusters.png"), help="picture to write")
    out = parser.parse_args().out
    X = touching_clusters()
    model = CNS().fit(X)
    print(f"{model.n_clusters_} clusters, k = {model.n_neighbors_}, lam = {model.lam_:.3f}")
    print(f"sizes: {np.bincount(model.labels_).tolist()}, median confidence {np.median(model.confidence_):.2f}")
    print(f"the three least certain rows: {np.argsort(model.confidence_)[:3].tolist()}")
    draw(model, X, out)
    print(f"picture: {out}")


if __name__ == "__main__":
    main()
