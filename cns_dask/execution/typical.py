"""What stages typically take: enough to tell, while a run runs, how far it is.

A forecast measures the rates of the machine, for ten seconds; a run does not wait for that. It begins with rates that
were measured once, and corrects them by the stages that have ended (`progress.Pace`). Only their ratios matter for
long.
"""

from collections.abc import Mapping

from cns_dask.execution.cluster import processes
from cns_dask.execution.forecast import makespan, task_groups
from cns_dask.execution.plan import Plan

#: Seconds per unit of work of the steps that take time, on one core: medians over small fits in 4 and 16 dimensions.
TYPICAL_RATES: Mapping[str, float] = {
    "learn_transform": 4.6e-8,
    "transform": 5.6e-8,
    "compare": 6.2e-10,
    "learn_centers": 8.9e-9,
    "sort": 6.6e-10,
    "fill": 2.8e-8,
    "compare_samples": 9.2e-7,
    "search": 3.0e-8,
    "collect": 3.0e-8,
    "order": 1.2e-7,
    "positions": 5.8e-8,
    "renumber": 2.6e-8,
    "walk": 9.8e-9,
    "maxima": 7.8e-9,
    "nodes": 8.5e-10,
    "dimension": 1.3e-8,
    "solve": 1.1e-8,
    "gram": 1.9e-10,
    "criterion": 1.3e-7,
    "hash": 1.4e-8,
    "number": 1.1e-7,
    "reach": 5.8e-8,
    "degrees": 7.8e-9,
    "climb": 7.8e-9,
    "basins": 5.8e-8,
    "links": 2.6e-8,
    "group": 2.0e-7,
    "settle": 7.8e-9,
    "borders": 1.0e-6,
    "absorb": 4.6e-9,
    "memberships": 1.3e-7,
    "sample": 1.2e-7,
    "clustered_rows": 6.4e-7,
    "assign": 2.5e-8,
}


def expected_seconds(plan: Plan, threads: int | None = None) -> dict[str, float]:
    """Typical seconds of every stage of a plan on so many threads; None: on those that tasks run in now."""
    threads = sum(count for _, count, _ in processes()) if threads is None else threads
    expected: dict[str, float] = {}
    for stage in plan.stages:
        seconds = makespan(task_groups(Plan((stage,)), TYPICAL_RATES), max(1, threads))
        expected[stage.name] = expected.get(stage.name, 0.0) + seconds
    return expected
