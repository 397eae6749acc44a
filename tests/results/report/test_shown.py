import numpy as np
import pandas as pd
import pytest

from cns_dask import CNS
from cns_dask.inputs.data import open_data
from cns_dask.results.report.shown import BINS, collect


@pytest.fixture(scope="module")
def result(blobs):
    table = pd.DataFrame(blobs, columns=list("abcde"))
    return CNS(n_neighbors=12, lam=0.1).fit(table).result_


def test_confidence_is_counted_by_cluster(result):
    counts = collect(result).confidence_counts
    labels, confidence = result.labels.compute(), result.confidence.compute()
    for cluster in result.clusters:
        expected = np.histogram(confidence[labels == cluster], BINS, (0, 1))[0]
        np.testing.assert_array_equal(counts[cluster], expected)
    np.testing.assert_array_equal(collect(result).sizes, result.sizes())


def test_stored_rows_have_the_profile_of_the_data(result, blobs):
    alone, given = collect(result).profile, collect(result, None, open_data(blobs), list("abcde")).profile
    assert alone.features == given.features == tuple("abcde")
    np.testing.assert_allclose(alone.mean, given.mean)
    np.testing.assert_allclose(alone.effect, given.effect)


def test_skipped_rows_are_in_no_profile(blobs):
    X = blobs.copy()
    X[::7] = np.nan
    shown = collect(CNS(n_neighbors=12, lam=0.1, missing="skip").fit(X).result_)
    assert shown.profile.sizes.sum() == shown.sizes.sum() == 600 - len(X[::7])


def test_another_number_of_clusters(result):
    shown = collect(result, 2)
    assert shown.is_other
    assert not shown.of_sample
    np.testing.assert_array_equal(shown.sizes, np.bincount(result.at(2).labels.compute()))
    assert shown.overlap.shape == (2, 2)
    assert not collect(result, result.choice.n_clusters).is_other


def test_clusters_that_overlap_are_side_by_side(result):
    import dataclasses

    overlap = np.eye(4)
    overlap[0, 3] = overlap[3, 0] = overlap[1, 2] = overlap[2, 1] = 0.2
    shown = dataclasses.replace(collect(result), clusters=[0, 1, 2, 3], overlap=overlap)
    places = {cluster: place for place, cluster in enumerate(shown.order)}
    assert sorted(places) == [0, 1, 2, 3]
    assert abs(places[0] - places[3]) == abs(places[1] - places[2]) == 1
