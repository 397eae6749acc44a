"""Annotated matrices of biological cells and genes: AnnData in memory, `.h5ad` and `.zarr`. The door to anndata."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dask.array as da

from cns_dask.errors import InvalidDataError, InvalidSettingError, one_line
from cns_dask.inputs.arrays import choose_columns, from_dask, open_matrix
from cns_dask.inputs.forms import Adapter, ArrayForm, Data, ReadOptions
from cns_dask.inputs.table_forms import Table
from cns_dask.inputs.tables import is_table, open_table
from cns_dask.storage.arrays import attributes_of, open_input_group

MATRICES = ("X", "obsm", "layers")  # where a matrix with a row for every observation may be


def is_annotated(source: Any) -> bool:
    """Whether something is an AnnData object, without importing anndata."""
    return all(hasattr(source, name) for name in ("obs", "var", "obsm", "uns"))


def is_annotated_store(location: str) -> bool:
    """Whether there is an AnnData store at a path or URL."""
    return location.endswith(".h5ad") or attributes_of(location).get("encoding-type") == "anndata"


def matrix_of(adata: Any, component: str | None) -> Any:
    """The matrix of an AnnData object: `X`, `obsm/KEY` or `layers/KEY`; its path where it is on disk."""
    part, key = _split(component)
    if adata.isbacked and adata.is_view:
        raise InvalidDataError(
            "Some observations of a file on disk cannot be read alone. Take them .to_memory() first."
        )
    if key is None and adata.X is None:
        raise InvalidDataError(f"The AnnData has no matrix X. Choose a component: {_components(adata)}.")
    if key is None:
        return adata.X if not adata.isbacked else read_matrix(str(adata.filename), component)
    matrices = getattr(adata, part)
    if key not in matrices:
        raise InvalidSettingError(f"There is no {key} in {part}. It holds {', '.join(matrices) or 'no matrices'}.")
    matrix = matrices[key]
    return matrix.to_memory() if hasattr(matrix, "to_memory") else matrix  # a table of anndata's read_lazy


def read_matrix(location: str, component: str | None) -> Any:
    """The matrix of a stored AnnData as a Dask array, of sparse chunks where it is stored so; a table of it read."""
    _split(component)
    try:
        from anndata.experimental import read_elem_lazy
        from anndata.io import read_elem
    except ImportError as error:
        raise InvalidDataError(f"{location} needs anndata: pip install 'cns_dask[anndata]'.") from error
    matrix = _element(location, component or "X", read_elem_lazy)
    if not isinstance(matrix, da.Array):
        matrix = _element(location, component or "X", read_elem)
    if not isinstance(matrix, da.Array) and not is_table(matrix):
        raise InvalidDataError(
            f"{component} of {location} is not an array but {type(matrix).__name__}. Read it with anndata first."
        )
    return matrix


def read_names(location: str) -> Any:
    """Names of the variables of a stored AnnData."""
    from anndata.io import read_elem

    return _element(location, "var", read_elem).index


def _element(location: str, name: str, read: Callable[[Any], Any]) -> Any:
    """One part of a stored AnnData."""
    try:
        if not location.endswith(".h5ad"):
            return read(open_input_group(location)[name])
        import h5py

        with h5py.File(location, "r") as file:
            return read(file[name])
    except KeyError as error:
        raise InvalidSettingError(f"{location} has no component {name} ({one_line(error)}).") from error
    except OSError as error:
        raise InvalidDataError(f"{location} is not an AnnData file ({one_line(error)}).") from error


def _components(adata: Any) -> str:
    names = [f"{part}/{key}" for part in MATRICES[1:] for key in getattr(adata, part)]
    return ", ".join(names) or "there is no other"


def positions_of(names: Any, columns: Any) -> list[int]:
    """Positions of variables by their names."""
    if not names.is_unique:
        raise InvalidDataError("Some variables have the same name. Use var_names_make_unique().")
    positions: list[int] = names.get_indexer(list(columns)).tolist()
    if min(positions, default=0) < 0:
        raise InvalidSettingError(f"Some of the columns {list(columns)} are not names of variables.")
    return positions


def _split(component: str | None) -> tuple[str, str | None]:
    part, _, key = (component or "X").partition("/")
    if part not in MATRICES or bool(key) == (part == "X"):
        raise InvalidSettingError(f"component must be X, obsm/KEY or layers/KEY, as obsm/X_pca. Got {component}.")
    return part, key or None


def _open_object(adata: Any, options: ReadOptions) -> Data:
    matrix = matrix_of(adata, options.component)
    if is_table(matrix):
        return open_table(matrix, options.columns)
    options = _by_position(options, lambda: adata.var_names)
    data = _labeled(open_matrix(matrix, options.min_rows), options, lambda: adata.var_names)
    data = choose_columns(data, options)
    is_lazy = isinstance(data.form, ArrayForm) and data.form.is_lazy
    return data if is_lazy else replace(data, form=Table(adata.obs_names))


def _open_store(location: str, options: ReadOptions) -> Data:
    matrix = read_matrix(location, options.component)
    if is_table(matrix):
        return replace(open_table(matrix, options.columns), files=(location,))
    data = _labeled(from_dask(matrix), options, lambda: read_names(location))
    data = choose_columns(data, _by_position(options, lambda: read_names(location)))
    return replace(data, files=(location,))


def _labeled(data: Data, options: ReadOptions, names: Callable[[], Any]) -> Data:
    """The data with names of variables for people: those of a matrix in obsm are numbered."""
    part, key = _split(options.component)
    labels = tuple(f"{key} {at}" for at in range(data.X.shape[1])) if part == "obsm" else tuple(names())
    return replace(data, labels=labels)


def _by_position(options: ReadOptions, names: Callable[[], Any]) -> ReadOptions:
    """The options, with positions instead of names of variables of the matrix X."""
    if options.columns is None or options.component not in (None, "X") or not options.names_columns:
        return options
    return replace(options, columns=positions_of(names(), options.columns))


OBJECT = Adapter("AnnData", lambda source, _: is_annotated(source), _open_object, ("columns", "component"))
STORE = Adapter("AnnData", lambda location, _: is_annotated_store(location), _open_store, ("columns", "component"))
