import numpy as np
import pytest
from generators import mixture
from sklearn.datasets import make_blobs, make_moons
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score

from cns_dask import CNS, open_result
from cns_dask.smoothing import partition, scales
from cns_dask.smoothing.partition import are_modular, clusters_of, evenly, majority, without_small


def overlapping(n_clusters, separation, n_features, n_rows, seed=0):
    """Gaussians whose centers are this far apart."""
    rng = np.random.default_rng(seed)
    centers = np.zeros((n_clusters, n_features))
    centers[np.arange(1, n_clusters), np.arange(n_clusters - 1)] = separation
    y = rng.integers(n_clusters, size=n_rows)
    return centers[y] + rng.standard_normal((n_rows, n_features)), y


@pytest.mark.parametrize(("n_clusters", "n_features"), [(2, 4), (2, 20), (3, 8)])
def test_overlapping_gaussians_are_found(n_clusters, n_features):
    X, y = overlapping(n_clusters, 4.5, n_features, 3000)
    model = CNS().fit(X)
    assert model.n_clusters_ == n_clusters
    assert model.result_.choice.selection == "communities"
    assert adjusted_mutual_info_score(y, model.labels_) > 0.6


@pytest.mark.parametrize("n_features", [5, 20])
def test_one_gaussian_is_one_cluster(n_features):
    assert CNS().fit(np.random.default_rng(1).standard_normal((2000, n_features))).n_clusters_ == 1


def test_two_touching_blobs_in_the_plane_are_two():
    rng = np.random.default_rng(0)
    y = np.arange(20_000) % 2
    X = rng.standard_normal((20_000, 2)) + np.c_[3.5 * y, 0 * y]
    model = CNS().fit(X)
    assert model.n_clusters_ == 2
    assert adjusted_rand_score(y, model.labels_) > 0.7


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    X = mixture(1500, 8, n_clusters=6, spread=2.0, seed=3)
    out = tmp_path_factory.mktemp("communities") / "clusters.zarr"
    return X, CNS(selection="communities").fit(X, out=out), out


def test_any_number_of_clusters_is_that_of_a_new_fit(fitted):
    X, model, out = fitted
    result = open_result(out)
    n_communities = result.stored("community_clusters").shape[0]
    assert n_communities > 2
    for K in {2, model.n_clusters_, n_communities}:
        again = CNS(selection="communities", n_clusters=K).fit(X)
        assert again.n_clusters_ == K
        np.testing.assert_array_equal(result.at(n_clusters=K).labels.compute(), again.labels_)


def test_chunks_and_seeds_do_not_change_the_communities(fitted, small_chunks):
    X, model, _ = fitted
    other = CNS(selection="communities", random_state=7).fit(X)
    np.testing.assert_array_equal(other.labels_, model.labels_)
    np.testing.assert_allclose(other.memberships_, model.memberships_, atol=1e-7)


def test_memberships_are_probabilities_and_new_rows_get_those_of_the_fit(fitted):
    X, model, _ = fitted
    np.testing.assert_allclose(model.memberships_.sum(axis=1), 1)
    assert model.memberships_.min() > -1e-8
    np.testing.assert_array_equal(model.predict(X), model.labels_)
    far = np.abs(model.memberships_.max(axis=1) - 1) < 0.1
    assert far.mean() > 0.5  # most rows are inside a cluster


def test_representatives_are_rows_of_their_clusters(fitted):
    _, model, out = fitted
    result = open_result(out)
    rows = result.stored("representatives")[:]
    np.testing.assert_array_equal(model.labels_[rows], np.sort(result.numbers()))


def test_a_graph_alone_has_communities():
    X, y = make_blobs(600, centers=4, n_features=6, random_state=0)
    from cns_dask import neighbor_graph

    graph = neighbor_graph(X, n_neighbors=24)
    model = CNS(selection="communities").fit(None, graph=graph.indices)
    assert adjusted_mutual_info_score(y, model.labels_) > 0.6
    assert model.result_.selection.ratio is None


def test_a_result_without_communities_says_so():
    X, _ = make_blobs(300, random_state=0)
    result = CNS(selection="scales").fit(X).result_
    with pytest.raises(ValueError, match="has no communities"):
        result.at(selection="communities")


def test_max_clusters_bounds_the_communities(fitted):
    X, _, _ = fitted
    assert CNS(max_clusters=3).fit(X).n_clusters_ <= 3


def test_small_communities_join_those_they_are_linked_with():
    labels = np.repeat([0, 1, 2, 3], [50, 40, 3, 4])
    links = np.diag([100.0, 80, 6, 8])
    links[0, 2] = links[2, 0] = 5
    joined, merged, kept = without_small(labels, links, 10)
    assert joined[labels == 2].tolist() == [0, 0, 0]
    assert joined[labels == 3].tolist() == [-1] * 4  # they have no links
    assert merged.shape == (2, 2)
    assert kept.tolist() == [0, 1]
    assert merged[0, 0] == 116


def test_the_cluster_of_a_community_is_that_of_most_of_its_candidates():
    communities, clusters = np.array([0, 0, 0, 1, 1, -1]), np.array([1, 1, 0, 0, -1, 1])
    assert majority(communities, clusters, np.array([0, 1, 2])).tolist() == [1, 0, 0]
    assert majority(communities, clusters, np.array([0, 1, 0])).tolist() == [1, 0, 1]  # that of its group


def test_clusters_of_rows():
    assert clusters_of(np.array([0, 2, -1]), np.array([1, 0, 0])).tolist() == [1, 0, -1]
    assert evenly(3, 10).tolist() == [0, 1, 2]


def test_one_cluster_says_what_another_scaling_would_show():
    X, _ = overlapping(2, 4, 20, 1000)  # scaled to unit variance, the feature with two modes says little
    result = CNS(scale=True).fit(X).result_
    assert result.choice.n_clusters == 1
    assert "With scale=False there would be 2." in result.verdict.sentence
    assert CNS(scale=False).fit(X).n_clusters_ == 2


def test_more_clusters_than_communities_are_made_of_their_parts(fitted):
    X, model, out = fitted
    K = model.n_clusters_ + 6
    again = CNS(selection="communities", n_clusters=K).fit(X)
    assert again.n_clusters_ == K
    assert len(np.unique(again.labels_)) == K
    np.testing.assert_array_equal(open_result(out).at(n_clusters=K).labels.compute(), again.labels_)


def test_shuffled_rows_have_the_same_clusters():
    X = mixture(1500, 8, n_clusters=6, spread=2.0, seed=3)
    order = np.random.default_rng(0).permutation(len(X))
    np.testing.assert_array_equal(CNS().fit(X[order]).labels_, CNS().fit(X).labels_[order])


def test_modularity_tells_of_clusters_in_many_dimensions_only():
    assert are_modular(1.2, 5.0)
    assert are_modular(1.2, None)
    assert not are_modular(1.1, 5.0)
    assert not are_modular(1.2, 2.0)
    assert not are_modular(None, 5.0)


def test_a_clear_scale_and_dips_overrule_a_modular_graph(monkeypatch):
    X, y = overlapping(2, 6, 4, 20_000)
    monkeypatch.setattr(partition, "LEAST_STRUCTURE_RATIO", 0.5)
    model = CNS().fit(X)
    assert model.n_clusters_ == 2
    assert adjusted_rand_score(y, model.labels_) > 0.97
    monkeypatch.setattr(scales, "CLEAR", 2.0)
    assert CNS().fit(X).n_clusters_ > 2


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pieces_of_noisy_moons_are_no_scale(seed):
    X, y = make_moons(1000, noise=0.15, random_state=seed)
    model = CNS().fit(X)
    assert model.n_clusters_ == 2
    assert adjusted_rand_score(y, model.labels_) > 0.9


def test_touching_clusters_have_no_pieces_at_their_borders():
    rng = np.random.default_rng(1)
    y = rng.integers(2, size=20_000)
    X = rng.standard_normal((20_000, 2)) + np.c_[3.5 * y, 0 * y]
    assert CNS().fit(X).n_clusters_ == 2
