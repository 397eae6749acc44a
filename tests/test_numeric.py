"""Numeric helpers that several layers share."""

import threading

import numpy as np
import pytest

from cns_dask.numeric import project_block, workspace


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_projection_is_added_row_by_row_whatever_the_block(dtype):
    rng = np.random.default_rng(0)
    rows, components = rng.standard_normal((40, 17)).astype(dtype), rng.standard_normal((17, 5)).astype(dtype)
    rows[30] = rows[3]
    whole = np.ones((40, 5), dtype)
    project_block(rows, components, whole)
    np.testing.assert_allclose(whole, 1 + rows @ components, rtol=50 * np.finfo(dtype).eps, atol=1e-5)
    np.testing.assert_array_equal(whole[30], whole[3])  # duplicates stay duplicates
    for step in (1, 7, 16):
        parts = [np.ones((len(part), 5), dtype) for part in np.split(rows, range(step, 40, step))]
        for part, out in zip(np.split(rows, range(step, 40, step)), parts, strict=True):
            project_block(part, components, out)
        np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_a_workspace_is_used_again_unless_it_is_too_small():
    first = workspace("test", (4, 6), np.float32)
    first[...] = 7
    smaller = workspace("test", (3, 2), np.float64)
    assert np.shares_memory(first, smaller)
    assert (smaller.shape, smaller.dtype) == ((3, 2), np.float64)
    larger = workspace("test", (100, 6), np.float32)
    assert not np.shares_memory(first, larger)
    assert not np.shares_memory(larger, workspace("other", (100, 6), np.float32))
    assert (first == 7).all()  # who still holds the old one keeps it
    assert workspace("test", (0, 6), np.float32).shape == (0, 6)


def test_threads_have_workspaces_of_their_own():
    mine, others = workspace("test", (8,), np.float64), []
    thread = threading.Thread(target=lambda: others.append(workspace("test", (8,), np.float64)))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, others[0])
