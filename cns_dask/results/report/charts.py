"""Charts about the choice and the confidence: drawn as SVG from plain numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.results.report.svg import (
    frame,
    line,
    number,
    percent,
    rectangle,
    svg,
    tag,
    text,
    ticks,
)
from cns_dask.settings import Grid
from cns_dask.smoothing.criterion import Choice

WIDTH, HEIGHT = 460.0, 270.0
LEFT, TOP, RIGHT, BOTTOM = 46.0, 26.0, 448.0, 226.0  # of what is inside the axes
DASHES = ("", "7 3", "2 3", "9 3 2 3")  # lines of one chart differ in more than their colour


def evidence_chart(total: FloatArray, chosen: int, least: float) -> Markup:
    """Evidence for every number of clusters; the choice and the runner-up are marked."""
    n_clusters = np.arange(1, len(total) + 1)
    shown = _enough(total, chosen)
    top = max(float(np.nanmax(total[:shown], initial=0)), least) * 1.12
    step = (RIGHT - LEFT) / shown

    def x(value: float) -> float:
        return LEFT + (value - 0.5) * step

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / top

    others = np.where(n_clusters == chosen, -1.0, total)
    second = int(np.argmax(others)) + 1 if others.max() > 0 else 0
    bars = [
        rectangle(
            x(K) - 0.36 * step,
            y(value),
            0.72 * step,
            max(BOTTOM - y(value), 0.0),
            tag("title", f"{K} clusters: evidence {number(value)}"),
            class_="chosen" if chosen == K else "bar",
        )
        for K, value in zip(n_clusters[:shown].tolist(), total.tolist(), strict=False)
        if value > 0
    ]
    marks = [text(K, x(K), y(total[K - 1]) - 5, "mark", "middle") for K in (chosen, second) if 0 < K <= shown]
    return svg(
        WIDTH,
        HEIGHT,
        "Evidence for each number of clusters",
        f"A bar for each number of clusters. {chosen} were chosen"
        + (f"; {second} come next." if second else ".")
        + f" Below {number(least)} there is no structure.",
        frame(
            (LEFT, TOP, RIGHT, BOTTOM), (_whole(shown), x, "number of clusters K"), (ticks(0, top, 4), y, "evidence")
        ),
        line(LEFT, y(least), RIGHT, y(least), "limit"),
        *bars,
        *marks,
    )


def criterion_chart(surface: FloatArray, grid: Grid, chosen: Choice) -> Markup:
    """The paper's criterion at the best lam over the number of clusters, a line for each k."""
    best = np.full((len(grid.ks), surface.shape[2]), np.nan)
    for at in range(len(grid.ks)):
        some = ~np.isnan(surface[at]).all(axis=0)
        best[at, some] = np.nanmax(surface[at][:, some], axis=0)
    known = best[np.isfinite(best)]
    low, high = (float(known.min()), float(known.max())) if len(known) else (0.0, 1.0)
    low, high = min(low, 0.0), high + 0.08 * (high - min(low, 0.0)) or 1.0
    n_shown = best.shape[1]
    right = RIGHT - 44

    def x(value: float) -> float:
        return LEFT + (right - LEFT) * (value - 1) / max(1, n_shown - 1)

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (value - low) / (high - low)

    lines, ends = [], []
    for at, k in enumerate(grid.ks):
        there = np.flatnonzero(np.isfinite(best[at]))
        if len(there):
            path = "L".join(f"{x(K + 1):.1f} {y(best[at, K]):.1f}" for K in there.tolist())
            lines.append(
                tag("path", d=f"M{path}", class_=f"line line{at % 4}", stroke_dasharray=DASHES[at % 4] or None)
            )
            ends.append((y(best[at, there[-1]]), x(float(there[-1]) + 1), k, at))
    labels = [
        text(f"k = {k}", at_x + 6, at_y, f"mark text{at % 4}")
        for (_, at_x, k, at), at_y in zip(sorted(ends), _apart([end[0] + 4 for end in sorted(ends)], 14), strict=True)
    ]
    dot = tag("circle", cx=x(chosen.n_clusters), cy=y(chosen.value), r=5.0, class_="dot")
    return svg(
        WIDTH,
        HEIGHT,
        "The paper's criterion for each number of clusters",
        f"A line for each number of neighbours k, at its best lam. The dot is the best: {chosen.n_clusters} clusters.",
        frame(
            (LEFT, TOP, right, BOTTOM), (_whole(n_shown), x, "number of clusters K"), (ticks(low, high, 4), y, "C / R")
        ),
        *lines,
        *labels,
        dot if np.isfinite(chosen.value) else "",
    )


def best_by_grid_point(surface: FloatArray, grid: Grid) -> list[tuple[int, float, int, float]]:
    """The number of clusters with the largest criterion of every k and lam, and that criterion, where there is one."""
    filled = np.where(np.isnan(surface), -np.inf, surface)
    best, at_K = filled.max(axis=2), filled.argmax(axis=2) + 1
    return [
        (k, lam, int(at_K[row, column]), float(best[row, column]))
        for row, k in enumerate(grid.ks)
        for column, lam in enumerate(grid.lams)
        if np.isfinite(best[row, column])
    ]


def surface_chart(surface: FloatArray, grid: Grid, paper: Choice) -> Markup:
    """The largest criterion of every (k, lam), and the number of clusters where it is reached."""
    rows, columns = len(grid.ks), len(grid.lams)
    left, top, cell, height = 62.0, 30.0, min(78.0, (WIDTH - 70) / columns), 40.0
    best = best_by_grid_point(surface, grid)
    values = [value for *_, value in best]
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    cells = []
    for k, lam, K, value in best:
        x, y = left + grid.lams.index(lam) * cell, top + grid.ks.index(k) * height
        share = 0.08 + 0.62 * (value - low) / max(high - low, 1e-300)
        is_chosen = (k, lam) == (paper.n_neighbors, paper.lam)
        cells += [
            rectangle(x + 1, y + 1, cell - 2, height - 2, fill_opacity=float(share), class_="heat"),
            text(f"K = {K}", x + cell / 2, y + 17, "cell strong" if is_chosen else "cell", "middle"),
            text(f"{value:.3g}", x + cell / 2, y + 32, "cell small", "middle"),
        ]
        if is_chosen:
            cells.append(rectangle(x + 1, y + 1, cell - 2, height - 2, class_="outline"))
    bottom = top + rows * height
    names = [text(f"k = {k}", left - 8, top + row * height + 24, "tick", "end") for row, k in enumerate(grid.ks)]
    names += [
        text(f"{lam:.3g}", left + (column + 0.5) * cell, bottom + 16, "tick", "middle")
        for column, lam in enumerate(grid.lams)
    ]
    return svg(
        WIDTH,
        bottom + 40,
        "The criterion of every k and lam",
        f"For each number of neighbours k and weight lam the best number of clusters K and its criterion. The largest "
        f"is at k = {paper.n_neighbors}, lam = {paper.lam:.3g}: {paper.n_clusters} clusters.",
        *cells,
        *names,
        text("weight of the start lam", left + columns * cell / 2, bottom + 34, "name", "middle"),
        text("best K and its criterion", left, top - 10, "name"),
    )


def confidence_chart(counts: IntArray) -> Markup:
    """How many rows have which confidence."""
    top = max(int(counts.max(initial=1)), 1) * 1.05
    step = (RIGHT - LEFT) / len(counts)

    def x(value: float) -> float:
        return LEFT + (RIGHT - LEFT) * value

    def y(value: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / top

    bars = [
        rectangle(
            LEFT + at * step + 0.5,
            y(count),
            step - 1,
            BOTTOM - y(count),
            tag("title", f"confidence {at / len(counts):.2f} to {(at + 1) / len(counts):.2f}: {number(count)} rows"),
            class_="bar",
        )
        for at, count in enumerate(counts.tolist())
    ]
    clear = counts[len(counts) // 2 :].sum() / max(1, counts.sum())
    return svg(
        WIDTH,
        HEIGHT,
        "How clearly rows belong to their cluster",
        f"Number of rows by confidence, from 0 (no cluster is preferred) to 1 (only one is in reach). "
        f"{percent(float(clear))} of the rows have more than 0.5.",
        frame((LEFT, TOP, RIGHT, BOTTOM), (ticks(0, 1), x, "confidence"), (ticks(0, top, 3), y, "rows")),
        *bars,
    )


def confidence_strip(counts: IntArray, color: str, cluster: str) -> Markup:
    """The same of one cluster, small."""
    width, height, top = 140.0, 30.0, max(int(counts.max(initial=1)), 1)
    step = width / len(counts)
    bars = [
        rectangle(at * step + 0.5, height - 28 * count / top, step - 1, 28 * count / top, fill=color)
        for at, count in enumerate(counts.tolist())
        if count
    ]
    clear = counts[len(counts) // 2 :].sum() / max(1, counts.sum())
    return svg(
        width,
        height,
        f"Confidence of {cluster}",
        f"{percent(float(clear))} of its rows have a confidence above 0.5; from 0 on the left to 1 on the right.",
        line(0, height - 0.5, width, height - 0.5, "axis"),
        *bars,
        class_="strip",
        preserveAspectRatio="none",
    )


def _whole(last: int) -> list[float]:
    """Ticks of numbers of clusters."""
    step = max(1, -(-last // 12)) if last <= 24 else 5 if last <= 60 else 10 * -(-last // 120)
    return [float(K) for K in range(1, last + 1) if K % step == 0 or (step == 1)]


def _enough(total: FloatArray, chosen: int) -> int:
    """So many numbers of clusters show all that is not nothing."""
    some = np.flatnonzero(total > 0.01 * max(float(total.max(initial=0)), 1e-300))
    return int(min(len(total), max(chosen + 2, (some[-1] + 3) if len(some) else 0, 8)))


def _apart(places: Sequence[float], gap: float) -> list[float]:
    """Ascending places, moved so that they are at least so far apart."""
    moved: list[float] = []
    for place in places:
        moved.append(max(place, moved[-1] + gap) if moved else place)
    shift = max(0.0, moved[-1] - max(BOTTOM + 4, places[-1])) if moved else 0.0
    return [place - shift for place in moved]
