import csv

import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest

from cns_dask.errors import OutputError
from cns_dask.results.csv_table import write_csv

TABLE = pd.DataFrame({"cluster": range(7), "a,b": ["x", 'say "y"', "", "z\n", "é", "|", None]})


@pytest.mark.parametrize("chunksize", [1, 3, 100])
def test_the_file_is_the_one_that_pandas_would_write(tmp_path, chunksize):
    write_csv(tmp_path / "t.csv", dd.from_pandas(TABLE, chunksize=chunksize))
    assert (tmp_path / "t.csv").read_text() == TABLE.to_csv(index_label="row")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def test_names_of_the_index_are_kept(tmp_path):
    named = TABLE.set_index(pd.Index(list("abcdefg"), name="id"))
    write_csv(tmp_path / "t.csv", named)
    pd.testing.assert_index_equal(pd.read_csv(tmp_path / "t.csv", index_col="id").index, named.index)
    both = TABLE.set_index(pd.MultiIndex.from_product([[1], range(7)], names=["x", None]))
    write_csv(tmp_path / "m.csv", both)
    assert (tmp_path / "m.csv").read_text().startswith("x,row,cluster")


def test_nothing_is_lost_or_half_written(tmp_path):
    write_csv(tmp_path / "t.csv", TABLE)
    before = (tmp_path / "t.csv").read_bytes()

    def fail(frame):
        if len(frame) == 1:
            raise RuntimeError("no more")
        return frame

    failing = dd.from_pandas(TABLE, chunksize=2).map_partitions(fail, meta=TABLE)
    with pytest.raises(RuntimeError, match="no more"):
        write_csv(tmp_path / "t.csv", failing, overwrite=True)
    assert (tmp_path / "t.csv").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
    with pytest.raises(OutputError, match="t.csv already exists. Choose another output, or overwrite it."):
        write_csv(tmp_path / "t.csv", TABLE)
    write_csv(tmp_path / "t.csv", TABLE[:2], overwrite=True)
    assert len(pd.read_csv(tmp_path / "t.csv")) == 2
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(OutputError, match="folder.csv is a folder, so it is not overwritten"):
        write_csv(tmp_path / "folder.csv", TABLE, overwrite=True)
    with pytest.raises(OutputError, match="The folder of the output, .*nowhere, does not exist"):
        write_csv(tmp_path / "nowhere" / "t.csv", TABLE)


def test_numbers_come_back_as_they_were(tmp_path):
    values = pd.DataFrame({"m": np.random.default_rng(0).random(50)})
    write_csv(tmp_path / "t.csv", values)
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as lines:
        found = [float(row["m"]) for row in csv.DictReader(lines)]
    np.testing.assert_array_equal(found, values["m"])


def test_urls_are_written_too(bucket):
    write_csv(f"{bucket}/t.csv", dd.from_pandas(TABLE, chunksize=3))
    with fsspec.open(f"{bucket}/t.csv", "r", encoding="utf-8", newline="") as file:
        assert file.read() == TABLE.to_csv(index_label="row")
    assert fsspec.filesystem("memory").ls("/bucket", detail=False) == ["/bucket/t.csv"]
