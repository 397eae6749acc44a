"""One page about a stored result: what was chosen, how clearly, how large the clusters are, and how they look.

A single HTML file without scripts or links, so that it can be mailed and archived. Needs matplotlib, the extra
`cns_dask[report]`.
"""

from __future__ import annotations

import html
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np

from cns_dask.changes import in_words
from cns_dask.errors import CNSError, OutputError
from cns_dask.neighbors import describe_quality
from cns_dask.result import Result
from cns_dask.types import FloatArray

SAMPLE_ROWS = 3000
COLORS = 10

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222; }}
h1 {{ font-size: 1.6rem; }} h2 {{ font-size: 1.2rem; margin-top: 2rem; }}
table {{ border-collapse: collapse; }}
td, th {{ padding: .2rem .9rem; text-align: right; border-bottom: 1px solid #ddd; }}
svg {{ max-width: 100%; height: auto; }} .small {{ color: #666; font-size: .9rem; }}
</style></head><body>
<h1>{title}</h1>
<p>{summary}</p>{changes}
<h2>The clusters</h2>{scatter}
<p class="small">{scatter_note}</p>{clusters}
<h2>How clear the choice is</h2>{criterion}
<p class="small">Each line is one number of neighbours k, at its best lam. The dot is the choice.</p>{runners_up}
<h2>How clearly rows belong to their cluster</h2>{confidence}
<p class="small">Confidence 0: no cluster is preferred; 1: only one is in reach. The memberships themselves are small
numbers even for perfect clusters; compare them within a row.</p>
<h2>The run</h2>{run}
</body></html>
"""


def write_report(result: Result, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
    """Write the page about `result` to `path`; an existing page is replaced only with `overwrite`."""
    target = Path(path).expanduser()
    if target.is_dir():
        raise OutputError(f"The page must be a file. Got the folder {path}.")
    if target.exists() and not overwrite:
        raise OutputError(f"The page must not exist. Got {path}. Choose another, or overwrite it.")
    if not target.absolute().parent.is_dir():
        raise OutputError(f"The folder of the page must exist. Got {target.absolute().parent}. Create it first.")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise CNSError("matplotlib must be installed for a report. Run: pip install 'cns_dask[report]'") from error
    with mpl.rc_context({"svg.hashsalt": "cns_dask", "svg.fonttype": "none", "font.size": 10}):
        page = PAGE.format(**_parts(result))
    target.write_text(page, encoding="utf-8")


def sample_rows(result: Result) -> tuple[FloatArray | None, Any, Any]:
    """Evenly spaced rows in two dimensions (as they are, or their first principal axes), labels and confidence.

    No rows where only their graph was given.
    """
    every = slice(None, None, -(-result.n_rows // SAMPLE_ROWS))
    rows = result.rows[every].compute()
    labels, confidence = dask.compute(result.labels[rows], result.confidence[rows])
    if result.points is None:
        return None, labels, confidence
    points = result.points[every].compute()
    if points.shape[1] == 1:
        points = np.c_[points, np.zeros(len(points))]
    if points.shape[1] > 2:
        points = points - points.mean(axis=0)
        points = points @ np.linalg.svd(points, full_matrices=False)[2][:2].T
    return points, labels, confidence


def _parts(result: Result) -> dict[str, str]:
    choice, details = result.choice, result.details
    points, labels, confidence = sample_rows(result)
    best = result.best_by_n_clusters()[:6]
    margin = "" if choice.margin is None else f", {choice.margin:.4f} ahead of the next cell"
    shown = f"{len(labels)} of {result.n_rows} rows" if len(labels) < result.n_rows else f"All {len(labels)} rows"
    plane = "" if result.points is None or result.points.shape[1] <= 2 else ", on the first two principal axes"
    return {
        "title": html.escape(f"{choice.n_clusters} clusters in {result.n_rows} rows"),
        "summary": html.escape(
            f"Chosen: K = {choice.n_clusters} clusters, k = {choice.n_neighbors} neighbours, lam = {choice.lam:.4g}. "
            f"Criterion {choice.value:.4f}{margin}. Metric: {result.settings.metric}. {describe_quality(result.graph)}"
        ),
        "changes": _list("Since the earlier fit", in_words(result)),
        "scatter": ""
        if points is None
        else _figure(lambda axes: _draw_scatter(axes, points, labels, confidence), (7, 5)),
        "scatter_note": "Only the graph was given, no rows to draw."
        if points is None
        else f"{shown}{plane}; pale where the confidence is low.",
        "clusters": _table(
            ("cluster", "rows", "representative row"),
            list(zip(result.clusters, result.sizes(), result.representatives, strict=True)),
        ),
        "criterion": _figure(lambda axes: _draw_criterion(axes, result), (7, 3.5)),
        "runners_up": _table(
            ("K", "k", "lam", "criterion"),
            [(cell.n_clusters, cell.n_neighbors, f"{cell.lam:.4g}", f"{cell.value:.4f}") for cell in best],
        ),
        "confidence": _figure(lambda axes: _draw_confidence(axes, confidence), (7, 2.5)),
        "run": _table(("stage", "seconds"), [(name, f"{took:.2f}") for name, took in result.seconds.items()])
        + f"<p class='small'>{html.escape(f'Stored at {result.path}')}. "
        f"Largest residual of a solved column: {result.largest_residual:.1e}. "
        f"{html.escape(', '.join(f'{name} {number}' for name, number in details['versions'].items()))}</p>",
    }


def _draw_scatter(axes: Any, points: FloatArray, labels: Any, confidence: Any) -> None:
    axes.scatter(
        *points.T,
        c=labels % COLORS,
        cmap="tab10",
        vmin=0,
        vmax=COLORS - 1,
        s=9,
        linewidths=0,
        alpha=0.25 + 0.75 * confidence,
    )
    axes.set_xticks([])
    axes.set_yticks([])


def _draw_criterion(axes: Any, result: Result) -> None:
    surface = result.criterion
    for at, k in enumerate(result.grid.ks):
        some = ~np.isnan(surface[at]).all(axis=0)
        axes.plot(np.flatnonzero(some) + 1, np.nanmax(surface[at][:, some], axis=0), label=f"k = {k}", linewidth=1.2)
    axes.plot(result.choice.n_clusters, result.choice.value, "o", color="black")
    axes.set_xlabel("number of clusters K")
    axes.set_ylabel("criterion C / R")
    axes.legend(frameon=False)


def _draw_confidence(axes: Any, confidence: Any) -> None:
    axes.hist(confidence, bins=np.linspace(0, 1, 41), color="#4878a8")
    axes.set_xlabel("confidence")
    axes.set_ylabel("rows")


def _figure(draw: Callable[[Any], None], size: tuple[float, float]) -> str:
    """An inline SVG of what `draw` puts on the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots())
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().split("?>", 1)[1].split(">", 1)[1]  # without the XML declaration and document type


def _list(title: str, lines: list[str]) -> str:
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return f"<h2>{title}</h2><ul>{items}</ul>" if lines else ""


def _table(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> str:
    def line(cells: tuple[Any, ...], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "<table>" + line(header, "th") + "".join(line(row, "td") for row in rows) + "</table>"
