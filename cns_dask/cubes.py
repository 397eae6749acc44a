"""Labelled arrays of xarray: one dimension is the feature, the others are rows; or variables are. The door to xarray.

What was found goes back to the shape of the rows' dimensions, with their coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.plan import rows_per_chunk
from cns_dask.types import Clustering, Data

NUMERIC = "biuf"  # NumPy's kinds of types that hold plain numbers


def is_cube(source: Any) -> bool:
    """Whether something is a DataArray or Dataset, without importing xarray."""
    return hasattr(source, "dims") and hasattr(source, "coords") and hasattr(source, "sizes")


def read_cube(location: str) -> Any:
    """A Dataset from a Zarr group or a netCDF file, lazily."""
    try:
        import xarray as xr
    except ImportError as error:
        raise InvalidDataError(f"{location} needs xarray. Got none. pip install 'cns_dask[xarray]'.") from error
    try:
        if location.endswith((".nc", ".nc4")):
            return xr.open_dataset(location, chunks={})
        return xr.open_zarr(location, chunks={}, consolidated=False)
    except Exception as error:  # of a dozen packages that read files for it
        raise InvalidDataError(f"xarray must be able to open the data. Got {location} ({error}).") from error


def open_cube(cube: Any, columns: Sequence[Any] | None = None, features: str | None = None) -> Data:
    """Open a DataArray or Dataset.

    Parameters
    ----------
    cube
        A DataArray; or a Dataset, whose variables are the features, unless a dimension of its only (chosen) variable
        is.
    columns
        Variables of a Dataset, or labels of the feature dimension of a DataArray; all if None.
    features
        The dimension that is the feature. It may be left out for a DataArray of two dimensions: the last.
    """
    array, features = _array(cube, columns, features)
    if array.dtype.kind not in NUMERIC:
        raise InvalidDataError(f"The data must be real numbers. Got {array.name} with values of type {array.dtype}.")
    rows = [name for name in array.dims if name != features]
    array = array.transpose(*rows, features)
    like = array.isel({features: 0}, drop=True) if array.sizes[features] else array
    chunks = array.chunks[:-1] if dask.is_dask_collection(array) else None
    form = Cube(tuple(rows), tuple(array.sizes[name] for name in rows), dict(like.coords), chunks)
    n_features = array.shape[-1]
    if form.lazy:
        X = array.data.rechunk({len(rows): -1}).reshape((-1, n_features))
    else:
        values = array.values.reshape((-1, n_features)) if array.size else np.empty((0, n_features))
        X = da.from_array(values, chunks=(rows_per_chunk(max(1, len(values)), max(1, n_features)), -1), name=False)
    return Data(X, form, in_memory=not form.lazy)


def _array(cube: Any, columns: Sequence[Any] | None, features: str | None) -> tuple[Any, str]:
    """The DataArray to cluster, and its feature dimension."""
    if not hasattr(cube, "data_vars"):
        features = _dimension(cube, features)
        return (cube if columns is None else _selected(cube, features, columns)), features
    names = list(cube.data_vars) if columns is None else list(columns)
    lost = [name for name in names if name not in cube.data_vars]
    if lost or not names:
        raise InvalidSettingError(f"columns must be variables of the data set. Got {lost}; it has {list(cube)}.")
    if features is not None:
        if len(names) > 1:
            raise InvalidSettingError(
                f"A feature dimension needs one variable. Got {names}. Choose it with columns=[...]; or leave the "
                "dimension out: then the variables are the features."
            )
        return cube[names[0]], _dimension(cube[names[0]], features)
    wrong = [f"{name} ({cube[name].dtype})" for name in names if cube[name].dtype.kind not in NUMERIC]
    if wrong:
        raise InvalidDataError(f"Every variable must hold numbers. Got {', '.join(wrong)}. Choose others with columns.")
    shapes = {frozenset(cube[name].dims) for name in names}
    if len(shapes) > 1:
        raise InvalidDataError(
            f"Variables that are features must have the same dimensions. Got "
            f"{', '.join(f'{name} {tuple(cube[name].dims)}' for name in names)}. Choose some with columns=[...]."
        )
    return cube[names].to_dataarray("feature of cns_dask"), "feature of cns_dask"


def _dimension(array: Any, features: str | None) -> str:
    if features is None and array.ndim == 2:
        return str(array.dims[-1])
    if features not in array.dims:
        raise InvalidSettingError(
            f"features must be the dimension that holds the features of a row. Got {features!r}; "
            f"the dimensions are {tuple(array.dims)}."
        )
    return str(features)


def _selected(array: Any, features: str, columns: Sequence[Any]) -> Any:
    try:
        return array.sel({features: list(columns)})
    except (KeyError, IndexError) as error:
        raise InvalidSettingError(f"columns must be labels of {features}. Got others ({error}).") from error


@dataclass(frozen=True)
class Cube:
    """The form of a DataArray or Dataset: DataArrays of the rows' dimensions, lazy in the same chunks if it is lazy."""

    dims: tuple[Any, ...]
    shape: tuple[int, ...]
    coords: dict[Any, Any]
    chunks: tuple[tuple[int, ...], ...] | None

    @property
    def lazy(self) -> bool:
        """Whether answers are lazy."""
        return self.chunks is not None

    def give(self, values: Any, name: str, clusters: Sequence[int] | None, _: Any) -> Any:
        """Values of all rows, in their shape."""
        import xarray as xr

        values = values if self.lazy else values.compute()
        values = values.reshape((*self.shape, *values.shape[1:]))
        if self.chunks is not None:
            values = values.rechunk((*self.chunks, *((size,) for size in values.shape[len(self.chunks) :])))
        coords, dims = dict(self.coords), self.dims
        if clusters is not None:
            coords, dims = {**coords, "cluster": list(clusters)}, (*dims, "cluster")
        return xr.DataArray(values, coords=coords, dims=dims, name=name)


def dataset_of(found: Clustering, clusters: Sequence[int], form: Any, attributes: dict[str, Any]) -> Any:
    """All that was found as a Dataset: in the form of a cube if the rows came as one, else by row."""
    import xarray as xr

    if not isinstance(form, Cube):
        form = Cube(("row",), found.labels.shape, {}, found.labels.chunks)
    arrays = {
        "labels": form.give(found.labels, "labels", None, None),
        "confidence": form.give(found.confidence, "confidence", None, None),
        "memberships": form.give(found.memberships, "memberships", clusters, None),
    }
    return xr.Dataset(arrays, attrs=attributes)
