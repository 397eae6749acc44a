"""Rows in the plane: some of them, drawn by row number, at coordinates of the caller or on principal axes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.inputs.sampling import Draw
from cns_dask.results.explaining import clustering_of
from cns_dask.results.fit_rows import same_features, same_rows
from cns_dask.results.profile import feature_names
from cns_dask.settings import check_integer
from cns_dask.storage.chunks import row_slices

if TYPE_CHECKING:
    from cns_dask.results.result import Result

MAP_ROWS = 10_000
ROWS_AT_ONCE = 2**20  # whose hashes are in memory


@dataclass(frozen=True)
class MapPoints:
    """Some rows in the plane."""

    rows: IntArray  # their numbers (m,)
    points: FloatArray  # (m, 2)
    labels: IntArray
    confidence: FloatArray
    names: tuple[str, str]  # of the two axes


def map_points(
    result: Result, X: Any, coordinates: Any, n_clusters: int | None, n_rows: int, options: dict[str, Any]
) -> MapPoints:
    """About `n_rows` rows of a fit in the plane: see `Plots.map`."""
    n_rows = check_integer("n_rows", n_rows, 1, 10**7)
    data = None if X is None else same_features(result, X, options)[0]
    source, names, is_here = _source(result, X, data, coordinates, options)
    clustering, _ = clustering_of(result, n_clusters, data)
    labels, confidence = clustering.labels, clustering.confidence
    positions = drawn_numbers(int(source.shape[0]), n_rows)
    rows = positions if source.shape[0] == result.n_rows else result.rows[positions].compute()
    where = {"scheduler": "threads"} if is_here else {}
    values = source[positions].compute(**where)
    labels, confidence = dask.compute(labels[rows], confidence[rows])
    if names is None:
        values, names = principal_plane(np.asarray(values, np.float64))
    kept = np.isfinite(values).all(axis=1)
    return MapPoints(rows[kept], values[kept], labels[kept], confidence[kept], names)


def _source(
    result: Result, X: Any, data: Any, coordinates: Any, options: dict[str, Any]
) -> tuple[da.Array, tuple[str, str] | None, bool]:
    """Where points come from, the names of the axes, if these are not to be found yet, and if they are in memory."""
    if coordinates is not None:
        if isinstance(coordinates, list | tuple) and all(isinstance(name, str) for name in coordinates):
            if X is None:
                raise InvalidSettingError("Coordinates that are names of columns need the table X that has them.")
            given, names = same_features(result, X, {**options, "columns": list(coordinates)})
        else:
            given = same_rows_of(result, coordinates)
            names = feature_names(given.names or given.labels, given.X.shape[1])
        if given.X.shape[1] != 2:
            raise InvalidDataError(f"A map needs two coordinates of every row. Got {given.X.shape[1]}.")
        return given.X, (names[0], names[1]), given.in_memory
    if data is not None:
        return data.X, None, data.in_memory
    if result.points is None:
        raise InvalidDataError("Only a graph was clustered, so a map needs coordinates, or rows X.")
    return result.points, None, False


def same_rows_of(result: Result, coordinates: Any) -> Any:
    """Coordinates of all rows, opened; the options of the fit do not matter to them."""
    from cns_dask.inputs.data import open_data

    return same_rows(result, open_data(coordinates, min_rows=1), {})


def drawn_numbers(n_rows: int, wanted: int) -> IntArray:
    """About `wanted` of the numbers of so many rows, all if there are no more; the same ones every time.

    Examples
    --------
    >>> drawn_numbers(1000, 5), drawn_numbers(3, 5)
    (array([254, 366, 410, 503, 566, 821]), array([0, 1, 2]))
    """
    if n_rows <= wanted:
        return np.arange(n_rows)
    draw = Draw(0, 2**64 * wanted // n_rows, seed=0)
    parts = row_slices(n_rows, ROWS_AT_ONCE)
    return np.concatenate([part.start + np.flatnonzero(draw.marks(part.start, part.stop)) for part in parts])


def principal_plane(rows: FloatArray) -> tuple[FloatArray, tuple[str, str]]:
    """Rows on their first two principal axes, after scaling every feature, and the axes' names.

    Rows with missing values stay missing. The sign of an axis is such that its largest weight is positive.
    """
    whole = np.asarray(np.isfinite(rows).all(axis=1))
    if not whole.any():
        return np.full((len(rows), 2), np.nan), ("principal axis 1", "principal axis 2")
    scale = rows[whole].std(axis=0)
    scaled = (rows - rows[whole].mean(axis=0)) / np.where(scale > 0, scale, 1)
    _, lengths, axes = np.linalg.svd(scaled[whole], full_matrices=False)
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    points = np.zeros((len(rows), 2))
    points[:, : min(2, len(axes))] = np.where(whole[:, None], scaled, np.nan) @ axes[:2].T
    shares = np.zeros(2)
    shares[: min(2, len(lengths))] = (lengths**2 / max((lengths**2).sum(), 1e-300))[:2]
    first, second = (f"principal axis {at + 1} ({100 * share:.0f} %)" for at, share in enumerate(shares))
    return points, (first, second)
