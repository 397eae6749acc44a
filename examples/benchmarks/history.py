"""Key ratios of this version, kept in one file per version, and compared with those of the version before.

    python examples/benchmarks/history.py [--rows 50000] [--out examples/benchmarks/history]

Writes `<version>.json` with the ratios, the versions of packages, the machine and the date. Every ratio compares two
times of one run on one machine, and smaller is better. A ratio that differs from the version before by more than the
tolerance is marked: times of one run move by about a fifth, so that a mark asks for a second run before it is believed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fit import fit_and_graph, fit_command, fresh_process, moons, seconds_after_graph, warm_up
from machine import machine
from neighbors import mixture, predict_times, save_rows
from packaging.version import Version
from peer_methods import METHODS, version

TOLERANCE = 0.25
GROWTH = 4  # times as many rows
IMPORTS = 5  # the fastest of so many

Times = tuple[float, float]


def python(code: str) -> float:
    return min(fresh_process([sys.executable, "-c", code]) for _ in range(IMPORTS))


def import_times() -> Times:
    """`from cns_dask import CNS` and the array part of Dask alone, each without the start of Python."""
    empty = python("pass")
    return python("from cns_dask import CNS") - empty, python("import dask.array") - empty


def first_run_times(n_rows: int, folder: Path) -> Times:
    """The command line with nothing compiled, and again with what the first run left."""
    data = save_rows(mixture(n_rows), folder / "first")
    command = fit_command(data / "x.zarr", folder / "first.zarr")
    cache = {"NUMBA_CACHE_DIR": str(folder / "numba")}
    first = fresh_process(command, **cache)
    return first, min(fresh_process(command, **cache) for _ in range(2))


def growth_times(n_rows: int, folder: Path) -> Times:
    """Everything after the graph, for more rows and for fewer, each the faster of two."""
    large, small = (min(seconds_after_graph(n, folder)[0] for _ in range(2)) for n in (n_rows, n_rows // GROWTH))
    return large, small


def key_times(n_rows: int, folder: Path) -> Iterator[tuple[str, Times]]:
    """Names of the ratios, and the two times of each."""
    yield "import CNS / import dask.array", import_times()
    yield "first fit of an installation / later fit, fresh processes", first_run_times(n_rows // 2, folder)
    warm_up(folder)
    for name, X in (("mixture", mixture(n_rows)), ("moons", moons(n_rows))):
        (seconds, _, _), yardstick = fit_and_graph(X, folder, name)
        yield f"whole fit / pynndescent graph, {name}", (seconds, yardstick)
    yield f"after the graph, {GROWTH} times the rows / once", growth_times(n_rows, folder)
    yield "predict / pynndescent prepared query", predict_times(n_rows, folder)


def measured(n_rows: int, folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for name, (seconds, unit) in key_times(n_rows, folder):
        found[name] = {"ratio": round(seconds / unit, 3), "seconds": [round(seconds, 3), round(unit, 3)]}
        print(f"{name}: {seconds:.2f} / {unit:.2f} s = {seconds / unit:.2f}", flush=True)
    return found


def version_before(folder: Path, current: str) -> Path | None:
    """File of the newest version that is older than this one."""
    older = [path for path in folder.glob("*.json") if Version(path.stem) < Version(current)]
    return max(older, key=lambda path: Version(path.stem), default=None)


def verdict(old: float, new: float) -> str:
    change = new / old
    if change > 1 + TOLERANCE:
        return "SLOWER"
    return "faster" if change < 1 / (1 + TOLERANCE) else ""


def comparison(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Both versions side by side, as Markdown."""
    lines = [
        f"| ratio | {old['version']} | {new['version']} | change | beyond {TOLERANCE:.0%} |",
        "|---|---:|---:|---:|---|",
    ]
    for name in dict.fromkeys((*old["ratios"], *new["ratios"])):
        before, now = (side["ratios"].get(name, {}).get("ratio") for side in (old, new))
        if before is None or now is None:
            lines.append(f"| {name} | {before or 'not measured'} | {now or 'not measured'} | | |")
        else:
            change = f"{now / before - 1:+.0%}"
            lines.append(f"| {name} | {before:.2f} | {now:.2f} | {change} | {verdict(before, now)} |")
    differ = [what for what in ("rows", "machine") if old[what] != new[what]]
    lines += [f"\nNot the same {what}: {old[what]} before, {new[what]} now." for what in differ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000, help="of generated data")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(""), help="folder of the files")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # pynndescent's, about threads and duplicates
    current = version("cns_dask")
    with tempfile.TemporaryDirectory() as name:
        ratios = measured(options.rows, Path(name))
    new = {
        "version": current,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "versions": METHODS["ours"].versions(),
        "rows": options.rows,
        "ratios": ratios,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{current}.json"
    path.write_text(json.dumps(new, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten: {path}\n")
    before = version_before(options.out, current)
    if before is None:
        print(f"There is no file of a version before {current} to compare with.")
    else:
        print(comparison(json.loads(before.read_text(encoding="utf-8")), new))


if __name__ == "__main__":
    main()
