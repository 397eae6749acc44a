"""The command line as a user runs it: real files and exit codes, and real processes where these matter."""

import contextlib
import io
import json
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import dask
import numpy as np
import pandas as pd
import pytest
import zarr
from generators import mixture
from processes import background

from cns_dask import cli, open_result
from cns_dask.cli import STOPPED
from cns_dask.cli.commands import app
from cns_dask.settings import Settings

COMMAND = [sys.executable, "-c", "from cns_dask.cli import main; main()"]


def process(*arguments, cwd):
    """Run a line in a process of its own."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )


def cns(*arguments, cwd):
    """Run a line in this process, which has imported everything already."""
    heard = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    line, code, out, err = sys.argv, 0, io.StringIO(), io.StringIO()
    with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv = ["cns-dask", *map(str, arguments)]
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        finally:
            sys.argv = line
            for number, handler in heard.items():
                signal.signal(number, handler)
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.fixture(scope="module")
def folder(blobs, tmp_path_factory):
    """A folder with data and a fitted result."""
    path = tmp_path_factory.mktemp("cli")
    np.save(path / "x.npy", blobs)
    zarr.create_array(str(path / "x.zarr"), shape=blobs.shape, chunks=(100, 5), dtype="f8")[...] = blobs
    done = process("fit", "x.zarr", "--out", "clusters.zarr", cwd=path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"600 rows: \d+ clusters: ", done.stdout)
    assert "features are scaled to unit variance" in done.stdout
    assert "neighbors: " in done.stderr  # plain lines: this is no terminal
    return path


def test_help_and_version_import_nothing_heavy(tmp_path):
    heavy = "dask.array sklearn scipy.stats numba zarr pandas distributed".split()
    for words in (["--help"], ["--version"], ["fit", "--help"]):
        code = (
            f"import sys; sys.argv = ['cns-dask', *{words}]\nimport cns_dask.cli\ntry: cns_dask.cli.main()\n"
            f"except SystemExit as ended: assert not ended.code\n"
            f"assert not (loaded := [name for name in {heavy} if name in sys.modules]), loaded"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"cns-dask \d+\.\d+.*\n", process("--version", cwd=tmp_path).stdout)


@pytest.mark.parametrize("after", [0.02, 0.3, 1.0, 2.0])
def test_ctrl_c_gives_one_line_from_the_start_on(folder, tmp_path, after):
    """From the moment on at which our first line runs: before it Python itself is starting."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from cns_dask.cli import main;"
        "print('up', flush=True); main()"
    )
    line = ["fit", str(folder / "x.npy"), "--method", "cells", "--out", str(tmp_path / "r.zarr")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code, *line], **pipes) as running:
        assert running.stdout.readline() == "up\n"
        time.sleep(after)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=60)
    assert "Traceback" not in said
    assert running.returncode in (130, 0)  # 0: it was through already
    assert running.returncode == 0 or said.splitlines()[-1].startswith("cns-dask: stopped.")


def test_ctrl_c_is_heard_while_python_frees_an_object():
    """Python ignores exceptions there, and imports free hundreds of locks at the start."""
    code = """
import os, signal, time, cns_dask.cli, cns_dask.cli.commands
class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
def run(_):
    Freed()
    time.sleep(60)
cns_dask.cli.commands.run = run
cns_dask.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 130
    assert done.stderr.startswith("cns-dask: stopped.")


def test_ctrl_c_during_an_import_is_answered_without_another_import():
    """What was being imported is half there, and whatever needs it fails."""
    code = """
import os, signal, sys, cns_dask.cli
class Interrupted:
    stopped = False
    def find_spec(self, name, *_):
        if self.stopped:
            raise NameError(f"{name} is not whole")
        Interrupted.stopped = True
        os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
cns_dask.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert done.stderr.splitlines() == [STOPPED]
    assert done.returncode == 130


def test_fit_and_show(folder):
    shown = cns("show", "clusters.zarr", cwd=folder)
    result = open_result(folder / "clusters.zarr")
    choice, verdict = result.choice, result.verdict
    text = " ".join(shown.stdout.split())
    assert shown.returncode == 0
    assert f"600 rows: {verdict.sentence}" in text
    assert all(f"but: {doubt}" in text for doubt in verdict.doubts)
    assert f"because {result.selection.why}" in text
    assert f"k = {choice.n_neighbors}, lam = {choice.lam:.4g}" in text
    assert "representative" in shown.stdout
    assert "numbers of clusters" in shown.stdout
    assert re.search(rf"{choice.n_clusters} \* \| +\d+\.\d{{4}} \| +\d+ ", shown.stdout)


def test_show_and_report_of_another_number_of_clusters(folder):
    result = open_result(folder / "clusters.zarr")
    sizes = np.bincount(result.at(2).labels.compute()).tolist()
    choice = result.choice_at(2)
    shown = cns("show", "clusters.zarr", "--n-clusters", 2, cwd=folder)
    assert shown.returncode == 0, shown.stderr
    title = f"2 clusters ({choice.selection}, k = {choice.n_neighbors}, lam = {choice.lam:.4g})"
    assert title in " ".join(shown.stdout.split())
    table = shown.stdout.rsplit("numbers of clusters", 1)[0]
    assert [int(size) for size in re.findall(r"\| +\d+ \| +(\d+) \|", table)] == sizes
    done = cns("report", "clusters.zarr", "--out", "two.html", "--n-clusters", 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    page = (folder / "two.html").read_text(encoding="utf-8")
    assert "<h1>2 clusters in 600 rows</h1>" in page
    assert "2 clusters, as asked for." in page
    for cluster, size in enumerate(sizes):
        assert f'<tr><th scope="row">{cluster}</th><td>{size}</td>' in page
    for command in ("show", "report"):
        failed = cns(command, "clusters.zarr", "--n-clusters", 999, cwd=folder)
        assert failed.returncode == 2
        assert "--n-clusters must be an integer from 1 to 50. Got 999" in " ".join(failed.stderr.split())


def test_a_report_with_data_and_coordinates(folder, tmp_path):
    rows = np.load(folder / "x.npy")
    table = pd.DataFrame(rows).add_prefix("x").assign(east=rows[:, 0], north=rows[:, 1])
    table.to_parquet(tmp_path / "t.parquet")
    given = ("report", folder / "clusters.zarr", tmp_path / "t.parquet", "--columns", "x0,x1,x2,x3,x4")
    done = cns(*given, "--coordinates", "east,north", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Axes: east and north." in page
    assert '<bdi class="feature">x0</bdi>' in page
    failed = cns("report", folder / "clusters.zarr", "--coordinates", "east,north", "--overwrite", cwd=tmp_path)
    assert failed.returncode == 2
    assert "are part of the data. Give the data too" in " ".join(failed.stderr.split())


def test_fit_show_and_report_of_a_sample(tmp_path):
    rows = mixture(2500, 4, n_clusters=3, spread=9, seed=2)
    np.save(tmp_path / "x.npy", rows)
    done = cns("fit", "x.npy", "--out", "s.zarr", "--sample", 0.44, "--check-sample", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    sample = open_result(tmp_path / "s.zarr").sample
    assert sample.size == 0.44
    shown = " ".join(cns("show", "s.zarr", cwd=tmp_path).stdout.split())
    assert f"Sample: {sample.n_rows} of 2500 rows were clustered" in shown
    assert "A second sample gave 3 clusters (3 here), and the same one for 100.0% of" in shown
    assert "2500 rows: 3 clusters" in done.stdout
    other = cns("show", "s.zarr", "--n-clusters", 2, cwd=tmp_path).stdout
    assert "rows of the sample" in other
    assert cns("report", "s.zarr", cwd=tmp_path).returncode == 0
    page = (tmp_path / "report.html").read_text()
    assert f"<dt>Sample</dt><dd>{sample.n_rows} of 2500 rows were clustered" in page
    assert cns("report", "s.zarr", "--overwrite", "--n-clusters", 2, cwd=tmp_path).returncode == 0
    assert "rows of the sample" in (tmp_path / "report.html").read_text()
    again = cns("fit", "x.npy", "--out", "t.parquet", "--sample", 1100, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    table = pd.read_parquet(tmp_path / "t.parquet")
    np.testing.assert_array_equal(table["cluster"], open_result(tmp_path / "s.zarr").labels.compute())


def test_a_plan_for_many_rows_is_compared_with_that_of_a_sample(folder):
    told = cns("plan", "--rows", 10**8, "--columns", 16, "--no-measure", cwd=folder).stdout
    assert "With --sample 1000000 all other rows take the clusters of their nearest ones" in told
    assert "| all 100,000,000 |" in told
    assert "| a sample of 1,000,000 |" in told
    asked = cns("plan", "--rows", 10**8, "--columns", 16, "--no-measure", "--sample", 10**5, cwd=folder).stdout
    assert "of which 100,000 are clustered" in asked
    assert "a sample of" not in asked


def test_fit_by_the_paper_alone(folder, blobs):
    options = ("--selection", "paper", "--min-cluster-size", 20)
    done = cns("fit", "x.npy", "--out", "paper.zarr", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    result = open_result(folder / "paper.zarr")
    assert result.settings == Settings(selection="paper", min_cluster_size=20)
    assert result.choice == result.selection.paper
    assert "by the paper's criterion, because it was asked for" in cns("show", "paper.zarr", cwd=folder).stdout
    wrong = cns("fit", "x.npy", "--out", "wrong.zarr", "--selection", "best", cwd=folder)
    assert wrong.returncode == 2
    assert "selection must be one of" in wrong.stderr


def test_every_setting_has_an_option(folder):
    options = (
        "--metric cosine --n-neighbors 7,9 --lam 0.1,0.2 --n-clusters 3 --k-multipliers 1,2 --lam-multipliers 1,2.5 "
        "--max-clusters 12 --max-candidates 40 --no-scale --max-components 4 --tol 1e-8 --grid-tol 1e-5 "
        "--random-state 3 --method cells --recall 0.95 --missing skip --selection scales --min-cluster-size 9 --noise"
    )
    done = cns("fit", "x.npy", "--out", "all.zarr", *options.split(), cwd=folder)
    assert done.returncode == 0, done.stderr
    assert open_result(folder / "all.zarr").settings == Settings(
        metric="cosine", n_neighbors=(7, 9), lam=(0.1, 0.2), n_clusters=3, k_multipliers=(1, 2),
        lam_multipliers=(1, 2.5), max_clusters=12, max_candidates=40, scale=False, max_components=4, tol=1e-8,
        grid_tol=1e-5, random_state=3, method="cells", recall=0.95, missing="skip", selection="scales",
        min_cluster_size=9, noise=True,
    )  # fmt: skip
    help_text = cns("fit", "--help", cwd=folder).stdout
    for name in Settings().as_dict():
        assert f"--{name}".replace("_", "-")[:14] in help_text  # long names are cut to the width of the table


def test_predict(folder, blobs):
    done = cns("predict", "clusters.zarr", "x.npy", "--out", "new.zarr", cwd=folder)
    assert done.returncode == 0, done.stderr
    stored = zarr.open_group(str(folder / "new.zarr"), mode="r")
    result = open_result(folder / "clusters.zarr")
    np.testing.assert_array_equal(stored["labels"][...], result.labels.compute())
    np.testing.assert_array_equal(stored["memberships"][...], result.memberships.compute())
    again = cns("predict", "clusters.zarr", "x.npy", "--out", "new.zarr", cwd=folder)
    assert again.returncode == 0
    assert "new.zarr is finished already" in again.stderr
    other = cns("predict", "clusters.zarr", "x.zarr", "--out", "new.zarr", cwd=folder)
    assert other.returncode == 2
    assert "of other data or settings: the data hold other values" in other.stderr
    assert cns("predict", "clusters.zarr", "x.npy", "--out", "new.zarr", "--overwrite", cwd=folder).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_what_cannot_be_told_does_not_change_the_exit_code(folder, tmp_path):
    def code(stderr, *words):
        line = shlex.join([*COMMAND, *map(str, words)])
        return subprocess.run(["bash", "-c", f"{line} {stderr}"], cwd=folder, timeout=300, check=False).returncode

    for number, stderr in enumerate(("2>/dev/full", "2>&-", "2> >(true)")):
        out = tmp_path / f"{number}.zarr"
        assert code(f"{stderr} >{tmp_path / 'out'}", "fit", "x.npy", "--out", out) == 0
        assert open_result(out).n_rows == 600
        assert "neighbors: " not in (tmp_path / "out").read_text()  # progress goes nowhere else
        assert code(stderr, "fit", "x.npy") == 2
        assert code(stderr, "fit", "none.npy", "--out", tmp_path / "none.zarr") == 2


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_a_log_on_a_full_disk_is_dropped(folder, tmp_path):
    done = process("fit", "x.npy", "--out", tmp_path / "r.zarr", "--log", "/dev/full", cwd=folder)
    assert done.returncode == 0
    assert "error" not in done.stderr.lower()


def test_failures_end_with_code_1(folder, monkeypatch):
    from cns_dask.errors import NotEnoughMemoryError

    def fail(*_, **__):
        raise NotEnoughMemoryError("The fit needs 5 MiB.")

    monkeypatch.setattr("cns_dask.pipeline.fit", fail)
    done = cns("fit", "x.npy", "--out", "failed.zarr", cwd=folder)
    assert done.returncode == 1
    assert done.stderr.splitlines()[1:] == ["cns-dask: The fit needs 5 MiB."]


def test_fit_on_a_scheduler_by_address_and_by_file(folder, tmp_path):
    """A scheduler and a worker started by hand, as on a cluster."""
    file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    options = ["--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard"]
    with (
        background(*dask, "scheduler", "--port", "0", *options, cwd=tmp_path),
        background(*dask, "worker", "--nthreads", "1", *options, cwd=tmp_path),
    ):
        wait = ("--scheduler-file", file, "--wait-workers", 1)
        done = process("fit", "x.zarr", "--out", tmp_path / "f.zarr", *wait, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "evaluate: " in done.stderr
        address = json.loads(file.read_text())["address"]
        done = cns("fit", "x.npy", "--out", tmp_path / "a.zarr", "--scheduler", address, cwd=folder)
        assert done.returncode == 0, done.stderr
    expected = open_result(folder / "clusters.zarr").labels.compute()
    for name in ("a.zarr", "f.zarr"):
        np.testing.assert_array_equal(open_result(tmp_path / name).labels.compute(), expected)


def test_fit_on_workers_of_its_own(folder, tmp_path):
    done = process("fit", "x.npy", "--out", tmp_path / "w.zarr", "--workers", 2, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith("starting 2 workers of ")
    labels = open_result(tmp_path / "w.zarr").labels.compute()
    np.testing.assert_array_equal(labels, open_result(folder / "clusters.zarr").labels.compute())


def test_demo_ends_with_what_was_found_and_where(tmp_path):
    first, second = process("demo", cwd=tmp_path), cns("demo", cwd=tmp_path)
    for done, name in ((first, "cns-dask-demo"), (second, "cns-dask-demo-2")):
        assert done.returncode == 0, done.stderr
        assert "3000 rows: 6 clusters: " in done.stdout
        assert f"result: {name}/clusters.zarr" in done.stdout
        assert f"next: cns-dask explain {name}/clusters.zarr {name}/data.npy" in done.stdout
        assert open_result(tmp_path / name / "clusters.zarr").n_rows == 3000
        page = (tmp_path / name / "report.html").read_text(encoding="utf-8")
        assert "6 clusters in 3\u202f000 rows" in page
        assert "Features by cluster" in page
    assert cns("demo", "cns-dask-demo", cwd=tmp_path).returncode == 2
    assert cns("demo", "cns-dask-demo", "--overwrite", cwd=tmp_path).returncode == 0


def test_every_command_has_help():
    assert {command.callback.__name__ for command in app.registered_commands} == {
        "fit", "plan", "neighbors", "predict", "show", "report", "explain", "warmup", "doctor", "demo",
    }  # fmt: skip
    assert all(command.callback.__doc__ for command in app.registered_commands)


def test_plan_of_data_and_of_a_size(folder):
    told = cns("plan", "x.npy", "--workers", 2, "--memory", "4GiB", "--no-measure", cwd=folder)
    assert told.returncode == 0, told.stderr
    assert "600 rows x 5 features, 2 worker(s)" in told.stdout
    assert "4.00 GiB given: enough" in told.stdout
    assert (
        "1,000,000 rows x 16 features"
        in cns("plan", "--rows", 10**6, "--columns", 16, "--no-measure", cwd=folder).stdout
    )
    wrong = {"x.npy --memory much": "--memory must be a size as 8GiB. Got 'much'", "--rows 7": "--rows and --columns"}
    for arguments, message in wrong.items():
        failed = cns("plan", *arguments.split(), cwd=folder)
        assert failed.returncode == 2
        assert message in failed.stderr.replace("\n", " ")


def test_neighbors_then_fit_with_them(folder):
    printed = cns("neighbors", "x.npy", "--out", "graph.zarr", "-k", 24, cwd=folder)
    assert "Neighbours: exact." in printed.stdout
    fitted = cns("fit", "x.npy", "--graph", "graph.zarr", "--out", "from-graph.zarr", "--no-scale", cwd=folder)
    alone = cns("fit", "--graph", "graph.zarr", "--out", "graph-alone.zarr", cwd=folder)
    assert fitted.stdout.startswith("600 rows: 3 clusters")
    assert alone.stdout.startswith("600 rows: 3 clusters")
    assert "Neighbours: exact." in cns("show", "from-graph.zarr", cwd=folder).stdout
    cns("report", "graph-alone.zarr", "--out", "alone.html", cwd=folder)
    assert "no rows to draw" in (folder / "alone.html").read_text(encoding="utf-8")


def test_an_approximate_fit_tells_its_recall(folder):
    approximate = cns("fit", "x.npy", "--method", "cells", "--out", "cells.zarr", cwd=folder)
    assert "calibrate: " in approximate.stderr
    shown = cns("show", "cells.zarr", cwd=folder).stdout
    assert re.search(r"Neighbours: cells, recall 0?\.?\d+.* at k = \d+ \(95 % interval, \d+ rows\)", shown)
    cns("predict", "cells.zarr", "x.npy", "--out", "predicted.zarr", cwd=folder)


def test_a_fit_says_at_once_what_it_starts(folder, tmp_path):
    """Before it imports what takes seconds."""
    code = (
        "import sys, cns_dask.cli; heavy = 'dask.array distributed zarr sklearn numba'.split()\n"
        "class Told(Exception): pass\n"
        "class Stream:\n"
        "    def write(self, text): assert text.startswith('starting 2 workers of'), text; raise Told\n"
        "    def flush(self): pass\n"
        "import cns_dask.cli.options as options; options.sys = type('', (), {'stderr': Stream()})\n"
        "from cns_dask.cli.commands import run\n"
        "try: run(sys.argv)\n"
        "except Told: assert not (loaded := [name for name in heavy if name in sys.modules]), loaded\n"
        "else: raise SystemExit('nothing was told')"
    )
    line = ["fit", str(folder / "x.npy"), "--workers", "2", "--out", str(tmp_path / "r.zarr")]
    done = subprocess.run([sys.executable, "-c", code, *line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_fit_ends_with_four_lines_and_warnings_in_words(folder):
    done = cns("fit", "x.npy", "--out", "three.zarr", cwd=folder)
    verdict, scaling, where, advice = done.stdout.splitlines()
    assert scaling == open_result(folder / "three.zarr").scaling
    assert scaling.startswith("features are scaled to unit variance")
    assert verdict == f"600 rows: {open_result(folder / 'three.zarr').verdict.sentence}"
    assert where == "result: three.zarr"
    assert advice.startswith("next: cns-dask explain three.zarr x.npy")
    assert "ChoiceWarning" not in done.stderr
    assert ".py" not in done.stderr
    doubts = open_result(folder / "three.zarr").verdict.doubts
    assert [f"cns-dask: warning: {doubt}" for doubt in doubts] == [
        line for line in done.stderr.splitlines() if "warning" in line
    ]


def test_fit_show_and_plan_print_one_document(folder):
    done = cns("fit", "x.npy", "--out", "json.csv", "--json", cwd=folder)
    document, result = json.loads(done.stdout), open_result(folder / "json.zarr")
    assert (document["result"], document["table"], document["report"]) == ("json.zarr", "json.csv", None)
    assert document["verdict"] == result.verdict.sentence
    assert document["settings"]["random_state"] == 0
    shown = json.loads(cns("show", "json.zarr", "--json", cwd=folder).stdout)
    assert {key: value for key, value in shown.items() if key != "result"}.items() <= document.items()
    assert [each["rows"] for each in shown["clusters"]] == result.sizes().tolist()
    assert [each["representative"] for each in shown["clusters"]] == result.representatives.tolist()
    assert shown["n_clusters"] in {each["n_clusters"] for each in shown["numbers_of_clusters"]}
    two = json.loads(cns("show", "json.zarr", "--json", "--n-clusters", 2, cwd=folder).stdout)
    assert [each["rows"] for each in two["clusters"]] == np.bincount(result.at(2).labels.compute()).tolist()
    planned = json.loads(cns("plan", "--rows", 3 * 10**6, "--columns", 4, "--no-measure", "--json", cwd=folder).stdout)
    assert (planned["n_rows"], planned["with_sample"]["n_sampled"]) == (3 * 10**6, 10**6)
    assert planned["limit_bytes"] % 2**30 == 0


def test_a_table_in_csv_has_the_rows_of_the_input(folder):
    rows = np.load(folder / "x.npy")
    pd.DataFrame(rows, columns=[f"f{at}" for at in range(rows.shape[1])]).to_csv(folder / "x.csv", index=False)
    assert cns("fit", "x.csv", "--out", "out.csv", cwd=folder).returncode == 0
    assert cns("predict", "out.zarr", "x.csv", "--out", "new.csv", cwd=folder).returncode == 0
    result = open_result(folder / "out.zarr")
    for name in ("out.csv", "new.csv"):
        found = pd.read_csv(folder / name, index_col=0)
        assert found.index.tolist() == list(range(600))
        np.testing.assert_array_equal(found["cluster"], result.labels.compute())
        np.testing.assert_allclose(found.filter(like="membership_"), result.memberships.compute(), rtol=1e-12)
    refused = cns("fit", "x.csv", "--out", "x.csv", "--overwrite", cwd=folder)
    assert refused.returncode == 2
    assert "which is read. Choose another --out." in refused.stderr
    assert (
        "already exists. Choose another --out, or replace it with --overwrite."
        in cns("predict", "out.zarr", "x.csv", "--out", "new.csv", cwd=folder).stderr
    )


@pytest.mark.parametrize(
    "line",
    [
        "fit x.npy --out new.xlsx",
        "predict clusters.zarr x.npy --out new.json",
        "neighbors x.npy -k 5 --out new.parquet",
        "report clusters.zarr --out new.pdf",
    ],
)
def test_an_ending_that_is_not_written_is_refused_before_any_work(folder, line):
    done = cns(*line.split(), cwd=folder)
    assert done.returncode == 2
    assert re.fullmatch(r"cns-dask: new\.\w+ ends in \.\w+, which is not written here: .*\n", done.stderr)


def test_what_does_not_exist_is_told_before_workers_are_started(folder):
    done = cns("fit", "nothing.npy", "--out", "none.zarr", "--workers", 2, cwd=folder)
    assert done.returncode == 2
    assert "nothing exists there" in done.stderr.splitlines()[-1]


def test_options_that_contradict_a_graph_are_refused(folder):
    assert cns("neighbors", "x.npy", "-k", 24, "--out", "plain.zarr", cwd=folder).returncode == 0
    wrong = cns("fit", "x.npy", "--graph", "plain.zarr", "--scale", "--out", "w.zarr", cwd=folder)
    assert wrong.returncode == 2
    assert "The graph was made with --no-scale, and the fit is asked for --scale. Leave --scale out" in wrong.stderr
    assert cns("neighbors", "x.npy", "-k", 24, "--scale", "--out", "scaled.zarr", cwd=folder).returncode == 0
    assert cns("fit", "x.npy", "--graph", "scaled.zarr", "--out", "from-scaled.zarr", cwd=folder).returncode == 0
    assert cns("fit", "x.npy", "--scale", "--out", "own.zarr", cwd=folder).returncode == 0
    labels = [open_result(folder / name).labels.compute() for name in ("from-scaled.zarr", "own.zarr")]
    np.testing.assert_array_equal(*labels)


def test_completion_in_bash(tmp_path):
    """The words that a real bash offers."""
    command = tmp_path / "cns-dask"
    command.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    command.chmod(0o755)
    script = """
PATH="$1:$PATH"
eval "$(_CNS_DASK_COMPLETE=source_bash cns-dask)"
function=$(complete -p cns-dask | sed 's/.*-F \\([^ ]*\\).*/\\1/')
offered() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); $function cns-dask; echo "${COMPREPLY[*]}"; }
offered cns-dask do
offered cns-dask fit --max-c
offered cns-dask fit x.npy --metric ''
"""
    pythonpath = {"PYTHONPATH": str(Path(cli.__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    line = ["bash", "-c", script, "bash", str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True, env=pythonpath)
    assert [line.split() for line in done.stdout.splitlines()] == [
        ["doctor"],
        ["--max-clusters", "--max-candidates", "--max-components"],
        ["euclidean", "cosine"],
    ]


def test_a_performance_report_needs_workers_and_bokeh(folder, monkeypatch):
    monkeypatch.setattr("cns_dask.execution.cluster.has_bokeh", lambda: False)
    line = ("fit", "x.npy", "--out", "perf.zarr", "--performance-report")
    assert "needs bokeh: pip install" in cns(*line, "perf.html", cwd=folder).stderr
    monkeypatch.setattr("cns_dask.execution.cluster.has_bokeh", lambda: True)
    assert "Give --workers or --scheduler too" in cns(*line, "perf.html", cwd=folder).stderr
    assert "cannot be written: its folder" in cns(*line, "nowhere/perf.html", cwd=folder).stderr
    assert not (folder / "perf.zarr").exists()


def test_a_performance_report_is_written(folder, tmp_path):
    pytest.importorskip("bokeh", reason="Dask's performance report needs bokeh")
    page = tmp_path / "perf.html"
    options = ("--workers", 1, "--performance-report", page)
    done = process("fit", "x.npy", "--out", tmp_path / "p.zarr", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "dashboard at http://127.0.0.1:" in done.stderr
    assert "evaluate" in page.read_text(encoding="utf-8") or page.stat().st_size > 10_000


def test_defaults_of_dasks_configuration_count_and_options_win(folder, tmp_path, monkeypatch):
    (tmp_path / "scratch").mkdir()
    settings = {"cns-dask.sample": 1000, "cns-dask.scratch": str(tmp_path / "scratch"), "cns-dask.report": True}
    rows = mixture(2500, 4, n_clusters=3, spread=9, seed=2)
    np.save(tmp_path / "x.npy", rows)
    with dask.config.set(settings):
        done = cns("fit", "x.npy", "--out", "c.zarr", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert cns("fit", "x.npy", "--out", "all.zarr", "--sample", "1.0", cwd=tmp_path).returncode == 0
    assert "result: c.zarr, c.html" in done.stdout
    assert open_result(tmp_path / "c.zarr").sample.size == 1000
    assert open_result(tmp_path / "all.zarr").sample is None
    assert (tmp_path / "c.html").exists()
    with dask.config.set({"cns-dask.workers": "many"}):
        wrong = cns("fit", "x.npy", "--out", "w.zarr", cwd=tmp_path)
        assert (wrong.returncode, "cns-dask.workers in Dask's configuration must be" in wrong.stderr) == (2, True)
