"""The face for Python: a scikit-learn estimator."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any, Self

import dask
import dask.array as da
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from cns_dask import pipeline
from cns_dask.data import is_lazy, open_data
from cns_dask.predict import predict
from cns_dask.runtime import Progress, visible_progress
from cns_dask.settings import Settings


class CNS(ClusterMixin, BaseEstimator):
    """Clustering by non-parametric smoothing; k, lam and the number of clusters are chosen by itself.

    Input that is lazy (a Dask array, a path or URL) gives lazy results, arrays in memory give NumPy arrays. Work runs
    on the active Dask client, or on this process's threads.

    Parameters
    ----------
    metric, method, recall, n_neighbors, lam, n_clusters, k_multipliers, lam_multipliers, max_clusters, \
max_candidates, scale, max_components, tol, grid_tol, random_state, missing
        See `Settings`: none has to be set.
    verbose
        Show the progress of `fit`.

    Attributes
    ----------
    labels_
        Cluster of every row (n,).
    memberships_
        Soft memberships (n, n_clusters_), rows sum to 1.
    confidence_
        How clearly each row belongs to its cluster (n,), 0 to 1.
    n_clusters_, n_neighbors_, lam_
        The chosen cell.
    criterion_
        Criterion of every cell tried (k, lam, n_clusters).
    representatives_
        Row that represents each cluster (n_clusters_,).
    n_features_in_
        Number of features of the data.
    result_
        The stored result: `result_.at(n_clusters=...)`, `result_.graph`, `result_.path`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(center, 1, (100, 5)) for center in (0, 5, 10)])
    >>> CNS().fit(X).n_clusters_
    3
    """

    def __init__(  # noqa: PLR0913 - one parameter per setting
        self,
        *,
        metric: str = "euclidean",
        method: str = "auto",
        recall: float = 0.99,
        n_neighbors: Any = None,
        lam: Any = None,
        n_clusters: int | None = None,
        k_multipliers: Any = (1, 2, 3, 4),
        lam_multipliers: Any = (1, 2, 3, 4, 5),
        max_clusters: int = 30,
        max_candidates: int = 300,
        scale: bool = True,
        max_components: int | None = 100,
        tol: float = 1e-9,
        grid_tol: float | None = None,
        random_state: int = 0,
        missing: str = "error",
        verbose: bool = False,
    ) -> None:
        self.metric = metric
        self.method = method
        self.recall = recall
        self.n_neighbors = n_neighbors
        self.lam = lam
        self.n_clusters = n_clusters
        self.k_multipliers = k_multipliers
        self.lam_multipliers = lam_multipliers
        self.max_clusters = max_clusters
        self.max_candidates = max_candidates
        self.scale = scale
        self.max_components = max_components
        self.tol = tol
        self.grid_tol = grid_tol
        self.random_state = random_state
        self.missing = missing
        self.verbose = verbose

    def fit(
        self,
        X: Any = None,
        y: Any = None,  # noqa: ARG002 - scikit-learn's convention
        *,
        graph: Any = None,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        scratch: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X
            The data (n, d): an array, a Dask array, or the path or URL of a `.npy` file or Zarr array.
            None if a graph is given and no rows are to be predicted.
        y
            Ignored.
        graph
            A kNN graph of the rows that is used instead of searching for one: integers (row, neighbor) in memory, lazy
            or stored, with or without the row itself; a SciPy matrix of distances, as of scikit-learn's
            `kneighbors_graph` or scanpy's `obsp["distances"]`; a graph of `neighbor_graph` or its path. It is checked.
        out
            Where the result is kept, as a Zarr group (path or URL); a temporary folder if None. An unfinished one is
            continued; one that is finished, of the same data and settings, is taken as it is.
        overwrite
            Replace a result of other data or settings that is already at `out`.
        scratch
            Folder (path or URL) for intermediate values; beside the output if None.
        """
        settings = Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})
        progress = visible_progress() if self.verbose else Progress()
        result = pipeline.fit(
            X, settings, graph=graph, out=out, overwrite=overwrite, scratch=scratch, progress=progress
        )
        if X is not None:
            self._check_features(X, reset=True)
        self.labels_, self.memberships_, self.confidence_ = _like(
            graph if X is None else X, result.labels, result.memberships, result.confidence
        )
        choice = result.choice
        self.n_clusters_, self.n_neighbors_, self.lam_ = choice.n_clusters, choice.n_neighbors, choice.lam
        self.criterion_ = result.criterion
        self.representatives_ = result.representatives
        self.result_ = result
        return self

    def predict(self, X: Any) -> Any:
        """Cluster of every row of X (m,); lazy if X is."""
        return self._predicted(X, "labels")

    def predict_proba(self, X: Any) -> Any:
        """Memberships of every row of X (m, n_clusters_); lazy if X is."""
        return self._predicted(X, "memberships")

    def _predicted(self, X: Any, field: str) -> Any:
        check_is_fitted(self)
        self._check_features(X, reset=False)
        return _like(X, getattr(predict(self.result_, X), field))[0]

    def _check_features(self, X: Any, *, reset: bool) -> None:
        """Let scikit-learn keep (`reset`) or check the number and names of the features."""
        opened = X if isinstance(X, da.Array) else open_data(X, min_rows=1)
        validate_data(self, opened if is_lazy(X) else X, reset=reset, skip_check_array=True)


def _like(X: Any, *arrays: Any) -> tuple[Any, ...]:
    """The arrays as they are if X is lazy, else computed."""
    return arrays if is_lazy(X) else tuple(dask.compute(*arrays))
