"""Where rows are drawn on the map: on principal axes, by a layout of the clusters, or where the caller says."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.inputs.data import open_data
from cns_dask.inputs.missing import CLUSTERED, row_codes
from cns_dask.inputs.preprocess import Transform, transform_rows
from cns_dask.results.overlap import shares_block
from cns_dask.results.report.layout import place_clusters, place_rows
from cns_dask.results.result import Result
from cns_dask.smoothing.memberships import Clustering

AXES_ROWS = 20_000  # from which principal axes are found
PRINCIPAL, GRAPH = "principal", "graph"


@dataclass(frozen=True)
class Plane:
    """Rows in two dimensions, lazily, with what is known about each. Rows that cannot be drawn are NaN."""

    xy: da.Array  # (m, 2)
    labels: da.Array  # (m,), in the same chunks
    confidence: da.Array
    rows: da.Array | None  # their row numbers; None if they are 0, 1, ...
    words: str  # what the axes are
    axes: tuple[str, str] | None = None  # names of the axes, where they have some
    is_square: bool = True  # whether both axes have one unit

    def of(self, values: da.Array, result: Result) -> da.Array:
        """Values of all rows (n,), of those that are drawn."""
        return (values if self.rows is None else of_clustered(values, result)).rechunk(self.labels.chunks)


def plane_of(result: Result, shown: Clustering, affinity: FloatArray, data: Any, coordinates: Any) -> Plane:
    """The plane that the caller asked for; None: principal axes of the rows where these are known, else a layout.

    Parameters
    ----------
    result, shown
        A result, and the clustering of its rows that is shown.
    affinity
        How much clusters have to do with one another (K, K), for the layout.
    data
        The rows as the caller has them (`Data`), or None.
    coordinates
        As of `write_report`.
    """
    if coordinates is None:
        coordinates = GRAPH if result.points is None else PRINCIPAL
    if isinstance(coordinates, str) and coordinates == GRAPH:
        return graph_plane(shown, affinity)
    if isinstance(coordinates, str) and coordinates == PRINCIPAL:
        if result.points is None:
            raise InvalidSettingError(
                "There are no principal axes of a graph without rows. Use coordinates='graph', or give some."
            )
        return principal_plane(result, shown, data)
    return given_plane(result, shown, data, coordinates)


def principal_plane(result: Result, shown: Clustering, data: Any = None) -> Plane:
    """The first two principal axes of the rows as the neighbours saw them; two features as they are.

    After the fit of a sample only its rows are stored: all are drawn if `data` has them.
    """
    points, transform = result.points, result.transform
    assert points is not None
    if result.sample is not None and data is not None and data.X.shape[1] == transform.n_features:
        labels, confidence, rows = shown.labels, shown.confidence, None
        raw = data.X.rechunk({0: labels.chunks[0]})
        points = raw.map_blocks(
            transform_known, transform, chunks=(raw.chunks[0], (points.shape[1],)), dtype=np.float64, token="points"
        )
    elif result.n_clustered < result.n_rows:
        labels, confidence = (
            of_clustered(values, result).rechunk(points.chunks[0]) for values in (shown.labels, shown.confidence)
        )
        rows = result.rows.rechunk(points.chunks[0])
    else:
        labels, confidence = (values.rechunk(points.chunks[0]) for values in (shown.labels, shown.confidence))
        rows = None
    plane = Plane(points, labels, confidence, rows, "")
    if points.shape[1] <= 2 and transform.components is None and not transform.normalize:
        return _features(plane, result, transform)
    if points.shape[1] == 2:
        return replace(plane, words="both axes as the neighbours saw them")
    every = slice(None, None, -(-result.n_clustered // AXES_ROWS))
    assert result.points is not None
    center, axes = principal_axes(result.points[every].compute())
    xy = points.map_blocks(project, center, axes, chunks=(points.chunks[0], (2,)), dtype=np.float64, token="plane")
    return replace(plane, xy=xy, words=f"the first two principal axes of {points.shape[1]} scaled features")


def _features(plane: Plane, result: Result, transform: Transform) -> Plane:
    """One or two features in their own units."""
    names = result.columns or result.feature_names
    known = [str(names[at]) if names and at < len(names) else f"feature {at}" for at in transform.kept.tolist()]
    width = len(known)
    xy = plane.xy.map_blocks(unscaled, transform.scale, transform.center, dtype=np.float64, token="plane")
    if width == 1:
        xy = da.concatenate([xy, da.zeros_like(xy)], axis=1).rechunk({1: 2})
    words = "the feature, in its own unit" if width == 1 else "both features, in their own units"
    return replace(plane, xy=xy, words=words, axes=(known[0], known[1] if width == 2 else ""), is_square=False)


def unscaled(block: FloatArray, scale: FloatArray, center: FloatArray) -> FloatArray:
    """Rows in the units of the features."""
    return np.asarray(block * scale + center)


def transform_known(block: FloatArray, transform: Transform) -> FloatArray:
    """Transformed rows; NaN for those with missing or infinite values."""
    width = transform.kept.size if transform.components is None else transform.components.shape[1]
    points, known = np.full((len(block), width), np.nan), row_codes(block) == CLUSTERED
    points[known] = transform_rows(block[known], transform, np.flatnonzero(known))
    return points


def principal_axes(rows: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and first two principal axes (d, 2) of some rows; the largest part of each axis is positive.

    Examples
    --------
    >>> center, axes = principal_axes(np.array([[0.0, 0, 0], [4, 0, 0], [8, 1, 0]]))
    >>> bool(axes[0, 0] > 0.9)
    True
    """
    center = rows.mean(axis=0)
    axes = np.linalg.svd(rows - center, full_matrices=False)[2][:2]
    if len(axes) < 2:
        axes = np.concatenate([axes, np.zeros((2 - len(axes), axes.shape[1]))])
    largest = np.take_along_axis(axes, np.abs(axes).argmax(axis=1)[:, None], axis=1)
    return center, (axes * np.where(largest < 0, -1.0, 1.0)).T


def project(block: FloatArray, center: FloatArray, axes: FloatArray) -> FloatArray:
    """Rows on two axes."""
    return np.asarray((block - center) @ axes)


def graph_plane(shown: Clustering, affinity: FloatArray) -> Plane:
    """Clusters by a layout of how they overlap; rows between the clusters that they belong to."""
    nodes, radii = place_clusters(affinity)
    memberships = shown.memberships.rechunk({1: -1})
    labels, confidence = (values.rechunk(memberships.chunks[0]) for values in (shown.labels, shown.confidence))
    xy = da.map_blocks(
        place_block,
        memberships,
        confidence[:, None],
        nodes,
        radii,
        chunks=(memberships.chunks[0], (2,)),
        dtype=np.float64,
        token="plane",
    )
    words = "a layout of the clusters: near where they overlap; rows lie between the clusters that they belong to"
    return Plane(xy, labels, confidence, None, words)


def place_block(
    memberships: FloatArray, confidence: FloatArray, nodes: FloatArray, radii: FloatArray, block_info: Any = None
) -> FloatArray:
    """Some rows of the layout; those that reach no cluster are in the middle of all."""
    first = block_info[0]["array-location"][0][0] if block_info else 0
    shares = shares_block(memberships, confidence[:, 0])
    lost = np.isnan(shares).any(axis=1) & ~np.isnan(memberships).any(axis=1)
    shares[lost] = 1 / len(nodes)
    return place_rows(shares, nodes, radii, first)


def given_plane(result: Result, shown: Clustering, data: Any, coordinates: Any) -> Plane:
    """Coordinates that the caller gives."""
    given, words = _open_given(data, coordinates)
    if given.X.shape != (result.n_rows, 2):
        n_rows, n_columns = given.X.shape
        raise InvalidDataError(
            f"The coordinates have {n_rows} rows and {n_columns} columns, but {result.n_rows} rows and 2 columns are "
            "needed. Give two columns for all rows of the fit."
        )
    xy = given.X.rechunk({0: shown.labels.chunks[0]})
    names = given.names if given.names and len(given.names) == 2 else None
    return Plane(xy, shown.labels, shown.confidence, None, words, names and (str(names[0]), str(names[1])))


def _open_given(data: Any, coordinates: Any) -> tuple[Any, str]:
    """Coordinates as rows of two features, and what they are."""
    is_text = isinstance(coordinates, str)
    if is_text and "," in coordinates:
        coordinates = [name.strip() for name in coordinates.split(",")]
    is_names = isinstance(coordinates, list | tuple) and all(isinstance(name, str) for name in coordinates)
    if is_names or (is_text and coordinates.startswith(("obsm/", "layers/"))):
        if data is None:
            raise InvalidSettingError(f"coordinates={coordinates!r} are part of the data. Give the data too.")
        option: dict[str, Any] = {"columns": coordinates} if is_names else {"component": coordinates}
        words = " and ".join(coordinates) if is_names else coordinates
        return open_data(data, **option), words
    is_path = isinstance(coordinates, str | os.PathLike)
    return open_data(coordinates), os.fspath(coordinates) if is_path else "coordinates as given"


def of_clustered(values: da.Array, result: Result) -> da.Array:
    """Values of all rows (n,), of those that were clustered."""
    codes = result.stored("codes").lazy()
    values = values.rechunk(codes.chunks)
    counts = tuple(map(int, dask.compute(*((block == CLUSTERED).sum() for block in codes.blocks))))
    kept: Callable[..., Any] = keep_clustered
    chosen = da.map_blocks(kept, values, codes, chunks=(counts,), dtype=values.dtype, token="clustered")
    return chosen.rechunk((tuple(filter(None, counts)),))


def keep_clustered(values: Any, codes: IntArray) -> Any:
    """Values of the rows of a block that were clustered."""
    return values[codes == CLUSTERED]
