import pytest

from cns_dask.execution.plan import Plan, Stage, Step
from cns_dask.execution.typical import TYPICAL_RATES, expected_seconds
from cns_dask.settings import Settings
from cns_dask.sizing import plan_sample, plan_sizes, plan_stages

#: Steps whose time does not matter, or that run too seldom to be measured.
UNMEASURED = {"choose", "choose_candidates", "merge", "dimension", "reach", "truth", "take_samples"}


@pytest.mark.parametrize("method", ["exact", "cells"])
def test_something_is_expected_of_every_stage_that_takes_time(method):
    settings = Settings(method=method)
    plan = plan_stages(16, *plan_sizes(50_000, 16, settings))
    seconds = expected_seconds(plan, threads=2)
    assert list(seconds) == [stage.name for stage in plan.stages]
    assert all(value > 0 for value in seconds.values())
    assert 1 < sum(seconds.values()) < 1000
    steps = {step.name for stage in plan.stages for step in stage.steps if step.work}
    assert steps - UNMEASURED <= TYPICAL_RATES.keys()


def test_a_sample_is_expected_too():
    plan = plan_sample(10**6, 16, Settings(), 50_000)
    assert {"sample", "assign"} <= expected_seconds(plan, threads=2).keys()


def test_more_threads_take_less_time():
    plan = Plan((Stage("points", (Step("transform", 8, work=10**9),)),))
    assert expected_seconds(plan, 1)["points"] == pytest.approx(4 * expected_seconds(plan, 4)["points"], rel=0.01)
