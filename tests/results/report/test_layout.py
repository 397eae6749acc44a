import numpy as np

from cns_dask.results.report.layout import in_disc, place_clusters, place_rows


def test_clusters_that_overlap_are_near():
    affinity = np.zeros((6, 6))
    for a, b in ((0, 1), (1, 2), (3, 4), (4, 5)):
        affinity[a, b] = affinity[b, a] = 0.3
    nodes, radii = place_clusters(affinity)
    gaps = np.linalg.norm(nodes[:, None] - nodes[None], axis=2)
    assert gaps[0, 1] < gaps[0, 3]
    assert gaps[4, 5] < gaps[2, 5]
    np.fill_diagonal(gaps, np.inf)
    assert (radii <= gaps.min(axis=1) / 2).all()


def test_any_number_of_clusters_has_a_finite_layout():
    for K in (1, 2, 3, 60, 300):
        nodes, radii = place_clusters(np.zeros((K, K)))
        assert np.isfinite(nodes).all()
        assert (radii > 0).all()
        assert len(np.unique(nodes.round(6), axis=0)) == K


def test_rows_lie_between_their_clusters_and_depend_on_their_number_alone():
    nodes, radii = np.array([[0.0, 0.0], [10.0, 0.0]]), np.array([1.0, 2.0])
    shares = np.tile([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0], [np.nan, np.nan]], (50, 1))
    places = place_rows(shares, nodes, radii)
    assert (np.linalg.norm(places[0::4] - nodes[0], axis=1) <= 1).all()
    assert (np.linalg.norm(places[1::4] - [5, 0], axis=1) <= 1.5).all()
    assert np.isnan(places[3::4]).all()
    np.testing.assert_array_equal(places[70:90], place_rows(shares[70:90], nodes, radii, first=70))


def test_the_disc_is_filled_evenly():
    places = in_disc(np.arange(20_000))
    radius = np.linalg.norm(places, axis=1)
    assert radius.max() <= 1
    assert abs((radius < np.sqrt(0.5)).mean() - 0.5) < 0.01
    assert np.abs(places.mean(axis=0)).max() < 0.01
