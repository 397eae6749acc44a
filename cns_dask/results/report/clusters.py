"""What a page tells of each cluster: size, confidence, the features that set it apart, rows to look at, neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup

from cns_dask.array_types import FloatArray
from cns_dask.results.report.charts import confidence_strip
from cns_dask.results.report.diagrams import heat_map, signed
from cns_dask.results.report.shown import Shown
from cns_dask.results.report.svg import clean, contrasting, number

TOP_FEATURES = 5
NEAREST = 3
LEAST_OVERLAP = 0.005
MOST_FEATURES, MOST_CLUSTERS = 30, 60  # of the heat map
LONGEST = 1.0, 12.0  # effects between which the largest one has the longest bar


@dataclass(frozen=True)
class Feature:
    """One feature of a cluster."""

    name: str
    effect: str
    start: float  # of its bar, in percent from the left, and how long it is; the middle is no effect
    length: float
    is_above: bool
    mean: str
    rest: str  # where half of the cluster's rows lie


@dataclass(frozen=True)
class Card:
    """One cluster."""

    cluster: int
    color: str
    ink: str  # for text on the colour
    size: int
    share: float
    confidence: Markup
    features: list[Feature]
    exemplars: list[int]
    nearest: list[tuple[int, float]]
    representative: int | None
    rules: list[str]  # conditions of which any holds, and how right they are
    right: str


def cards(shown: Shown, colors: Sequence[str]) -> list[Card]:
    """All clusters, in the order of their numbers."""
    total = max(1, int(shown.sizes.sum()))
    known = None if shown.is_other else shown.result.representatives.tolist()
    found = []
    for at, (cluster, color) in enumerate(zip(shown.clusters, colors, strict=True)):
        overlap = np.array(shown.overlap[at])
        overlap[at] = 0
        nearest = [each for each in np.argsort(-overlap, kind="stable")[:NEAREST] if overlap[each] >= LEAST_OVERLAP]
        found.append(
            Card(
                cluster=cluster,
                color=color,
                ink=contrasting(color),
                size=int(shown.sizes[at]),
                share=float(shown.sizes[at] / total),
                confidence=confidence_strip(shown.confidence_counts[at], color, f"cluster {cluster}"),
                features=_features(shown, at),
                exemplars=[row for row in shown.exemplars[at].tolist() if row >= 0],
                nearest=[(shown.clusters[each], float(overlap[each])) for each in nearest],
                representative=None if known is None else known[at],
                **_rules(shown, at),
            )
        )
    return found


def _rules(shown: Shown, at: int) -> dict[str, Any]:
    if not shown.rules or not shown.rules[at].rules:
        return {"rules": [], "right": ""}
    rules = shown.rules[at]
    right = f"holds for {rules.recall:.0%} of its rows, and is right for {rules.precision:.0%}"
    return {"rules": [clean(str(rule)) for rule in rules.rules], "right": right}


def _features(shown: Shown, at: int) -> list[Feature]:
    """The features that set a cluster apart most."""
    profile = shown.profile
    if profile is None:
        return []
    effects = profile.effect[at]
    longest = float(np.clip(np.abs(profile.effect).max(initial=0), *LONGEST))
    quarter, three = profile.levels.index(0.25), profile.levels.index(0.75)
    found = []
    for feature in np.argsort(-np.abs(effects), kind="stable")[:TOP_FEATURES].tolist():
        effect = float(effects[feature])
        if not effect:
            continue
        length = 50 * min(abs(effect) / longest, 1)
        low, high = (float(profile.quantiles[at, level, feature]) for level in (quarter, three))
        found.append(
            Feature(
                name=clean(profile.features[feature]),
                effect=signed(effect),
                start=50.0 if effect >= 0 else 50 - length,
                length=length,
                is_above=effect >= 0,
                mean=number(float(profile.mean[at, feature])),
                rest=f"{number(low)} to {number(high)}",
            )
        )
    return found


def heat_rows(shown: Shown, colors: Sequence[str]) -> dict[str, Any] | None:
    """The heat map of features and clusters, both in an order that puts like beside like, and its table."""
    profile = shown.profile
    if profile is None or len(shown.clusters) < 2:
        return None
    order = shown.order
    if len(order) > MOST_CLUSTERS:
        largest = set(np.argsort(-shown.sizes, kind="stable")[:MOST_CLUSTERS].tolist())
        order = [at for at in order if at in largest]
    effect = profile.effect[order]
    strongest = np.argsort(-np.abs(effect).max(axis=0), kind="stable")[:MOST_FEATURES]
    strongest = strongest[np.abs(effect[:, strongest]).max(axis=0) > 0]
    if not len(strongest):
        return None
    features = strongest[feature_order(effect[:, strongest])]
    names = [clean(profile.features[feature]) for feature in features.tolist()]
    clusters, shades = [shown.clusters[at] for at in order], [colors[at] for at in order]
    values = effect[:, features].T
    return {
        "picture": heat_map(values, names, clusters, shades),
        "clusters": clusters,
        "rows": [(name, [signed(value) for value in row]) for name, row in zip(names, values.tolist(), strict=True)],
        "hidden_features": len(profile.features) - len(names),
        "hidden_clusters": len(shown.clusters) - len(clusters),
    }


def feature_order(effect: FloatArray) -> Any:
    """Features (of effects by cluster and feature) by the cluster that they set apart most: a diagonal.

    Examples
    --------
    >>> feature_order(np.array([[0.1, 3.0, 0.0], [-2.0, 0.1, 0.2], [0.0, 0.0, 1.0]]))
    array([1, 0, 2])
    """
    of_cluster = np.abs(effect).argmax(axis=0)
    return np.lexsort((-np.abs(effect).max(axis=0), of_cluster))
