"""What the command line prints about a graph or a result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import dask
import typer
from rich.console import Console
from rich.table import Table

from cns_dask.settings import SEARCH_RULE

if TYPE_CHECKING:
    from cns_dask.neighbors.graph import NeighborGraph
    from cns_dask.results.result import Result

RUNNERS_UP = 6


def quality(graph: NeighborGraph, method: str) -> str:
    """How the neighbours were found, how well, and by which rule."""
    from cns_dask.neighbors.graph import describe_quality

    rule = f"\n(auto: {SEARCH_RULE})" if method == "auto" and graph.method != "given" else ""
    return describe_quality(graph) + rule


def outcome(result: Result, out: str) -> str:
    """The choice, and where the result is."""
    choice = result.choice
    return (
        f"{choice.n_clusters} clusters in {result.n_rows} rows (k = {choice.n_neighbors}, lam = {choice.lam:.4g})\n"
        f"result: {out}   look at it: cns-dask show {out}"
    )


def print_changes(result: Result) -> None:
    """Print what has changed since the previous fit, if there was one."""
    from cns_dask.results.history import changes_in_words

    if lines := changes_in_words(result.changes):
        typer.echo("\n".join(["since the previous fit:", *(f"  {line}" for line in lines)]))


def print_result(result: Result) -> None:
    """Print the choice of a fit, its margin, the sizes of the clusters and the runners-up."""
    from cns_dask.neighbors.graph import describe_quality

    console, choice = Console(), result.choice
    margin = "no other was possible" if choice.margin is None else f"{choice.margin:.4f} ahead of the runner-up"
    used, planned = result.memory
    lines = [
        f"{choice.n_clusters} clusters in {result.n_rows} rows: k = {choice.n_neighbors}, lam = {choice.lam:.4g}, "
        f"criterion {choice.value:.4f} ({margin})",
        describe_quality(result.graph),
        f"memory: at most {used / 2**20:.0f} MiB in a process, planned {planned / 2**20:.0f}",
    ]
    if result.n_skipped:
        lines.append(f"{result.n_skipped} rows were skipped: NaN or infinite values")
    for line in lines:
        console.print(line, highlight=False)
    print_changes(result)
    clusters = Table("cluster", "rows", "representative row", title="clusters", title_justify="left")
    with dask.config.set(scheduler="threads"):  # a client is not looked for, which would take longer than the rest
        sizes = result.sizes()
    for label, size, row in zip(result.clusters, sizes, result.representatives, strict=True):
        clusters.add_row(str(label), str(size), str(row))
    best = Table("K", "k", "lam", "criterion", title="best k and lam of each K", title_justify="left")
    for each in result.best_by_n_clusters()[:RUNNERS_UP]:
        best.add_row(str(each.n_clusters), str(each.n_neighbors), f"{each.lam:.4g}", f"{each.value:.4f}")
    console.print(clusters, best)
