"""Tables of what was found, as Parquet files: one for every partition, in their order and with their index."""

from __future__ import annotations

import os
import uuid
from typing import Any

import dask

from cns_dask.errors import OutputError
from cns_dask.outputs import writable_place
from cns_dask.places import Place
from cns_dask.progress import Progress
from cns_dask.runtime import check_path_is_shared, run
from cns_dask.tables import PARQUET, is_lazy_table, partitions

FIRST = "part.0.parquet"


def is_parquet(out: str | os.PathLike[str]) -> bool:
    """Whether an output is to be Parquet files, by its name."""
    return os.fspath(out).endswith(PARQUET)


def check_parquet(out: str | os.PathLike[str], *, overwrite: bool = False) -> Place:
    """Return the place where a folder of Parquet files can be written, or say why not."""
    target, exists = writable_place(out)
    if exists and not overwrite:
        raise OutputError(f"The output must not exist. Got {out}. Choose another, or overwrite it.")
    if exists and not target.exists(FIRST):
        raise OutputError(f"Only a folder of Parquet files is overwritten by one. Got {out}, which is something else.")
    return target


def write_parquet(
    out: str | os.PathLike[str], table: Any, *, overwrite: bool = False, progress: Progress | None = None
) -> None:
    """Write a table (of pandas or Dask) to a folder of Parquet files, which is there when it is complete.

    Parameters
    ----------
    out
        Path or URL of the folder.
    table
        What is written, partition by partition, on the active Dask client or on this process's threads.
    overwrite
        Replace such a folder.
    progress
        Is told about stages and counts.
    """
    target = check_parquet(out, overwrite=overwrite)
    progress = progress or Progress()
    beside = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    aside = target.parent / f"{beside.name}.replaced"
    parts = partitions(table) if is_lazy_table(table) else [table]
    try:
        beside.make()
        if beside.is_local:
            check_path_is_shared(beside, "")
        tasks = [dask.delayed(write_part)(part, beside, number) for number, part in enumerate(parts)]
        with progress.stage("write", len(tasks)) as advance:
            run(tasks, advance, stage="write")
        check_parquet(out, overwrite=overwrite)
        beside.move_to(target, aside=aside, last=FIRST)
    finally:
        beside.remove()
        aside.remove()


def write_part(frame: Any, folder: Place, number: int) -> None:
    """Write one partition."""
    frame.to_parquet(f"{folder}/part.{number}.parquet")
