"""Clusters in AnnData, where scverse looks for them.

Labels and confidence are in `obs`, memberships in `obsm`, the graph in `obsp`, the choice in `uns`.
"""

from typing import Any

import numpy as np

from cns_dask.errors import InvalidDataError, InvalidTypeError
from cns_dask.inputs.anndatas import is_annotated
from cns_dask.inputs.tables import categories
from cns_dask.results.result import open_result


def annotate(adata: Any, model: Any, key: str = "cns") -> None:
    """Write the clusters of its observations into an AnnData object, as scanpy's tools do.

    Parameters
    ----------
    adata
        The observations, in the order in which they were clustered.
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
    from scipy.sparse import csr_array

    if not is_annotated(adata):
        raise InvalidTypeError(f"annotate needs an AnnData object, not {type(adata).__name__}.")
    result = open_result(model)
    if result.n_rows != adata.n_obs:
        raise InvalidDataError(
            f"The AnnData has {adata.n_obs} observations, but {result.n_rows} were clustered. Give that of the fit."
        )
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
