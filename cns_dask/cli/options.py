"""Options that several commands share, each written once: a group is a dataclass whose fields become options."""

import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

FORMS = "Path or URL: .npy, .npz (sparse), Zarr array or group, Parquet, CSV (both also as glob), .h5ad, netCDF."
DataArgument = Annotated[str | None, typer.Argument(help=FORMS, show_default=False)]
OtherNumber = Annotated[
    int | None, typer.Option("--n-clusters", help="Show so many clusters instead of the choice.", show_default=False)
]
ResultArgument = Annotated[str, typer.Argument(help="Result of a fit.", show_default=False)]
GroupOut = Annotated[str, typer.Option("--out", help="Zarr group to write.", show_default=False)]
TableOut = Annotated[
    str,
    typer.Option(
        "--out",
        help="Zarr group to write; or X.parquet or X.csv, a table with the index of the data (a fit leaves X.zarr "
        "beside it).",
        show_default=False,
    ),
]
Overwrite = Annotated[
    bool, typer.Option(help="Replace a result of other data or settings, once the new one is complete.")
]


def rows_or_share(text: Any) -> Any:
    """A number of rows if it is written as an integer, else a share of them."""
    return int(text) if str(text).isdecimal() else float(text)


Sample = Annotated[
    Any,
    typer.Option(
        parser=rows_or_share,
        metavar="ROWS|SHARE",
        show_default=False,
        help="Cluster only so many rows (1000000), or this share of them (0.01; 1.0: all); others follow their nearest "
        "ones.",
    ),
]
CheckSample = Annotated[bool, typer.Option("--check-sample", help="Fit a second sample too: how well do both agree?")]
Scratch = Annotated[
    str | None, typer.Option(help="Folder for intermediate arrays; beside OUT if not given.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
PerformanceReport = Annotated[
    Path | None,
    typer.Option(help="HTML page of Dask's about all tasks on its workers (needs bokeh).", show_default=False),
]


def option(default: Any, help_text: str, **parameters: Any) -> Any:
    """A field of a group of options; `parameters` as of `typer.Option`."""
    return field(default=default, metadata={"help": help_text, **parameters})


def comma_separated(convert: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Parser of comma-separated values."""

    def parse(text: Any) -> Any:
        return tuple(convert(part.strip()) for part in text.split(",")) if isinstance(text, str) else text

    return parse


@dataclass(frozen=True)
class DataOptions:
    """What of the data is read."""

    columns: Any = option(
        None,
        "Columns of a table, variables, or positions in an array; all if not given.",
        parser=comma_separated(str),
        metavar="NAME,...",
    )
    component: str | None = option(None, "Array in a Zarr group (a/b), or matrix of an AnnData (X, obsm/X_pca).")
    features: str | None = option(None, "Dimension that holds the features of a row, of data that xarray opens.")


@dataclass(frozen=True)
class SchedulerOptions:
    """A running scheduler."""

    scheduler: str | None = option(None, "Address of a running Dask scheduler: tcp://host:8786.")
    scheduler_file: str | None = option(None, "File that a running Dask scheduler wrote.")
    tls_ca: str | None = option(None, "Certificate of the authority, for a cluster with TLS (PEM file).")
    tls_cert: str | None = option(None, "Client certificate (PEM file).")
    tls_key: str | None = option(None, "Key of the client certificate (PEM file).")

    @property
    def address(self) -> str | None:
        """Where the scheduler is; None if none is given."""
        return self.scheduler or self.scheduler_file

    def connect(self, *, debug: bool) -> AbstractContextManager[None]:
        """Connect to the scheduler, or use the threads of this process."""
        return self._connect(debug)

    def _connect(self, debug: bool, **where: Any) -> AbstractContextManager[None]:
        if self.address:
            announce(f"connecting to {self.address} ...")
        from cns_dask.execution.cluster import connection

        tls = self.tls_ca, self.tls_cert, self.tls_key
        return connection(self.scheduler, self.scheduler_file, tls=tls, quiet=not debug, tell=announce, **where)


@dataclass(frozen=True)
class ClusterOptions(SchedulerOptions):
    """A running scheduler, or workers that are started here."""

    wait_workers: int = option(0, "Wait for the scheduler, and until so many workers have joined.", min=0)
    workers: int | None = option(None, "Worker processes to start here; 0: threads of this process.", min=0)
    memory: str | None = option(None, "Memory limit of each worker that is started here, as 8GiB.")

    def connect(self, *, debug: bool) -> AbstractContextManager[None]:
        """Connect to the scheduler, start workers here, or use the threads of this process."""
        from cns_dask.config import default_memory, default_workers, memory_bytes

        workers = self.workers
        if workers is None:
            workers = 0 if self.address else default_workers()
        memory = default_memory() if self.memory is None else memory_bytes("memory", self.memory)
        if not self.address:
            announce(_where(workers))
        return self._connect(debug, workers=workers, memory=memory, wait_for=self.wait_workers)


def announce(line: str) -> None:
    """Say at once, on standard error, what happens: what follows imports packages for seconds."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def _where(workers: int) -> str:
    import dask.system

    threads = dask.system.CPU_COUNT
    if not workers:
        return f"working in this process, on {_counted(threads, 'thread')} ..."
    has_dashboard = importlib.util.find_spec("bokeh") is not None
    page = "" if has_dashboard else " (no dashboard: that needs bokeh, pip install 'cns_dask[dashboard]')"
    of_each = _counted(max(1, threads // workers), "thread")
    return f"starting {_counted(workers, 'worker')} of {of_each}{page} ..."


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def with_options(**groups: tuple[type, Sequence[str]] | type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace parameters of a command by the options of a group: all fields of a dataclass, or those that are named."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        chosen = {name: group if isinstance(group, tuple) else (group, ()) for name, group in groups.items()}
        of_group = {name: list(_group_parameters(*group)) for name, group in chosen.items()}

        @functools.wraps(command)
        def run(**values: Any) -> None:
            for name, (group, _) in chosen.items():
                values[name] = _build(group, {each.name: values.pop(each.name) for each in of_group[name]})
            command(**values)

        parameters: list[inspect.Parameter] = []
        hints = get_type_hints(command, include_extras=True)
        for name, parameter in inspect.signature(command).parameters.items():
            own = [parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)]
            parameters += of_group.get(name, own)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        return run

    return decorate


def given_options(context: typer.Context) -> set[str]:
    """Names of the options that are on the line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _build(group: type, values: dict[str, Any]) -> Any:
    """A group from its options: those that are not given keep their defaults, and 0 means None where it may be None."""
    hints, defaults = get_type_hints(group), {each.name: each.default for each in fields(group)}
    chosen = {name: value for name, value in values.items() if value is not None}
    zero_is_none = {name for name in chosen if hints[name] == int | None and defaults[name]}
    return group(**{name: (value or None) if name in zero_is_none else value for name, value in chosen.items()})


def _group_parameters(group: type, names: Sequence[str]) -> Iterable[inspect.Parameter]:
    hints = get_type_hints(group)
    for each in fields(group):
        if not names or each.name in names:
            annotation, default = _annotation(each, hints[each.name])
            yield inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _annotation(each: Field[Any], hint: Any) -> tuple[Any, Any]:
    """Annotation and default of the option for a field."""
    parameters = {name: value for name, value in each.metadata.items() if name not in ("allowed", "parse", "words")}
    if words := each.metadata.get("words"):
        parameters["autocompletion"] = lambda: list(words)
    parse = each.metadata.get("parse")
    if parse is not None:  # several values; a default is quoted in the help
        default: Any = each.default
        quoted = f" [{','.join(map(str, default))}]" if default else ""
        parameters |= {"parser": comma_separated(parse), "metavar": "N,...", "help": parameters["help"] + quoted}
        return Annotated[Any, typer.Option(**parameters)], None
    if "parser" in parameters:
        return Annotated[Any, typer.Option(**parameters)], each.default
    if hint == bool | str:  # --name, --no-name, or neither: "auto"
        return Annotated[bool | None, typer.Option(**parameters)], None
    hint = int if hint == int | None and each.default is not None else hint  # None is written as 0
    return Annotated[hint, typer.Option(**parameters)], each.default
