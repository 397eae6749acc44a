"""What a cluster is, in words: the features that set it apart, and rules that tell its rows from all others."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from cns_dask.errors import plain_text
from cns_dask.results.profile import Part, Profile
from cns_dask.results.rules import Rules, rules_of

SHOWN_FEATURES = 8  # in what is printed
LEAST_EFFECT = 0.2  # below, a difference is small (Cohen)


@dataclass(frozen=True)
class FeatureEffect:
    """How a feature sets a cluster apart."""

    name: str
    effect: float  # difference of the means in pooled standard deviations (Cohen's d)
    mean: float  # of the cluster, and of all other clusters
    rest: float


@dataclass(frozen=True, repr=False)
class Explanation:
    """What sets a cluster apart from all others.

    Examples
    --------
    >>> from cns_dask import CNS
    >>> from sklearn.datasets import load_iris
    >>> iris = load_iris(as_frame=True).data[["sepal width (cm)", "petal length (cm)"]]
    >>> CNS(n_clusters=2).fit(iris).result_.explain(1, iris)
    cluster 1: 49 rows, 33 % of all
      petal length (cm)    -4.6   1.465 here, 4.87 elsewhere
      sepal width (cm)     +1.7   3.451 here, 2.866 elsewhere
    rule: petal length (cm) <= 2.45
      98 % of the rows that it holds for are in the cluster, 100 % of the cluster's rows follow it
    """

    cluster: int  # its number
    n_rows: int
    share: float  # of all rows that are in a cluster
    features: tuple[FeatureEffect, ...]  # all of them, those that set it apart most first
    rules: Rules

    def __repr__(self) -> str:
        lines = [f"cluster {self.cluster}: {self.n_rows} rows, {100 * self.share:.0f} % of all"]
        shown = self.shown_features
        width = max((len(plain_text(each.name)) for each in shown), default=0)
        lines += [
            f"  {plain_text(each.name):{width}}  {each.effect:+6.1f}   {each.mean:.4g} here, {each.rest:.4g} elsewhere"
            for each in shown
        ]
        if not shown:
            lines.append("  no feature sets it apart")
        lines += [f"{head}: {plain_text(str(rule))}" for head, rule in zip(self._heads, self.rules.rules, strict=True)]
        return "\n".join([*lines, *(f"  {line}" for line in self._rightness)])

    @property
    def shown_features(self) -> tuple[FeatureEffect, ...]:
        """The first few of the features, without those that differ little."""
        return tuple(each for each in self.features[:SHOWN_FEATURES] if abs(each.effect) >= LEAST_EFFECT)

    @property
    def _heads(self) -> list[str]:
        return ["rule", *["or"] * (len(self.rules.rules) - 1)] if self.rules.rules else []

    @property
    def _rightness(self) -> list[str]:
        if not self.rules.rules:
            return ["no simple rule tells it from the others"]
        it = "it" if len(self.rules.rules) == 1 else "one of them"
        return [
            f"{_percent(self.rules.precision)} of the rows that {it} holds for are in the cluster, "
            f"{_percent(self.rules.recall)} of the cluster's rows follow {it}"
        ]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values, for JSON; missing values are None.

        Examples
        --------
        >>> from cns_dask.demo import demo_points, demo_result
        >>> demo_result().explain(2, demo_points(300)).to_dict()["rows"]
        49
        """
        return {
            "cluster": self.cluster,
            "rows": self.n_rows,
            "share": self.share,
            "features": [
                {"name": each.name, "effect": each.effect, "mean": _number(each.mean), "rest": _number(each.rest)}
                for each in self.features
            ],
            "rules": [
                {"rule": str(rule), "precision": rule.precision, "recall": rule.recall} for rule in self.rules.rules
            ],
            "precision": self.rules.precision,
            "recall": self.rules.recall,
        }

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(each.name)}</td><td>{each.effect:+.1f}</td>"
            f"<td>{each.mean:.4g}</td><td>{each.rest:.4g}</td></tr>"
            for each in self.shown_features
        )
        rules = " or<br>".join(f"<code>{escape(str(rule))}</code>" for rule in self.rules.rules)
        return (
            f"<b>cluster {self.cluster}</b>: {self.n_rows} rows, {100 * self.share:.0f} % of all"
            "<table><thead><tr><th style='text-align:left'>feature</th><th>effect</th><th>mean here</th>"
            f"<th>elsewhere</th></tr></thead><tbody>{rows}</tbody></table>"
            f"<p>{rules}{rules and '<br>'}{escape(' '.join(self._rightness))}</p>"
        )


def _percent(share: float) -> str:
    """A share in words that never says all where some are missing."""
    return f"{100 * share if share == 1 else min(100 * share, 99.4):.0f} %"


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def explain_cluster(part: Part, profile: Profile, at: int) -> Explanation:
    """What sets the cluster at a position apart."""
    order = np.argsort(-np.abs(profile.effect[at]), kind="stable")
    effects = tuple(
        FeatureEffect(
            profile.features[feature],
            float(profile.effect[at, feature]),
            float(profile.mean[at, feature]),
            float(profile.rest[at, feature]),
        )
        for feature in order.tolist()
    )
    size, total = int(profile.sizes[at]), int(profile.sizes.sum())
    rules = rules_of(part, at, profile.features, profile.effect[at])
    return Explanation(profile.clusters[at], size, size / max(1, total), effects, rules)
