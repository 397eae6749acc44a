"""Every example, run as its README says."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import anndata
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.utils import parse_bytes
from sklearn.metrics import adjusted_rand_score

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


def rows_of(path):
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def reproduced(folder):
    return {(row["dataset"], row["distance"]): row for row in rows_of(folder / "reproduction.csv")}


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_reproduction_marks_what_is_not_in_the_paper(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "mine.npz", X=rng.standard_normal((80, 3)), y=rng.integers(2, size=80))
    run("reproduce_paper/reproduce.py", "data", cwd=tmp_path)
    assert reproduced(tmp_path / "reproduction")["mine", "cosine"]["match"] == "not in the paper"


@pytest.mark.slow
def test_the_comparison_of_the_paper_goes_on_and_ranks_what_is_here(tmp_path):
    (tmp_path / "hdbscan.py").write_text("raise ModuleNotFoundError(name='hdbscan')")  # as if it were not installed
    command = "reproduce_paper/compare.py", "--only", "iris", "wine", "--methods", "CNSe", "KM", "MS", "HDB"
    first = run(*command, "--limit", 120, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "2 data sets, 4 methods: 8 runs to do" in first
    assert "wine HDB: not installed: pip install hdbscan" in first
    again = run(*command, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert "2 runs to do" in again  # only what was not installed

    out = tmp_path / "comparison"
    scores = {(row["dataset"], row["method"]): row for row in rows_of(out / "runs.csv")}
    assert len(scores) == 8
    assert (scores["wine", "CNSe"]["ami"], scores["wine", "CNSe"]["K"]) == ("40.23", "2")
    assert (scores["wine", "KM"]["ami"], scores["wine", "KM"]["ari"]) == ("87.16", "89.75")  # the paper's

    table = {row["data set"]: row for row in rows_of(out / "ami.csv")}
    assert len(table) == 48
    assert (table["wine"]["KM"], table["wine"]["KM (paper)"], table["zoo"]["KM"]) == ("87.16", "87.16", "")
    wins = {row["better than:"]: row for row in rows_of(out / "wins_ami.csv")}
    assert (wins["KM"]["CNSe"], wins["CNSe"]["KM"]) == ("1", "0")  # wine; iris is a tie
    ranks = {row["method"]: row for row in rows_of(out / "ranks_ami.csv")}
    assert ranks["SNNC"]["paper, 48 tasks"] == "8.3854"
    assert float(ranks["KM"]["all that run"]) < float(ranks["HDB"]["all that run"])  # the latter by the paper's numbers
    agreement = {row["method"]: row for row in rows_of(out / "agreement.csv")}
    assert (agreement["CNSe"]["equal"], agreement["KM"]["equal"]) == ("2", "2")
    text = (out / "comparison.md").read_text(encoding="utf-8")
    assert "2 of the paper's 48 data sets are here" in text
    assert "| iris | HDB | not installed: pip install hdbscan |" in text
    assert (out / "ranks.png").exists()


def test_the_page_of_the_comparison_has_the_tables_of_its_runs(tmp_path):
    copy = shutil.copytree(EXAMPLES / "reproduce_paper", tmp_path / "reproduce_paper")
    page = copy / "README.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"^\| iris \|.*\n", "", text, flags=re.M), encoding="utf-8")
    assert page.read_text(encoding="utf-8") != text
    subprocess.run([sys.executable, copy / "page.py"], check=True, capture_output=True, timeout=300)
    assert page.read_text(encoding="utf-8") == text


@pytest.mark.slow
def test_the_comparison_of_the_paper_survives_a_method_that_takes_too_long(tmp_path):
    command = "reproduce_paper/compare.py", "--only", "iris", "--methods", "MS", "SC"
    printed = run(*command, "--limit", 0.01, cwd=tmp_path)
    assert printed.count("not done after 0.01 s") == 2
    assert "0 runs to do" in run(*command, cwd=tmp_path)
    assert "[2/2] iris SC: K " in run(*command, "--retry", cwd=tmp_path)


@pytest.mark.slow
def test_solver_benchmark_finds_the_same_clusters_both_ways(tmp_path):
    printed = run("benchmarks/solver.py", "--rows", 600, cwd=tmp_path)
    assert "same picks in 20 of 20 cells" in printed
    assert "same choice: True" in printed
    assert "labels that differ: 0 of 600" in printed
    assert "times faster" in printed


def peer_rows(path):
    with path.open(encoding="utf-8", newline="") as lines:
        return {(row["data"], row["n"], row["method"]): row for row in csv.DictReader(lines)}


@pytest.mark.slow
def test_peers_are_measured_failures_included_and_a_killed_run_goes_on(tmp_path):
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "unlabelled.npz", X=np.random.default_rng(0).standard_normal((300, 3)))
    peers = "benchmarks/peers.py", "data", "--sizes", 400, "--peers", "ours", "minibatch", "--modes", "warm"
    assert "4 runs to measure, 0 are there" in run(*peers, cwd=tmp_path)
    table = tmp_path / "peers" / "peers.csv"
    rows = peer_rows(table)
    assert list(rows) == [(*data, name) for data in (("mixture", "400"), ("unlabelled", "300")) for name in peers[5:7]]
    for key in list(rows)[:2]:
        assert float(rows[key]["AMI"]) > 70
        assert float(rows[key]["seconds"]) > 0
        assert int(rows[key]["peak MiB"]) > 50
        assert rows[key]["versions"]
        assert "cores" in rows[key]["machine"]
        assert not rows[key]["error"]
    assert rows["mixture", "400", "minibatch"]["K"] == "25"
    assert rows["unlabelled", "300", "ours"]["K"]
    assert "needs K" in rows["unlabelled", "300", "minibatch"]["error"]
    text = (tmp_path / "peers" / "peers.md").read_text(encoding="utf-8")
    assert "MiniBatchKMeans (K given)" in text
    assert "needs K" in text
    for name in ("time", "quality"):
        assert (tmp_path / "peers" / f"peers-{name}.png").read_bytes().startswith(b"\x89PNG")

    whole = table.read_bytes()
    table.write_bytes(whole[:-40])  # killed in the middle of the last row
    assert "1 runs to measure, 3 are there" in run(*peers, cwd=tmp_path)
    assert table.read_bytes().splitlines()[:-1] == whole.splitlines()[:-1]
    assert peer_rows(table).keys() == rows.keys()


@pytest.mark.slow
def test_a_peer_that_runs_into_a_limit_is_not_tried_with_more_rows(tmp_path):
    peers = "benchmarks/peers.py", "--sizes", 400, 500, "--peers", "minibatch"
    run(*peers, "--time-limit", 0.01, cwd=tmp_path)
    errors = {key: row["error"] for key, row in peer_rows(tmp_path / "peers" / "peers.csv").items()}
    assert errors["mixture", "400", "minibatch"].startswith("not tried: time limit of 0.01 s")  # cold, after warm
    assert errors["mixture", "500", "minibatch"].endswith("at n = 400, warm")
    run(*peers, "--memory-limit", 0.01, "--modes", "cold", cwd=tmp_path)  # another limit: tried again
    rows = peer_rows(tmp_path / "peers" / "peers.csv")
    assert rows["mixture", "400", "minibatch"]["error"] == "memory limit of 0.01 GiB"
    assert rows["mixture", "500", "minibatch"]["error"] == "not tried: memory limit of 0.01 GiB at n = 400, cold"


HISTORY = """
import sys; sys.path.insert(0, {folder!r})
from pathlib import Path
from history import comparison, version_before
def file(version, **ratios):
    ratios = {{name: {{"ratio": value}} for name, value in ratios.items()}}
    return {{"version": version, "rows": 1, "machine": version, "ratios": ratios}}
print(comparison(file("0.9", same=2.0, worse=2.0, better=2.0), file("0.10", same=2.4, worse=2.6, better=1.5, new=1.0)))
for name in ("0.2", "0.9", "0.10", "0.11"):
    Path(name + ".json").touch()
print(version_before(Path(), "0.10"))
"""


def test_a_version_is_compared_with_the_one_before(tmp_path):
    code = HISTORY.format(folder=str(EXAMPLES / "benchmarks"))
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "| same | 2.00 | 2.40 | +20% |  |" in printed
    assert "| worse | 2.00 | 2.60 | +30% | SLOWER |" in printed
    assert "| better | 2.00 | 1.50 | -25% | faster |" in printed
    assert "| new | not measured | 1.0 | | |" in printed
    assert "Not the same machine: 0.9 before, 0.10 now." in printed
    assert "Not the same rows" not in printed
    assert printed.splitlines()[-1] == "0.9.json"


@pytest.mark.slow
def test_history_benchmark(tmp_path):
    printed = run("benchmarks/history.py", "--rows", 24_000, "--out", "history", cwd=tmp_path)
    assert "There is no file of a version before" in printed
    (path,) = (tmp_path / "history").glob("*.json")
    kept = json.loads(path.read_text(encoding="utf-8"))
    assert kept["version"] == path.stem
    assert len(kept["ratios"]) == 6
    for one in kept["ratios"].values():
        assert one["ratio"] == pytest.approx(one["seconds"][0] / one["seconds"][1], rel=0.01)


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


@pytest.mark.slow
def test_a_nightly_flow_keeps_numbers_and_tells_of_a_split(tmp_path):
    printed = run("etl_parquet/flow.py", cwd=tmp_path)
    assert printed.count("night: clusters [0, 1, 2, 3, 4]") == 2
    assert re.search(r"cluster \d was split into", printed.partition("day 3, night")[2])
    assert "split" not in printed.partition("day 3, night")[0]
    kept = [float(share) for share in re.findall(r"([\d.]+)% of the rows that can be compared", printed)]
    assert len(kept) == 2
    assert min(kept) > 99
    labelled = pd.read_parquet(tmp_path / "etl" / "labelled" / "day2")
    assert len(labelled) == 2400
    assert list(labelled.columns[-3:]) == ["city", "cluster", "confidence"]
    assert len(list((tmp_path / "etl" / "labelled" / "day2").glob("*.parquet"))) == 4
    assert (tmp_path / "etl" / "clusters.png").exists()


@pytest.mark.slow
def test_a_cube_is_clustered_by_profile_and_mapped_back(tmp_path):
    printed = run("xarray_cube/map.py", cwd=tmp_path)
    assert "places on land, 1475 at sea" in printed
    with xr.open_zarr(tmp_path / "cube" / "map.zarr", consolidated=False) as found:
        assert found["labels"].dims == ("lat", "lon")
        with xr.open_zarr(tmp_path / "cube" / "cube.zarr", consolidated=False) as cube:
            xr.testing.assert_equal(found["lat"], cube["lat"])
            sea = cube["temperature"].isel(time=0).isnull()
            np.testing.assert_array_equal(found["labels"] == -3, sea)
    assert (tmp_path / "cube" / "map.png").exists()


@pytest.mark.slow
def test_cells_are_clustered_by_the_neighbours_in_obsp(tmp_path):
    printed = run("anndata_cells/cells.py", cwd=tmp_path)
    assert "clusters by the graph in obsp" in printed
    cells = anndata.read_h5ad(tmp_path / "cells" / "cells.h5ad")
    for key in ("cns", "cns_pca"):
        assert adjusted_rand_score(cells.obs["type"], cells.obs[key]) > 0.95
    assert cells.obsm["cns_memberships"].shape == (2500, cells.uns["cns"]["n_clusters"])
    assert (tmp_path / "cells" / "cells.png").exists()


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_data_larger_than_the_memory_of_all_workers(tmp_path):
    printed = run("larger_than_memory/fit.py", cwd=tmp_path)
    assert float(re.search(r"together, ([\d.]+) times less", printed)[1]) >= 4
    rows = re.findall(r"\| worker \d \| ([\d.]+) MiB \| ([\d.]+) MiB \| ([\d.]+) MiB \|", printed)
    assert len(rows) == 2
    for limit, planned, used in (map(float, row) for row in rows):
        assert used < 0.8 * limit  # above, Dask would pause it
        assert planned <= limit
    assert "paused or spilling: 0 workers" in printed


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_rows_by_a_sample_through_a_kill(tmp_path):
    sizes = ("--rows", 200_000, "--sample", 30_000, "--reference", 40_000)
    printed = run("ten_million/fit.py", *sizes, cwd=tmp_path)
    assert "pieces of the assignment" in printed
    assert "over before it could be killed" not in printed
    scores = [float(score) for score in re.findall(r"adjusted Rand index [^:]*: ([\d.]+)", printed)]
    assert len(scores) == 3
    assert min(scores) > 0.95
    for planned, used in re.findall(r"\| worker \d \| [^|]+ \| ([^|]+) \| ([^|]+) \|", printed):
        assert parse_bytes(used) < parse_bytes(planned)
    assert "paused or spilling: 0 workers" in printed


@pytest.mark.slow
def test_a_warm_worker_begins_at_once(tmp_path):
    printed = run("benchmarks/warmup.py", "--rows", 30_000, cwd=tmp_path)
    assert float(re.search(r"cold / warmed up: ([\d.]+)", printed)[1]) > 2


@pytest.mark.slow
def test_the_comparison_with_others_tells_scores_and_how_often_the_number_is_right(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "three.npz", X=rng.standard_normal((300, 4)) + 12 * np.eye(4)[y], y=y)
    run("quality/compare.py", "--data", "data", "--peers", "hdbscan", "--seeds", 1, "--rows", 300, cwd=tmp_path)
    with (tmp_path / "quality" / "quality.csv").open(encoding="utf-8") as lines:
        (row,) = csv.DictReader(lines)
    assert (row["data"], row["K"], row["auto K"]) == ("three", "3", "3")
    for method in ("auto", "scales", "hdbscan"):
        assert 0 < float(row[f"{method} AMI"]) <= 100.001
    assert float(row["auto ARI"]) > 95
    text = (tmp_path / "quality" / "quality.md").read_text(encoding="utf-8")
    assert "| three | 300 | 4 | 3 |" in text
    assert re.search(r"\| blobs \| 3 \| 1 of 1 \|", text)
    assert (tmp_path / "quality" / "quality.png").exists()


@pytest.mark.slow
def test_wines_are_explained(tmp_path):
    printed = run("explain/wine.py", cwd=tmp_path)
    assert "<Result: 178 rows, 3 clusters>" in printed
    first = re.findall(r"^cluster \d: .*\n  (\S+)", printed, re.M)
    assert sorted(first) == ["alcohol", "od280/od315_of_diluted_wines", "proline"]
    assert printed.count("rule: ") == 3
    shown = (EXAMPLES / "explain" / "README.md").read_text(encoding="utf-8")
    assert printed.partition("cluster 0")[2].partition("cluster 1")[0] in shown  # the page shows what is printed
    assert (tmp_path / "wine" / "explained.png").read_bytes().startswith(b"\x89PNG")
    done = subprocess.run(
        [sys.executable, "-c", "from cns_dask.cli import main; main()", "explain", "clusters.zarr", "wine.parquet"],
        cwd=tmp_path / "wine", capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert re.findall(r"^cluster \d: .*\n  (\S+)", done.stdout, re.M) == first


def test_every_example_is_here():
    tested = {
        "quickstart/quickstart.py",
        "explain/wine.py",
        "reproduce_paper/reproduce.py",
        "reproduce_paper/compare.py",
        "reproduce_paper/comparators.py",
        "reproduce_paper/tables.py",
        "reproduce_paper/page.py",
        "benchmarks/solver.py",
        "benchmarks/neighbors.py",
        "benchmarks/fit.py",
        "benchmarks/warmup.py",
        "benchmarks/peers.py",
        "benchmarks/peer_methods.py",
        "benchmarks/peer_tables.py",
        "benchmarks/history.py",
        "benchmarks/machine.py",
        "etl_parquet/flow.py",
        "xarray_cube/map.py",
        "anndata_cells/cells.py",
        "topics/topics.py",
        "larger_than_memory/fit.py",
        "ten_million/fit.py",
        "slurm/fit.py",  # by integration/test_slurm.py
        "quality/compare.py",
        "quality/toys.py",
    }
    assert {str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py")} == tested
    for name in (
        "larger_than_memory",
        "ten_million",
        "etl_parquet",
        "xarray_cube",
        "anndata_cells",
        "slurm",
        "explain",
        "reproduce_paper",
    ):
        assert f"examples/{name}/" in (EXAMPLES / name / "README.md").read_text(encoding="utf-8")


def test_topics(tmp_path):
    """What BERTopic and Toponymy print too, where they are installed."""
    printed = run("topics/topics.py", cwd=tmp_path)
    assert "5 clusters" in printed.splitlines()[0]
    words = printed.partition("layer of 5 clusters:")[2].splitlines()[1:6]
    assert {"court", "verdict"} & set(words[0].replace(",", "").split())
    for package, said in {"bertopic": "100% of 100 texts", "toponymy": "Toponymy: layers of"}.items():
        assert (said in printed) == bool(find_spec(package))
