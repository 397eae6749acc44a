"""Sizes of the smoothing stages for any data, and of a whole fit."""

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.execution.plan import Plan
from cns_dask.neighbors.plan import given_stage, size_search
from cns_dask.settings import Grid, Settings
from cns_dask.sizing import plan_sizes, plan_stages
from cns_dask.smoothing.plan import (
    BLOCK_BYTES,
    absorption_stage,
    clustering_stage,
    evaluate_stage,
    memberships_stage,
    narrow,
    shared_bytes,
    size_smoothing,
    smoothing_stages,
    with_counts,
)
from cns_dask.smoothing.solver import BLOCK_WIDTHS

GRID = Grid((9, 18), (0.01, 0.02), 30)


@given(
    n_rows=st.integers(2, 10**8),
    n_features=st.integers(1, 1000),
    cap=st.integers(1, 2000),
    method=st.sampled_from(["exact", "cells"]),
    tol=st.sampled_from([1e-9, 1e-4]),
)
def test_blocks_are_bounded_for_any_size(n_rows, n_features, cap, method, tol):
    grid = Settings(lam=0.5).grid(n_rows)
    rows = size_search(n_rows, n_features, grid.ks[-1], method).rows_per_chunk
    sizes = size_smoothing(n_rows, rows, grid, cap, tol)
    stages = smoothing_stages(sizes)
    plan = Plan(stages, shared_bytes(sizes))
    assert plan.stage("evaluate").steps[0].name == "solve"
    assert sizes.rows_per_chunk == rows
    every_row = size_smoothing(n_rows, rows, grid, cap, tol, every_row=True)
    assert every_row.block_width == BLOCK_WIDTHS[-1] or every_row.solve_bytes <= BLOCK_BYTES
    assert every_row.keeps_all_rows
    assert sizes.solve_bytes <= 300 * n_rows * sizes.number_bytes // 4 + 1.5 * 2**30  # three passes of 16 candidates
    assert 1 <= sizes.rows_per_absorption_chunk <= n_rows
    assert plan.worker_bytes(2) > plan.worker_bytes(1) > max(stage.task_bytes for stage in stages)


def test_tasks_stay_countable_at_the_sizes_of_an_exact_graph():
    graph_sizes, sizes = plan_sizes(10**6, 16, Settings(), method="exact")
    assert (graph_sizes.n_neighbors, sizes.number_bytes, max(sizes.n_candidates)) == (52, 4, 300)
    assert plan_stages(16, graph_sizes, sizes).n_tasks < 20_000


def test_a_whole_fit_has_the_stages_in_the_order_in_which_they_run():
    graph_sizes, sizes = plan_sizes(50_000, 16, Settings())
    plan = plan_stages(16, graph_sizes, sizes)
    smoothing = ["candidates", "evaluate", "communities", "absorption", "memberships"]
    assert [stage.name for stage in plan.stages] == [
        *("preprocess", "points", "copies", "cells", "calibrate", "neighbors"),
        *smoothing,
    ]
    assert plan.shared_bytes == 50_000 * (4 * graph_sizes.n_neighbors + 4)
    assert plan.disk_bytes == sum(array.nbytes for stage in plan.stages for array in stage.writes)
    assert plan.n_tasks == sum(step.tasks for stage in plan.stages for step in stage.steps)
    graph_sizes, sizes = plan_sizes(50_000, 1, Settings(), method="exact")
    given_alone = plan_stages(None, graph_sizes, sizes, given_stage(graph_sizes, with_distances=False))
    assert [stage.name for stage in given_alone.stages] == ["neighbors", *smoothing]


def test_sizes_of_dasks_configuration_replace_those_of_both_layers():
    sizes = {"rows_per_chunk": 77, "n_cells": 12, "block_width": 4, "rows-per-absorption-chunk": 50}
    with dask.config.set({"cns_dask.sizes": sizes}):
        graph_sizes, smoothing = plan_sizes(600, 5, Settings(method="cells"))
    assert (graph_sizes.rows_per_chunk, graph_sizes.n_cells) == (77, 12)
    assert (smoothing.rows_per_chunk, smoothing.block_width, smoothing.rows_per_absorption_chunk) == (77, 4, 50)


def test_precision_follows_from_the_tolerance():
    loose, tight = (size_smoothing(8000, 1024, GRID, 300, tol) for tol in (1e-4, 1e-9))
    assert (loose.number_bytes, tight.number_bytes) == (4, 8)
    arrays = [evaluate_stage(sizes).array("absorption-9") for sizes in (loose, tight)]
    assert [array.dtype for array in arrays] == ["float32", "float64"]
    assert arrays[1].nbytes == 2 * arrays[0].nbytes == 8 * 2 * 300 * 8000


def test_found_candidates_replace_the_limit_and_change_no_chunk():
    sizes = size_smoothing(8000, 1024, GRID, 300, 1e-4)
    found = with_counts(sizes, {18: 20, 9: 33})
    assert found.n_candidates == (33, 20)
    assert (found.block_width, found.rows_per_absorption_chunk) == (sizes.block_width, sizes.rows_per_absorption_chunk)
    stage = evaluate_stage(found)
    assert [step.tasks for step in stage.steps if step.name == "solve"] == [3, 2]
    assert stage.n_recorded == 3 + 2 + 2
    assert [stage.array(f"absorption-{k}").shape for k in GRID.ks] == [(2, 33, 8000), (2, 20, 8000)]
    assert size_smoothing(8000, 1024, GRID, (33, 20), 1e-4).n_candidates == (33, 20)
    assert size_smoothing(10, 10, GRID, 300, 1e-4).n_candidates == (10, 10)  # never more than rows


def test_memberships_have_the_rows_of_the_input_where_some_were_skipped():
    sizes = size_smoothing(8000, 1024, GRID, 300, 1e-4)
    plain, skipping = memberships_stage(sizes, 7), memberships_stage(sizes, 7, (9000, 500))
    assert (plain.array("memberships").shape, plain.n_tasks) == ((8000, 7), 8)
    assert (skipping.array("labels").shape, skipping.n_tasks) == ((9000,), 18)
    assert memberships_stage(sizes).array("memberships").shape == (8000, 30)
    assert absorption_stage(sizes, 7).array("absorption").shape == (8000, 7)
    assert absorption_stage(sizes).array("absorption").chunks == (1024, 8)


@pytest.mark.parametrize("n_rows", [1, 99, 100, 101])
def test_a_clustering_is_written_chunk_by_chunk(n_rows):
    stage = clustering_stage("predict", n_rows, 100, 4)
    assert stage.n_tasks == np.ceil(n_rows / 100)
    assert {array.name for array in stage.writes} == {"memberships", "labels", "confidence"}
    assert clustering_stage("predict", n_rows, 100, 4, task_bytes=12345).task_bytes == 12345


def test_blocks_are_narrower_where_there_are_more_threads_than_blocks():
    sizes = size_smoothing(10**7, 2**16, Grid((24, 48, 72, 96), (0.01,), 30), 150, 1e-4)
    few, many = narrow(sizes, 8), narrow(sizes, 100)
    assert few.widths == (*[sizes.block_width] * 4, sizes.absorption_width)
    assert list(many.widths[:-1]) == sorted(many.widths[:-1], reverse=True)  # the passes of a larger k take longer
    assert many.final_width < few.final_width
    count = {each: sum(s.tasks for s in evaluate_stage(each).steps if s.name == "solve") for each in (few, many)}
    assert count[few] < count[many] <= 100
    assert evaluate_stage(many).task_bytes <= evaluate_stage(few).task_bytes


def test_small_fits_have_the_same_blocks_on_any_cluster():
    sizes = size_smoothing(10**6, 2**16, GRID, 150, 1e-4)
    assert narrow(sizes, 1000) == sizes
