import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.pipeline import make_pipeline
from tabular import NAMES, Counted, parts

from cns_dask import CNS, Predictor, Settings, assign_clusters, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError, InvalidTypeError, NotAResultError


@pytest.fixture(scope="module")
def model(blobs):
    return CNS().fit(pd.DataFrame(blobs, columns=NAMES), columns=NAMES)


def test_two_more_columns_lazily(model, blobs):
    table = parts(blobs, 12)
    with Counted() as counted:
        found = assign_clusters(table, model)
        fitted = assign_clusters(table, columns=NAMES, names=("own", "sure"))
    assert counted.tasks == []
    assert found.columns.tolist() == [*NAMES, "note", "cluster", "confidence"]
    assert found.npartitions == fitted.npartitions == 12
    found, fitted = dask.compute(found, fitted)
    for labels in (found["cluster"], fitted["own"]):
        np.testing.assert_array_equal(labels, model.labels_)
    np.testing.assert_array_equal(fitted["sure"], model.confidence_)
    assert found.index.tolist() == [f"id {row}" for row in range(600)]
    predicted = table.assign(found=model.predict(table))  # no shuffle: they come from the same partitions
    assert predicted.compute()["note"].tolist() == [f"n{row}" for row in range(600)]
    assert not any("shuffle" in str(key).lower() for key in predicted.optimize().dask)
    np.testing.assert_array_equal(predicted["found"].compute(), model.labels_)


def test_the_fit_of_a_flow_is_kept_where_it_is_asked_for(model, blobs, tmp_path):
    lazy = assign_clusters(parts(blobs, 5), columns=NAMES, out=tmp_path / "r.zarr", settings=Settings())
    assert not (tmp_path / "r.zarr").exists()
    np.testing.assert_array_equal(lazy["cluster"].compute(), model.labels_)
    np.testing.assert_array_equal(open_result(tmp_path / "r.zarr").labels.compute(), model.labels_)
    with Counted() as counted:
        lazy["cluster"].compute()
    assert not any(name in ("search_block", "write_blocks") for name in counted.tasks)  # it is there already


def test_pandas_tables_are_answered_at_once(model, blobs):
    table = pd.DataFrame(blobs, columns=NAMES)
    for found in (assign_clusters(table, model), assign_clusters(table)):
        np.testing.assert_array_equal(found["cluster"], model.labels_)


def test_wrong_flows(model, blobs):
    table = pd.DataFrame(blobs, columns=NAMES)
    with pytest.raises(InvalidTypeError, match="needs a DataFrame, not ndarray"):
        assign_clusters(blobs, model)
    for names in (("a",), ("a", "a"), "ab", ("a", "b", "c")):
        with pytest.raises(InvalidSettingError, match="names must be two different names of columns"):
            assign_clusters(table, model, names=names)
    with pytest.raises(InvalidSettingError, match="settings must be Settings"):
        assign_clusters(table, settings={})
    with pytest.raises(InvalidSettingError, match="table already has columns cluster"):
        assign_clusters(dd.from_pandas(table.assign(cluster=1), npartitions=2), model)
    with pytest.raises(InvalidSettingError, match="not in the table: e"):
        assign_clusters(table[NAMES[:4]], model)
    with pytest.raises(NotAResultError, match="training rows"):
        Predictor(CNS(n_neighbors=5).fit(graph=model.result_.graph))
    with pytest.raises(InvalidDataError, match="rows have 2 features instead of 5"):
        Predictor(model)(blobs[:, :2])


def test_a_predictor_travels_as_a_path(model, blobs, tmp_path):
    big = np.tile(blobs, (20, 1)) + 1e-3 * np.random.default_rng(0).standard_normal((12_000, 5))
    small, large = Predictor(model), Predictor(CNS(n_neighbors=12, lam=0.1).fit(big))
    assert len(pickle.dumps(small)) < 300
    assert len(pickle.dumps(large)) < 300
    again = pickle.loads(pickle.dumps(small))
    assert again is pickle.loads(pickle.dumps(small))  # opened once in a process
    np.testing.assert_array_equal(again(blobs), model.labels_)
    assert again(blobs[:0]).shape == (0,)
    lazy = da.from_array(blobs, chunks=(77, 5)).map_blocks(small, drop_axis=1, dtype=np.int64)
    np.testing.assert_array_equal(lazy.compute(), model.labels_)
    series = parts(blobs, 7).map_partitions(small, meta=("cluster", np.int64))
    np.testing.assert_array_equal(series.compute(), model.labels_)


def test_a_result_that_changed_under_a_predictor_is_an_error(blobs, tmp_path):
    path = tmp_path / "r.zarr"
    carried = pickle.dumps(Predictor(CNS(n_neighbors=12, lam=0.1).fit(blobs, out=path)))
    CNS(n_neighbors=14, lam=0.1).fit(blobs, out=path, overwrite=True)
    with pytest.raises(NotAResultError, match="has changed while it is used"):
        pickle.loads(carried)


@pytest.mark.parametrize("form", ["array", "table"])
def test_last_step_of_a_pipeline(blobs, form):
    from dask_ml.preprocessing import MinMaxScaler, StandardScaler

    X = da.from_array(blobs, chunks=(150, 5))
    X = X if form == "array" else dd.from_dask_array(X, columns=NAMES)
    steps = make_pipeline(StandardScaler(), MinMaxScaler(), CNS(n_neighbors=12, lam=0.1))
    steps.fit(X)
    with Counted() as counted:
        labels = steps.predict(X)
    assert counted.tasks == []
    np.testing.assert_array_equal(labels.compute(), steps[-1].labels_.compute())
    np.testing.assert_array_equal(steps.fit_predict(X).compute(), labels.compute())
    direct = CNS(n_neighbors=12, lam=0.1).fit(make_pipeline(StandardScaler(), MinMaxScaler()).fit_transform(X))
    np.testing.assert_array_equal(direct.labels_.compute(), labels.compute())
