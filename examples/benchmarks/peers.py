"""Whole clusterings by others and by us: time, memory and quality, on data of growing size and on real data.

    python examples/benchmarks/peers.py [FOLDER] [--out FOLDER]
    python examples/benchmarks/peers.py --sizes 10000 30000 --peers ours leiden --time-limit 60

Generated rows are the mixture of `neighbors.py`; FOLDER holds data sets as .npz files with X and perhaps y. Everybody
gets the same rows: standardised, without constant features. Each run is a process of its own. *Cold* counts from the
start of the process, with the imports, to the labels; *warm* comes after a small run on rows of the same data in the
same process, and counts from the stored rows to the labels. Warm runs come first, so that cold ones find what an
installation compiles once on the disk.

Memory is the resident memory of the process and its children, looked at twenty times a second. A process that exceeds
the limit of time or memory is killed; address space is not limited, because compilers and BLAS reserve more than they
use. Who fails gets a row with the error; who ran into a limit is not tried with more rows, and gets a row that says so.

Writes `peers.csv` row by row, and from it `peers.md`, `peers-time.png` and `peers-quality.png`. Run again, it goes on
where it stopped: rows are measured again only if the method's versions changed, or if they failed under other limits.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from machine import machine
from neighbors import labelled_mixture, save_rows, standardized
from peer_methods import METHODS
from peer_tables import write_tables
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

HERE = Path(__file__).parent
SIZES = (10_000, 30_000, 100_000, 300_000, 1_000_000)
MODES = ("warm", "cold")
IDENTITY = ("data", "n", "method", "mode")
FIELDS = (
    *IDENTITY, "d", "true K", "seconds", "peak MiB", "AMI", "ARI", "K", "noise", "error",
    "time limit", "memory limit", "versions", "machine", "date",
)  # fmt: skip
OUT_OF_BOUNDS = ("time limit", "memory limit", "MemoryError", "signal 9", "not tried")  # hopeless with more rows
LOOKS_PER_SECOND = 20

Row = dict[str, Any]


@dataclass(frozen=True)
class Limits:
    """What one process may take."""

    seconds: float
    gib: float


@dataclass(frozen=True)
class Data:
    """A data set, loaded when it is needed."""

    name: str
    n_rows: int
    load: Callable[[], tuple[np.ndarray, np.ndarray | None]]


@dataclass(frozen=True)
class Prepared:
    """The same rows for everybody, stored."""

    folder: Path
    y: np.ndarray | None
    n_rows: int
    n_features: int

    @property
    def true_k(self) -> int | None:
        """Number of labels, if there are any."""
        return None if self.y is None else len(np.unique(self.y))

    def small(self, n_rows: int) -> Path:
        """A folder with some of the rows, for the run before a warm one."""
        folder = self.folder / f"small-{n_rows}"
        if not folder.exists():
            X = np.load(self.folder / "x.npy", mmap_mode="r")
            drawn = np.random.default_rng(0).choice(len(X), min(n_rows, len(X)), replace=False)
            save_rows(X[np.sort(drawn)], folder)
        return folder


def generated(n_rows: int) -> Data:
    return Data("mixture", n_rows, lambda: labelled_mixture(n_rows))


def from_file(path: Path) -> Data:
    def load() -> tuple[np.ndarray, np.ndarray | None]:
        with np.load(path) as file:
            return file["X"], file.get("y")

    return Data(path.stem, len(load()[0]), load)


def prepare(data: Data, folder: Path) -> Prepared:
    X, y = data.load()
    X = standardized(np.asarray(X, float)[:, np.ptp(X, axis=0) > 0])
    return Prepared(save_rows(np.ascontiguousarray(X), folder), y, *X.shape)  # fast_hdbscan takes no other order


def resident(family: list[psutil.Process]) -> int:
    total = 0
    for one in family:
        with suppress(psutil.NoSuchProcess):
            total += one.memory_info().rss
    return total


def family_of(process: subprocess.Popen) -> list[psutil.Process]:
    """The process and its children; nothing once it has ended."""
    try:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def stop(process: subprocess.Popen) -> None:
    """Kill a process, if it still runs, and its children."""
    if process.poll() is None:
        for one in family_of(process):
            with suppress(psutil.NoSuchProcess):
                one.kill()
    process.wait()


def watch(process: subprocess.Popen, out: Path, limits: Limits) -> tuple[int, str]:
    """Peak of the resident bytes until the process ends, and which limit it ran into, if any.

    The small run before a warm one has the same time of its own.
    """
    peak, began, ready, looks = 0, time.perf_counter(), False, 0
    while process.poll() is None:
        if looks % LOOKS_PER_SECOND == 0:  # all processes of the machine are read for it
            family = family_of(process)
        peak, looks = max(peak, resident(family)), looks + 1
        if not ready and (out / "ready").exists():
            ready, began = True, time.perf_counter()
        if peak > limits.gib * 2**30:
            return peak, f"memory limit of {limits.gib:g} GiB"
        if time.perf_counter() - began > limits.seconds:
            return peak, f"time limit of {limits.seconds:g} s" + ("" if ready else ", in the run before")
        time.sleep(1 / LOOKS_PER_SECOND)
    return peak, ""


def run_once(name: str, prepared: Prepared, mode: str, limits: Limits, out: Path) -> Row:
    """One process: seconds, peak memory and scores, or what went wrong."""
    method = METHODS[name]
    command = [sys.executable, str(HERE / "peer_methods.py"), name, str(prepared.folder), str(out)]
    if method.needs_k:
        if prepared.true_k is None:
            return {"error": "needs K, and the data have no labels to count"}
        command += ["--clusters", str(prepared.true_k)]
    command += ["--warm-up", str(prepared.small(method.warm_up))] if mode == "warm" else ["--started", str(time.time())]
    with (out / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            peak, error = watch(process, out, limits)
        finally:
            stop(process)
    row = {"peak MiB": round(peak / 2**20)}
    if error:
        return row | {"error": error}
    if not (out / "outcome.json").exists():
        code = process.returncode
        said = (out / "log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        ended = f"signal {-code}" if code < 0 else f"exit code {code}"
        return row | {"error": ": ".join([ended, *said[-1:]])}
    row |= json.loads((out / "outcome.json").read_text(encoding="utf-8"))
    if (out / "labels.npy").exists():
        row |= scores(np.load(out / "labels.npy"), prepared.y)
    return row


def scores(labels: np.ndarray, y: np.ndarray | None) -> Row:
    """Noise counts as one more group; AMI is normalised by the maximum, as in the paper, and both are times 100."""
    found = {"K": len(np.unique(labels[labels >= 0])), "noise": float(np.mean(labels < 0))}
    if y is not None:
        found["AMI"] = 100 * adjusted_mutual_info_score(y, labels, average_method="max")
        found["ARI"] = 100 * adjusted_rand_score(y, labels)
    return found


def identity(row: Row) -> tuple[str, ...]:
    return tuple(str(row[field]) for field in IDENTITY)


class Table:
    """The rows on disk: appended as they are measured; of the same run the last counts."""

    def __init__(self, path: Path, limits: Limits, *, retry: bool = False) -> None:
        self.path, self.limits, self.rows = path, limits, {}
        if path.exists():
            with path.open(newline="", encoding="utf-8") as lines:
                whole = [row for row in csv.DictReader(lines) if row.get("date")]  # a killed run may leave half a row
            self.rows = {identity(row): row for row in whole if not (retry and row["error"])}
        others = {row["machine"] for row in self.rows.values()} - {machine()}
        if others:
            sys.exit(f"{path} is from another machine ({others.pop()}): choose another folder with --out.")
        with path.with_suffix(".part").open("w", newline="", encoding="utf-8") as lines:
            writer = csv.DictWriter(lines, FIELDS)
            writer.writeheader()
            writer.writerows(self.rows.values())
        path.with_suffix(".part").replace(path)

    def append(self, row: Row) -> None:
        """Keep a row, at once on disk."""
        row = {field: "" if row.get(field) is None else str(row[field]) for field in FIELDS}
        with self.path.open("a", newline="", encoding="utf-8") as lines:
            csv.DictWriter(lines, FIELDS).writerow(row)
        self.rows[identity(row)] = row

    def has(self, data: str, n_rows: int | str, method: str, mode: str) -> bool:
        """Whether there is a row that need not be measured again."""
        row = self.rows.get((data, str(n_rows), method, mode))
        if row is None or row["versions"] != METHODS[method].versions():
            return False
        limits = str(self.limits.seconds), str(self.limits.gib)
        return not row["error"] or (row["time limit"], row["memory limit"]) == limits

    def reason_to_skip(self, data: Data, name: str, mode: str) -> str:
        """Which earlier run shows that this one would run into a limit too."""
        for row in self.rows.values():
            same = row["data"] == data.name and row["method"] == name and row["error"].startswith(OUT_OF_BOUNDS)
            fewer = int(row["n"]) < data.n_rows and row["mode"] == mode
            warmer = int(row["n"]) == data.n_rows and (row["mode"], mode) == MODES
            if same and (fewer or warmer) and self.has(*identity(row)):
                said = row["error"].removeprefix("not tried: ").partition(" at n = ")
                return f"not tried: {said[0]} at n = {said[2] or row['n'] + ', ' + row['mode']}"
        return ""


def work(sets: list[Data], options: argparse.Namespace) -> Iterator[tuple[Data, str, str]]:
    """Everything there is to measure, in this order."""
    for data in sets:
        for name in options.peers:
            for mode in MODES:
                if mode in options.modes:
                    yield data, name, mode


def shown(row: Row) -> str:
    if row.get("error"):
        return row["error"]
    quality = f", AMI {row['AMI']:.1f}, K {row['K']}" if "AMI" in row else ""
    return f"{row['seconds']:.1f} s, {row['peak MiB']} MiB{quality}"


def measure(sets: list[Data], options: argparse.Namespace, table: Table) -> None:
    runs = list(work(sets, options))
    todo = [(data, *rest) for data, *rest in runs if not table.has(data.name, data.n_rows, *rest)]
    print(f"{len(todo)} runs to measure, {len(runs) - len(todo)} are there", flush=True)
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        prepared, loaded = None, None
        for number, (data, name, mode) in enumerate(todo, 1):
            method = METHODS[name]
            if missing := method.missing():
                row = {"error": f"not installed: pip install {' '.join(missing)}"}
            elif reason := table.reason_to_skip(data, name, mode):
                row = {"error": reason}
            else:
                if loaded is not data:
                    shutil.rmtree(Path(scratch) / "data", ignore_errors=True)
                    prepared, loaded = prepare(data, Path(scratch) / "data"), data
                with tempfile.TemporaryDirectory(dir=scratch) as out:
                    row = run_once(name, prepared, mode, table.limits, Path(out))
                row |= {"d": prepared.n_features, "true K": prepared.true_k}
            row = {**row, "error": " ".join(row.get("error", "").split())[:300]}
            print(f"[{number}/{len(todo)}] {data.name}, n = {data.n_rows}, {name}, {mode}: {shown(row)}", flush=True)
            row |= {"data": data.name, "n": data.n_rows, "method": name, "mode": mode}
            row |= {"time limit": table.limits.seconds, "memory limit": table.limits.gib}
            row |= {"versions": method.versions(), "machine": machine()}
            table.append(row | {"date": datetime.now(UTC).isoformat(timespec="seconds")})


def announce(peers: list[str]) -> None:
    """Say before hours of work what is not installed."""
    missing = {name: METHODS[name].missing() for name in peers if METHODS[name].missing()}
    if missing:
        packages = sorted({package for names in missing.values() for package in names})
        print(f"not installed: {', '.join(missing)}. To have them: pip install {' '.join(packages)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder with data sets (.npz with X and perhaps y)")
    parser.add_argument("--sizes", type=int, nargs="*", default=SIZES, help="rows of the mixture")
    parser.add_argument("--peers", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--time-limit", type=float, default=1200.0, help="seconds of one run")
    total = psutil.virtual_memory().total / 2**30
    parser.add_argument("--memory-limit", type=float, default=float(round(0.75 * total)), help="GiB of one run")
    parser.add_argument("--out", type=Path, default=Path("peers"), help="folder to write to")
    parser.add_argument("--scratch", type=Path, help="folder for temporary files: some GiB for a million rows")
    parser.add_argument("--retry", action="store_true", help="measure again what failed")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the running process is stopped too
    sets = [generated(n_rows) for n_rows in sorted(options.sizes)]
    if options.folder:
        files = list(options.folder.glob("*.npz"))
        if not files:
            parser.error(f"there are no .npz files in {options.folder}.")
        sets += sorted(map(from_file, files), key=lambda data: data.n_rows)
    announce(options.peers)
    options.out.mkdir(parents=True, exist_ok=True)
    table = Table(options.out / "peers.csv", Limits(options.time_limit, options.memory_limit), retry=options.retry)
    try:
        measure(sets, options, table)
    finally:
        write_tables(list(table.rows.values()), options.out)
        print(f"written: {options.out / 'peers.md'}", flush=True)


if __name__ == "__main__":
    main()
