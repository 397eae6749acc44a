"""Plots of a result: `result.plot.map()` and others. Each returns matplotlib's Axes, and draws on `ax` if it is given.

Needs matplotlib, the extra `cns_dask[plots]`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.errors import CNSError
from cns_dask.results.colors import OTHERS, cluster_colors
from cns_dask.results.coordinates import MAP_ROWS, map_points
from cns_dask.results.explaining import clustering_of, profiled
from cns_dask.results.overlap import overlap_of

if TYPE_CHECKING:
    from cns_dask.results.result import Result

CHOSEN, OTHER = "#d55e00", "#8aa9c4"  # of the choice, and of what was not chosen
MOST_FEATURES = 30  # that a profile shows
SHOWN_EFFECT = 3.0  # where its colours end
MOST_NUMBERS = 400  # written into the cells of a picture


class Plots:
    """The plots of a result.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from cns_dask.demo import demo_result
    >>> demo_result().plot.overlap().get_title()
    'overlap of clusters'
    """

    def __init__(self, result: Result) -> None:
        self._result = result

    def map(
        self,
        X: Any = None,
        *,
        coordinates: Any = None,
        n_clusters: int | None = None,
        n_rows: int = MAP_ROWS,
        ax: Any = None,
        **options: Any,
    ) -> Any:
        """Draw rows in the plane, colored by cluster and paler where their cluster is in doubt.

        Parameters
        ----------
        X
            The data of the fit, whose first two principal axes are the plane. None: the stored rows are, as the
            neighbours saw them.
        coordinates
            Other coordinates: an array or table with two columns and a row for every row of the fit, or the names of
            two columns of X.
        n_clusters
            Another number of clusters.
        n_rows
            About so many rows are drawn, chosen by their row numbers.
        ax
            Where to draw; a new figure if None.
        **options
            Options of `open_data` for X.

        Examples
        --------
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from cns_dask.demo import demo_points, demo_result
        >>> demo_result().plot.map(demo_points(300)).get_xlabel()
        'principal axis 1 (36 %)'
        """
        axes = _axes(ax, (7, 5.5))
        clusters = clustering_of(self._result, n_clusters)[1]
        drawn = map_points(self._result, X, coordinates, n_clusters, n_rows, options)
        position = {number: at for at, number in enumerate(clusters)}
        at = np.array([position.get(label, -1) for label in drawn.labels.tolist()], np.int64)
        colors = _rgb([*cluster_colors(len(clusters)), OTHERS])[at]
        alpha = np.clip(0.2 + 0.8 * np.nan_to_num(drawn.confidence), 0, 1) * np.where(at < 0, 0.5, 1)
        size = float(np.clip(12_000 / max(1, len(at)), 3, 24))
        axes.scatter(*drawn.points.T, c=np.c_[colors, alpha], s=size, linewidths=0)
        for number in clusters:
            _write_name(axes, drawn.points[drawn.labels == number], str(number), len(clusters))
        axes.set_xlabel(drawn.names[0])
        axes.set_ylabel(drawn.names[1])
        axes.set_xticks([])
        axes.set_yticks([])
        rows = f"{len(at)} of {self._result.n_rows} rows" if len(at) < self._result.n_rows else f"{len(at)} rows"
        axes.set_title(f"{len(clusters)} clusters, {rows}; pale where in doubt")
        return axes

    def criterion(self, *, ax: Any = None) -> Any:
        """Draw the paper's criterion over the number of clusters, for every k, with the choice that it would make.

        Examples
        --------
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from cns_dask.demo import demo_result
        >>> demo_result().plot.criterion().get_ylabel()
        'criterion C / R'
        """
        axes, result = _axes(ax, (7, 3.5)), self._result
        surface, paper = result.criterion, result.selection.paper
        shades = np.linspace(0.75, 0.15, len(result.grid.ks))
        for at, k in enumerate(result.grid.ks):
            tried = ~np.isnan(surface[at]).all(axis=0)
            best = np.nanmax(surface[at][:, tried], axis=0)
            axes.plot(np.flatnonzero(tried) + 1, best, color=str(shades[at]), label=f"k = {k}", linewidth=1.3)
        label = f"best: K = {paper.n_clusters}, k = {paper.n_neighbors}, lam = {paper.lam:.3g}"
        axes.plot(paper.n_clusters, paper.value, "o", color=CHOSEN, label=label)
        axes.set_xlabel("number of clusters K")
        axes.set_ylabel("criterion C / R")
        axes.set_title("the paper's criterion, best lam of every k")
        axes.legend(frameon=False, fontsize="small")
        return axes

    def scales(self, *, ax: Any = None) -> Any:
        """Draw how far every number of clusters stands out from data without structure, and mark those that are stable.

        Examples
        --------
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from cns_dask.demo import demo_result
        >>> [text.get_text() for text in demo_result().plot.scales().texts]
        ['4']
        """
        axes, result = _axes(ax, (7, 3.5)), self._result
        total, chosen = result.evidence.total, result.choice.n_clusters
        K = np.arange(2, len(total) + 1)
        axes.bar(K, total[1:], color=np.where(chosen == K, CHOSEN, OTHER))
        axes.axhline(result.evidence.least_structure, color="#777777", linewidth=0.8, linestyle="--")
        for scale in result.scales:
            axes.annotate(
                str(scale.n_clusters),
                (scale.n_clusters, scale.evidence),
                (0, 3),
                textcoords="offset points",
                ha="center",
                weight="bold" if scale.n_clusters == chosen else "normal",
            )
        last = max([chosen, *(np.flatnonzero(total > 0) + 1)])
        axes.set_xlim(1.2, last + 1.8)
        axes.margins(y=0.12)
        axes.set_xlabel("number of clusters K")
        axes.set_ylabel("evidence")
        axes.set_title("stable numbers of clusters; dashed: no structure below")
        return axes

    def profile(self, X: Any, *, n_clusters: int | None = None, ax: Any = None, **options: Any) -> Any:
        """Draw which features set each cluster apart: effect sizes, red where it has more, blue where it has less.

        Parameters
        ----------
        X
            The data of the fit: see `open_data`. Of many features, the ones with the largest effects are drawn.
        n_clusters
            Another number of clusters.
        ax
            Where to draw; a new figure if None.
        **options
            Options of `open_data` for X.

        Examples
        --------
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from cns_dask.demo import demo_points, demo_result
        >>> len(demo_result().plot.profile(demo_points(300)).get_yticklabels())
        8
        """
        found = profiled(self._result, X, n_clusters, options)[0]
        largest = np.abs(found.effect).max(axis=0)
        shown = np.sort(np.argsort(-largest, kind="stable")[:MOST_FEATURES])
        names = [_short(found.features[at]) for at in shown.tolist()]
        height = 1.6 + 0.28 * len(names)
        width = min(12.0, 3.5 + 0.45 * len(found.clusters))
        title = (
            "effect sizes" if len(names) == len(largest) else f"effect sizes, {len(names)} of {len(largest)} features"
        )
        axes = _axes(ax, (width, height))
        _draw_matrix(axes, found.effect[:, shown].T, ("RdBu_r", "{:+.1f}", "Cohen's d"), SHOWN_EFFECT, -SHOWN_EFFECT)
        axes.set_yticks(range(len(names)), names)
        axes.set_xticks(range(len(found.clusters)), list(map(str, found.clusters)))
        axes.set_xlabel("cluster")
        axes.set_title(title)
        return axes

    def overlap(self, *, n_clusters: int | None = None, ax: Any = None) -> Any:
        """Draw how much of each cluster's membership lies in each other one: see `Result.overlap`.

        Examples
        --------
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from cns_dask.demo import demo_result
        >>> demo_result().plot.overlap(n_clusters=2).images[0].get_array().shape
        (2, 2)
        """
        clustering, clusters = clustering_of(self._result, n_clusters)
        shares = 100 * overlap_of(clustering)
        np.fill_diagonal(shares, np.nan)
        size = min(9.0, 2.8 + 0.4 * len(clusters))
        axes = _axes(ax, (size + 0.8, size))
        highest = max(1.0, float(np.nanmax(shares, initial=1.0)))
        _draw_matrix(axes, shares, ("Blues", "{:.0f}", "%"), highest)
        for set_ticks in (axes.set_xticks, axes.set_yticks):
            set_ticks(range(len(clusters)), list(map(str, clusters)))
        axes.set_xlabel("lies in cluster")
        axes.set_ylabel("of cluster")
        axes.set_title("overlap of clusters")
        return axes


def _axes(ax: Any, size: tuple[float, float]) -> Any:
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise CNSError("Plots need matplotlib: pip install 'cns_dask[plots]'.") from error
    return plt.subplots(figsize=size, layout="constrained")[1]


def _rgb(colors: list[str]) -> FloatArray:
    return np.array([[int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)] for color in colors])


def _short(name: str) -> str:
    """A name of which the ends are kept, that fits beside a picture; `$` would begin a formula."""
    cut = name if len(name) <= 32 else f"{name[:20]}...{name[-9:]}"
    return cut.replace("$", r"\$")


def _write_name(axes: Any, points: FloatArray, name: str, n_clusters: int) -> None:
    """Write the name of a cluster on the drawn row that is nearest to the middle of its rows."""
    from matplotlib.patheffects import withStroke

    if not len(points):
        return
    spread = np.ptp(points, axis=0)
    away = (points - np.median(points, axis=0)) / np.where(spread > 0, spread, 1)
    axes.annotate(
        name,
        points[np.hypot(*away.T).argmin()],
        ha="center",
        va="center",
        fontsize=12 if n_clusters <= 20 else 9,
        weight="bold",
        color="black",
        path_effects=[withStroke(linewidth=3, foreground="white")],
    )


def _draw_matrix(axes: Any, values: FloatArray, look: tuple[str, str, str], highest: float, lowest: float = 0) -> None:
    """A matrix as a picture, with its numbers where there are few enough; `look`: colours, form and name of these."""
    cmap, text, name = look
    image = axes.imshow(values, cmap=cmap, vmin=lowest, vmax=highest, aspect="auto", interpolation="nearest")
    axes.figure.colorbar(image, ax=axes, shrink=0.8, label=name)
    if values.size > MOST_NUMBERS or max(values.shape[1], 1) > 20:
        return
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            depth = (abs(value) - max(lowest, 0)) / highest
            color = "white" if depth > 0.6 else "black"
            axes.text(column, row, text.format(value), ha="center", va="center", fontsize=8, color=color)
