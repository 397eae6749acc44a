import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask import Settings, plan
from cns_dask.errors import InvalidSettingError
from cns_dask.execution.forecast import SCHEDULER_SECONDS, Group, makespan

durations = st.lists(st.tuples(st.integers(1, 9), st.floats(0.1, 5)), min_size=1, max_size=6)


@given(durations=durations, slots=st.integers(1, 12))
def test_tasks_are_never_done_before_their_work_or_their_longest_chain(durations, slots):
    groups = [Group("a", n, s, (i - 1,) if i % 2 else ()) for i, (n, s) in enumerate(durations)]
    work = sum(group.count * group.seconds for group in groups)
    chains = [group.seconds + sum(groups[at].seconds for at in group.after) for group in groups]
    overhead = SCHEDULER_SECONDS * sum(group.count for group in groups)
    took = makespan(groups, slots)
    assert max(work / slots, *chains) <= took <= work / slots + sum(chains) + overhead
    assert makespan(groups, 1) == pytest.approx(work + overhead, rel=1e-9)


def test_a_scheduler_is_the_limit_for_many_small_tasks():
    assert makespan([Group("a", 5000, 1e-6)], 1000) == pytest.approx(5000 * SCHEDULER_SECONDS, rel=0.01)


@pytest.fixture(scope="module")
def forecast():
    sizes = {"n_rows": 300_000, "n_features": 3, "workers": 2, "threads": 2, "memory_bytes": 2**32}
    return plan(**sizes, settings=Settings(max_candidates=50))


def test_a_plan_tells_tasks_memory_disk_time_and_what_more_workers_do(forecast):
    stages = {row.stage: row for row in forecast.stages}
    assert list(stages) == [
        "points", "partitions", "calibrate", "neighbors", "candidates", "cells", "columns", "memberships",
    ]  # fmt: skip
    assert all(row.tasks > 0 and row.bytes_moved > 0 and row.core_seconds > 0 for row in forecast.stages)
    assert stages["cells"].tasks > 4 * 50 / 16
    assert forecast.curve[1] > forecast.seconds > forecast.curve[1000]
    assert forecast.seconds == forecast.curve[2]
    assert 1 <= forecast.flattens_at <= 1000
    assert 2**28 < forecast.worker_bytes < 2**33
    text = str(forecast)
    assert "300,000 rows x 3 columns, 2 worker(s) of 2 thread(s): about" in text
    assert "4.00 GiB given: enough" in text
    assert "| cells |" in text
    assert "| 1000 |" in text
    assert 1 <= forecast.recommended_workers <= forecast.flattens_at
    assert forecast.worker_bytes <= forecast.limit_bytes < forecast.worker_bytes + 2**30
    limit = f"--nthreads 2 --memory-limit {forecast.limit_bytes // 2**30}GiB --preload cns_dask.warmup"
    assert f"Recommended: {forecast.recommended_workers} worker(s)" in text
    assert limit in text


def test_a_plan_of_data_asks_only_for_their_size_and_some_rows(tmp_path, blobs):
    np.save(tmp_path / "x.npy", blobs)
    exact = plan(tmp_path / "x.npy", memory_bytes=2**20)
    assert (exact.n_rows, exact.n_features) == (600, 5)
    assert "partitions" not in {row.stage for row in exact.stages}
    assert "NOT enough" in str(exact)
    more = plan(tmp_path / "x.npy", n_rows=10**7)
    assert more.n_rows == 10**7
    assert more.curve[1] > 100 * exact.curve[1]


@pytest.mark.parametrize("sizes", [{}, {"n_rows": 5}, {"n_features": 2}])
def test_a_plan_needs_a_size(sizes):
    with pytest.raises(InvalidSettingError, match="Data, or n_rows and n_features, must be given"):
        plan(**sizes)


@pytest.mark.parametrize("sizes", [{"n_rows": 1}, {"n_features": 0}, {"workers": 0}, {"threads": 1.5}])
def test_sizes_must_be_possible(sizes):
    with pytest.raises(InvalidSettingError, match=f"{next(iter(sizes))} must be an integer from"):
        plan(**({"n_rows": 100, "n_features": 2} | sizes))
