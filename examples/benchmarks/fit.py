"""The whole automatic fit against the price of one neighbour graph, and against others' whole clusterings.

    python examples/benchmarks/fit.py [FOLDER] [--parts warm selection million cold growth workers decisions profile
                                                       forecast plans samples]

FOLDER holds data sets as .npz files with X; without it only generated data are run. Every ratio compares two times of
one run on one machine: the absolute times mean nothing. The yardstick is one warm `pynndescent.NNDescent` build with as
many neighbours as the largest k, in one process with all cores. Ours is everything: from a Zarr array to a stored
result with graph, 20 cells, K up to 30, memberships and labels.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import dask
import numpy as np
from neighbors import Memory, best_of, descent, mixture, neighbors_of, save_rows, standardized, stored, workers
from peer_methods import METHODS

from cns_dask import Settings, plan
from cns_dask.pipeline import fit
from cns_dask.progress import Progress
from cns_dask.results.result import Result

LIMITS = {"mixture": (3.0, 2.0), "moons": (6.0, 3.0), "mnist_pca50": (8.0, 4.0)}  # and what we aim at
PARTS = (
    "warm",
    "selection",
    "million",
    "cold",
    "growth",
    "workers",
    "decisions",
    "profile",
    "forecast",
    "plans",
    "samples",
)
BEFORE = ("preprocess", "points", "copies", "cells", "calibrate", "neighbors", "audit", "descent")  # up to the graph


def moons(n_rows: int, noise: float = 0.08) -> np.ndarray:
    from sklearn.datasets import make_moons

    return make_moons(n_rows, noise=noise, random_state=0)[0]


def timed_fit(source: Any, folder: Path, **settings: Any) -> tuple[float, Result, dict[str, float]]:
    progress = Progress()
    seconds, result = best_of(
        1, lambda: fit(source, Settings(**settings), out=folder / "fit.zarr", overwrite=True, progress=progress)
    )
    return seconds, result, progress.seconds


def by_stage(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {took:.1f}" for name, took in seconds.items())


def warm_up(folder: Path) -> str:
    """Compile everything that is measured warm."""
    descent(mixture(2000), 20)
    path = stored(mixture(25_000), folder, "warm")
    timed_fit(path, folder)
    return path


def fit_and_graph(X: np.ndarray, folder: Path, name: str) -> tuple[tuple[float, Result, dict[str, float]], float]:
    """The faster of two fits, and the seconds of the faster of two graphs by pynndescent."""
    path, k = stored(X, folder, name), neighbors_of(len(X))
    yardstick, _ = best_of(2, lambda: descent(standardized(X), k))
    return min((timed_fit(path, folder) for _ in range(2)), key=lambda run: run[0]), yardstick


def warm(sets: dict[str, np.ndarray], folder: Path) -> None:
    warm_up(folder)
    print("\n| data | n | d | fit / one graph of pynndescent | limit | aim | chosen | seconds by stage |")
    print("|---|---|---|---|---|---|---|---|")
    for name, X in sets.items():
        (seconds, result, stages), yardstick = fit_and_graph(X, folder, name)
        choice, (limit, aim) = result.choice, LIMITS[name]
        print(
            f"| {name} | {len(X)} | {X.shape[1]} | {seconds:.1f} / {yardstick:.1f} s = {seconds / yardstick:.1f} "
            f"| {limit} | {aim} | k {choice.n_neighbors}, lam {choice.lam:.4f}, K {choice.n_clusters} "
            f"| {by_stage(stages)} |",
            flush=True,
        )


def selection(sets: dict[str, np.ndarray], folder: Path) -> None:
    """What `auto` costs beside `paper`, with the grid solved as loosely; each the best of two."""
    for name, X in sets.items():
        source = stored(X, folder, name)
        times = {
            choice: min(timed_fit(source, folder, selection=choice, grid_tol=1e-4)[0] for _ in range(2))
            for choice in ("paper", "auto")
        }
        ratio = times["auto"] / times["paper"]
        print(f"{name}: auto {times['auto']:.1f} s, paper {times['paper']:.1f} s, ratio {ratio:.2f}", flush=True)


def million(n_rows: int, folder: Path) -> None:
    """Two workers with at most 8 GiB each, and what they took of it."""
    X, k = mixture(n_rows), neighbors_of(n_rows)
    path = stored(X, folder, "million", n_rows // 16)
    descent(mixture(2000), 20)
    yardstick, _ = best_of(1, lambda X=X: descent(X, k))
    del X
    with workers(2, 1, "8GiB") as client:
        timed_fit(stored(mixture(25_000), folder, "warm"), folder)
        with Memory(list(client.run(os.getpid).values())) as memory:
            seconds, result, stages = timed_fit(path, folder)
    planned = plan(n_rows=n_rows, n_features=16, measure=False).worker_bytes
    peak = ", ".join(f"{at / 2**20:.0f}" for at in np.max(memory.bytes, axis=0))
    print(
        f"\nmixture, n = {n_rows}: {seconds:.0f} / {yardstick:.0f} s = {seconds / yardstick:.1f} (limit 4)\n"
        f"  {by_stage(stages)}\n  {result.choice}\n"
        f"  peak of the workers {peak} MiB, planned {planned / 2**20:.0f} MiB",
        flush=True,
    )


def fresh_process(command: list[Any], **environment: str) -> float:
    """Seconds of a program from its start to its end."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return best_of(1, lambda: subprocess.run(command, check=True, env=os.environ | environment, **quiet))[0]


def fit_command(data: Path, out: Path) -> list[Any]:
    return [Path(sys.executable).with_name("cns-dask"), "fit", data, "--out", out, "--overwrite"]


def cold(n_rows: int, folder: Path) -> None:
    """Fresh processes: imports, compilation, reading and writing counted."""
    data = save_rows(mixture(n_rows), folder / "cold")
    ours = fit_command(data / "x.npy", folder / "cold.zarr")

    def peer(name: str) -> float:
        return fresh_process([sys.executable, Path(__file__).with_name("peer_methods.py"), name, data, data])

    fresh_process(ours)  # our kernels are compiled once per installation
    seconds, leiden = fresh_process(ours), peer("leiden")
    print(f"\ncold, n = {n_rows}: {seconds:.1f} / {leiden:.1f} s = {seconds / leiden:.2f} of Leiden (limit 0.6)")
    empty = fresh_process(ours, NUMBA_CACHE_DIR=str(folder / "numba"))
    print(f"first run of an installation: {empty:.1f} s; compiling {empty - seconds:.1f} s (limit 5)", flush=True)
    if METHODS["evoc"].missing():
        print("EVoC is not installed here", flush=True)
    else:
        print(f"EVoC, its whole clustering in a fresh process: {peer('evoc'):.1f} s", flush=True)


def seconds_after_graph(n_rows: int, folder: Path) -> tuple[float, Result, dict[str, float]]:
    _, result, stages = timed_fit(stored(mixture(n_rows), folder, f"growth-{n_rows}"), folder)
    return sum(took for name, took in stages.items() if name not in BEFORE), result, stages


def growth(folder: Path, small: int = 50_000, times: int = 8) -> None:
    """Everything after the graph."""
    warm_up(folder)
    after = {}
    for n in (small, small * times):
        after[n], result, stages = seconds_after_graph(n, folder)
        candidates = result.details["n_candidates"]
        print(f"\nn = {n}: {after[n]:.1f} s after the graph ({by_stage(stages)}); candidates {candidates}", flush=True)
    print(f"growth: {after[small * times] / after[small]:.1f} times for {times} times the rows (limit 12)", flush=True)


def scaling(n_rows: int, folder: Path) -> None:
    """One worker of one thread against two."""
    path, seconds = stored(mixture(n_rows), folder, "scaling"), {}
    for count in (1, 2, 1, 2):
        with workers(count, 1):
            timed_fit(stored(mixture(25_000), folder, "warm"), folder)
            took = timed_fit(path, folder)[2]["evaluate"]
        seconds[count] = min(took, seconds.get(count, np.inf))
    print(
        f"\nthe whole grid, n = {n_rows}: one worker {seconds[1]:.1f} s, two {seconds[2]:.1f} s: "
        f"{seconds[1] / seconds[2]:.2f} times as fast (limit 1.8)",
        flush=True,
    )


PROGRAM = """
import dask
from distributed import Client, LocalCluster
from cns_dask import CNS
if __name__ == "__main__":
    dask.config.set({{"distributed.worker.profile.enabled": False}})  # its profiler may deadlock Python before 3.11.10
    options = dict(threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0")
    with LocalCluster(n_workers={count}, **options) as cluster, Client(cluster):
        CNS().fit({path!r}, out={out!r}, overwrite=True)
"""


def forecasts(n_rows: int, folder: Path) -> None:
    """What `plan` says beside the time of a whole program: its start, that of its workers, and the fit."""
    warm_up(folder)
    print("\n| n | workers | forecast | program | forecast / program |\n|---|---|---|---|---|")
    program = folder / "program.py"
    for n in (n_rows, 3 * n_rows, 10 * n_rows):
        path = stored(mixture(n), folder, f"forecast-{n}")
        forecast = plan(path)
        for count in (1, 2):
            program.write_text(PROGRAM.format(count=count, path=path, out=str(folder / "forecast.zarr")))
            run = [sys.executable, "-W", "ignore", str(program)]
            seconds, _ = best_of(1, lambda run=run: subprocess.run(run, check=True))
            expected = forecast.curve[count]
            print(f"| {n} | {count} | {expected:.0f} s | {seconds:.0f} s | {expected / seconds:.2f} |", flush=True)


def samples(folder: Path, sets: dict[str, np.ndarray], size: int) -> None:
    """Fits of a sample against fits of all rows, and what the agreement of two samples says about it."""
    from sklearn.metrics import adjusted_rand_score

    print("\n| data | n | K of all, of the sample, of a second | ARI of all and sample | stated ARI of two samples |")
    print("|---|---|---|---|---|")
    for name, X in sets.items():
        path = stored(X, folder, name)
        full = fit(path, Settings(), out=folder / "full.zarr", overwrite=True)
        drawn = min(size, int(0.44 * len(X)))  # there must be room for a second sample
        some = fit(path, Settings(), sample=drawn, check_sample=True, out=folder / "sample.zarr", overwrite=True)
        stated = some.sample.agreement
        score = adjusted_rand_score(*dask.compute(full.labels, some.labels))
        counts = ", ".join(map(str, (full.choice.n_clusters, *stated.n_clusters)))
        print(f"| {name} | {len(X)} | {counts} | {score:.3f} | {stated.rand:.3f} |", flush=True)


def plans() -> None:
    """What the plan says about more rows and workers than there are here."""
    for n_rows in (10**6, 10**7, 10**8):
        print(f"\n### {n_rows:.0e} rows\n\n{plan(n_rows=n_rows, n_features=16, workers=100)}", flush=True)


def decisions(sets: dict[str, np.ndarray], folder: Path) -> None:
    """Single precision against double, at sizes where nobody would factorise."""
    print("\n| data | n | choice | labels that differ | criterion differs by |\n|---|---|---|---|---|")
    for name, X in sets.items():
        path = stored(X, folder, name)
        loose, tight = (
            fit(path, Settings(grid_tol=tol), out=folder / f"{tol}.zarr", overwrite=True) for tol in (None, 1e-9)
        )
        chosen = [(f"k {c.n_neighbors}, lam {c.lam:.4f}, K {c.n_clusters}") for c in (loose.choice, tight.choice)]
        labels = dask.compute(loose.labels, tight.labels)
        surfaces = loose.criterion, tight.criterion
        differ = np.nanmax(np.abs(surfaces[0] - surfaces[1])) / np.nanmax(np.abs(surfaces[1]))
        print(
            f"| {name} | {len(X)} | {chosen[0] if chosen[0] == chosen[1] else ' against '.join(chosen)} "
            f"| {(labels[0] != labels[1]).sum()} | {differ:.1e} |",
            flush=True,
        )


def profile(n_rows: int, folder: Path) -> None:
    """Where the seconds go."""
    warm_up(folder)
    seconds, _, stages = timed_fit(stored(mixture(n_rows), folder, "profile"), folder)
    print(f"\nn = {n_rows}, {seconds:.1f} s\n\n| stage | seconds | share |\n|---|---|---|")
    stages["opening, planning, closing"] = seconds - sum(stages.values())
    for name, took in stages.items():
        print(f"| {name} | {took:.2f} | {took / seconds:.0%} |", flush=True)


def sampled_sets(options: argparse.Namespace) -> dict[str, np.ndarray]:
    """The mixture, and data sets of the folder that have labels of their own."""
    sets = {"mixture": mixture(options.rows)}
    for name in ("mnist_pca50", "covertype_93k", "shuttle"):
        if options.folder and (options.folder / f"{name}.npz").exists():
            sets[name] = np.load(options.folder / f"{name}.npz")["X"].astype(float)
    return sets


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder with data sets (.npz with X)")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--rows", type=int, default=100_000, help="of generated data")
    options = parser.parse_args()
    sets = {"mixture": mixture(options.rows), "moons": moons(options.rows)}
    if options.folder and (options.folder / "mnist_pca50.npz").exists():
        sets["mnist_pca50"] = np.load(options.folder / "mnist_pca50.npz")["X"].astype(float)
    warnings.simplefilter("ignore", UserWarning)  # pynndescent's, about threads and duplicates
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in options.parts:
            {
                "warm": lambda: warm(sets, folder),
                "selection": lambda: selection(sets, folder),
                "million": lambda: million(10 * options.rows, folder),
                "cold": lambda: cold(options.rows, folder),
                "growth": lambda: growth(folder, options.rows // 2),
                "workers": lambda: scaling(options.rows, folder),
                "decisions": lambda: decisions(sets, folder),
                "profile": lambda: profile(options.rows, folder),
                "forecast": lambda: forecasts(options.rows, folder),
                "plans": plans,
                "samples": lambda: samples(folder, sampled_sets(options), options.rows * 3 // 10),
            }[part]()


if __name__ == "__main__":
    main()
