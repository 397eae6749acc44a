"""The snippets of README.md and examples/formats/README.md, run from top to bottom on files as they name them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import anndata
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr

from cns_dask.demo import demo_points

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def run_snippets(text):
    """Run all Python snippets of a page in one namespace that is empty at first."""
    names = {}
    snippets = re.findall(r"```python\n(.*?)```", text, re.S)
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    return names, len(snippets)


def make_files(folder):
    X = demo_points(600, 5)
    np.save(folder / "rows.npy", X)
    zarr.create_array(str(folder / "rows.zarr"), shape=X.shape, chunks=(200, 5), dtype="f8")[...] = X
    group = zarr.create_group(str(folder / "group.zarr"))
    group.create_array("night/rows", shape=X.shape, chunks=(200, 5), dtype="f8")[...] = X
    table = pd.DataFrame(X[:, :3], columns=list("abc"), index=[f"row {row}" for row in range(600)]).assign(
        town="Bergen"
    )
    (folder / "days").mkdir()
    for number in range(3):
        table[200 * number : 200 * number + 200].to_csv(folder / "days" / f"day{number}.csv", index=False)
    later = pd.concat([table, table[:60].assign(a=table["a"][:60] + 0.1)])
    for name, rows in (("night", table), ("tomorrow", later)):
        dd.from_pandas(rows, npartitions=4, sort=False).to_parquet(folder / f"{name}.parquet")
    dims, places = ("time", "lat", "lon"), {"lat": np.arange(20.0), "lon": np.arange(30.0)}
    cube = xr.Dataset({"heat": (dims, X.T.reshape(5, 20, 30)), "rain": (dims, X.T[::-1].reshape(5, 20, 30))}, places)
    cube.assign(wind=cube["heat"] + cube["rain"]).chunk({"lat": 7}).to_zarr(folder / "cube.zarr", consolidated=False)
    cells = anndata.AnnData(scipy.sparse.csr_matrix(np.maximum(X, 0)), obsm={"X_pca": X})
    cells.write_h5ad(folder / "cells.h5ad")
    words = scipy.sparse.random(600, 150, 0.1, format="csr", random_state=0)
    scipy.sparse.save_npz(folder / "words.npz", words)


def test_snippets_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, count = run_snippets(README)
    assert count >= 1
    assert names["model"].n_clusters_ == 3
    assert (tmp_path / "clusters.zarr").is_dir()


@pytest.mark.slow
def test_commands_of_the_readme(tmp_path):
    X = demo_points(600, 5)
    np.save(tmp_path / "new.npy", X[:20])
    zarr.create_array(str(tmp_path / "data.zarr"), shape=X.shape, chunks=(200, 5), dtype="f8")[...] = X
    commands = re.findall(r"^cns-dask .*$", README, re.M)
    assert len(commands) >= 10
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in commands:
        subprocess.run(command, shell=True, check=True, cwd=tmp_path, env={**os.environ, "PATH": path})
    made = {path.name for path in tmp_path.iterdir()}
    assert {"clusters.zarr", "all.zarr", "report.html", "new.zarr", "graph.zarr"} <= made


def test_snippets_of_every_form(tmp_path, monkeypatch):
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    names, count = run_snippets((ROOT / "examples" / "formats" / "README.md").read_text(encoding="utf-8"))
    assert count >= 12
    assert names["model"].result_.changes.drift.n_rows == 660
    clustered = pd.read_parquet(tmp_path / "clustered.parquet")
    assert clustered.index.tolist() == names["table"].index.tolist()
    assert "cns" in names["cells"].obs


def test_the_readme_is_short_and_calls_what_continuous_integration_calls():
    assert len(README.splitlines()) <= 180
    (line,) = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if "pytest" in line]
    assert line in README


def test_all_extras_are_named():
    extras = re.search(r"\[project.optional-dependencies\]\n(.*?)\n\n\[", (ROOT / "pyproject.toml").read_text(), re.S)[
        1
    ]
    for name in re.findall(r"^(\w+) = ", extras, re.M):
        assert f"`cns_dask[{name}]`" in README


PAGES = [path for path in ROOT.rglob("*.md") if not path.relative_to(ROOT).parts[0].startswith(".venv")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


def test_the_maintainers_page_names_files_that_exist():
    page = (ROOT / "cns_dask" / "README.md").read_text(encoding="utf-8")
    table = page[page.index("## Where is what?") : page.index("## Layers")]
    named = re.findall(r"`((?:\w+/)?\w+\.(?:py|html))`", table)
    assert len(named) > 30
    for name in named:
        assert list((ROOT / "cns_dask").rglob(name)), name
