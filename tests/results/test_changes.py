import numpy as np
import pandas as pd
import pytest

from cns_dask import CNS, drift, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotAResultError
from cns_dask.results.changes import Tally, follow
from cns_dask.results.history import changes_in_words


@pytest.fixture(scope="module")
def centers():
    return np.random.default_rng(4).normal(0, 2.5, (5, 12))


def draw(centers, n_rows, seed):
    rng = np.random.default_rng(seed)
    return centers[rng.integers(len(centers), size=n_rows)] + rng.standard_normal((n_rows, centers.shape[1]))


@pytest.fixture(scope="module")
def old(centers):
    return CNS().fit(draw(centers, 1500, 0))


def test_rows_that_stay_keep_their_number(centers, old):
    X = draw(centers, 1500, 0)
    kept = np.random.default_rng(1).permutation(1500)[:1350]
    mixed = np.concatenate([X[kept], draw(centers, 150, 9)])
    plain, model = CNS().fit(mixed), CNS().fit(mixed, previous=old)
    assert old.n_clusters_ == 5
    same = (model.labels_[:1350] == old.labels_[kept]).mean()
    assert same >= 0.99
    changes = model.result_.changes
    assert changes.kept >= 0.99
    assert changes.drift.n_new == 150
    assert changes.drift.outside < 0.05
    assert (changes.births, changes.deaths) == ((), ())
    pairs = {(a, b) for a, b in zip(plain.labels_, model.labels_, strict=True)}
    assert len(pairs) == plain.n_clusters_  # the same clusters by other names
    order = [dict(pairs)[number] for number in range(plain.n_clusters_)]
    expected = plain.memberships_[:, np.argsort(order)]
    np.testing.assert_allclose(model.memberships_, expected, atol=1e-12)
    assert model.result_.representatives.tolist() == plain.representatives_[np.argsort(order)].tolist()
    np.testing.assert_array_equal(model.predict(mixed), model.labels_)
    assert dict(zip(model.result_.clusters, model.result_.sizes(), strict=True)) == dict(
        zip(*np.unique(model.labels_, return_counts=True), strict=True)
    )


def cut(X, labels, how):
    """The rows with cluster 2 cut in two: half of it moved away, or nothing left in its middle."""
    there = np.flatnonzero(labels == 2)
    along = X[there, 0] - np.median(X[there, 0])
    if how == "moved":
        X = X.copy()
        X[there[along > 0], 0] += 12
        return X
    X = X.copy()
    X[there, 0] += 4 * np.sign(along)  # nothing stays in the middle
    return X


@pytest.mark.parametrize(("how", "order"), [("moved", "same"), ("parted", "same"), ("parted", "other")])
def test_a_cluster_that_was_cut_in_two_is_a_split(centers, old, how, order):
    X = cut(draw(centers, 1500, 0), old.labels_, how)
    X = X if order == "same" else np.random.default_rng(0).permutation(X)  # then no row is known by its number
    model = CNS().fit(X, previous=old)
    changes = model.result_.changes
    assert [(cluster, len(parts)) for cluster, parts in changes.splits] == [(2, 2)]
    assert (changes.births, changes.deaths, changes.merges) == ((), (), ())
    assert "cluster 2 was split into" in "\n".join(changes_in_words(changes))


def test_rows_with_their_old_numbers_are_the_same_rows_whatever_their_values(centers, old):
    X, there = draw(centers, 1500, 0), np.flatnonzero(old.labels_ == 2)
    half = there[: len(there) // 2]
    numbers = old.predict(centers)
    X[half] += 4 * centers[numbers == 1] - centers[numbers == 2]  # now near cluster 1 only
    by_number, by_values = CNS().fit(X, previous=old), CNS().fit(X[::-1].copy(), previous=old)
    assert [cluster for cluster, _ in by_number.result_.changes.splits] == [2]
    assert by_values.result_.changes.splits == ()
    assert by_values.result_.changes.births == (5,)
    longer = CNS().fit(np.concatenate([X, draw(centers, 100, 8)]), previous=old).result_.changes
    assert [cluster for cluster, _ in longer.splits] == [2]


def test_births_deaths_and_merges(centers, old):
    numbers = old.predict(centers)
    far = np.concatenate([centers[numbers != 1], np.full((1, 12), 60.0)])  # 1 is gone, and one is far away
    model = CNS().fit(draw(far, 1500, 5), previous=old)
    changes = model.result_.changes
    assert (changes.births, changes.deaths) == ((5,), (1,))
    assert sorted(model.result_.clusters) == [0, 2, 3, 4, 5]
    assert changes.drift.outside > 0.15
    back = CNS().fit(draw(centers, 1500, 6), previous=model)  # its number is never given again
    assert back.result_.changes.deaths == (5,)
    assert back.result_.changes.births == (6,)
    assert len(back.result_.numbers()) == back.result_.stored("absorption").shape[1] == back.n_clusters_
    assert np.unique(back.result_.at(7).labels.compute()).tolist() == list(range(7))  # others have no old numbers
    merged = CNS(n_clusters=4).fit(draw(centers, 1500, 0), previous=old).result_.changes
    assert len(merged.merges) == 1
    assert len(merged.merges[0][1]) == 2


def test_drift_of_new_rows(centers, old, tmp_path):
    here = drift(old, draw(centers, 300, 7))
    assert (here.n_rows, here.n_new) == (300, 300)
    assert here.outside < 0.05
    assert drift(old, draw(centers, 1500, 0)).n_new == 0
    with pytest.raises(InvalidDataError, match="The rows have 24 features instead of 12"):
        drift(old, np.tile(centers, 2))
    holes = draw(centers, 300, 1)
    skipping = CNS(n_neighbors=12, lam=0.1, missing="skip").fit(holes)
    holes[:10, 0] = np.nan
    assert drift(skipping, holes).n_rows == 290
    between = drift(old, np.random.default_rng(0).uniform(-8, 8, (300, 12)))
    assert between.outside > 0.8
    assert between.confidence < here.confidence


def test_what_follows_is_stored_and_refused_when_it_cannot_be(centers, old, tmp_path):
    X = draw(centers, 300, 1)
    first = CNS().fit(X, out=tmp_path / "1.zarr")
    CNS().fit(X[::-1].copy(), previous=tmp_path / "1.zarr", out=tmp_path / "2.zarr")
    second = open_result(tmp_path / "2.zarr")
    assert (second.labels.compute()[::-1] == first.labels_).mean() > 0.99
    assert second.changes.kept > 0.99
    assert second.changes.drift.n_new == 0
    assert open_result(tmp_path / "1.zarr").changes is None
    with pytest.raises(InvalidDataError, match="The rows have 3 features instead of 12"):
        CNS().fit(X[:, :3], previous=old)
    with pytest.raises(InvalidSettingError, match="can only be kept with rows. Give the rows, not a graph alone"):
        CNS(n_neighbors=5).fit(graph=first.result_.graph, previous=old)
    with pytest.raises(NotAResultError, match="holds no training rows, because only a graph was clustered"):
        CNS().fit(X, previous=CNS(n_neighbors=5).fit(graph=first.result_.graph))


def test_features_of_a_previous_fit_are_found_by_their_names():
    rng = np.random.default_rng(0)
    of_row = np.arange(300) % 3
    noise = rng.standard_normal((300, 2))
    table = pd.DataFrame({"a": 8 * of_row, "b": 16 - 8 * of_row}) + noise
    first = CNS().fit(table)
    for other in (table[["b", "a"]], table.assign(c=rng.standard_normal(300))[["b", "c", "a"]]):
        model = CNS().fit(other, previous=first)
        np.testing.assert_array_equal(model.labels_, first.labels_)
        assert model.result_.changes.kept == 1
    np.testing.assert_array_equal(CNS().fit(table.to_numpy(), previous=first).labels_, first.labels_)
    with pytest.raises(InvalidDataError, match="lack features of the other fit: a, b. Add or rename the columns"):
        CNS().fit(table.rename(columns={"a": "x", "b": "y"}), previous=first)
    with pytest.raises(InvalidDataError, match="lack features of the other fit: b"):
        CNS().fit(table.assign(c=1.0)[["a", "c"]], previous=first)


class Previous:
    """As much of a previous result as is looked at."""

    clusters, next_number = [0, 1], 2

    def sizes(self):
        return np.array([100, 100])


def test_a_few_rows_decide_nothing(monkeypatch):
    monkeypatch.setattr("cns_dask.results.changes.drift_of", lambda *_: None)
    tally = Tally(np.array([[98, 1, 0], [2, 99, 0]]), np.array([[0, 0, 5], [0, 0, 0]]), 5, 5, 0.0)
    numbers, changes = follow(tally, Previous())
    assert numbers == [0, 1, 2]
    assert (changes.births, changes.splits) == ((2,), ())
