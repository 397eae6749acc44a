"""The scales of a result: which numbers of clusters are stable, and how the clusters of one lie in those of another."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.smoothing.scales import SMALLEST_RATE

if TYPE_CHECKING:
    from cns_dask.results.result import Result

Node = tuple[int, int]  # a layer, 0 the finest, and the number of a cluster in it


@dataclass(frozen=True)
class Scale:
    """A number of clusters that is stable over a range of walk lengths.

    Walks of fewer steps than the range have not mixed inside the clusters yet, those of more have begun to leave them.
    """

    n_clusters: int
    evidence: float  # how far it stands out from data without structure
    share: float  # its share of the evidence for all numbers of clusters
    steps: tuple[float, float]  # the range; infinite if walks never leave


@dataclass(frozen=True)
class Layer:
    """The clusters of one scale."""

    n_clusters: int
    labels: da.Array  # cluster of every row, lazily (n,)
    sizes: IntArray  # rows of each cluster (K,); of a fit of a sample, sampled rows
    #: Share of the rows of each cluster that are in one cluster of the next coarser layer; all of them in the last one
    purity: FloatArray


def stable_scales(result: Result) -> list[Scale]:
    """The numbers of clusters that stand out, and more so than those next to them; best first."""
    rates, grid = result.stored("rates")[...], result.grid
    evidence, total = result.evidence.values, result.evidence.total
    padded = np.concatenate([[0.0], total, [0.0]])
    is_peak = (total >= result.evidence.least_structure) & (total >= padded[:-2]) & (total > padded[2:])
    found = []
    for K in (np.flatnonzero(is_peak) + 1).tolist():
        at = int(evidence[:, K - 1].argmax())
        leave, mix = rates[at, K - 1], rates[at, K]
        first, last = (float(1 / (grid.lams[0] * max(rate, SMALLEST_RATE))) for rate in (mix, leave))
        range_of_steps = first, last if leave > SMALLEST_RATE else float("inf")
        found.append(Scale(K, float(total[K - 1]), float(total[K - 1] / total.sum()), range_of_steps))
    return sorted(found, key=lambda scale: -scale.evidence)


def layers_of(result: Result) -> list[Layer]:
    """The clusters of all stable scales, from fine to coarse; those of the fit alone if no scale is stable."""
    numbers = sorted((scale.n_clusters for scale in stable_scales(result)), reverse=True)
    if numbers:
        labels = [result.at(n_clusters=K, selection="scales").labels for K in numbers]
    else:
        numbers, labels = [len(result.clusters)], [result.labels]
    counts = [contingency(fine, coarse) for fine, coarse in itertools.pairwise(labels)]
    whole = contingency(labels[-1], _counted(result))
    layers = []
    for K, each, table in zip(numbers, labels, [*counts, whole], strict=True):
        sizes = table.sum(axis=1)
        layers.append(Layer(K, each, sizes, table.max(axis=1) / np.maximum(sizes, 1)))
    return layers


def _counted(result: Result) -> da.Array:
    """0 for rows that count for sizes; of a sample these are its own, because only they have labels at every scale."""
    if result.sample is None:
        return da.zeros_like(result.labels)
    return da.minimum(result.stored("codes").lazy(), 0)


def tree_of(layers: list[Layer]) -> dict[Node, list[Node]]:
    """Which clusters of the finer layer lie in each cluster, mostly; the root holds those of the coarsest.

    The form is that of EVoC's `cluster_tree_`: children by parent, each a layer (0 is the finest) and a cluster, and
    the root in a layer of its own.
    """
    tree: dict[Node, list[Node]] = {
        (len(layers), 0): [(len(layers) - 1, cluster) for cluster in range(layers[-1].n_clusters)]
    }
    for at, (fine, coarse) in enumerate(itertools.pairwise(layers)):
        parents = contingency(fine.labels, coarse.labels).argmax(axis=1)
        for cluster, parent in enumerate(parents.tolist()):
            tree.setdefault((at + 1, parent), []).append((at, cluster))
    return tree


def contingency(first: da.Array, second: da.Array) -> IntArray:
    """Number of rows in each cluster of one clustering and of another (first, second), chunk by chunk."""
    second = second.rechunk(first.chunks)
    blocks = zip(first.to_delayed().ravel(), second.to_delayed().ravel(), strict=True)
    parts = dask.compute(*(dask.delayed(count_pairs)(*pair) for pair in blocks))
    shape = tuple(max(part.shape[axis] for part in parts) for axis in (0, 1))
    total = np.zeros(shape, np.int64)
    for part in parts:
        total[: part.shape[0], : part.shape[1]] += part
    return total


def sizes_of(labels: da.Array) -> IntArray:
    """Number of rows in each cluster, chunk by chunk."""
    return np.asarray(contingency(labels, da.zeros_like(labels))[:, 0])


def count_pairs(first: IntArray, second: IntArray) -> IntArray:
    """The same of some rows; those that are in no cluster do not count.

    Examples
    --------
    >>> count_pairs(np.array([0, 1, 1, -1]), np.array([0, 0, 1, 1]))
    array([[1, 0],
           [1, 1]])
    """
    known = (first >= 0) & (second >= 0)
    table = np.zeros((int(first.max(initial=0)) + 1, int(second.max(initial=0)) + 1), np.int64)
    np.add.at(table, (first[known], second[known]), 1)
    return table


def explain(result: Result) -> list[str]:
    """How the choice was made, in words."""
    selection, choice = result.selection, result.choice
    dimension = "" if selection.dimension is None else f" (intrinsic dimension {selection.dimension:.1f})"
    by = "by the paper's criterion" if choice.selection == "paper" else f"by {choice.selection}"
    lines = [
        f"chosen {by}, because {selection.why}{dimension}: k = {choice.n_neighbors}, lam = {choice.lam:.4g}",
    ]
    if result.scaling is not None:
        lines.append(result.scaling)
    others = [scale for scale in stable_scales(result) if scale.n_clusters != choice.n_clusters]
    if others:
        words = ", ".join(f"{scale.n_clusters} ({100 * scale.share:.0f} %)" for scale in others[:5])
        lines.append(f"other stable numbers of clusters, with their share of the evidence: {words}")
    return lines
