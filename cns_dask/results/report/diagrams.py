"""Drawings of the clusters: the map, features by cluster, who overlaps with whom, and the tree of scales."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.results.report.layout import place_clusters
from cns_dask.results.report.svg import (
    MINUS,
    contrasting,
    cut,
    line,
    number,
    percent,
    rectangle,
    svg,
    tag,
    text,
)

MAP_WIDTH, MAP_HEIGHT = 960, 720
CLEAR = 0.5  # confidence above which a row is drawn with its full colour
MOST_NAMES = 60  # of clusters on the map
MANY = 24  # clusters, whose names are smaller
FAR = 2.5  # percent of the map by which a name is moved before a line shows from where
LEAST_EDGE = 0.01  # share of a cluster that lies in another one, to be drawn


@dataclass(frozen=True)
class Pill:
    """The name of a cluster on the map."""

    cluster: int
    left: float  # in percent of the map
    top: float
    at: tuple[float, float]  # the same of the rows that it stands for
    color: str
    ink: str


def map_svg(
    share: FloatArray,
    at: IntArray,
    confidence: FloatArray,
    colors: Sequence[str],
    names: Sequence[Pill],
    image: str | None,
    description: str,
) -> Markup:
    """The rows as dots (positions as shares of the map, clusters by position), over an image of all rows."""
    dots = []
    width = 2.6 if image else 6.0 if len(share) < 800 else 4.2
    for cluster, color in enumerate(colors):
        for clear in (False, True):
            some = share[(at == cluster) & ((confidence > CLEAR) == clear)]
            if len(some):
                places = np.round(some * (MAP_WIDTH, MAP_HEIGHT), 1).tolist()
                path = "".join(f"M{x:g} {y:g}h0" for x, y in places)
                opacity = 0.9 if clear else 0.4
                dots.append(tag("path", d=path, stroke=color, stroke_width=width, stroke_opacity=opacity))
    picture = [] if image is None else [
        tag("image", href=image, width=float(MAP_WIDTH), height=float(MAP_HEIGHT), class_="density")
    ]  # fmt: skip
    return svg(
        MAP_WIDTH,
        MAP_HEIGHT,
        "Map of the rows",
        description,
        *picture,
        tag("g", *dots, class_="dots"),
        *(_leader(pill) for pill in names if np.hypot(pill.left - pill.at[0], pill.top - pill.at[1]) > FAR),
        class_="rows",
    )


def _leader(pill: Pill) -> Markup:
    """A line from a name to the rows that it stands for."""
    x, y = MAP_WIDTH / 100, MAP_HEIGHT / 100
    return line(pill.left * x, pill.top * y, pill.at[0] * x, pill.at[1] * y, "leader")


def pills(share: FloatArray, at: IntArray, clusters: Sequence[int], colors: Sequence[str]) -> list[Pill]:
    """Names of the largest clusters where most of their rows are, moved apart where they would overlap."""
    found, shown = [], []
    sizes = np.bincount(at[at >= 0], minlength=len(clusters))
    for cluster in np.sort(np.argsort(-sizes, kind="stable")[:MOST_NAMES]).tolist():
        rows = share[at == cluster]
        if len(rows):
            median = np.median(rows, axis=0)
            nearest = rows[np.argmin(((rows - median) ** 2).sum(axis=1))]  # a bent cluster's median may lie outside it
            found.append(nearest)
            shown.append(cluster)
    places = np.array(found, np.float64).reshape(-1, 2)
    moved = spread_apart(places) if len(places) <= MANY else spread_apart(places, 0.04, 0.037)
    return [
        Pill(
            clusters[cluster], 100 * x, 100 * y, (100 * at_x, 100 * at_y), colors[cluster], contrasting(colors[cluster])
        )
        for cluster, (x, y), (at_x, at_y) in zip(shown, moved.tolist(), places.tolist(), strict=True)
    ]


def spread_apart(places: FloatArray, width: float = 0.052, height: float = 0.05) -> FloatArray:
    """Places (m, 2) in the unit square, moved until boxes of this size around them do not overlap, if there is room."""
    moved = np.array(places, np.float64)
    for _ in range(200):
        difference = moved[:, None] - moved[None]
        over_x, over_y = width - np.abs(difference[..., 0]), height - np.abs(difference[..., 1])
        overlaps = (over_x > 0) & (over_y > 0)
        np.fill_diagonal(overlaps, False)
        if not overlaps.any():
            break
        along_x = overlaps & (over_x / width <= over_y / height)
        order = np.sign(np.arange(len(moved))[:, None] - np.arange(len(moved)))
        signs = np.where(difference == 0, order[..., None], np.sign(difference))
        moved[:, 0] += (0.5 * over_x * signs[..., 0] * along_x).sum(axis=1).clip(-0.05, 0.05)
        moved[:, 1] += (0.5 * over_y * signs[..., 1] * (overlaps & ~along_x)).sum(axis=1).clip(-0.05, 0.05)
        moved = np.clip(moved, (width / 2, height / 2), (1 - width / 2, 1 - height / 2))
    return moved


def heat_map(effect: FloatArray, features: Sequence[str], clusters: Sequence[int], colors: Sequence[str]) -> Markup:
    """How far the mean of each feature in each cluster is from all others: features down, clusters across."""
    left, top, height = 18 + 7.4 * max(len(cut(feature)) for feature in features), 40.0, 24.0
    cell = 46.0 if len(clusters) <= 14 else 34.0 if len(clusters) <= 24 else 24.0
    with_numbers = cell >= 34
    parts = []
    for column, (cluster, color) in enumerate(zip(clusters, colors, strict=True)):
        x = left + column * cell
        parts += [
            rectangle(x + 1.5, 8, cell - 3, 22, fill=color, rx=4.0),
            text(cluster, x + cell / 2, 24, "pill", "middle", style=f"fill:{contrasting(color)}"),
        ]
    for row, feature in enumerate(features):
        y = top + row * height
        parts.append(text(cut(feature), left - 10, y + 16, "label", "end"))
        for column, value in enumerate(effect[row].tolist()):
            x, strength = left + column * cell, min(abs(value) / 3, 1) ** 0.7
            parts.append(
                rectangle(
                    x + 1, y + 1, cell - 2, height - 2,
                    tag("title", f"{feature}, cluster {clusters[column]}: {signed(value)}"),
                    class_="above" if value >= 0 else "below", fill_opacity=float(0.05 + 0.7 * strength),
                )
            )  # fmt: skip
            if with_numbers:
                parts.append(text(signed(value), x + cell / 2, y + 16, "cell small", "middle"))
            elif abs(value) >= 0.8:
                parts.append(text("+" if value > 0 else MINUS, x + cell / 2, y + 16, "cell small", "middle"))
    return svg(
        left + len(clusters) * cell + 6,
        top + len(features) * height + 6,
        "Features by cluster",
        f"{len(features)} features down, {len(clusters)} clusters across, in the order of their tree. Orange, +: above "
        f"all other rows; blue, {MINUS}: below; the number is the difference of the means in standard deviations. "
        "The table below has the same numbers.",
        *parts,
        class_="chart natural",
    )


def signed(value: float) -> str:
    """An effect with its sign."""
    digits = 1 if abs(value) < 100 else 0
    rounded = f"{abs(value):.{digits}f}"
    return "0" if float(rounded) == 0 else f"{'+' if value > 0 else MINUS}{rounded}"


def overlap_graph(overlap: FloatArray, sizes: IntArray, clusters: Sequence[int], colors: Sequence[str]) -> Markup:
    """Clusters as discs, with lines between those that overlap: thicker where more."""
    width, tallest, margin = 560.0, 420.0, 40.0
    both = (overlap + overlap.T) / 2
    nodes, _ = place_clusters(both)
    low, high = nodes.min(axis=0), nodes.max(axis=0)
    room = np.array([width, tallest]) - 2 * margin
    unit = float((room / np.maximum(high - low, 1e-9)).min())
    height = float((high - low)[1]) * unit + 2 * margin
    places = (nodes - (low + high) / 2) * unit + (width / 2, height / 2)
    largest = 26.0 if len(clusters) <= 16 else 16.0
    radii = np.maximum(largest * np.sqrt(sizes / max(1, sizes.max(initial=1))), 11.0)
    edges, words = [], []
    pairs = [(both[a, b], a, b) for a in range(len(clusters)) for b in range(a)]
    pairs = sorted((pair for pair in pairs if pair[0] >= LEAST_EDGE), reverse=True)[: 3 * len(clusters)]
    for share, a, b in reversed(pairs):
        words.append(f"{clusters[b]} and {clusters[a]}: {percent(share)}")
        edges.append(
            tag(
                "line", tag("title", words[-1]), x1=float(places[a, 0]), y1=float(places[a, 1]),
                x2=float(places[b, 0]), y2=float(places[b, 1]), class_="edge",
                stroke_width=float(1 + 24 * min(share, 0.5)), stroke_opacity=float(0.25 + min(share, 0.5)),
            )
        )  # fmt: skip
    discs, size = [], "pill tiny" if len(clusters) > 16 else "pill"
    for at, (cluster, color) in enumerate(zip(clusters, colors, strict=True)):
        x, y = places[at].tolist()
        discs += [
            tag("circle", tag("title", f"cluster {cluster}: {number(int(sizes[at]))} rows"), cx=x, cy=y,
                r=float(radii[at]), fill=color, class_="disc"),
            text(cluster, x, y + 4, size, "middle", style=f"fill:{contrasting(color)}"),
        ]  # fmt: skip
    strongest = "; ".join(reversed(words[-5:])) or "none overlap by more than 1 %"
    return svg(
        width,
        height,
        "Which clusters overlap",
        f"Discs are clusters, larger with more rows; lines join those that overlap. The largest: {strongest}.",
        *edges,
        *discs,
    )


@dataclass(frozen=True)
class Bar:
    """A cluster of one layer of the tree of scales."""

    cluster: int
    color: str
    start: float  # in shares of all rows, from left to right
    width: float


def tree_chart(layers: Sequence[tuple[int, Sequence[Bar]]], chosen: int) -> Markup:
    """The clusters of each stable scale, coarse ones above those that lie in them; as wide as they have rows."""
    width, left, top, height = 720.0, 70.0, 10.0, 44.0
    inner = width - left - 8
    parts = []
    for row, (n_clusters, bars) in enumerate(layers):
        y = top + row * height
        parts.append(
            text(f"K = {n_clusters}", left - 10, y + 24, "tick strong" if n_clusters == chosen else "tick", "end")
        )
        for bar in bars:
            x, wide = left + inner * bar.start, max(inner * bar.width - 2, 0.8)
            parts.append(
                rectangle(x, y + 2, wide, height - 8, tag("title", f"{bar.cluster}: {percent(bar.width)} of the rows"),
                          fill=bar.color, rx=3.0)
            )  # fmt: skip
            if wide > 9 * len(str(bar.cluster)) + 4:
                parts.append(
                    text(bar.cluster, x + wide / 2, y + 25, "pill", "middle", style=f"fill:{contrasting(bar.color)}")
                )
            if n_clusters == chosen:
                parts.append(line(x, y + height - 3, x + wide, y + height - 3, "axis"))
    words = "; ".join(
        f"{n_clusters} clusters of {', '.join(percent(bar.width) for bar in bars[:12])}" for n_clusters, bars in layers
    )
    return svg(
        width,
        top + len(layers) * height,
        "The tree of scales",
        f"Each line is a stable number of clusters, as wide as the clusters have rows; finer ones lie below: {words}.",
        *parts,
        class_="chart wide",
    )
