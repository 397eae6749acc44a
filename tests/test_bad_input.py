"""The catalogue of bad input: every case through the Python face and the command line.

What is wrong is told in one line, with the right error and exit code; nothing is written; no traceback without --debug.
"""

import json
import pickle
import signal
import sys
import warnings
from dataclasses import dataclass, field

import dask.array as da
import dask.bag
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import zarr

from cns_dask import CNS, cli, neighbor_graph, open_result
from cns_dask.cli.wording import in_options
from cns_dask.errors import (
    CNSError,
    DataNotFoundError,
    InvalidDataError,
    InvalidLocationError,
    InvalidSettingError,
    NotAResultError,
    OutputError,
    SchedulerError,
    UsageError,
)
from cns_dask.execution import cluster

RNG = np.random.default_rng(0)
GOOD = RNG.standard_normal((60, 3))
ROUND_ZERO = np.array([[1.0, 2.0], [-1, -2], [0, 0], [2, 1], [-2, -1]])


def with_value(value, row=3, column=1):
    X = GOOD.copy()
    X[row, column] = value
    return X


@dataclass
class Case:
    """What comes (an array, or a name in the folder), with which settings, and what is said about it."""

    name: str
    error: type
    message: str
    data: object = "x.npy"
    settings: dict = field(default_factory=dict)
    out: str = "out.zarr"
    more: dict = field(default_factory=dict)  # graph, scratch, overwrite
    python: bool = True
    line: str = ""  # the command line, if it is not that of a fit

    def command(self, folder):
        if self.line:
            return self.line.split(" ")
        data = self.data
        if isinstance(data, np.ndarray):
            np.save(folder / "given.npy", data)
            data = "given.npy"
        options = {**self.settings, **self.more}
        words = [[f"--{name.replace('_', '-')}", *as_words(value)] for name, value in options.items()]
        return ["fit", *([] if data is None else [data]), "--out", self.out, *(word for some in words for word in some)]


def as_words(value):
    if value is True:
        return []
    return [",".join(map(str, value)) if isinstance(value, tuple) else str(value)]


def data(name, X, error, message, **settings):
    return Case(name, error, message, data=X, settings=settings)


def setting(message, data="x.npy", **settings):
    ((name, value),) = settings.items()
    return Case(f"{name}={value}", InvalidSettingError, message, data=data, settings=settings)


def path(name, error, message):
    return Case(f"data {name}", error, message, data=name)


def output(out, error, message, **more):
    return Case(f"out {out} {more}", error, message, out=out, more=more)


def graph(name, message, error=InvalidDataError):
    return Case(f"graph {name}", error, message, more={"graph": name}, settings={"n_neighbors": 4})


def only_line(line, error, message):
    return Case(line, error, message, python=False, line=line)


CASES = [
    data("no rows", np.empty((0, 3)), InvalidDataError, "2"),
    data("one row", np.ones((1, 3)), InvalidDataError, "2"),
    data("no columns", np.ones((4, 0)), InvalidDataError, "feature"),
    data("a number", np.array(5.0), InvalidDataError, ""),
    data("a line", np.arange(9.0), InvalidDataError, ""),
    data("a cube", np.ones((4, 3, 2)), InvalidDataError, "dim"),
    data("words", np.array([["a", "b"], ["c", "d"]]), InvalidDataError, ""),
    data("bytes", np.array([[b"a", b"b"], [b"c", b"d"]]), InvalidDataError, ""),
    data("complex numbers", GOOD + 1j, InvalidDataError, ""),
    data("dates", np.array([["2020-01-01"], ["2021-01-01"]], "M8[D]"), InvalidDataError, ""),
    data("spans", np.array([[1], [2]], "m8[s]"), InvalidDataError, ""),
    data("records", np.zeros((4, 1), [("a", "f8"), ("b", "i4")]), InvalidDataError, ""),
    data("NaN", with_value(np.nan), InvalidDataError, "NaN or infinite values in 1 row(s): 3"),
    data("infinity", with_value(np.inf), InvalidDataError, "NaN or infinite values in 1 row(s): 3"),
    data("minus infinity", with_value(-np.inf), InvalidDataError, "NaN or infinite values in 1 row(s): 3"),
    data("NaN everywhere", np.full((9, 2), np.nan), InvalidDataError, "9 row(s): 0, 1, 2, 3, 4, ..."),
    data("nothing left", np.full((9, 2), np.nan), InvalidDataError, "At least 2 rows", missing="skip"),
    data("one row left", np.vstack([np.full((9, 2), np.inf), [[1, 2]]]), InvalidDataError, "1 of 10", missing="skip"),
    data("no direction", ROUND_ZERO, InvalidDataError, "their norm is 0): 2", metric="cosine"),
    data("too far apart", np.array([[1.7e308]] * 4 + [[-1.7e308]]), InvalidDataError, "overflow"),
    only_line("fit x.npy --out out.zarr --sample 1.5", InvalidSettingError, "sample must be a positive number of rows"),
    only_line("fit x.npy --out out.zarr --sample 0", InvalidSettingError, "sample must be a positive number of rows"),
    only_line("fit x.npy --out out.zarr --sample many", InvalidSettingError, "Invalid value for '--sample'"),
    only_line("fit x.npy --out out.zarr --sample 30", InvalidSettingError, "30 rows is too small to speak for 60"),
    only_line("fit x.npy --out out.zarr --check-sample", InvalidSettingError, "There is no sample to check"),
    only_line("plan x.npy --sample -1 --no-measure", InvalidSettingError, "sample must be a positive number of rows"),
    setting("metric must be one of", metric="l1"),
    setting("method must be one of", method="magic"),
    setting("missing must be one of", missing="drop"),
    setting("recall must be", recall=0.0),
    setting("recall must be", recall=1.0),
    setting("n_neighbors must be", n_neighbors=0),
    setting("n_neighbors must be", n_neighbors=(3, -1)),
    setting("below the number of rows (60). Got 60", n_neighbors=60),
    setting("lam must be", lam=0.0),
    setting("lam must be", lam=1.0),
    setting("lam must be", lam=float("nan")),
    setting("lam must be", lam=(0.1, -0.1)),
    setting("n_clusters must be", n_clusters=0),
    setting("at most the number of rows (60). Got 61", n_clusters=61),
    setting("number of candidates", n_clusters=59),
    setting("k_multipliers must be", k_multipliers=(0,)),
    setting("below the number of rows (60)", k_multipliers=(99,)),
    setting("lam_multipliers must be", lam_multipliers=(0.0,)),
    setting("square root", lam_multipliers=(99.0,)),
    setting("max_clusters must be", max_clusters=0),
    setting("max_candidates must be", max_candidates=0),
    setting("max_components must be", max_components=-1),
    setting("tol must be", tol=0.0),
    setting("tol must be", tol=1e-20),
    setting("grid_tol must be", grid_tol=5.0),
    setting("random_state must be", random_state=-1),
    path("none.npy", DataNotFoundError, "There are no data at"),
    path("none.zarr", DataNotFoundError, "There are no data at"),
    path("text.npy", InvalidDataError, "is not a plain .npy array"),
    path("empty.npy", InvalidDataError, "is not a plain .npy array"),
    path("cut.npy", InvalidDataError, "is not a plain .npy array"),
    path("pickled.npy", InvalidDataError, "is not a plain .npy array"),
    path("folder", InvalidDataError, "does not open as a Zarr array"),
    path("group.zarr", InvalidDataError, "does not open as a Zarr array"),
    path("broken.zarr", InvalidDataError, "does not open as a Zarr array"),
    path("line.zarr", InvalidDataError, "two dimensions"),
    path("words.zarr", InvalidDataError, "not real numbers"),
    path("\x1b[31mred.npy", DataNotFoundError, "No file matches the pattern"),
    path("s3://", InvalidLocationError, "must name a bucket"),
    path("nothing://bucket/x.zarr", InvalidLocationError, "No package here opens nothing://"),
    path("http://127.0.0.1:9/x.npy", InvalidDataError, "read from a disk only"),
    path("ragged.csv", InvalidDataError, "cannot be read as a table by read_csv (Expected 3 fields in line 31"),
    path("late.csv", InvalidDataError, "late.csv holds 'many', which is not a number"),
    path("wide.csv", InvalidDataError, "wide.csv have more fields than its header, which has 3"),
    path("semicolons.csv", InvalidDataError, "Write it with a comma as separator"),
    path("nameless.csv", InvalidDataError, "has no header: its first line holds numbers only"),
    path("rowless.csv", InvalidDataError, "has a header, but no rows"),
    path("other*.csv", InvalidDataError, "other2.csv has other columns than the first file: it lacks c"),
    path("lacks", InvalidDataError, "2.parquet has other columns than the first file: it lacks c"),
    path("damaged", InvalidDataError, "2.parquet cannot be read as a table by read_parquet"),
    path("text.nc", InvalidDataError, "xarray cannot open"),
    path("none.cs*", DataNotFoundError, "No file matches the pattern"),
    path("", DataNotFoundError, "The path is empty"),
    Case("changed bytes of the data", InvalidDataError, "cannot be read", data="flipped.zarr"),
    output("", OutputError, "The path is empty"),
    output("nowhere/out.zarr", OutputError, "does not exist. Create it first"),
    output("x.npy/out.zarr", OutputError, "does not exist. Create it first"),
    output("folder", OutputError, "folder already exists"),
    output("folder", OutputError, "is not a result of cns_dask, so it is not overwritten", overwrite=True),
    output("x.npy", OutputError, "is not a result of cns_dask, so it is not overwritten", overwrite=True),
    output("group.zarr", OutputError, "is not a result of cns_dask, so it is not overwritten", overwrite=True),
    output("y" * 300, OutputError, ""),
    output("nothing://bucket/out.zarr", InvalidLocationError, "No package here opens nothing://"),
    output("~nouser/out.zarr", InvalidLocationError, "is not a path of this system"),
    output("out.zarr", OutputError, "scratch folder x.npy is not a folder", scratch="x.npy"),
    only_line("demo x.npy", OutputError, "x.npy cannot be made (File exists)"),
    output("out.zarr", OutputError, "scratch folder nowhere does not exist", scratch="nowhere"),
    output("model.zarr", OutputError, "metric was 'euclidean', now it is 'cosine'"),
    *(
        only_line(line, OutputError, "which is read. Choose another")
        for line in (
            "fit model.zarr --component memberships --out model.zarr --overwrite",
            "fit model.zarr/memberships --out model.zarr --overwrite",
            "fit points.zarr --out points.zarr/inside.zarr",
            "fit points.zarr --out out.zarr --scratch points.zarr",
            "fit table.parquet --out table.parquet --overwrite",
            "fit x.npy --graph model.zarr --out model.zarr --overwrite",
            "neighbors points.zarr -k 3 --out points.zarr/inside.zarr",
            "predict model.zarr x.npy --out model.zarr/inside.zarr",
            "predict model.zarr table.parquet --out table.parquet --overwrite",
        )
    ),
    Case("nothing to cluster", InvalidSettingError, "nothing to cluster: give data or a graph", data=None),
    graph("none.npy", "There are no data at", DataNotFoundError),
    graph("other.npy", "data have 60 rows, and the graph has 5"),
    graph("negative.npy", "numbers outside 0 to 59 in the lists of 1 row(s): 7"),
    graph("twice.npy", "a neighbour twice in the lists of 1 row(s): 7"),
    graph("narrow.npy", "lists 2 neighbours, and the largest k needs 3", InvalidSettingError),
    graph("x.npy", "array of integers"),
    graph("broken.npz", "SciPy sparse matrix"),
    graph("oblong.npz", "must be square"),
    graph("lonely.npz", "no neighbour in the lists of 60 row(s)"),
    only_line("fit x.npy", UsageError, "--out"),
    only_line("fit x.npy --out out.zarr --lam abc", UsageError, "--lam"),
    only_line("fit x.npy --out out.zarr --workers x", UsageError, "--workers"),
    only_line("fit x.npy --out out.zarr --workers -1", UsageError, "--workers"),
    only_line("fit x.npy --out out.zarr --log nowhere/log", OutputError, "log nowhere/log cannot be written"),
    only_line("fit x.npy --out out.zarr --scheduler tcp://127.0.0.1:9", SchedulerError, "scheduler answers at tcp://127"),
    only_line("fit x.npy --out out.zarr --scheduler nonsense", SchedulerError, "scheduler answers at nonsense"),
    only_line("fit x.npy --out out.zarr --scheduler-file none.json", SchedulerError, "scheduler answers at none.json"),
    only_line("fit x.npy --out out.zarr --scheduler-file x.npy", SchedulerError, "scheduler answers at x.npy"),
    only_line("fit x.npy --out out.zarr --scheduler a --workers 2", InvalidSettingError, "only one of --scheduler"),
    only_line("fit x.npy --out out.zarr --scheduler a --tls-ca none.pem", InvalidSettingError, "TLS needs three files"),
    only_line("cluster x.npy", UsageError, "No such command"),
    only_line("neighbors x.npy --out out.zarr -k 0", InvalidSettingError, "an integer from 1 to 59"),
    only_line("neighbors x.npy --out out.zarr -k 60", InvalidSettingError, "an integer from 1 to 59"),
    only_line("neighbors x.npy --out out.zarr -k 5 --method magic", InvalidSettingError, "method must be one of"),
    only_line("fit --graph x.npy --out out.zarr", InvalidDataError, "A graph is an array of integers"),
    only_line("fit --graph none.zarr --out out.zarr", DataNotFoundError, "There are no data at"),
    only_line("neighbors none.npy --out out.zarr -k 3", DataNotFoundError, "There are no data at"),
    only_line("neighbors x.npy --out model.zarr -k 3 --overwrite", OutputError, "is not a graph of cns_dask"),
    only_line("predict none.zarr x.npy --out out.zarr", DataNotFoundError, "There is no result at none.zarr"),
    only_line("predict group.zarr x.npy --out out.zarr", NotAResultError, "is not a finished result of cns_dask"),
    only_line("predict model.zarr none.npy --out out.zarr", DataNotFoundError, "There are no data at"),
    only_line("predict model.zarr other.npy --out out.zarr", InvalidDataError, "rows have 2 features instead of 3"),
    only_line("predict model.zarr nan.npy --out out.zarr", InvalidDataError, "NaN or infinite values in 1 row(s): 3"),
    only_line("predict model.zarr x.npy --out model.zarr --overwrite", OutputError, "is not a prediction of cns_dask"),
    only_line("show none.zarr", DataNotFoundError, "There is no result at none.zarr"),
    only_line("show ", DataNotFoundError, "The path is empty"),
    only_line("predict model.zarr none.cs* --out out.zarr", DataNotFoundError, "No file matches the pattern"),
    only_line("show x.npy", NotAResultError, "something else"),
    only_line("show hostile.zarr", NotAResultError, "its description: Expected"),
    only_line("report none.zarr --out r.html", DataNotFoundError, "There is no result at none.zarr"),
    only_line("report model.zarr --out nowhere/r.html", OutputError, "does not exist. Create it first"),
    only_line("plan --rows 1 --columns 3", UsageError, "--rows"),
    *(
        only_line(f"plan x.npy --no-measure --memory {memory}", InvalidSettingError, message)
        for memory, message in {
            "1e400": "--memory must be a size as 8GiB. Got '1e400'",
            "-1GiB": "--memory must be a size as 8GiB",
            "0": "--memory must be a size as 8GiB",
        }.items()
    ),
    setting("at most the number of rows (60). Got 61", min_cluster_size=61),
    only_line("plan x.npy --memory much", InvalidSettingError, "--memory must be a size as 8GiB. Got 'much'"),
]  # fmt: skip


def write_bad_tables(root):
    table = pd.DataFrame(GOOD, columns=["a", "b", "c"])
    header, *lines = table.to_csv(index=False).splitlines()
    files = {
        "ragged": [header, *lines[:29], "1,2,3,4", *lines[30:]],
        "late": [header, *lines[:29], "1,2,many", *lines[30:]],
        "wide": [header, *(f"{line}," for line in lines)],
        "nameless": lines,
        "rowless": [header],
        "other1": [header, *lines],
        "other2": ["a,b", "1,2"],
    }
    for name, content in files.items():
        (root / f"{name}.csv").write_text("\n".join(content))
    table.to_csv(root / "semicolons.csv", sep=";", decimal=",", index=False)
    for name in ("lacks", "damaged"):
        (root / name).mkdir()
        table.to_parquet(root / name / "1.parquet")
    table[["a", "b"]].to_parquet(root / "lacks" / "2.parquet")
    (root / "damaged" / "2.parquet").write_text("no such thing")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder of good and bad things."""
    root = tmp_path_factory.mktemp("bad")
    np.save(root / "x.npy", GOOD)
    np.save(root / "nan.npy", with_value(np.nan))
    np.save(root / "other.npy", RNG.integers(0, 4, (5, 2)))
    zarr.create_array(str(root / "points.zarr"), data=GOOD)
    dd.from_pandas(pd.DataFrame(GOOD, columns=list("abc")), npartitions=1).to_parquet(root / "table.parquet")
    (root / "text.npy").write_text("no array")
    (root / "empty.npy").touch()
    (root / "cut.npy").write_bytes((root / "x.npy").read_bytes()[:300])
    (root / "pickled.npy").write_bytes(pickle.dumps(GOOD))
    (root / "folder").mkdir()
    (root / "folder" / "file").write_text("keep")
    write_bad_tables(root)
    (root / "text.nc").write_text("no such thing")
    zarr.create_group(str(root / "group.zarr"))
    (root / "broken.zarr").mkdir()
    (root / "broken.zarr" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "arr')
    zarr.create_array(str(root / "line.zarr"), shape=(9,), dtype="f8")[...] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fixed-width text has no stable form in Zarr
        zarr.create_array(str(root / "words.zarr"), shape=(4, 2), dtype="<U3")[...] = "a"
    zarr.create_array(str(root / "flipped.zarr"), shape=(60, 3), chunks=(60, 3), dtype="f8")[...] = GOOD
    chunk = root / "flipped.zarr" / "c" / "0" / "0"
    chunk.write_bytes(b"\x00" * 40 + chunk.read_bytes()[40:])
    lists = np.array([[(row + step) % 60 for step in (1, 2, 3, 4)] for row in range(60)])
    np.save(root / "narrow.npy", lists[:, :2])
    negative, twice = lists.copy(), lists.copy()
    negative[7, 1] = -4
    twice[7, 1] = twice[7, 0]
    np.save(root / "negative.npy", negative)
    np.save(root / "twice.npy", twice)
    (root / "broken.npz").write_text("no")
    scipy.sparse.save_npz(root / "oblong.npz", scipy.sparse.random(60, 59, 0.5, format="csr"))
    scipy.sparse.save_npz(root / "lonely.npz", scipy.sparse.csr_matrix((60, 60)))
    CNS().fit(GOOD, out=root / "model.zarr")
    CNS().fit(GOOD, out=root / "hostile.zarr")
    meta = json.loads((root / "hostile.zarr" / "zarr.json").read_text())
    meta["attributes"]["choice"]["lam"] = "\x1b[31m<script>alert(1)</script>"
    (root / "hostile.zarr" / "zarr.json").write_text(json.dumps(meta))
    return root


def contents(folder):
    return sorted((str(path.relative_to(folder)), path.stat().st_mtime_ns) for path in folder.rglob("*"))


@pytest.fixture
def here(folder, monkeypatch):
    """That folder as the working one; nothing in it may change."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    (folder / "given.npy").touch()
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield folder
    for number, handler in heard.items():
        signal.signal(number, handler)


def run_line(words, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cns-dask", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code, capsys.readouterr().err


@pytest.mark.filterwarnings("ignore:The data type")  # fixed-width text has no stable form in Zarr
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_bad_input_on_the_command_line(case, here, monkeypatch, capsys):
    if case.out == "model.zarr":
        monkeypatch.setitem(case.settings, "metric", "cosine")
    words = case.command(here)
    before = contents(here)
    code, said = run_line(words, monkeypatch, capsys)
    assert code == (2 if issubclass(case.error, UsageError) else 1)
    text = " ".join(said.replace("│", " ").split())
    refused = "ends in .npy, which is not written here"  # before anything else is looked at
    assert any(words in text for words in (case.message, in_options(case.message))) or refused in text
    assert "cns-dask: " not in said or said.splitlines()[-1].startswith("cns-dask: ")  # one line
    assert "Traceback" not in said
    assert "\x1b[31m" not in said
    assert contents(here) == before


@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("case", [case for case in CASES if case.python], ids=lambda case: case.name)
def test_bad_input_in_python(case, here):
    settings = dict(case.settings) | ({"metric": "cosine"} if case.out == "model.zarr" else {})
    before = contents(here)
    with pytest.raises(case.error) as raised:
        CNS(**settings).fit(case.data, out=case.out, **case.more)
    assert case.message in str(raised.value)
    assert isinstance(raised.value, CNSError)
    assert contents(here) == before


LAZY = [
    ("words", da.from_array(np.array([["a", "b"], ["c", "d"]])), InvalidDataError, "not real numbers"),
    ("complex numbers", da.ones((4, 2), dtype=complex), InvalidDataError, "not real numbers"),
    ("objects", da.from_array(np.array([[1, "a"], [2, "b"]], object), chunks=2), InvalidDataError, "not real numbers"),
    ("one dimension", da.ones(5), InvalidDataError, "two dimensions"),
    ("one row", da.ones((1, 3)), InvalidDataError, "at least 2 row(s)"),
    ("NaN", da.from_array(with_value(np.nan), chunks=7), InvalidDataError, "1 row(s): 3"),
    ("a Dask bag", dask.bag.from_sequence([1, 2]), InvalidDataError, "must be a Dask array"),
    ("text", "no such file", DataNotFoundError, "There are no data at"),
    ("a set", {1, 2}, InvalidDataError, ""),
    ("None", None, InvalidSettingError, "nothing to cluster"),
    ("rows of different lengths", [[1, 2], [3]], InvalidDataError, ""),
    ("objects in memory", np.array([[1, "a"], [2, "b"]], object), InvalidDataError, ""),
    (
        "a sparse matrix of complex numbers",
        scipy.sparse.csr_matrix(np.array([[1j], [2j]])),
        InvalidDataError,
        "not real numbers",
    ),
]


@pytest.mark.parametrize(("source", "error", "message"), [case[1:] for case in LAZY], ids=[case[0] for case in LAZY])
def test_bad_objects_in_python(source, error, message, here):
    before = contents(here)
    for call in (lambda: CNS().fit(source, out="out.zarr"), lambda: CNS().fit(source)):
        with pytest.raises(error) as raised:
            call()
        assert message in str(raised.value)
    assert contents(here) == before


def test_predictions_and_graphs_of_bad_rows(here):
    model = open_result("model.zarr")
    assert model.n_rows == 60
    fitted = CNS().fit(GOOD)
    for rows, message in ((GOOD[:, :2], "feature"), (with_value(np.nan), "infinite values"), (GOOD[0], "2D")):
        with pytest.raises((InvalidDataError, ValueError), match=message):
            fitted.predict(rows)
    for rows, k in ((GOOD, 60), (GOOD, 0), (GOOD, 2.5)):
        with pytest.raises(InvalidSettingError, match="n_neighbors"):
            neighbor_graph(rows, k)


def test_a_traceback_only_with_debug(here, monkeypatch, capsys):
    def fail(*_, **__):
        raise KeyError("\x1b[31mred\nand more")

    monkeypatch.setattr("cns_dask.pipeline.fit", fail)
    code, said = run_line(["fit", "x.npy", "--out", "out.zarr"], monkeypatch, capsys)
    assert code == 1
    assert "this is not expected: --debug shows where it comes from" in said.splitlines()[-1]
    assert said.splitlines()[-1].startswith("cns-dask: ")
    assert "Traceback" not in said
    assert "\x1b" not in said
    monkeypatch.setattr(sys, "argv", ["cns-dask", "fit", "x.npy", "--out", "out.zarr", "--debug"])
    with pytest.raises(KeyError):
        cli.main()


def test_at_least_sixty_cases():
    assert len({case.name for case in CASES}) >= 60
