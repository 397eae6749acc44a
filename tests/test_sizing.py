from cns_dask.settings import Settings
from cns_dask.sizing import assigned_width, plan_sample, plan_sizes, plan_stages


def test_a_sample_adds_stages_around_those_of_its_own_rows():
    plan = plan_sample(10**8, 16, Settings(), 10**6)
    alone = plan_stages(16, *plan_sizes(10**6, 16, Settings()))
    names = [stage.name for stage in plan.stages]
    assert names == ["sample", "clustered_rows", *[stage.name for stage in alone.stages[:-1]], "assign"]
    assert plan.stage("sample").array("codes").shape == (10**8,)
    assert 10**6 <= plan.stage("sample").array("sample").shape[0] < 1.01 * 10**6


def test_memory_is_that_of_the_sample():
    settings = Settings()
    alone = plan_stages(16, *plan_sizes(10**6, 16, settings))
    for n_rows in (10**7, 10**9):
        assert plan_sample(n_rows, 16, settings, 10**6).worker_bytes(1) <= 1.2 * alone.worker_bytes(1)


def test_chunks_of_narrow_rows_leave_room_for_their_neighbours_and_memberships():
    assert assigned_width(2, Settings(), 10**6) == Settings().grid(10**6).ks[-1]
    assert assigned_width(500, Settings(), 10**6) == 500
