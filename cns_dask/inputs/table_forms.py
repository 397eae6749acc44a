"""Answers for tables: beside their index, and lazy ones partition by partition.

A lazy table keeps its partitions: the answers for the rows of one become one partition with the same index, and nothing
moves between partitions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.errors import CNSError, InvalidDataError, one_line
from cns_dask.inputs.forms import Data

CLUSTER, CONFIDENCE, MEMBERSHIP = "cluster", "confidence", "membership_{}"  # names of columns


def partitions(table: Any) -> list[Any]:
    """A task for every partition; of those that read files, for the needed columns only.

    Not by `to_delayed()` as it is: that optimizes, and small partitions of Parquet files are then read together. Then
    there would be fewer parts, and of an index alone (which is smaller) other parts than of its table.
    """
    return list(table.simplify().to_delayed(optimize_graph=False))


def block_of(frame: Any) -> FloatArray:
    """The values of a pandas DataFrame; what is missing is NaN, whatever its type calls it.

    Examples
    --------
    >>> import pandas as pd
    >>> block_of(pd.DataFrame({"a": pd.array([1, None], dtype="Int64"), "b": [True, False]}))
    array([[ 1.,  1.],
           [nan,  0.]])
    """
    try:
        return np.asarray(frame.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError) as error:
        raise InvalidDataError(
            f"A part of the table holds other values than the numbers that it declares ({one_line(error)})."
        ) from error


@dataclass(frozen=True)
class Table:
    """The form of a pandas DataFrame: Series and DataFrames with its index."""

    index: Any

    def wrap(self, values: Any, name: str, clusters: Sequence[int] | None, _: Any) -> Any:
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
    digests: tuple[str, ...] = ()  # of the partitions, once they are counted

    def mapped(self, function: Callable[[FloatArray], Any], name: str, clusters: Sequence[int] | None) -> Any:
        """The values of `function` of the rows of each partition."""
        none = beside(self.table._meta.index, function(np.empty((0, len(self.features)))), name, clusters)
        return self.table[list(self.features)].map_partitions(map_frame, function, name, clusters, meta=none)

    def counted(self) -> tuple[LazyTable, tuple[int, ...]]:
        """The form with digests by which partitions are recognised, and the number of rows in each."""
        parts = [dask.delayed(digest_partition)(part) for part in partitions(self.table[list(self.features)])]
        try:
            digests, sizes = zip(*dask.compute(*parts), strict=True)
        except (AttributeError, KeyError, ValueError) as error:
            if isinstance(error, CNSError):
                raise
            raise InvalidDataError(f"A part of the table is not as it declares ({one_line(error)}).") from error
        return replace(self, digests=digests), sizes

    def beside_index(
        self, stored: list[Any], names: list[tuple[str, Sequence[int] | None]], sizes: tuple[int, ...]
    ) -> Any:
        """Stored arrays of all rows, side by side, beside the index of the table."""
        none = [np.empty((0, *values.shape[1:]), values.dtype) for values in stored]
        meta = side_by_side(self.table._meta.index, none, names)
        table = self.table[list(self.features)]
        return table.map_partitions(partition_of_stored, stored, names, PartitionIndex(self.digests, sizes), meta=meta)

    def wrap(self, values: Any, name: str, clusters: Sequence[int] | None, sizes: tuple[int, ...] | None) -> Any:
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


def digest_partition(frame: Any) -> tuple[str, int]:
    """A digest of the values and the index of a pandas DataFrame, and its length."""
    from pandas.util import hash_pandas_object

    hashes = hash_pandas_object(frame, index=True).to_numpy()
    return hashlib.blake2b(hashes.tobytes(), digest_size=16).hexdigest(), len(frame)


class PartitionIndex:
    """Partitions by digests of their content.

    Not by their numbers: Dask numbers partitions anew where only some of them are asked for, and it may read several
    small files as one.
    """

    def __init__(self, digests: tuple[str, ...], sizes: tuple[int, ...]) -> None:
        self._sizes, self._starts = sizes, np.cumsum([0, *sizes]).tolist()
        self._numbers: dict[str, int] = {}
        for number, digest in enumerate(digests):
            self._numbers.setdefault(digest, number)

    def rows(self, frame: Any) -> list[slice]:
        """The rows of a frame that is one partition, or several of them."""
        if not len(frame):
            return []
        number = self._numbers.get(digest_partition(frame)[0])
        if number is not None:
            return [slice(self._starts[number], self._starts[number + 1])]
        for size in sorted({size for size in self._sizes if 0 < size < len(frame)}):
            number = self._numbers.get(digest_partition(frame.iloc[:size])[0])
            if number is not None:
                return [slice(self._starts[number], self._starts[number + 1]), *self.rows(frame.iloc[size:])]
        raise InvalidDataError(
            f"The table has changed since it was clustered: {len(frame)} rows differ. Write it, and cluster what was "
            "written; or use assign_clusters(table, model)."
        )


def partition_of_stored(
    frame: Any, stored: list[Any], names: list[tuple[str, Sequence[int] | None]], index: PartitionIndex
) -> Any:
    """Stored values of the rows of one partition, beside its index."""
    rows = index.rows(frame)
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


def frame_of(answers: Any, clusters: Sequence[int], data: Data | None, *, memberships: bool = True) -> Any:
    """Lazy `labels`, `confidence` and `memberships` as one table: with the index of `data` if these are one, else row
    numbers.
    """
    names = [(CLUSTER, None), (CONFIDENCE, None), *([("", clusters)] if memberships else [])]
    columns = [answers.labels, answers.confidence, *([answers.memberships] if memberships else [])]
    form = None if data is None else data.form
    if isinstance(form, Table):
        return side_by_side(form.index, list(dask.compute(*columns)), names)
    if isinstance(form, LazyTable):
        return form.aligned(columns, names, None if data is None else data.sizes)
    if any(np.isnan(size) for size in answers.labels.shape):
        return LazyTable(_unknown_index(answers.labels)).aligned(columns, names, None)
    return LazyTable(_row_numbers(answers.labels.chunks[0])).aligned(columns, names, None)


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


def nested_clusters(frame: Any, parent: int) -> Any:
    """A table whose clusters lie within one of another fit: "3.0", "3.1", ..., and nothing for rows elsewhere."""
    if hasattr(frame, "map_partitions"):
        return frame.map_partitions(nested_clusters, parent)
    numbers = frame[CLUSTER]
    return frame.assign(**{CLUSTER: (f"{parent}." + numbers.astype(str)).where(numbers >= 0)})
