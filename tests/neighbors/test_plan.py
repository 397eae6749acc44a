"""Sizes of the search for any data, and its stages as they are described and as they run."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from neighbor_lists import blobs_of
from runs import run_in

from cns_dask.execution.plan import Plan
from cns_dask.inputs.preprocess import preprocess_stages
from cns_dask.neighbors.plan import (
    CELL_CHUNK_BYTES,
    MAX_CELLS,
    GraphSizes,
    cell_search_stage,
    descent_stage,
    descent_worker_bytes,
    exact_stage,
    given_stage,
    search_stages,
    size_search,
)
from cns_dask.neighbors.search import find_neighbors
from cns_dask.settings import Settings
from cns_dask.storage.chunks import CHUNK_BYTES


def plan_of_graph(n_rows, n_features, k, method):
    """Sizes and plan of a graph alone."""
    sizes = size_search(n_rows, n_features, k, method)
    preprocess = preprocess_stages(n_rows, n_features, sizes.n_features, sizes.rows_per_chunk)
    return sizes, Plan((*preprocess, *search_stages(sizes)))


@given(n_rows=st.integers(2, 10**8), n_features=st.integers(1, 1000), method=st.sampled_from(["exact", "cells"]))
def test_chunks_are_bounded_for_any_size(n_rows, n_features, method):
    k = Settings(lam=0.5).grid(n_rows).ks[-1]
    sizes, plan = plan_of_graph(n_rows, n_features, k, method)
    assert sizes.is_exact == (method == "exact")
    assert 1 <= sizes.rows_per_chunk <= n_rows
    assert sizes.rows_per_chunk <= 1024 or 8 * sizes.rows_per_chunk * max(n_features, k) <= CHUNK_BYTES
    assert plan.worker_bytes(2) > plan.worker_bytes(1) > max(stage.task_bytes for stage in plan.stages)


@given(n_rows=st.integers(20_000, 10**8), n_features=st.integers(1, 1000))
def test_approximate_searches_are_bounded_for_any_size(n_rows, n_features):
    k = Settings().grid(n_rows).ks[-1]
    sizes, plan = plan_of_graph(n_rows, n_features, k, "cells")
    assert 1 <= sizes.n_cells <= MAX_CELLS
    assert 1024 <= sizes.rows_per_search <= 16 * 1024
    assert sizes.rows_per_cell_chunk == 1024 or 4 * n_features * sizes.rows_per_cell_chunk <= CELL_CHUNK_BYTES
    assert plan.worker_bytes(1) < 3 * 2**30  # whatever n: cells grow, tasks do not


def test_tasks_of_an_approximate_search_grow_linearly():
    tasks = [plan_of_graph(n, 16, Settings().grid(n).ks[-1], "cells")[1].n_tasks for n in (10**6, 10**7, 10**8)]
    assert tasks[1] / tasks[0] < 13
    assert tasks[2] / tasks[1] < 13
    assert tasks[2] < 50_000


def test_auto_is_exact_for_few_rows():
    for n_rows, is_exact in ((20_000, True), (20_001, False)):
        assert size_search(n_rows, 5, 20, "auto").is_exact == is_exact
        assert size_search(n_rows, 5, 20, "exact").is_exact
        assert not size_search(n_rows, 5, 20, "descent").is_exact
    assert not size_search(2000, 5, 20, "auto", overrides={"exact_rows": 1000}).is_exact


def test_overrides_replace_sizes_by_name_and_others_are_left_alone():
    changed = size_search(50_000, 5, 20, "cells", overrides={"n_cells": 12, "rows_per_search": 50, "block_width": 4})
    plain = size_search(50_000, 5, 20, "cells")
    assert (changed.n_cells, changed.rows_per_search) == (12, 50)
    assert (changed.rows_per_chunk, changed.sampled_rows) == (plain.rows_per_chunk, plain.sampled_rows)
    assert size_search(5000, 5, 20, "exact", overrides={"n_cells": 12}).n_cells == 0  # an exact search has none


def test_points_are_as_wide_as_their_components_if_these_are_fewer():
    assert size_search(5000, 300, 20, "exact", 100).n_features == 100
    assert size_search(5000, 30, 20, "exact", 100).n_features == 30
    assert size_search(5000, 300, 20, "exact", None).n_features == 300


def test_row_numbers_of_lists_are_stored_as_wide_as_needed():
    for n_rows, dtype in ((10**6, "int32"), (3 * 10**9, "int64")):
        for stage in (
            cell_search_stage(size_search(n_rows, 4, 9, "cells")),
            descent_stage(size_search(n_rows, 4, 9, "cells"), "d"),
        ):
            assert stage.array("graph/indices").dtype == dtype
            assert stage.array("graph/distances").dtype == "float32"
    sizes = size_search(1000, 4, 9, "exact")
    assert exact_stage(sizes).array("graph/indices").nbytes == 8 * 1000 * 9
    assert [array.name for array in given_stage(sizes, with_distances=False).writes] == ["graph/indices"]


@given(rows=st.integers(1, 10**6), d=st.integers(1, 500), k=st.integers(2, 100))
def test_descent_needs_memory_for_a_partition_in_every_thread(rows, d, k):
    sizes = GraphSizes(10**7, d, k, rows_per_partition=rows)
    one, two, three = (descent_worker_bytes(sizes, threads) for threads in (1, 2, 3))
    assert math.isclose(three - two, two - one, abs_tol=2)
    assert two - one > 3 * rows * (4 * d + 8 * k)  # the rows three times, and their lists


@pytest.mark.parametrize("method", ["exact", "cells", "descent"])
def test_stages_run_as_they_are_described(method, tmp_path):
    X = blobs_of(1500, 3)
    overrides = {"rows_per_chunk": 400, "n_cells": 9, "rows_per_cell_chunk": 350, "rows_per_search": 200}
    sizes = size_search(*X.shape, 8, method, None, {**overrides, "rows_per_partition": 400})
    run = run_in(tmp_path, 400, points=X)
    find_neighbors(run, sizes, 8, method, 0.9, seed=0)
    told = run.progress
    described = [stage.name for stage in search_stages(sizes)]
    last = "descent" if method == "descent" else "neighbors"
    assert told.stages[: len(described)] == [*described[:-1], last]
    for name, planned in told.planned.items():
        if name.startswith(last) and method != "exact":  # cells and partitions are known when they are filled
            assert 0 < told.finished[name] <= planned
        else:
            assert told.finished[name] == planned
    for stage in search_stages(sizes):
        for plan in stage.writes:
            if not plan.scratch:
                stored = run.writer.array(plan.name)
                assert (stored.shape, stored.chunks) == (plan.shape, plan.chunks)
                assert plan.dtype in (None, np.dtype(stored.dtype).name)
