import time

import dask
import pytest

from cns_dask.execution.forecast import SCHEDULER_SECONDS, Group, StepTimer, makespan, step_rates, task_groups
from cns_dask.execution.plan import PROCESS_BYTES, Plan, Stage, Step, memory_limit
from cns_dask.execution.run import Piece, Run
from cns_dask.progress import LineProgress
from cns_dask.storage.layout import ArrayPlan
from cns_dask.storage.locations import Location
from cns_dask.storage.store import ResultWriter

POINTS = ArrayPlan("points", (100, 2), (50, 2))
LABELS = ArrayPlan("labels", (100,), (50,))
FIRST = Stage("points", (Step("transform", 2, task_bytes=500, work=100),), writes=(POINTS,))
SECOND = Stage(
    "labels",
    (Step("compare", 4, task_bytes=900, work=300, recorded=False), Step("label", 2, task_bytes=700, after=(0,))),
    reads=(POINTS, POINTS),
    writes=(LABELS,),
)


def test_a_stage_adds_up_its_steps_and_arrays():
    assert (SECOND.n_tasks, SECOND.n_recorded, SECOND.task_bytes) == (6, 2, 900)
    assert SECOND.moved_bytes == 2 * 1600 + 800
    assert SECOND.array("labels") is LABELS


def test_a_plan_needs_the_memory_of_its_largest_task_and_the_disk_of_all_arrays():
    plan = Plan((FIRST, SECOND), shared_bytes=10_000)
    assert plan.n_tasks == 8
    assert plan.disk_bytes == 1600 + 800
    assert plan.worker_bytes(1) == memory_limit(10_000 + 900)
    assert plan.worker_bytes(8) == memory_limit(10_000 + 8 * 900)
    assert plan.stage("labels") is SECOND


@pytest.mark.parametrize("peak_bytes", [0, 1, 10**6, 10**10])
def test_a_worker_at_its_peak_uses_no_more_of_its_limit_than_dask_allows(peak_bytes):
    limit = memory_limit(peak_bytes)
    assert 0.8 * limit >= PROCESS_BYTES + peak_bytes
    assert 0.8 * (limit - 1) < PROCESS_BYTES + peak_bytes


CALLS = []


def square(number, target):
    CALLS.append(number)
    time.sleep(0.02)
    target[number : number + 1] = number**2
    return number**2


def run_squares(run, stage):
    """The function and the pieces: all that has to be written besides the description of the stage."""
    with run.stage(stage) as running:
        target = running.create("squares")
        pieces = [Piece(square, (at, target), ((target, (slice(at, at + 1),)),)) for at in range(4)]
        return running.run("square", pieces)


def test_a_new_stage_is_described_once_and_planned_run_resumed_and_forecast(tmp_path):
    squares = ArrayPlan("squares", (4,), (1,), "int64", scratch=True)
    step = Step("square", tasks=4, task_bytes=2**30, work=4)
    stage = Stage("squares", (step,), writes=(squares,))
    without, plan = Plan((FIRST,)), Plan((FIRST, stage))

    # it is planned
    assert plan.n_tasks == without.n_tasks + 4
    assert plan.disk_bytes == without.disk_bytes + 32
    assert without.worker_bytes(2) == memory_limit(2 * 500)
    assert plan.worker_bytes(2) == memory_limit(2 * 2**30)

    # it runs, and its step is timed by its name
    def writer():
        root = Location(tmp_path)
        return ResultWriter(root / "r.zarr", root / "scratch.zarr", root / "done")

    CALLS.clear()
    timer = StepTimer(plan)
    with timer.timing():
        assert run_squares(Run(writer(), timer), stage) == [0, 1, 4, 9]
    assert sorted(CALLS) == [0, 1, 2, 3]
    assert list(timer.step_seconds) == ["square"]
    assert 4 * 0.02 <= timer.step_seconds["square"] <= timer.seconds["squares"]
    assert Location(tmp_path / "done" / "squares").names() == [f"square-{at}.json" for at in range(4)]

    # a second run does nothing again, and says so
    CALLS.clear()
    told = []
    with dask.config.set(scheduler="synchronous"):
        assert run_squares(Run(writer(), LineProgress(told.append)), stage) == [0, 1, 4, 9]
    assert CALLS == []
    assert "squares: 4 of 4 pieces done by an earlier run" in told
    assert writer().create(squares)[:].tolist() == [0, 1, 4, 9]

    # it is forecast: from any rate, and from the one that was measured
    groups = task_groups(plan, {"square": 3.0})
    assert groups == [Group("points", 2, 0.0), Group("squares", 4, 3.0, after=(0,))]
    assert makespan(groups, slots=2) == pytest.approx(2 * 3.0, abs=6 * SCHEDULER_SECONDS)
    assert makespan(groups, slots=4) == pytest.approx(3.0, abs=6 * SCHEDULER_SECONDS)
    rates = step_rates(Plan((stage,)), timer.step_seconds)
    larger = Stage("squares", (Step("square", tasks=40, work=40),))
    expected = 10 * timer.step_seconds["square"] + 40 * SCHEDULER_SECONDS
    assert makespan(task_groups(Plan((larger,)), rates), slots=1) == pytest.approx(expected)
