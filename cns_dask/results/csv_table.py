"""Answers as one CSV file, in the order of the rows and with their index."""

import os
import uuid
from typing import Any

import dask

from cns_dask.errors import OutputError
from cns_dask.execution.cluster import check_location_is_shared
from cns_dask.execution.compute import compute
from cns_dask.inputs.table_forms import partitions
from cns_dask.inputs.tables import is_lazy_table
from cns_dask.progress import Progress
from cns_dask.storage.locations import Location
from cns_dask.storage.outputs import writable_location

ENDING = ".csv"
ROW = "row"  # header of an index that has no name


def is_csv(out: str | os.PathLike[str]) -> bool:
    """Whether an output is to be a CSV file, by its name."""
    return os.fspath(out).endswith(ENDING)


def check_csv(out: str | os.PathLike[str], *, overwrite: bool = False) -> Location:
    """Return the location where a CSV file can be written, or say why not."""
    target, exists = writable_location(out)
    if exists and not overwrite:
        raise OutputError(f"{out} already exists. Choose another output, or overwrite it.")
    if target.is_local and os.path.isdir(target.path):  # noqa: PTH112 - a path of a Location
        raise OutputError(f"{out} is a folder, so it is not overwritten. Choose another output.")
    return target


def write_csv(
    out: str | os.PathLike[str], table: Any, *, overwrite: bool = False, progress: Progress | None = None
) -> None:
    """Write a table (of pandas or Dask) to a CSV file, which is there when it is complete.

    Parameters
    ----------
    out
        Path or URL of the file.
    table
        What is written: its partitions by tasks, on the active Dask client or on this process's threads, which are then
        copied one after the other. None of them is in the memory of the caller.
    overwrite
        Replace such a file.
    progress
        Is told about stages and counts.
    """
    target = check_csv(out, overwrite=overwrite)
    progress = progress or Progress()
    beside = target.parent / f".{target.name}.{uuid.uuid4().hex}"
    parts = partitions(table) if is_lazy_table(table) else [table]
    names = [f"part.{number}.csv" for number in range(len(parts))]
    try:
        beside.make()
        if beside.is_local:
            check_location_is_shared(beside, "")
        tasks = [
            dask.delayed(write_partition)(part, beside, name, is_first=number == 0)
            for number, (part, name) in enumerate(zip(parts, names, strict=True))
        ]
        with progress.stage("write", len(tasks)) as advance:
            compute(tasks, lambda _: advance(), stage="write")
        check_csv(out, overwrite=overwrite)
        beside.join_to(target, names)
    finally:
        beside.remove()


def write_partition(frame: Any, folder: Location, name: str, *, is_first: bool) -> None:
    """Write one partition; the first has a header."""
    labels = [ROW if label is None else label for label in frame.index.names]
    frame.to_csv(f"{folder}/{name}", header=is_first, index_label=labels)
