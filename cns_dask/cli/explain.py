"""The command that tells what the clusters of a result are."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from cns_dask.cli.app import app, is_debugging
from cns_dask.cli.options import FORMS, AsJson, ClusterOptions, DataOptions, OtherNumber, ResultArgument, with_options

if TYPE_CHECKING:
    from cns_dask.results.explanations import Explanation

SHOWN_NEIGHBORS = 3
LEAST_OVERLAP = 0.005  # that is told


@app.command()
@with_options(read=DataOptions, cluster=ClusterOptions)
def explain(
    result: ResultArgument,
    data: Annotated[str, typer.Argument(help=f"The data of the fit. {FORMS}", show_default=False)],
    number: Annotated[
        int | None, typer.Option("--cluster", help="Explain this cluster alone.", show_default=False)
    ] = None,
    n_clusters: OtherNumber = None,
    exemplars: Annotated[int, typer.Option(min=1, max=1000, help="Typical rows to name of each cluster.")] = 5,
    as_json: AsJson = False,
    read: Any = None,
    cluster: Any = None,
) -> None:
    """Tell what the clusters of RESULT are: what sets each apart in DATA, a rule, typical rows, nearest clusters.

    Features are those of the fit, unless others are given.
    """
    from cns_dask.results.explaining import clustering_of, explain_all
    from cns_dask.results.overlap import overlap_of
    from cns_dask.results.result import open_result

    opened = open_result(result)
    options = {name: value for name, value in asdict(read).items() if value is not None}
    with cluster.connect(debug=is_debugging()):
        chosen = () if number is None else (number,)
        explanations = explain_all(opened, data, n_clusters, *chosen, **options)
        clustering, clusters = clustering_of(opened, n_clusters)
        rows, overlap = opened.exemplars(exemplars, n_clusters=n_clusters), overlap_of(clustering)
    is_other = n_clusters is not None and n_clusters != opened.choice.n_clusters
    sentence = f"{n_clusters} clusters, as asked for." if is_other else opened.verdict.sentence
    entries = []
    for each in explanations:
        at = clusters.index(each.cluster)
        near = {clusters[b]: float(overlap[at, b]) for b in np.argsort(-overlap[at], kind="stable") if b != at}
        entries.append((each, [row for row in rows[at].tolist() if row >= 0], near))
    if as_json:
        written = [
            {**each.to_dict(), "exemplars": rows, "overlap": {str(b): share for b, share in near.items()}}
            for each, rows, near in entries
        ]
        about = {"result": opened.path, "rows": opened.n_rows, "verdict": sentence}
        typer.echo(json.dumps({**about, "clusters": written}, indent=1, ensure_ascii=False))
        return
    typer.echo(f"{opened.n_rows} rows: {sentence}")
    typer.echo("effect: difference of the means in standard deviations; above 0.8 it is large")
    for entry in entries:
        typer.echo(f"\n{_text(*entry)}")


def _text(explanation: Explanation, rows: list[int], near: dict[int, float]) -> str:
    """What is printed about a cluster."""
    lines = [repr(explanation), f"typical rows: {', '.join(map(str, rows)) or 'none'}"]
    shown = [f"{100 * share:.1f} % to cluster {number}" for number, share in near.items() if share >= LEAST_OVERLAP]
    if shown:
        lines.append(f"its rows also belong to others: {', '.join(shown[:SHOWN_NEIGHBORS])}")
    return "\n".join(lines)
