import gzip

import numpy as np
import pandas as pd
import pytest

from cns_dask.errors import InvalidDataError
from cns_dask.inputs import csv_files
from cns_dask.inputs.csv_files import Block, blocks_of, read_block, read_csv
from cns_dask.inputs.data import open_data

TABLE = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 3)), columns=["a", "b", "c"])
LINES = TABLE.to_csv(index=False).splitlines()


@pytest.fixture(params=["one block", "many blocks"])
def block_bytes(request, monkeypatch):
    if request.param == "many blocks":
        monkeypatch.setattr(csv_files, "BLOCK_BYTES", 500)
        monkeypatch.setattr(csv_files, "SAMPLE_BYTES", 500)
    return csv_files.BLOCK_BYTES


def write(path, lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def refused(path, message, **options):
    with pytest.raises(InvalidDataError, match=message) as told:
        open_data(path, **options)
    assert "\n" not in str(told.value)


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_blocks_hold_every_line_once(tmp_path, end):
    (tmp_path / "x.csv").write_bytes(end.join(["", *LINES]).encode())  # neither an empty first line nor a last end
    np.testing.assert_array_equal(open_data(tmp_path / "x.csv").X.compute(), TABLE)


def test_large_files_are_cut_and_compressed_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", 500)
    TABLE.to_csv(tmp_path / "x.csv", index=False)
    TABLE.to_csv(tmp_path / "x.csv.gz", index=False)
    cut = blocks_of(str(tmp_path / "x.csv"))
    assert [block.start for block in cut] == list(range(0, (tmp_path / "x.csv").stat().st_size, 500))
    (whole,) = blocks_of(str(tmp_path / "x.csv.gz"))
    assert whole.length is None
    np.testing.assert_array_equal(open_data(tmp_path / "x.csv.gz").X.compute(), TABLE)
    names = {block.version for block in cut}
    TABLE[1:].to_csv(tmp_path / "x.csv", index=False)
    assert names.isdisjoint(block.version for block in blocks_of(str(tmp_path / "x.csv")))


def test_one_block_as_a_table(tmp_path):
    file = write(tmp_path / "x.csv", ["word,n,yes", "u,1,True", "v,,False"])
    frame = read_block(Block(str(file), ""), names=("word", "n", "yes"), numbers=frozenset({"n", "yes"}))
    expected = pd.DataFrame({"word": ["u", "v"], "n": [1.0, np.nan], "yes": [1.0, 0.0]})
    pd.testing.assert_frame_equal(frame, expected)
    assert read_csv([str(file)])[["n"]].compute().shape == (2, 1)


@pytest.mark.usefixtures("block_bytes")
def test_a_missing_truth_is_missing(tmp_path):
    file = write(tmp_path / "x.csv", ["yes,n", *["True,1"] * 99, ",1"])
    assert np.isnan(open_data(file).X.compute()[:, 0]).tolist() == [False] * 99 + [True]


@pytest.mark.parametrize(
    ("row", "place"), [(20, r"line 21, saw 4\)"), (150, r"line \d+, saw 4, as counted from byte 8000")]
)
def test_a_line_with_more_fields_is_named(tmp_path, monkeypatch, row, place):
    monkeypatch.setattr(csv_files, "BLOCK_BYTES", 4000)
    file = write(tmp_path / "x.csv", [*LINES[:row], LINES[row] + ",5", *LINES[row + 1 :]])
    refused(file, rf"x.csv cannot be read as a table by read_csv \(Expected 3 fields in {place}.*separated by commas")


@pytest.mark.usefixtures("block_bytes")
def test_a_word_among_later_numbers_is_named_with_its_column(tmp_path):
    file = write(tmp_path / "x.csv", [*LINES[:150], "1,2,many", *LINES[151:]])
    refused(file, "Column c of .*x.csv holds 'many', which is not a number. Correct it")
    assert open_data(file, columns=["a", "b"]).X.compute()[149].tolist() == [1, 2]


@pytest.mark.usefixtures("block_bytes")
def test_lines_that_all_have_more_fields_than_the_header_are_refused(tmp_path):
    message = "Lines of .*x.csv have more fields than its header, which has {}. .*comma as separator"
    for end in (",5", ","):
        refused(write(tmp_path / "x.csv", [LINES[0], *(line + end for line in LINES[1:])]), message.format(3))
    TABLE.to_csv(tmp_path / "x.csv", sep=";", decimal=",", index=False)
    refused(tmp_path / "x.csv", message.format(1))
    for sign in (";", "\t"):
        TABLE.to_csv(tmp_path / "x.csv", sep=sign, index=False)
        refused(tmp_path / "x.csv", "fields of .*x.csv are separated by .*Write it with a comma as separator")


@pytest.mark.usefixtures("block_bytes")
def test_an_index_without_a_name_is_a_column(tmp_path):
    TABLE.to_csv(tmp_path / "x.csv")
    np.testing.assert_array_equal(open_data(tmp_path / "x.csv", columns=["a", "b", "c"]).X.compute(), TABLE)
    assert open_data(tmp_path / "x.csv").names == ("Unnamed: 0", "a", "b", "c")


def test_files_without_a_header_are_refused(tmp_path):
    message = "has no header: its first line holds numbers only. Add a line with the names of the columns."
    refused(write(tmp_path / "x.csv", LINES[1:]), message)
    refused(write(tmp_path / "x.csv", ["1,1,nan", *LINES[1:]]), message)  # which pandas would name 1, 1.1, nan
    refused(write(tmp_path / "x.csv", ["0,1", "2,3", "4,5"]), message)
    pd.DataFrame(TABLE.to_numpy()).to_csv(tmp_path / "x.csv", index=False)  # whose header is 0,1,2
    np.testing.assert_array_equal(open_data(tmp_path / "x.csv").X.compute(), TABLE)


def test_a_header_alone_has_no_rows(tmp_path):
    refused(write(tmp_path / "x1.csv", LINES[:1]), "x1.csv has a header, but no rows.")
    write(tmp_path / "x2.csv", LINES)
    np.testing.assert_array_equal(open_data(tmp_path / "x*.csv").X.compute(), TABLE)


@pytest.mark.usefixtures("block_bytes")
def test_columns_of_several_files_are_matched_by_name(tmp_path):
    TABLE[:90].to_csv(tmp_path / "x1.csv", index=False)
    TABLE[90:][["c", "a", "b"]].to_csv(tmp_path / "x2.csv", index=False)
    np.testing.assert_array_equal(open_data(tmp_path / "x*.csv").X.compute(), TABLE)
    TABLE[90:][["c", "a"]].to_csv(tmp_path / "x2.csv", index=False)
    refused(tmp_path / "x*.csv", r"x2.csv has other columns than the first file: it lacks b\.")
    TABLE[90:].assign(d=1).to_csv(tmp_path / "x2.csv", index=False)
    refused(tmp_path / "x*.csv", r"x2.csv has other columns than the first file: it has d besides\.")


@pytest.mark.parametrize("content", [b"", b"\x80\x81\xff\x00" * 99, b'a,b\n1,2\n3,"4\n'])
def test_files_that_are_not_csv_are_told_in_one_line(tmp_path, content):
    (tmp_path / "x.csv").write_bytes(content)
    refused(tmp_path / "x.csv", "x.csv cannot be read as a table by read_csv")


def test_damaged_compressed_files_are_told_in_one_line(tmp_path):
    content = gzip.compress("\n".join(LINES).encode())
    for damaged in (b"no such thing", content[: len(content) // 2]):
        (tmp_path / "x.csv.gz").write_bytes(damaged)
        refused(tmp_path / "x.csv.gz", r"x.csv.gz cannot be decompressed \(.*\). Write it again.")
