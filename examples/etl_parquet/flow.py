"""A nightly flow: cluster yesterday's Parquet files, label today's as they arrive, fit again with the same numbers.

    python examples/etl_parquet/flow.py [--folder etl]

Files of three days arrive one by one. Every morning the clusters of the last fit are given to the new files, lazily and
partition by partition; every night all days are clustered again, with the cluster numbers of the night before. On the
third day a group of customers has split in two.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from cns_dask import CNS, assign_clusters, drift, open_result
from cns_dask.results.history import changes_in_words, drift_in_words

FEATURES = ["visits", "basket", "returns", "hour", "distance", "discount", "items", "calls", "rating", "tenure"]
FILES_A_DAY, ROWS_A_FILE = 4, 600
CENTERS = 2 * np.random.default_rng(1).standard_normal((5, len(FEATURES)))


def customers(day: int, number: int) -> pd.DataFrame:
    """One file of a day; on the third, the customers of group 2 shop either early or late."""
    rng = np.random.default_rng([day, number])
    group = rng.integers(len(CENTERS), size=ROWS_A_FILE)
    values = CENTERS[group] + rng.standard_normal((ROWS_A_FILE, len(FEATURES)))
    if day == 3:
        early = rng.random(ROWS_A_FILE) < 0.5
        values[:, FEATURES.index("hour")] += np.where(group == 2, np.where(early, -9, 9), 0)
    index = pd.Index([f"{day}-{number}-{row}" for row in range(ROWS_A_FILE)], name="customer")
    return pd.DataFrame(values, columns=FEATURES, index=index).assign(city=rng.choice(["Bergen", "Oslo"], ROWS_A_FILE))


def receive(folder: Path, day: int) -> None:
    """The files of a day, as last night's job would write them."""
    for number in range(FILES_A_DAY):
        customers(day, number).to_parquet(folder / "arrived" / f"day{day}-{number}.parquet")


def label_new(folder: Path, day: int, model: Path) -> None:
    """Give the new files the clusters of the last fit: two more columns, and one file for each of them."""
    arrived = dd.read_parquet(folder / "arrived" / f"day{day}-*.parquet")
    assign_clusters(arrived, model).to_parquet(folder / "labelled" / f"day{day}")  # lazy until it is written
    print(f"day {day}, morning: {drift_in_words(drift(model, arrived))}")


def fit_again(folder: Path, day: int) -> Path:
    """Cluster all days so far, with the numbers of the night before."""
    model, before = folder / f"model{day}.zarr", folder / f"model{day - 1}.zarr"
    arrived = str(folder / "arrived" / "day*.parquet")
    CNS().fit(arrived, columns=FEATURES, previous=before if before.exists() else None, out=model)
    result = open_result(model)
    print(f"day {day}, night: clusters {result.clusters} in {result.n_rows} rows")
    for line in changes_in_words(result.changes)[:-1]:
        print(f"    {line}")
    return model


def draw(folder: Path, days: list[int]) -> None:
    """Rows of every cluster in the fit of each night."""
    results = [open_result(folder / f"model{day}.zarr") for day in days]
    table = pd.DataFrame([dict(zip(result.clusters, result.sizes(), strict=True)) for result in results]).sort_index(
        axis=1
    )
    table.index = [f"night {day}" for day in days]
    axes = (figure := Figure(figsize=(6, 3.2), layout="constrained")).subplots()
    table.plot.bar(stacked=True, ax=axes, rot=0, width=0.6, ylabel="rows")
    axes.legend(title="cluster", frameon=False, bbox_to_anchor=(1, 1))
    figure.savefig(folder / "clusters.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("etl"))
    folder = parser.parse_args().folder
    (folder / "arrived").mkdir(parents=True)
    receive(folder, 1)
    model = fit_again(folder, 1)
    for day in (2, 3):
        receive(folder, day)
        label_new(folder, day, model)
        model = fit_again(folder, day)
    draw(folder, [1, 2, 3])
    print(f"labelled files: {folder / 'labelled'}   picture: {folder / 'clusters.png'}")


if __name__ == "__main__":
    main()
