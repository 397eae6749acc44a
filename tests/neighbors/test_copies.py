import numpy as np
import pytest
from generators import mixture
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from cns_dask import CNS, open_result
from cns_dask.neighbors.copies import first_copies, hash_rows

LOADERS = {"iris": load_iris, "wine": load_wine, "digits": load_digits}


def test_equal_rows_have_equal_hashes_and_others_do_not():
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 3, (5000, 4)).astype(float)
    rows[rows == 0] *= rng.choice([-1, 1], (rows == 0).sum())  # zeros of both signs
    hashes = hash_rows(rows)
    assert len(np.unique(hashes)) == len(np.unique(rows, axis=0)) == 81
    first = first_copies(hashes)
    np.testing.assert_array_equal(rows[first], rows)
    assert (first <= np.arange(len(rows))).all()
    assert len(np.unique(hash_rows(rng.standard_normal((10_000, 2))))) == 10_000


@pytest.mark.parametrize("name", LOADERS)
def test_a_table_that_stands_twice_has_the_same_clusters(name):
    X = LOADERS[name]().data
    once, twice = CNS().fit(X).labels_, CNS().fit(np.concatenate([X, X])).labels_
    np.testing.assert_array_equal(twice[: len(X)], twice[len(X) :])
    assert adjusted_rand_score(once, twice[: len(X)]) > 0.98


@pytest.mark.parametrize("shuffled", [False, True])
def test_thirty_points_twenty_times_each_are_clustered_as_thirty_points(shuffled):
    rng = np.random.default_rng(0)
    points = rng.standard_normal((30, 3)) + np.repeat([[0.0], [8.0]], 15, axis=0)
    which = np.repeat(np.arange(30), 20)
    which = rng.permutation(which) if shuffled else which
    labels = CNS().fit(points[which]).labels_
    assert adjusted_rand_score(CNS().fit(points).labels_[which], labels) == 1


@pytest.fixture(scope="module")
def rounded(tmp_path_factory):
    """Many copies, in cells: with more rows than an exact search takes."""
    X = mixture(3000, 3, n_clusters=4, spread=4.0, seed=1).round()
    out = tmp_path_factory.mktemp("copies") / "clusters.zarr"
    return X, CNS(method="cells").fit(X, out=out), out


def test_no_list_names_a_further_copy(rounded):
    X, _, out = rounded
    result = open_result(out)
    first, lists = result.stored("first_copy")[:], result.stored("graph/indices")[:]
    np.testing.assert_array_equal(X[first], X)
    np.testing.assert_array_equal(lists[:, 0], np.arange(len(X)))
    assert (first[lists[:, 1:]] == lists[:, 1:]).all()
    np.testing.assert_array_equal(lists[:, 1:], lists[first][:, 1:])
    assert not (lists[:, 1:] == first[:, None]).any()  # a copy does not list its first row
    exact = CNS(method="exact").fit(X).result_.stored("graph/distances")[:]  # of ties any may be listed
    assert (np.abs(result.stored("graph/distances")[:] - exact) < 1e-5).mean() > 0.99


def test_copies_have_one_label_and_are_predicted_as_they_were_fitted(rounded):
    X, model, _ = rounded
    first = model.result_.stored("first_copy")[:]
    np.testing.assert_array_equal(model.labels_, model.labels_[first])
    assert (model.predict(X) == model.labels_).mean() > 0.99  # representatives keep their own
    exact = CNS(method="exact").fit(X)
    assert (exact.predict(X) == exact.labels_).mean() > 0.99


def test_the_grid_is_that_of_the_different_rows():
    X = mixture(200, 4, n_clusters=3, spread=4.0, seed=0)
    once, often = CNS().fit(X).result_.grid, CNS().fit(np.repeat(X, 30, axis=0)).result_.grid
    assert (often.ks, often.lams) == (once.ks, once.lams)


def test_the_paper_counts_copies_as_rows():
    X = np.repeat(mixture(200, 4, n_clusters=3, spread=4.0, seed=0), 2, axis=0)
    result = CNS(selection="paper").fit(X).result_
    assert result.first_copy is None
    assert (result.stored("graph/indices")[:, 1] == np.arange(400) + np.tile([1, -1], 200)).mean() > 0.9


def test_two_different_rows_count_as_before():
    X = np.repeat([[0.0], [1.0]], 50, axis=0)
    result = CNS().fit(X).result_
    assert result.first_copy is None


def test_samples_and_skipped_rows_have_copies_too():
    X = np.repeat(mixture(1500, 4, n_clusters=3, spread=4.0, seed=0), 2, axis=0)
    X[7] = np.nan
    labels = CNS(missing="skip").fit(X).labels_
    assert labels[7] == -3
    some = np.delete(np.arange(3000), [6, 7])
    np.testing.assert_array_equal(labels[some[::2]], labels[some[1::2]])
    sampled = CNS().fit(X[10:], sample=1500).labels_
    assert adjusted_rand_score(sampled[::2], sampled[1::2]) > 0.99
