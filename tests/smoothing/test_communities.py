import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from cns_dask.smoothing.candidates import in_degrees, local_maxima
from cns_dask.smoothing.communities import (
    CLIMBED,
    add_links,
    basins_of,
    hierarchy,
    links_part,
    louvain,
    mass_degrees,
    merged_links,
    modularity,
    settle_part,
    uphill_part,
)


def random_lists(seed, n_rows=60, k=6):
    """Lists of k different rows, the row itself first."""
    rng = np.random.default_rng(seed)
    others = [rng.permutation(np.delete(np.arange(n_rows), row))[: k - 1] for row in range(n_rows)]
    return np.concatenate([np.arange(n_rows)[:, None], np.array(others)], axis=1)


def two_groups(n_rows=40, k=6, seed=0):
    """Lists of neighbors within the first and within the second half of the rows."""
    half = random_lists(seed, n_rows // 2, k)
    return np.concatenate([half, half + n_rows // 2])


@given(st.integers(0, 10_000))
def test_steps_uphill_end_at_tops_that_no_step_leaves(seed):
    neighbors = random_lists(seed)
    degrees = in_degrees(neighbors, len(neighbors))
    reach = np.random.default_rng(seed).random(len(neighbors))
    uphill = uphill_part(neighbors, degrees, reach)
    assert (degrees[uphill] >= degrees).all()
    tops, basins = basins_of(uphill, reach)
    assert (np.diff(reach[tops]) >= 0).all()
    np.testing.assert_array_equal(uphill[tops], tops)
    np.testing.assert_array_equal(basins[tops], np.arange(len(tops)))
    np.testing.assert_array_equal(basins[uphill], basins)  # a step stays in its basin
    assert (degrees[tops] >= degrees[neighbors[tops, :CLIMBED]].max(axis=1)).all()


def test_with_short_lists_tops_are_local_maxima():
    neighbors = random_lists(3, k=CLIMBED)
    reach = np.zeros(len(neighbors))
    tops = basins_of(uphill_part(neighbors, in_degrees(neighbors, len(neighbors)), reach), reach)[0]
    assert set(tops.tolist()) <= set(local_maxima(neighbors).rows.tolist())


@given(st.integers(0, 10_000), st.integers(1, 59))
def test_parts_give_what_the_whole_gives(seed, cut):
    neighbors, rng = random_lists(seed), np.random.default_rng(seed)
    n_rows, labels = len(neighbors), rng.integers(0, 4, 60)
    degrees = in_degrees(neighbors, n_rows)
    pieces = (neighbors[:cut], 0), (neighbors[cut:], cut)
    reach = rng.random(n_rows)
    uphill = [uphill_part(lists, degrees, reach) for lists, _ in pieces]
    np.testing.assert_array_equal(np.concatenate(uphill), uphill_part(neighbors, degrees, reach))
    links = add_links([links_part(*piece, labels, 4) for piece in pieces])
    np.testing.assert_array_equal(links.toarray(), links_part(neighbors, 0, labels, 4).toarray())
    settled = [settle_part(*piece, labels, 4) for piece in pieces]
    np.testing.assert_array_equal(np.concatenate(settled), settle_part(neighbors, 0, labels, 4))


def test_links_are_those_of_the_graph_between_groups():
    neighbors, labels = random_lists(1), np.arange(60) % 3
    expected = np.zeros((3, 3), int)
    for row, listed in enumerate(neighbors):
        for other in listed[1:]:
            expected[labels[row], labels[other]] += 1
    np.testing.assert_array_equal(links_part(neighbors, 0, labels, 3).toarray(), expected)


def test_modularity_is_that_of_networkx_s_definition():
    rng = np.random.default_rng(0)
    weights = rng.integers(0, 5, (12, 12))
    weights = weights + weights.T
    labels = np.arange(12) % 3
    degrees, total = weights.sum(axis=1), weights.sum()
    same = labels[:, None] == labels[None, :]
    expected = ((weights / total - np.outer(degrees, degrees) / total**2) * same).sum()
    links = merged_links(csr_matrix(weights), labels, 3).toarray().astype(float)
    assert modularity(links) == pytest.approx(expected)


def best_modularity(weights):
    """The largest modularity of all partitions of a few nodes."""

    def partitions(n):
        if n == 0:
            yield []
            return
        for rest in partitions(n - 1):
            for label in range(max(rest, default=-1) + 2):
                yield [*rest, label]

    return max(
        modularity(merged_links(csr_matrix(weights), np.array(labels), max(labels) + 1).toarray().astype(float))
        for labels in partitions(len(weights))
    )


@pytest.mark.parametrize("seed", range(8))
def test_communities_have_nearly_the_largest_modularity(seed):
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, (7, 7)) * (rng.random((7, 7)) < 0.5)
    weights = weights + weights.T
    np.fill_diagonal(weights, 0)
    labels = louvain(csr_matrix(weights))
    links = merged_links(csr_matrix(weights), labels, int(labels.max()) + 1).toarray().astype(float)
    assert modularity(links) >= best_modularity(weights) - 0.05


def test_two_separate_graphs_share_no_community():
    neighbors = two_groups()
    links = links_part(neighbors, 0, np.arange(40), 40)
    labels = louvain(links + links.T)
    assert not set(labels[:20].tolist()) & set(labels[20:].tolist())


def test_rows_settle_where_their_neighbors_are_and_rows_without_a_group_keep_none():
    neighbors = two_groups()
    labels = np.repeat([0, 1], 20)
    wrong = labels.copy()
    wrong[[3, 30]] = 1 - labels[[3, 30]]
    np.testing.assert_array_equal(settle_part(neighbors, 0, wrong, 2), labels)
    wrong[5] = -1
    assert settle_part(neighbors, 0, wrong, 2)[5] == -1


@given(st.integers(0, 10_000))
def test_the_hierarchy_is_nested_and_has_every_number_of_clusters(seed):
    rng = np.random.default_rng(seed)
    K = int(rng.integers(2, 9))
    links = rng.integers(0, 5, (K, K)).astype(float)
    links, sizes, groups = links + links.T, rng.integers(1, 50, K), rng.integers(0, 3, K)
    clusters = hierarchy(links, sizes, groups[None])
    for n_clusters, labels in enumerate(clusters, start=1):
        assert set(labels.tolist()) == set(range(n_clusters))
        rows = np.bincount(labels, weights=sizes)
        assert (np.diff(rows) <= 0).all()  # the largest first
    for coarse, fine in itertools.pairwise(clusters):
        assert len({(a, b) for a, b in zip(coarse.tolist(), fine.tolist(), strict=True)}) == fine.max() + 1
    n_groups = len(np.unique(groups))
    pairs = {(a, b) for a, b in zip(clusters[n_groups - 1].tolist(), groups.tolist(), strict=True)}
    assert len(pairs) == n_groups  # the groups are one of the levels


def test_the_levels_of_a_hierarchy_are_numbers_of_clusters():
    rng = np.random.default_rng(0)
    links = rng.integers(1, 5, (9, 9)).astype(float)
    communities, groups = np.arange(9) // 2, np.arange(9) // 4
    clusters = hierarchy(links + links.T, np.ones(9), np.stack([communities, groups]))
    for level in (communities, groups):
        n_clusters = level.max() + 1
        pairs = set(zip(clusters[n_clusters - 1].tolist(), level.tolist(), strict=True))
        assert len(pairs) == n_clusters


def test_parts_of_communities_are_nested_in_them():
    neighbors = two_groups(200, 6, seed=1)
    links = links_part(neighbors, 0, np.arange(200), 200)
    links = csr_matrix(links + links.T)
    parts, communities = louvain(links, 40), louvain(links)
    assert communities.max() + 1 < parts.max() + 1 <= 40
    assert len(set(zip(parts.tolist(), communities.tolist(), strict=True))) == parts.max() + 1


def test_links_of_a_table_that_stands_twice_are_those_of_the_table():
    neighbors, rng = random_lists(0), np.random.default_rng(0)
    labels = rng.integers(0, 4, len(neighbors))
    twice = np.concatenate([neighbors, neighbors])
    twice[:, 0] = np.arange(len(twice))
    masses, first = np.full(len(twice), 2), np.arange(len(twice)) % len(neighbors)
    once = links_part(neighbors, 0, labels, 4).toarray()
    both = links_part(twice, 0, np.tile(labels, 2), 4, masses).toarray()
    ratio = both.sum() / once.sum()
    np.testing.assert_array_equal(both, ratio * once)
    degrees = mass_degrees(twice, 0, masses, first)
    np.testing.assert_array_equal(
        np.argsort(degrees[: len(neighbors)], kind="stable"),
        np.argsort(in_degrees(neighbors, len(neighbors)), kind="stable"),
    )
    assert not degrees[len(neighbors) :].any()
    settled = settle_part(twice, 0, np.tile(labels, 2), 4, masses)
    np.testing.assert_array_equal(settled, np.tile(settle_part(neighbors, 0, labels, 4), 2))
