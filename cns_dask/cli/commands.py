"""The commands that do the work; `explain` and `support` have the others."""

from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cns_dask.cli.app import app, is_debugging, run
from cns_dask.cli.options import (
    FORMS,
    AsJson,
    CheckSample,
    ClusterOptions,
    DataArgument,
    DataOptions,
    GroupOut,
    OtherNumber,
    Overwrite,
    PerformanceReport,
    ResultArgument,
    Sample,
    Scratch,
    TableOut,
    announce,
    comma_separated,
    given_options,
    with_options,
)
from cns_dask.cli.outputs import PAGE_ENDINGS, ZARR_ENDINGS, Output, check_ending, log_to
from cns_dask.errors import InvalidSettingError
from cns_dask.settings import Settings

__all__ = ["app", "run"]
COMPARED_SAMPLE = 1_000_000  # rows of a sample that a plan for more is compared with


@app.command()
@with_options(read=DataOptions, settings=Settings, cluster=ClusterOptions)
def fit(
    context: typer.Context,
    out: TableOut,
    data: DataArgument = None,
    read: Any = None,
    graph: Annotated[
        str | None,
        typer.Option(
            help="kNN graph to use: of `neighbors`, a Zarr array or .npy of row numbers, a SciPy .npz of distances."
        ),
    ] = None,
    previous: Annotated[
        str | None, typer.Option(help="Previous result: the same clusters keep their numbers, and changes are told.")
    ] = None,
    sample: Sample = None,
    check_sample: CheckSample = False,
    settings: Any = None,
    overwrite: Overwrite = False,
    scratch: Scratch = None,
    cluster: Any = None,
    report: Annotated[
        bool | None, typer.Option("--report/--no-report", help="Write a page beside OUT too.", show_default=False)
    ] = None,
    performance_report: PerformanceReport = None,
    log: Annotated[
        Path | None, typer.Option(help="File to which every finished piece of work is added.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Cluster DATA and store everything that it finds in OUT."""
    output = Output.of(out)
    connection = cluster.connect(debug=is_debugging())  # says at once what it starts
    from cns_dask import pipeline
    from cns_dask.cli import show as text
    from cns_dask.config import default_sample, default_scratch, report_path
    from cns_dask.execution import cluster as clusters
    from cns_dask.inputs.data import open_data
    from cns_dask.inputs.files import absolute
    from cns_dask.neighbors.given import open_graph, with_preprocessing_of
    from cns_dask.progress import visible_progress
    from cns_dask.storage.outputs import check_apart

    log_to(log)
    output.check_table(overwrite=overwrite)
    clusters.check_performance_report(performance_report)
    for path in filter(None, (data, graph, previous)):
        absolute(path)  # what does not exist is told before workers are started
    progress, page = visible_progress(), report_path(output.group, wanted=report)
    with connection, clusters.performance_report(performance_report):
        rows = None if data is None else open_data(data, **asdict(read))
        n_features = None if rows is None else rows.X.shape[1]
        if graph is not None:
            with_preprocessing_of(open_graph(graph), settings, n_features, given_options(context))
        if output.table is not None:
            check_apart(() if rows is None else rows.files, output.table)
        if sample is None and rows is not None and graph is None:
            sample = default_sample(rows.X.shape[0])
        result = pipeline.fit(
            rows,
            settings,
            graph=graph,
            previous=previous,
            sample=sample,
            check_sample=check_sample,
            out=output.group,
            overwrite=overwrite,
            scratch=default_scratch() if scratch is None else scratch,
            progress=progress,
        )
        if output.table is not None:
            output.write_table(result.to_dataframe(rows), overwrite=overwrite, progress=progress)
        if page is not None:
            from cns_dask.results.report import write_report

            write_report(result, page, rows, overwrite=True)
    others = (output.table, None if page is None else str(page))
    if as_json:
        written = {"table": others[0], "report": others[1]}
        text.print_document(text.document_of(result) | {"result": output.group} | written)
    else:
        text.print_outcome(result, output.group, *others, data=data)


@app.command()
@with_options(
    read=(DataOptions, ("component", "features")),
    settings=(Settings, ("metric", "method", "max_clusters", "max_candidates")),
)
def plan(
    data: DataArgument = None,
    rows: Annotated[int | None, typer.Option(min=2, help="Rows to ask about instead of those of DATA.")] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="D|NAME,...", help="Number of columns, without DATA; else as for fit.")
    ] = None,
    read: Any = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes [1].", show_default=False)] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each.")] = 1,
    memory: Annotated[str | None, typer.Option(help="Memory of each, as 8GiB.")] = None,
    sample: Sample = None,
    settings: Any = None,
    measure: Annotated[bool, typer.Option(help="Measure rates here, to forecast the time.")] = True,
    as_json: AsJson = False,
) -> None:
    """Tell what a fit would take: tasks, memory, disk, time; and what more workers would do.

    Rates are measured here, in about ten seconds, on the first rows of DATA or on generated ones; above a million rows
    for a fit of a sample too, to compare both.
    """
    from cns_dask.config import memory_bytes

    limit = None if memory is None else memory_bytes("memory", memory)
    if measure:
        announce("measuring how fast this machine is, for about ten seconds ...")
    from cns_dask import planning
    from cns_dask.cli import show as text
    from cns_dask.execution.forecast import comparison
    from cns_dask.inputs.data import open_data

    names = comma_separated(str)(columns) if data is not None and columns else None
    options = asdict(read) | {"columns": names}
    forecast_of = partial(
        planning.plan,
        open_data(data, **options) if data is not None else None,
        n_rows=rows,
        n_features=None if data is not None or columns is None else _integer("columns", columns),
        workers=workers,
        threads=threads,
        memory_bytes=limit,
        settings=settings,
        measure=measure,
    )
    forecast = forecast_of(sample=sample)
    is_compared = forecast.n_sampled is None and forecast.n_rows > COMPARED_SAMPLE
    sampled = forecast_of(sample=COMPARED_SAMPLE) if is_compared else None
    if as_json:
        documents = [each and text.forecast_document(each) for each in (forecast, sampled)]
        text.print_document({**(documents[0] or {}), "with_sample": documents[1]})
        return
    typer.echo(str(forecast))
    if sampled is not None:
        table = comparison(forecast, sampled)
        typer.echo(
            f"\nWith --sample {COMPARED_SAMPLE} all other rows take the clusters of their nearest ones:\n\n{table}"
        )


@app.command()
@with_options(
    read=DataOptions, settings=(Settings, ("metric", "method", "recall", "random_state")), cluster=ClusterOptions
)
def neighbors(
    data: Annotated[str, typer.Argument(help=FORMS, show_default=False)],
    out: GroupOut,
    n_neighbors: Annotated[
        int, typer.Option("--n-neighbors", "-k", help="Neighbours of every row, the row itself included.")
    ],
    read: Any = None,
    scale: Annotated[
        bool,
        typer.Option("--scale", help="Centre and scale features, as a fit does, instead of taking them as they are."),
    ] = False,
    settings: Any = None,
    overwrite: Overwrite = False,
    scratch: Scratch = None,
    cluster: Any = None,
) -> None:
    """Find the nearest rows of every row of DATA, as they are, and store the graph in OUT."""
    check_ending(out, *ZARR_ENDINGS)
    connection = cluster.connect(debug=is_debugging())
    from cns_dask.cli import show as text
    from cns_dask.graphs import neighbor_graph
    from cns_dask.progress import visible_progress

    names = ("metric", "method", "recall", "random_state")
    chosen: dict[str, Any] = {name: getattr(settings, name) for name in names} | {"scale": scale}
    output: dict[str, Any] = {"out": out, "overwrite": overwrite, "scratch": scratch, "progress": visible_progress()}
    with connection:
        graph = neighbor_graph(data, n_neighbors, **asdict(read), **chosen, **output)
    typer.echo(f"{text.quality(graph)}\ngraph: {out}\nnext: cns-dask fit {data} --graph {out} --out clusters.zarr")


@app.command()
@with_options(read=DataOptions, cluster=ClusterOptions)
def predict(
    model: ResultArgument,
    new: Annotated[str, typer.Argument(help=f"New rows. {FORMS}", show_default=False)],
    out: TableOut,
    read: Any = None,
    overwrite: Overwrite = False,
    cluster: Any = None,
) -> None:
    """Cluster NEW rows with the MODEL of an earlier fit. Columns are those of the fit, unless others are given."""
    output = Output.of(out)
    connection = cluster.connect(debug=is_debugging())
    from cns_dask.progress import visible_progress
    from cns_dask.results.predict import open_new, predict_table, predict_to
    from cns_dask.results.result import open_result
    from cns_dask.storage.outputs import check_apart

    result, progress = open_result(model), visible_progress()
    output.check_table(overwrite=overwrite)
    with connection:
        rows = open_new(result, new, **asdict(read))
        if output.table is not None:
            check_apart((*rows.files, result.path), out)
            output.write_table(predict_table(result, rows), overwrite=overwrite, progress=progress)
        else:
            predict_to(out, result, rows, overwrite=overwrite, progress=progress)
    typer.echo(f"labels, memberships and confidence: {out}")


@app.command()
def show(result: ResultArgument, n_clusters: OtherNumber = None, as_json: AsJson = False) -> None:
    """Print the choice of a fit, how sure it is, the sizes of the clusters, and the other numbers of clusters."""
    from cns_dask.cli.show import document_of, print_document, print_result
    from cns_dask.results.result import open_result

    opened = open_result(result)
    if as_json:
        print_document(document_of(opened, n_clusters))
    else:
        print_result(opened, n_clusters)


@app.command()
@with_options(read=DataOptions)
def report(
    result: ResultArgument,
    data: Annotated[
        str | None, typer.Argument(help=f"The data of the fit, to show all features. {FORMS}", show_default=False)
    ] = None,
    read: Any = None,
    coordinates: Annotated[
        str | None,
        typer.Option(
            help="Where rows are on the map: principal, graph, two columns of DATA (x,y), obsm/X_umap, or a file.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="HTML page to write.")] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option(help="Replace an existing page.")] = False,
    n_clusters: OtherNumber = None,
) -> None:
    """Write a page with pictures about a fit."""
    check_ending(out, *PAGE_ENDINGS)
    from cns_dask.results.report import write_report
    from cns_dask.results.result import open_result

    options = {name: value for name, value in asdict(read).items() if value is not None}
    shown: dict[str, Any] = {"coordinates": coordinates, "n_clusters": n_clusters, "overwrite": overwrite}
    write_report(open_result(result), out, data, **shown, **options)
    typer.echo(f"report: {out}")


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidSettingError(
            f"{name} must be a number of columns where there are no data. Got {text!r}."
        ) from error


from cns_dask.cli import explain, support  # noqa: E402, F401 - their commands come last in the help
