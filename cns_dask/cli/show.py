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


def quality(graph: NeighborGraph, method: str) -> str:
    """How the neighbours were found, how well, and by which rule."""
    from cns_dask.neighbors.graph import describe_quality

    rule = f"\n(auto: {SEARCH_RULE})" if method == "auto" and graph.method != "given" else ""
    return describe_quality(graph) + rule


def outcome(result: Result, out: str) -> str:
    """The choice, and where the result is."""
    choice = result.choice
    return (
        f"{result.n_rows} rows: {result.verdict.sentence} (k = {choice.n_neighbors}, lam = {choice.lam:.4g})\n"
        f"result: {out}   look at it: cns-dask show {out}"
    )


def print_changes(result: Result) -> None:
    """Print what has changed since the previous fit, if there was one."""
    from cns_dask.results.history import changes_in_words

    if lines := changes_in_words(result.changes):
        typer.echo("\n".join(["since the previous fit:", *(f"  {line}" for line in lines)]))


def print_result(result: Result, n_clusters: int | None = None) -> None:
    """Print the choice of a fit and how sure it is, the sizes of the clusters and all numbers of clusters there are.

    `n_clusters` is another number of clusters, if not the chosen one is to be shown.
    """
    from cns_dask.results.quality import quality_in_words
    from cns_dask.results.scales import explain

    console = Console()
    used, planned = result.memory
    lines = [
        f"{result.n_rows} rows: {result.verdict.sentence}",
        *(f"but: {doubt}" for doubt in result.verdict.doubts),
        *explain(result),
        *quality_in_words(result),
        f"memory: at most {used / 2**20:.0f} MiB in a process, planned {planned / 2**20:.0f}",
    ]
    if result.n_skipped:
        lines.append(f"{result.n_skipped} rows were skipped: NaN or infinite values")
    for line in lines:
        console.print(line, highlight=False)
    print_changes(result)
    with dask.config.set(scheduler="threads"):  # a client is not looked for, which would take longer than the rest
        console.print(_clusters(result, n_clusters), _numbers_of_clusters(result))


def _clusters(result: Result, n_clusters: int | None) -> Table:
    """The clusters, of the choice or of another number of them."""
    if n_clusters is None or n_clusters == result.choice.n_clusters:
        table = Table("cluster", "rows", "representative row", title="clusters", title_justify="left")
        for label, size, row in zip(result.clusters, result.sizes(), result.representatives, strict=True):
            table.add_row(str(label), str(size), str(row))
        return table
    from cns_dask.results.scales import sizes_of

    choice = result.choice_at(n_clusters)
    title = f"{n_clusters} clusters ({choice.selection}, k = {choice.n_neighbors}, lam = {choice.lam:.4g})"
    table = Table(
        "cluster", "rows" if result.sample is None else "rows of the sample", title=title, title_justify="left"
    )
    for label, size in enumerate(sizes_of(result.at(n_clusters).labels)):
        table.add_row(str(label), str(size))
    return table


def _numbers_of_clusters(result: Result) -> Table:
    """Every number of clusters that `at` gives, with its criterion and its evidence."""
    table = Table("K", "criterion", "k", "lam", "evidence", title="numbers of clusters", title_justify="left")
    evidence = result.evidence.total
    by_paper = {each.n_clusters: each for each in result.best_by_n_clusters()}
    scored = {K for K in range(2, len(evidence) + 1) if evidence[K - 1] > 0}
    for K in sorted(by_paper.keys() | scored):
        best = by_paper.get(K)
        criterion = ("", "", "") if best is None else (f"{best.value:.4f}", str(best.n_neighbors), f"{best.lam:.4g}")
        mark = " *" if result.choice.n_clusters == K else ""
        table.add_row(f"{K}{mark}", *criterion, f"{evidence[K - 1]:.2f}" if K in scored else "")
    return table
