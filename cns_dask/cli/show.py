"""What the command line prints about a graph or a result."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import dask
import typer

if TYPE_CHECKING:
    from cns_dask.execution.forecast import Forecast
    from cns_dask.neighbors.graph import NeighborGraph
    from cns_dask.results.result import Result


def quality(graph: NeighborGraph) -> str:
    """How the neighbours were found, and how well."""
    from cns_dask.neighbors.graph import describe_quality

    return describe_quality(graph)


def forecast_document(forecast: Forecast) -> dict[str, Any]:
    """What a fit would take, as plain values: what `plan` prints with --json."""
    advice = {name: getattr(forecast, name) for name in ("limit_bytes", "recommended_workers", "flattens_at")}
    return asdict(forecast) | advice


def print_outcome(result: Result, out: str, *others: str | None, data: str | None = None) -> None:
    """Print the verdict, where the result is, and what to do next; and what has changed since the previous fit."""
    of_data, then = shlex.join([out, *filter(None, [data])]), "show" if data is None else "explain"
    skipped = f" ({result.n_skipped} skipped)" if result.n_skipped else ""
    typer.echo(f"{result.n_rows} rows{skipped}: {result.verdict.sentence}")
    if result.scaling is not None:
        typer.echo(result.scaling)
    typer.echo(f"result: {', '.join([out, *filter(None, others)])}")
    has_page = any(str(each).endswith(".html") for each in others)
    report = "" if has_page else f", cns-dask report {of_data} --out report.html"
    typer.echo(f"next: cns-dask {then} {of_data}{report}")
    print_changes(result)


def print_document(document: dict[str, Any]) -> None:
    """Print one JSON document; numbers that JSON does not have (NaN) are null."""
    import msgspec

    text = msgspec.json.encode(document, enc_hook=_plain)
    typer.echo(msgspec.json.format(text, indent=2).decode())


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else str(value)


def document_of(result: Result, n_clusters: int | None = None) -> dict[str, Any]:
    """What is known of a result, as plain values: what `show` and `fit` print with --json."""
    used, planned = result.memory
    details = result.details
    return {
        "result": result.path,
        "rows": result.n_rows,
        "clustered": result.n_clustered,
        "skipped": result.n_skipped,
        "n_clusters": result.choice.n_clusters,
        "verdict": result.verdict.sentence,
        "doubts": result.verdict.doubts,
        "choice": result.choice,
        "clusters": _cluster_rows(result, n_clusters),
        "numbers_of_clusters": list(_numbers_of_clusters(result)),
        "sample": result.sample,
        "changes": result.changes,
        "settings": result.settings,
        "graph": {"method": result.graph.method, "recall": result.graph.recall},
        "memory": {"used_bytes": used, "planned_bytes": planned},
        "seconds": details["seconds"],
        "versions": details["versions"],
    }


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

    clusters, (used, planned) = _cluster_rows(result, n_clusters), result.memory
    lines = [
        f"{result.n_rows} rows: {result.verdict.sentence}",
        *(f"but: {doubt}" for doubt in result.verdict.doubts),
    ]
    if result.n_skipped:
        lines.append(f"{result.n_skipped} row(s) skipped: NaN (label -3) or infinite values (label -2)")
    typer.echo("\n".join(lines))
    print_changes(result)
    names = {"cluster": "cluster", "rows": "rows", "representative": "representative row"}
    if result.sample is not None and "representative" not in clusters[0]:
        names["rows"] = "rows of the sample"
    typer.echo(f"\n{_title(result, n_clusters)}\n\n{markdown(clusters, names)}")
    numbers = [
        each
        | {
            "K": f"{each['n_clusters']}{' *' if each['n_clusters'] == result.choice.n_clusters else ''}",
            "criterion": "" if each["criterion"] is None else f"{each['criterion']:.4f}",
            "lam": "" if each["lam"] is None else f"{each['lam']:.4g}",
            "evidence": "" if each["evidence"] is None else f"{each['evidence']:.2f}",
        }
        for each in _numbers_of_clusters(result)
    ]
    columns = {"K": "K", "criterion": "criterion", "n_neighbors": "k", "lam": "lam", "evidence": "evidence"}
    typer.echo(f"\nnumbers of clusters (* the choice)\n\n{markdown(numbers, columns)}")
    memory = f"memory: at most {used / 2**20:.0f} MiB in a process, planned {planned / 2**20:.0f}"
    typer.echo("\n" + "\n".join(["how it was made", "", *explain(result), *quality_in_words(result), memory]))


def markdown(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str], *, left: bool = False) -> str:
    """A table in Markdown, as all tables of the command line: fields of records, under these titles; `left` for words.

    Examples
    --------
    >>> print(markdown([{"a": 1, "b": None}], {"a": "first", "b": "second", "c": "not there"}))
    | first | second |
    |------:|-------:|
    |     1 |        |
    """
    shown = {name: title for name, title in columns.items() if any(name in row for row in rows)}
    lines = [list(shown.values()), *([_cell(row.get(name)) for name in shown] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [
        [text.ljust(w) if left else text.rjust(w) for text, w in zip(line, widths, strict=True)] for line in lines
    ]
    head, *body = (f"| {' | '.join(line)} |" for line in padded)
    rule = "|".join("-" * (width + 2) if left else "-" * (width + 1) + ":" for width in widths)
    return "\n".join([head, f"|{rule}|", *body])


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|")


def _title(result: Result, n_clusters: int | None) -> str:
    if n_clusters is None or n_clusters == result.choice.n_clusters:
        return "clusters"
    choice = result.choice_at(n_clusters)
    return f"{n_clusters} clusters ({choice.selection}, k = {choice.n_neighbors}, lam = {choice.lam:.4g})"


def _cluster_rows(result: Result, n_clusters: int | None) -> list[dict[str, Any]]:
    """The clusters, of the choice or of another number of them."""
    with dask.config.set(scheduler="threads"):  # a client is not looked for, which would take longer than the rest
        if n_clusters is None or n_clusters == result.choice.n_clusters:
            parts = zip(result.clusters, result.sizes(), result.representatives, strict=True)
            return [{"cluster": label, "rows": int(size), "representative": int(row)} for label, size, row in parts]
        from cns_dask.results.scales import sizes_of

        sizes = sizes_of(result.at(n_clusters).labels)
    return [{"cluster": label, "rows": int(size)} for label, size in enumerate(sizes)]


def _numbers_of_clusters(result: Result) -> Iterator[dict[str, Any]]:
    """Every number of clusters that `at` gives, with its criterion and its evidence."""
    evidence = result.evidence.total
    by_paper = {each.n_clusters: each for each in result.best_by_n_clusters()}
    scored = {K for K in range(2, len(evidence) + 1) if evidence[K - 1] > 0}
    for K in sorted(by_paper.keys() | scored):
        best = by_paper.get(K)
        yield {
            "n_clusters": K,
            "criterion": None if best is None else best.value,
            "n_neighbors": None if best is None else best.n_neighbors,
            "lam": None if best is None else best.lam,
            "evidence": float(evidence[K - 1]) if K in scored else None,
        }
