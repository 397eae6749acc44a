"""Every example, run as its README says."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"

#: Data set -> distances for which the dense version of the method gives the paper's numbers exactly.
BOTH = ("euclidean", "cosine")
EXACT = {
    "iris": BOTH, "wine": BOTH, "parkinsons": BOTH, "sonar": BOTH, "ionosphere": BOTH, "wdbc": BOTH, "yeast": BOTH,
    "phoneme": BOTH, "glass": ("cosine",), "biodeg": ("euclidean",), "yeast_uci": ("euclidean",),
}  # fmt: skip


def run(script, *arguments, cwd, **environment):
    keep = {name: value for name, value in os.environ.items() if name != "CNS_DASK_DATA"}
    return subprocess.run(
        [sys.executable, str(EXAMPLES / script), *map(str, arguments)],
        cwd=cwd, env=keep | environment, capture_output=True, text=True, timeout=900, check=True,
    ).stdout  # fmt: skip


def reproduced(folder):
    with (folder / "reproduction.csv").open(encoding="utf-8") as lines:
        return {(row["dataset"], row["distance"]): row for row in csv.DictReader(lines)}


def assert_equal_to_the_paper(row):
    for score in ("ami", "ari"):
        assert float(row[score]) == pytest.approx(float(row[f"paper {score}"]), abs=0.0101), row
    assert row["match"] == "exact"


def test_quickstart(tmp_path):
    printed = run("quickstart/quickstart.py", cwd=tmp_path)
    assert "5 clusters" in printed
    assert (tmp_path / "clusters.png").read_bytes().startswith(b"\x89PNG")


def test_reproduction_with_what_scikit_learn_ships(tmp_path):
    printed = run("reproduce_paper/reproduce.py", cwd=tmp_path)
    rows = reproduced(tmp_path / "reproduction")
    assert set(rows) == {(name, distance) for name in ("iris", "wine", "wdbc") for distance in BOTH}
    for row in rows.values():  # scikit-learn's iris differs from the paper's in two rows, and not in the scores
        assert_equal_to_the_paper(row)
    assert "runs equal the paper to 0.01" in printed
    table = (tmp_path / "reproduction" / "reproduction.md").read_text(encoding="utf-8").splitlines()
    assert len(table) == 2 + 6


@pytest.mark.parametrize("name", EXACT)
def test_reproduction_of_the_paper(datasets, tmp_path, name):
    run("reproduce_paper/reproduce.py", datasets, "--only", name, "--out", tmp_path, cwd=tmp_path)
    rows = reproduced(tmp_path)
    for distance in EXACT[name]:
        assert_equal_to_the_paper(rows[name, distance])


@pytest.mark.slow
def test_reproduction_of_the_paper_pendigits(datasets, tmp_path):
    run("reproduce_paper/reproduce.py", "--only", "pendigits", "--out", ".", cwd=tmp_path, CNS_DASK_DATA=str(datasets))
    rows = reproduced(tmp_path)
    for distance in BOTH:
        assert_equal_to_the_paper(rows["pendigits", distance])


def test_reproduction_marks_what_is_not_in_the_paper(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "mine.npz", X=rng.standard_normal((80, 3)), y=rng.integers(2, size=80))
    run("reproduce_paper/reproduce.py", "data", cwd=tmp_path)
    assert reproduced(tmp_path / "reproduction")["mine", "cosine"]["match"] == "not in the paper"


def test_solver_benchmark_finds_the_same_clusters_both_ways(tmp_path):
    printed = run("benchmarks/solver.py", "--rows", 600, cwd=tmp_path)
    assert "same picks in 20 of 20 cells" in printed
    assert "same choice: True" in printed
    assert "labels that differ: 0 of 600" in printed
    assert "times faster" in printed


@pytest.mark.slow
def test_neighbors_benchmark(tmp_path):
    printed = run("benchmarks/neighbors.py", "--rows", 24_000, "--parts", "warm", "same", "predict", cwd=tmp_path)
    row = next(line for line in printed.splitlines() if line.startswith("| mixture"))
    assert float(row.split("|")[8]) > 0.99
    assert "| True |" in row
    assert "same graph everywhere: True" in printed
    assert "new rows" in printed


@pytest.mark.slow
def test_fit_benchmark(tmp_path):
    parts = "warm", "growth", "workers", "decisions", "profile"
    printed = run("benchmarks/fit.py", "--rows", 24_000, "--parts", *parts, cwd=tmp_path)
    rows = {line.split("|")[1].strip(): line for line in printed.splitlines() if line.startswith("| m")}
    assert set(rows) >= {"mixture", "moons", "memberships"}
    decided = next(line for line in printed.splitlines() if line.startswith("| mixture | 24000 | k"))
    assert "against" not in decided  # the same cell in both precisions,
    assert "| 0 |" in decided  # and the same labels
    for said in ("times for 8 times the rows", "times as fast", "| cells |"):
        assert said in printed


def test_every_example_is_here():
    tested = {
        "quickstart/quickstart.py",
        "reproduce_paper/reproduce.py",
        "benchmarks/solver.py",
        "benchmarks/neighbors.py",
        "benchmarks/fit.py",
    }
    assert {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")} == tested
