"""Arrays: NumPy, masked, Dask, Zarr and SciPy's sparse ones."""

import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.delayed import Delayed

from cns_dask.errors import InvalidDataError, InvalidSettingError, InvalidTypeError, one_line
from cns_dask.inputs.forms import NUMBER_KINDS, Adapter, ArrayForm, Data, ReadOptions
from cns_dask.storage.arrays import is_in_memory, is_zarr, open_input_array
from cns_dask.storage.chunks import row_slices, rows_per_chunk


def choose_columns(data: Data, options: ReadOptions) -> Data:
    """Some columns of an array, by position.

    Names come from a fit of a table; an array that has as many columns as these has just them.
    """
    columns, width = options.columns, data.X.shape[1] if data.X.ndim == 2 else 0
    if columns is None:
        return data
    if "columns" in options.inherited and options.names_columns:
        if width == len(columns):
            return data
        raise InvalidDataError(
            f"The rows have {width} features, and the fit has {len(columns)}, in this order: {list(columns)}."
        )
    try:
        positions = [_position(column) for column in columns]
        sparse = None if data.sparse is None else data.sparse[:, positions]
        labels = tuple(data.labels[at] if data.labels else f"feature {at % width}" for at in positions)
        return replace(data, X=data.X[:, positions], sparse=sparse, labels=labels)
    except (TypeError, ValueError, IndexError) as error:
        raise InvalidSettingError(
            f"columns of an array must be positions from 0 to {width - 1}, not {list(columns)}."
        ) from error


def _position(column: Any) -> int:
    """A position from Python, where it is an integer, or from the command line, where it is text."""
    return int(column) if isinstance(column, str) else operator.index(column)


def open_matrix(source: Any, min_rows: int = 0) -> Data:
    """Open an array of any kind."""
    if isinstance(source, da.Array):
        return from_dask(checked_chunks(source))
    if is_zarr(source, "Array"):
        return open_matrix(source[...], min_rows) if is_in_memory(source) else from_dask(open_input_array(source))
    if hasattr(source, "tocsr"):
        return from_sparse(source)
    return from_memory(source, min_rows)


def from_sparse(matrix: Any) -> Data:
    """A sparse matrix in memory: its parts travel as they are, and are filled where they are used."""
    rows = matrix.tocsr()
    refuse_kind(rows.dtype)
    if min(rows.shape) == 0 or rows.ndim != 2:
        return Data(da.empty(rows.shape, dtype=rows.dtype), ArrayForm(is_lazy=False))
    parts = row_slices(rows.shape[0], rows_per_chunk(*rows.shape))
    blocks = [
        da.from_delayed(dask.delayed(rows[part]), (part.stop - part.start, rows.shape[1]), meta=rows[:0])
        for part in parts
    ]
    return _filled(da.concatenate(blocks), ArrayForm(is_lazy=False))


def _filled(sparse: da.Array, form: ArrayForm) -> Data:
    X = sparse.map_blocks(filled_block, dtype=np.float64, meta=np.empty((0, 0)))
    return Data(X, form, sparse=sparse)


def filled_block(block: Any) -> np.ndarray[Any, Any]:
    """A sparse block as an array of float64."""
    return np.asarray(block.toarray(), np.float64)


def checked_chunks(array: da.Array) -> da.Array:
    """The same array, of which every chunk is checked when it is computed: its caller may have declared others."""
    return array.map_blocks(check_chunk, dtype=array.dtype, meta=array._meta, token="check")


def check_chunk(chunk: Any, block_info: Any = None) -> Any:
    """The chunk, if it holds numbers and has the shape that is declared, or was counted."""
    kind = getattr(chunk, "dtype", type(chunk))
    if getattr(kind, "kind", "") not in tuple(NUMBER_KINDS):
        raise InvalidDataError(f"A chunk of the data is of type {kind}: it must be an array of numbers, as declared.")
    expected = block_info[None]["chunk-shape"]
    if len(chunk.shape) != len(expected) or any(
        size != wanted and not np.isnan(wanted) for size, wanted in zip(chunk.shape, expected, strict=True)
    ):
        raise InvalidDataError(
            f"A chunk of the data has shape {chunk.shape} instead of {expected}. Chunks must be as declared, and the "
            "data must not change between passes: give random numbers a seed, or store the data first."
        )
    return chunk


def from_dask(array: da.Array) -> Data:
    """A Dask array of NumPy, masked or sparse blocks."""
    if hasattr(array._meta, "tocsr") and array.ndim == 2:
        refuse_kind(array.dtype)
        n_rows = 1 if np.isnan(array.shape[0]) else int(array.shape[0])
        step = rows_per_chunk(max(1, n_rows), max(1, array.shape[1]))
        sizes = {0: tuple(_split(array.chunks[0], step)), 1: -1}
        return _filled(array.rechunk(sizes), ArrayForm(is_lazy=True))
    return Data(array, ArrayForm(is_lazy=True))


def _split(sizes: Sequence[int], step: int) -> list[int]:
    """Chunks cut into pieces that may be filled: of at most `step` rows."""
    pieces: list[int] = []
    for size in sizes:
        n_whole, rest = (0, size) if np.isnan(size) else divmod(size, step)
        pieces += [step] * n_whole + ([rest] if rest or not n_whole else [])
    return pieces


def from_memory(source: Any, min_rows: int) -> Data:
    """An array in memory, or what converts to one."""
    from sklearn.utils import check_array

    if isinstance(source, np.ma.MaskedArray):
        source = unmasked(source)  # scikit-learn would drop the mask
    try:
        values = check_array(source, dtype="numeric", ensure_min_samples=min_rows, ensure_all_finite=False)
    except TypeError as error:
        raise InvalidTypeError(one_line(error)) from error
    except ValueError as error:
        raise InvalidDataError(one_line(error)) from error
    X = da.from_array(values, chunks=(rows_per_chunk(*values.shape), -1), name=False)
    return Data(X, ArrayForm(is_lazy=False), in_memory=True)


def unmasked(block: Any) -> Any:
    """Masked values are missing ones."""
    if block.dtype.kind not in NUMBER_KINDS:
        return np.ma.getdata(block)
    return np.ma.filled(block.astype(np.float64), np.nan) if isinstance(block, np.ma.MaskedArray) else block


def refuse_kind(dtype: Any) -> None:
    """Refuse values that are not real numbers."""
    if dtype.kind not in NUMBER_KINDS:
        raise InvalidDataError(f"The data are not real numbers, but of type {dtype}.")


def _refuse_lazy(source: Any, _: ReadOptions) -> Data:
    raise InvalidDataError(
        f"Lazy data must be a Dask array or DataFrame, not {type(source).__name__.removesuffix('Leaf')}. Convert it "
        "first, for example with da.from_delayed or to_dataframe."
    )


def _open_group(group: Any, options: ReadOptions) -> Data:
    if options.component is None or options.component not in group:
        raise InvalidSettingError(
            f"component must name an array of the Zarr group, which has {list(group)}. Got {options.component!r}."
        )
    return choose_columns(open_matrix(group[options.component], options.min_rows), options)


def _open_array(source: Any, options: ReadOptions) -> Data:
    return choose_columns(open_matrix(source, options.min_rows), options)


def _is_other_lazy(source: Any, _: ReadOptions) -> bool:
    return dask.is_dask_collection(source) and not isinstance(source, da.Array) and not hasattr(source, "tocsr")


#: A Delayed seems to have any attribute, so it is refused before anything else is looked at.
DELAYED = Adapter("a Delayed", lambda source, _: isinstance(source, Delayed), _refuse_lazy)
ARRAYS = (
    Adapter("a Zarr group", lambda source, _: is_zarr(source, "Group"), _open_group, ("columns", "component")),
    Adapter("a lazy collection", _is_other_lazy, _refuse_lazy),
    Adapter("an array", lambda *_: True, _open_array),
)
