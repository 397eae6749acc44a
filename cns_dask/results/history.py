"""What has changed between two fits, as records and in words."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Drift:
    """New rows against those of a fit."""

    n_rows: int  # rows, and those among them that are no row of the fit
    n_new: int
    #: Share of these that lie outside: farther from their nearest row of the fit than that row's own neighbours
    outside: float
    confidence: float  # mean confidence of the new rows under the model, and of the rows of the fit
    confidence_before: float


@dataclass(frozen=True)
class Changes:
    """Clusters of a fit against those of a previous one."""

    births: tuple[int, ...]  # clusters that are new: no old one has most of its rows there
    deaths: tuple[int, ...]  # old clusters of which nothing is left
    splits: tuple[tuple[int, tuple[int, ...]], ...]  # old clusters whose rows are now in several, with these
    merges: tuple[tuple[int, tuple[int, ...]], ...]  # clusters that hold most rows of several old ones, with these
    #: Share of the rows that can be compared (at their old row numbers, or near old rows) that keep their number
    kept: float
    drift: Drift  # the rows against those of the previous fit


@dataclass(frozen=True)
class Numbering:
    """The numbers of the clusters of a fit."""

    numbers: list[int]  # of every cluster, in the order of the columns of the absorption
    next_number: int  # the smallest that no cluster has had, here or in the fits that this one followed
    changes: Changes | None = None  # since the previous fit, if there was one


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
