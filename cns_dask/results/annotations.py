"""Clusters in AnnData, where scverse looks for them.

Labels and confidence are in `obs`, memberships in `obsm`, the graph in `obsp`, the choice in `uns`.
"""

from typing import Any

import dask.array as da
import numpy as np
from scipy.sparse import csr_array, csr_matrix

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import InvalidDataError, InvalidSettingError, InvalidTypeError
from cns_dask.inputs.anndatas import is_annotated
from cns_dask.inputs.tables import categories
from cns_dask.results.result import open_result


def annotate(adata: Any, model: Any, key: str = "cns") -> None:
    """Write the clusters of its observations into an AnnData object, as scanpy's tools do.

    Parameters
    ----------
    adata
        The observations, in the order in which they were clustered. Where they are backed by a file, or their X is a
        Dask array, memberships and graph are Dask arrays too, read from the result when they are used or stored.
    model
        A fitted `CNS`, a `Result`, or the path or URL of one.
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
    if not is_annotated(adata):
        raise InvalidTypeError(
            f"annotate needs an AnnData object, not {type(adata).__name__}. For rows in another form take the labels "
            "of the model, or assign_clusters for a table."
        )
    if not isinstance(key, str) or not key or "/" in key:
        raise InvalidSettingError(f"key must be a name without a slash, as 'cns'. Got {key!r}.")
    result = open_result(model)
    if result.n_rows != adata.n_obs:
        raise InvalidDataError(
            f"The AnnData has {adata.n_obs} observations, but {result.n_rows} were clustered. Give that of the fit."
        )
    choice, memberships, matrices = result.choice, result.memberships, graph_matrices(result)
    if not adata.isbacked and not isinstance(adata.X, da.Array):
        memberships = memberships.compute()
        matrices = {name: csr_array(matrix.compute()) for name, matrix in matrices.items()}
    adata.obs[key] = categories(result.labels.compute(), result.clusters)
    adata.obs[f"{key}_confidence"] = result.confidence.compute()
    adata.obsm[f"{key}_memberships"] = memberships
    for name, matrix in matrices.items():
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


def graph_matrices(result: Any) -> dict[str, da.Array]:
    """The graph as lazy matrices (n, n) of sparse chunks, with empty rows for those that were skipped."""
    graph, k = result.graph, result.choice.n_neighbors
    indices = graph.indices[:, :k].rechunk({1: -1})
    rows = result.rows.compute() if result.n_clustered < result.n_rows else None
    ends = np.cumsum(indices.chunks[0])
    edges = np.concatenate([[0], ends if rows is None else rows[ends - 1] + 1])
    edges[-1] = result.n_rows
    values: dict[str, tuple[da.Array, ...]] = {"connectivities": (indices,)}
    if graph.distances is not None:
        values["distances"] = (indices, graph.distances[:, :k].rechunk(indices.chunks))
    shape = {"chunks": (tuple(np.diff(edges).tolist()), (result.n_rows,)), "dtype": np.float64}
    empty = csr_matrix((0, 0))  # no csr_array: anndata would store a lazy one as a dense matrix
    return {
        name: da.map_blocks(graph_rows, *each, rows=rows, edges=edges, meta=empty, **shape)
        for name, each in values.items()
    }


def graph_rows(
    neighbors: IntArray,
    distances: FloatArray | None = None,
    *,
    rows: IntArray | None,
    edges: IntArray,
    block_id: tuple[int, ...],
) -> csr_matrix:
    """A chunk of rows of the graph: distances, or 1/k each.

    `rows` are the row numbers of all that were clustered, None where none was skipped; `edges` are those of the chunks.
    """
    start, stop = edges[block_id[0]], edges[block_id[0] + 1]
    ends = np.zeros(stop - start + 1, np.int64)
    here = slice(None) if rows is None else rows[(rows >= start) & (rows < stop)] - start
    ends[1:][here] = neighbors.shape[1]
    columns = neighbors if rows is None else rows[neighbors]
    values = np.full(columns.shape, 1 / columns.shape[1]) if distances is None else distances
    return csr_matrix((values.ravel(), columns.ravel(), np.cumsum(ends)), shape=(stop - start, edges[-1]))


def _storable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
