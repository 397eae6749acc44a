"""Cluster ten million rows on two workers of 2 GiB by a sample, through a kill on the way.

    python examples/ten_million/fit.py [--rows 10000000] [--sample 300000] [--memory 2GiB] [--folder ten_million]
                                       [--reference 1000000]

The rows are the 16-d mixture of the benchmarks, written chunk by chunk, with the true cluster of each beside them. The
fit runs in a process of its own, which is killed with its workers while rows are assigned, and run again. In the end
the labels are compared with the truth, and with `--reference` with a fit of all of the first so many rows, on these.
"""

from __future__ import annotations

import argparse
import logging
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import dask
import dask.array as da
import numpy as np
import zarr
from dask.utils import format_bytes, parse_bytes

from cns_dask import CNS, open_result, plan

if TYPE_CHECKING:
    from collections.abc import Iterator

FEATURES, CLUSTERS, CHUNK_ROWS, WORKERS = 16, 25, 100_000, 2
KILL_AT = 1 / 3  # of the pieces of the assignment


def write_chunk(rows: zarr.Array, truth: zarr.Array, number: int) -> None:
    """Rows of overlapping Gaussians, and which of them each is from."""
    start, stop = number * CHUNK_ROWS, min((number + 1) * CHUNK_ROWS, rows.shape[0])
    centers = 2 * np.random.default_rng(0).standard_normal((CLUSTERS, FEATURES))
    rng = np.random.default_rng([1, number])
    truth[start:stop] = of_row = rng.integers(CLUSTERS, size=stop - start)
    rows[start:stop] = centers[of_row] + rng.standard_normal((stop - start, FEATURES))


def make_data(folder: Path, n_rows: int) -> None:
    """Write rows and truth chunk by chunk, on this process's threads."""
    options = {"compressors": None, "overwrite": True}
    rows = zarr.create_array(
        str(folder / "data.zarr"), shape=(n_rows, FEATURES), chunks=(CHUNK_ROWS, FEATURES), dtype="f8", **options
    )
    truth = zarr.create_array(str(folder / "truth.zarr"), shape=(n_rows,), chunks=(CHUNK_ROWS,), dtype="i8", **options)
    writes = [dask.delayed(write_chunk)(rows, truth, number) for number in range(math.ceil(n_rows / CHUNK_ROWS))]
    dask.compute(*writes, scheduler="threads", num_workers=2)


@contextmanager
def workers(memory: int) -> Iterator[None]:
    """Worker processes of one thread each."""
    from distributed import Client, LocalCluster

    sizes = {"n_workers": WORKERS, "threads_per_worker": 1, "memory_limit": memory}
    # Python 3.11 before 3.11.10 may deadlock in `sys._current_frames`, which Dask's profiler calls all the time
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(**sizes, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
    ):
        yield


def fit_sample(options: argparse.Namespace) -> None:
    """The fit itself; what is finished is logged to a file."""
    logger = logging.getLogger("cns_dask")
    logger.addHandler(logging.FileHandler(options.folder / "log"))
    logger.setLevel(logging.INFO)
    with workers(parse_bytes(options.memory)):
        CNS(verbose=True).fit(options.folder / "data.zarr", sample=options.sample, out=options.folder / "clusters.zarr")


def run_child(kill_at: int | None = None) -> bool:
    """Run the fit in a process of its own; kill it after so many pieces of the assignment. Whether it was killed."""
    log = arguments().folder / "log"
    log.unlink(missing_ok=True)
    with subprocess.Popen([sys.executable, *sys.argv, "--child"], start_new_session=True) as child:
        while child.poll() is None:
            time.sleep(0.1)
            n_assigned = log.read_text().count("assign: finished") if log.exists() else 0
            if kill_at is not None and n_assigned >= kill_at:
                os.killpg(child.pid, signal.SIGKILL)
                print(f"\nkilled after {n_assigned} pieces of the assignment\n", flush=True)
                return True
        if child.returncode:
            raise SystemExit(child.returncode)
    return False


def table_of(first: zarr.Array, second: zarr.Array) -> np.ndarray:
    """Rows in each pair of clusters, chunk by chunk, of as many rows as both have."""
    n_rows, table = min(first.shape[0], second.shape[0]), np.zeros((1, 1), np.int64)
    for start in range(0, n_rows, CHUNK_ROWS):
        part = slice(start, min(start + CHUNK_ROWS, n_rows))
        pair = np.asarray(first[part]), np.asarray(second[part])
        grown = np.zeros([max(size, labels.max() + 1) for size, labels in zip(table.shape, pair, strict=True)], int)
        grown[: table.shape[0], : table.shape[1]] = table
        np.add.at(grown, pair, 1)
        table = grown
    return table


def rand_index(table: np.ndarray) -> float:
    """The adjusted Rand index of two clusterings, from the number of rows in each pair of clusters."""
    pairs, first, second, all_pairs = (
        (counts.astype(float) * (counts - 1) / 2).sum()
        for counts in (table, table.sum(axis=1), table.sum(axis=0), table.sum())
    )
    expected = first * second / all_pairs
    return float((pairs - expected) / ((first + second) / 2 - expected))


def compare_with_reference(folder: Path, n_rows: int) -> None:
    """Fit all of the first rows, and compare the labels of both fits on these."""
    first = da.from_zarr(str(folder / "data.zarr"))[:n_rows]
    out = folder / "reference.zarr"
    began = time.perf_counter()
    with workers(plan(n_rows=n_rows, n_features=FEATURES, measure=False).limit_bytes):
        whole = CNS(verbose=True).fit(first, out=out, overwrite=True).result_
    minutes = (time.perf_counter() - began) / 60
    labels = {name: zarr.open_array(str(folder / name), mode="r") for name in ("truth.zarr", "clusters.zarr/labels")}
    of_whole = zarr.open_array(str(out / "labels"), mode="r")
    print(f"\nall of the first {n_rows} rows: {whole.verdict.sentence} {minutes:.1f} min")
    for name, each in labels.items():
        print(f"adjusted Rand index on these with {name}: {rand_index(table_of(each, of_whole)):.4f}")


def report(options: argparse.Namespace, minutes: float) -> None:
    """What came out, and what it took."""
    result = open_result(options.folder / "clusters.zarr")
    labels = zarr.open_array(str(options.folder / "clusters.zarr" / "labels"), mode="r")
    truth = zarr.open_array(str(options.folder / "truth.zarr"), mode="r")
    memory = result.details["memory"]
    print(f"\n{result.n_rows} rows, {result.n_clustered} of them clustered: {result.verdict.sentence}")
    print(f"adjusted Rand index with the truth, on all rows: {rand_index(table_of(truth, labels)):.4f}")
    print(f"{minutes:.1f} min in both runs, {result.n_rows / minutes / 60:.0f} rows per second\n")
    print("| process | limit | planned | measured peak |\n|---|---:|---:|---:|")
    for number, (name, used) in enumerate(memory["peak_bytes"].items(), 1):
        planned = format_bytes(memory["planned_bytes"][name])
        print(f"| worker {number} | {format_bytes(parse_bytes(options.memory))} | {planned} | {format_bytes(used)} |")
    print(f"\nshort of memory, paused or spilling: {len(memory['short_of_memory'])} workers", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--sample", type=int, default=300_000)
    parser.add_argument("--memory", default="2GiB")
    parser.add_argument("--folder", type=Path, default=Path("ten_million"))
    parser.add_argument("--reference", type=int, default=0)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    if options.child:
        fit_sample(options)
        return
    options.folder.mkdir(exist_ok=True)
    make_data(options.folder, options.rows)
    size = {"n_rows": options.rows, "n_features": FEATURES, "sample": options.sample, "workers": WORKERS}
    forecast = plan(**size, memory_bytes=parse_bytes(options.memory), measure=False)
    print(f"{forecast}\n", flush=True)
    began = time.perf_counter()
    if not run_child(max(1, round(KILL_AT * forecast.stages[-1].tasks))):
        print("the run was over before it could be killed: take more rows")
    run_child()
    report(options, (time.perf_counter() - began) / 60)
    if options.reference:
        compare_with_reference(options.folder, options.reference)


if __name__ == "__main__":
    main()
