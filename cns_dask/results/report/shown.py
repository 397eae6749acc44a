"""What a page shows of a result: the clustering, and what is counted about its clusters in passes over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.inputs.forms import Data
from cns_dask.results.exemplars import deepest_rows
from cns_dask.results.overlap import over_blocks, overlap_of
from cns_dask.results.profile import Profile, feature_names, label_positions, profile_of, survey
from cns_dask.results.report.coordinates import of_clustered, unscaled
from cns_dask.results.result import Result
from cns_dask.results.rules import Rules, rules_of
from cns_dask.smoothing.memberships import Clustering

BINS = 20  # of the confidence
EXEMPLARS = 5  # of each cluster
MOST_RULES = 4000  # clusters times features; of more, rules would take longer than all the rest


@dataclass(frozen=True)
class Shown:
    """The clusters of a page, and what is known about them."""

    result: Result
    clustering: Clustering  # of all rows, lazily
    clusters: list[int]  # their numbers
    is_other: bool  # whether these are not the clusters of the fit, but another number of them
    confidence_counts: IntArray  # rows by confidence of each cluster (K, BINS)
    overlap: FloatArray  # share of each other cluster in the rows of one (K, K)
    exemplars: IntArray  # rows that are deepest in each (K, EXEMPLARS); -1 where there are fewer
    profile: Profile | None  # of their features, where these are known
    rules: list[Rules]  # for each of them, where these are not too many

    @property
    def sizes(self) -> IntArray:
        """Rows of each cluster."""
        return np.asarray(self.confidence_counts.sum(axis=1))

    @property
    def of_sample(self) -> bool:
        """Whether only rows of the sample are in these clusters."""
        return self.is_other and self.result.sample is not None

    @property
    def affinity(self) -> FloatArray:
        """How much clusters have to do with one another (K, K), symmetric."""
        return np.asarray((self.overlap + self.overlap.T) / 2)

    @cached_property
    def order(self) -> list[int]:
        """Positions of the clusters such that those that overlap are side by side: the leaves of a tree."""
        from scipy.cluster.hierarchy import leaves_list, linkage
        from scipy.spatial.distance import squareform

        if len(self.clusters) < 3:
            return list(range(len(self.clusters)))
        apart = 1 - np.clip(self.affinity / max(self._largest_overlap, 1e-12), 0, 1)
        np.fill_diagonal(apart, 0)
        order: list[int] = leaves_list(
            linkage(squareform(apart, checks=False), "average", optimal_ordering=True)
        ).tolist()
        return order

    @property
    def _largest_overlap(self) -> float:
        return float(np.max(self.affinity - np.diag(np.diag(self.affinity)), initial=0))


def collect(
    result: Result, n_clusters: int | None = None, data: Data | None = None, features: Sequence[str] | None = None
) -> Shown:
    """Count what a page shows: the chosen clusters, or another number of them; features of `data` if it is given."""
    is_other = n_clusters is not None and n_clusters != result.choice.n_clusters
    if is_other:
        clustering = result.at(n_clusters)
        clusters = list(range(n_clusters or 0))
    else:
        clustering = Clustering(result.memberships, result.labels, result.confidence)
        clusters = result.clusters
    numbers = np.asarray(clusters)
    profile, rules = _profile(result, clustering, clusters, data, features)
    return Shown(
        result=result,
        clustering=clustering,
        clusters=clusters,
        is_other=is_other,
        confidence_counts=np.asarray(over_blocks(clustering, confidence_block, sum, numbers)),
        overlap=overlap_of(clustering),
        exemplars=deepest_rows(clustering, clusters, EXEMPLARS),
        profile=profile,
        rules=rules,
    )


def confidence_block(
    memberships: FloatArray,  # noqa: ARG001
    labels: IntArray,
    confidence: FloatArray,
    first_row: int,  # noqa: ARG001
    clusters: IntArray,
) -> IntArray:
    """Rows of a block by cluster and confidence (K, BINS)."""
    at = label_positions(labels, clusters)
    known = at >= 0
    level = np.minimum((confidence[known] * BINS).astype(np.int64), BINS - 1)
    counts = np.bincount(at[known] * BINS + level, minlength=len(clusters) * BINS)
    return np.asarray(counts.reshape(len(clusters), BINS))


def _profile(
    result: Result,
    clustering: Clustering,
    clusters: Sequence[int],
    data: Data | None,
    features: Sequence[str] | None,
) -> tuple[Profile | None, list[Rules]]:
    """Features and rules of the clusters: of the data, or of the stored rows where scaling can be undone; else none."""
    labels: Any = clustering.labels
    if data is not None:
        return _surveyed(data.X, labels, clusters, feature_names(features, data.X.shape[1]))
    if result.points is None or result.transform.components is not None or result.transform.normalize:
        return None, []
    transform = result.transform
    names = feature_names(result.columns, transform.n_features)
    rows = result.points.map_blocks(unscaled, transform.scale, transform.center, dtype=np.float64, token="features")
    if result.n_clustered < result.n_rows:
        labels = of_clustered(labels, result)
    return _surveyed(rows, labels, clusters, tuple(names[at] for at in transform.kept.tolist()))


def _surveyed(
    rows: Any, labels: Any, clusters: Sequence[int], features: tuple[str, ...]
) -> tuple[Profile, list[Rules]]:
    part = survey(rows, labels, clusters)
    profile = profile_of(part, features, clusters)
    if profile.effect.size > MOST_RULES:
        return profile, []
    return profile, [rules_of(part, at, features, profile.effect[at]) for at in range(len(clusters))]
