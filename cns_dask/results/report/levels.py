"""The numbers of clusters that a page can show on its map, how their clusters are coloured, and the tree of scales."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dask.array as da
import numpy as np

from cns_dask.array_types import IntArray
from cns_dask.results.colors import PALETTE, cluster_colors
from cns_dask.results.profile import label_positions
from cns_dask.results.report.diagrams import Bar
from cns_dask.results.report.shown import Shown

SOLVED_ROWS = 50_000  # clustered rows up to which other numbers of clusters are solved for, for a page
MOST_LEVELS = 8


@dataclass(frozen=True)
class Layer:
    """A stable number of clusters: the cluster of every row, lazily (n,)."""

    n_clusters: int
    labels: da.Array


@dataclass(frozen=True)
class Level:
    """A number of clusters, and the cluster of each sampled row by position; -1 for none."""

    n_clusters: int
    clusters: list[int]  # their numbers
    at: IntArray
    colors: list[str]


def layers_of(shown: Shown) -> list[Layer]:
    """The clusters of the stable scales with most evidence, fine to coarse.

    Those of few rows are solved for, as by `Result.at`. Of many rows only what is stored is used: finer ones where they
    are, and coarser ones else by joining the shown clusters as their candidates are joined.
    """
    result, layers = shown.result, []
    for scale in result.scales[:MOST_LEVELS]:
        K = scale.n_clusters
        if result.n_clustered <= SOLVED_ROWS or result.is_solved(K, "scales"):
            layers.append(Layer(K, result.at(n_clusters=K, selection="scales").labels))
        elif len(shown.clusters) == K:
            layers.append(Layer(K, shown.clustering.labels))  # nearly the same, chosen by the criterion
        elif len(shown.clusters) > K and (parents := joined(shown, K)) is not None:
            numbers = np.asarray(shown.clusters)
            labels = shown.clustering.labels.map_blocks(join_block, numbers, parents, dtype=np.int64, token="join")
            layers.append(Layer(K, labels))
    return sorted(layers, key=lambda layer: -layer.n_clusters)


def joined(shown: Shown, n_clusters: int) -> IntArray | None:
    """The one of fewer clusters that most candidates of each shown cluster are in (K,); None if some has none."""
    result = shown.result
    at_k = result.grid.ks.index(result.choice_at(n_clusters, "scales").n_neighbors)
    rows, coarse = result.stored("candidates")[at_k], result.stored("candidate_clusters")[at_k, n_clusters - 1]
    known = (rows >= 0) & (coarse >= 0)
    rows, coarse = rows[known], coarse[known]
    order = np.argsort(rows, kind="stable")
    fine = label_positions(shown.clustering.labels[rows[order]].compute(), np.asarray(shown.clusters))
    table = np.zeros((len(shown.clusters), n_clusters), np.int64)
    np.add.at(table, (fine[fine >= 0], coarse[order][fine >= 0]), 1)
    parents = table.argmax(axis=1)
    is_whole = table.any(axis=1).all() and len(np.unique(parents)) == n_clusters
    return parents if is_whole else None


def join_block(labels: IntArray, numbers: IntArray, parents: IntArray) -> IntArray:
    """Labels of fewer clusters; rows of no cluster stay so.

    Examples
    --------
    >>> join_block(np.array([4, -3, 7]), np.array([4, 7]), np.array([1, 0]))
    array([ 1, -3,  0])
    """
    at = label_positions(labels, numbers)
    return np.where(at >= 0, parents[at], labels)


def levels_of(shown: Shown, layers: Sequence[Layer], at: IntArray, labels: Sequence[Any]) -> tuple[Level, list[Level]]:
    """The shown clusters, and those of each layer; `labels` are those of sampled rows in each layer."""
    own = Level(len(shown.clusters), shown.clusters, at, cluster_colors(len(shown.clusters)))
    others = []
    for layer, of_rows in zip(layers, labels, strict=True):
        K = layer.n_clusters
        is_own = own.n_clusters == K
        numbers = own.clusters if is_own and np.isin(of_rows[of_rows >= 0], own.clusters).all() else list(range(K))
        positions = label_positions(of_rows, np.asarray(numbers))
        pairs = matched(own, positions, K)
        if is_own and len(pairs) == K:  # nearly the same clusters have the same numbers
            numbers = [own.clusters[pairs[cluster]] for cluster in range(K)]
        unused = itertools.cycle([color for color in PALETTE if color not in own.colors] or PALETTE)
        colors = [own.colors[pairs[cluster]] if cluster in pairs else next(unused) for cluster in range(K)]
        others.append(Level(K, numbers, positions, colors))
    return own, others


def matched(own: Level, at: IntArray, n_clusters: int) -> dict[int, int]:
    """For other clusters, the one of the shown clusters that they share most rows with; each at most once."""
    from scipy.optimize import linear_sum_assignment

    table = contingency(at, own.at, (n_clusters, own.n_clusters))
    pairs = zip(*(each.tolist() for each in linear_sum_assignment(table, maximize=True)), strict=True)
    return {cluster: shown for cluster, shown in pairs if table[cluster, shown]}


def contingency(first: IntArray, second: IntArray, shape: tuple[int, int]) -> IntArray:
    """Rows in each pair of clusters, which are given by position."""
    table = np.zeros(shape, np.int64)
    known = (first >= 0) & (second >= 0)
    np.add.at(table, (first[known], second[known]), 1)
    return table


def tree_bars(levels: Sequence[Level]) -> list[tuple[int, list[Bar]]]:
    """The tree of scales as bars, from levels that come fine to coarse; children side by side below their parent.

    Which clusters lie in which, and how large they are, is that of the sampled rows.
    """
    rows: list[tuple[int, list[Bar]]] = []
    order: list[int] = []
    coarser: Level | None = None
    for level in reversed(levels):
        sizes = np.bincount(level.at[level.at >= 0], minlength=level.n_clusters)
        parents = np.zeros(level.n_clusters, np.int64)
        if coarser is not None:
            table = contingency(level.at, coarser.at, (level.n_clusters, coarser.n_clusters))
            parents = np.asarray([order.index(parent) for parent in table.argmax(axis=1).tolist()])
        order = np.lexsort((np.arange(level.n_clusters), parents)).tolist()
        ends = np.cumsum(sizes[order]) / max(1, int(sizes.sum()))
        bars = [
            Bar(level.clusters[cluster], level.colors[cluster], start, end - start)
            for cluster, start, end in zip(order, [0.0, *ends[:-1].tolist()], ends.tolist(), strict=True)
        ]
        rows.append((level.n_clusters, bars))
        coarser = level
    return rows
