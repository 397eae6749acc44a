"""What each cluster is like: moments, quantiles and effect sizes of every feature, in one pass over the rows.

Each chunk of rows becomes a `Part`, and parts are merged in a tree, few at a time, so memory does not grow with the
number of rows. Moments are merged as by Chan, Golub and LeVeque (1983). Quantiles are those of some rows of each
cluster, the ones with the smallest hashes of their row numbers: the same rows for any chunking, and all of them where a
cluster has no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.execution.cluster import delayed_chunks
from cns_dask.execution.compute import compute, merged
from cns_dask.inputs.sampling import row_hashes
from cns_dask.inputs.xarrays import labeled_dataset
from cns_dask.storage.chunks import FLOAT_BYTES, clip, row_slices

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
SAMPLE_BYTES = 32 * 2**20  # of the rows that a part keeps for quantiles
MOST_SAMPLED, LEAST_SAMPLED = 2000, 64  # of them per cluster
STEP_BYTES = 8 * 2**20  # of the rows of a chunk that are summed at a time
LARGEST_EFFECT = 1000.0  # where a feature is constant on both sides, but not the same
ROUNDING = 64 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Profile:
    """The features of each cluster; NaN where a cluster has no value of a feature."""

    features: tuple[str, ...]  # their names (d,)
    sizes: IntArray  # rows of each cluster (K,)
    mean: FloatArray  # of the values that are finite (K, d)
    std: FloatArray  # divided by their number, not by one less (K, d)
    #: Difference to the mean of all other clusters, in pooled standard deviations (Cohen's d); 0 where nothing varies
    effect: FloatArray
    levels: tuple[float, ...]  # of the quantiles
    quantiles: FloatArray  # (K, levels, d); of a sample, where clusters are large
    clusters: tuple[int, ...]  # their numbers (K,)
    rest: FloatArray  # mean of the rows of all other clusters (K, d); NaN if there are none

    def to_xarray(self) -> Any:
        """The same as an xarray Dataset with the dimensions cluster, feature and quantile.

        Examples
        --------
        >>> rows, labels = da.from_array(np.array([[1.0], [3.0], [7.0]])), da.from_array(np.array([0, 0, 1]))
        >>> profile_rows(rows, labels, 2, ["height"]).to_xarray()["mean"].sel(feature="height").values
        array([2., 7.])
        """
        per_feature = ("cluster", "feature")
        arrays = {
            "size": (("cluster",), self.sizes),
            "mean": (per_feature, self.mean),
            "std": (per_feature, self.std),
            "effect": (per_feature, self.effect),
            "quantiles": (("cluster", "quantile", "feature"), self.quantiles),
        }
        names: dict[str, list[Any]] = {
            "cluster": list(self.clusters),
            "feature": list(self.features),
            "quantile": list(self.levels),
        }
        return labeled_dataset(arrays, names, "A profile")


@dataclass(frozen=True)
class Part:
    """What is known of some rows: sums by cluster and feature, and those of them that are kept for quantiles."""

    sizes: IntArray  # rows by cluster (K,)
    counts: FloatArray  # values that are finite (K, d)
    mean: FloatArray  # of these; 0 where there is none
    squares: FloatArray  # sum of their squared differences to the mean
    hashes: Any  # of the kept rows, by cluster and then ascending (s,)
    labels: IntArray  # their clusters
    rows: FloatArray  # (s, d)


def profile_rows(
    rows: da.Array,
    labels: da.Array,
    n_clusters: int,
    features: Sequence[Any] | None = None,
    clusters: Sequence[int] | None = None,
) -> Profile:
    """Profile the rows of each cluster, in one pass.

    Parameters
    ----------
    rows
        Rows in any unit (n, d). Values that are not finite are left out.
    labels
        Cluster of every row (n,); rows with a label that is none of the clusters are left out.
    n_clusters
        Number of clusters K.
    features
        Their names; "feature 0", "feature 1", ... if None.
    clusters
        The numbers of the clusters as in `labels`, ascending; 0 to K - 1 if None.

    Examples
    --------
    >>> rows = da.from_array(np.array([[1.0, 5], [3, 5], [7, 5], [9, 5]]), chunks=(2, 2))
    >>> profile = profile_rows(rows, da.from_array(np.array([0, 0, 1, 1])), 2, ["height", "legs"])
    >>> profile.mean
    array([[2., 5.],
           [8., 5.]])
    >>> profile.effect.round(1)
    array([[-4.2,  0. ],
           [ 4.2,  0. ]])
    """
    numbers = range(n_clusters) if clusters is None else clusters
    return profile_of(survey(rows, labels, numbers), feature_names(features, int(rows.shape[1])), numbers)


def survey(rows: da.Array, labels: da.Array, clusters: Sequence[int], *, here: bool = False) -> Part:
    """What is known of all rows, in one pass; in this process if they are `here` already, else on the workers."""
    numbers, n_features = np.asarray(clusters), int(rows.shape[1])
    kept = clip(SAMPLE_BYTES // (FLOAT_BYTES * len(numbers) * n_features), LEAST_SAMPLED, MOST_SAMPLED)
    starts = np.cumsum([0, *rows.chunks[0][:-1]]).tolist()
    of_rows = labels.rechunk({0: rows.chunks[0]}).to_delayed().ravel()
    parts = [
        dask.delayed(profile_block)(block, of_block, start, numbers, kept)
        for block, of_block, start in zip(delayed_chunks(rows), of_rows, starts, strict=True)
    ]
    task = merged(parts, merge_parts, kept)
    part: Part = task.compute(scheduler="threads") if here else compute([task], stage="profile")[0]
    return part


def feature_names(names: Sequence[Any] | None, n_features: int) -> tuple[str, ...]:
    """Names of features for people.

    Examples
    --------
    >>> feature_names(None, 2), feature_names(["height", 3], 2)
    (('feature 0', 'feature 1'), ('height', '3'))
    """
    return tuple(f"feature {at}" for at in range(n_features)) if names is None else tuple(map(str, names))


def label_positions(labels: IntArray, clusters: IntArray) -> IntArray:
    """Position of every label among cluster numbers, which are sorted; -1 for labels of no cluster.

    Examples
    --------
    >>> label_positions(np.array([7, -1, 2, 3]), np.array([2, 7]))
    array([ 1, -1,  0, -1])
    """
    at = np.minimum(np.searchsorted(clusters, labels), len(clusters) - 1)
    return np.where(clusters[at] == labels, at, -1)


def profile_block(block: FloatArray, labels: IntArray, first_row: int, clusters: IntArray, kept: int) -> Part:
    """What is known of the rows of one chunk, of which `kept` per cluster are kept; some rows at a time."""
    step = max(1, STEP_BYTES // (FLOAT_BYTES * block.shape[1]))
    positions = label_positions(labels, clusters)
    part = None
    for some in row_slices(len(block), step):
        hashes = row_hashes(first_row + some.start, first_row + some.stop, seed=0)
        one = _part(block[some], positions[some], hashes, len(clusters), kept)
        part = one if part is None else merge_parts([part, one], kept)
    return part or _part(block, positions, np.empty(0, np.uint64), len(clusters), kept)


def _part(rows: FloatArray, labels: IntArray, hashes: Any, n_clusters: int, kept: int) -> Part:
    from scipy.sparse import csr_array

    counted = labels >= 0
    if not counted.all():
        rows, labels, hashes = rows[counted], labels[counted], hashes[counted]
    by_cluster = csr_array((np.ones(len(rows)), (labels, np.arange(len(rows)))), shape=(n_clusters, len(rows)))
    finite = np.isfinite(rows)
    values = np.where(finite, rows, 0.0)
    counts = by_cluster @ finite.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # of values whose squares leave the range
        mean = (by_cluster @ values) / np.maximum(counts, 1)
        values -= mean[labels]
        values[~finite] = 0
        mean += (by_cluster @ values) / np.maximum(counts, 1)  # what rounding took from it
        squares = by_cluster @ (values * values)
    sizes = np.bincount(labels, minlength=n_clusters)
    which = _smallest_hashes(labels, hashes, kept)
    return Part(sizes, counts, mean, squares, hashes[which], labels[which], rows[which])


def merge_parts(parts: Sequence[Part], kept: int) -> Part:
    """Two or more parts as one."""
    sizes = np.sum([part.sizes for part in parts], axis=0)
    counts = np.sum([part.counts for part in parts], axis=0)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = np.sum([part.mean * (part.counts / np.maximum(counts, 1)) for part in parts], axis=0)
        squares = np.sum([part.squares + part.counts * (part.mean - mean) ** 2 for part in parts], axis=0)
    hashes = np.concatenate([part.hashes for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    which = _smallest_hashes(labels, hashes, kept)
    rows = np.concatenate([part.rows for part in parts])[which]
    return Part(sizes, counts, mean, squares, hashes[which], labels[which], rows)


def _smallest_hashes(labels: IntArray, hashes: Any, kept: int) -> IntArray:
    """Positions of the rows with the smallest hashes in each cluster, by cluster and hash."""
    order = np.lexsort((hashes, labels))
    ordered = labels[order]
    rank = np.arange(len(order)) - np.searchsorted(ordered, ordered)
    return np.asarray(order[rank < kept])


def profile_of(part: Part, features: tuple[str, ...], clusters: Sequence[int]) -> Profile:
    """The profile of all rows from what is known of them."""
    empty = part.counts == 0
    mean = np.where(empty, np.nan, part.mean)
    std = np.where(empty, np.nan, np.sqrt(part.squares / np.maximum(part.counts, 1)))
    rest, effect = effect_sizes(part.counts, part.mean, part.squares)
    quantiles = np.full((len(mean), len(LEVELS), mean.shape[1]), np.nan)
    for cluster in range(len(mean)):
        rows = part.rows[part.labels == cluster]
        finite = np.isfinite(rows)
        whole = finite.all(axis=0) & (len(rows) > 0)
        if whole.any():
            quantiles[cluster][:, whole] = np.quantile(rows[:, whole], LEVELS, axis=0)
        for feature in np.flatnonzero(finite.any(axis=0) & ~whole):
            quantiles[cluster, :, feature] = np.quantile(rows[finite[:, feature], feature], LEVELS)
    return Profile(features, part.sizes, mean, std, effect, LEVELS, quantiles, tuple(map(int, clusters)), rest)


def effect_sizes(counts: FloatArray, mean: FloatArray, squares: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Means of all other clusters, and Cohen's d of each cluster against them (K, d).

    They follow from the counts, means and sums of squared differences to the means of each cluster.

    Examples
    --------
    >>> effect_sizes(np.array([[5.0], [5.0]]), np.array([[0.0], [3.0]]), np.array([[4.0], [4.0]]))[1]
    array([[-3.],
           [ 3.]])
    """
    rest, effect = np.full_like(mean, np.nan), np.zeros_like(mean)
    for cluster in range(len(mean)):
        others = np.arange(len(mean)) != cluster
        n_here, n_rest = counts[cluster], counts[others].sum(axis=0)
        with np.errstate(all="ignore"):
            rest[cluster] = (counts[others] * mean[others]).sum(axis=0) / n_rest
            between = (counts[others] * (mean[others] - rest[cluster]) ** 2).sum(axis=0)
            pooled = np.sqrt((squares.sum(axis=0) + between) / np.maximum(1, n_here + n_rest - 2))
            difference = mean[cluster] - rest[cluster]
            noise = ROUNDING * np.maximum(np.abs(mean[cluster]), np.abs(rest[cluster]))
            ratio = np.clip(difference / pooled, -LARGEST_EFFECT, LARGEST_EFFECT)
        effect[cluster] = np.where((np.abs(difference) > noise) & (n_here > 0) & (n_rest > 0), ratio, 0.0)
    return rest, np.nan_to_num(effect)
