import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.errors import InvalidSettingError
from cns_dask.inputs.sampling import Draw, Sampling, check_sampling, row_hashes

rows = st.integers(0, 10**12)


@given(start=rows, sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), seed=st.integers(0, 2**70))
def test_hashes_do_not_depend_on_the_chunks(start, sizes, seed):
    edges = np.cumsum([start, *sizes]).tolist()
    parts = [row_hashes(*pair, seed) for pair in itertools.pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(parts), row_hashes(start, edges[-1], seed))


@given(size=st.one_of(st.integers(1000, 4500), st.floats(0.1, 0.45)), seed=st.integers(0, 10))
def test_the_draws_of_a_sampling_have_no_row_in_common(size, seed):
    sampling = Sampling(size, 10_000, seed, is_checked=True)
    marks = [draw.marks(0, 10_000) for draw in (sampling.sample, sampling.second, sampling.compared)]
    assert np.sum(marks, axis=0).max() == 1
    for each in marks[:2]:
        assert abs(each.sum() - sampling.expected_rows) < 5 * np.sqrt(sampling.expected_rows)


def test_rows_are_drawn_evenly_and_otherwise_for_another_seed():
    share, n_rows = 0.3, 200_000
    draws = [Draw(0, int(share * 2**64), seed).marks(0, n_rows) for seed in range(3)]
    for each in draws:
        assert each.reshape(100, -1).mean(axis=1) == pytest.approx(share, abs=0.06)
    assert (draws[0] & draws[1]).mean() == pytest.approx(share**2, abs=0.01)


def test_a_draw_may_reach_to_the_end_of_the_range():
    assert Draw(2**63, 2**64, 0).count(slice(0, 1000)) + Draw(0, 2**63, 0).count(slice(0, 1000)) == 1000


@pytest.mark.parametrize(("size", "rows"), [(2000, 2000), (0.2, 2000), (2e3, 2000), (np.int64(2000), 2000)])
def test_sizes_are_rows_or_shares(size, rows):
    assert check_sampling(size, 10_000, 0, is_checked=False).expected_rows == rows


@pytest.mark.parametrize("size", [None, 10_000, 20_000, 1.0])
def test_all_rows_are_no_sample(size):
    assert check_sampling(size, 10_000, 0, is_checked=False) is None


@pytest.mark.parametrize("size", [0, -5, 0.0, -0.1, 1.5, float("nan"), float("inf"), True, "many", (1, 2)])
def test_impossible_sizes_are_refused(size):
    with pytest.raises(InvalidSettingError, match="sample must be a positive number of rows, or a share of them"):
        check_sampling(size, 10_000, 0, is_checked=False)


def test_samples_that_cannot_speak_for_all_are_refused():
    with pytest.raises(InvalidSettingError, match="A sample of 999 rows is too small to speak for 10000: take at leas"):
        check_sampling(999, 10_000, 0, is_checked=False)
    with pytest.raises(InvalidSettingError, match="take at least 900"):
        check_sampling(0.5, 900, 0, is_checked=False)


def test_a_check_needs_a_sample_and_room_beside_it():
    with pytest.raises(InvalidSettingError, match="There is no sample to check"):
        check_sampling(None, 10_000, 0, is_checked=True)
    with pytest.raises(InvalidSettingError, match="check_sample must be True or False"):
        check_sampling(5000, 10_000, 0, is_checked="yes")
    with pytest.raises(InvalidSettingError, match=r"take at most 45% of the rows, which are 4500. Got 5000"):
        check_sampling(5000, 10_000, 0, is_checked=True)
