"""The commands."""

import itertools
import os
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from cns_dask.cli.explain import explain
from cns_dask.cli.options import (
    FORMS,
    CheckSample,
    ClusterOptions,
    DataArgument,
    DataOptions,
    GroupOut,
    OtherNumber,
    Overwrite,
    ResultArgument,
    Sample,
    SchedulerOptions,
    Scratch,
    TableOut,
    with_options,
)
from cns_dask.errors import InvalidSettingError, OutputError
from cns_dask.settings import Settings

app = typer.Typer(
    help="Clustering by non-parametric smoothing on Dask: automatic number of clusters, soft memberships.",
    epilog="--debug, anywhere on the line, shows where an error comes from.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
COMPARED_SAMPLE = 1_000_000  # rows of a sample that a plan for more is compared with
_debug = False  # whether --debug is on the line


def run(line: list[str]) -> None:
    """Run the command of a line, with the program's name in front."""
    global _debug  # noqa: PLW0603 - for the whole process, as the line is
    _debug = "--debug" in line
    app([word for word in line[1:] if word != "--debug"], prog_name="cns-dask")


def _print_version(wanted: bool) -> None:
    if wanted:
        import cns_dask

        typer.echo(f"cns-dask {cns_dask.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Clustering by non-parametric smoothing on Dask: automatic number of clusters, soft memberships."""


@app.command()
@with_options(read=DataOptions, settings=Settings, cluster=ClusterOptions)
def fit(
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
    log: Annotated[Path | None, typer.Option(help="File to which every finished piece of work is added.")] = None,
) -> None:
    """Cluster DATA and store everything that it finds in OUT."""
    from cns_dask import pipeline
    from cns_dask.cli import show as text
    from cns_dask.inputs.data import open_data
    from cns_dask.progress import visible_progress
    from cns_dask.results.parquet import check_parquet, is_parquet, write_parquet
    from cns_dask.storage.outputs import check_apart

    _log_to(log)
    table = out if is_parquet(out) else None
    if table is not None:
        check_parquet(table, overwrite=overwrite)
        out = f"{os.path.splitext(out)[0]}.zarr"  # noqa: PTH122 - it may be a URL
    options: dict[str, Any] = {"out": out, "overwrite": overwrite, "scratch": scratch, "progress": visible_progress()}
    with cluster.connect(debug=_debug):
        rows = None if data is None else open_data(data, **asdict(read))
        if table is not None:
            check_apart(() if rows is None else rows.files, table)
        chosen: dict[str, Any] = {"sample": sample, "check_sample": check_sample, "previous": previous}
        result = pipeline.fit(rows, settings, graph=graph, **chosen, **options)
        if table is not None:
            write_parquet(table, result.to_dataframe(rows), overwrite=overwrite, progress=options["progress"])
    typer.echo(text.quality(result.graph, settings.method))
    typer.echo(text.outcome(result, out))
    if table is not None:
        typer.echo(f"table: {table}")
    text.print_changes(result)


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
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each.")] = 1,
    memory: Annotated[str | None, typer.Option(help="Memory of each, as 8GiB.")] = None,
    sample: Sample = None,
    settings: Any = None,
    measure: Annotated[bool, typer.Option(help="Measure rates here, to forecast the time.")] = True,
) -> None:
    """Tell what a fit would take: tasks, memory, disk, time; and what more workers would do.

    Rates are measured here, in about ten seconds, on the first rows of DATA or on generated ones; above a million rows
    for a fit of a sample too, to compare both.
    """
    memory_bytes = None if memory is None else _bytes(memory)
    from cns_dask import planning
    from cns_dask.execution.forecast import comparison
    from cns_dask.inputs.data import open_data

    options = asdict(read) | {"columns": columns.split(",") if data is not None and columns else None}
    forecast_of = partial(
        planning.plan,
        open_data(data, **options) if data is not None else None,
        n_rows=rows,
        n_features=None if data is not None or columns is None else _integer("columns", columns),
        workers=workers,
        threads=threads,
        memory_bytes=memory_bytes,
        settings=settings,
        measure=measure,
    )
    forecast = forecast_of(sample=sample)
    typer.echo(str(forecast))
    if sample is None and forecast.n_rows > COMPARED_SAMPLE:
        table = comparison(forecast, forecast_of(sample=COMPARED_SAMPLE))
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
    settings: Any = None,
    overwrite: Overwrite = False,
    scratch: Scratch = None,
    cluster: Any = None,
) -> None:
    """Find the nearest rows of every row of DATA, as they are, and store the graph in OUT."""
    from cns_dask.cli import show as text
    from cns_dask.graphs import neighbor_graph
    from cns_dask.progress import visible_progress

    chosen: dict[str, Any] = {name: getattr(settings, name) for name in ("metric", "method", "recall", "random_state")}
    output: dict[str, Any] = {"out": out, "overwrite": overwrite, "scratch": scratch, "progress": visible_progress()}
    with cluster.connect(debug=_debug):
        graph = neighbor_graph(data, n_neighbors, **asdict(read), **chosen, **output)
    typer.echo(text.quality(graph, settings.method))
    typer.echo(f"graph: {out}   cluster with it: cns-dask fit {data} --graph {out} --out clusters.zarr")


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
    from cns_dask.progress import visible_progress
    from cns_dask.results.parquet import check_parquet, is_parquet, write_parquet
    from cns_dask.results.predict import open_new, predict_table, predict_to
    from cns_dask.results.result import open_result
    from cns_dask.storage.outputs import check_apart

    result, progress = open_result(model), visible_progress()
    with cluster.connect(debug=_debug):
        if is_parquet(out):
            check_parquet(out, overwrite=overwrite)
        rows = open_new(result, new, **asdict(read))
        if is_parquet(out):
            check_apart((*rows.files, result.path), out)
            write_parquet(out, predict_table(result, rows), overwrite=overwrite, progress=progress)
        else:
            predict_to(out, result, rows, overwrite=overwrite, progress=progress)
    typer.echo(f"labels, memberships and confidence: {out}")


@app.command()
def show(result: ResultArgument, n_clusters: OtherNumber = None) -> None:
    """Print the choice of a fit, how sure it is, the sizes of the clusters, and the other numbers of clusters."""
    from cns_dask.cli.show import print_result
    from cns_dask.results.result import open_result

    print_result(open_result(result), n_clusters)


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
    from cns_dask.results.report import write_report
    from cns_dask.results.result import open_result

    options = {name: value for name, value in asdict(read).items() if value is not None}
    shown: dict[str, Any] = {"coordinates": coordinates, "n_clusters": n_clusters, "overwrite": overwrite}
    write_report(open_result(result), out, data, **shown, **options)
    typer.echo(f"report: {out}")


app.command()(explain)


@app.command()
@with_options(cluster=SchedulerOptions)
def warmup(cluster: Any = None) -> None:
    """Compile what a first fit would wait for: here (once for an installation), or on all workers of a cluster.

    Workers that are started with `dask worker --preload cns_dask.warmup` do it themselves before they join.
    """
    from cns_dask.execution.cluster import on_every_worker
    from cns_dask.warmup import seconds_in_words, warm_up

    with cluster.connect(debug=_debug):
        for name, seconds in on_every_worker(warm_up).items():
            typer.echo(f"{name}: {seconds_in_words(seconds)}")


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the demo writes; a new folder if not given.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Cluster a small data set from start to end, in this process, in seconds."""
    from cns_dask import pipeline
    from cns_dask.cli.show import print_result
    from cns_dask.demo import demo_points
    from cns_dask.progress import visible_progress
    from cns_dask.results.report import write_report

    folder = folder or _new_folder("cns-dask-demo")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"The folder {folder} cannot be made ({error.strerror}). Choose another one.") from error
    out, page = folder / "clusters.zarr", folder / "report.html"
    result = pipeline.fit(demo_points(), Settings(), out=out, overwrite=overwrite, progress=visible_progress())
    print_result(result)
    typer.echo(f"result: {out}")
    write_report(result, page, demo_points(), overwrite=overwrite)
    typer.echo(
        f"report: {page}\n\nopen the result in Python:\n"
        f"    from cns_dask import open_result\n"
        f'    result = open_result("{out}")\n'
        f"    result.labels.compute(), result.memberships.compute(), result.at(n_clusters=3).labels.compute()"
    )


def _new_folder(name: str) -> Path:
    """The first of name, name-2, name-3, ... that does not exist."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(path for path in map(Path, names) if not path.exists())


def _log_to(file: Path | None) -> None:
    """Write what the package logs to a file."""
    if file is None:
        return
    import logging

    try:
        handler = logging.FileHandler(file)
    except OSError as error:
        raise OutputError(f"The log {file} cannot be written ({error}).") from error
    # what cannot be written is dropped, without Python's own page about it
    handler.handleError = lambda record: None  # type: ignore[method-assign]  # noqa: ARG005
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("cns_dask")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidSettingError(f"{name} is a number of columns where there are no data, not {text}.") from error


def _bytes(text: str) -> int:
    from dask.utils import parse_bytes

    try:
        return int(parse_bytes(text))
    except (ValueError, OverflowError) as error:
        raise InvalidSettingError(f"memory is a size as 8GiB, not {text}.") from error
