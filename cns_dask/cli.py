"""The face for the command line: `cns-dask fit`, `plan`, `neighbors`, `predict`, `show`, `report`, `warmup` and `demo`.

Exit codes: 0 done, 2 wrong usage or input, 1 failure, 128 + the signal's number if stopped. Anywhere on the line,
--debug shows where an error comes from.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from cns_dask.errors import CNSError, InvalidSettingError, OutputError, UsageError, plain_text
from cns_dask.neighbors import RULE, describe_quality
from cns_dask.settings import Settings

app = typer.Typer(
    help="Clustering by non-parametric smoothing on Dask: automatic number of clusters, soft memberships.",
    epilog="--debug, anywhere on the line, shows where an error comes from.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _list_of(convert: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Parser of comma-separated values."""

    def parse(text: Any) -> Any:
        return tuple(convert(part) for part in text.split(",")) if isinstance(text, str) else text

    return parse


_DEFAULT = Settings()
_debug = False  # --debug is on the line
_INTEGERS, _NUMBERS = _list_of(int), _list_of(float)

FORMS = "Path or URL: .npy, .npz (sparse), Zarr array or group, Parquet, CSV (both also as glob), .h5ad, netCDF."
Data = Annotated[str | None, typer.Argument(help=FORMS, show_default=False)]
Columns = Annotated[
    Any,
    typer.Option(parser=_list_of(str), metavar="NAME,...", help="Columns, variables, or positions; all if not given."),
]
Component = Annotated[
    str | None, typer.Option(help="Array in a Zarr group (a/b), or matrix of an AnnData (X, obsm/X_pca).")
]
Features = Annotated[
    str | None, typer.Option(help="Dimension that holds the features of a row, of data that xarray opens.")
]
MaxClusters = Annotated[int, typer.Option(help="Most clusters to try.")]
MaxCandidates = Annotated[int, typer.Option(help="Most candidate representatives.")]
Out = Annotated[str, typer.Option("--out", help="Zarr group to write.", show_default=False)]
TableOut = Annotated[
    str,
    typer.Option(
        "--out",
        help="Zarr group to write; or X.parquet, a table with the index of the data (a fit leaves X.zarr beside it).",
        show_default=False,
    ),
]
Overwrite = Annotated[
    bool, typer.Option(help="Replace a result of other data or settings, once the new one is complete.")
]
Scheduler = Annotated[str | None, typer.Option(help="Address of a running Dask scheduler: tcp://host:8786.")]
SchedulerFile = Annotated[str | None, typer.Option(help="File that a running Dask scheduler wrote.")]
Scratch = Annotated[str | None, typer.Option(help="Folder for intermediate values; beside OUT if not given.")]
WaitWorkers = Annotated[int, typer.Option(min=0, help="Wait for the scheduler, and until so many workers have joined.")]
TlsCa = Annotated[str | None, typer.Option(help="Certificate of the authority, for a cluster with TLS (PEM file).")]
TlsCert = Annotated[str | None, typer.Option(help="Our certificate for it (PEM file).")]
TlsKey = Annotated[str | None, typer.Option(help="The key of our certificate (PEM file).")]
Metric = Annotated[str, typer.Option(help="euclidean or cosine.")]
Method = Annotated[str, typer.Option(help=f"Search for neighbours: exact, cells, descent, or auto: {RULE}.")]
Recall = Annotated[float, typer.Option(help="Share of the neighbours that an approximate search has to find.")]
Workers = Annotated[int, typer.Option(min=0, help="Worker processes to start here; 0: threads of this process.")]


@app.command()
def fit(  # noqa: PLR0913, PLR0917 - one option per setting
    out: TableOut,
    data: Data = None,
    columns: Columns = None,
    component: Component = None,
    features: Features = None,
    graph: Annotated[
        str | None,
        typer.Option(
            help="kNN graph to use: of `neighbors`, a Zarr array or .npy of row numbers, a SciPy .npz of distances."
        ),
    ] = None,
    like: Annotated[
        str | None, typer.Option(help="Earlier result: the same clusters keep their numbers, and changes are told.")
    ] = None,
    metric: Metric = _DEFAULT.metric,
    method: Method = _DEFAULT.method,
    recall: Recall = _DEFAULT.recall,
    n_neighbors: Annotated[
        Any, typer.Option(parser=_INTEGERS, metavar="K,...", help="Fix k, or the ks to try (the row itself counts).")
    ] = None,
    lam: Annotated[
        Any, typer.Option(parser=_NUMBERS, metavar="LAM,...", help="Fix lam, or the lams to try (0 to 1).")
    ] = None,
    n_clusters: Annotated[int | None, typer.Option(help="Fix the number of clusters.")] = None,
    k_multipliers: Annotated[
        Any, typer.Option(parser=_INTEGERS, metavar="M,...", help="Tried ks: these times floor(ln n). [1,2,3,4]")
    ] = None,
    lam_multipliers: Annotated[
        Any, typer.Option(parser=_NUMBERS, metavar="M,...", help="Tried lams: these / sqrt(n). [1,2,3,4,5]")
    ] = None,
    max_clusters: MaxClusters = _DEFAULT.max_clusters,
    max_candidates: MaxCandidates = _DEFAULT.max_candidates,
    scale: Annotated[bool, typer.Option(help="Scale columns to unit variance.")] = _DEFAULT.scale,
    max_components: Annotated[
        int, typer.Option(help="Project more columns than this on so many components; 0: never.")
    ] = _DEFAULT.max_components or 0,
    tol: Annotated[float, typer.Option(help="Largest residual of the kept columns.")] = _DEFAULT.tol,
    grid_tol: Annotated[float | None, typer.Option(help="The same of those that the grid is searched with.")] = None,
    random_state: Annotated[int, typer.Option(help="Seed.")] = _DEFAULT.random_state,
    missing: Annotated[
        str, typer.Option(help="Rows with NaN or infinite values: error, or skip (labels -3 and -2).")
    ] = _DEFAULT.missing,
    overwrite: Overwrite = False,
    scratch: Scratch = None,
    scheduler: Scheduler = None,
    scheduler_file: SchedulerFile = None,
    wait_workers: WaitWorkers = 0,
    workers: Workers = 0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    log: Annotated[Path | None, typer.Option(help="File to which every finished piece of work is added.")] = None,
) -> None:
    """Cluster DATA and store everything that was found in OUT."""
    settings = Settings(
        metric=metric,
        method=method,
        recall=recall,
        n_neighbors=n_neighbors,
        lam=lam,
        n_clusters=n_clusters,
        k_multipliers=k_multipliers or _DEFAULT.k_multipliers,
        lam_multipliers=lam_multipliers or _DEFAULT.lam_multipliers,
        max_clusters=max_clusters,
        max_candidates=max_candidates,
        scale=scale,
        max_components=max_components or None,
        tol=tol,
        grid_tol=grid_tol,
        random_state=random_state,
        missing=missing,
    )
    from cns_dask import pipeline
    from cns_dask.data import open_data
    from cns_dask.exports import check_parquet, is_parquet, write_parquet
    from cns_dask.progress import visible_progress
    from cns_dask.runtime import connection

    _log_to(log)
    table = out if is_parquet(out) else None
    if table is not None:
        check_parquet(table, overwrite=overwrite)
        out = f"{os.path.splitext(out)[0]}.zarr"  # noqa: PTH122 - it may be a URL
    progress = visible_progress()
    tls = tls_ca, tls_cert, tls_key
    with connection(scheduler, scheduler_file, workers, tls, wait_for=wait_workers, quiet=not _debug):
        rows = None if data is None else open_data(data, columns=columns, component=component, features=features)
        result = pipeline.fit(
            rows,
            settings,
            graph=graph,
            like=like,
            out=out,
            overwrite=overwrite,
            scratch=scratch,
            progress=progress,
        )
        if table is not None:
            write_parquet(table, result.to_dataframe(rows), overwrite=overwrite, progress=progress)
    choice = result.choice
    _echo_quality(result.graph, method)
    typer.echo(
        f"{choice.n_clusters} clusters in {result.n_rows} rows (k = {choice.n_neighbors}, lam = {choice.lam:.4g})\n"
        f"result: {out}   look at it: cns-dask show {out}"
    )
    if table is not None:
        typer.echo(f"table: {table}")
    _echo_changes(result)


@app.command()
def plan(  # noqa: PLR0913, PLR0917 - one option per size
    data: Data = None,
    rows: Annotated[int | None, typer.Option(min=2, help="Rows to ask about instead of those of DATA.")] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="D|NAME,...", help="Number of columns, without DATA; else as for fit.")
    ] = None,
    component: Component = None,
    features: Features = None,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 1,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each.")] = 1,
    memory: Annotated[str | None, typer.Option(help="Memory of each, as 8GiB.")] = None,
    metric: Metric = _DEFAULT.metric,
    method: Method = _DEFAULT.method,
    max_clusters: MaxClusters = _DEFAULT.max_clusters,
    max_candidates: MaxCandidates = _DEFAULT.max_candidates,
) -> None:
    """Tell what a fit would take: tasks, memory, disk, time; and what more workers would do.

    Rates are measured here, in about ten seconds, on the first rows of DATA or on generated ones.
    """
    settings = Settings(metric=metric, method=method, max_clusters=max_clusters, max_candidates=max_candidates)
    memory_bytes = None if memory is None else _bytes(memory)
    from cns_dask import forecast
    from cns_dask.data import open_data

    named = columns.split(",") if data and columns else None
    opened = open_data(data, columns=named, component=component, features=features) if data else None
    typer.echo(
        forecast.plan(
            opened,
            n_rows=rows,
            n_features=None if data or columns is None else _integer("columns", columns),
            workers=workers,
            threads=threads,
            memory_bytes=memory_bytes,
            settings=settings,
        )
    )


def _log_to(file: Path | None) -> None:
    """Write what the package logs to a file."""
    if file is None:
        return
    import logging

    try:
        handler = logging.FileHandler(file)
    except OSError as error:
        raise OutputError(f"The log must be writable. Got {file} ({error}).") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("cns_dask")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _integer(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidSettingError(f"{name} must be an integer where there are no data. Got {text}.") from error


def _bytes(text: str) -> int:
    from dask.utils import parse_bytes

    try:
        return int(parse_bytes(text))
    except ValueError as error:
        raise InvalidSettingError(f"memory must be a size as 8GiB. Got {text}.") from error


@app.command()
def neighbors(  # noqa: PLR0913, PLR0917 - one option per choice
    data: Annotated[str, typer.Argument(help=FORMS, show_default=False)],
    out: Out,
    n_neighbors: Annotated[
        int, typer.Option("--n-neighbors", "-k", help="Neighbours of every row, the row itself included.")
    ],
    columns: Columns = None,
    component: Component = None,
    features: Features = None,
    metric: Metric = _DEFAULT.metric,
    method: Method = _DEFAULT.method,
    recall: Recall = _DEFAULT.recall,
    random_state: Annotated[int, typer.Option(help="Seed.")] = _DEFAULT.random_state,
    overwrite: Overwrite = False,
    scratch: Scratch = None,
    scheduler: Scheduler = None,
    scheduler_file: SchedulerFile = None,
    wait_workers: WaitWorkers = 0,
    workers: Workers = 0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Find the nearest rows of every row of DATA, as they are, and store the graph in OUT."""
    from cns_dask.graphs import neighbor_graph
    from cns_dask.progress import visible_progress
    from cns_dask.runtime import connection

    tls = tls_ca, tls_cert, tls_key
    with connection(scheduler, scheduler_file, workers, tls, wait_for=wait_workers, quiet=not _debug):
        graph = neighbor_graph(
            data,
            n_neighbors,
            columns=columns,
            component=component,
            features=features,
            metric=metric,
            method=method,
            recall=recall,
            random_state=random_state,
            out=out,
            overwrite=overwrite,
            scratch=scratch,
            progress=visible_progress(),
        )
    _echo_quality(graph, method)
    typer.echo(f"graph: {out}   cluster with it: cns-dask fit {data} --graph {out} --out clusters.zarr")


@app.command()
def predict(  # noqa: PLR0913, PLR0917 - one option per choice
    model: Annotated[str, typer.Argument(help="Result of a fit.", show_default=False)],
    new: Annotated[str, typer.Argument(help=f"New rows. {FORMS}", show_default=False)],
    out: TableOut,
    columns: Columns = None,
    component: Component = None,
    features: Features = None,
    overwrite: Overwrite = False,
    scheduler: Scheduler = None,
    scheduler_file: SchedulerFile = None,
    wait_workers: WaitWorkers = 0,
    workers: Workers = 0,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Cluster NEW rows with the MODEL of an earlier fit. Columns are those of the fit, unless others are given."""
    from cns_dask.exports import check_parquet, is_parquet, write_parquet
    from cns_dask.predict import open_new, predict_table, predict_to
    from cns_dask.progress import visible_progress
    from cns_dask.result import open_result
    from cns_dask.runtime import connection

    result, progress = open_result(model), visible_progress()
    tls = tls_ca, tls_cert, tls_key
    with connection(scheduler, scheduler_file, workers, tls, wait_for=wait_workers, quiet=not _debug):
        if is_parquet(out):
            check_parquet(out, overwrite=overwrite)
        rows = open_new(result, new, columns=columns, component=component, features=features)
        if is_parquet(out):
            write_parquet(out, predict_table(result, rows), overwrite=overwrite, progress=progress)
        else:
            predict_to(out, result, rows, overwrite=overwrite, progress=progress)
    typer.echo(f"labels, memberships and confidence: {out}")


@app.command()
def show(result: Annotated[str, typer.Argument(help="Result of a fit.", show_default=False)]) -> None:
    """Print the choice of a fit, its margin, the sizes of the clusters and the runners-up."""
    from cns_dask.result import open_result

    _show(open_result(result))


@app.command()
def report(
    result: Annotated[str, typer.Argument(help="Result of a fit.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", help="HTML page to write.")] = Path("report.html"),
    overwrite: Annotated[bool, typer.Option(help="Replace an existing page.")] = False,
) -> None:
    """Write a page with pictures about a fit."""
    from cns_dask.report import write_report
    from cns_dask.result import open_result

    write_report(open_result(result), out, overwrite=overwrite)
    typer.echo(f"report: {out}")


@app.command()
def warmup(
    scheduler: Scheduler = None,
    scheduler_file: SchedulerFile = None,
    tls_ca: TlsCa = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Compile what a first fit would wait for: here (once for an installation), or on all workers of a cluster.

    Workers that are started with `dask worker --preload cns_dask.warmup` do it themselves before they join.
    """
    from cns_dask import warmup as warm
    from cns_dask.runtime import connection, on_every_worker

    with connection(scheduler, scheduler_file, tls=(tls_ca, tls_cert, tls_key), quiet=not _debug):
        for name, seconds in on_every_worker(warm.warm_up).items():
            typer.echo(f"{name}: {warm.in_words(seconds)}")


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the demo writes; a new folder if not given.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Cluster a small data set from start to end, in this process, in seconds."""
    from cns_dask import pipeline
    from cns_dask.demo import demo_points
    from cns_dask.progress import visible_progress
    from cns_dask.report import write_report

    folder = folder or _new_folder("cns-dask-demo")
    folder.mkdir(parents=True, exist_ok=True)
    out, page = folder / "clusters.zarr", folder / "report.html"
    result = pipeline.fit(demo_points(), Settings(), out=out, overwrite=overwrite, progress=visible_progress())
    _show(result)
    typer.echo(f"result: {out}")
    write_report(result, page, overwrite=overwrite)
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


class _StoppedError(BaseException):
    """The user, or the system, wants the run to end. No Exception: nothing on the way out may take it for a failure."""


def main() -> None:
    """Run the command line."""
    global _debug  # noqa: PLW0603 - for the whole process, as the arguments are
    _debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    with _exit_codes(debug=_debug):
        app()


def _stop(number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_DFL)  # whoever asks twice means it
    raise _StoppedError(number)


def _echo_quality(graph: Any, method: str) -> None:
    """Print how the neighbours were found, how well, and by which rule."""
    typer.echo(describe_quality(graph))
    if method == "auto" and graph.method != "given":
        typer.echo(f"(auto: {RULE})")


def _echo_changes(result: Any) -> None:
    """Print what has changed since the earlier fit, if there was one."""
    from cns_dask.changes import in_words

    if lines := in_words(result):
        typer.echo("\n".join(["since the earlier fit:", *(f"  {line}" for line in lines)]))


def _show(result: Any) -> None:
    from rich.console import Console
    from rich.table import Table

    console, choice = Console(), result.choice
    margin = "the only cell" if choice.margin is None else f"{choice.margin:.4f} ahead of the next cell"
    console.print(
        f"{choice.n_clusters} clusters in {result.n_rows} rows: k = {choice.n_neighbors}, lam = {choice.lam:.4g}, "
        f"criterion {choice.value:.4f} ({margin})",
        highlight=False,
    )
    console.print(describe_quality(result.graph), highlight=False)
    used, planned = result.memory
    console.print(
        f"memory: at most {used / 2**20:.0f} MiB in a process, planned {planned / 2**20:.0f}", highlight=False
    )
    if result.n_skipped:
        console.print(f"{result.n_skipped} rows were left out: NaN or infinite values", highlight=False)
    _echo_changes(result)
    clusters = Table("cluster", "rows", "representative row", title="clusters", title_justify="left")
    for label, size, row in zip(result.clusters, result.sizes(), result.representatives, strict=True):
        clusters.add_row(str(label), str(size), str(row))
    best = Table("K", "k", "lam", "criterion", title="best cell of each K", title_justify="left")
    for cell in result.best_by_n_clusters()[:6]:
        best.add_row(str(cell.n_clusters), str(cell.n_neighbors), f"{cell.lam:.4g}", f"{cell.value:.4f}")
    console.print(clusters, best)


@contextmanager
def _exit_codes(*, debug: bool = False) -> Iterator[None]:
    """Errors end in one line and a code; with `debug` they show where they came from."""
    try:
        yield
    except _StoppedError as stopped:
        _say("stopped. What was finished is kept: run the same command again to go on from there.")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + stopped.args[0])  # tasks that still run in threads are not waited for
    except Exception as error:
        if debug:
            raise
        if isinstance(error, CNSError | OSError):
            _say(str(error))
        else:
            _say(f"{type(error).__name__}: {error} (this is not expected: --debug shows where it comes from)")
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _say(text: str) -> None:
    """One line on standard error, without anything that a terminal would obey: names come from anywhere."""
    typer.echo(f"cns-dask: {plain_text(text)}", err=True)
