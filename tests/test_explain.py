"""`cns-dask explain` as a user runs it."""

import json

import numpy as np
import pandas as pd
import pytest
from test_cli import cns


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table with names, and its fit."""
    path = tmp_path_factory.mktemp("explain")
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=450)
    X = rng.standard_normal((450, 4)) + 9 * np.eye(4)[y]
    table = pd.DataFrame(X, columns=["length", "width", "height", "noise"]).assign(age=20 + 30 * (y == 1))
    table.to_parquet(path / "data.parquet")
    fitted = cns("fit", "data.parquet", "--columns", "length, width,height,noise", "--out", "clusters.zarr", cwd=path)
    assert fitted.returncode == 0, fitted.stderr
    return path


def test_text_has_features_rules_rows_and_neighbours(folder):
    done = cns("explain", "clusters.zarr", "data.parquet", cwd=folder)
    assert done.returncode == 0, done.stderr
    blocks = done.stdout.split("\n\n")
    assert blocks[0].startswith("450 rows: 3 clusters")
    assert len(blocks) == 4
    firsts = {block.splitlines()[1].split()[0] for block in blocks[1:]}
    assert firsts == {"length", "width", "height"}
    for block in blocks[1:]:
        assert "rule: " in block
        assert "typical rows: " in block
        assert "age" not in block  # was not clustered by


def test_one_cluster_and_other_columns(folder):
    done = cns("explain", "clusters.zarr", "data.parquet", "--cluster", 1, "--columns", "age,noise", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\ncluster ") == 1
    assert done.stdout.split("\n\n")[1].splitlines()[1].split()[0] == "age"


def test_json(folder):
    done = cns("explain", "clusters.zarr", "data.parquet", "--json", "--exemplars", 3, cwd=folder)
    told = json.loads(done.stdout)
    assert told["rows"] == 450
    assert [each["cluster"] for each in told["clusters"]] == [0, 1, 2]
    for each in told["clusters"]:
        assert len(each["features"]) == 4
        assert len(each["exemplars"]) == 3
        assert each["recall"] > 0.95
        assert sum(each["overlap"].values()) < 0.05
    assert sum(each["rows"] for each in told["clusters"]) == 450
    other = json.loads(cns("explain", "clusters.zarr", "data.parquet", "--json", "--n-clusters", 2, cwd=folder).stdout)
    assert other["verdict"] == "2 clusters, as asked for."
    assert len(other["clusters"]) == 2


def test_errors_are_one_line_after_what_is_started(folder):
    done = cns("explain", "clusters.zarr", "data.parquet", "--cluster", 9, cwd=folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[1:] == ["cns-dask: There is no cluster 9. The clusters are 0, 1, 2."]
    done = cns("explain", "clusters.zarr", "nothing.parquet", cwd=folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2  # what it starts, and the error
