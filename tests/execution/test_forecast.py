from dataclasses import replace
from types import SimpleNamespace

import dask
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.execution import forecast
from cns_dask.execution.forecast import (
    SCHEDULER_SECONDS,
    Forecast,
    Group,
    StageForecast,
    StepTimer,
    makespan,
    stage_forecasts,
    step_rates,
    task_groups,
)
from cns_dask.execution.plan import Plan, Stage, Step
from cns_dask.storage.layout import ArrayPlan

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


def test_a_group_without_tasks_holds_nobody_up():
    groups = [Group("a", 0, 1.0), Group("b", 1, 2.0, after=(0,))]
    assert makespan(groups, 1) == pytest.approx(2.0, abs=2 * SCHEDULER_SECONDS)


PLAN = Plan(
    (
        Stage("points", (Step("read", 2, 10, work=8),), writes=(ArrayPlan("points", (10, 2), (5, 2)),)),
        Stage(
            "solve",
            (
                Step("solve", 4, 30, work=6, gathers=True),
                Step("sum", 2, 20, work=3, after=(0,)),
                Step("end", 1, after=(1,)),
            ),
            reads=(ArrayPlan("points", (10, 2), (5, 2)),),
        ),
        Stage("again", (Step("solve", 1, 5, work=2),)),
    )
)


def test_steps_wait_for_those_of_their_stage_and_stages_for_the_one_before():
    groups = task_groups(PLAN, {"read": 0.5, "solve": 2.0, "sum": 4.0}, slowdown=3.0)
    assert groups == [
        Group("points", 2, 0.5 * 8 / 2),
        Group("solve", 4, 3.0 * 2.0 * 6 / 4, after=(0,)),  # it gathers rows: slower where they are many
        Group("solve", 2, 4.0 * 3 / 2, after=(1,)),
        Group("solve", 1, 0.0, after=(2,)),
        Group("again", 1, 2.0 * 2 / 1, after=(1, 2, 3)),
    ]


def test_a_rate_is_the_time_of_all_steps_of_a_name_for_all_their_work():
    assert step_rates(PLAN, {"read": 4.0, "solve": 16.0, "end": 1.0}) == {"read": 0.5, "solve": 2.0, "sum": 0.0}


def test_the_table_of_stages():
    groups = task_groups(PLAN, {"read": 0.5, "solve": 2.0})
    assert stage_forecasts(PLAN, groups) == (
        StageForecast("points", 2, 10, 160, 4.0),
        StageForecast("solve", 7, 30, 160, 12.0),
        StageForecast("again", 1, 5, 0, 4.0),
    )
    assert [row.core_seconds for row in stage_forecasts(PLAN, [])] == [None, None, None]


def test_tasks_are_timed_for_the_step_that_their_keys_begin_with(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(forecast, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    timer = StepTimer(PLAN)

    def work(seconds):
        now[0] += seconds

    def computed(name, seconds):
        dask.delayed(work)(seconds, dask_key_name=f"{name}-0123456789abcdef").compute(scheduler="synchronous")

    with timer.timing():
        computed("sum", 1.0)  # of no stage
        with timer.stage("solve", 2):
            computed("sum", 2.0)
            computed("other", 4.0)  # counts for the first step
            computed("sum", 8.0)
        with timer.stage("unknown", 1):
            computed("sum", 16.0)
    with timer.stage("solve", 2):
        computed("sum", 32.0)  # not in the block
    assert timer.step_seconds == {"sum": 10.0, "solve": 4.0}


FORECAST = Forecast(
    n_rows=12_000,
    n_features=3,
    stages=(StageForecast("points", 2, 2**20, 3 * 2**20, 90.0), StageForecast("solve", 7, 2**21, 0, 7200.0)),
    workers=4,
    threads=2,
    seconds=130.0,
    worker_bytes=3 * 2**30 + 1,
    memory_bytes=4 * 2**30,
    disk_bytes=5 * 2**20,
    curve={1: 400.0, 2: 200.0, 4: 130.0, 8: 100.0, 16: 90.0},
)


def test_as_many_workers_are_recommended_as_are_busy():
    assert FORECAST.recommended_workers == 4  # 400 / 130 is three quarters of 4, 400 / 100 is half of 8
    assert FORECAST.flattens_at == 8
    assert FORECAST.limit_bytes == 4 * 2**30
    assert replace(FORECAST, worker_bytes=2**30).limit_bytes == 2**30


def test_a_forecast_is_told_in_tables():
    lines = str(FORECAST).splitlines()
    assert lines[0] == "12,000 rows x 3 features, 4 worker(s) of 2 thread(s): about 2.2 min"
    assert lines[1] == "memory of a worker: 3.00 GiB needed, 4.00 GiB given: enough; disk: 5.00 MiB"
    assert "| points | 2 | 1.00 MiB | 3.00 MiB | 90.0 s |" in lines
    assert "| solve | 7 | 2.00 MiB | 0 B | 2.0 h |" in lines
    assert "| 8 | 100.0 s | 4.0 | ########## 50% |" in lines
    assert "The curve flattens at about 8 worker(s): beyond, fewer than half of them are busy." in lines
    assert lines[-2] == "Recommended: 4 worker(s), each started with"
    assert lines[-1].strip() == (
        "dask worker SCHEDULER --nworkers 1 --nthreads 2 --memory-limit 4GiB --preload cns_dask.warmup"
    )
    assert "4.00 GiB given: NOT enough" in str(replace(FORECAST, worker_bytes=4 * 2**30 + 1))


def test_a_forecast_without_rates_tells_no_times():
    stages = tuple(replace(row, core_seconds=None) for row in FORECAST.stages)
    untimed = replace(FORECAST, stages=stages, seconds=None, curve={}, memory_bytes=None)
    lines = str(untimed).splitlines()
    assert lines[0] == "12,000 rows x 3 features, 4 worker(s) of 2 thread(s)"
    assert lines[1] == "memory of a worker: 3.00 GiB needed; disk: 5.00 MiB"
    assert "| points | 2 | 1.00 MiB | 3.00 MiB |  |" in lines
    assert not [line for line in lines if line.startswith("| workers |")]
    assert "--memory-limit 4GiB" in lines[-1]
    assert (untimed.recommended_workers, untimed.flattens_at) == (1, 1)
