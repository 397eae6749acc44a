"""A kNN graph that the caller already has, checked and brought into our order: the row itself first, then as listed."""

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import InvalidDataError, InvalidSettingError, InvalidTypeError
from cns_dask.inputs.files import open_path
from cns_dask.neighbors.graph import NeighborGraph, stored_graph
from cns_dask.settings import Settings
from cns_dask.storage.chunks import rows_per_chunk
from cns_dask.storage.layout import Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.store import kind_of, open_store

SHOWN_ROWS = 5


def open_graph(source: Any) -> NeighborGraph:
    """Open a graph. Its values are checked later, when they are read.

    Parameters
    ----------
    source
        A `NeighborGraph`, or the path of a stored one or of a result; an integer array (row, neighbor), in memory,
        lazy, or the path or URL of a Zarr array or `.npy` file; or a SciPy matrix (row, row) whose entries are
        distances, or the path of the `.npz` file of one, as of scikit-learn's `kneighbors_graph` or scanpy's
        `obsp["distances"]`. Neighbours are ordered by distance; whether rows list themselves is no matter.
    """
    if isinstance(source, str | os.PathLike):
        source = _open(os.fspath(source))
    if hasattr(source, "tocsr"):
        return _from_matrix(source.tocsr())
    graph = source if isinstance(source, NeighborGraph) else NeighborGraph(source, None, "given")
    indices = _lazy_lists(graph.indices, "iu")
    distances = None if graph.distances is None else _lazy_lists(graph.distances, "iuf")
    if distances is not None and distances.shape != indices.shape:
        raise InvalidDataError(f"The graph has lists of shape {indices.shape}, but distances of {distances.shape}.")
    return replace(graph, indices=indices, distances=distances)


def with_preprocessing_of(
    graph: NeighborGraph | None, settings: Settings, n_features: int | None, chosen: Collection[str] = ()
) -> Settings:
    """The settings, with those of a graph's preprocessing: rows are treated as those of the graph were.

    Settings that have another value than their default, or are named in `chosen`, are refused where they contradict the
    graph. `n_features` are those of the rows, None if there are none.
    """
    made = None if graph is None else graph.preprocessing
    if made is None:
        return settings
    followed: dict[str, Any] = {"metric": made.metric, "scale": made.scale}
    if _n_axes(settings.max_components, n_features) != _n_axes(made.max_components, n_features):
        followed["max_components"] = made.max_components
    for name, value in followed.items():
        ours = getattr(settings, name)
        is_chosen = name in chosen or ours != Settings.__dataclass_fields__[name].default
        if ours != value and is_chosen:
            raise InvalidSettingError(
                f"The graph was made with {name}={value!r}, and the fit is asked for {name}={ours!r}. Leave {name} "
                "out, to treat the rows as those of the graph were, or make the graph again."
            )
    return replace(settings, **followed)


def _n_axes(max_components: int | None, n_features: int | None) -> int | None:
    """How many axes rows are projected on; None if they are not."""
    is_projected = max_components is not None and n_features is not None and n_features > max_components
    return max_components if is_projected else None


def listed(graph: NeighborGraph, n_neighbors: int, rows_per_block: int) -> NeighborGraph:
    """The first `n_neighbors` of every row, the row itself first; lazily, and checked when computed."""
    indices = graph.indices.rechunk({0: rows_per_block})
    n_rows = indices.shape[0]
    distances = None if graph.distances is None else graph.distances.rechunk({0: rows_per_block})
    lists = zip(
        indices.to_delayed().ravel(),
        [None] * indices.numblocks[0] if distances is None else distances.to_delayed().ravel(),
        np.cumsum([0, *indices.chunks[0][:-1]]).tolist(),
        indices.chunks[0],
        strict=True,
    )
    blocks = [
        (dask.delayed(check_block, nout=2)(block, far, first, n_rows, n_neighbors), size)
        for block, far, first, size in lists
    ]

    def stacked(at: int, dtype: type) -> da.Array:
        return da.concatenate([da.from_delayed(block[at], (size, n_neighbors), dtype) for block, size in blocks])

    return NeighborGraph(
        stacked(0, np.int64), None if distances is None else stacked(1, np.float64), graph.method, graph.recall
    )


def check_block(
    indices: IntArray, distances: FloatArray | None, first_row: int, n_rows: int, n_neighbors: int
) -> tuple[IntArray, FloatArray | None]:
    """Check the lists of some rows, and put the row itself in front of its first `n_neighbors` - 1 others."""
    indices = np.asarray(indices).astype(np.int64)
    rows = first_row + np.arange(len(indices))
    _refuse(((indices < 0) | (indices >= n_rows)).any(axis=1), rows, f"numbers outside 0 to {n_rows - 1}")
    ordered = np.sort(indices, axis=1)
    _refuse((ordered[:, 1:] == ordered[:, :-1]).any(axis=1), rows, "a neighbour twice")
    itself = indices == rows[:, None]
    others = indices.shape[1] - itself.sum(axis=1)
    _refuse(others < n_neighbors - 1, rows, f"fewer than {n_neighbors - 1} neighbours besides the row itself")
    order = np.argsort(itself, axis=1, kind="stable")[:, : n_neighbors - 1]  # the row itself last, the others as listed
    lists = np.insert(np.take_along_axis(indices, order, axis=1), 0, rows, axis=1)
    if distances is None:
        return lists, None
    distances = np.asarray(distances, float)
    _refuse(~(distances >= 0).all(axis=1), rows, "negative distances or NaN")
    return lists, np.insert(np.take_along_axis(distances, order, axis=1), 0, 0.0, axis=1)


def _open(location: str) -> Any:
    if location.endswith(".npz"):
        from scipy.sparse import load_npz

        try:
            return load_npz(location)
        except (OSError, ValueError) as error:
            raise InvalidDataError(f"{location} does not hold a SciPy sparse matrix ({error}).") from error
    if kind_of(Location(location)) in (Kind.GRAPH, Kind.RESULT):
        return stored_graph(open_store(location, Kind.GRAPH, Kind.RESULT))
    return open_path(location)


def _refuse(bad: Any, rows: IntArray, what: str) -> None:
    if bad.any():
        shown = ", ".join(map(str, rows[bad][:SHOWN_ROWS].tolist()))
        more = ", ..." if bad.sum() > SHOWN_ROWS else ""
        raise InvalidDataError(f"The graph has {what} in the lists of {bad.sum()} row(s): {shown}{more}.")


def _lazy_lists(source: Any, kinds: str) -> da.Array:
    """An array (row, neighbor) of numbers of some kinds as a Dask array, whole lists in every chunk."""
    try:
        array = source if isinstance(source, da.Array) else np.asarray(source)
    except (TypeError, ValueError) as error:
        raise InvalidTypeError(f"A graph is an array with two dimensions, row and neighbor ({error}).") from error
    if array.ndim != 2 or array.dtype.kind not in kinds:
        raise InvalidTypeError(
            f"A graph is an array of integers with two dimensions, row and neighbor; this one has {array.ndim} "
            f"dimension(s) of type {array.dtype}. Give a matrix of distances as a SciPy sparse matrix."
        )
    if 0 in array.shape:
        raise InvalidDataError(f"The graph is empty: it has {array.shape[0]} row(s) of {array.shape[1]} neighbour(s).")
    if isinstance(array, da.Array):
        return array.rechunk({1: -1})
    return da.from_array(array, chunks=(rows_per_chunk(*array.shape), -1), name=False)


def _from_matrix(matrix: Any) -> NeighborGraph:
    """Lists from the stored entries of a CSR matrix, by distance; as long as the shortest."""
    n_rows = matrix.shape[0]
    if matrix.shape[1] != n_rows:
        raise InvalidDataError(f"The matrix of a graph must be square, not of shape {matrix.shape}.")
    rows = np.repeat(np.arange(n_rows), np.diff(matrix.indptr))
    kept = matrix.indices != rows
    rows, columns, values = rows[kept], matrix.indices[kept], matrix.data[kept]
    order = np.lexsort((np.arange(len(rows)), values, rows))  # equal distances: as stored
    counts = np.bincount(rows, minlength=n_rows)
    width = int(counts.min()) if n_rows else 0
    if width == 0:
        _refuse(counts == 0, np.arange(n_rows), "no neighbour")
    positions = order[(np.cumsum(counts) - counts)[:, None] + np.arange(width)]
    chunks = (rows_per_chunk(n_rows, width), -1)
    return NeighborGraph(
        da.from_array(columns[positions].astype(np.int64), chunks=chunks, name=False),
        da.from_array(values[positions].astype(float), chunks=chunks, name=False),
        "given",
    )
