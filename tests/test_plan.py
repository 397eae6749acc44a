import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.plan import BLOCK_BYTES, CHUNK_BYTES, KRYLOV_VECTORS, make_plan, rows_per_slice
from cns_dask.settings import Settings


@given(n_rows=st.integers(2, 10**8), n_features=st.integers(1, 1000), cap=st.integers(1, 2000))
def test_blocks_are_bounded_for_any_size(n_rows, n_features, cap):
    grid = Settings(lam=0.5).grid(n_rows)
    plan = make_plan(n_rows, n_features, grid, cap)
    width = max(n_features, grid.ks[-1])
    assert 1 <= plan.rows_per_chunk <= n_rows
    assert plan.rows_per_chunk <= 1024 or 8 * plan.rows_per_chunk * width <= CHUNK_BYTES
    fallback = 8 * n_rows * (KRYLOV_VECTORS + 4)
    assert plan.columns_per_block == 1 or plan.bytes_per_task["columns"] <= BLOCK_BYTES + fallback
    assert 1 <= plan.rows_per_column_chunk <= n_rows
    assert plan.worker_bytes(2) > plan.worker_bytes(1) > max(plan.bytes_per_task.values())


def test_tasks_stay_countable_at_the_sizes_of_an_exact_graph():
    assert make_plan(10**6, 16, Settings().grid(10**6), 300).n_tasks < 20_000


@pytest.mark.parametrize("n_columns", [0, 1, 10**9])
def test_slices_hold_at_least_one_row(n_columns):
    assert rows_per_slice(n_columns) >= 1
