"""The page about a result: everything that the template shows is put together here.

A single HTML file that asks nothing of any other place: style and script are inside, and a policy forbids requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import dask
import jinja2
import numpy as np
from markupsafe import Markup

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import InvalidSettingError, OutputError
from cns_dask.results.fit_rows import same_features
from cns_dask.results.history import changes_in_words
from cns_dask.results.profile import label_positions
from cns_dask.results.quality import quality_in_words
from cns_dask.results.report import charts, diagrams
from cns_dask.results.report.clusters import cards, heat_rows
from cns_dask.results.report.coordinates import GRAPH, PRINCIPAL, Plane, plane_of
from cns_dask.results.report.density import Box, box_of, count_pixels, data_uri, density_png
from cns_dask.results.report.levels import Level, layers_of, levels_of, tree_bars
from cns_dask.results.report.run import command_line, python_call, run_of, warnings_of
from cns_dask.results.report.shown import Shown, collect
from cns_dask.results.report.svg import clean, number, percent, seconds, size_in_bytes, ticks
from cns_dask.results.result import Result
from cns_dask.results.scales import explain
from cns_dask.storage.outputs import writable_location

SAMPLE_ROWS = 4000  # that are points of the map
OPEN_CARDS = 12  # clusters that are shown without a click
RUNNERS_UP = 6
FOLDER = Path(__file__).parent
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src '{}'; base-uri 'none'; form-action 'none'"
)


def write_report(
    result: Result,
    path: str | os.PathLike[str],
    data: Any = None,
    *,
    coordinates: Any = None,
    n_clusters: int | None = None,
    overwrite: bool = False,
    **options: Any,
) -> None:
    """Write the page about `result` to `path`.

    Parameters
    ----------
    result
        An opened result.
    path
        The HTML file to write.
    data
        The data of the fit (see `open_data`): what sets clusters apart is told for all features. Without them it is
        told where the stored rows have all features, that is if these were not projected.
    coordinates
        Where rows are on the map: "principal" (the first principal axes), "graph" (a layout of the clusters, which
        needs no rows), or coordinates of all rows: two columns of `data` ("x,y" or a list), a part of an AnnData
        ("obsm/X_umap"), an array of two columns or its path. None: principal axes, or the layout if only a graph is
        known.
    n_clusters
        Another number of clusters, if not the chosen one is to be shown.
    overwrite
        Replace an existing page.
    **options
        Options of `open_data` for `data`; those of the fit are used where they are not given.

    Examples
    --------
    >>> import tempfile
    >>> from cns_dask.demo import demo_result
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_report(demo_result(), f"{folder}/report.html")
    ...     "6 clusters in 300 rows" in Path(folder, "report.html").read_text(encoding="utf-8")
    True
    """
    target, exists = writable_location(path)
    if exists and target.is_local and not Path(target.path).is_file():
        raise OutputError(f"{path} is not a file, but a folder or a device. Give the name of a file.")
    if exists and not overwrite:
        raise OutputError(f"{path} already exists. Choose another page, or overwrite it.")
    if data is None and options:
        raise InvalidSettingError(f"{', '.join(options)} say what of the data is read. Give the data too.")
    opened = (None, None) if data is None else same_features(result, data, options)
    page = _template().render(_variables(result, opened, data, coordinates, n_clusters))
    try:
        target.parent.write(target.name, page.encode("utf-8", "replace"))
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error}).") from error


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, percent=percent, seconds=seconds, bytes=size_in_bytes, clean=clean)
    return environment.get_template("page.html")


@dataclass(frozen=True)
class MapSample:
    """Rows that are points of the map."""

    share: FloatArray  # their places, as shares of the map
    at: IntArray  # position of their cluster; -1 for none
    confidence: FloatArray
    rows: IntArray  # their row numbers
    labels: list[IntArray]  # their clusters in other layers
    box: Box


def _variables(
    result: Result, opened: tuple[Any, Any], data: Any, coordinates: Any, n_clusters: int | None
) -> dict[str, Any]:
    """What the template shows; `opened` are the rows of the data and the names of their features."""
    shown = collect(result, n_clusters, *opened)
    is_own = coordinates is None or (isinstance(coordinates, str) and coordinates in (PRINCIPAL, GRAPH))
    source = opened[0] if is_own else data
    plane = plane_of(result, shown.clustering, shown.affinity, source, coordinates)
    layers = layers_of(shown)
    sample = _sample(plane, shown, [plane.of(layer.labels, result) for layer in layers])
    own, others = levels_of(shown, layers, sample.at, sample.labels)
    n_drawn = int(plane.labels.shape[0])
    counts = count_pixels(plane, shown.clusters, sample.box) if n_drawn > len(sample.rows) else None
    image = None if counts is None else data_uri(density_png(counts, own.colors))
    levels = sorted(
        [own, *(each for each in others if each.n_clusters != own.n_clusters)], key=lambda each: each.n_clusters
    )
    pills = diagrams.pills(sample.share, sample.at, shown.clusters, own.colors)
    script = Markup((FOLDER / "script.js").read_text(encoding="utf-8"))
    choice = result.choice_at(n_clusters)
    clear = shown.confidence_counts[:, shown.confidence_counts.shape[1] // 2 :].sum() / max(1, int(shown.sizes.sum()))
    words = _map_words(plane, shown, len(sample.rows), n_drawn)
    return {
        "style": Markup((FOLDER / "style.css").read_text(encoding="utf-8")),
        "script": script,
        "policy": POLICY.format(f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"),
        "result": result,
        "shown": shown,
        "choice": choice,
        "sentence": f"{len(shown.clusters)} clusters, as asked for." if shown.is_other else result.verdict.sentence,
        "warnings": warnings_of(result, shown),
        "facts": _facts(result, shown, float(clear)),
        "quality": [line.partition(": ")[::2] for line in quality_in_words(result)],
        "changes": changes_in_words(result.changes),
        "explanation": explain(result),
        "command": command_line(result),
        "call": python_call(result),
        "settings": result.settings.as_dict(),
        "map": diagrams.map_svg(sample.share, sample.at, sample.confidence, own.colors, pills, image, words),
        "map_words": words,
        "n_outside": 0 if counts is None else counts.n_outside,
        "pills": pills,
        "is_many": len(pills) > diagrams.MANY,
        "axes": _axes(plane, sample.box),
        "points": _embedded(sample, own, levels, counts is not None),
        "levels": levels,
        "cards": cards(shown, own.colors),
        "open_cards": OPEN_CARDS,
        "heat": heat_rows(shown, own.colors),
        "overlap": diagrams.overlap_graph(shown.overlap, shown.sizes, shown.clusters, own.colors)
        if 1 < len(shown.clusters) <= 100
        else None,
        "evidence": charts.evidence_chart(result.evidence.total, choice.n_clusters, result.evidence.least_structure),
        "evidence_total": result.evidence.total.tolist(),
        "criterion": charts.criterion_chart(result.criterion, result.grid, result.selection.paper),
        "grid_rows": [
            (k, f"{lam:.4g}", K, f"{value:.4g}")
            for k, lam, K, value in charts.best_by_grid_point(result.criterion, result.grid)
        ],
        "surface": charts.surface_chart(result.criterion, result.grid, result.selection.paper),
        "confidence": charts.confidence_chart(shown.confidence_counts.sum(axis=0)),
        "confidence_counts": shown.confidence_counts.sum(axis=0).tolist(),
        "tree": diagrams.tree_chart(tree_bars(others), len(shown.clusters)) if len(layers) > 1 else None,
        "scales": result.scales,
        "best": result.best_by_n_clusters()[:RUNNERS_UP],
        "run": run_of(result),
        "versions": result.details["versions"],
        "infinity": float("inf"),
    }


def _map_words(plane: Plane, shown: Shown, n_points: int, n_drawn: int) -> str:
    """What the map shows."""
    rows = "rows of the sample" if shown.result.sample is not None and plane.rows is not None else "rows"
    image = f" over an image of {number(n_drawn)} rows" if n_drawn > n_points else ""
    return (
        f"{number(n_points)} {rows} as points{image}, in the colours of {len(shown.clusters)} clusters, pale where the "
        f"confidence is below 0.5. Axes: {clean(plane.words)}."
    )


def _facts(result: Result, shown: Shown, clear: float) -> list[tuple[str, str, str]]:
    """The numbers that everybody asks for first: name, value, and what it means."""
    found = ("given", "the graph came from the caller")
    if result.graph.method == "exact":
        found = ("exact", "all neighbours are the true ones")
    elif result.graph.recall:
        least = min(each.mean for each in result.graph.recall)
        found = (f"{100 * least:.1f}\u202f%", "of the true neighbours found, measured on a sample")
    total = sum(result.seconds.values())
    certainty = "no rounding can change the choice" if result.is_certain else "near choices may be decided by rounding"
    return [
        ("clusters", number(len(shown.clusters)), "as asked for" if shown.is_other else certainty),
        ("rows", number(result.n_rows), f"{number(result.n_skipped)} skipped" if result.n_skipped else "all labelled"),
        ("clear rows", percent(clear), "have a confidence above 0.5"),
        ("neighbours", *found),
        ("time", seconds(total), f"for {len(result.seconds)} stages"),
    ]


def _sample(plane: Plane, shown: Shown, layers: list[Any]) -> MapSample:
    """Evenly spaced rows of the plane."""
    n_drawn = int(plane.labels.shape[0])
    every = slice(None, None, max(1, -(-n_drawn // SAMPLE_ROWS)))
    numbers = np.arange(0, n_drawn, every.step) if plane.rows is None else plane.rows[every]
    wanted = [plane.xy[every], plane.labels[every], plane.confidence[every], numbers, *(each[every] for each in layers)]
    xy, labels, confidence, rows, *others = dask.compute(*wanted)
    box = box_of(xy, is_square=plane.is_square)
    share = box.scaled(xy)
    with np.errstate(invalid="ignore"):
        inside = np.isfinite(share).all(axis=1) & (share >= 0).all(axis=1) & (share <= 1).all(axis=1)
    at = label_positions(labels, np.asarray(shown.clusters))
    return MapSample(
        share[inside], at[inside], confidence[inside], np.asarray(rows)[inside], [each[inside] for each in others], box
    )


def _axes(plane: Plane, box: Box) -> dict[str, Any] | None:
    """Names of the axes and ticks, in percent of the map; None if they have no names."""
    if plane.axes is None:
        return None
    ends = list(zip(box.low, box.high, strict=True))
    places = [
        [(100 * (value - low) / (high - low), number(value)) for value in ticks(low, high, 5)] for low, high in ends
    ]
    return {"x": clean(plane.axes[0]), "y": clean(plane.axes[1]), "x_ticks": places[0], "y_ticks": places[1]}


def _embedded(sample: MapSample, own: Level, levels: list[Level], has_image: bool) -> Markup:
    """The points for the script, as JSON that is safe inside a page."""
    small = max(level.n_clusters for level in levels) < 255
    kind = np.uint8 if small else np.uint16

    def packed(values: Any, dtype: Any) -> str:
        return base64.b64encode(np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<")).tobytes()).decode()

    wide = bool(len(sample.rows) and sample.rows.max() >= 2**32)
    content = {
        "x": packed(np.round(sample.share[:, 0] * 65535), np.uint16),
        "y": packed(np.round(sample.share[:, 1] * 65535), np.uint16),
        "confidence": packed(np.round(sample.confidence * 255), np.uint8),
        "rows": packed(sample.rows, np.float64 if wide else np.uint32),
        "wide": wide,
        "small": small,
        "image": has_image,
        "shown": own.n_clusters,
        "levels": [
            {
                "n": level.n_clusters,
                "at": packed(np.where(level.at < 0, np.iinfo(kind).max, level.at), kind),
                "colors": level.colors,
                "names": level.clusters,
            }
            for level in levels
        ],
    }
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
    return Markup(json.dumps(content).translate({ord(each): escape for each, escape in escapes.items()}))
