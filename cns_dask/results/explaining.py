"""What an opened result can tell about its clusters: profiles, exemplars, overlap, explanations and plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.errors import InvalidSettingError
from cns_dask.inputs.rows import take_rows
from cns_dask.results.exemplars import deepest_rows, undecided_rows
from cns_dask.results.explanations import Explanation, explain_cluster
from cns_dask.results.fit_rows import any_rows, same_features
from cns_dask.results.overlap import overlap_of
from cns_dask.results.profile import Part, Profile, profile_of, survey
from cns_dask.results.summary import summary_html, summary_text
from cns_dask.settings import as_plain, check_integer
from cns_dask.smoothing.memberships import Clustering

if TYPE_CHECKING:
    from cns_dask.results.plots import Plots
    from cns_dask.results.result import Result

MOST_ROWS = 1000  # of each cluster, that are shown
SHOWN_CLUSTERS = 12  # in an error


class Explained:
    """The part of a `Result` that explains its clusters.

    Methods that take `n_clusters` tell about another number of clusters than the chosen one, as `Result.at` gives it.
    """

    @property
    def _result(self) -> Result:
        return cast("Result", self)

    def profile(self, X: Any, *, n_clusters: int | None = None, **options: Any) -> Any:
        """What each cluster is like: mean, standard deviation, quantiles and effect size of every feature.

        One pass over the rows, in which memory does not grow with their number. There are no p-values, because the same
        rows have made the clusters.

        Parameters
        ----------
        X
            The data of the fit, in any form: see `open_data`.
        n_clusters
            Another number of clusters.
        **options
            Options of `open_data`. With `columns` any features are told about, also those that the fit did not use.

        Returns
        -------
        xarray.Dataset
            `mean`, `std` and `effect` (cluster, feature), `quantiles` (cluster, quantile, feature), of a sample where a
            cluster has more than 2000 rows, and `size` (cluster). `effect` is Cohen's d: the difference to the mean of
            all other clusters, in pooled standard deviations.

        Examples
        --------
        >>> from cns_dask.demo import demo_points, demo_result
        >>> profile = demo_result().profile(demo_points(300))
        >>> profile["mean"].sel(cluster=1).values.round(1)[:4]
        array([ 0.8,  1.6,  0.9, -2.3])
        >>> str(profile["effect"].sel(cluster=1).idxmax().item())
        'feature 4'
        """
        return profiled(self._result, X, n_clusters, options)[0].to_xarray()

    def explain(self, cluster: int | None, X: Any, *, n_clusters: int | None = None, **options: Any) -> Any:
        """What sets a cluster apart: its features by effect size, and the rules of a small decision tree.

        The rules are learned from some rows of every cluster, chosen by their row numbers; it is told for which share
        of the rows they are right.

        Parameters
        ----------
        cluster
            Its number; None for a list of all explanations.
        X
            The data of the fit, in any form: see `open_data`.
        n_clusters
            Another number of clusters.
        **options
            Options of `open_data`. With `columns` any features explain it, also those that the fit did not use.

        Examples
        --------
        >>> from cns_dask.demo import demo_points, demo_result
        >>> explanation = demo_result().explain(1, demo_points(300))
        >>> explanation.features[0].name, round(explanation.features[0].effect, 1)
        ('feature 4', 1.8)
        >>> str(explanation.rules.rules[0]), round(explanation.rules.precision, 2)
        ('feature 4 > 1.6 and feature 6 <= 2.33', 0.96)
        """
        if cluster is None:
            return explain_all(self._result, X, n_clusters, **options)
        return explain_all(self._result, X, n_clusters, cluster, **options)[0]

    def exemplars(self, n: int = 5, X: Any = None, *, n_clusters: int | None = None, **options: Any) -> Any:
        """The rows deepest in each cluster: those whose membership in it lies farthest above any other.

        Parameters
        ----------
        n
            How many of each cluster.
        X
            The data of the fit, in any form: see `open_data`. None: row numbers are enough.
        n_clusters
            Another number of clusters.
        **options
            Options of `open_data`.

        Returns
        -------
        numpy.ndarray or dict
            Row numbers (cluster, n), deepest first, -1 where a cluster has fewer. With X, its rows of each cluster by
            the cluster's number: a table with its index and all columns, an AnnData, a labelled or a plain array.

        Examples
        --------
        >>> from cns_dask.demo import demo_points, demo_result
        >>> demo_result().exemplars(2)
        array([[ 84, 178],
               [232,  60],
               [268,  86],
               [  0,   7],
               [ 72,  52],
               [ 67, 265]])
        >>> demo_result().exemplars(2, demo_points(300))[3].shape
        (2, 8)
        """
        result, n = self._result, check_integer("n", n, 1, MOST_ROWS)
        data = None if X is None else any_rows(result, X, options)
        clustering, clusters = clustering_of(result, n_clusters, data)
        numbers = deepest_rows(clustering, clusters, n)
        if data is None:
            return numbers
        return {number: take_rows(X, data, some[some >= 0]) for number, some in zip(clusters, numbers, strict=True)}

    def between(
        self, first: int, second: int, n: int = 5, X: Any = None, *, n_clusters: int | None = None, **options: Any
    ) -> Any:
        """The rows most undecided between two clusters: both in reach of them, about equally, and more than others.

        Parameters
        ----------
        first, second
            The numbers of the clusters.
        n
            How many rows; there may be fewer.
        X
            The data of the fit, in any form: see `open_data`. None: row numbers are enough.
        n_clusters
            Another number of clusters.
        **options
            Options of `open_data`.

        Returns
        -------
        numpy.ndarray or rows of X
            Row numbers, the most undecided first. With X, its rows: see `exemplars`.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> result = demo_result()
        >>> rows = result.between(0, 2, n=3)
        >>> rows, result.confidence[rows].compute().round(2)
        (array([ 79, 102,  50]), array([0.57, 0.82, 0.65]))
        """
        result, n = self._result, check_integer("n", n, 1, MOST_ROWS)
        data = None if X is None else any_rows(result, X, options)
        clustering, clusters = clustering_of(result, n_clusters, data)
        pair = position_of(first, clusters), position_of(second, clusters)
        if first == second:
            raise InvalidSettingError(f"Between needs two different clusters. Got {first} twice.")
        numbers = undecided_rows(clustering, *pair, n)
        return numbers if data is None else take_rows(X, data, numbers)

    @property
    def overlap(self) -> FloatArray:
        """How much of each cluster's membership lies in each other one (cluster, cluster); rows sum to 1.

        O[a, b] = sum_i Q_ia Q_ib / sum_i Q_ia, where Q_ia is the share of the walks from row i that end in cluster a,
        of all that end in any: the mean share of b in the rows of a. It is 0 where no row could belong to both.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> demo_result().overlap.round(2)
        array([[0.86, 0.03, 0.02, 0.  , 0.04, 0.05],
               [0.03, 0.93, 0.02, 0.  , 0.01, 0.01],
               [0.03, 0.03, 0.91, 0.  , 0.03, 0.  ],
               [0.  , 0.  , 0.  , 1.  , 0.  , 0.  ],
               [0.15, 0.04, 0.08, 0.  , 0.71, 0.01],
               [0.24, 0.02, 0.  , 0.  , 0.01, 0.73]])
        """
        return overlap_of(clustering_of(self._result)[0])

    @property
    def plot(self) -> Plots:
        """Plots with matplotlib: `map(X)`, `profile(X)`, `overlap()`, `scales()` and `criterion()`.

        Examples
        --------
        >>> import matplotlib
        >>> matplotlib.use("Agg")
        >>> from cns_dask.demo import demo_result
        >>> demo_result().plot.map().get_title()
        '6 clusters, 300 rows; pale where in doubt'
        """
        from cns_dask.results.plots import Plots

        return Plots(self._result)

    def __repr__(self) -> str:
        return summary_text(self._result)

    def _repr_html_(self) -> str:
        return summary_html(self._result)


def clustering_of(result: Result, n_clusters: int | None = None, data: Any = None) -> tuple[Clustering, list[int]]:
    """The clustering with another number of clusters, or the chosen one, and the numbers of its clusters.

    `data` are the rows of the fit, if they are at hand: only then other rows than those of a sample have clusters.
    """
    clustering = result.at(n_clusters, data=data if result.sample is not None else None)
    is_chosen = n_clusters is None or n_clusters == result.choice.n_clusters
    K = int(clustering.memberships.shape[1])
    return clustering, result.clusters if is_chosen and len(result.clusters) == K else list(range(K))


def profiled(result: Result, X: Any, n_clusters: int | None, options: dict[str, Any]) -> tuple[Profile, Part]:
    """The profile of the clusters, and what else is known of the rows, in one pass over the data."""
    data, names = same_features(result, X, options)
    clustering, clusters = clustering_of(result, n_clusters, data)
    labels: Any = clustering.labels
    part = survey(data.X, labels, clusters, here=data.in_memory)
    return profile_of(part, names, clusters), part


def explain_all(
    result: Result, X: Any, n_clusters: int | None = None, *chosen: int, **options: Any
) -> list[Explanation]:
    """Explanations of some clusters, of all if none is chosen, in one pass over the data."""
    _, clusters = clustering_of(result, n_clusters)
    positions = [position_of(cluster, clusters) for cluster in chosen or clusters]
    profile, part = profiled(result, X, n_clusters, options)
    return [explain_cluster(part, profile, at) for at in positions]


def position_of(cluster: Any, clusters: Sequence[int]) -> int:
    """Where a cluster is in the order of all clusters, by its number."""
    number = as_plain(cluster)
    if isinstance(number, bool) or number not in clusters:
        shown = ", ".join(map(str, clusters[:SHOWN_CLUSTERS])) + (", ..." if len(clusters) > SHOWN_CLUSTERS else "")
        raise InvalidSettingError(f"There is no cluster {number!r}. The clusters are {shown}.")
    return int(np.searchsorted(clusters, number))
