"""Rules that tell a cluster from all others: the branches of a small decision tree, in words.

The tree is scikit-learn's, and learns from some rows of each cluster. The more the rows of the cluster count beside all
others, the more of them its rules hold for, and the more often they are wrong: of some such trees that one is taken
whose rules have the best F1 score, the harmonic mean of precision and recall.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.results.profile import Part

MOST_ROWS = 4000  # of the cluster, and of all others, that the tree learns from
LEAST_ROWS = 20  # of each of the others
DEPTH = 3  # conditions that a rule may have
LEAST_GAIN = 0.02  # that a branch must bring, as a share of what there is to be gained
SHARES = (0.2, 0.5)  # of the rows of the cluster in what a tree learns from, besides the real one
MOST_FEATURES = 50  # that it learns from, those with the largest effects
LEAST_RECALL = 0.1  # of a rule that is told
DIGITS = 3  # of a threshold, unless it takes more to tell two values apart


@dataclass(frozen=True)
class Condition:
    """A bound on a feature: at most, or above, a threshold."""

    feature: int  # its position among those that rules are made of
    name: str
    is_upper: bool
    threshold: float

    def __str__(self) -> str:
        return f"{self.name} {'<=' if self.is_upper else '>'} {self.threshold:.15g}"

    def holds(self, rows: FloatArray) -> Any:
        """Whether it holds for each of some rows (m,)."""
        below = rows[:, self.feature] <= self.threshold
        return below if self.is_upper else ~below


@dataclass(frozen=True)
class Rule:
    """Conditions that all hold, with the shares of rows for which they are right."""

    conditions: tuple[Condition, ...]
    precision: float  # share of the rows for which they hold that are in the cluster
    recall: float  # share of the cluster's rows for which they hold

    def __str__(self) -> str:
        return " and ".join(map(str, self.conditions))

    def holds(self, rows: FloatArray) -> Any:
        """Whether it holds for each of some rows (m,)."""
        return np.logical_and.reduce([condition.holds(rows) for condition in self.conditions])


@dataclass(frozen=True)
class Rules:
    """Rules of which any may hold, those for the most rows first; and how right they are together."""

    rules: tuple[Rule, ...]
    precision: float  # as of a rule
    recall: float
    n_rows: int  # rows from which they were learned, and counted

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return 2 * self.precision * self.recall / max(self.precision + self.recall, 1e-300)


def rules_of(part: Part, cluster: int, features: Sequence[str], effect: FloatArray | None = None) -> Rules:
    """Rules for the cluster at a position, from rows that a survey has kept; none if there is no other cluster.

    `effect` (d,) are effect sizes: of many features only those with the largest ones are in the rules.
    """
    rows, inside, weights = _rows(part, cluster)
    if effect is not None and len(effect) > MOST_FEATURES:
        chosen = np.sort(np.argsort(-np.abs(effect), kind="stable")[:MOST_FEATURES])
        rows, features = rows[:, chosen], [features[at] for at in chosen.tolist()]
    if inside.all() or not inside.any():
        return Rules((), 0.0, 0.0, len(rows))
    real = weights[inside].sum() / weights.sum()
    shares = [real, *(share for share in SHARES if share > real)]
    candidates = [_rules(rows, inside, weights, share, features) for share in shares]
    return max(candidates, key=lambda rules: rules.f1)


def _rules(rows: FloatArray, inside: Any, weights: FloatArray, share: float, features: Sequence[str]) -> Rules:
    """The rules of one tree, for which the rows of the cluster count as this share of all."""
    counts = np.where(inside, share * weights / weights[inside].sum(), (1 - share) * weights / weights[~inside].sum())
    found = [
        Rule(conditions, *_rightness(_holds(conditions, rows), inside, weights))
        for conditions in _branches(rows, inside, counts, features)
    ]
    found = sorted((rule for rule in found if rule.recall >= LEAST_RECALL), key=lambda rule: -rule.recall)
    together = np.logical_or.reduce([rule.holds(rows) for rule in found]) if found else np.zeros(len(rows), bool)
    return Rules(tuple(found), *_rightness(together, inside, weights), len(rows))


def _rows(part: Part, cluster: int) -> tuple[FloatArray, Any, FloatArray]:
    """Rows to learn from, whether each is in the cluster, and how many rows it stands for."""
    K = len(part.sizes)
    limits = np.full(K, max(LEAST_ROWS, MOST_ROWS // max(1, K - 1)))
    limits[cluster] = MOST_ROWS
    rank = np.arange(len(part.labels)) - np.searchsorted(part.labels, part.labels)  # by hash within each cluster
    taken = rank < limits[part.labels]
    labels, rows = part.labels[taken], part.rows[taken]
    counts: IntArray = np.maximum(1, np.bincount(labels, minlength=K))
    return _filled(rows), labels == cluster, (part.sizes / counts)[labels]


def _filled(rows: FloatArray) -> FloatArray:
    """The rows with the median of the feature instead of values that are not finite."""
    finite = np.isfinite(rows)
    if finite.all():
        return rows
    middle = [np.median(values[known]) if known.any() else 0.0 for values, known in zip(rows.T, finite.T, strict=True)]
    return np.where(finite, rows, middle)


def _rightness(holds: Any, inside: Any, weights: FloatArray) -> tuple[float, float]:
    """Precision and recall of what holds for some rows."""
    both = weights[holds & inside].sum()
    return float(both / max(weights[holds].sum(), 1e-300)), float(both / weights[inside].sum())


def _holds(conditions: Sequence[Condition], rows: FloatArray) -> Any:
    return np.logical_and.reduce([condition.holds(rows) for condition in conditions])


def _branches(rows: FloatArray, inside: Any, weights: FloatArray, names: Sequence[str]) -> list[tuple[Condition, ...]]:
    """The conditions on the way to every branch of a tree that says: in the cluster; `weights` sum to 1."""
    from sklearn.tree import DecisionTreeClassifier

    # scikit-learn rounds to single precision, in which large values may be all the same
    scale = rows.std(axis=0)
    scaled = ((rows - rows.mean(axis=0)) / np.where(scale > 0, scale, 1)).astype(np.float32)
    share = weights[inside].sum()
    least = LEAST_GAIN * 2 * share * (1 - share)  # Gini impurity of all rows
    tree = DecisionTreeClassifier(max_depth=DEPTH, ccp_alpha=least, min_samples_leaf=3, random_state=0)
    nodes = tree.fit(scaled, inside, sample_weight=weights).tree_
    found: list[tuple[Condition, ...]] = []

    def says_yes(node: int) -> bool | None:
        """Whether all branches below say: in the cluster; None if they differ."""
        if nodes.children_left[node] < 0:
            return bool(nodes.value[node, 0, 1] > nodes.value[node, 0, 0])
        left, right = says_yes(nodes.children_left[node]), says_yes(nodes.children_right[node])
        return left if left == right else None

    def walk(node: int, conditions: tuple[Condition, ...]) -> None:
        answer = says_yes(node)
        if answer is None:
            at, name = int(nodes.feature[node]), str(names[nodes.feature[node]])
            below = scaled[:, at] <= nodes.threshold[node]
            threshold = round_between(rows[below, at].max(), rows[~below, at].min())
            walk(nodes.children_left[node], (*conditions, Condition(at, name, True, threshold)))
            walk(nodes.children_right[node], (*conditions, Condition(at, name, False, threshold)))
        elif answer and conditions:
            found.append(tightest(conditions))

    walk(0, ())
    return found


def tightest(conditions: Sequence[Condition]) -> tuple[Condition, ...]:
    """The conditions without those that follow from others."""
    bounds: dict[tuple[int, bool], Condition] = {}
    for each in conditions:
        key = each.feature, each.is_upper
        known = bounds.get(key)
        if known is None or (each.threshold < known.threshold) == each.is_upper:
            bounds[key] = each
    return tuple(bounds.values())


def round_between(low: float, high: float) -> float:
    """A number of few digits near the middle of two numbers, not below the first and below the second.

    Examples
    --------
    >>> round_between(1.9, 3.0), round_between(0.30001, 0.30002)
    (2.45, 0.300015)
    """
    middle = low + (high - low) / 2
    candidates = (float(f"{middle:.{digits}g}") for digits in range(DIGITS, 18))
    return next((each for each in candidates if low <= each < high), float(low))
