"""How sure a choice is, in words that need no manual: one sentence, and the doubts that a caller is warned about.

What counts as noise is measured. The rows are dealt out to a few parts, each spread over all of the data, and the
criterion of every grid point is known for each part: the noise of a difference of two criteria is the standard error
of its mean over the parts. Evidence for scales has one value for each k, and its noise is the same over the ks.
"""

from dataclasses import dataclass

import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.settings import Grid
from cns_dask.smoothing.criterion import Choice, best_by_n_clusters
from cns_dask.smoothing.memberships import NOISE
from cns_dask.smoothing.scales import Evidence, Selection, least_structure

#: Standard errors by which a runner-up is behind one that is clear, and one that is ahead at all.
CLEAR, AHEAD = 4.0, 1.0
#: Share of the evidence up to which a runner-up leaves no doubt.
CLEAR_SHARE = 0.5
#: Confidence below which a row does not know its cluster, and the share of such rows that is worth a word.
LOW_CONFIDENCE, MOST_ROWS = 0.5, 0.9


@dataclass(frozen=True)
class Verdict:
    """What to think of a choice."""

    sentence: str
    doubts: tuple[str, ...]


@dataclass(frozen=True)
class RunnerUp:
    """The best other number of clusters: by how many standard errors it is behind, and its share of the evidence."""

    n_clusters: int
    errors: float
    share: float | None = None


def judge(
    selection: Selection,
    grid: Grid,
    surface: FloatArray,
    parts: FloatArray,
    evidence: Evidence,
    n_clusters: int | None = None,
) -> Verdict:
    """Put a choice into words.

    Parameters
    ----------
    selection, grid
        The choice, and the axes of the grid.
    surface, parts
        The paper's criterion of every (k, lam, K), and of every part of the rows (part, k, lam, K).
    evidence
        Evidence for every (k, K).
    n_clusters
        The number of clusters if it was given.
    """
    used = selection.used
    if n_clusters is not None:
        return Verdict(f"{clusters_in_words(n_clusters)}, as asked for.", ())
    if used.selection == "communities":
        return Verdict(f"{_communities_in_words(selection)} {_by_the_other(selection)}".strip(), ())
    by_paper = used.selection == "paper"
    other = runner_up_of_scales(used, evidence)
    if by_paper and (other is None or other.share is None or other.share > CLEAR_SHARE):
        other = runner_up_of_paper(used, grid, surface, parts, evidence.n_rows)
    doubts = _doubts(selection, grid, surface, other)
    return Verdict(f"{_sentence(selection, grid, other)} {_by_the_other(selection)}".strip(), doubts)


def runner_up_of_paper(
    used: Choice, grid: Grid, surface: FloatArray, parts: FloatArray, n_rows: int
) -> RunnerUp | None:
    """The best other K by the criterion."""
    others = [each for each in best_by_n_clusters(surface, grid, n_rows) if each.n_clusters != used.n_clusters]
    if not others:
        return None
    first, second = (
        parts[:, grid.ks.index(each.n_neighbors), grid.lams.index(each.lam), each.n_clusters - 1]
        for each in (used, others[0])
    )
    return RunnerUp(others[0].n_clusters, _errors(first - second))


def runner_up_of_scales(used: Choice, evidence: Evidence) -> RunnerUp | None:
    """The best other K by the evidence."""
    total = evidence.total
    if not 1 < used.n_clusters <= len(total) or np.count_nonzero(total) < 2 or total[used.n_clusters - 1] == 0:
        return None
    other = int(np.argmax(np.where(np.arange(len(total)) == used.n_clusters - 1, -1.0, total)))
    behind = evidence.values[:, used.n_clusters - 1] - evidence.values[:, other]
    return RunnerUp(other + 1, _errors(behind), float(total[other] / total[used.n_clusters - 1]))


def _errors(differences: FloatArray) -> float:
    """A mean in standard errors."""
    known = differences[np.isfinite(differences)]
    if len(known) < 2:
        return float("inf")
    error = known.std(ddof=1) / np.sqrt(len(known))
    mean = known.mean()
    return float(mean / error) if error > 0 else float(np.copysign(np.inf, mean))


def clusters_in_words(n_clusters: int) -> str:
    """A number of clusters.

    Examples
    --------
    >>> clusters_in_words(1), clusters_in_words(2)
    ('1 cluster', '2 clusters')
    """
    return f"{n_clusters} cluster{'' if n_clusters == 1 else 's'}"


def _sentence(selection: Selection, grid: Grid, other: RunnerUp | None) -> str:
    used = selection.used
    if used.n_clusters == 1 and used.selection == "scales":
        advice = " If there may be more, raise max_clusters." if selection.paper.n_clusters == grid.max_clusters else ""
        tried = "no community has a border, and " if selection.communities is not None else ""
        hint = f" {selection.hint}" if selection.hint else ""
        if selection.structure >= least_structure(selection.dimension):
            return f"1 cluster: {tried}the clusters of the best scale cut most communities.{hint}{advice}"
        return (
            f"1 cluster: {tried}no number of clusters up to {grid.max_scale} stands out from data without structure "
            f"(evidence {selection.structure:.1f}, and {least_structure(selection.dimension)} is needed).{hint}{advice}"
        )
    number = clusters_in_words(used.n_clusters)
    if used.n_clusters == _largest(used, grid):
        return f"{number}, but that is the largest number allowed."
    if other is None:
        return f"{number}: no other number was possible."
    if other.share is not None:
        how = "clearly" if other.share <= CLEAR_SHARE else "probably" if other.errors >= AHEAD else "just"
        return f"{number}, {how}: next best is {other.n_clusters} with {100 * other.share:.0f} % of the evidence."
    how = "clearly" if other.errors >= CLEAR else "probably" if other.errors >= AHEAD else "just"
    behind = (
        "as good within noise" if other.errors < AHEAD else f"behind by {min(other.errors, 99):.0f} times the noise"
    )
    return f"{number}, {how}: next best is {other.n_clusters}, {behind}."


def _communities_in_words(selection: Selection) -> str:
    number, ratio = clusters_in_words(selection.used.n_clusters), selection.ratio
    if selection.used.n_clusters == 1:
        return f"{number}: no community has a border in density."
    if selection.stand:
        return f"{number}: the graph has {ratio:.1f} times the modularity of data without clusters."
    if ratio is None:
        return f"{number} of largest modularity. Without rows nothing tells whether their borders are real."
    return f"{number}: borders in density separate them."


def _by_the_other(selection: Selection) -> str:
    """What the other way to choose would have given, if it is not the same."""
    used, paper, scales = selection.used, selection.paper, selection.scales
    if used.selection in ("scales", "communities"):
        same = paper.n_clusters == used.n_clusters
        return "" if same else f"The paper would choose {paper.n_clusters}."
    if scales is None or scales.n_clusters == used.n_clusters:
        return ""
    has_structure = selection.structure >= least_structure(selection.dimension)
    return f"Scales alone would choose {scales.n_clusters if has_structure else 1}."


def _doubts(selection: Selection, grid: Grid, surface: FloatArray, other: RunnerUp | None) -> tuple[str, ...]:
    used, doubts = selection.used, []
    if used.n_clusters == _largest(used, grid) > 1:
        doubts.append(f"K = {used.n_clusters} is the largest number of clusters that is tried. Raise max_clusters.")
    is_clear = other is not None and (other.share is not None or other.errors >= CLEAR)
    if used.selection == "paper" and not is_clear and (edge := _rising_edge(used, grid, surface)):
        doubts.append(f"The criterion still rises at the edge of the grid, where K changes: {edge}.")
    if other is not None and other.errors < AHEAD and (other.share is None or other.share > CLEAR_SHARE):
        doubts.append(f"{other.n_clusters} clusters are as good as {used.n_clusters} within noise.")
    return tuple(doubts)


def _largest(used: Choice, grid: Grid) -> int:
    return grid.max_clusters if used.selection == "paper" else grid.max_scale


def _rising_edge(used: Choice, grid: Grid, surface: FloatArray) -> str:
    """Where the choice is on an edge of the grid, its criterion rises towards it and K changes; in words, or empty.

    The criterion often rises towards the largest lam. That matters only if another number of clusters was the best one
    step before.
    """
    at_k, at_lam, K = grid.ks.index(used.n_neighbors), grid.lams.index(used.lam), used.n_clusters - 1
    edges = []
    for name, values, at, along in (
        ("k", grid.ks, at_k, surface[:, at_lam]),
        ("lam", grid.lams, at_lam, surface[at_k]),
    ):
        if len(values) > 1 and at in (0, len(values) - 1):
            inner = along[1] if at == 0 else along[-2]
            if along[at, K] > inner[K] and np.nanargmax(inner) != K:
                edges.append(f"{'smaller' if at == 0 else 'larger'} {name} than {values[at]:.4g} may be better")
    return ", ".join(edges)


def low_confidence(confident_share: float) -> str | None:
    """A doubt about rows that do not know their cluster, if there are many."""
    if 1 - confident_share < MOST_ROWS:
        return None
    return (
        f"Only {100 * confident_share:.0f} % of the rows prefer their cluster clearly (confidence above "
        f"{LOW_CONFIDENCE}): the clusters run into one another."
    )


def count_confident(confidence: FloatArray, labels: IntArray) -> tuple[int, int, int]:
    """How many rows prefer their cluster clearly, how many prefer none at all, and how many are skipped."""
    is_skipped = labels < NOISE
    unreached = (confidence == 0) & ~is_skipped
    return int((confidence > LOW_CONFIDENCE).sum()), int(unreached.sum()), int(is_skipped.sum())
