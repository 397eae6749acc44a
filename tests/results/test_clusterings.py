import os
import shutil
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from processes import local_cluster
from sklearn.datasets import load_wine, make_moons
from sklearn.metrics import adjusted_mutual_info_score

from cns_dask import CNS, open_result
from cns_dask.errors import InvalidSettingError
from cns_dask.results import clusterings

X, TRUTH = make_moons(800, noise=0.06, random_state=0)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """The paper's choice for two moons, with many clusters."""
    path = tmp_path_factory.mktemp("moons") / "r.zarr"
    model = CNS(selection="paper").fit(X, out=path)
    assert model.n_clusters_ > 20
    return path


@pytest.fixture
def path(fitted, tmp_path):
    shutil.copytree(fitted, tmp_path / "r.zarr")
    return tmp_path / "r.zarr"


@pytest.fixture
def solved(monkeypatch):
    """The numbers of clusters of every solve."""
    calls, real = [], clusterings.solve_on_graph

    def counted(*arguments):
        calls.append(len(arguments[2]))
        return real(*arguments)

    monkeypatch.setattr(clusterings, "solve_on_graph", counted)
    return calls


def same(view, model):
    np.testing.assert_array_equal(view.labels.compute(), model.labels_)
    np.testing.assert_allclose(view.memberships.compute(), model.memberships_, atol=2e-9)  # each is known to tol
    np.testing.assert_allclose(view.confidence.compute(), model.confidence_, atol=1e-5)


@pytest.mark.parametrize("selection", [None, "auto", "scales"])
def test_two_moons_from_a_fit_with_many_clusters(path, selection):
    view = open_result(path).at(n_clusters=2, selection=selection)
    assert all(isinstance(array, da.Array) for array in vars(view).values())
    assert adjusted_mutual_info_score(TRUTH, view.labels.compute()) == pytest.approx(1)


@pytest.mark.parametrize("selection", ["paper", "scales", "auto"])
@pytest.mark.parametrize("n_clusters", [1, 2, 7])
def test_it_is_what_a_fit_would_have_given(path, selection, n_clusters):
    model = CNS(n_clusters=n_clusters, selection=selection).fit(X)
    result = open_result(path)
    choice = result.choice_at(n_clusters, selection)
    assert (choice.n_neighbors, choice.lam) == (model.n_neighbors_, model.lam_)
    assert (choice.n_clusters, choice.selection) == (n_clusters, model.result_.choice.selection)
    same(result.at(n_clusters, selection), model)


def test_wine():
    rows = load_wine().data
    result = CNS().fit(rows).result_
    for K in (2, 3, 4):
        same(result.at(n_clusters=K), CNS(n_clusters=K).fit(rows))


def test_the_other_way_to_choose(blobs):
    fits = {selection: CNS(selection=selection, scale=True).fit(blobs) for selection in ("auto", "paper", "scales")}
    for model in fits.values():
        assert max(model.result_.details["n_candidates"].values()) < 300  # none was left out
        for selection, other in fits.items():
            if selection != "auto":
                same(model.result_.at(selection=selection), other)
    same(fits["auto"].result_.at(), fits["auto"])


def test_auto_from_any_fit(path):
    same(open_result(path).at(selection="auto"), CNS().fit(X))


def test_one_cluster_where_there_is_no_structure():
    rows = np.random.default_rng(0).random((500, 2))
    result = CNS(selection="paper").fit(rows).result_
    for selection in ("scales", "auto"):
        same(result.at(selection=selection), CNS(selection=selection).fit(rows))


def test_more_clusters_than_there_are(path):
    result = open_result(path)
    with pytest.raises(InvalidSettingError, match=r"n_clusters must be an integer from 1 to 50\. Got 51"):
        result.at(n_clusters=51)
    rows = np.random.default_rng(0).standard_normal((60, 2))
    few = CNS(n_neighbors=20, lam=0.1).fit(rows).result_
    assert max(few.details["n_candidates"].values()) < 20
    with pytest.raises(InvalidSettingError, match=r"There are no 20 clusters: there are fewer candidates\. Use fewer"):
        few.at(n_clusters=20)
    with pytest.raises(InvalidSettingError, match="selection must be one of"):
        result.at(2, selection="best")
    for wrong in (0, 2.5, "two"):
        with pytest.raises(InvalidSettingError, match="n_clusters must be an integer from 1 to"):
            result.at(wrong)


def test_what_is_chosen_already_is_not_solved_again(path, solved):
    result = open_result(path)
    for view in (result.at(), result.at(result.choice.n_clusters), result.at(selection="paper")):
        np.testing.assert_array_equal(view.memberships.compute(), result.memberships.compute())
    assert solved == []
    assert not (path / "at").exists()


def test_it_is_solved_once_and_kept_in_the_result(path, solved):
    result = open_result(path)
    first = result.at(3).memberships.compute()
    assert sum(solved) == 3
    (folder,) = (file.parent for file in (path / "at").rglob("absorption") if file.is_dir())
    choice = result.choice_at(3)
    assert folder.name == f"paper-{choice.n_neighbors}-{choice.lam:.6g}-3"
    for again in (result, open_result(path)):
        np.testing.assert_array_equal(again.at(3).memberships.compute(), first)
    assert sum(solved) == 3
    result.at(4).labels.compute()
    assert sum(solved) == 7
    assert len([file for file in (path / "at").rglob("absorption") if file.is_dir()]) == 2


def test_what_another_result_has_left_is_not_taken(tmp_path):
    """The listing of an object store may lag behind, so that not all of a result goes when it is replaced."""
    model, paths = CNS(n_neighbors=10, lam=0.05, selection="paper"), (tmp_path / "old.zarr", tmp_path / "new.zarr")
    for path, rows in zip(paths, (X, X[::-1]), strict=True):
        model.fit(rows, out=path)
    expected = model.result_.at(3).labels.compute()
    left = open_result(paths[0]).at(3).labels.compute()
    assert (left != expected).any()
    shutil.rmtree(paths[1] / "at")
    shutil.copytree(paths[0] / "at", paths[1] / "at")
    np.testing.assert_array_equal(open_result(paths[1]).at(3).labels.compute(), expected)


def test_what_was_not_finished_is_solved_again(path, monkeypatch):
    expected = open_result(path).at(3).memberships.compute()
    shutil.rmtree(path / "at")

    def fail(*_):
        raise RuntimeError("no more")

    with monkeypatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(clusterings, "solve_on_graph", fail)
        with pytest.raises(RuntimeError, match="no more"):
            open_result(path).at(3)
    np.testing.assert_array_equal(open_result(path).at(3).memberships.compute(), expected)


def refuse(monkeypatch, folder):
    """Nothing can be made in a folder, also not by root."""
    make = clusterings.Location.make

    def refused(self, *arguments, **options):
        if self.path.startswith(str(folder)):
            raise PermissionError(13, "Permission denied", self.path)
        return make(self, *arguments, **options)

    monkeypatch.setattr(clusterings.Location, "make", refused)


@pytest.mark.parametrize("how", ["mode", "error"])
def test_a_result_that_cannot_be_written_to(path, solved, monkeypatch, how):
    expected = open_result(path).at(3).memberships.compute()
    shutil.rmtree(path / "at")
    solved.clear()
    files = sorted(str(file) for file in path.rglob("*"))
    if how == "error":
        refuse(monkeypatch, path)
    elif os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    else:
        path.chmod(0o555)
    try:
        view = open_result(path).at(3)
        np.testing.assert_array_equal(view.memberships.compute(), expected)
        np.testing.assert_array_equal(view.labels.compute(), expected.argmax(axis=1))
    finally:
        path.chmod(0o755)
    assert sum(solved) == 3
    assert sorted(str(file) for file in path.rglob("*")) == files


def test_views_of_a_temporary_result_survive_the_model():
    model = CNS(n_neighbors=12, lam=0.1).fit(X)
    folder, view = Path(model.result_.path), model.result_.at(3)
    expected = view.labels.compute()
    del model
    assert folder.exists()
    np.testing.assert_array_equal(view.labels.compute(), expected)


def test_rows_that_were_skipped(tmp_path):
    holes = np.insert(X, [0, 7, 400], np.nan, axis=0)
    holes[0, 1] = np.inf
    kept = np.isfinite(holes).all(axis=1)
    result = CNS(missing="skip", selection="paper").fit(holes, out=tmp_path / "r.zarr").result_
    clean = CNS(selection="paper").fit(X).result_
    for K, selection in ((2, "auto"), (3, "paper"), (1, "auto"), (None, "scales")):
        ours, theirs = (each.at(K, selection) for each in (result, clean))
        labels = ours.labels.compute()
        np.testing.assert_array_equal(labels[kept], theirs.labels.compute())
        np.testing.assert_allclose(ours.memberships.compute()[kept], theirs.memberships.compute(), atol=2e-9)
        assert (labels[~kept] < -1).all()
        assert np.isnan(ours.memberships.compute()[~kept]).all()
        assert (ours.confidence.compute()[~kept] == 0).all()


def test_small_chunks_change_nothing(path, small_chunks):
    result = CNS(selection="paper").fit(X).result_
    for K in (2, 9):
        same_as = open_result(path).at(K, selection="scales")
        view = result.at(K, selection="scales")
        assert len(view.labels.chunks[0]) > 1
        np.testing.assert_array_equal(view.labels.compute(), same_as.labels.compute())
        np.testing.assert_allclose(view.memberships.compute(), same_as.memberships.compute(), atol=2e-9)


@pytest.mark.slow
def test_on_a_real_cluster(path):
    from distributed import Client

    expected = open_result(path).at(2, selection="auto").memberships.compute()
    shutil.rmtree(path / "at")
    with local_cluster() as cluster, Client(cluster):
        view = open_result(path).at(2, selection="auto")
        np.testing.assert_array_equal(view.memberships.compute(), expected)
    assert len(list((path / "at").iterdir())) >= 1
