import numpy as np
import oracle
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.numeric import first_best
from cns_dask.smoothing.candidates import find_candidates, local_maxima
from cns_dask.smoothing.picks import gram_block, greedy_picks, picks_of_lams, sum_grams

rng = np.random.default_rng(0)
X = rng.standard_normal((300, 3))
D = oracle.distances(X)


@given(k=st.integers(1, 20))
def test_candidates_equal_the_dense_version(k):
    N = oracle.neighbors(D, k)
    found = local_maxima(N)
    np.testing.assert_array_equal(found.rows, oracle.candidates(N, D, 10**6))
    np.testing.assert_array_equal(found.degrees, np.bincount(N.ravel(), minlength=300)[found.rows])


@given(cap=st.integers(1, 30))
def test_capped_candidates_come_by_prominence(cap):
    N = oracle.neighbors(D, 5)
    found = local_maxima(N)
    assert len(found.rows) > 30
    capped = find_candidates(N, X, cap)
    np.testing.assert_array_equal(capped.rows, oracle.candidates(N, D, cap))


@given(seed=st.integers(0, 50), limit=st.integers(1, 15), step=st.integers(7, 100))
def test_greedy_picks_equal_the_dense_version_for_any_blocks_of_rows(seed, limit, step):
    columns = np.random.default_rng(seed).random((1, 90, 12)) ** 4
    blocks = [gram_block(columns.transpose(0, 2, 1), slice(start, start + step)) for start in range(0, 90, step)]
    (sums,), (products,) = gram = sum_grams(blocks)
    picks = greedy_picks(sums, products, limit)
    assert picks.tolist() == oracle.greedy(columns[0], limit)
    assert picks.tolist() == greedy_picks(sums, products, 15)[: len(picks)].tolist()  # nested
    slots = np.random.default_rng(seed).permutation(12)
    assert picks_of_lams(gram, slots, limit)[0].tolist() == oracle.greedy(columns[0][:, slots], limit)


def test_ties_go_to_the_lowest_position():
    columns = np.zeros((1, 6, 3))
    columns[0, [0, 1], 0] = columns[0, [2, 3], 1] = columns[0, [4, 5], 2] = 1.0
    columns[0, 4, 2] += 1e-13  # rounding must not decide
    (sums,), (products,) = gram_block(columns.transpose(0, 2, 1), slice(None))
    assert greedy_picks(sums, products, 3).tolist() == [0, 1, 2]
    assert first_best(np.array([0.0, -0.0, 0.0])) == 0


def test_candidates_are_told_by_row_however_the_graph_is_numbered():
    N = oracle.neighbors(D, 5)
    order = np.random.default_rng(1).permutation(300)
    place = np.argsort(order)
    renumbered = place[N][order]
    for limit in (10, 10**6):
        for points in (X, None):
            plain, found = find_candidates(N, points, limit), find_candidates(renumbered, points, limit, order)
            np.testing.assert_array_equal(found.rows, plain.rows)
            np.testing.assert_array_equal(found.degrees, plain.degrees)
