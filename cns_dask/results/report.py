"""One page about a stored result: what was chosen, how clearly, how large the clusters are, and how they look.

A single HTML file without scripts or links, so that it can be mailed and archived. Needs matplotlib, the extra
`cns_dask[report]`.
"""

import io
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import dask
import jinja2
import numpy as np
from markupsafe import Markup

from cns_dask.array_types import FloatArray
from cns_dask.errors import CNSError, OutputError
from cns_dask.results.history import changes_in_words
from cns_dask.results.quality import quality_in_words
from cns_dask.results.result import Result
from cns_dask.results.scales import explain, sizes_of
from cns_dask.smoothing.scales import LEAST_STRUCTURE
from cns_dask.storage.outputs import writable_location

SAMPLE_ROWS = 3000
COLORS = 10
RUNNERS_UP = 6


@cache
def _template() -> jinja2.Template:
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    return jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined).get_template(
        "report.html"
    )


def write_report(
    result: Result, path: str | os.PathLike[str], *, overwrite: bool = False, n_clusters: int | None = None
) -> None:
    """Write the page about `result` to `path`; an existing page is replaced only with `overwrite`.

    `n_clusters` is another number of clusters, if not the chosen one is to be shown.
    """
    target, exists = writable_location(path)
    if exists and target.is_local and not Path(target.path).is_file():
        raise OutputError(f"{path} is not a file, but a folder or a device. Give the name of a file.")
    if exists and not overwrite:
        raise OutputError(f"{path} already exists. Choose another page, or overwrite it.")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise CNSError("A report needs matplotlib: pip install 'cns_dask[report]'.") from error
    with mpl.rc_context({"svg.hashsalt": "cns_dask", "svg.fonttype": "none", "font.size": 10}):
        page = _template().render(_variables(result, n_clusters))
    try:
        target.parent.write(target.name, page.encode())
    except OSError as error:
        raise OutputError(f"{path} cannot be written ({error}).") from error


def sample_rows(
    result: Result, n_clusters: int | None = None, n_rows: int = SAMPLE_ROWS
) -> tuple[FloatArray | None, Any, Any]:
    """Evenly spaced rows in two dimensions (as they are, or their first principal axes), labels and confidence.

    No rows where only their graph was given.
    """
    every = slice(None, None, -(-result.n_clustered // n_rows))
    rows = result.rows[every].compute()
    shown = result if n_clusters is None else result.at(n_clusters)
    labels, confidence = dask.compute(shown.labels[rows], shown.confidence[rows])
    if result.points is None:
        return None, labels, confidence
    points = result.points[every].compute()
    if points.shape[1] == 1:
        points = np.c_[points, np.zeros(len(points))]
    if points.shape[1] > 2:
        points = points - points.mean(axis=0)
        points = points @ np.linalg.svd(points, full_matrices=False)[2][:2].T
    return points, labels, confidence


def _variables(result: Result, n_clusters: int | None) -> dict[str, Any]:
    """What the template shows."""
    points, labels, confidence = sample_rows(result, n_clusters)
    is_other = n_clusters is not None and n_clusters != result.choice.n_clusters
    return {
        "result": result,
        "choice": result.choice_at(n_clusters),
        "sentence": f"{n_clusters} clusters, as asked for." if is_other else result.verdict.sentence,
        "doubts": () if is_other else result.verdict.doubts,
        "explanation": explain(result),
        "scales": result.scales,
        "scale_rows": [
            (each.n_clusters, f"{each.evidence:.1f}", f"{100 * each.share:.0f} %", _steps_in_words(*each.steps))
            for each in result.scales
        ],
        "quality": " ".join(quality_in_words(result)),
        "changes": changes_in_words(result.changes),
        "clusters": _other_sizes(result, n_clusters)
        if is_other
        else list(zip(result.clusters, result.sizes(), result.representatives, strict=True)),
        "of_sample": is_other and result.sample is not None,
        "best": result.best_by_n_clusters()[:RUNNERS_UP],
        "evidence": _figure(lambda axes: _draw_evidence(axes, result), (7, 2.5)),
        "n_shown": len(labels),
        "is_projected": points is not None and result.points is not None and result.points.shape[1] > 2,
        "scatter": points is not None and _figure(lambda axes: _draw_scatter(axes, points, labels, confidence), (7, 5)),
        "criterion": _figure(lambda axes: _draw_criterion(axes, result), (7, 3.5)),
        "confidence": _figure(lambda axes: _draw_confidence(axes, confidence), (7, 2.5)),
        "versions": result.details["versions"],
    }


def _steps_in_words(first: float, last: float) -> str:
    return f"{first:.0f} or more" if np.isinf(last) else f"{first:.0f} to {last:.0f}"


def _other_sizes(result: Result, n_clusters: int | None) -> list[tuple[int, int, str]]:
    """Sizes of the clusters of another number of them."""
    return [(cluster, int(count), "") for cluster, count in enumerate(sizes_of(result.at(n_clusters).labels))]


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
    paper = result.selection.paper
    axes.plot(paper.n_clusters, paper.value, "o", color="black")
    axes.set_xlabel("number of clusters K")
    axes.set_ylabel("criterion C / R")
    axes.legend(frameon=False)


def _draw_evidence(axes: Any, result: Result) -> None:
    total = result.evidence.total
    K = np.arange(2, len(total) + 1)
    chosen = result.choice.n_clusters == K
    axes.bar(K, total[1:], color=np.where(chosen, "#222222", "#4878a8"))
    axes.axhline(LEAST_STRUCTURE, color="#999999", linewidth=0.8, linestyle="--")
    axes.set_xlabel("number of clusters K")
    axes.set_ylabel("evidence")


def _draw_confidence(axes: Any, confidence: Any) -> None:
    axes.hist(confidence, bins=np.linspace(0, 1, 41), color="#4878a8")
    axes.set_xlabel("confidence")
    axes.set_ylabel("rows")


def _figure(draw: Callable[[Any], None], size: tuple[float, float]) -> Markup:
    """An inline SVG of what `draw` puts on the axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    draw(figure.subplots())
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue().split("?>", 1)[1].split(">", 1)[1]  # without the XML declaration and document type
    return Markup(svg)
