"""Cluster cells by the neighbours in `obsp`, as scanpy leaves them, and write the clusters into the AnnData object.

    python examples/anndata_cells/cells.py [--folder cells]

Counts of genes (made up, sparse) are normalised and reduced, and the distances to the nearest cells go to
`obsp["distances"]`: what `scanpy.pp.pca` and `scanpy.pp.neighbors` would do. The graph alone is enough for a fit; a
second one starts from the components in `obsm["X_pca"]`, and can label new cells.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import scipy.sparse as sp
from matplotlib.figure import Figure
from sklearn.decomposition import TruncatedSVD
from sklearn.neighbors import kneighbors_graph

from cns_dask import CNS, annotate

TYPES = ["T cell", "B cell", "monocyte", "platelet", "dendritic"]


def counted_cells(n_cells: int = 2500, n_genes: int = 1500, seed: int = 0) -> anndata.AnnData:
    """Counts of genes in cells of five types, each with some genes of its own."""
    rng = np.random.default_rng(seed)
    types = rng.choice(len(TYPES), n_cells, p=[0.4, 0.2, 0.2, 0.1, 0.1])
    rates = rng.gamma(0.3, 0.5, (len(TYPES), n_genes)) * 0.2 + rng.gamma(0.3, 0.5, n_genes)
    for number in range(len(TYPES)):
        rates[number, 40 * number : 40 * number + 40] += 1.5
    depth = rng.lognormal(0, 0.3, (n_cells, 1))
    cells = pd.DataFrame(
        {"type": pd.Categorical(np.array(TYPES)[types])}, index=[f"cell{row}" for row in range(n_cells)]
    )
    return anndata.AnnData(sp.csr_matrix(rng.poisson(rates[types] * depth).astype(np.float32)), obs=cells)


def prepare(adata: anndata.AnnData, n_neighbors: int = 40) -> None:
    """Normalise, reduce and find neighbours."""
    depth = np.asarray(adata.X.sum(axis=1))
    adata.X = sp.csr_matrix(adata.X.multiply(np.median(depth) / depth)).log1p()
    adata.obsm["X_pca"] = TruncatedSVD(n_components=20, random_state=0).fit_transform(adata.X)
    adata.obsp["distances"] = kneighbors_graph(adata.obsm["X_pca"], n_neighbors, mode="distance")


def draw(adata: anndata.AnnData, out: Path) -> None:
    figure = Figure(figsize=(9, 4), layout="constrained")
    plane = TruncatedSVD(n_components=3, random_state=0).fit_transform(adata.obsm["X_pca"])[:, 1:]
    for axes, column in zip(figure.subplots(1, 2), ("type", "cns"), strict=True):
        for number, name in enumerate(adata.obs[column].cat.categories):
            axes.scatter(*plane[adata.obs[column] == name].T, s=4, color=f"C{number % 10}", label=name)
        axes.set(title=f"obs[{column!r}]", xticks=[], yticks=[])
        axes.legend(frameon=False, fontsize=8, markerscale=3)
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("cells"))
    folder = parser.parse_args().folder
    folder.mkdir()
    adata = counted_cells()
    prepare(adata)

    by_graph = CNS(k_multipliers=(1, 2, 3)).fit(graph=adata.obsp["distances"], out=folder / "clusters.zarr")
    annotate(adata, by_graph)  # obs["cns"], obs["cns_confidence"], obsm["cns_memberships"], obsp, uns["cns"]
    print(f"{by_graph.n_clusters_} clusters by the graph in obsp:")
    print(pd.crosstab(adata.obs["type"], adata.obs["cns"]))

    by_rows = CNS(scale=False).fit(adata, component="obsm/X_pca")
    annotate(adata, by_rows, key="cns_pca")
    print(
        f"{by_rows.n_clusters_} clusters by the components in obsm; a cell again: {by_rows.predict(adata[:1]).iloc[0]}"
    )

    adata.write_h5ad(folder / "cells.h5ad")
    draw(adata, folder / "cells.png")
    print(f"all of it: {folder / 'cells.h5ad'}   picture: {folder / 'cells.png'}")


if __name__ == "__main__":
    main()
