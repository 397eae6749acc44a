"""The paper's comparison: this package and other methods on the paper's data sets, beside the paper's own numbers.

    python examples/reproduce_paper/compare.py [FOLDER] [--quick] [--only iris wine] [--methods CNSe KM] [--out FOLDER]

FOLDER holds `.npz` files with `X` and `y`, named as in the paper; default: the environment variable CNS_DASK_DATA, else
what scikit-learn ships (iris, wine, wdbc). Methods are in `comparators.py`; HDB and MCL need packages of their own
(`pip install hdbscan markov_clustering`). They run in a process beside this one, with a time limit for each, and every
result is added to `runs.csv` at once: started again with the same `--out`, only what is missing runs. Then come tables,
ranks and wins, as `.csv` and together in `comparison.md`, with a picture of the ranks.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import multiprocessing
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from comparators import METHODS, PACKAGES
from reproduce import SCORES, data_sets, parse_with_data, scores
from tables import write_comparison

RUN = ("dataset", "method", "data", "n", "d", "copies", "K", *SCORES, "seconds", "versions", "error")
QUICK_ROWS = 700


class Worker:
    """A process that clusters; another one takes its place when it takes too long or dies."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """A new process."""
        context = multiprocessing.get_context("spawn")
        self.pipe, its_end = context.Pipe()
        self.process = context.Process(target=serve, args=(its_end,), daemon=True)
        self.process.start()
        its_end.close()

    def cluster(self, method: str, X: np.ndarray, limit: float) -> np.ndarray | str:
        """Labels, or why there are none."""
        self.pipe.send((method, X))
        try:
            if self.pipe.poll(limit):
                return self.pipe.recv()
            error = f"not done after {limit:g} s"
        except EOFError:
            self.process.join()
            error = f"its process died with exit code {self.process.exitcode}"
        self.process.kill()
        self.process.join()
        self.start()
        return error

    def close(self) -> None:
        """Let it end by itself: what it has started is cleared up."""
        self.pipe.close()
        self.process.join()


def serve(pipe: Connection) -> None:
    """Answers with labels or an error until the other end is closed."""
    warnings.simplefilter("ignore")
    with suppress(EOFError, BrokenPipeError):
        while True:
            method, X = pipe.recv()
            pipe.send(labels_or_error(method, X))


def labels_or_error(method: str, X: np.ndarray) -> np.ndarray | str:
    try:
        return METHODS[method](X)
    except ModuleNotFoundError as error:
        return f"not installed: pip install {PACKAGES.get(method, error.name)}"
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


def describe(X: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """What identifies a data set, so that no result of other data is taken for one of these."""
    digest = hashlib.sha256(np.ascontiguousarray(X).tobytes() + np.ascontiguousarray(y).tobytes()).hexdigest()
    copies = len(X) - len(np.unique(X, axis=0))
    return {"data": digest[:12], "n": len(X), "d": X.shape[1], "copies": copies}


def run(worker: Worker, method: str, X: np.ndarray, y: np.ndarray, limit: float) -> dict[str, Any]:
    started = time.perf_counter()
    labels = worker.cluster(method, X, limit)
    row: dict[str, Any] = {"method": method, "seconds": f"{time.perf_counter() - started:.1f}"}
    if isinstance(labels, str):
        return row | {"error": labels}
    used = "cns_dask" if method.startswith(("CNS", "AUTO")) else PACKAGES.get(method, "scikit-learn")
    row |= {"K": len(np.unique(labels)), "versions": f"{used} {version(used)}"}
    return row | {name: f"{score:.2f}" for name, score in scores(y, labels).items()}


def read_runs(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def write_runs(runs: list[dict[str, Any]], path: Path) -> None:
    """Replaces the file in one step: a run that is killed leaves a whole one."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8", newline="") as file:
        table = csv.DictWriter(file, RUN, lineterminator="\n")
        table.writeheader()
        table.writerows(runs)
    part.replace(path)


def missing_runs(
    sets: list[tuple[str, np.ndarray, np.ndarray]], methods: list[str], runs: list[dict[str, Any]], retry: bool
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray, dict[str, Any]]]:
    """What is still to be run. Rows of other data, and of failures that are tried again, are removed from `runs`."""
    for name, X, y in sets:
        about = describe(X, y)
        for row in [row for row in runs if row["dataset"] == name and row["method"] in methods]:
            failed = row["error"].startswith("not installed") or (retry and row["error"])
            if row["data"] != about["data"] or failed:
                runs.remove(row)
        done = {row["method"] for row in runs if row["dataset"] == name}
        yield from ((name, method, X, y, about) for method in methods if method not in done)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"only data sets of up to {QUICK_ROWS} rows")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--limit", type=float, default=1800, help="seconds that one method may take on one data set")
    parser.add_argument("--retry", action="store_true", help="run again what failed, or was not done in time")
    parser.add_argument("--out", type=Path, default=Path("comparison"), help="folder for results and tables")
    arguments, folder = parse_with_data(parser)
    arguments.out.mkdir(parents=True, exist_ok=True)

    sets = sorted(data_sets(folder, arguments.only), key=lambda item: item[1].size)
    if arguments.quick:
        sets = [item for item in sets if len(item[1]) <= QUICK_ROWS]
    runs = read_runs(arguments.out / "runs.csv")
    missing = list(missing_runs(sets, arguments.methods, runs, arguments.retry))
    print(f"{len(sets)} data sets, {len(arguments.methods)} methods: {len(missing)} runs to do")
    worker = Worker()
    clock = Clock([X.size**0.5 for _, _, X, _, _ in missing])
    for at, (name, method, X, y, about) in enumerate(missing, 1):
        row = dict.fromkeys(RUN, "") | {"dataset": name} | about | run(worker, method, X, y, arguments.limit)
        runs.append(row)
        write_runs(runs, arguments.out / "runs.csv")
        said = row["error"] or f"K {row['K']:>3}, AMI {row['ami']:>6}"
        left = clock.minutes_left(at)
        print(
            f"[{at}/{len(missing)}] {name} {method}: {said}, {row['seconds']} s; about {left:.0f} min left", flush=True
        )

    worker.close()
    names = {name for name, _, _ in sets}
    shown = [row for row in runs if row["dataset"] in names]
    if not any(row["ami"] for row in shown):
        parser.exit(message="No run has a result: there are no tables.\n")
    write_comparison(shown, arguments.out)
    print(f"Tables: {arguments.out / 'comparison.md'}")


class Clock:
    """A guess of the time left from the weights of runs."""

    def __init__(self, weights: list[float]) -> None:
        self.weights, self.started = np.array(weights), time.perf_counter()

    def minutes_left(self, n_done: int) -> float:
        """If the other runs take as long for their weight as the first ones did."""
        passed = time.perf_counter() - self.started
        return passed * self.weights[n_done:].sum() / self.weights[:n_done].sum() / 60


if __name__ == "__main__":
    main()
