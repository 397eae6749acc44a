"""Tables: pandas and Dask DataFrames, Parquet and CSV files. With `table_forms` and `csv_files` the door to pandas."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.errors import CNSError, InvalidDataError, InvalidSettingError, InvalidTypeError, one_line
from cns_dask.inputs.csv_files import read_csv
from cns_dask.inputs.files import files_of, has_ending, is_web
from cns_dask.inputs.forms import Adapter, Data, ReadOptions
from cns_dask.inputs.table_forms import LazyTable, Table, block_of, partitions
from cns_dask.storage.chunks import rows_per_chunk

SHOWN_COLUMNS = 8  # of those that an error names
PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
CSV_ENDINGS = (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst")


def is_table(source: Any) -> bool:
    """Whether something is a DataFrame of pandas or Dask, without importing either."""
    is_frame = hasattr(source, "columns") and hasattr(source, "dtypes") and hasattr(source, "index")
    return is_frame and not is_series(source)


def is_series(source: Any) -> bool:
    """Whether something is a Series of pandas or Dask."""
    return hasattr(source, "to_frame") and hasattr(source, "index") and getattr(source, "ndim", None) == 1


def is_lazy_table(source: Any) -> bool:
    """Whether it is one of Dask."""
    return is_table(source) and dask.is_dask_collection(source)


def open_table(table: Any, columns: Sequence[Any] | None = None) -> Data:
    """Open a DataFrame of pandas or Dask; the lengths of partitions are not looked at here."""
    names = numeric_columns(table, columns)
    if not is_lazy_table(table):
        values = block_of(table[names])
        chunks = (rows_per_chunk(max(1, values.shape[0]), max(1, values.shape[1])), -1)
        X = da.from_array(values, chunks=chunks, name=False)
        return Data(X, Table(table.index), in_memory=True, names=tuple(names))
    shape = (np.nan, len(names))
    blocks = [da.from_delayed(dask.delayed(block_of)(part), shape, np.float64) for part in partitions(table[names])]
    return Data(da.concatenate(blocks), LazyTable(table, tuple(names)), names=tuple(names))


def open_parquet(files: Sequence[str], columns: Sequence[str] | None = None) -> Data:
    """Open Parquet files, or folders of them (paths or URLs); only the needed columns are read."""
    from cns_dask.inputs.parquet_files import read_parquet

    return open_table(_read(read_parquet, files), columns)


def open_csv(files: Sequence[str], columns: Sequence[str] | None = None) -> Data:
    """Open CSV files with a header (paths or URLs), in blocks where they are not compressed."""
    return open_table(_read(read_csv, files), columns)


def _read(reader: Callable[[Sequence[str]], Any], files: Sequence[str]) -> Any:
    try:
        return reader(files)
    except (ImportError, CNSError):
        raise
    except Exception as error:  # of pyarrow and pandas, which have their own families
        what = f"{type(error).__name__}: {one_line(error)}"
        raise InvalidDataError(f"{_some(files)} cannot be read as a table by {reader.__name__} ({what}).") from error


def numeric_columns(table: Any, columns: Sequence[Any] | None) -> list[Any]:
    """The columns that are asked for, or all; an error names those that are not there, or are no numbers."""
    present = list(table.columns)
    names = present if columns is None else list(columns)
    lost = [name for name in names if name not in present]
    if lost:
        raise InvalidSettingError(f"These columns are not in the table: {_some(lost)}. It has {_some(present)}.")
    if len(set(names)) < len(names):
        raise InvalidDataError("Some columns have the same name. Rename them, or choose each of them once.")
    types = dict(zip(present, table.dtypes, strict=True))
    numbers = [name for name in names if _holds_numbers(types[name])]
    if len(numbers) < len(names):
        wrong = _some([f"{name} ({types[name]})" for name in names if name not in numbers])
        others = f" ({_some(numbers)})" if numbers else ""
        raise InvalidDataError(
            f"Some columns hold no numbers: {wrong}. Choose the others{others} with columns=[...], or turn these into "
            "numbers first: categories and strings as with get_dummies, dates as days since the first."
        )
    if not names:
        raise InvalidDataError("The table has no columns: it needs at least 1 feature.")
    return names


def _holds_numbers(dtype: Any) -> bool:
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    return not is_complex_dtype(dtype) and (is_numeric_dtype(dtype) or is_bool_dtype(dtype))


def _some(names: Sequence[Any]) -> str:
    shown = ", ".join(map(str, names[:SHOWN_COLUMNS]))
    return f"{shown}, ... ({len(names)} in all)" if len(names) > SHOWN_COLUMNS else shown


def empty_frame(names: Sequence[Any]) -> Any:
    """A table without rows."""
    import pandas as pd

    return pd.DataFrame(columns=list(names))


def frame_at(index: Any, values: Any, names: Sequence[Any] | None) -> Any:
    """Rows as a pandas DataFrame with this index."""
    import pandas as pd

    return pd.DataFrame(values, index=index, columns=None if names is None else list(names))


def joined_frames(frames: Sequence[Any], none: Any) -> Any:
    """Some pandas DataFrames below each other; `none` of them is a table without rows."""
    import pandas as pd

    return pd.concat(frames) if frames else none


def categories(labels: Any, clusters: Sequence[int]) -> Any:
    """Labels as categories that are words, as scverse has them; those of no cluster are missing."""
    import pandas as pd

    codes = pd.Index(clusters).get_indexer(labels)
    return pd.Categorical.from_codes(codes, categories=[str(number) for number in clusters])


def with_columns(frame: Any, names: tuple[str, str], labels: Any, confidence: Any) -> Any:
    """A pandas DataFrame with two more columns."""
    taken = [name for name in names if name in frame.columns]
    if taken:
        raise InvalidSettingError(f"The table already has columns {_some(taken)}. Give other names for the new ones.")
    return frame.assign(**dict(zip(names, (labels, confidence), strict=True)))


def _open_files(reader: Callable[..., Data], location: str, options: ReadOptions) -> Data:
    files = files_of(location)
    return replace(reader(files, options.columns), files=() if is_web(location) else files)


def _refuse_series(series: Any, _: ReadOptions) -> Data:
    name = repr(series.name)
    raise InvalidTypeError(
        f"A Series is one column of a table. Give it as a DataFrame: table[[{name}]], not table[{name}]."
    )


OBJECTS = (
    Adapter("a table", lambda source, _: is_table(source), lambda source, options: open_table(source, options.columns)),
    Adapter("a Series", lambda source, _: is_series(source), _refuse_series),
)
PARQUET = Adapter(
    "Parquet files",
    lambda location, _: has_ending(location, PARQUET_ENDINGS, folders=True),
    lambda location, options: _open_files(open_parquet, location, options),
)
CSV = Adapter(
    "CSV files",
    lambda location, _: has_ending(location, CSV_ENDINGS),
    lambda location, options: _open_files(open_csv, location, options),
)
