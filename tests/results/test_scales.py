import dask.array as da
import numpy as np
import pytest

from cns_dask import CNS, open_result
from cns_dask.results.scales import contingency, count_pairs, explain, stable_scales, tree_of


def two_levels(seed=0):
    """Three far groups of three blobs each (1350, 2), in random order; and the blob of every row."""
    rng = np.random.default_rng(seed)
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.866]])
    centers = (40 * corners[:, None] + 4.5 * corners[None, :]).reshape(9, 2)
    truth = rng.permutation(np.repeat(np.arange(9), 150))
    return centers[truth] + rng.standard_normal((1350, 2)), truth


@pytest.fixture(scope="module")
def levels(tmp_path_factory):
    X, truth = two_levels()
    path = tmp_path_factory.mktemp("levels") / "r.zarr"
    CNS().fit(X, out=path)
    return open_result(path), X, truth


def test_both_numbers_of_clusters_are_stable(levels):
    result, _, _ = levels
    scales = {scale.n_clusters: scale for scale in result.scales}
    assert {3, 9} <= set(scales)
    assert result.choice.n_clusters == 9
    assert [scale.evidence for scale in result.scales] == sorted(each.evidence for each in scales.values())[::-1]
    assert sum(scale.share for scale in result.scales) <= 1
    for scale in result.scales:
        assert scale.evidence == pytest.approx(result.evidence.total[scale.n_clusters - 1])
        assert 0 < scale.steps[0] < scale.steps[1]
    assert scales[9].steps[0] < scales[3].steps[0]  # they mix in the small ones first
    assert scales[3].steps[1] == np.inf  # walks never leave the groups
    assert result.scales == stable_scales(result)


def test_layers_are_the_clusters_of_every_scale_from_fine_to_coarse(levels):
    result, _, truth = levels
    layers = result.layers()
    assert [layer.n_clusters for layer in layers] == [9, 3]
    for layer, expected in zip(layers, (truth, truth // 3), strict=True):
        assert isinstance(layer.labels, da.Array)
        labels = layer.labels.compute()
        np.testing.assert_array_equal(layer.sizes, np.bincount(labels))
        np.testing.assert_allclose(layer.purity, 1)
        counts = count_pairs(labels, expected)
        assert (counts.max(axis=1) / counts.sum(axis=1)).min() > 0.9  # these blobs overlap
    np.testing.assert_array_equal(count_pairs(layers[1].labels.compute(), truth // 3).max(axis=1), 450)
    np.testing.assert_array_equal(layers[0].labels.compute(), result.at(9, selection="scales").labels.compute())


def test_the_tree_says_which_clusters_lie_in_which(levels):
    result, _, _ = levels
    tree = result.tree
    assert sorted(tree) == [(1, 0), (1, 1), (1, 2), (2, 0)]
    assert tree[2, 0] == [(1, 0), (1, 1), (1, 2)]
    assert all(len(tree[1, group]) == 3 for group in range(3))
    assert sorted(child for group in range(3) for child in tree[1, group]) == [(0, cluster) for cluster in range(9)]
    fine, coarse = (layer.labels.compute() for layer in result.layers())
    for group in range(3):
        for _, cluster in tree[1, group]:
            assert (coarse[fine == cluster] == group).all()
    assert tree == tree_of(result.layers())


def test_other_stable_numbers_are_told(levels):
    result, _, _ = levels
    first, *others = explain(result)
    assert first.startswith("chosen by scales, because the data have few dimensions")
    assert "(intrinsic dimension 2.0" in first or "(intrinsic dimension 1.9" in first
    assert f"k = {result.choice.n_neighbors}, lam = {result.choice.lam:.4g}" in first
    assert any(line == "features are scaled to unit variance" for line in others)
    assert others[-1].startswith("other stable numbers of clusters, with their share of the evidence: 3 (")


def test_skipped_rows_do_not_count(levels):
    whole, X, _ = levels
    holes = np.insert(X, [0, 7, 700], np.nan, axis=0)
    kept = ~np.isnan(holes[:, 0])
    result = CNS(missing="skip").fit(holes).result_
    assert result.n_skipped == 3
    assert result.tree == whole.tree
    for ours, theirs in zip(result.layers(), whole.layers(), strict=True):
        labels = ours.labels.compute()
        assert (labels[~kept] < 0).all()
        np.testing.assert_array_equal(labels[kept], theirs.labels.compute())
        np.testing.assert_array_equal(ours.sizes, theirs.sizes)
        np.testing.assert_array_equal(ours.purity, theirs.purity)


def test_without_a_stable_number_there_is_one_layer_with_the_clusters_of_the_fit():
    X = np.random.default_rng(0).random((500, 2))
    result = CNS().fit(X).result_
    assert result.scales == []
    (layer,) = result.layers()
    assert (layer.n_clusters, layer.sizes.tolist(), layer.purity.tolist()) == (1, [500], [1.0])
    np.testing.assert_array_equal(layer.labels.compute(), result.labels.compute())
    assert result.tree == {(1, 0): [(0, 0)]}


def test_rows_in_both_clusterings_are_counted_chunk_by_chunk():
    rng = np.random.default_rng(0)
    first, second = rng.integers(-3, 4, 100), rng.integers(-1, 6, 100)
    expected = [[((first == a) & (second == b)).sum() for b in range(6)] for a in range(4)]
    for chunks in ((100, 100), (7, 100), (30, 11)):
        lazy = (da.from_array(each, chunks=size) for each, size in zip((first, second), chunks, strict=True))
        np.testing.assert_array_equal(contingency(*lazy), expected)
    assert count_pairs(np.array([-1, -3]), np.array([-1, 2])).sum() == 0
