"""The face for Python: a scikit-learn estimator."""

import contextlib
import os
from dataclasses import fields
from html import escape
from typing import Any, Self

import dask
import numpy as np
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from cns_dask import pipeline
from cns_dask.config import default_sample, default_scratch, report_path
from cns_dask.errors import CNSError, InvalidDataError
from cns_dask.execution.cluster import configured_workers
from cns_dask.inputs.data import open_data
from cns_dask.inputs.forms import ArrayForm, Data
from cns_dask.inputs.table_forms import CLUSTER, CONFIDENCE
from cns_dask.inputs.tables import empty_frame
from cns_dask.progress import Progress, visible_progress
from cns_dask.results.predict import open_new, predict_wrapped
from cns_dask.results.summary import summary_html
from cns_dask.settings import Settings
from cns_dask.storage.fingerprints import digest


class CNS(ClusterMixin, BaseEstimator):
    """Clustering by non-parametric smoothing; k, lam and the number of clusters are chosen by itself.

    Answers come in the form of the data: NumPy arrays for arrays in memory, Dask arrays for lazy ones and for a path or
    URL, Series and DataFrames with the same index for tables (lazy, with the same partitions, for Dask's), DataArrays
    of the rows' dimensions for xarray. Work runs on the active Dask client, or on this process's threads. Dask's
    configuration has defaults for `scratch`, `workers`, `memory`, `sample` and `report`: see `cns_dask.config`.

    Parameters
    ----------
    metric, method, recall, n_neighbors, lam, n_clusters, k_multipliers, lam_multipliers, max_clusters, \
min_cluster_size, noise, selection, max_candidates, scale, max_components, tol, grid_tol, random_state, missing
        See `Settings`: none has to be set.
    verbose
        Show the progress of `fit`.

    Attributes
    ----------
    labels_
        Cluster of every row (n,).
    memberships_
        Soft memberships (n, n_clusters_), rows sum to 1.
    confidence_, probabilities_
        How clearly each row belongs to its cluster (n,), 0 to 1; under the second name HDBSCAN's users look for it.
    n_clusters_, n_neighbors_, lam_
        The choice.
    criterion_
        Criterion of every (k, lam, n_clusters) tried.
    representatives_
        Row that represents each cluster (n_clusters_,).
    cluster_layers_, cluster_tree_
        Labels of all stable numbers of clusters, and which clusters of one lie in those of another.
    n_features_in_, feature_names_in_
        Number of features of the data, and their names if they are strings.
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
        max_clusters: int | None = None,
        min_cluster_size: int | None = None,
        noise: bool = False,
        selection: str = "auto",
        max_candidates: int = 300,
        scale: bool | str = "auto",
        max_components: int | None = 100,
        tol: float = 1e-9,
        grid_tol: float | None = None,
        random_state: int | None = 0,
        missing: str = "error",
        verbose: bool = False,
    ) -> None:
        self.__dict__.update({name: value for name, value in locals().items() if name != "self"})

    def __dir__(self) -> list[str]:
        """All names; scikit-learn's own would ask for the value of each, and some of ours are computed."""
        return list(object.__dir__(self))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(  # noqa: PLR0913 - one parameter per choice
        self,
        X: Any = None,
        y: Any = None,  # noqa: ARG002 - scikit-learn's convention
        *,
        columns: Any = None,
        component: str | None = None,
        features: str | None = None,
        graph: Any = None,
        previous: Any = None,
        within: Any = None,
        sample: float | None = None,
        check_sample: bool = False,
        out: str | os.PathLike[str] | None = None,
        overwrite: bool = False,
        scratch: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Cluster the rows of X.

        Parameters
        ----------
        X
            The data (n, d): arrays (NumPy, Dask, Zarr, sparse), DataFrames of pandas or Dask, xarray, AnnData, or the
            path or URL of files of these; see `open_data`. None if a graph is given and no rows are to be predicted.
        y
            Ignored.
        columns, component, features
            What of X is clustered: see `open_data`. `predict` takes the same of new data.
        graph
            A kNN graph of the rows that is used instead of searching for one: integers (row, neighbor) in memory, lazy
            or stored, with or without the row itself; a SciPy matrix of distances, as of scikit-learn's
            `kneighbors_graph` or scanpy's `obsp["distances"]`; a graph of `neighbor_graph` or its path. It is checked.
        previous
            A previous fit (a fitted `CNS`, a `Result` or its path) of the same features: by their names, where both
            have some. Clusters that are the same, by the rows that the old model puts there, keep their numbers,
            others get numbers that none has had; the numbers may then have gaps. `result_.changes` tells of births,
            deaths, splits, merges and drift.
        within
            A pair of a fit of the same rows (a fitted `CNS`, a `Result` or its path) and the number of one of its
            clusters: the rows of that cluster are clustered further. All others get the label -4 and no memberships;
            in tables the clusters are "3.0", "3.1" and so on.
        sample
            Cluster only so many rows (an integer), or this share of them (a number below 1): every other row takes the
            memberships of its nearest sampled rows, as a new row does, chunk by chunk. So 10^9 rows need the memory of
            10^6. Rows are drawn by their number and `random_state`; about as many as asked for: `result_.sample`. None:
            what `cns-dask.sample` in Dask's configuration says; 1.0 are all rows.
        check_sample
            Fit a second sample too, which has no row in common with the first, and tell how well both agree on other
            rows: `result_.sample.agreement`.
        out
            Where the result is kept, as a Zarr group (path or URL); a temporary folder if None. An unfinished one is
            continued; one that is finished, of the same data and settings, is taken as it is.
        overwrite
            Replace a result of other data or settings that is already at `out`.
        scratch
            Folder (path or URL) for intermediate arrays. None: `cns-dask.scratch` in Dask's configuration, else beside
            the output.

        Examples
        --------
        >>> from cns_dask.demo import demo_points
        >>> X = demo_points(300)
        >>> first = CNS().fit(X)
        >>> again = CNS().fit(X[::-1].copy(), previous=first)
        >>> bool((again.labels_[::-1] == first.labels_).all()), again.result_.changes.births
        (True, ())
        >>> sampled = CNS().fit(demo_points(5000), sample=2000, check_sample=True)
        >>> sampled.labels_.shape, sampled.result_.n_clustered, sampled.result_.sample.agreement.n_clusters
        ((5000,), 2029, (6, 6))
        """
        settings = Settings(**{field.name: getattr(self, field.name) for field in fields(Settings)})
        progress = visible_progress() if self.verbose else Progress()
        page = report_path(out)
        with configured_workers():
            data = None if X is None else open_data(X, columns=columns, component=component, features=features)
            if data is not None:
                CNS()._check_features(data, reset=True)  # before any work; this model changes only if the fit succeeds
                is_sampled = sample is None and graph is None and within is None
                sample = default_sample(data.X.shape[0]) if is_sampled else sample
            result = pipeline.fit(
                data,
                settings,
                graph=graph,
                previous=previous,
                within=within,
                sample=sample,
                check_sample=check_sample,
                out=out,
                overwrite=overwrite,
                scratch=default_scratch() if scratch is None else scratch,
                progress=progress,
            )
            if page is not None:
                from cns_dask.results.report import write_report

                write_report(result, page, data, overwrite=True)
        if data is None:
            is_lazy = isinstance(graph, str | os.PathLike) or hasattr(graph, "dask")
            data = Data(None, ArrayForm(is_lazy=is_lazy))
        else:
            self._check_features(data, reset=True)
        self.labels_ = result.wrapped(data, "labels", CLUSTER)
        self.memberships_ = result.wrapped(data, "memberships", "memberships")
        self.confidence_ = result.wrapped(data, "confidence", CONFIDENCE)
        choice = result.choice
        self.n_clusters_, self.n_neighbors_, self.lam_ = choice.n_clusters, choice.n_neighbors, choice.lam
        self.criterion_ = result.criterion
        self.representatives_ = result.representatives
        self.result_ = result
        return self

    def __repr__(self, **options: Any) -> str:
        plain = str(super().__repr__(**options))
        with contextlib.suppress(CNSError, OSError):  # the result may have been removed
            return f"{plain}  # {self.result_.verdict.sentence}" if hasattr(self, "result_") else plain
        return plain

    def _repr_html_inner(self) -> str:
        return self._fitted_html() or str(super()._repr_html_inner())

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        html = self._fitted_html()
        return {"text/plain": repr(self), "text/html": html} if html else dict(super()._repr_mimebundle_(**options))

    def _fitted_html(self) -> str:
        """What was found, in a notebook; nothing before a fit.

        Not below scikit-learn's own page: that asks for all attributes, and some are computed.
        """
        with contextlib.suppress(CNSError, OSError):
            if hasattr(self, "result_"):
                return f"<code>{escape(str(super().__repr__()))}</code>{summary_html(self.result_)}"
        return ""

    @property
    def probabilities_(self) -> Any:
        """`confidence_`, under the name that it has in HDBSCAN and in what builds on it, as BERTopic.

        Examples
        --------
        >>> from cns_dask.demo import demo_points
        >>> model = CNS().fit(demo_points(300))
        >>> bool((model.probabilities_ == model.confidence_).all())
        True
        """
        check_is_fitted(self)
        return self.confidence_

    @property
    def cluster_layers_(self) -> list[Any]:
        """Labels of all stable numbers of clusters, from fine to coarse: arrays (n,), lazy if the data were.

        After the fit of a sample other rows have the label -5; `result_.at(n_clusters=..., data=X)` predicts them.

        Examples
        --------
        >>> from cns_dask.demo import demo_points
        >>> [int(labels.max()) + 1 for labels in CNS().fit(demo_points(300)).cluster_layers_]
        [4]
        """
        check_is_fitted(self)
        labels = [layer.labels for layer in self.result_.layers()]
        return labels if hasattr(self.labels_, "dask") else list(dask.compute(*labels))

    @property
    def cluster_tree_(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Which clusters of finer layers lie in each cluster: see `Result.tree`.

        Examples
        --------
        >>> from cns_dask.demo import demo_points
        >>> CNS().fit(demo_points(300)).cluster_tree_[1, 0]  # the root
        [(0, 0), (0, 1), (0, 2), (0, 3)]
        """
        check_is_fitted(self)
        return self.result_.tree

    def predict(self, X: Any) -> Any:
        """Cluster of every row of X (m,); lazy if X is.

        Examples
        --------
        >>> from cns_dask.demo import demo_points
        >>> X = demo_points(300)
        >>> CNS().fit(X).predict(X[:3])
        array([3, 5, 2])
        """
        return self._predict(X, "labels", CLUSTER)

    def predict_proba(self, X: Any) -> Any:
        """Memberships of every row of X (m, n_clusters_); lazy if X is.

        Examples
        --------
        >>> from cns_dask.demo import demo_points
        >>> X = demo_points(300)
        >>> import dask.array as da
        >>> CNS().fit(X).predict_proba(da.from_array(X, chunks=(100, 8))).shape
        (300, 6)
        """
        return self._predict(X, "memberships", "memberships")

    def _predict(self, X: Any, field: str, name: str) -> Any:
        check_is_fitted(self)
        data = open_new(self.result_, X, by_name=False)  # scikit-learn wants the same names in the same order
        self._check_features(data, reset=False)
        return predict_wrapped(self.result_, data, field, name)

    def _check_features(self, data: Data, *, reset: bool) -> None:
        """Let scikit-learn keep (`reset`) or check the number and names of the features."""
        template = np.empty((0, data.X.shape[1])) if data.names is None else empty_frame(data.names)
        try:
            validate_data(self, template, reset=reset, skip_check_array=True)
        except TypeError as error:  # names of several types, one of them strings
            raise InvalidDataError(
                "The names of the columns must be all strings, or all something else. Rename them, as with "
                "table.rename(columns=str)."
            ) from error


@dask.base.normalize_token.register(CNS)
def normalize_model(model: CNS) -> tuple[Any, ...]:
    """What Dask names tasks by that get a model; dask-ml would ask for all attributes, and some are computed."""
    result = getattr(model, "result_", None)
    return CNS, model.get_params(), result and (result.path, digest(result.details))
