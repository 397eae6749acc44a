"""What a fit will take: measured once here, which takes seconds; elsewhere rates are made up."""

import math
import uuid

import numpy as np
import pytest
from dask.utils import key_split

from cns_dask import Settings, plan, planning
from cns_dask.errors import InvalidSettingError
from cns_dask.execution.forecast import comparison
from cns_dask.jobs import prepare
from cns_dask.neighbors.plan import descent_stage, given_stage
from cns_dask.sizing import plan_sizes, plan_stages

SIZES = {"n_rows": 300_000, "n_features": 3, "workers": 2, "threads": 2, "memory_bytes": 2**32}
SETTINGS = Settings(max_candidates=50)


@pytest.fixture(scope="module")
def measured():
    """A forecast with measured rates, and the seconds of each step of the sample."""
    timers, timed_fit = [], planning._timed_fit

    def watched(sample, settings):
        timer, candidates = timed_fit(sample, settings)
        timers.append(timer)
        return timer, candidates

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "_timed_fit", watched)
        return plan(**SIZES, settings=SETTINGS), timers[0]


@pytest.fixture
def one_second_per_step(monkeypatch):
    """Every step of the sample takes a second, and a tenth of the possible candidates is found; the samples."""
    samples = []

    def timed(sample, settings):
        samples.append(sample)
        sizes = plan_sizes(*sample.shape, settings)
        seconds = {step.name: 1.0 for stage in plan_stages(3, *sizes).stages for step in stage.steps}
        return seconds, [settings.max_candidates // 10 for _ in sizes[1].grid.ks]

    monkeypatch.setattr(planning, "_timed_fit", timed)
    monkeypatch.setattr(planning, "_memory_slowdown", lambda: 3.0)
    return samples


def test_a_plan_tells_tasks_memory_disk_time_and_what_more_workers_do(measured):
    forecast, _ = measured
    stages = {row.stage: row for row in forecast.stages}
    assert list(stages) == [
        "preprocess", "points", "copies", "cells", "calibrate", "neighbors", "candidates", "evaluate", "communities",
        "absorption", "memberships",
    ]  # fmt: skip
    assert all(row.tasks > 0 and row.bytes_moved > 0 and row.core_seconds > 0 for row in forecast.stages)
    assert stages["evaluate"].tasks > 4 * 50 / 16
    assert forecast.curve[1] > forecast.seconds > forecast.curve[1000]
    assert forecast.seconds == forecast.curve[2]
    assert 1 <= forecast.flattens_at <= 1000
    assert 2**28 < forecast.worker_bytes < 2**33
    text = str(forecast)
    assert "300,000 rows x 3 features, 2 worker(s) of 2 thread(s): about" in text
    assert "4.00 GiB given: enough" in text
    assert "| evaluate |" in text
    assert "| 1000 |" in text
    assert 1 <= forecast.recommended_workers <= forecast.flattens_at
    assert forecast.worker_bytes <= forecast.limit_bytes < forecast.worker_bytes + 2**30
    limit = f"--nthreads 2 --memory-limit {forecast.limit_bytes // 2**30}GiB --preload cns_dask.warmup"
    assert f"Recommended: {forecast.recommended_workers} worker(s)" in text
    assert limit in text


def test_every_step_that_has_work_was_timed(measured):
    """A step that no task is named after would be forecast to take no time."""
    _, seconds = measured
    stages = plan_stages(3, *plan_sizes(300_000, 3, SETTINGS)).stages
    steps = {step.name for stage in stages for step in stage.steps if step.work}
    assert {name for name in steps if not seconds.get(name, 0.0) > 0} == set()


def test_without_measurement_all_but_the_times_are_the_same(measured):
    forecast = plan(**SIZES, settings=SETTINGS, measure=False)
    assert (forecast.seconds, forecast.curve) == (None, {})
    assert {row.core_seconds for row in forecast.stages} == {None}
    for row, timed in zip(forecast.stages, measured[0].stages, strict=True):  # which expects fewer candidates
        assert (row.stage, row.bytes_per_task) == (timed.stage, pytest.approx(timed.bytes_per_task, rel=0.01))
    assert forecast.worker_bytes == measured[0].worker_bytes


@pytest.mark.parametrize(
    ("n_rows", "method"), [(600, "auto"), (10**6, "auto"), (10**6, "exact"), (5000, "cells"), (5000, "descent")]
)
def test_the_keys_of_tasks_tell_their_step(n_rows, method):
    sizes = plan_sizes(n_rows, 4, Settings(method=method))
    graph = sizes[0]
    stages = (
        *plan_stages(4, *sizes).stages,
        descent_stage(graph, "descent-1"),
        given_stage(graph, with_distances=True),
    )
    for stage in stages:
        for step in stage.steps:
            assert key_split(f"{step.name}-{uuid.uuid4().hex}") == step.name
            assert step.tasks > 0


def test_a_plan_of_data_asks_only_for_their_size_and_some_rows(tmp_path, blobs, one_second_per_step):
    np.save(tmp_path / "x.npy", blobs)
    exact = plan(tmp_path / "x.npy", memory_bytes=2**20)
    assert (exact.n_rows, exact.n_features) == (600, 5)
    assert "cells" not in {row.stage for row in exact.stages}
    assert "NOT enough" in str(exact)
    more = plan(tmp_path / "x.npy", n_rows=10**7)
    assert (more.n_rows, more.n_features) == (10**7, 5)
    assert "cells" in {row.stage for row in more.stages}
    assert more.curve[1] > 100 * exact.curve[1]
    for sample in one_second_per_step:
        np.testing.assert_array_equal(sample, blobs)


def test_time_grows_with_the_work_and_where_rows_do_not_fit_into_the_cache(one_second_per_step):
    settings = Settings(method="exact", n_neighbors=8, lam=0.1, selection="scales")
    little, much = (plan(n_rows=rows, n_features=2, settings=settings) for rows in (20_000, 200_000))
    seconds = {
        row.stage: (row.core_seconds, more.core_seconds) for row, more in zip(little.stages, much.stages, strict=True)
    }
    assert seconds["points"] == pytest.approx((1.0, 10.0))
    assert seconds["neighbors"] == pytest.approx((1.0, 100.0))  # every row with every other
    slowdown = 1 + 2 * math.log(200_000 / 2**16) / math.log(16)
    assert seconds["absorption"] == pytest.approx((1.0, 10 * slowdown))


@pytest.mark.parametrize("measure", [False, True])
@pytest.mark.parametrize("max_candidates", [300, 2000])
def test_memory_and_disk_are_what_a_fit_will_ask_for(one_second_per_step, max_candidates, measure):
    """Before it begins a fit does not know how few candidates it will find."""
    X, settings = np.random.default_rng(0).standard_normal((5000, 2)), Settings(max_candidates=max_candidates)
    asked, forecast = prepare(X, settings).plan, plan(X, settings=settings, measure=measure)
    assert (forecast.worker_bytes, forecast.disk_bytes) == (asked.worker_bytes(1), asked.disk_bytes)


@pytest.mark.parametrize("sizes", [{}, {"n_rows": 5}, {"n_features": 2}])
def test_a_plan_needs_a_size(sizes):
    with pytest.raises(InvalidSettingError, match="Give data, or n_rows and n_features: there is nothing to plan for"):
        plan(**sizes)


@pytest.mark.parametrize(
    "sizes",
    [
        {"n_rows": 1}, {"n_features": 0}, {"workers": 0}, {"threads": 1.5}, {"memory_bytes": "8GiB"},
        {"memory_bytes": 0}, {"memory_bytes": -(2**30)},
    ],
)  # fmt: skip
def test_sizes_must_be_possible(sizes):
    with pytest.raises(InvalidSettingError, match=f"{next(iter(sizes))} must be an integer from"):
        plan(**({"n_rows": 100, "n_features": 2} | sizes))


def test_sizes_may_be_numbers_of_numpy():
    sizes = {
        "n_rows": np.int64(1000),
        "n_features": np.int32(2),
        "workers": np.int8(1),
        "memory_bytes": np.int64(2**30),
    }
    assert "1,000 rows x 2 features" in str(plan(**sizes, measure=False))


def test_rows_that_are_too_wide_to_measure_are_refused():
    with pytest.raises(
        InvalidSettingError, match=r"too many to measure rates with: 1000 rows .* Plan without measuring"
    ):
        plan(n_rows=10**12, n_features=10**9)


def test_clusters_may_be_larger_than_the_sample(one_second_per_step):
    settings = Settings(min_cluster_size=50_000)
    assert plan(n_rows=10**6, n_features=2, settings=settings).seconds > 0
    with pytest.raises(InvalidSettingError, match="min_cluster_size must be at most the number of rows"):
        plan(n_rows=10_000, n_features=2, settings=settings)
    with pytest.raises(InvalidSettingError, match="settings must be Settings"):
        plan(n_rows=10_000, n_features=2, settings={})


def test_a_sample_needs_the_memory_of_its_own_rows_and_time_for_all():
    sizes = {"n_rows": 10**9, "n_features": 16, "threads": 2, "measure": False}
    sampled, alone = plan(**sizes, sample=10**6), plan(**(sizes | {"n_rows": 10**6}))
    assert alone.worker_bytes <= sampled.worker_bytes <= 1.3 * alone.worker_bytes
    assert "1,000,000,000 rows x 16 features of which 1,000,000 are clustered" in str(sampled)
    assert [stage.stage for stage in sampled.stages][:2] == ["sample", "clustered_rows"]
    assert sampled.stages[-1].stage == "assign"
    assert plan(**sizes, sample=0.001).stages == sampled.stages
    assert plan(**sizes, sample=10**9).stages == plan(**sizes).stages
    assert "| a sample of 1,000,000 | 3." in comparison(plan(**sizes), sampled)


def test_the_time_of_a_sample_grows_with_all_rows(one_second_per_step, monkeypatch):
    monkeypatch.setattr(planning, "SAMPLE_ROWS", 2000)
    rates = planning._sampling_rates(planning._mixture(2000, 4), Settings(method="exact"))
    assert all(rates[name] > 0 for name in ("sample", "clustered_rows", "assign"))
    monkeypatch.setattr(planning, "_sampling_rates", lambda *_: rates)
    few, many = (plan(n_rows=n_rows, n_features=4, sample=5000, settings=SETTINGS) for n_rows in (10**5, 10**7))
    core = {forecast.n_rows: {row.stage: row.core_seconds for row in forecast.stages} for forecast in (few, many)}
    assert core[10**7]["assign"] == pytest.approx(100 * core[10**5]["assign"])
    assert core[10**7]["evaluate"] == core[10**5]["evaluate"] > 0


def test_rows_that_a_fit_would_skip_do_not_keep_a_plan_from_measuring(one_second_per_step):
    X = np.random.default_rng(0).standard_normal((500, 3))
    X[7, 1] = np.nan
    assert plan(X, settings=SETTINGS).seconds is not None
    assert [len(sample) for sample in one_second_per_step] == [499]
