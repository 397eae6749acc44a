"""Cluster a Zarr array that is at least four times as large as the memory of all workers together.

    python examples/larger_than_memory/fit.py [--rows 100000] [--workers 2] [--folder larger_than_memory]

The rows are wide, like embeddings or spectra. Memory limits are the smallest that the plan allows, and the number of
columns is chosen so that the array is four times their sum. In the end the measured peak of every process is shown.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import dask
import numpy as np
import zarr
from dask.utils import format_bytes
from distributed import Client, LocalCluster

from cns_dask import CNS, plan
from cns_dask.execution.memory import peak, reset_peak

TIMES = 4  # the memory of all workers
CHUNK_ROWS = 1000
CLUSTERS = 12


def limit_of(n_rows: int, n_columns: int) -> int:
    """Memory limit of a worker with one thread, as `cns-dask plan` tells it."""
    return plan(n_rows=n_rows, n_features=n_columns, measure=False).worker_bytes


def columns_for(n_rows: int, n_workers: int) -> int:
    """The fewest columns with which the rows are TIMES the memory of all workers."""
    for n_columns in range(500, 50_000, 500):
        if 8 * n_rows * n_columns >= TIMES * n_workers * limit_of(n_rows, n_columns):
            return n_columns
    raise SystemExit(f"{n_rows} rows are too few: wider rows need larger workers, too. Take more rows.")


def write_chunk(array: zarr.Array, number: int, centers: np.ndarray) -> None:
    """Rows around the centers, with as much noise in all columns."""
    start, stop = number * CHUNK_ROWS, min((number + 1) * CHUNK_ROWS, array.shape[0])
    rng = np.random.default_rng(number)
    of_row = rng.integers(CLUSTERS, size=stop - start)
    array[start:stop] = centers[of_row] + rng.standard_normal((stop - start, array.shape[1]))


def make_data(path: Path, n_rows: int, n_columns: int) -> None:
    """Write the array chunk by chunk, on this process's threads."""
    array = zarr.create_array(
        str(path),
        shape=(n_rows, n_columns),
        chunks=(CHUNK_ROWS, n_columns),
        dtype="f8",
        compressors=None,
        overwrite=True,
    )
    centers = 0.08 * np.random.default_rng(0).standard_normal((CLUSTERS, n_columns))
    writes = [dask.delayed(write_chunk)(array, number, centers) for number in range(math.ceil(n_rows / CHUNK_ROWS))]
    dask.compute(*writes, scheduler="threads", num_workers=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("larger_than_memory"))
    options = parser.parse_args()
    n_columns = columns_for(options.rows, options.workers)
    limit, size = limit_of(options.rows, n_columns), 8 * options.rows * n_columns
    total = options.workers * limit
    print(f"data: {options.rows} x {n_columns} float64, {format_bytes(size)}; memory of {options.workers} workers: "
          f"{format_bytes(total)} together, {size / total:.1f} times less", flush=True)  # fmt: skip
    options.folder.mkdir(exist_ok=True)
    make_data(options.folder / "data.zarr", options.rows, n_columns)
    reset_peak()
    sizes = {"n_workers": options.workers, "threads_per_worker": 1, "memory_limit": limit}
    # Python 3.11 before 3.11.10 may deadlock in `sys._current_frames`, which Dask's profiler calls all the time
    dask.config.set({"distributed.worker.profile.enabled": False})
    with LocalCluster(**sizes, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster, Client(cluster):
        model = CNS(verbose=True).fit(
            options.folder / "data.zarr", out=options.folder / "clusters.zarr", overwrite=True
        )
        client_peak = peak()
    memory = model.result_.details["memory"]
    print(f"{model.n_clusters_} clusters of {np.asarray(model.result_.sizes()).tolist()} rows\n")
    print("| process | limit | planned | measured peak |\n|---|---:|---:|---:|")
    for number, (name, used) in enumerate(memory["peak_bytes"].items(), 1):
        planned = memory["planned_bytes"][name]
        print(f"| worker {number} | {format_bytes(limit)} | {format_bytes(planned)} | {format_bytes(used)} |")
    print(f"| client, with the scheduler | | | {format_bytes(client_peak)} |")
    print(f"\nshort of memory, paused or spilling: {len(memory['short_of_memory'])} workers")


if __name__ == "__main__":
    main()
