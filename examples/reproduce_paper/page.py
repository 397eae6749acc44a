"""The tables of this folder's README, from `results/runs.csv`: between marks, so that a command writes them anew.

python examples/reproduce_paper/page.py
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from compare import read_runs
from reproduce import EXACT, SCORES
from tables import AUTO, OURS, PAPER, TITLES, Comparison

HERE = Path(__file__).parent
RUNS, README = HERE / "results" / "runs.csv", HERE / "README.md"
WORDS = ("method", "why")  # columns that hold no numbers, besides the first
FIELDS = {"paper, {all} tasks": "the paper, {all}", "paper, {here} tasks": "the paper, {here}",
          "all that run": "here", "all, our default": "here, default choice"}  # fmt: skip


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; numbers are aligned to the right."""
    header = list(header)
    rules = ["---", *("---" if name in WORDS else "---:" for name in header[1:])]
    lines = (header, None, *rows)
    return "".join("| " + " | ".join(line) + " |\n" if line else "|" + "|".join(rules) + "|\n" for line in lines)


def starred(method: str) -> str:
    """The paper's numbers are marked with a star."""
    return method.removesuffix(PAPER) + r"\*" if method.endswith(PAPER) else method


def number(value: float, decimals: int = 0) -> str:
    return "" if pd.isna(value) else f"{value:.{decimals}f}"


def ranks(comparison: Comparison) -> str:
    """Average ranks by all three scores, in the fields that are shown."""
    sizes = {"all": len(comparison.sets), "here": len(comparison.counted)}
    fields = {name.format(**sizes): title.format(**sizes) for name, title in FIELDS.items()}
    tables = [comparison.ranks(score) for score in SCORES]
    kept = {method.removesuffix(PAPER) for method in comparison.kept}

    def row(method: str) -> list[str]:
        name = f"**{method}**" if method in (*OURS, *AUTO) else starred(method + PAPER if method in kept else method)
        values = ([number(ranks.loc[method, field], 1) for ranks in tables] for field in fields)
        return [name, *(" / ".join(each) if all(each) else "" for each in values)]

    return table([" / ".join(TITLES.values()), *fields.values()], map(row, tables[0].index))


def wins(comparison: Comparison) -> str:
    """Wins and losses of our columns against each other method."""
    ours = [method for method in (*OURS[1:], *AUTO) if method in comparison.live]
    others = [*(m for m in comparison.live if m not in (*OURS, *AUTO)), *comparison.kept]
    tables = {title: comparison.wins(score) for score, title in TITLES.items()}
    header = ["wins-losses against", *(f"{title}: {method}" for title in tables for method in ours)]
    rows = (
        [starred(other), *(f"{won.loc[m, other]}-{won.loc[other, m]}" for won in tables.values() for m in ours)]
        for other in others
    )
    return table(header, rows)


def scores(comparison: Comparison, score: str) -> str:
    """Rounded scores of all methods on the data sets that are here, and their means."""
    methods = [*comparison.live, *comparison.kept, *(method + PAPER for method in OURS)]
    values = comparison.scores[score].loc[comparison.with_data, methods]
    means = values.loc[comparison.counted].mean(skipna=False)
    rows = [[name, *map(number, row)] for name, *row in values.itertuples()]
    last = [f"**mean of {len(comparison.counted)}**", *(number(mean, 1) for mean in means)]
    return table(["data set", *map(starred, methods)], [*rows, last])


def agreement(comparison: Comparison) -> str:
    """How far our runs are from the paper's."""
    header = ["method", "equal", "mean AMI here - paper", "median distance: AMI", "ARI", "accuracy"]
    found = comparison.agreement()
    order = [*OURS, *(method for method in found.index if method not in OURS)]
    rows = (
        [
            method,
            f"{found.loc[method, 'equal']} of {found.loc[method, 'data sets']}",
            number(found.loc[method, "mean difference of AMI"], 1),
            *(number(found.loc[method, f"median distance of {title}"], 1) for title in TITLES.values()),
        ]
        for method in order
    )
    return table(header, rows)


def explanations(comparison: Comparison) -> str:
    """Every run of ours that differs from the paper's, with what the method gives if copies are counted twice."""
    copies = pd.read_csv(HERE / "copies.csv", index_col=["dataset", "method"])
    found = comparison.explanations()
    rows = []
    for _, run in found[found["equal"] == "no"].iterrows():
        key, twice = (run["data set"], run["method"]), ""
        paper = run[[f"paper {score}" for score in SCORES]]
        if key in copies.index:
            values = copies.loc[key, list(SCORES)]
            equal = all(abs(a - b) < EXACT for a, b in zip(values, paper, strict=True))
            twice = three(values) + (", equal" if equal else "")
        rows.append([*key, three(run[list(SCORES)]), three(paper), twice, run["why not"]])
    return table(["data set", "method", "here", "paper", "copies counted twice", "why"], rows)


def three(values: Iterable[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in values)


def page(text: str, comparison: Comparison) -> str:
    """The text with the tables between its marks `<!-- NAME -->` and `<!-- end -->` written anew."""
    tables = {"ranks": ranks, "wins": wins, "agreement": agreement, "explanations": explanations}
    written = {name: make(comparison) for name, make in tables.items()}
    written |= {score: scores(comparison, score) for score in SCORES}
    for name, content in written.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(?=<!-- end -->)", re.S)
        if len(marked.findall(text)) != 1:
            raise ValueError(f"The page must have one place for the table {name!r}.")
        text = marked.sub(lambda match, content=content: f"{match[1]}\n{content}\n", text)
    return text


def main() -> None:
    text = page(README.read_text(encoding="utf-8"), Comparison(read_runs(RUNS)))
    README.write_text(text, encoding="utf-8")
    print(f"written: {README}")


if __name__ == "__main__":
    main()
