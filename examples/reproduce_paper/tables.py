"""Tables of the comparison from its runs and the paper's numbers: scores, ranks, wins, and how far protocols agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from comparators import METHODS
from reproduce import EXACT, SCORES, markdown, paper_scores

TITLES = {"ami": "AMI", "ari": "ARI", "accuracy": "Accuracy"}
OURS = ("CNSe", "CNSc")
AUTO = ("AUTOe", "AUTOc")
PAPER = " (paper)"
#: Data sets of the paper's name that are not the paper's data: they are shown, and count in no rank.
OTHER_DATA = {"yale": "other images: 2 000 of 30 x 20 pixels; the paper has 5 850 of 30 x 40"}
#: What happened to the data before they came to the folder, and the paper does not tell how it did it.
FILLED = {
    "soybeans": "2 337 missing values are filled with the most frequent of their feature; ",
    "heartdisease": "782 missing values are filled with the mean or the most frequent of their feature; ",
    "votes": "missing votes are 0, and one of 435 rows is left out, maybe another one than in the paper; ",
}


class Comparison:
    """Scores of all methods, those of the paper under the name `METHOD (paper)`, and what counts in ranks."""

    def __init__(self, runs: list[dict[str, Any]]) -> None:
        self.runs = pd.DataFrame(runs).set_index(["dataset", "method"])
        self.runs[list(SCORES)] = self.runs[list(SCORES)].apply(pd.to_numeric)
        published = pd.DataFrame.from_dict(paper_scores(), orient="index")
        self.sets = list(dict.fromkeys(published.index.get_level_values(0)))
        self.methods = list(dict.fromkeys(published.index.get_level_values(1)))
        here, done = self.runs.index.unique("dataset"), self.runs.dropna(subset=list(SCORES))
        self.with_data = [name for name in self.sets if name in here]
        self.counted = [name for name in self.with_data if name not in OTHER_DATA]
        self.live = [method for method in METHODS if method in done.index.get_level_values("method")]
        self.peers = [method for method in self.live if method in self.methods and method not in OURS]
        self.kept = [method + PAPER for method in self.methods if method not in (*self.live, *OURS)]
        rows = [*self.sets, *(name for name in here if name not in self.sets)]
        self.scores = {
            score: done[score]
            .unstack("method")
            .reindex(rows)[self.live]
            .join(published[score].unstack()[self.methods].add_suffix(PAPER))
            for score in SCORES
        }

    def fields(self) -> dict[str, tuple[list[str], list[str]]]:
        """What is ranked: a name -> methods, data sets."""
        theirs = [method + PAPER for method in self.methods]
        others = [method for method in theirs if method.removesuffix(PAPER) not in OURS]
        ours, auto = ([method for method in names if method in self.live] for names in (OURS, AUTO))
        return {
            f"paper, {len(self.sets)} tasks": (theirs, self.sets),
            f"paper, {len(self.counted)} tasks": (theirs, self.counted),
            "our CNS": ([*ours, *others], self.counted),
            "all that run": ([*ours, *self.peers, *self.kept], self.counted),
            "all, our default": ([*auto, *self.peers, *self.kept], self.counted),
        }

    def ranks(self, score: str) -> pd.DataFrame:
        """Average rank of each method in each field; 1 is best, ties share, and a method without a score is last."""
        columns = {}
        for name, (methods, sets) in self.fields().items():
            table = self.scores[score].loc[sets, methods]
            ranks = table.rank(axis=1, ascending=False, na_option="bottom").mean()
            columns[name] = ranks.rename(lambda method: method.removesuffix(PAPER))
        table = pd.DataFrame(columns)
        order = [*OURS, *AUTO, *(method for method in self.methods if method not in OURS)]
        return table.reindex([method for method in order if method in table.index])

    def wins(self, score: str) -> pd.DataFrame:
        """On how many data sets the method of the row is better than that of the column."""
        methods = [*self.live, *self.kept, *(method + PAPER for method in OURS)]
        table = self.scores[score].loc[self.counted, methods].fillna(float("-inf"))
        return pd.DataFrame({other: table.gt(table[other], axis=0).sum() for other in methods})

    def differences(self) -> pd.DataFrame:
        """Our numbers minus the paper's, for every method that both have."""
        methods = [method for method in self.live if method in self.methods]
        return pd.concat(
            {
                score: table.loc[self.with_data, methods].stack()
                - table[[m + PAPER for m in methods]].rename(columns=lambda m: m.removesuffix(PAPER)).stack()
                for score, table in self.scores.items()
            },
            axis=1,
        ).reindex([(name, method) for name in self.with_data for method in methods])

    def agreement(self) -> pd.DataFrame:
        """For every method that runs here: on how many data sets it equals the paper, and how far it is from it."""
        apart = self.differences().drop(index=list(OTHER_DATA), level=0, errors="ignore").dropna()
        equal = (apart.abs() < EXACT).all(axis=1)
        by_method = apart.groupby(level=1, sort=False)
        table = pd.DataFrame({"data sets": by_method.size(), "equal": equal.groupby(level=1).sum()})
        for score, title in TITLES.items():
            table[f"mean difference of {title}"] = by_method[score].mean()
            table[f"median distance of {title}"] = apart[score].abs().groupby(level=1).median()
        return table.reindex(apart.index.unique(1))

    def explanations(self) -> pd.DataFrame:
        """Every run of CNSe and CNSc, and why it differs from the paper's if it does."""
        rows = []
        for (name, method), apart in self.differences().iterrows():
            if method not in OURS or (name, method) not in self.runs.index:
                continue
            equal = bool((apart.abs() < EXACT).all())
            ours, paper = ([self.scores[score].loc[name, m] for score in SCORES] for m in (method, method + PAPER))
            why = "" if equal else self.reason(name, method)
            rows.append((name, method, *ours, *paper, "yes" if equal else "no", why))
        return pd.DataFrame(
            rows, columns=["data set", "method", *SCORES, *(f"paper {s}" for s in SCORES), "equal", "why not"]
        )

    def reason(self, name: str, method: str) -> str:
        """Why the scores of a run are not the paper's."""
        run = self.runs.loc[(name, method)]
        if run["error"] or name in OTHER_DATA:
            return run["error"] or OTHER_DATA[name]
        n_copies = int(run["copies"])
        copies = f"copies of other rows: {n_copies} of {run['n']}" if n_copies else ""
        return (FILLED.get(name, "") + copies) or "not explained"


def as_markdown(table: pd.DataFrame, decimals: int = 2) -> str:
    """The table with its index as first column; empty where there is no number."""

    def text(value: Any) -> str:
        if isinstance(value, float):
            return "" if pd.isna(value) else f"{value:.{decimals}f}"
        return str(value)

    rows = ([text(key), *map(text, row)] for key, *row in table.itertuples())
    return markdown([table.index.name or "", *table.columns], rows)


def write_comparison(runs: list[dict[str, Any]], out: Path) -> None:
    """All tables as CSV, and together as `comparison.md`, with a picture of the ranks."""
    comparison = Comparison(runs)
    counted, n_sets = len(comparison.counted), len(comparison.sets)
    text = [
        "# The paper's comparison\n",
        f"{len(comparison.with_data)} of the paper's {n_sets} data sets are here, {counted} count in ranks and wins."
        " Of the others only the paper's numbers are shown, marked `(paper)` everywhere. Scores are times 100.\n",
    ]

    def add(title: str, name: str, table: pd.DataFrame, decimals: int = 2) -> None:
        table.round(4).to_csv(out / f"{name}.csv", lineterminator="\n")
        text.append(f"## {title}\n\n{as_markdown(table, decimals)}")

    for score, title in TITLES.items():
        add(title, score, comparison.scores[score].rename_axis("data set"))
    for score, title in TITLES.items():
        add(f"Average ranks by {title}", f"ranks_{score}", comparison.ranks(score).rename_axis("method"))
    for score, title in TITLES.items():
        wins = comparison.wins(score).rename_axis("better than:")
        add(f"Data sets of {counted} on which the row has the larger {title}", f"wins_{score}", wins)
    add("How far protocols agree", "agreement", comparison.agreement().rename_axis("method"), 1)
    add("Our runs and the paper's", "explanations", comparison.explanations().set_index("data set"))
    apart = comparison.differences().rename_axis(["data set", "method"])
    apart.round(2).to_csv(out / "differences.csv", lineterminator="\n")
    failed = comparison.runs[comparison.runs["error"].astype(bool)].reset_index()
    if len(failed):
        add("Runs without a result", "failed", failed.set_index("dataset")[["method", "error"]])
    (out / "comparison.md").write_text("\n".join(text), encoding="utf-8")
    draw_ranks(comparison, out / "ranks.png")


def draw_ranks(comparison: Comparison, path: Path) -> None:
    """Average ranks by each score, best method first, once with the paper's selection and once with ours."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharex=True)
    titles = {"all that run": "CNS with the paper's selection", "all, our default": 'CNS with selection="auto"'}
    for axes, (field, title) in zip(panels, titles.items(), strict=True):
        ranks = pd.DataFrame({TITLES[score]: comparison.ranks(score)[field] for score in SCORES}).dropna()
        ranks = ranks.loc[ranks.mean(axis=1).sort_values(ascending=False).index]
        for marker, score in zip("osd", ranks, strict=True):
            axes.plot(ranks[score], range(len(ranks)), marker, label=score, alpha=0.8)
        kept = {method.removesuffix(PAPER) for method in comparison.kept}
        axes.set_yticks(range(len(ranks)), [f"{m}*" if m in kept else m for m in ranks.index])
        for label, method in zip(axes.get_yticklabels(), ranks.index, strict=True):
            label.set_fontweight("bold" if method in (*OURS, *AUTO) else "normal")
        axes.grid(axis="y", alpha=0.3)
        axes.set_title(title)
        axes.set_xlabel(f"average rank of {len(ranks)} on {len(comparison.counted)} data sets (* the paper's numbers)")
    panels[0].legend(frameon=False)
    figure.savefig(path, dpi=110)
