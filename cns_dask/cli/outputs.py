"""Outputs of commands: their form follows from their ending, before any work."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cns_dask.errors import OutputError

ZARR_ENDINGS, PARQUET_ENDINGS, CSV_ENDINGS = (".zarr",), (".parquet", ".parq", ".pq"), (".csv",)
TABLE_ENDINGS = (*PARQUET_ENDINGS, *CSV_ENDINGS)
PAGE_ENDINGS = (".html", ".htm")


def check_ending(out: str | os.PathLike[str], *endings: str, also: tuple[str, ...] = ()) -> None:
    """Refuse an output whose ending stands for a form that is not written; those in `also` are, but not advised.

    Examples
    --------
    >>> check_ending("clusters.xlsx", ".zarr", ".parquet", ".csv")
    Traceback (most recent call last):
    cns_dask.errors.OutputError: clusters.xlsx ends in .xlsx, which is not written here: give --out an ending of \
.zarr, .parquet or .csv.
    """
    ending = re.search(r"\.[A-Za-z]\w*$", os.fspath(out).rstrip("/"))
    if ending is None or ending[0] in (*endings, *also):
        return
    words = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
    raise OutputError(f"{out} ends in {ending[0]}, which is not written here: give --out an ending of {words}.")


@dataclass(frozen=True)
class Output:
    """Where a command writes: a Zarr group, or a table and, for a fit, a group of the same name beside it."""

    group: str
    table: str | None = None

    @classmethod
    def of(cls, out: str) -> "Output":
        """What an ending means."""
        check_ending(out, *ZARR_ENDINGS, PARQUET_ENDINGS[0], *CSV_ENDINGS, also=PARQUET_ENDINGS)
        if not out.rstrip("/").endswith(TABLE_ENDINGS):
            return cls(out)
        return cls(f"{os.path.splitext(out)[0]}.zarr", out)  # noqa: PTH122 - it may be a URL

    def check_table(self, *, overwrite: bool) -> None:
        """Refuse a table that cannot be written."""
        if self.table is not None:
            self._functions()[0](self.table, overwrite=overwrite)

    def write_table(self, table: Any, *, overwrite: bool, progress: Any) -> None:
        """Write the table."""
        if self.table is not None:
            self._functions()[1](self.table, table, overwrite=overwrite, progress=progress)

    def _functions(self) -> tuple[Callable[..., Any], Callable[..., None]]:
        assert self.table is not None
        if self.table.endswith(CSV_ENDINGS):
            from cns_dask.results.csv_table import check_csv, write_csv

            return check_csv, write_csv
        from cns_dask.results.parquet import check_parquet, write_parquet

        return check_parquet, write_parquet


def log_to(file: Path | None) -> None:
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
