import gc
import pickle
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import estimator_checks_generator

from cns_dask import CNS, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError, OutputError
from cns_dask.settings import Settings

#: Checks of scikit-learn that are expected to fail -> why.
CLASSIFIER = "it takes whatever has predict_proba and takes sparse data for a classifier, here of four classes"
EXPECTED_FAILURES = {"check_estimator_sparse_matrix": CLASSIFIER, "check_estimator_sparse_array": CLASSIFIER}


@pytest.mark.parametrize(
    ("estimator", "check"),
    [
        pytest.param(estimator, check, id=getattr(check, "func", check).__name__)
        for estimator, check in estimator_checks_generator(CNS())
        if getattr(check, "func", check).__name__ not in EXPECTED_FAILURES
    ],
)
def test_scikit_learn_check(estimator, check):
    check(estimator)


def test_parameters_are_the_settings():
    parameters = CNS().get_params()
    assert parameters.pop("verbose") is False
    assert Settings(**parameters) == Settings()
    assert clone(CNS(metric="cosine", lam=(0.1, 0.2))).lam == (0.1, 0.2)


def test_arrays_in_memory_give_arrays_in_memory(blobs):
    model = CNS()
    assert model.fit(blobs) is model
    for name, shape in (
        ("labels_", (600,)),
        ("memberships_", (600, model.n_clusters_)),
        ("confidence_", (600,)),
        ("representatives_", (model.n_clusters_,)),
        ("criterion_", (4, 5, 30)),
    ):
        assert isinstance(getattr(model, name), np.ndarray)
        assert getattr(model, name).shape == shape
    assert model.n_features_in_ == 5
    assert model.n_neighbors_ in (6, 12, 18, 24)
    assert 0 < model.lam_ < 1
    np.testing.assert_array_equal(model.predict(blobs), model.labels_)
    np.testing.assert_array_equal(model.predict_proba(blobs), model.memberships_)
    np.testing.assert_array_equal(CNS().fit_predict(blobs), model.labels_)


def test_clusters_are_found():
    rng = np.random.default_rng(0)
    truth = rng.integers(3, size=500)
    X = 5 * np.eye(3, 6)[truth] + rng.standard_normal((500, 6))
    assert adjusted_rand_score(truth, CNS().fit_predict(X)) > 0.98


@pytest.mark.parametrize("form", ["dask", "path"])
def test_lazy_input_gives_lazy_results(blobs, tmp_path, form):
    source = da.from_array(blobs, chunks=(100, 5))
    if form == "path":
        np.save(tmp_path / "x.npy", blobs)
        source = tmp_path / "x.npy"
    model = CNS().fit(source)
    labels = model.labels_
    predicted = model.predict(source)
    expected = CNS().fit(blobs).labels_
    del model  # the lazy arrays must survive it
    for lazy in (labels, predicted):
        assert isinstance(lazy, da.Array)
        np.testing.assert_array_equal(lazy.compute(), expected)


def test_lazy_predictions_of_a_model_in_memory_survive_it(blobs):
    model = CNS().fit(blobs)
    labels, predicted = model.labels_, model.predict(da.from_array(blobs, chunks=(100, 5)))
    del model
    np.testing.assert_array_equal(predicted.compute(), labels)


def test_every_lazy_array_of_a_temporary_result_keeps_it(blobs):
    model = CNS().fit(blobs)
    folder, labels = Path(model.result_.path), model.labels_
    lazy = [model.result_.labels, model.result_.at(2).labels, model.result_.graph.indices]
    model.fit(blobs)  # drops the first result
    assert folder.exists()
    np.testing.assert_array_equal(lazy.pop(0).compute(), labels)
    assert lazy.pop(0).max().compute() == 1
    np.testing.assert_array_equal(lazy.pop(0)[:, 0].compute(), np.arange(600))
    gc.collect()
    assert not folder.exists()


def test_rows_of_unknown_number_are_counted_once(blobs):
    counted = []
    array = da.from_array(blobs, chunks=(200, 5)).map_blocks(lambda block: counted.append(1) or block, dtype=float)
    unknown = array[da.from_array(np.ones(600, bool), chunks=200)]
    with dask.config.set(scheduler="synchronous"):
        CNS(n_neighbors=6, lam=0.1).fit(unknown)
    # three chunks: once to count, then for the range, the mean and the variance, and the points
    assert len(counted) <= 1 + 3 * 5


def test_a_fit_that_fails_leaves_the_model_as_it_was(blobs):
    model = CNS().fit(blobs)
    with pytest.raises(InvalidSettingError):
        model.set_params(n_neighbors=700).fit(blobs[:, :2])
    np.testing.assert_array_equal(model.predict(blobs), model.labels_)


@pytest.mark.parametrize("names", [["a", 1], ["a", None], ["a", float("nan")]])
def test_names_that_scikit_learn_refuses_are_refused_before_any_work(blobs, tmp_path, names):
    with pytest.raises(InvalidDataError, match="names of the columns must be all strings, or all something else"):
        CNS().fit(pd.DataFrame(blobs[:, :2], columns=names), out=tmp_path / "r.zarr")
    assert list(tmp_path.iterdir()) == []


def test_predictions_of_filtered_data_with_empty_chunks(blobs):
    model = CNS().fit(blobs)
    array, keep = da.from_array(blobs, chunks=(100, 2)), np.arange(600) > 250
    predicted = model.predict(array[da.from_array(keep, chunks=100)])
    np.testing.assert_array_equal(predicted.compute(), model.labels_[keep])


def test_duplicate_rows_keep_their_labels():
    X = np.random.default_rng(0).integers(0, 3, (300, 3)).astype(float)
    model = CNS().fit(X)
    np.testing.assert_array_equal(model.predict(X), model.labels_)


def test_a_fitted_model_pickles_with_its_temporary_result(blobs):
    model = CNS().fit(blobs)
    data = pickle.dumps(model)
    labels = model.labels_
    folder = Path(model.result_.path)
    del model
    gc.collect()  # zarr leaves reference cycles
    assert not folder.exists()
    np.testing.assert_array_equal(pickle.loads(data).predict(blobs), labels)


def test_a_result_is_kept_where_it_was_asked_for(blobs, tmp_path):
    out = tmp_path / "clusters.zarr"
    model = CNS().fit(blobs, out=out)
    np.testing.assert_array_equal(open_result(out).labels.compute(), model.labels_)
    again = CNS().fit(blobs, out=out)  # at once
    np.testing.assert_array_equal(again.labels_, model.labels_)
    assert again.result_.details["seconds"] == model.result_.details["seconds"]
    with pytest.raises(OutputError, match=r"other data or settings: n_clusters was None, now it is 2"):
        CNS(n_clusters=2).fit(blobs, out=out)
    with pytest.raises(OutputError, match=r"other data or settings: the data hold other values"):
        CNS().fit(blobs + 1e-9, out=out)
    CNS(n_clusters=2).fit(blobs, out=out, overwrite=True)
    assert open_result(out).choice.n_clusters == 2


def test_data_without_structure_may_be_one_cluster():
    X = np.random.default_rng(0).standard_normal((60, 2))
    model = CNS(n_neighbors=(45, 58), lam=(0.2, 0.5)).fit(X)
    assert model.n_clusters_ == 1
    assert (model.labels_ == 0).all()
    np.testing.assert_array_equal(model.memberships_, np.ones((60, 1)))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_neighbors": 600}, r"below the number of rows \(600\)\. Got 600"),
        ({"lam": 1.0}, "lam must be"),
        ({"metric": "l1"}, "metric must be one of"),
        ({"n_clusters": 10**6}, r"at most the number of rows \(600\)"),
    ],
)
def test_bad_parameters_are_refused_at_fit(blobs, tmp_path, parameters, message):
    with pytest.raises(InvalidSettingError, match=message):
        CNS(**parameters).fit(blobs, out=tmp_path / "r.zarr")
    assert list(tmp_path.iterdir()) == []


def test_use_before_fit_and_other_features(blobs):
    with pytest.raises(NotFittedError):
        CNS().predict(blobs)
    model = CNS().fit(blobs)
    with pytest.raises(ValueError, match="4 features, but CNS is expecting 5 features"):
        model.predict(blobs[:, :4])
    with pytest.raises(ValueError, match="4 features, but CNS is expecting 5 features"):
        model.predict(da.from_array(blobs[:, :4]))
    with pytest.raises(InvalidDataError, match="could not convert|numeric"):
        CNS().fit([["a", "b"], ["c", "d"]])
    with pytest.raises(InvalidDataError, match="real numbers"):
        CNS().fit(da.from_array(np.array([["a", "b"], ["c", "d"]])))


def test_verbose_tells_the_stages(blobs, capsys):
    CNS(verbose=True).fit(blobs)
    assert "neighbors: " in capsys.readouterr().err


def test_names_that_others_look_for(blobs):
    """BERTopic asks for `probabilities_`, Toponymy for layers and tree; a model that is not fitted has none."""
    names = ("probabilities_", "cluster_layers_", "cluster_tree_")
    assert not any(hasattr(CNS(), name) for name in names)
    model = CNS().fit(blobs)
    assert all(hasattr(model, name) for name in names)
    np.testing.assert_array_equal(model.probabilities_, model.confidence_)
    assert model.fit(blobs, y=None) is model  # BERTopic calls it so
    lazy = CNS().fit(da.from_array(blobs, chunks=(100, 5)))
    assert isinstance(lazy.probabilities_, da.Array)


def test_progress_is_shown_if_it_is_asked_for(blobs, capsys):
    CNS().fit(blobs)
    assert capsys.readouterr().err == ""
    CNS(verbose=True).fit(blobs)
    assert "evaluate: " in capsys.readouterr().err
