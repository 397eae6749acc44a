"""Answers as Parquet files: one for every partition, in their order and with their index."""

import itertools
import os
import uuid
from typing import Any

import dask

from cns_dask.errors import OutputError
from cns_dask.execution.cluster import check_location_is_shared
from cns_dask.execution.compute import compute
from cns_dask.inputs.table_forms import partitions
from cns_dask.inputs.tables import PARQUET_ENDINGS, is_lazy_table
from cns_dask.progress import Progress
from cns_dask.storage.locations import Location
from cns_dask.storage.outputs import writable_location


def part_name(number: int) -> str:
    """Name of the file of a partition."""
    return f"part.{number}.parquet"


def is_parquet(out: str | os.PathLike[str]) -> bool:
    """Whether an output is to be Parquet files, by its name."""
    return os.fspath(out).endswith(PARQUET_ENDINGS)


def check_parquet(out: str | os.PathLike[str], *, overwrite: bool = False) -> Location:
    """Return the location where a folder of Parquet files can be written, or say why not."""
    target, exists = writable_location(out)
    is_ours = target.exists(part_name(0))
    if (exists or is_ours) and not overwrite:
        raise OutputError(f"{out} already exists. Choose another output, or overwrite it.")
    if exists and not is_ours:
        raise OutputError(f"{out} is not a folder of Parquet files, so it is not overwritten. Choose another output.")
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
            check_location_is_shared(beside, "")
        tasks = [dask.delayed(write_partition)(part, beside, number) for number, part in enumerate(parts)]
        with progress.stage("write", len(tasks)) as advance:
            compute(tasks, lambda _: advance(), stage="write")
        check_parquet(out, overwrite=overwrite)
        if beside.is_local:
            beside.rename_to(target, aside)
        else:
            names = [part_name(number) for number in range(len(parts))]
            more = itertools.takewhile(target.exists, map(part_name, itertools.count(len(parts))))
            beside.copy_to(target, names, last=part_name(0), unwanted=list(more))
    finally:
        beside.remove()
        aside.remove()


def write_partition(frame: Any, folder: Location, number: int) -> None:
    """Write one partition."""
    frame.to_parquet(f"{folder}/{part_name(number)}")
