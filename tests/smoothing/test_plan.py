from cns_dask.plan import (
    BLOCK_BYTES,
    BLOCK_WIDTHS,
    CELL_CHUNK_BYTES,
    CHUNK_BYTES,
    MAX_CELLS,
    krylov_vectors,
    make_plan,
    plan_graph,
)
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.settings import Settings


@given(
    n_rows=st.integers(2, 10**8),
    n_features=st.integers(1, 1000),
    cap=st.integers(1, 2000),
    exact=st.booleans(),
    tol=st.sampled_from([1e-9, 1e-4]),
)
def test_blocks_are_bounded_for_any_size(n_rows, n_features, cap, exact, tol):
    grid = Settings(lam=0.5).grid(n_rows)
    graph = plan_graph(n_rows, n_features, grid.ks[-1], exact=exact)
    plan = make_plan(n_rows, graph, grid, cap, tol)
    width = max(n_features, grid.ks[-1])
    assert 1 <= plan.rows_per_chunk <= n_rows
    assert plan.rows_per_chunk <= 1024 or 8 * plan.rows_per_chunk * width <= CHUNK_BYTES
    fallback = 8 * n_rows * (krylov_vectors(n_rows) + 4)
    assert plan.columns_per_block == BLOCK_WIDTHS[-1] or plan.bytes_per_task["columns"] <= BLOCK_BYTES + fallback
    assert 1 <= plan.rows_per_column_chunk <= n_rows
    assert plan.worker_bytes(2) > plan.worker_bytes(1) > max(plan.bytes_per_task.values())


@given(n_rows=st.integers(20_000, 10**8), n_features=st.integers(1, 1000))
def test_approximate_searches_are_bounded_for_any_size(n_rows, n_features):
    k = Settings().grid(n_rows).ks[-1]
    plan = plan_graph(n_rows, n_features, k, exact=False)
    assert 1 <= plan.n_cells <= MAX_CELLS
    assert 1024 <= plan.rows_per_search <= 16 * 1024
    assert plan.rows_per_cell_chunk == 1024 or 4 * n_features * plan.rows_per_cell_chunk <= CELL_CHUNK_BYTES
    assert plan.worker_bytes(1) < 3 * 2**30  # whatever n: cells grow, tasks do not


def test_tasks_of_an_approximate_search_grow_linearly():
    tasks = [plan_graph(n, 16, Settings().grid(n).ks[-1], exact=False).n_tasks for n in (10**6, 10**7, 10**8)]
    assert tasks[1] / tasks[0] < 13
    assert tasks[2] / tasks[1] < 13
    assert tasks[2] < 50_000


def test_tasks_stay_countable_at_the_sizes_of_an_exact_graph():
    graph = plan_graph(10**6, 16, 52, exact=True)
    assert make_plan(10**6, graph, Settings().grid(10**6), 300, 1e-4).n_tasks < 20_000
