"""Some rows of the caller's data, by their numbers, in the caller's own form."""

from __future__ import annotations

from typing import Any

import dask
import numpy as np

from cns_dask.array_types import IntArray
from cns_dask.inputs.anndatas import is_annotated
from cns_dask.inputs.forms import Data
from cns_dask.inputs.table_forms import LazyTable, Table, partitions
from cns_dask.inputs.tables import frame_at, is_table, joined_frames
from cns_dask.inputs.xarrays import LabeledForm, is_labeled, labeled_rows


def take_rows(source: Any, data: Data, numbers: IntArray) -> Any:
    """Rows of a source that is opened as `data`, in the order of their numbers as given.

    Tables keep their index and all columns, AnnData its annotations, xarray objects their coordinates; rows of other
    sources are NumPy arrays of the features.
    """
    if is_annotated(source):
        return source[numbers]
    if is_labeled(source) and isinstance(data.form, LabeledForm):
        return labeled_rows(source, data.form, numbers)
    if isinstance(data.form, LazyTable):
        return _rows_of_partitions(data, numbers)
    if is_table(source):
        return source.iloc[numbers]
    ordered, position = np.unique(numbers, return_inverse=True)
    where = {"scheduler": "threads"} if data.in_memory else {}
    values = np.asarray(data.X[ordered].compute(**where))[position]
    return frame_at(data.form.index[numbers], values, data.names) if isinstance(data.form, Table) else values


def _rows_of_partitions(data: Data, numbers: IntArray) -> Any:
    """Rows of a lazy table: only the partitions that hold some are read."""
    form, sizes = data.form, data.sizes
    assert isinstance(form, LazyTable)
    assert sizes is not None
    ends = np.cumsum(sizes)
    ordered, position = np.unique(numbers, return_inverse=True)
    of_partition = np.searchsorted(ends, ordered, side="right")
    parts, first = partitions(form.table), ends - sizes
    some = [dask.delayed(rows_at)(parts[at], ordered[of_partition == at] - first[at]) for at in np.unique(of_partition)]
    return joined_frames(dask.compute(*some), form.table._meta).iloc[position]


def rows_at(frame: Any, numbers: IntArray) -> Any:
    """Rows of a pandas DataFrame."""
    return frame.iloc[numbers]
