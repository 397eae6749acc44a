"""Parquet files, read by Dask; those that cannot be read are named."""

from collections.abc import Sequence
from typing import Any

import dask.dataframe as dd
from dask.dataframe.io.parquet.arrow import ArrowDatasetEngine

from cns_dask.errors import InvalidDataError, one_line


class NamingEngine(ArrowDatasetEngine):  # type: ignore[misc]
    """Dask's reader of Parquet files, whose errors name the file."""

    @classmethod
    def read_partition(cls, files: Any, pieces: Any, *others: Any, **options: Any) -> Any:
        """Read the pieces of files that make a partition."""
        try:
            return super().read_partition(files, pieces, *others, **options)
        except KeyError as error:
            pieces = pieces if isinstance(pieces, list) else [pieces]
            names = {str(piece if isinstance(piece, str) else piece[0]) for piece in pieces}
            raise InvalidDataError(
                f"{', '.join(sorted(names))} has another index than the first file ({one_line(error)})."
            ) from error

    @classmethod
    def _read_table(
        cls, path: Any, files: Any, row_groups: Any, columns: Sequence[str], schema: Any, *others: Any, **options: Any
    ) -> Any:
        name = getattr(path, "path", path)
        try:
            table = super()._read_table(path, files, row_groups, columns, schema, *others, **options)
        except Exception as error:  # of pyarrow, which has its own family
            raise InvalidDataError(
                f"{name} cannot be read as a table by read_parquet ({type(error).__name__}: {one_line(error)})."
            ) from error
        lost = [column for column in columns or () if column in schema.names and column not in table.schema.names]
        if lost:
            raise InvalidDataError(f"{name} has other columns than the first file: it lacks {lost[0]}.")
        return table


def read_parquet(files: Sequence[str]) -> Any:
    """A lazy table of Parquet files, or folders of them (paths or URLs)."""
    return dd.read_parquet(list(files) if len(files) > 1 else files[0], engine=NamingEngine)
