"""Cluster wines by what is in them, and tell what the clusters are.

    python examples/explain/wine.py [--folder wine]

178 Italian wines of three kinds, with 13 chemical measurements (scikit-learn ships them). The kinds are not told: the
clusters find them again, and their explanations say which measurements tell them apart.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl
from sklearn.datasets import load_wine
from sklearn.metrics import adjusted_rand_score

from cns_dask import CNS

mpl.use("Agg")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("wine"), help="folder to write to")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    wine = load_wine(as_frame=True)
    data = str(folder / "wine.parquet")
    wine.data.to_parquet(data)

    model = CNS(metric="cosine").fit(data, out=folder / "clusters.zarr")
    result = model.result_
    print(result)
    print(f"agreement with the three kinds (adjusted Rand): {adjusted_rand_score(wine.target, model.labels_):.2f}\n")
    for cluster in result.clusters:
        print(result.explain(cluster, data))

    print("\nthe wine deepest in each cluster:")
    shown = ["alcohol", "flavanoids", "color_intensity", "proline"]
    for cluster, rows in result.exemplars(1, data).items():
        print(f"  cluster {cluster}, row {rows.index[0]}: {rows[shown].iloc[0].to_dict()}")
    print(f"undecided between 1 and 2: rows {result.between(1, 2, n=3).tolist()}")
    draw(result, data, folder / "explained.png")


def draw(result, data: str, out: Path) -> None:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(12, 9), layout="constrained", width_ratios=[1.2, 1])
    result.plot.map(data, ax=axes[0, 0])
    result.plot.profile(data, ax=axes[0, 1])
    result.plot.scales(ax=axes[1, 0])
    result.plot.overlap(ax=axes[1, 1])
    figure.savefig(out, dpi=80)


if __name__ == "__main__":
    main()
