import numpy as np
import pandas as pd
import pytest

from cns_dask.errors import InvalidDataError
from cns_dask.inputs.data import open_data
from cns_dask.inputs.parquet_files import read_parquet

TABLE = pd.DataFrame(np.arange(60.0).reshape(20, 3), columns=["a", "b", "c"])


@pytest.fixture
def folder(tmp_path):
    TABLE[:10].to_parquet(tmp_path / "p1.parquet")
    TABLE[10:].to_parquet(tmp_path / "p2.parquet")
    return tmp_path


def test_files_and_folders_are_read_lazily(folder):
    table = read_parquet([str(folder)])
    assert table.npartitions == 2
    pd.testing.assert_frame_equal(table.compute(), TABLE)
    files = [str(folder / name) for name in ("p1.parquet", "p2.parquet")]
    pd.testing.assert_frame_equal(read_parquet(files)[["c"]].compute(), TABLE[["c"]])


def test_a_later_file_that_lacks_a_column_is_named(folder):
    TABLE[10:][["a", "b"]].to_parquet(folder / "p2.parquet")
    with pytest.raises(InvalidDataError, match=r"p2.parquet has other columns than the first file: it lacks c\."):
        open_data(folder)
    assert open_data(folder, columns=["a", "b"]).X.shape == (20, 2)


def test_a_later_file_with_another_index_is_named(folder):
    TABLE[10:].rename_axis("id").set_index(TABLE["a"][10:].astype(str)).to_parquet(folder / "p2.parquet")
    with pytest.raises(InvalidDataError, match=r"p2.parquet has another index than the first file"):
        open_data(folder, columns=["b", "c"])


@pytest.mark.parametrize("damage", ["text", "cut", "flipped"])
def test_a_later_file_that_is_damaged_is_named_in_one_line(folder, damage):
    file = folder / "p2.parquet"
    content = file.read_bytes()
    flipped = content[:20] + b"\x55" * 180 + content[200:]
    file.write_bytes({"text": b"no such thing", "cut": content[: len(content) // 2], "flipped": flipped}[damage])
    with pytest.raises(
        InvalidDataError, match=r"p2.parquet cannot be read as a table by read_parquet \(.*\)\.$"
    ) as told:
        open_data(folder)
    assert "\n" not in str(told.value)
