"""The table and the two pictures of `peers.py`, from the rows of its CSV."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from peer_methods import METHODS

Row = dict[str, str]
GRAPH, OURS = "graph", "ours"
MARKERS = "os^vDP*Xph<"


def label(name: str) -> str:
    return METHODS[name].label + (" (K given)" if METHODS[name].needs_k else "")


def style(name: str) -> dict[str, object]:
    """The same colour and marker in both pictures; ours is drawn last and larger."""
    at = list(METHODS).index(name)
    return {
        "color": f"C{at % 10}" if name != GRAPH else "0.6",
        "marker": MARKERS[at],
        "zorder": 3 if name == OURS else 2,
        "markersize": 8 if name == OURS else 6,
    }


class Runs:
    """Rows by data, n, method and mode."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = {(row["data"], int(row["n"]), row["method"], row["mode"]): row for row in rows}
        self.sets = sorted({key[:2] for key in self.rows}, key=lambda key: (key[0] != "mixture", key[1], key[0]))
        self.methods = [name for name in METHODS if any(key[2] == name for key in self.rows)]

    def value(self, data: str, n_rows: int, method: str, mode: str, field: str) -> float | None:
        """A number of one run, if there is one."""
        text = self.rows.get((data, n_rows, method, mode), {}).get(field)
        return float(text) if text else None

    def ratio(self, data: str, n_rows: int, method: str, mode: str, to: str) -> float | None:
        """Seconds relative to those of another method in the same mode on the same data."""
        seconds, unit = (self.value(data, n_rows, name, mode, "seconds") for name in (method, to))
        return seconds / unit if seconds and unit else None

    def slope(self, method: str) -> tuple[float, list[tuple[int, float]]]:
        """The power of n with which warm seconds grow on the mixture, by least squares, and the points."""
        found = {n: self.value(data, n, method, "warm", "seconds") for data, n in self.sets if data == "mixture"}
        points = [(n, seconds) for n, seconds in sorted(found.items()) if seconds]
        if len(points) < 2:
            return np.nan, points
        return float(np.polyfit(*np.log(points).T, 1)[0]), points


def number(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def significant(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}" if value < 100 else f"{value:.0f}"


def lines_of(headers: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    headers = list(headers)
    return [f"| {' | '.join(cells)} |" for cells in (headers, ["---"] * len(headers), *rows)]


def comparison(runs: Runs) -> list[str]:
    headers = (
        "data", "n", "d", "true K", "method", "warm / graph", "warm / ours", "cold / ours", "peak MiB", "AMI", "ARI",
        "K", "noise", "what went wrong",
    )  # fmt: skip
    cells = []
    for data, n_rows in runs.sets:
        for name in runs.methods:
            both = [runs.rows.get((data, n_rows, name, mode), {}) for mode in ("cold", "warm")]
            if not any(both):
                continue
            done = max(both, key=lambda row: (bool(row.get("seconds")), bool(row.get("peak MiB")), bool(row)))
            scores = {field: float(done[field]) if done[field] else None for field in ("AMI", "ARI", "noise")}
            errors = {row["error"] for row in both if row.get("error")}
            failed = sorted(errors, key=lambda text: text.startswith("not tried"))[:1]
            cells.append(
                (
                    data, str(n_rows), done["d"], done["true K"], label(name),
                    significant(runs.ratio(data, n_rows, name, "warm", GRAPH)),
                    significant(runs.ratio(data, n_rows, name, "warm", OURS)),
                    significant(runs.ratio(data, n_rows, name, "cold", OURS)),
                    done["peak MiB"], number(scores["AMI"]), number(scores["ARI"]), done["K"],
                    "" if scores["noise"] is None else f"{scores['noise']:.0%}",
                    "".join(failed).replace("|", "\\|"),
                )
            )  # fmt: skip
    return lines_of(headers, cells)


def growth(runs: Runs) -> list[str]:
    cells = []
    for name in runs.methods:
        power, points = runs.slope(name)
        if np.isfinite(power):
            cells.append((label(name), f"{power:.2f}", f"{points[0][0]} to {points[-1][0]}"))
    return lines_of(("method", "warm seconds grow with n to the power of", "n"), cells)


def parameters(runs: Runs) -> list[str]:
    """What is set, and the versions that ran; everything else is a default."""
    cells = []
    for name in runs.methods:
        versions = dict.fromkeys(row["versions"] for key, row in runs.rows.items() if key[2] == name)
        cells.append((label(name), f"`{METHODS[name].call}`", "; ".join(filter(None, versions))))
    return lines_of(("method", "call", "versions"), cells)


def provenance(rows: list[Row]) -> str:
    machines = "; ".join(dict.fromkeys(row["machine"] for row in rows))
    days = sorted(row["date"][:10] for row in rows)
    limits = "; ".join(dict.fromkeys(f"{row['time limit']} s and {row['memory limit']} GiB" for row in rows))
    when = days[0] if days[0] == days[-1] else f"{days[0]} to {days[-1]}"
    return f"Measured {when} on {machines}. Limits of one run: {limits}."


def caption(rows: list[Row]) -> str:
    """Machine and all versions, in small print."""
    found = dict.fromkeys(part for row in rows for part in row["versions"].split(", ") if part)
    return textwrap.fill(f"{provenance(rows)} {', '.join(sorted(found))}.", 150)


def draw_time(runs: Runs, rows: list[Row], path: Path) -> None:
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for name in runs.methods:
        power, points = runs.slope(name)
        if points:
            grown = f", slope {power:.2f}" if np.isfinite(power) else ""
            axes.plot(*zip(*points, strict=True), label=label(name) + grown, **style(name))
    axes.set(xscale="log", yscale="log", xlabel="rows of the mixture", ylabel="seconds, warm")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.supxlabel(caption(rows), fontsize=6)
    figure.savefig(path, dpi=130)


def quality_panel(axes: Axes, runs: Runs, data: str, n_rows: int) -> None:
    for name in runs.methods:
        score = runs.value(data, n_rows, name, "warm", "AMI")
        relative = runs.ratio(data, n_rows, name, "warm", GRAPH)
        if score is not None and relative is not None:
            axes.plot([relative], [score], linestyle="", label=label(name), **style(name))
    axes.set_title(f"{data}, n = {n_rows}", fontsize=9)
    axes.set(xscale="log", ylim=(-3, 103))
    axes.set_xlabel("warm time / pynndescent's graph", fontsize=8)
    axes.grid(alpha=0.3)


def draw_quality(runs: Runs, rows: list[Row], path: Path) -> None:
    """One panel for every data set, and for the smallest and the largest mixture."""
    mixtures = [key for key in runs.sets if key[0] == "mixture"]
    chosen = [key for key in runs.sets if key[0] != "mixture" or key in (mixtures[0], mixtures[-1])]
    columns = min(3, len(chosen))
    figure = Figure(figsize=(3.6 * columns + 2.4, 3 * -(-len(chosen) // columns) + 0.6), layout="constrained")
    panels = figure.subplots(-(-len(chosen) // columns), columns, squeeze=False, sharey=True).ravel()
    legend = {}
    for axes, key in zip(panels, chosen, strict=False):
        quality_panel(axes, runs, *key)
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    for axes in panels[len(chosen) :]:
        axes.set_axis_off()
    if legend:
        ordered = [text for text in map(label, METHODS) if text in legend]
        figure.legend([legend[text] for text in ordered], ordered, loc="outside right center", fontsize=8)
    figure.supylabel("AMI")
    figure.supxlabel(caption(rows), fontsize=6)
    figure.savefig(path, dpi=130)


def write_tables(rows: list[Row], out: Path) -> None:
    """`peers.md`, `peers-time.png` and `peers-quality.png`."""
    rows = [row for row in rows if row["method"] in METHODS]
    if not rows:
        return
    runs = Runs(rows)
    text = [
        provenance(rows),
        "",
        "Ratios of times, on the same data: to pynndescent's warm graph, and to ours in the same mode. Peak memory is",
        "that of the cold run. AMI (normalised by the maximum) and ARI are times 100, noise counts as one more group.",
        "",
        *comparison(runs),
        "",
        *growth(runs),
        "",
        "Everything that the calls do not name is the default of the package:",
        "",
        *parameters(runs),
    ]
    (out / "peers.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    draw_time(runs, rows, out / "peers-time.png")
    draw_quality(runs, rows, out / "peers-quality.png")
