import pytest

from cns_dask.cli.outputs import Output, check_ending, log_to
from cns_dask.errors import OutputError


@pytest.mark.parametrize(
    ("out", "group", "table"),
    [
        ("a.zarr", "a.zarr", None),
        ("a", "a", None),
        ("run-0.5", "run-0.5", None),  # a number is no ending
        ("v1.2/", "v1.2/", None),
        ("a.csv", "a.zarr", "a.csv"),
        ("x.y/a.pq", "x.y/a.zarr", "x.y/a.pq"),
        ("s3://bucket/a.parquet", "s3://bucket/a.zarr", "s3://bucket/a.parquet"),
    ],
)
def test_an_ending_says_what_is_written(out, group, table):
    assert Output.of(out) == Output(group, table)


@pytest.mark.parametrize("out", ["a.xlsx", "a.json", "a.csv.gz", "s3://bucket/a.npy", "a.zarr.zip", "a.CSV"])
def test_other_endings_are_refused(out):
    with pytest.raises(OutputError, match="give --out an ending of .zarr, .parquet or .csv"):
        Output.of(out)


def test_one_ending_alone_is_advised_as_it_is():
    with pytest.raises(OutputError, match=r"an ending of \.zarr\.$"):
        check_ending("g.parquet", ".zarr")


def test_a_log_that_cannot_be_written_is_told(tmp_path):
    log_to(None)
    with pytest.raises(OutputError, match="The log .* cannot be written"):
        log_to(tmp_path / "nowhere" / "log.txt")
