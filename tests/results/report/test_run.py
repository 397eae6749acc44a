import dataclasses

import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.execution.memory import Moment
from cns_dask.results.report.run import command_line, python_call, run_of, warnings_of
from cns_dask.results.report.shown import collect
from cns_dask.results.result import Result


@pytest.fixture(scope="module")
def result(blobs):
    return CNS(n_neighbors=(12, 20), lam=0.1, scale=False, max_components=None).fit(blobs).result_


def test_the_command_repeats_the_settings(result):
    line = command_line(result)
    assert line == "cns-dask fit DATA --n-neighbors 12,20 --lam 0.1 --no-scale --max-components 0 --out clusters.zarr"
    assert python_call(result) == "CNS(n_neighbors=(12, 20), lam=0.1, scale=False, max_components=None).fit(X)"


def test_stages_are_in_the_order_of_their_starts(result):
    stages = run_of(result)["stages"]
    assert [start for _, start, _ in stages] == sorted(start for _, start, _ in stages)
    assert stages[0][1] == 0
    assert {name for name, _, _ in stages} == set(result.seconds)
    ends = [start + length for _, start, length in stages]
    assert all(later[1] >= end - 0.05 for end, later in zip(ends, stages[1:], strict=False))


def test_processes_have_short_names(result, monkeypatch):
    used = {"worker tcp://10.0.0.1:4001": 2**30, "worker tcp://10.0.0.2:4001": 2**29}
    moments = [Moment(max(result.started.values()) + 1, dict.fromkeys(used, (2**20, 50.0)))]
    record = dataclasses.replace(result.memory_record, peak_bytes=used, planned_bytes=used, moments=moments)
    monkeypatch.setattr(Result, "memory_record", record)
    run = run_of(result)
    assert [(name, address) for name, address, *_ in run["peaks"]] == [
        ("worker 1", "worker tcp://10.0.0.1:4001"),
        ("worker 2", "worker tcp://10.0.0.2:4001"),
    ]
    assert "50\u202f% busy" in run["timeline"]
    assert "10.0.0.1" not in run["timeline"] + run["memory"]


def test_what_a_reader_should_know(result, blobs, monkeypatch):
    assert all("memory" not in line for line in warnings_of(result, collect(result)))
    record = dataclasses.replace(result.memory_record, short_of_memory={"worker a": "paused"})
    monkeypatch.setattr(Result, "memory_record", record)
    assert "worker a was short of memory: it paused." in warnings_of(result, collect(result))
    X = np.concatenate([blobs, blobs + 0.01])
    X[:5] = np.nan
    sampled = CNS(n_neighbors=12, lam=0.1, missing="skip").fit(X, sample=1000).result_
    told = warnings_of(sampled, collect(sampled))
    assert "5 of 1\u202f200 rows have no cluster: values are missing or infinite." in told
    assert any(line.startswith("A sample was clustered") for line in told)
