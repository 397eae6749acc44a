"""The application that the commands are part of."""

from typing import Annotated

import typer

app = typer.Typer(
    help="Clustering by non-parametric smoothing on Dask: automatic number of clusters, soft memberships.",
    epilog="--debug, anywhere on the line, shows where an error comes from.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
_debug = False  # whether --debug is on the line


def run(line: list[str]) -> None:
    """Run the command of a line, with the program's name in front."""
    global _debug  # noqa: PLW0603 - for the whole process, as the line is
    _debug = "--debug" in line
    app([word for word in line[1:] if word != "--debug"], prog_name="cns-dask")


def is_debugging() -> bool:
    """Whether --debug is on the line."""
    return _debug


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
