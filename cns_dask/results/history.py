"""What has changed between two fits, as records and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cns_dask.errors import NotAResultError
from cns_dask.storage.records import typed_record


@dataclass(frozen=True)
class Drift:
    """New rows against those of a fit.

    Attributes
    ----------
    n_rows, n_new
        Rows, and those among them that are no row of the fit.
    outside
        Share of these that lie outside: farther from their nearest row of the fit than that row's own neighbours.
    confidence, confidence_before
        Mean confidence of the new rows under the model, and of the rows of the fit.
    """

    n_rows: int
    n_new: int
    outside: float
    confidence: float
    confidence_before: float


@dataclass(frozen=True)
class Changes:
    """Clusters of a fit against those of a previous one.

    Attributes
    ----------
    births
        Clusters that are new: no old one has most of its rows there.
    deaths
        Old clusters of which nothing is left.
    splits
        Old clusters whose rows are now in several, with these.
    merges
        Clusters that hold most rows of several old ones, with these.
    kept
        Share of the rows that can be compared (at their old row numbers, or near old rows) that keep their number.
    drift
        The rows against those of the previous fit.
    """

    births: tuple[int, ...]
    deaths: tuple[int, ...]
    splits: tuple[tuple[int, tuple[int, ...]], ...]
    merges: tuple[tuple[int, tuple[int, ...]], ...]
    kept: float
    drift: Drift


def stored_changes(attribute: Any) -> Changes | None:
    """The changes in the attributes of a result; None if there was no previous fit."""
    if attribute is None:
        return None
    try:
        births, deaths = (tuple(map(int, attribute[name])) for name in ("births", "deaths"))
        splits, merges = (
            tuple((int(one), tuple(map(int, others))) for one, others in attribute[name])
            for name in ("splits", "merges")
        )
        kept, drift = float(attribute["kept"]), typed_record(Drift, attribute["drift"])
    except (KeyError, TypeError, ValueError) as error:
        raise NotAResultError(f"This is not a result of cns_dask: its changes are {attribute!r}.") from error
    return Changes(births, deaths, splits, merges, kept, drift)


def changes_in_words(changes: Changes | None) -> list[str]:
    """One line for each thing that has changed since the previous fit; none if there was none."""
    if changes is None:
        return []
    lines = [f"{changes.kept:.1%} of the rows that can be compared keep their number"]
    lines += [f"cluster {number} is new" for number in changes.births]
    lines += [f"cluster {number} is gone" for number in changes.deaths]
    lines += [f"cluster {old} was split into {_listed(news)}" for old, news in changes.splits]
    lines += [f"clusters {_listed(olds)} were merged into {new}" for new, olds in changes.merges]
    return [*lines, drift_in_words(changes.drift)]


def drift_in_words(drift: Drift) -> str:
    """One line about new rows."""
    return (
        f"{drift.n_new} of {drift.n_rows} rows are new: confidence {drift.confidence:.3f} under the old model, whose "
        f"own rows have {drift.confidence_before:.3f}; {drift.outside:.1%} of them lie outside the old data"
    )


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join([", ".join(map(str, numbers[:-1])), str(numbers[-1])])
