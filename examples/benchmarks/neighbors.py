"""The neighbour graph against pynndescent: time, recall, cold start, growth, memory, determinism and new rows.

    python examples/benchmarks/neighbors.py [FOLDER] [--parts warm cold growth same predict] [--rows 100000]
    python examples/benchmarks/neighbors.py --parts crossover

FOLDER holds data sets as .npz files with X; without it only the mixture is run. Every ratio compares two times of one
run on one machine: the absolute times mean nothing. The yardstick is `pynndescent.NNDescent` with the same number of
neighbours in one process with all cores. Ours runs on a Dask worker process with two threads, and on two threads of
this process, from a Zarr array to a stored graph, its audit included. Recall is counted here, with exact neighbours in
float64 of rows drawn here: a neighbour counts if it is not farther than the true k-th, to the rounding of float32
(1e-5), in which both search.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import psutil
import zarr

from cns_dask import CNS, neighbor_graph
from cns_dask.execution.plan import Plan
from cns_dask.neighbors.plan import search_stages, size_search
from cns_dask.progress import Progress

AUDITED = 1000
LIMITS = {"mixture": 0.5, "shuttle": 0.5, "skin_245k": 1.0, "covertype_93k": 1.0, "mnist_pca50": 1.3}
PARTS = ("warm", "cold", "growth", "same", "predict", "crossover")


def labelled_mixture(
    n_rows: int, n_features: int = 16, n_clusters: int = 25, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping Gaussians, and which of them every row is from."""
    rng = np.random.default_rng(seed)
    centers = 2 * rng.standard_normal((n_clusters, n_features))
    y = rng.integers(n_clusters, size=n_rows)
    return centers[y] + rng.standard_normal((n_rows, n_features)), y


def mixture(n_rows: int, n_features: int = 16, n_clusters: int = 25, seed: int = 0) -> np.ndarray:
    """Overlapping Gaussians."""
    return labelled_mixture(n_rows, n_features, n_clusters, seed)[0]


def neighbors_of(n_rows: int) -> int:
    return 4 * math.floor(math.log(n_rows))


@contextmanager
def workers(count: int, threads: int, memory: str = "6GiB") -> Iterator[Any]:
    from distributed import Client, LocalCluster

    sizes = {"n_workers": count, "threads_per_worker": threads, "memory_limit": memory}
    # Python 3.11 before 3.11.10 may deadlock in `sys._current_frames`, which Dask's profiler calls all the time
    with (
        dask.config.set({"distributed.worker.profile.enabled": False}),
        LocalCluster(**sizes, host="127.0.0.1", dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster) as client,
    ):
        yield client


def stored(X: np.ndarray, folder: Path, name: str, rows: int | None = None) -> str:
    path = str(folder / f"{name}.zarr")
    chunks = (rows or -(-len(X) // 8), X.shape[1])
    zarr.create_array(path, data=np.asarray(X, float), chunks=chunks, overwrite=True)
    return path


def standardized(X: np.ndarray) -> np.ndarray:
    return (X - X.mean(axis=0)) / X.std(axis=0)


def save_rows(X: np.ndarray, folder: Path) -> Path:
    """The rows as `x.npy` and as the Zarr array `x.zarr` in a folder that is created."""
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", X)
    stored(X, folder, "x")
    return folder


def best_of(count: int, work: Callable[[], Any]) -> tuple[float, Any]:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        value = work()
        times.append(time.perf_counter() - started)
    return min(times), value


def descent(X: np.ndarray, k: int) -> Any:
    from pynndescent import NNDescent

    index = NNDescent(np.asarray(X, np.float32), n_neighbors=k, random_state=0, n_jobs=-1)
    return index.neighbor_graph[0]


def recall_of(X: np.ndarray, indices: np.ndarray, seed: int = 12345) -> float:
    """Share of the nearest others that are listed, over rows drawn at random; in float64, ties count."""
    X, k = np.asarray(X, float), indices.shape[1]
    shares = []
    for row in np.random.default_rng(seed).choice(len(X), min(AUDITED, len(X)), replace=False):
        squared = ((X - X[row]) ** 2).sum(axis=1)
        listed = np.unique(indices[row])
        listed = listed[listed != row]
        squared[row] = np.inf
        limit = np.partition(squared, k - 2)[k - 2]
        shares.append((squared[listed] <= limit * (1 + 2e-5)).sum() / (k - 1))
    return float(np.mean(shares))


def warm(sets: dict[str, np.ndarray], folder: Path) -> None:
    descent(mixture(2000), 20)  # compiled
    warming = stored(mixture(25_000), folder, "warm")
    neighbor_graph(warming, 20)
    print(
        "\n| data | n | d | k | worker / pynndescent | threads / pynndescent | limit | recall | stated | contains "
        "| pynndescent's recall |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )
    with workers(1, 2):
        neighbor_graph(warming, 20)
        for name, X in sets.items():
            k, path = neighbors_of(len(X)), stored(X, folder, name)
            yardstick, theirs = best_of(2, lambda X=X, k=k: descent(X, k))
            seconds, graph = best_of(2, lambda path=path, k=k: neighbor_graph(path, k))
            with dask.config.set(scheduler="threads", num_workers=2):
                here, _ = best_of(2, lambda path=path, k=k: neighbor_graph(path, k))
            found, stated = recall_of(X, graph.indices.compute()), graph.recall[-1] if graph.recall else None
            interval = f"{stated.low:.4f} to {stated.high:.4f}" if stated else graph.method
            contains = stated.low <= found <= stated.high if stated else found == 1
            ratio = f"{seconds:.2f} / {yardstick:.2f} s = {seconds / yardstick:.2f}"
            print(
                f"| {name} | {len(X)} | {X.shape[1]} | {k} | {ratio} "
                f"| {here / yardstick:.2f} | {LIMITS.get(name, '')} | {found:.4f} | {interval} | {contains} "
                f"| {recall_of(X, theirs):.4f} |",
                flush=True,
            )


def cold(n_rows: int, folder: Path) -> None:
    """Fresh processes, imports and compilation counted."""
    np.save(folder / "cold.npy", mixture(n_rows))
    k, data = neighbors_of(n_rows), folder / "cold.npy"
    ours = f"from cns_dask import neighbor_graph; neighbor_graph({str(data)!r}, {k})"
    theirs = (
        f"import numpy as np; from pynndescent import NNDescent; X = np.load({str(data)!r}).astype(np.float32); "
        f"NNDescent(X, n_neighbors={k}, random_state=0).neighbor_graph"
    )

    def run(code: str, **environment: str) -> float:
        import os

        return best_of(
            1, lambda: subprocess.run([sys.executable, "-c", code], check=True, env=os.environ | environment)
        )[0]

    run(ours)  # our kernels are compiled once per installation
    seconds, yardstick = run(ours), run(theirs)
    empty = run(ours, NUMBA_CACHE_DIR=str(folder / "numba"))
    print(f"\ncold, n = {n_rows}: {seconds:.1f} / {yardstick:.1f} s = {seconds / yardstick:.2f} (limit 0.2)")
    print(f"first run of an installation, nothing compiled: {empty:.1f} s = {empty / yardstick:.2f}", flush=True)


class Memory:
    """Resident bytes of processes, sampled while a block runs."""

    def __init__(self, pids: list[int]) -> None:
        self._processes, self.times, self.bytes = [psutil.Process(pid) for pid in pids], [], []

    def __enter__(self) -> Memory:
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._sample)
        self._started = time.perf_counter()
        self._thread.start()
        return self

    def _sample(self) -> None:
        while not self._stop.wait(0.1):
            self.times.append(time.perf_counter() - self._started)
            self.bytes.append([process.memory_info().rss for process in self._processes])

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


def growth(n_rows: int, folder: Path) -> None:
    """Ten times as many rows, on two workers with little memory."""
    seconds = {}
    for n in (n_rows, 10 * n_rows):
        path, k = stored(mixture(n), folder, f"growth-{n}"), neighbors_of(n)
        with workers(2, 1, "3GiB") as client:
            neighbor_graph(stored(mixture(25_000), folder, "warm"), 20).indices.compute()
            pids = list(client.run(os.getpid).values())
            with Memory(pids) as memory:
                progress = Progress()
                seconds[n], graph = best_of(
                    1, lambda path=path, k=k, progress=progress: neighbor_graph(path, k, progress=progress)
                )
        peak = np.max(memory.bytes, axis=0)
        planned = Plan(search_stages(size_search(n, 16, k, "cells"))).worker_bytes(1)
        stages = ", ".join(f"{name} {took:.1f}" for name, took in progress.seconds.items())
        print(
            f"\nn = {n}: {seconds[n]:.1f} s ({stages}); recall {graph.recall[-1].mean:.4f}; "
            f"peak of the workers {', '.join(f'{at / 2**20:.0f}' for at in peak)} MiB, planned {planned / 2**20:.0f}",
            flush=True,
        )
    print(f"growth: {seconds[10 * n_rows] / seconds[n_rows]:.1f} times for 10 times the rows (limit 13)", flush=True)
    draw_memory(memory, planned, 10 * n_rows)


def draw_memory(memory: Memory, planned: int, n_rows: int) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for number, values in enumerate(np.array(memory.bytes).T):
        axes.plot(memory.times, values / 2**20, label=f"worker {number + 1}")
    axes.axhline(planned / 2**20, color="0.4", ls="--", label="plan")
    axes.set(xlabel="seconds", ylabel="resident MiB", ylim=(0, None), title=f"{n_rows} rows, two workers of 3 GiB")
    axes.legend(loc="lower right")
    figure.savefig("neighbors-memory.png", dpi=150)
    print("picture: neighbors-memory.png")


def same(n_rows: int, folder: Path) -> None:
    """One graph for three chunkings, one and two workers, threads and processes."""
    X, k, marks = mixture(n_rows), neighbors_of(n_rows), {}

    def mark(source: Any) -> str:
        graph = neighbor_graph(source, k)
        indices, distances = da.compute(graph.indices, graph.distances)
        return hashlib.sha256(indices.tobytes() + distances.tobytes()).hexdigest()[:12]

    for rows in (n_rows // 3, n_rows // 10 + 7, n_rows):
        marks[f"threads of this process, chunks of {rows}"] = mark(da.from_array(X, chunks=(rows, -1)))
    for count, threads in ((1, 1), (1, 2), (2, 1)):
        with workers(count, threads):
            marks[f"{count} worker(s) with {threads} thread(s)"] = mark(stored(X, folder, "same"))
    print("\n" + "\n".join(f"{value}  {name}" for name, value in marks.items()))
    print(f"same graph everywhere: {len(set(marks.values())) == 1}", flush=True)


def predict_times(n_rows: int, folder: Path) -> tuple[float, float]:
    """Seconds of `predict` for as many new rows as were fitted, and of pynndescent's prepared query."""
    from pynndescent import NNDescent

    X, new, k = mixture(n_rows), mixture(2 * n_rows)[n_rows:], neighbors_of(n_rows) // 2
    index = NNDescent(X.astype(np.float32), n_neighbors=neighbors_of(n_rows), random_state=0, n_jobs=-1)
    index.prepare()
    queries = new.astype(np.float32)
    index.query(queries[:1000], k=k)
    with workers(1, 2):
        model = CNS(n_neighbors=k, lam=0.01, max_candidates=30, scale=False).fit(stored(X, folder, "fit"))
        path = stored(new, folder, "new")
        model.predict(path)[:100].compute()
        seconds, _ = best_of(2, lambda: model.predict(path).compute())
    yardstick, _ = best_of(2, lambda: index.query(queries, k=k))
    return seconds, yardstick


def predict(n_rows: int, folder: Path) -> None:
    seconds, yardstick = predict_times(n_rows, folder)
    print(
        f"\npredict of {n_rows} new rows: {seconds:.2f} s; pynndescent's query: {yardstick:.2f} s; "
        f"speed {yardstick / seconds:.2f} of it (limit 0.7)",
        flush=True,
    )


def crossover() -> None:
    print("\n| d | n | exact / cells |\n|---|---|---|")
    for n_features in (2, 10, 30, 100):
        for n_rows in (5_000, 10_000, 20_000, 40_000):
            X, k = mixture(n_rows, n_features, 10), neighbors_of(n_rows)
            times = [best_of(2, lambda X=X, k=k, m=m: neighbor_graph(X, k, method=m))[0] for m in ("exact", "cells")]
            print(
                f"| {n_features} | {n_rows} | {times[0]:.2f} / {times[1]:.2f} s = {times[0] / times[1]:.2f} |",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder with data sets (.npz with X)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-1])
    parser.add_argument("--rows", type=int, default=100_000, help="of the mixture")
    options = parser.parse_args()
    sets = {"mixture": mixture(options.rows)}
    for name in LIMITS:
        if options.folder and (options.folder / f"{name}.npz").exists():
            sets[name] = np.load(options.folder / f"{name}.npz")["X"].astype(float)
    warnings.simplefilter("ignore", UserWarning)  # pynndescent's, about threads and duplicates
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in options.parts:
            {
                "warm": lambda: warm(sets, folder),
                "cold": lambda: cold(options.rows, folder),
                "growth": lambda: growth(options.rows, folder),
                "same": lambda: same(options.rows, folder),
                "predict": lambda: predict(options.rows, folder),
                "crossover": crossover,
            }[part]()


if __name__ == "__main__":
    main()
