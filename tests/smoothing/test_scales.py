from dataclasses import replace

import dask
import numpy as np
import pytest
import small
from generators import mixture
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_mutual_info_score

from cns_dask import CNS
from cns_dask.settings import Grid
from cns_dask.smoothing.communities import Communities
from cns_dask.smoothing.criterion import Choice
from cns_dask.smoothing.scales import (
    ASSUMED_DIMENSION,
    LARGEST_GAP,
    SMALLEST_RATE,
    Basis,
    Chain,
    Evidence,
    best_scale,
    chain_of,
    cut,
    evidence_of,
    intrinsic_dimension,
    join_small,
    largest_first,
    least_rows,
    least_structure,
    mixing_rate,
    rates_of,
    select,
)


def symmetric(rng, size, density=0.5):
    values = rng.random((size, size)) * (rng.random((size, size)) < density)
    return values + values.T


def test_small_candidates_join_the_one_they_exchange_most_rows_with():
    flow = np.array([[9.0, 1.0, 2.0, 0.0], [1.0, 9.0, 0.5, 0.0], [2.0, 0.5, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    assert join_small(flow, np.array([10.0, 10.0, 3.5, 1.0]), least_rows=5).tolist() == [0, 1, 0, -1]
    assert join_small(flow, np.array([10.0, 10.0, 3.5, 1.0]), least_rows=1).tolist() == [0, 1, 2, 3]


def test_small_candidates_that_join_until_they_are_large_enough_are_one_group():
    flow = np.zeros((4, 4))
    flow[0, 1] = flow[1, 0] = 2
    flow[1, 2] = flow[2, 1] = 1
    assert join_small(flow, np.array([3.0, 3.0, 3.0, 20.0]), least_rows=8).tolist() == [1, 1, 1, 3]
    assert join_small(flow, np.array([3.0, 3.0, 3.0, 20.0]), least_rows=10).tolist() == [-1, -1, -1, 3]


@given(seed=st.integers(0, 200), least=st.integers(1, 60))
def test_every_group_is_large_enough_and_those_outside_exchange_no_rows_with_it(seed, least):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(1, 12))
    flow, masses = symmetric(rng, size, 0.2), rng.integers(0, 40, size).astype(float)
    before = flow.copy()
    group = join_small(flow, masses, least)
    np.testing.assert_array_equal(flow, before)
    for each in set(group.tolist()) - {-1}:
        assert group[each] == each  # it has the number of one of its own
        assert masses[group == each].sum() >= least
    assert not flow[np.ix_(group < 0, group >= 0)].any()


def test_rates_are_those_of_the_chain():
    rng = np.random.default_rng(0)
    flow = symmetric(rng, 6, 1) + 6 * np.eye(6)
    rates, vectors = rates_of(flow)
    expected = np.sort(1 - np.linalg.eigvals(flow / flow.sum(axis=1, keepdims=True)).real)
    np.testing.assert_allclose(rates, expected, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(6), atol=1e-12)
    np.testing.assert_allclose(rates_of(np.array([[3.0, 1.0], [1.0, 3.0]]))[0], [0, 0.5], atol=1e-15)


def test_groups_without_exchange_have_rate_0_and_no_rate_is_above_1():
    np.testing.assert_allclose(rates_of(np.diag([5.0, 2.0, 9.0]))[0], 0, atol=1e-15)
    np.testing.assert_allclose(rates_of(np.array([[0.0, 1.0], [1.0, 0.0]]))[0], [0, 1], atol=1e-15)
    np.testing.assert_allclose(rates_of(np.outer([1.0, 2.0], [1.0, 2.0]))[0], [0, 1], atol=1e-15)


def blocks(sizes, between=0.0):
    """A flow inside blocks, and a little of it between them; and the block of every group."""
    of_group = np.repeat(np.arange(len(sizes)), sizes)
    return np.where(of_group[:, None] == of_group[None, :], 1.0, between), of_group


def same_partition(first, second):
    return len(set(zip(first.tolist(), second.tolist(), strict=True))) == len(set(first)) == len(set(second))


@pytest.mark.parametrize("between", [0.0, 1e-3])
def test_eigenvectors_are_cut_into_the_blocks_however_they_are_turned(between):
    flow, of_group = blocks([4, 3, 5], between)
    vectors = rates_of(flow)[1]
    assert cut(vectors, 1).tolist() == [0] * 12
    assert same_partition(cut(vectors, 3), of_group)
    turn = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))[0]
    assert same_partition(cut(vectors[:, :3] @ turn, 3), of_group)


def test_clusters_are_numbered_by_their_size():
    clusters, masses = np.array([2, 0, 1, 1, 2]), np.array([1.0, 5.0, 2.0, 2.0, 8.0])
    assert largest_first(clusters, masses).tolist() == [0, 1, 2, 2, 0]
    assert largest_first(np.array([1, 0]), np.array([3.0, 3.0])).tolist() == [1, 0]  # equal ones stay in order


def test_the_mixing_rate_is_a_mean_over_groups_by_their_rows():
    flow = np.zeros((5, 5))
    flow[:2, :2] = [[3, 1], [1, 3]]  # rate 1/2
    flow[2:4, 2:4] = [[7, 1], [1, 7]]  # rate 1/4
    flow[4, 4] = 1
    group, present = np.array([0, 0, 2, 2, 4]), np.array([0, 2, 4])
    rate = mixing_rate(flow, group, present, np.array([1.0, 3.0, 4.0]))
    assert rate == pytest.approx((0.5 * 0.25**3 * 1**4) ** (1 / 8))
    assert mixing_rate(flow, group, present, np.zeros(3)) == 1
    assert mixing_rate(np.eye(2), np.zeros(2, int), np.array([0]), np.ones(1)) == pytest.approx(SMALLEST_RATE)


def test_the_chain_over_candidates_has_the_blocks_as_clusters():
    absorbed, of_candidate = blocks([4, 3, 5], 1e-3)
    masses = np.full(12, 10.0)
    masses[11] = 100
    chain = chain_of(0.3 * absorbed, masses, least_rows=5, limit=6)  # where walks that end nowhere go is no matter
    assert chain.clusters.shape == (6, 12)
    assert chain.leaving.shape == chain.effective.shape == (6,)
    assert len(chain.rates) == 13
    assert (np.diff(chain.rates) >= -1e-12).all()
    assert chain.rates[0] == pytest.approx(0, abs=1e-12)
    assert same_partition(chain.clusters[2], of_candidate)
    assert chain.clusters[2][[11, 0, 4]].tolist() == [0, 1, 2]  # largest first
    assert (chain.effective[0], chain.leaving[0]) == (pytest.approx(1), pytest.approx(0, abs=1e-12))
    shares = np.array([140, 40, 30]) / 210
    assert chain.effective[2] == pytest.approx(np.exp(-(shares * np.log(shares)).sum()))
    assert chain.leaving[2] < 0.05 < chain.rates[3]
    assert (chain.leaving >= chain.rates[:6] - 1e-12).all()  # no partition is left more slowly than the rates allow
    best = evidence_of([chain], 2.0, 210, 6).total
    assert best.argmax() + 1 == 3


def test_small_candidates_are_in_the_clusters_of_others_and_outlying_ones_in_none():
    absorbed, _ = blocks([2, 2])
    absorbed = np.block([[absorbed, np.zeros((4, 1))], [np.zeros((1, 4)), np.ones((1, 1))]])
    chain = chain_of(absorbed, np.array([10.0, 2.0, 10.0, 10.0, 1.0]), least_rows=5, limit=9)
    assert chain.clusters.tolist() == [[0, 0, 0, 0, -1], [1, 1, 0, 0, -1], [0, 0, 1, 2, -1]]
    assert len(chain.rates) == 4


def test_a_candidate_whose_walks_end_nowhere_stays_where_it_is():
    absorbed = np.array([[0.0, 0.0], [0.0, 0.2]])
    chain = chain_of(absorbed, np.array([5.0, 5.0]), least_rows=1, limit=5)
    assert chain.clusters.tolist() == [[0, 0], [0, 1]] or chain.clusters.tolist() == [[0, 0], [1, 0]]
    np.testing.assert_allclose(chain.rates, [0, 0, 1], atol=1e-12)


def test_a_single_candidate_and_none_that_is_large_enough():
    whole = chain_of(np.array([[0.5]]), np.array([9.0]), least_rows=1, limit=5)
    assert whole.clusters.tolist() == [[0]]
    assert not evidence_of([whole], 2.0, 9, 5).total.any()
    apart = chain_of(np.eye(3), np.array([2.0, 2.0, 2.0]), least_rows=5, limit=5)  # then each is a group
    assert sorted(apart.clusters[2].tolist()) == [0, 1, 2]
    np.testing.assert_allclose(apart.rates, [0, 0, 0, 1], atol=1e-12)
    assert evidence_of([apart], 2.0, 6, 5).total.argmax() + 1 == 3


def hand_made(rates, leaving, effective):
    K = len(effective)
    return Chain(np.array(rates), np.array(leaving), np.array(effective), np.zeros((K, 4), int))


def test_evidence_is_the_formula():
    chain = hand_made([0.0, 0.01, 0.2, 0.25], [0.0, 0.02, 0.5], [1.0, 1.9, 2.5])
    evidence = evidence_of([chain], 3.0, 900, 5)
    units = [np.log(1.9 / 0.9), np.log(2.5 / 1.5)]
    expected = [0, 1.5 * np.log(0.2 / 0.01) / units[0], 1.5 * np.log(0.25 / 0.2) / units[1], 0, 0]
    np.testing.assert_allclose(evidence.values, [expected])
    # thirds are left faster than walks mix, and the rate that three groups do not have is too vague for a test
    np.testing.assert_allclose(evidence.with_borders, [[0, 1.5 * np.log(0.2 / 0.02) / units[0], 0, 0, 0]])
    assert evidence.structure == pytest.approx(min(expected[1], 2 * 1.5 * np.log(10) / units[0]))
    unknown = evidence_of([chain], None, 900, 5)
    np.testing.assert_allclose(unknown.values, [np.array(expected) * ASSUMED_DIMENSION / 3])
    assert (evidence.dimension, unknown.dimension, evidence.n_rows) == (3.0, None, 900)
    assert evidence_of([chain], 3.0, 900, 1).values.tolist() == [[0]]


def test_many_clusters_count_only_if_the_number_that_stands_out_has_borders():
    rates, effective = [0.0, 0.01, 0.04, 0.9, 0.9], [1.0, 2.0, 3.0, 4.0]
    apart = hand_made(rates, [0.0, 0.01, 0.05, 0.9], effective)
    assert (
        evidence_of([apart], 2.0, 900, 4, 2).total.argmax() + 1,
        evidence_of([apart], 2.0, 900, 4).total.argmax() + 1,
    ) == (3, 3)
    by_chance = hand_made(rates, [0.0, 0.01, 0.9, 0.9], effective)
    everything, few = evidence_of([by_chance], 2.0, 900, 4), evidence_of([by_chance], 2.0, 900, 4, 2)
    assert (everything.total.argmax() + 1, everything.structure) == (3, 0)
    assert (few.total.argmax() + 1, few.has_structure) == (2, True)
    assert few.values[0, :2].tolist() == everything.values[0, :2].tolist()
    assert (few.values[0, 2:] <= SMALLEST_RATE).all()
    assert few.values[0, 2] > 0  # three clusters can still be asked for
    assert not few.with_borders[:, 2:].any()


def test_the_vague_rate_of_the_last_cut_counts_if_walks_hardly_ever_leave():
    for leaving, counts in ((0.02, False), (0.005, True)):
        chain = hand_made([0.0, 0.001, 0.5], [0.0, leaving], [1.0, 2.0])
        evidence = evidence_of([chain], 2.0, 900, 4)
        assert (evidence.with_borders[0, 1] > 0) == counts
        assert (evidence.structure > 0) == counts


def test_a_gap_counts_up_to_a_hundredfold_and_not_more_for_groups_that_exchange_no_walks():
    chain = hand_made([0.0, 0.0, 0.5, 0.5], [0.0, 0.0, 0.5], [1.0, 2.0, 3.0])
    evidence = evidence_of([chain], 2.0, 900, 3)
    np.testing.assert_allclose(evidence.values[0, 1], LARGEST_GAP / np.log(2))
    assert 0 < evidence.values[0, 2] < 1e-8  # no gap, but it can be cut
    one_row = hand_made([0.0, 0.0, 0.5], [0.0, 0.0], [1.0, 1.001])  # setting one row aside is not finding a cluster
    assert evidence_of([one_row], 2.0, 900, 3).values[0, 1] < 1


def test_evidence_is_a_mean_over_the_ks_and_near_looks_at_neighbours_of_a_number():
    evidence = Evidence(np.array([[0.0, 2.0, 4.0, 0.0], [0.0, 0.0, 2.0, 1.0]]), np.zeros((2, 4)), 8.0, 900)
    assert evidence.total.tolist() == [0, 1, 3, 0.5]
    assert [evidence.near(K) for K in (1, 2, 3, 4, 9)] == [0, 1, 3, 0.5, 0]
    assert evidence.structure == 0
    wide = Evidence(np.eye(1, 40, 32), np.zeros((1, 40)), 8.0, 900)  # evidence for 33 only
    assert [wide.near(K) for K in (29, 30, 33, 37, 38)] == [0, 1, 1, 1, 0]


def test_no_cluster_of_a_cut_is_empty():
    rng = np.random.default_rng(0)
    for n_groups in (2, 5, 12):
        flow = rng.random((n_groups, n_groups)) ** 8
        vectors = rates_of(flow + flow.T)[1]
        for K in range(1, n_groups + 1):
            assert sorted(set(cut(vectors, K).tolist())) == list(range(K))


def test_in_few_dimensions_no_k_decides_alone():
    values = np.array([[0.0, 9.0, 2.0], [0.0, 1.0, 5.0], [0.0, 2.0, 2.0], [0.0, 3.0, 2.0]])
    for dimension in (2.0, 3.0, None):
        evidence = Evidence(values, values, dimension, 900)
        assert not evidence.mixes
        assert evidence.total.tolist() == [0, 2.5, 2]
        assert evidence.structure == 2.5  # as the evidence itself
    evidence = Evidence(values, values, 3.01, 900)
    assert evidence.mixes
    assert evidence.total.tolist() == [0, 3.75, 2.75]
    assert Evidence(values[:2], values[:2], 2.0, 900).total.tolist() == [0, 5, 3.5]  # of two none is left out


def test_clusters_with_fewer_rows_than_a_walk_has_steps_are_no_structure():
    values = np.zeros((1, 20))
    values[0, 9] = 5  # 10 clusters
    assert Evidence(values, values, 2.0, 100).structure == 5
    assert Evidence(values, values, 2.0, 99).structure == 0
    assert Evidence(values, values, 8.0, 99).structure == 5  # where walks mix, they need fewer


GRID = Grid((5, 10), (0.1, 0.2), 6, 6)


def basis(evidence, *, paper=4, dimension=8.0, borders=None):
    """What a selection is made from, if the paper's criterion is best at (10, 0.1, `paper`)."""
    surface = np.tile(0.01 * np.arange(6.0), (2, 2, 1))
    surface[1, 0, paper - 1] = 1
    values = np.tile(np.asarray(evidence, float), (2, 1))
    values[0] *= 1.5  # the smaller k shows it more clearly
    with_borders = values if borders is None else np.tile(np.asarray(borders, float), (2, 1))
    return Basis(surface, Evidence(values, with_borders, dimension, 1000), GRID)


PAPER = Choice(10, 0.1, 4, 1.0, pytest.approx(0.95))


def test_the_paper_s_choice_where_it_is_asked_for():
    for evidence in ([0, 9, 0, 0, 0, 0], [0.0] * 6):
        found = select(basis(evidence), "paper")
        assert found.used == found.paper == PAPER
        assert found.why == "it was asked for"


def test_the_choice_by_scales_where_it_is_asked_for():
    found = select(basis([0, 9, 0, 8, 0, 0]), "scales")
    assert found.used == found.scales == Choice(5, 0.1, 2, pytest.approx(1.25 * 9), pytest.approx(1.25), "scales")
    assert (found.why, found.paper) == ("it was asked for", PAPER)
    assert found.evidence == pytest.approx(1.25 * 8)  # that for the paper's number


@pytest.mark.parametrize("selection", ["auto", "scales"])
@pytest.mark.parametrize("dimension", [2.0, 8.0])
def test_without_structure_there_is_one_cluster(selection, dimension):
    low, high = np.array([0, 1.1, 0, 0, 0, 0]), np.array([0, 9.0, 0, 0, 0, 0])
    for evidence, borders in ((low, high), (high, 0.5 * low), (0 * low, high)):
        found = select(basis(evidence, borders=borders, dimension=dimension), selection)
        assert found.structure < least_structure(dimension)
        assert (found.used.n_clusters, found.used.selection, found.used.margin) == (1, "scales", None)
        assert found.used.value == found.structure
        assert found.why == "no number of clusters stands out from data without structure"
        assert found.paper == PAPER
    enough = 0.55 * least_structure(dimension) * (low > 0)
    assert select(basis(high, borders=enough, dimension=dimension), selection).used.n_clusters == 2  # twice that


def test_in_few_dimensions_scales_choose_and_also_where_the_dimension_is_not_known():
    for dimension in (2.0, 3.0, None):
        found = select(basis([0, 9, 0, 8, 0, 0], dimension=dimension), "auto")
        assert found.used == found.scales
        assert found.why == "the data have few dimensions"
        assert found.dimension == dimension


def in_communities(*, n_clusters=3, stand=False, adds_borders=False, dimension=8.0, evidence=(0, 9, 0, 8, 0, 0)):
    """A basis with five communities, of which so many clusters have borders."""
    clusters = np.array([np.minimum(np.arange(5), K) for K in range(5)])
    found = Communities(clusters, n_clusters, 0.6, 1.0, adds_borders, stand=stand)
    return replace(basis(list(evidence), dimension=dimension), communities=found)


def test_in_many_dimensions_communities_with_borders_are_used():
    found = select(in_communities(), "auto")
    assert found.used == found.communities
    assert (found.used.selection, found.used.n_clusters, found.used.lam) == ("communities", 3, found.used.lam)
    assert "borders in density" in found.why
    assert "more modular" in select(in_communities(stand=True), "auto").why


def test_where_no_community_has_a_border_scales_choose():
    found = select(in_communities(n_clusters=1), "auto")
    assert found.used == found.scales
    assert found.why == "no community has a border"
    without = select(in_communities(n_clusters=1, evidence=[0, 0.5, 0.5, 0.5, 0, 0]), "auto")
    assert without.used.n_clusters == 1


def test_in_few_dimensions_communities_are_used_if_dips_split_the_clusters_of_scales():
    found = select(in_communities(dimension=2.0, adds_borders=True), "auto")
    assert found.used == found.communities
    found = select(in_communities(dimension=2.0), "auto")
    assert found.used == found.scales


def test_communities_are_used_where_they_are_asked_for_whatever_the_dimension():
    for dimension in (2.0, 8.0, None):
        assert select(in_communities(dimension=dimension), "communities").used.n_clusters == 3


def test_communities_give_no_more_clusters_than_are_allowed():
    few = in_communities(n_clusters=5)
    few = replace(few, grid=replace(few.grid, max_scale=4))
    assert select(few, "auto").used.n_clusters == 4


def test_a_given_number_of_clusters_is_a_cut_of_the_communities():
    found = select(in_communities(), "auto", n_clusters=5)
    assert (found.used.selection, found.used.n_clusters) == ("communities", 5)
    more = select(in_communities(evidence=[0, 9, 0, 8, 0, 1]), "auto", n_clusters=6)  # there are five communities
    assert (more.used.selection, more.used.n_clusters) == ("scales", 6)
    same = select(in_communities(dimension=2.0, adds_borders=True), "auto", n_clusters=3)
    assert same.used == select(in_communities(dimension=2.0, adds_borders=True), "auto").used


@pytest.mark.parametrize(
    ("selection", "dimension", "by"),
    [("paper", 2.0, "paper"), ("scales", 8.0, "scales"), ("auto", 8.0, "scales"), ("auto", 2.0, "scales")],
)
def test_a_given_number_of_clusters(selection, dimension, by):
    found = select(basis([0, 9, 5, 8, 0, 0], dimension=dimension), selection, n_clusters=3)
    assert (found.used.n_clusters, found.used.selection) == (3, by)
    assert found.used == (found.paper if by == "paper" else found.scales)
    assert found.why == "n_clusters was given"
    assert (found.paper.n_clusters, found.scales.n_clusters) == (3, 3)


def test_a_given_number_that_only_one_of_them_has():
    found = select(basis([0, 9, 0, 8, 0, 0], dimension=2.0), "scales", n_clusters=5)
    assert (found.used.n_clusters, found.used.selection, found.scales) == (5, "paper", None)
    several = basis([0, 9, 0, 8, 0, 0, 0, 3], dimension=8.0)
    found = select(several, "paper", n_clusters=8)
    assert (found.used.n_clusters, found.used.selection) == (8, "scales")
    with pytest.raises(ValueError, match="No grid point has 7 clusters"):
        select(several, "auto", n_clusters=7)
    assert select(several, "auto", n_clusters=1).used.n_clusters == 1


def test_the_best_scale_is_none_without_evidence():
    evidence = Evidence(np.array([[0.0, 2.0, 4.0]]), np.zeros((1, 3)), 8.0, 900)
    grid = Grid((5,), (0.1,), 3, 3)
    assert best_scale(evidence, grid, [1, 2, 3]) == Choice(5, 0.1, 3, 4.0, 2.0, "scales")
    assert best_scale(evidence, grid, [2]) == Choice(5, 0.1, 2, 2.0, None, "scales")
    assert best_scale(evidence, grid, [1, 7]) is None


def test_fewest_rows_of_a_cluster():
    assert [least_rows(*each) for each in ((5, 1000), (5, 60), (5, 3))] == [10, 6, 1]


@pytest.mark.parametrize("n_dimensions", [1, 2, 5])
def test_the_intrinsic_dimension_is_that_of_the_data(n_dimensions):
    from sklearn.neighbors import NearestNeighbors

    X = np.zeros((3000, 7))
    X[:, :n_dimensions] = np.random.default_rng(0).random((3000, n_dimensions))
    distances = NearestNeighbors(n_neighbors=15).fit(X).kneighbors(X)[0]
    total, count = intrinsic_dimension(distances)
    assert count == 3000 * 13
    assert count / total == pytest.approx(n_dimensions, rel=0.2)
    parts = [intrinsic_dimension(distances[rows]) for rows in (slice(0, 999), slice(999, None))]
    np.testing.assert_allclose(np.sum(parts, axis=0), (total, count))


def test_copies_of_a_row_tell_nothing_about_the_dimension():
    assert intrinsic_dimension(np.zeros((4, 6))) == (0.0, 0)
    total, count = intrinsic_dimension(np.array([[0.0, 0.0, 1.0, 2.0]]))
    assert (total, count) == (pytest.approx(np.log(2)), 1)


def ring(seed, n_rows=1500, width=0.1):
    rng = np.random.default_rng(seed)
    angle, radius = rng.uniform(0, 2 * np.pi, n_rows), 1 + width * rng.standard_normal(n_rows)
    return radius[:, None] * np.c_[np.cos(angle), np.sin(angle)]


VISIBLE = {
    "moons": make_moons(1200, noise=0.06, random_state=0),
    "circles": make_circles(1200, factor=0.4, noise=0.05, random_state=0),
    "blobs": make_blobs(900, centers=[[0, 0], [8, 0], [0, 8]], random_state=0),
}


@pytest.mark.parametrize("name", VISIBLE)
@pytest.mark.parametrize("selection", ["auto", "scales"])
def test_clusters_that_everybody_sees(name, selection):
    X, truth = VISIBLE[name]
    model = CNS(selection=selection).fit(X)
    assert model.n_clusters_ == len(set(truth.tolist()))
    assert adjusted_mutual_info_score(truth, model.labels_) >= 0.98
    assert model.result_.choice.selection == "scales"


WITHOUT_STRUCTURE = {
    "square": lambda seed: np.random.default_rng(seed).random((1500, 2)),
    "cube": lambda seed: np.random.default_rng(seed).random((1500, 3)),
    "Gaussian in 2-d": lambda seed: np.random.default_rng(seed).standard_normal((1500, 2)),
    "Gaussian in 10-d": lambda seed: np.random.default_rng(seed).standard_normal((1500, 10)),
}


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", WITHOUT_STRUCTURE)
def test_data_without_structure_are_one_cluster(name, seed):
    model = CNS().fit(WITHOUT_STRUCTURE[name](seed))
    assert model.n_clusters_ == 1
    assert not model.labels_.any()
    assert (model.confidence_ == 1).all()


def test_most_rings_are_one_cluster():
    """Their rates come in pairs, which looks like three clusters: the test for borders is there for them."""
    assert [CNS().fit(ring(seed)).n_clusters_ for seed in range(4)].count(1) >= 3


def test_a_number_of_clusters_without_borders_is_no_structure():
    values = np.array([[0.0, 3.0, 9.0]])
    with_borders = np.array([[0.0, 3.0, 0.05]])
    assert Evidence(values, with_borders, 2.0, 900).structure == 0
    assert Evidence(values, with_borders + 0.1, 2.0, 900).structure == 3


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_overlapping_clusters_in_eight_dimensions_are_found_and_the_paper_s_choice_stays_exact(seed):
    X = mixture(1500, 8, n_clusters=8, spread=2.4, seed=seed)
    model, paper = CNS(scale=True).fit(X), CNS(selection="paper", scale=True).fit(X)
    assert model.n_clusters_ == paper.n_clusters_ == 8
    at_paper = model.result_.at(selection="paper")
    np.testing.assert_array_equal(at_paper.labels.compute(), paper.labels_)
    np.testing.assert_allclose(at_paper.memberships.compute(), paper.memberships_, atol=1e-8)


def test_sixty_clusters_are_seen_without_being_asked_for():
    rng = np.random.default_rng(0)
    corners = np.stack(np.meshgrid(np.arange(10), np.arange(6)), axis=-1).reshape(-1, 2)
    y = rng.integers(0, 60, 20_000)
    model = CNS(selection="scales").fit(corners[y] + 0.15 * rng.standard_normal((20_000, 2)))
    assert model.n_clusters_ == 60
    assert adjusted_mutual_info_score(y, model.labels_) > 0.98


@pytest.fixture(scope="module")
def moons():
    """Two clusters with many representatives each, and their model."""
    X = VISIBLE["moons"][0]
    return X, CNS().fit(X)


def test_chunks_do_not_change_the_clusters(moons, small_chunks):
    X, whole = moons
    for sizes in (small.SIZES, None):
        with dask.config.set({"cns_dask.sizes": sizes} if sizes else {}):
            model = CNS().fit(X)
        np.testing.assert_array_equal(model.labels_, whole.labels_)
        np.testing.assert_allclose(model.memberships_, whole.memberships_, atol=1e-9)
        np.testing.assert_allclose(model.result_.evidence.values, whole.result_.evidence.values, atol=1e-6)
        assert model.representatives_.tolist() == whole.representatives_.tolist()


def test_the_order_of_rows_changes_names_of_clusters_at_most(moons):
    X, whole = moons
    order = np.random.default_rng(3).permutation(len(X))
    model = CNS().fit(X[order])
    assert same_partition(model.labels_, whole.labels_[order])
    rename = dict(zip(model.labels_.tolist(), whole.labels_[order].tolist(), strict=True))
    columns = [rename[number] for number in range(2)]
    np.testing.assert_allclose(model.memberships_, whole.memberships_[order][:, columns], atol=1e-9)


def test_training_rows_keep_their_labels_where_clusters_have_several_representatives(moons):
    X, model = moons
    result = model.result_
    of_source = result.stored("source_clusters")[...]
    assert (np.bincount(of_source) > 1).all()
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    np.testing.assert_array_equal(model.predict_proba(X), model.memberships_)
    np.testing.assert_array_equal(model.labels_[result.stored("sources")[...]], of_source)


def test_a_cluster_starts_from_all_its_representatives(moons):
    """F is the paper's closed form with a unit vector at each of them."""
    X, model = moons
    result, choice = model.result_, model.result_.choice
    W = np.zeros((len(X), len(X)))
    np.put_along_axis(W, result.graph.indices[:, : choice.n_neighbors].compute(), 1 / choice.n_neighbors, axis=1)
    start = np.zeros((len(X), 2))
    start[result.stored("sources")[...], result.stored("source_clusters")[...]] = 1
    P = choice.lam * np.linalg.solve(np.eye(len(X)) - (1 - choice.lam) * W, start)
    np.testing.assert_allclose(model.memberships_, 0.5 + P - P.sum(axis=1, keepdims=True) / 2, atol=1e-8)


def test_no_cluster_is_smaller_than_was_asked_for():
    """Three far groups of 200, 50 and 50 rows; where none is large enough, all rows are one cluster."""
    rng = np.random.default_rng(0)
    centers = np.repeat([[0.0, 0.0], [100.0, 0.0], [0.0, 100.0]], [200, 50, 50], axis=0)
    rows = centers + rng.standard_normal((300, 2))
    found = {
        least: CNS(min_cluster_size=least, selection=selection).fit(rows).n_clusters_
        for selection in ("auto", "scales")
        for least in (20, 60, 210, 300)
    }
    assert found == {20: 3, 60: 1, 210: 1, 300: 1}
