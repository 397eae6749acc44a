"""Commands around the work: `warmup`, `doctor` and `demo`."""

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from cns_dask.cli.app import app, is_debugging
from cns_dask.cli.options import AsJson, Overwrite, SchedulerOptions, Scratch, with_options
from cns_dask.errors import OutputError
from cns_dask.settings import Settings


@app.command()
@with_options(cluster=SchedulerOptions)
def warmup(cluster: Any = None) -> None:
    """Compile what a first fit would wait for: here (once for an installation), or on all workers of a cluster.

    Workers that are started with `dask worker --preload cns_dask.warmup` do it themselves before they join.
    """
    from cns_dask.execution.cluster import on_every_worker
    from cns_dask.warmup import seconds_in_words, warm_up

    with cluster.connect(debug=is_debugging()):
        for name, seconds in on_every_worker(warm_up).items():
            typer.echo(f"{name}: {seconds_in_words(seconds)}")


@app.command()
@with_options(cluster=SchedulerOptions)
def doctor(cluster: Any = None, scratch: Scratch = None, as_json: AsJson = False) -> None:
    """Check what a fit needs: versions, threads, memory, scheduler, scratch, kernels. Exit code 1 if it would fail."""
    from cns_dask.cli.doctor import examine
    from cns_dask.cli.show import markdown, print_document

    findings = examine(cluster, scratch, debug=is_debugging())
    is_well = all(each.status != "wrong" for each in findings)
    if as_json:
        print_document({"is_well": is_well, "findings": findings})
    else:
        columns = {"subject": "what", "status": "is", "found": "found"}
        typer.echo(markdown([asdict(each) for each in findings], columns, left=True))
        typer.echo("\n" + ("all is well" if is_well else "a fit would fail here: see what is wrong above"))
    raise typer.Exit(0 if is_well else 1)


@app.command()
def demo(
    folder: Annotated[
        Path | None, typer.Argument(help="Where the demo writes; a new folder if not given.", show_default=False)
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Cluster a small data set from start to end, in this process, in seconds."""
    import numpy as np

    from cns_dask import pipeline
    from cns_dask.cli.show import print_outcome
    from cns_dask.demo import demo_points
    from cns_dask.progress import visible_progress
    from cns_dask.results.report import write_report

    folder = folder or _new_folder("cns-dask-demo")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"The folder {folder} cannot be made ({error.strerror}). Choose another one.") from error
    out, page = folder / "clusters.zarr", folder / "report.html"
    data = folder / "data.npy"
    if overwrite or not data.exists():
        np.save(data, demo_points())
    result = pipeline.fit(str(data), Settings(), out=out, overwrite=overwrite, progress=visible_progress())
    write_report(result, page, str(data), overwrite=overwrite)
    print_outcome(result, str(out), str(page), data=str(data))


def _new_folder(name: str) -> Path:
    """The first of name, name-2, name-3, ... that does not exist."""
    names = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    return next(path for path in map(Path, names) if not path.exists())
