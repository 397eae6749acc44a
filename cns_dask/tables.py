"""Tables: pandas and Dask DataFrames, Parquet and CSV files; what was found, beside their index. The door to pandas.

A lazy table keeps its partitions: what was found for the rows of one becomes one partition with the same index, and
nothing moves between partitions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.plan import rows_per_chunk
from cns_dask.types import Clustering, Data, FloatArray

CLUSTER, CONFIDENCE, MEMBERSHIP = "cluster", "confidence", "membership_{}"  # names of columns
SHOWN_COLUMNS = 8  # of those that an error names
PARQUET, CSV = (".parquet", ".parq", ".pq"), (".csv", ".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zst")


def is_table(source: Any) -> bool:
    """Whether something is a DataFrame of pandas or Dask, without importing either."""
    return hasattr(source, "columns") and hasattr(source, "dtypes") and hasattr(source, "index")


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


def partitions(table: Any) -> list[Any]:
    """A task for every partition; of those that read files, for the needed columns only.

    Not by `to_delayed()` as it is: that optimizes, and small partitions of Parquet files are then read together. Then
    there would be fewer parts, and of an index alone (which is smaller) other parts than of its table.
    """
    return list(table.simplify().to_delayed(optimize_graph=False))


def open_parquet(files: Sequence[str], columns: Sequence[str] | None = None) -> Data:
    """Open Parquet files, or folders of them (paths or URLs); only the needed columns are read."""
    return open_table(_read("read_parquet", files), columns)


def open_csv(files: Sequence[str], columns: Sequence[str] | None = None) -> Data:
    """Open CSV files with a header (paths or URLs), in blocks where they are not compressed."""
    whole = {} if files[0].endswith(".csv") else {"blocksize": None}
    return open_table(_read("read_csv", files, assume_missing=True, float_precision="round_trip", **whole), columns)


def _read(reader: str, files: Sequence[str], **options: Any) -> Any:
    import dask.dataframe as dd

    try:
        return getattr(dd, reader)(list(files) if len(files) > 1 else files[0], **options)
    except ImportError:
        raise
    except Exception as error:  # of pyarrow and pandas, which have their own families
        raise InvalidDataError(
            f"The files must be a table that {reader} opens. Got {_some(files)} ({type(error).__name__}: {error})."
        ) from error


def numeric_columns(table: Any, columns: Sequence[Any] | None) -> list[Any]:
    """The columns that are asked for, or all; an error names those that are not there, or are no numbers."""
    from pandas.api.types import is_bool_dtype, is_complex_dtype, is_numeric_dtype

    there = list(table.columns)
    names = there if columns is None else list(columns)
    lost = [name for name in names if name not in there]
    if lost:
        raise InvalidSettingError(f"The columns must be in the table. Got {_some(lost)}; it has {_some(there)}.")
    if len(set(names)) < len(names):
        raise InvalidDataError("Columns must have different names. Got some twice. Rename them, or choose columns.")
    types = dict(zip(there, table.dtypes, strict=True))
    wrong = [
        f"{name} ({types[name]})"
        for name in names
        if is_complex_dtype(types[name]) or not (is_numeric_dtype(types[name]) or is_bool_dtype(types[name]))
    ]
    if wrong:
        raise InvalidDataError(
            f"Every column must hold numbers. Got {_some(wrong)}. Choose the others with columns=[...], or turn these "
            "into numbers first: categories and strings as with get_dummies, dates as days since the first."
        )
    if not names:
        raise InvalidDataError("The table must have at least 1 feature, that is column. Got 0 columns.")
    return names


def _some(names: Sequence[Any]) -> str:
    shown = ", ".join(map(str, names[:SHOWN_COLUMNS]))
    return f"{shown}, ... ({len(names)} in all)" if len(names) > SHOWN_COLUMNS else shown


def block_of(frame: Any) -> FloatArray:
    """The values of a pandas DataFrame; what is missing is NaN, whatever its type calls it.

    Examples
    --------
    >>> import pandas as pd
    >>> block_of(pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [True, False]}))
    array([[ 1.,  1.],
           [nan,  0.]])
    """
    return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))


def empty_frame(names: Sequence[Any]) -> Any:
    """A table without rows."""
    import pandas as pd

    return pd.DataFrame(columns=list(names))


def categories(labels: Any, clusters: Sequence[int]) -> Any:
    """Labels as categories that are words, as scverse has them."""
    import pandas as pd

    return pd.Categorical(labels.astype(str), categories=[str(number) for number in clusters])


@dataclass(frozen=True)
class Table:
    """The form of a pandas DataFrame: Series and DataFrames with its index."""

    index: Any

    def give(self, values: Any, name: str, clusters: Sequence[int] | None, _: Any) -> Any:
        """Values of all rows, computed."""
        return beside(self.index, values.compute(), name, clusters)


@dataclass(frozen=True)
class LazyTable:
    """The form of a Dask DataFrame: lazy Series and DataFrames with its index, partition by partition.

    Dask puts a column beside others without a shuffle only if it knows both to come from the same partitions: if one
    was mapped from the other's table.
    """

    table: Any
    features: tuple[Any, ...] = ()
    marks: tuple[str, ...] = ()  # of the partitions, once they are counted

    def mapped(self, function: Callable[[FloatArray], Any], name: str, clusters: Sequence[int] | None) -> Any:
        """The values of `function` of the rows of each partition."""
        none = beside(self.table._meta.index, function(np.empty((0, len(self.features)))), name, clusters)
        return self.table[list(self.features)].map_partitions(map_frame, function, name, clusters, meta=none)

    def counted(self) -> tuple[LazyTable, tuple[int, ...]]:
        """The form with marks by which partitions are known again, and the number of rows in each."""
        parts = [dask.delayed(mark_part)(part) for part in partitions(self.table[list(self.features)])]
        marks, sizes = zip(*dask.compute(*parts), strict=True)
        return replace(self, marks=marks), sizes

    def placed(self, stored: list[Any], names: list[tuple[str, Sequence[int] | None]], sizes: tuple[int, ...]) -> Any:
        """Stored arrays of all rows, side by side, beside the index of the table."""
        none = [np.empty((0, *values.shape[1:]), values.dtype) for values in stored]
        meta = side_by_side(self.table._meta.index, none, names)
        table = self.table[list(self.features)]
        return table.map_partitions(place_part, stored, names, Known(self.marks, sizes), meta=meta)

    def give(self, values: Any, name: str, clusters: Sequence[int] | None, sizes: tuple[int, ...] | None) -> Any:
        """Values of all rows, lazily."""
        return self.aligned([values], [(name, clusters)], sizes)

    def aligned(
        self, arrays: list[Any], names: list[tuple[str, Sequence[int] | None]], sizes: tuple[int, ...] | None
    ) -> Any:
        """Lazy arrays of all rows, side by side, in the partitions of the index; one alone is a Series."""
        parts = [in_parts(values, sizes) for values in arrays]
        frames = [
            dask.delayed(side_by_side)(index, list(blocks), names)
            for index, *blocks in zip(partitions(self.table.index), *parts, strict=True)
        ]
        none = [np.empty((0, *values.shape[1:]), values.dtype) for values in arrays]
        meta = side_by_side(self.table._meta.index, none, names)
        return from_parts(frames, meta, self.table.divisions)


def from_parts(parts: list[Any], meta: Any, divisions: tuple[Any, ...]) -> Any:
    """A lazy table, or Series, whose partitions are the values of tasks."""
    import dask.dataframe as dd

    return dd.from_delayed(parts, meta=meta, divisions=divisions, verify_meta=False, prefix="clusters")


def with_columns(frame: Any, names: tuple[str, str], labels: Any, confidence: Any) -> Any:
    """A pandas DataFrame with two more columns."""
    there = [name for name in names if name in frame.columns]
    if there:
        raise InvalidSettingError(f"The new columns must not be in the table. Got {_some(there)}. Give other names.")
    return frame.assign(**dict(zip(names, (labels, confidence), strict=True)))


def mark_part(frame: Any) -> tuple[str, int]:
    """What a pandas DataFrame is known by, values and index, and its length."""
    from pandas.util import hash_pandas_object

    hashes = hash_pandas_object(frame, index=True).to_numpy()
    return hashlib.blake2b(hashes.tobytes(), digest_size=16).hexdigest(), len(frame)


class Known:
    """Partitions by their marks.

    Not by their numbers: Dask numbers partitions anew where only some of them are asked for, and it may read several
    small files as one.
    """

    def __init__(self, marks: tuple[str, ...], sizes: tuple[int, ...]) -> None:
        self._sizes, self._starts = sizes, np.cumsum([0, *sizes]).tolist()
        self._numbers: dict[str, int] = {}
        for number, mark in enumerate(marks):
            self._numbers.setdefault(mark, number)

    def rows(self, frame: Any) -> list[slice]:
        """The rows of a frame that is one partition, or several of them."""
        if not len(frame):
            return []
        number = self._numbers.get(mark_part(frame)[0])
        if number is not None:
            return [slice(self._starts[number], self._starts[number + 1])]
        for size in sorted({size for size in self._sizes if 0 < size < len(frame)}):
            number = self._numbers.get(mark_part(frame.iloc[:size])[0])
            if number is not None:
                return [slice(self._starts[number], self._starts[number + 1]), *self.rows(frame.iloc[size:])]
        raise InvalidDataError(
            f"A table must stay as it was when it was clustered. Got {len(frame)} other rows. Write it, and cluster "
            "what was written; or use assign_clusters(table, model)."
        )


def place_part(frame: Any, stored: list[Any], names: list[tuple[str, Sequence[int] | None]], known: Known) -> Any:
    """What was found for the rows of one partition, beside its index."""
    rows = known.rows(frame)
    empty = [np.empty((0, *values.shape[1:]), values.dtype) for values in stored]
    blocks = [
        np.concatenate([nothing, *(np.asarray(values[some]) for some in rows)])
        for values, nothing in zip(stored, empty, strict=True)
    ]
    return side_by_side(frame.index, blocks, names)


def map_frame(frame: Any, function: Callable[[FloatArray], Any], name: str, clusters: Sequence[int] | None) -> Any:
    """Values of a function of the rows of a pandas DataFrame, with its index."""
    return beside(frame.index, function(block_of(frame)), name, clusters)


def in_parts(values: da.Array, sizes: tuple[int, ...] | None) -> list[Any]:
    """Tasks for consecutive parts of lazy values, as many rows in each as `sizes` tells (its chunks if None)."""
    if sizes is None:
        return list(values.to_delayed().ravel())
    if values.ndim > 1:
        values = values.rechunk({1: -1})
    filled = iter(values.rechunk({0: tuple(filter(None, sizes))}).to_delayed().ravel())
    nothing = np.empty((0, *values.shape[1:]), values.dtype)
    return [next(filled) if size else nothing for size in sizes]


def side_by_side(index: Any, blocks: list[Any], names: list[tuple[str, Sequence[int] | None]]) -> Any:
    """Arrays of the rows of one index as columns of a DataFrame; one array (m,) alone as a Series."""
    import pandas as pd

    parts = [beside(index, block, *name) for block, name in zip(blocks, names, strict=True)]
    return parts[0] if len(parts) == 1 else pd.concat(parts, axis=1)


def beside(index: Any, values: Any, name: str, clusters: Sequence[int] | None = None) -> Any:
    """Values of the rows of an index: (m,) as a Series, (m, clusters) as a DataFrame."""
    import pandas as pd

    if clusters is None:
        return pd.Series(values, index=index, name=name)
    return pd.DataFrame(values, index=index, columns=[MEMBERSHIP.format(number) for number in clusters])


def frame_of(found: Clustering, clusters: Sequence[int], data: Data | None, *, memberships: bool = True) -> Any:
    """All that was found as one table: with the index of `data` if these are one, else row numbers."""
    names = [(CLUSTER, None), (CONFIDENCE, None), *([("", clusters)] if memberships else [])]
    arrays = [found.labels, found.confidence, *([found.memberships] if memberships else [])]
    form = None if data is None else data.form
    if isinstance(form, Table):
        return side_by_side(form.index, list(dask.compute(*arrays)), names)
    if isinstance(form, LazyTable):
        return form.aligned(arrays, names, None if data is None else data.sizes)
    if any(np.isnan(size) for size in found.labels.shape):
        return LazyTable(_unknown_index(found.labels)).aligned(arrays, names, None)
    return LazyTable(_row_numbers(found.labels.chunks[0])).aligned(arrays, names, None)


def _row_numbers(sizes: tuple[int, ...]) -> Any:
    """A lazy table of row numbers, in partitions of these sizes."""
    import dask.dataframe as dd
    import pandas as pd

    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    return dd.from_map(
        numbered, starts, sizes, meta=pd.DataFrame(index=pd.RangeIndex(0, name="row")),
        divisions=(*starts, int(sum(sizes)) - 1),
    )  # fmt: skip


def numbered(start: int, size: int) -> Any:
    """Rows without columns, by their numbers."""
    import pandas as pd

    return pd.DataFrame(index=pd.RangeIndex(start, start + size, name="row"))


def _unknown_index(values: da.Array) -> Any:
    """A table that counts from 0 in every chunk, of which nobody knows the sizes."""
    import dask.dataframe as dd

    return dd.from_dask_array(values).to_frame()
