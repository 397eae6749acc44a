import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from tabular import NAMES, parts
from typer.testing import CliRunner

from cns_dask import CNS, open_result
from cns_dask.cli.commands import app
from cns_dask.errors import OutputError
from cns_dask.results.parquet import write_parquet


@pytest.fixture
def stored(blobs, tmp_path):
    parts(blobs, 6).to_parquet(tmp_path / "x.parquet")
    return tmp_path


def run(*words):
    return CliRunner().invoke(app, list(map(str, words)), catch_exceptions=False)


def test_parquet_from_the_command_line_has_the_rows_of_the_input(stored, blobs):
    reference = CNS().fit(blobs)
    done = run("fit", stored / "x.parquet", "--columns", ",".join(NAMES), "--out", stored / "labels.parquet")
    assert f"result: {stored / 'labels.zarr'}, {stored / 'labels.parquet'}" in done.output
    assert run("predict", stored / "labels.zarr", stored / "x.parquet", "--out", stored / "new.parquet").exit_code == 0
    for name in ("labels", "new"):
        table = dd.read_parquet(stored / f"{name}.parquet")
        assert len(list((stored / f"{name}.parquet").iterdir())) == 6
        found = table.compute()
        assert found.index.tolist() == [f"id {row}" for row in range(600)]
        np.testing.assert_array_equal(found["cluster"], reference.labels_)
        np.testing.assert_array_equal(found.filter(like="membership_"), reference.memberships_)
    assert open_result(stored / "labels.zarr").columns == NAMES
    with pytest.raises(OutputError, match="new.parquet already exists. Choose another output"):
        run("predict", stored / "labels.zarr", stored / "x.parquet", "--out", stored / "new.parquet")
    again = ("predict", stored / "labels.zarr", stored / "x.parquet", "--out", stored / "new.parquet", "--overwrite")
    assert run(*again).exit_code == 0
    assert sorted(path.name for path in stored.iterdir()) == [
        "labels.parquet",
        "labels.zarr",
        "new.parquet",
        "x.parquet",
    ]


def test_nothing_is_lost_or_half_written(tmp_path):
    table = pd.DataFrame({"a": [1, 2]})
    write_parquet(tmp_path / "t.parquet", table)

    def fail(frame):
        if len(frame) == 1:
            raise RuntimeError("no more")
        return frame

    failing = dd.from_pandas(pd.DataFrame({"a": range(7)}), chunksize=2).map_partitions(fail, meta={"a": int})
    with pytest.raises(RuntimeError, match="no more"):
        write_parquet(tmp_path / "t.parquet", failing, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    assert pd.read_parquet(tmp_path / "t.parquet")["a"].tolist() == [1, 2]
    (tmp_path / "other.parquet").mkdir()
    (tmp_path / "other.parquet" / "letter.txt").write_text("dear")
    with pytest.raises(OutputError, match="other.parquet is not a folder of Parquet files, so it is not overwritten"):
        write_parquet(tmp_path / "other.parquet", table, overwrite=True)
    with pytest.raises(OutputError, match="The folder of the output, .*nowhere, does not exist"):
        write_parquet(tmp_path / "nowhere" / "t.parquet", table)
