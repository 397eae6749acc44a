"""Run every data set of a folder with both distances and compare with the paper's tables.

    python examples/reproduce_paper/reproduce.py [FOLDER] [--only iris wine] [--out tables]

FOLDER holds `.npz` files with `X` and `y`, named as in the paper; default: the environment variable CNS_DASK_DATA, else
what scikit-learn ships (iris, wine, wdbc). Writes `reproduction.csv` and `reproduction.md`.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix

from cns_dask import CNS

SCORES = ("ami", "ari", "accuracy")
EXACT = 0.0101  # the paper prints two decimals: equal up to the last one
METHODS = {"euclidean": "CNSe", "cosine": "CNSc"}  # as the paper calls them
HEADER = ("dataset", "distance", "k", "lam", "K", *SCORES, *(f"paper {name}" for name in SCORES), "match", "seconds")


def scores(truth: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The paper's three scores, times 100: AMI normalised by the maximum, ARI, accuracy after the best matching."""
    table = contingency_matrix(truth, labels)
    matched = table[linear_sum_assignment(-table)].sum()
    return {
        "ami": 100 * adjusted_mutual_info_score(truth, labels, average_method="max"),
        "ari": 100 * adjusted_rand_score(truth, labels),
        "accuracy": 100 * matched / len(truth),
    }


def data_sets(folder: Path | None, only: list[str] | None) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    if folder is None:
        from sklearn.datasets import load_breast_cancer, load_iris, load_wine

        for name, load in (("iris", load_iris), ("wine", load_wine), ("wdbc", load_breast_cancer)):
            if not only or name in only:
                yield name, *load(return_X_y=True)
        return
    for path in sorted(folder.glob("*.npz")):
        if not only or path.stem in only:
            with np.load(path, allow_pickle=False) as stored:
                yield path.stem, stored["X"], stored["y"]


def paper_scores() -> dict[tuple[str, str], dict[str, float]]:
    """Data set and method -> its scores in the paper."""
    with (Path(__file__).parent / "paper.csv").open(encoding="utf-8") as lines:
        return {
            (row["dataset"], row["method"]): {name: float(row[name]) for name in SCORES}
            for row in csv.DictReader(lines)
        }


def evaluate(name: str, distance: str, X: np.ndarray, y: np.ndarray, paper: dict[str, float]) -> dict[str, Any]:
    started = time.perf_counter()
    row: dict[str, Any] = {"dataset": name, "distance": distance}
    row |= {f"paper {score}": f"{paper[score]:.2f}" for score in SCORES if paper}
    try:
        model = CNS(metric=distance, selection="paper").fit(X)
    except ValueError as error:  # as missing values, or a row without direction
        return row | {"match": f"not possible: {str(error).splitlines()[0]}"}
    ours = scores(y, model.labels_)
    row |= {"k": model.n_neighbors_, "lam": f"{model.lam_:.5f}", "K": model.n_clusters_}
    row |= {score: f"{ours[score]:.2f}" for score in SCORES} | {"seconds": f"{time.perf_counter() - started:.1f}"}
    if not paper:
        return row | {"match": "not in the paper"}
    exact = all(abs(round(ours[score], 2) - paper[score]) < EXACT for score in SCORES)
    return row | {"match": "exact" if exact else ""}


def markdown(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """A table in Markdown."""
    header = list(header)
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(map(str, cells)) + " |\n" for cells in lines)


def write_tables(rows: list[dict[str, Any]], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "reproduction.csv").open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, HEADER, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
    text = markdown(HEADER, ([row.get(name, "") for name in HEADER] for row in rows))
    (out / "reproduction.md").write_text(text, encoding="utf-8")


def parse_with_data(parser: argparse.ArgumentParser) -> tuple[argparse.Namespace, Path | None]:
    """The arguments, with those that say which data sets to take, and the folder of these."""
    parser.add_argument("folder", nargs="?", type=Path, default=os.environ.get("CNS_DASK_DATA"))
    parser.add_argument("--only", nargs="+", help="names of data sets")
    arguments = parser.parse_args()
    if arguments.folder is None:
        return arguments, None
    folder = Path(arguments.folder)
    if (folder / "datasets").is_dir():
        folder = folder / "datasets"
    if not any(folder.glob("*.npz")):
        parser.error(f"the folder must hold .npz files with X and y. Got {folder}.")
    return arguments, folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("reproduction"), help="folder for the tables")
    arguments, folder = parse_with_data(parser)
    paper, rows = paper_scores(), []
    print("  ".join(f"{name:>14}" if name == "dataset" else f"{name:>9}" for name in HEADER))
    for name, X, y in data_sets(folder, arguments.only):
        for distance in ("euclidean", "cosine"):
            row = evaluate(name, distance, X, y, paper.get((name, METHODS[distance]), {}))
            rows.append(row)
            cells = (f"{row.get(key, '')!s:>14}" if key == "dataset" else f"{row.get(key, '')!s:>9}" for key in HEADER)
            print("  ".join(cells), flush=True)
            write_tables(rows, arguments.out)
    compared = [row for row in rows if "paper ami" in row]
    exact = sum(row["match"] == "exact" for row in compared)
    print(f"{exact} of {len(compared)} runs equal the paper to 0.01. Tables: {arguments.out}")


if __name__ == "__main__":
    main()
