"""Annotated matrices of cells and genes: AnnData in memory, `.h5ad` and `.zarr`. The door to anndata.

What was found goes where scverse looks for it: labels and confidence in `obs`, memberships in `obsm`, the graph in
`obsp`, the choice in `uns`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np

from cns_dask.arrays import attributes_of, open_foreign_group
from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.tables import categories

PLACES = ("X", "obsm", "layers")  # where a matrix with a row for every cell may be


def is_annotated(source: Any) -> bool:
    """Whether something is an AnnData object, without importing anndata."""
    return all(hasattr(source, name) for name in ("obs", "var", "obsm", "uns"))


def is_annotated_store(location: str) -> bool:
    """Whether there is an AnnData store at a path or URL."""
    return location.endswith(".h5ad") or attributes_of(location).get("encoding-type") == "anndata"


def matrix_of(adata: Any, component: str | None) -> Any:
    """The matrix of an AnnData object: `X`, `obsm/KEY` or `layers/KEY`; its path where it is on disk."""
    place, key = _split(component)
    if adata.isbacked and adata.is_view:
        raise InvalidDataError("Cells on disk must be all of a file. Got some of them. Take these .to_memory() first.")
    if key is None and adata.X is None:
        raise InvalidDataError(f"The cells must have a matrix X. Got none. Choose a component: {_known(adata)}.")
    if key is None:
        return adata.X if not adata.isbacked else read_matrix(str(adata.filename), component)
    known = getattr(adata, place)
    if key not in known:
        raise InvalidSettingError(f"component must be in {place}. Got {key}; there are {', '.join(known) or 'none'}.")
    return known[key]


def read_matrix(location: str, component: str | None) -> Any:
    """The matrix of a stored AnnData as a Dask array, of sparse chunks where it is stored so."""
    _split(component)
    try:
        from anndata.experimental import read_elem_lazy
    except ImportError as error:
        raise InvalidDataError(f"{location} needs anndata. Got none. pip install 'cns_dask[anndata]'.") from error
    found = _element(location, component or "X", read_elem_lazy)
    if not isinstance(found, da.Array):
        raise InvalidDataError(
            f"The matrix must be an array. Got {type(found).__name__} at {component}, {location}. Read it with anndata."
        )
    return found


def read_names(location: str) -> Any:
    """Names of the variables of a stored AnnData."""
    from anndata.io import read_elem

    return _element(location, "var", read_elem).index


def _element(location: str, name: str, read: Callable[[Any], Any]) -> Any:
    """One part of a stored AnnData."""
    try:
        if not location.endswith(".h5ad"):
            return read(open_foreign_group(location)[name])
        import h5py

        with h5py.File(location, "r") as file:
            return read(file[name])
    except KeyError as error:
        raise InvalidSettingError(f"component must be in {location}. Got {name} ({error}).") from error
    except OSError as error:
        raise InvalidDataError(f"The file must be an AnnData file. Got {location} ({error}).") from error


def _known(adata: Any) -> str:
    names = [f"{place}/{key}" for place in PLACES[1:] for key in getattr(adata, place)]
    return ", ".join(names) or "there is no other"


def positions_of(names: Any, columns: Any) -> list[int]:
    """Positions of variables by their names."""
    if not names.is_unique:
        raise InvalidDataError("Variables must have different names. Got some twice. Use var_names_make_unique().")
    found: list[int] = names.get_indexer(list(columns)).tolist()
    if min(found, default=0) < 0:
        raise InvalidSettingError(f"columns must be names of variables. Got {list(columns)}.")
    return found


def _split(component: str | None) -> tuple[str, str | None]:
    place, _, key = (component or "X").partition("/")
    if place not in PLACES or bool(key) == (place == "X"):
        raise InvalidSettingError(
            f"component must be X, obsm/KEY or layers/KEY, as obsm/X_pca. Got {component}, which is none."
        )
    return place, key or None


def annotate(adata: Any, found: Any, key: str = "cns") -> None:
    """Write what was found for the cells into an AnnData object, as scanpy's tools do.

    Parameters
    ----------
    adata
        The cells, in the order in which they were clustered.
    found
        A fitted `CNS`, or a `Result`.
    key
        `obs[key]` (categories), `obs[f"{key}_confidence"]`, `obsm[f"{key}_memberships"]`, `obsp[f"{key}_distances"]`,
        `obsp[f"{key}_connectivities"]` (the random walk's steps, 1/k each) and `uns[key]` (parameters, choice) are
        written.

    Examples
    --------
    >>> import anndata
    >>> from cns_dask import CNS
    >>> rng = np.random.default_rng(0)
    >>> adata = anndata.AnnData(np.concatenate([rng.normal(center, 1, (100, 5)) for center in (0, 5, 10)]))
    >>> annotate(adata, CNS().fit(adata))
    >>> adata.obs["cns"].cat.categories.tolist()
    ['0', '1', '2']
    """
    from scipy.sparse import csr_array

    result = getattr(found, "result_", found)
    if result.n_rows != adata.n_obs:
        raise InvalidDataError(f"The cells must be those that were clustered ({result.n_rows}). Got {adata.n_obs}.")
    labels, confidence, memberships = (
        getattr(result, name).compute() for name in ("labels", "confidence", "memberships")
    )
    adata.obs[key] = categories(labels, result.clusters)
    adata.obs[f"{key}_confidence"] = confidence
    adata.obsm[f"{key}_memberships"] = memberships
    graph, choice, rows = result.graph, result.choice, result.rows.compute()
    neighbors = rows[np.asarray(graph.indices[:, : choice.n_neighbors].compute())]
    shape, ends = (adata.n_obs, adata.n_obs), np.zeros(adata.n_obs + 1, np.int64)
    ends[rows + 1] = choice.n_neighbors
    matrices = {"connectivities": np.full(neighbors.shape, 1 / choice.n_neighbors)}
    if graph.distances is not None:
        matrices["distances"] = np.asarray(graph.distances[:, : choice.n_neighbors].compute())
    for name, values in matrices.items():
        matrix = csr_array((values.ravel(), neighbors.ravel(), np.cumsum(ends)), shape=shape)
        adata.obsp[f"{key}_{name}"] = matrix
    adata.uns[key] = {
        "params": {name: _storable(value) for name, value in result.settings.as_dict().items() if value is not None},
        "n_clusters": choice.n_clusters,
        "n_neighbors": choice.n_neighbors,
        "lam": choice.lam,
        "connectivities_key": f"{key}_connectivities",
        "representatives": result.representatives,
        **({"distances_key": f"{key}_distances"} if "distances" in matrices else {}),
    }


def _storable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
