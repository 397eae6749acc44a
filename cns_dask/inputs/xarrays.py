"""Labelled arrays of xarray: one dimension is the feature, the others are rows; or variables are. The door to xarray.

Answers go back to the shape of the rows' dimensions, with their coordinates.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.errors import CNSError, InvalidDataError, InvalidSettingError, one_line
from cns_dask.inputs.arrays import checked_chunks
from cns_dask.inputs.forms import NUMBER_KINDS, Adapter, Data
from cns_dask.storage.arrays import is_array_at
from cns_dask.storage.chunks import rows_per_chunk


def is_labeled(source: Any) -> bool:
    """Whether something is a DataArray or Dataset, without importing xarray."""
    return hasattr(source, "dims") and hasattr(source, "coords") and hasattr(source, "sizes")


def read_dataset(location: str) -> Any:
    """A Dataset from a Zarr group or a netCDF file, lazily."""
    try:
        import xarray as xr
    except ImportError as error:
        raise InvalidDataError(f"{location} needs xarray: pip install 'cns_dask[xarray]'.") from error
    try:
        if location.endswith((".nc", ".nc4")):
            return xr.open_dataset(location, chunks={})
        return xr.open_zarr(location, chunks={}, consolidated=False)
    except Exception as error:  # of a dozen packages that read files for it
        raise InvalidDataError(f"xarray cannot open {location} ({one_line(error)}).") from error


def open_labeled(labeled: Any, columns: Sequence[Any] | None = None, features: str | None = None) -> Data:
    """Open a DataArray or Dataset.

    Parameters
    ----------
    labeled
        A DataArray; or a Dataset, whose variables are the features, unless a dimension of its only (chosen) variable
        is.
    columns
        Variables of a Dataset, or labels of the feature dimension of a DataArray; all if None.
    features
        The dimension that is the feature. It may be left out for a DataArray of two dimensions: the last.
    """
    array, features = _array(labeled, columns, features)
    if array.dtype.kind not in NUMBER_KINDS:
        raise InvalidDataError(f"The values of {array.name} are not real numbers, but of type {array.dtype}.")
    rows = [name for name in array.dims if name != features]
    array = array.transpose(*rows, features)
    first = array.isel({features: 0}, drop=True) if array.sizes[features] else array
    chunks = array.chunks[:-1] if dask.is_dask_collection(array) else None
    form = LabeledForm(tuple(rows), tuple(array.sizes[name] for name in rows), dict(first.coords), chunks)
    n_features = array.shape[-1]
    if form.is_lazy:
        X = array.data.rechunk({len(rows): -1}).reshape((-1, n_features))
    else:
        values = array.values.reshape((-1, n_features)) if array.size else np.empty((0, n_features))
        X = da.from_array(values, chunks=(rows_per_chunk(max(1, len(values)), max(1, n_features)), -1), name=False)
    labels = tuple(array[features].values.tolist()) if features in array.coords else None
    return Data(X, form, in_memory=not form.is_lazy, labels=labels)


def with_checks(labeled: Any) -> Any:
    """The same DataArray or Dataset, of which every lazy chunk is checked when it is computed."""
    if hasattr(labeled, "data_vars"):
        return labeled.assign({name: with_checks(each) for name, each in labeled.data_vars.items()})
    return labeled.copy(data=checked_chunks(labeled.data)) if dask.is_dask_collection(labeled.data) else labeled


def _array(labeled: Any, columns: Sequence[Any] | None, features: str | None) -> tuple[Any, str]:
    """The DataArray to cluster, and its feature dimension."""
    if not hasattr(labeled, "data_vars"):
        features = _dimension(labeled, features)
        return (labeled if columns is None else _selected(labeled, features, columns)), features
    names = list(labeled.data_vars) if columns is None else list(columns)
    lost = [name for name in names if name not in labeled.data_vars]
    if lost or not names:
        what = (
            f"These columns are not variables of the data set: {lost}."
            if lost
            else "There are no variables to cluster."
        )
        raise InvalidSettingError(f"{what} It has {list(labeled)}.")
    if features is not None:
        if len(names) > 1:
            raise InvalidSettingError(
                f"A feature dimension needs one variable, not {names}. Choose it with columns=[...]; or leave the "
                "dimension out: then the variables are the features."
            )
        return labeled[names[0]], _dimension(labeled[names[0]], features)
    wrong = [f"{name} ({labeled[name].dtype})" for name in names if labeled[name].dtype.kind not in NUMBER_KINDS]
    if wrong:
        raise InvalidDataError(f"Some variables hold no numbers: {', '.join(wrong)}. Choose others with columns.")
    shapes = {frozenset(labeled[name].dims) for name in names}
    if len(shapes) > 1:
        raise InvalidDataError(
            "Variables that are features must have the same dimensions, and these differ: "
            f"{', '.join(f'{name} {tuple(labeled[name].dims)}' for name in names)}. Choose some with columns=[...]."
        )
    return labeled[names].to_dataarray("feature of cns_dask"), "feature of cns_dask"


def _dimension(array: Any, features: str | None) -> str:
    if features is None and array.ndim == 2:
        return str(array.dims[-1])
    if features not in array.dims:
        raise InvalidSettingError(
            f"features names the dimension that holds the features of a row, one of {tuple(array.dims)}. "
            f"Got {features!r}."
        )
    return str(features)


def _selected(array: Any, features: str, columns: Sequence[Any]) -> Any:
    try:
        return array.sel({features: list(columns)})
    except (KeyError, IndexError) as error:
        raise InvalidSettingError(f"Some columns are not labels of {features} ({one_line(error)}).") from error


@dataclass(frozen=True)
class LabeledForm:
    """The form of a DataArray or Dataset: DataArrays of the rows' dimensions, lazy in the same chunks if it is lazy."""

    dims: tuple[Any, ...]
    shape: tuple[int, ...]
    coords: dict[Any, Any]
    chunks: tuple[tuple[int, ...], ...] | None

    @property
    def is_lazy(self) -> bool:
        """Whether answers are lazy."""
        return self.chunks is not None

    def wrap(self, values: Any, name: str, clusters: Sequence[int] | None, _: Any) -> Any:
        """Values of all rows, in their shape."""
        import xarray as xr

        values = values if self.is_lazy else values.compute()
        values = values.reshape((*self.shape, *values.shape[1:]))
        if self.chunks is not None:
            values = values.rechunk((*self.chunks, *((size,) for size in values.shape[len(self.chunks) :])))
        coords, dims = dict(self.coords), self.dims
        if clusters is not None:
            coords, dims = {**coords, "cluster": list(clusters)}, (*dims, "cluster")
        return xr.DataArray(values, coords=coords, dims=dims, name=name)


def dataset_of(answers: Any, clusters: Sequence[int], form: Any, attributes: dict[str, Any]) -> Any:
    """Lazy `labels`, `confidence` and `memberships` as a Dataset: in the shape in which the rows came, else by row."""
    import xarray as xr

    if not isinstance(form, LabeledForm):
        form = LabeledForm(("row",), answers.labels.shape, {}, answers.labels.chunks)
    arrays = {
        "labels": form.wrap(answers.labels, "labels", None, None),
        "confidence": form.wrap(answers.confidence, "confidence", None, None),
        "memberships": form.wrap(answers.memberships, "memberships", clusters, None),
    }
    return xr.Dataset(arrays, attrs=attributes)


def labeled_rows(labeled: Any, form: LabeledForm, numbers: Any) -> Any:
    """Some rows of a DataArray or Dataset, along a dimension `row` that has their numbers."""
    import xarray as xr

    at = dict(zip(form.dims, np.unravel_index(numbers, form.shape), strict=True))
    rows = labeled.isel({name: xr.DataArray(index, dims="row") for name, index in at.items()})
    return rows if "row" in at else rows.assign_coords(row=("row", np.asarray(numbers)))


def labeled_dataset(arrays: dict[str, tuple[tuple[str, ...], Any]], coords: dict[str, list[Any]], what: str) -> Any:
    """A Dataset of arrays with their dimensions; `what` it is, for the error where xarray is not installed."""
    try:
        import xarray as xr
    except ImportError as error:
        raise CNSError(f"{what} needs xarray: pip install 'cns_dask[xarray]'.") from error
    return xr.Dataset(arrays, coords=coords)


def _has_variables(location: str, options: Any) -> bool:
    """Whether columns name variables of a stored Dataset."""
    return options.names_columns and options.component is None and not is_array_at(location)


OBJECT = Adapter(
    "xarray",
    lambda source, _: is_labeled(source) and not isinstance(source, da.Array),
    lambda source, options: open_labeled(with_checks(source), options.columns, options.features),
    ("columns", "features"),
)
NETCDF = Adapter(
    "data that xarray reads",
    lambda location, options: location.endswith((".nc", ".nc4")) or options.features is not None,
    lambda location, options: _open_stored(location, options.columns, options.features),
    ("columns", "features"),
)
STORE = Adapter(
    "a Dataset in Zarr",
    _has_variables,
    lambda location, options: _open_stored(location, options.columns),
    ("columns", "component", "features"),
)


def _open_stored(location: str, columns: Sequence[Any] | None, features: str | None = None) -> Data:
    return replace(open_labeled(read_dataset(location), columns, features), files=(location,))
