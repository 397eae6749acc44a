import subprocess
import sys

import dask
import numpy as np
import pytest

from cns_dask import CNS, config, neighbor_graph, plan
from cns_dask.errors import InvalidSettingError


def test_every_key_has_its_default():
    assert dask.config.get("cns-dask") | config.DEFAULTS["cns-dask"] == dask.config.get("cns-dask")
    assert config.default_scratch() is config.default_memory() is config.default_sample(10**9) is None
    assert config.default_workers() == 0
    assert config.report_path("a.zarr") is None


def test_variables_and_what_was_set_before_the_import_count():
    code = (
        "import dask; dask.config.set({'cns-dask.sample': 5000}); from cns_dask import config;"
        "print(config.default_workers(), config.default_memory(), config.default_sample(10**6))"
    )
    environment = {"DASK_CNS_DASK__WORKERS": "3", "DASK_CNS_DASK__MEMORY": "1GiB", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["3", str(2**30), "5000"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("workers", -1), ("workers", True), ("workers", "two"), ("memory", "much"), ("memory", -1), ("memory", [1]),
     ("sample", "all"), ("sample", True), ("scratch", 3), ("report", "yes")],
)  # fmt: skip
def test_values_of_the_wrong_kind_are_refused(name, value):
    read = {"workers": config.default_workers, "memory": config.default_memory, "scratch": config.default_scratch,
            "sample": lambda: config.default_sample(10**6), "report": config.wants_report}  # fmt: skip
    with (
        dask.config.set({f"cns-dask.{name}": value}),
        pytest.raises(InvalidSettingError, match=f"cns-dask.{name} in Dask's configuration must be"),
    ):
        read[name]()


@pytest.mark.parametrize(
    ("sample", "n_rows", "expected"),
    [(5000, 10**6, 5000), (5000, 5000, None), (0.01, 10**6, 0.01), (0.01, 10**4, None), (1.0, 10**6, None)],
)
def test_a_sample_by_default_is_for_data_that_have_many_rows(sample, n_rows, expected):
    with dask.config.set({"cns-dask.sample": sample}):
        assert config.default_sample(n_rows) == expected


def test_fits_in_python_have_the_same_defaults_and_arguments_win(tmp_path):
    X = np.random.default_rng(0).normal(size=(2500, 3))
    (tmp_path / "scratch").mkdir()
    with dask.config.set({"cns-dask.sample": 1000, "cns-dask.scratch": str(tmp_path / "nowhere")}):
        assert CNS().fit(X).result_.sample.size == 1000
        assert CNS().fit(X, sample=1.0).result_.sample is None
        graph = neighbor_graph(X[:200], 30)
        assert CNS().fit(X[:200], graph=graph).result_.sample is None  # a graph is never sampled
        for work in (lambda **more: CNS().fit(X, out=tmp_path / "r.zarr", **more),
                     lambda **more: neighbor_graph(X, 5, out=tmp_path / "g.zarr", **more)):  # fmt: skip
            with pytest.raises(OSError, match="nowhere does not exist"):
                work()
            work(scratch=tmp_path / "scratch")
        assert plan(n_rows=10**6, n_features=3, measure=False).n_sampled == 1000
    with dask.config.set({"cns-dask.workers": 3, "cns-dask.memory": "4GiB"}):
        forecast = plan(n_rows=1000, n_features=3, measure=False)
        assert (forecast.workers, forecast.memory_bytes) == (3, 2**32)
        assert plan(n_rows=1000, n_features=3, workers=2, measure=False).workers == 2


def test_a_report_is_written_beside_a_result_that_is_kept(tmp_path):
    X = np.random.default_rng(0).normal(size=(200, 3))
    with dask.config.set({"cns-dask.report": True}):
        CNS().fit(X)
        CNS().fit(X, out=tmp_path / "c.zarr")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c.html", "c.zarr"]


@pytest.mark.slow
def test_workers_are_started_for_a_fit_and_gone_after_it(tmp_path):
    """In a process of its own: spawned workers import its main module."""
    code = """
import dask, numpy as np
from cns_dask import CNS
from cns_dask.execution.cluster import active_client
if __name__ == "__main__":
    X = np.random.default_rng(0).normal(size=(300, 3))
    here = CNS().fit(X)
    with dask.config.set({"cns-dask.workers": 2, "cns-dask.memory": "1.5GiB"}):
        there = CNS().fit(X)
        with dask.config.set(scheduler="threads"):
            CNS().fit(X)
    assert active_client() is None
    assert (there.labels_ == here.labels_).all()
"""
    (tmp_path / "script.py").write_text(code)
    environment = {"PYTHONPATH": ":".join(sys.path)}
    line = [sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=environment, timeout=200)
    assert done.returncode == 0, done.stderr
