import numpy as np
import oracle
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.numeric import TIE
from cns_dask.smoothing.picks import first_best, gram_block, greedy_picks, picks_of_lams, sum_grams


def summed(absorption, step, positions):
    """The sums over all rows, from blocks of `step` rows."""
    starts = range(0, absorption.shape[2], step)
    return sum_grams([gram_block(absorption, slice(start, start + step), positions) for start in starts])


def of_all_rows(absorption):
    return summed(absorption, absorption.shape[2], np.arange(absorption.shape[1]))


@given(seed=st.integers(0, 50), limit=st.integers(1, 15), step=st.integers(7, 100))
def test_greedy_picks_equal_the_dense_version_for_any_blocks_of_rows(seed, limit, step):
    columns = np.random.default_rng(seed).random((1, 90, 12)) ** 4
    gram = summed(columns.transpose(0, 2, 1), step, np.arange(12))
    (sums,), (products,) = gram.sums, gram.products
    picks = greedy_picks(sums, products, limit)
    assert picks.tolist() == oracle.greedy(columns[0], limit)
    assert picks.tolist() == greedy_picks(sums, products, 15)[: len(picks)].tolist()  # nested
    slots = np.random.default_rng(seed).permutation(12)
    assert picks_of_lams(gram, slots, limit)[0].tolist() == oracle.greedy(columns[0][:, slots], limit)


def test_ties_go_to_the_lowest_position():
    columns = np.zeros((1, 6, 3))
    columns[0, [0, 1], 0] = columns[0, [2, 3], 1] = columns[0, [4, 5], 2] = 1.0
    columns[0, 4, 2] += 1e-13  # rounding must not decide
    gram = of_all_rows(columns.transpose(0, 2, 1))
    assert greedy_picks(gram.sums[0], gram.products[0], 3).tolist() == [0, 1, 2]


def test_every_lam_has_picks_of_its_own_and_at_most_as_many_as_there_are_candidates():
    columns = np.random.default_rng(1).random((3, 40, 5)) ** 3
    gram = of_all_rows(columns.transpose(0, 2, 1))
    picks = picks_of_lams(gram, np.arange(5), limit=30)
    assert picks.tolist() == [oracle.greedy(x, 30) for x in columns]
    assert picks.shape == (3, 5)
    assert len({tuple(row) for row in picks.tolist()}) > 1


def test_single_precision_is_summed_in_double():
    block = np.full((1, 1, 100_000), 0.1, np.float32)
    ((total,),) = of_all_rows(block).sums
    assert abs(total - 100_000 * float(np.float32(0.1))) < 1e-6


@given(seed=st.integers(0, 50), step=st.integers(1, 100))
def test_masses_and_ends_of_walks_equal_a_direct_computation_for_any_blocks_of_rows(seed, step):
    rng = np.random.default_rng(seed)
    absorption = rng.random((2, 7, 60)) * (rng.random((2, 7, 60)) < 0.3)  # some rows reach no candidate
    absorption[:, :, 11] = 0
    positions = rng.permutation(60)[:7]
    gram = summed(absorption, step, positions)
    masses, ends = np.zeros(7), np.zeros((7, 7))
    for row in range(60):
        of_row = absorption[0, :, row]  # of the smallest lam
        if of_row.any():
            masses[of_row.tolist().index(of_row.max())] += 1
    for i in range(7):
        for j in range(7):
            ends[i, j] = absorption[0, j, positions[i]]
    np.testing.assert_array_equal(gram.masses, masses)
    np.testing.assert_array_equal(gram.absorbed, ends)
    assert gram.masses.sum() == absorption[0].any(axis=0).sum() < 60


def test_a_row_between_two_candidates_counts_for_the_first():
    absorption = np.array([[[0.2, 0.5, 0.0], [0.2, 0.1, 0.0]]])
    assert of_all_rows(absorption).masses.tolist() == [2, 0]


def test_the_first_of_tied_values_is_the_best():
    assert first_best(np.array([0.0, -0.0, 0.0])) == 0
    assert first_best(np.array([1.0, 2.0, 2.0 + 1e-10, 2.0])) == 1  # rounding must not decide
    assert first_best(np.array([1.0, 2.0, 2.0 + 1e-8])) == 2
    assert first_best(np.array([-3.0, -1.0 - 1e-10, -1.0])) == 1
    assert first_best(np.array([-np.inf, 5.0])) == 1


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20))
def test_the_best_is_within_a_tie_of_the_largest_and_nothing_before_it_is(values):
    values = np.array(values)
    at, least = first_best(values), values.max() - TIE * abs(values.max())
    assert values[at] >= least
    assert (values[:at] < least).all()
