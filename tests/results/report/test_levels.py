import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.results.report import levels
from cns_dask.results.report.levels import Level, layers_of, levels_of, tree_bars
from cns_dask.results.report.shown import collect


@pytest.fixture(scope="module")
def nested():
    """Three far groups of three blobs each."""
    rng = np.random.default_rng(0)
    corners = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.866]])
    centers = (40 * corners[:, None] + 4.5 * corners[None, :]).reshape(9, 2)
    return CNS().fit(centers[np.arange(1350) % 9] + rng.standard_normal((1350, 2))).result_


def test_layers_are_those_of_the_stable_scales(nested):
    found = layers_of(collect(nested))
    assert [layer.n_clusters for layer in found] == sorted((each.n_clusters for each in nested.scales), reverse=True)
    assert {3, 9} <= {layer.n_clusters for layer in found}
    for layer in found:
        expected = nested.at(n_clusters=layer.n_clusters, selection="scales").labels.compute()
        np.testing.assert_array_equal(layer.labels.compute(), expected)


def test_many_rows_are_joined_as_their_candidates_are(nested, monkeypatch):
    shown, solved = collect(nested), {each.n_clusters: each.labels.compute() for each in layers_of(collect(nested))}
    monkeypatch.setattr(levels, "SOLVED_ROWS", 100)
    monkeypatch.setattr(type(nested), "is_solved", lambda *_: False)
    monkeypatch.setattr(type(nested), "at", None)  # nothing is solved for
    joined = {each.n_clusters: each.labels.compute() for each in layers_of(shown)}
    assert 3 in joined
    assert max(joined) <= len(shown.clusters)
    pairs = np.unique(np.stack([joined[3], solved[3]]), axis=1)
    assert pairs.shape[1] == 3  # the same three groups


def test_colours_and_numbers_follow_the_shown_clusters(nested):
    shown = collect(nested)
    at = nested.labels.compute()
    found = layers_of(shown)
    own, others = levels_of(shown, found, at, [each.labels.compute() for each in found])
    same = next(level for level in others if level.n_clusters == own.n_clusters)
    for cluster, color in zip(own.clusters, own.colors, strict=True):
        assert same.colors[same.clusters.index(cluster)] == color
    for level in others:
        assert len(level.colors) == level.n_clusters == len(set(level.colors))
    coarse = next(level for level in others if level.n_clusters == 3)
    assert set(coarse.colors) <= set(own.colors)


def test_children_lie_below_their_parents():
    fine = Level(4, [0, 1, 2, 3], np.array([0, 1, 2, 3] * 10), ["#000000"] * 4)
    coarse = Level(2, [0, 1], np.array([1, 0, 1, 0] * 10), ["#000000"] * 2)
    (_, above), (_, below) = tree_bars([fine, coarse])
    assert [bar.cluster for bar in above] == [0, 1]
    assert [bar.cluster for bar in below] == [1, 3, 0, 2]
    assert sum(bar.width for bar in below) == pytest.approx(1)
    assert below[2].start == pytest.approx(above[1].start)
