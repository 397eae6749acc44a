"""Explanations of clusters whose answer is known, from every form of data."""

import anndata
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
from sklearn.datasets import load_iris, load_wine
from sklearn.metrics import adjusted_rand_score

from cns_dask import CNS, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError

NAMES = [f"x{at}" for at in range(10)]


@pytest.fixture(scope="module")
def two_of_ten():
    """Three clusters that differ in x3 and x7 alone."""
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=600)
    X = rng.standard_normal((600, 10))
    X[:, 3] += np.array([0, 8, 8])[y]
    X[:, 7] += np.array([0, 0, 8])[y]
    return pd.DataFrame(X, columns=NAMES, index=[f"id {row}" for row in range(600)]), y


@pytest.fixture(scope="module")
def result(two_of_ten):
    result = CNS(n_clusters=3, scale=False).fit(two_of_ten[0]).result_
    assert adjusted_rand_score(two_of_ten[1], result.labels.compute()) > 0.95
    return result


def first_features(result, X, n=2, **options):
    """The names of the features that set each cluster apart most."""
    clusters = range(options.get("n_clusters", len(result.clusters)))
    return [[each.name for each in result.explain(K, X, **options).features[:n]] for K in clusters]


def majority(labels, y, K):
    return int(np.bincount(y[labels == K]).argmax())


def test_clusters_that_differ_in_two_of_ten_features(result, two_of_ten):
    table, y = two_of_ten
    labels = result.labels.compute()
    expected = {0: {"x3", "x7"}, 1: {"x3", "x7"}, 2: {"x3", "x7"}}
    for K, names in enumerate(first_features(result, table)):
        assert set(names) == expected[majority(labels, y, K)]
    for K in range(3):
        explanation = result.explain(K, table)
        assert {condition.name for rule in explanation.rules.rules for condition in rule.conditions} <= {"x3", "x7"}
        assert explanation.rules.precision > 0.97
        assert explanation.rules.recall > 0.97


@pytest.mark.filterwarnings("ignore::cns_dask.errors.ChoiceWarning")
def test_iris_is_told_apart_by_its_petals():
    iris = load_iris(as_frame=True).data
    result = CNS().fit(iris).result_
    for K, names in enumerate(first_features(result, iris, n_clusters=2)):
        assert names == ["petal length (cm)", "petal width (cm)"]
        explanation = result.explain(K, iris, n_clusters=2)
        assert (explanation.rules.precision, explanation.rules.recall) == (1, 1)
        assert [condition.name[:5] for condition in explanation.rules.rules[0].conditions] == ["petal"]
    setosa, *_ = [K for K in range(2) if result.profile(iris, n_clusters=2)["size"][K] == 50]
    assert result.explain(setosa, iris, n_clusters=2).features[0].effect < -4


@pytest.mark.filterwarnings("ignore::cns_dask.errors.ChoiceWarning")
def test_wine_is_told_apart_as_its_three_kinds_are():
    wine = load_wine(as_frame=True)
    result = CNS(metric="cosine").fit(wine.data).result_
    labels = result.labels.compute()
    kinds = {majority(labels, wine.target.to_numpy(), K): K for K in range(3)}
    assert len(kinds) == 3
    names = first_features(result, wine.data)
    assert names[kinds[0]][0] == "proline"
    assert set(names[kinds[1]]) == {"alcohol", "color_intensity"}
    assert set(names[kinds[2]]) == {"flavanoids", "od280/od315_of_diluted_wines"}


def penguins(n=400):
    """A table like that of the Palmer penguins: means and standard deviations of its three species."""
    rng = np.random.default_rng(0)
    y = rng.choice(3, n, p=[0.44, 0.2, 0.36])  # Adelie, chinstrap, gentoo
    species = {
        "bill length": ([38.8, 48.8, 47.5], [2.7, 3.3, 3.1]),
        "bill depth": ([18.3, 18.4, 15.0], [1.2, 1.1, 1.0]),
        "flipper length": ([190, 196, 217], [6.5, 7.1, 6.5]),
        "body mass": ([3700, 3733, 5076], [460, 384, 504]),
    }
    columns = {name: rng.normal(np.array(mean)[y], np.array(std)[y]) for name, (mean, std) in species.items()}
    return pd.DataFrame(columns).assign(hatched=rng.integers(1, 365, n)), y


@pytest.mark.filterwarnings("ignore::cns_dask.errors.ChoiceWarning")
def test_penguins_are_told_apart_by_flippers_and_bills_and_never_by_their_birthday():
    table, y = penguins()
    features = list(table.columns[:4])
    result = CNS(n_clusters=3, scale=True).fit(table[features]).result_
    labels = result.labels.compute()
    names = first_features(result, table, 5, columns=[*features, "hatched"])
    for K in range(3):
        assert names[K][-1] == "hatched"
    adelie, gentoo = ([majority(labels, y, K) for K in range(3)].index(kind) for kind in (0, 2))
    assert names[adelie][0] == "bill length"
    assert names[gentoo][0] == "flipper length"


def forms_of(table, folder):
    table.to_parquet(folder / "rows.parquet")
    folders = folder / "parts.parquet"
    dd.from_pandas(table.assign(note="x"), npartitions=5, sort=False).to_parquet(folders)
    X = table.to_numpy()
    array = xr.DataArray(X.reshape(20, 30, 10), dims=("lat", "lon", "band"), coords={"band": NAMES})
    return {
        "pandas": (table, {}),
        "reordered": (table[NAMES[::-1]].assign(note="x"), {}),
        "parquet": (str(folder / "rows.parquet"), {}),
        "parquet in parts": (str(folders), {}),
        "dask dataframe": (dd.from_pandas(table, npartitions=3, sort=False), {}),
        "anndata": (anndata.AnnData(X, obs=pd.DataFrame(index=table.index), var=pd.DataFrame(index=NAMES)), {}),
        "xarray": (array, {"features": "band"}),
        "lazy dataset": (xr.Dataset({name: ("row", X[:, at]) for at, name in enumerate(NAMES)}).chunk({"row": 90}), {}),
        "numpy": (X, {}),
        "dask": (da.from_array(X, chunks=(77, 3)), {}),
        "sparse": (scipy.sparse.csr_matrix(X), {}),
    }


def test_every_form_gives_the_same_profile_and_names(result, two_of_ten, tmp_path):
    table, _ = two_of_ten
    expected = result.profile(table)
    for name, (source, options) in forms_of(table, tmp_path).items():
        found = result.profile(source, **options)
        assert found["feature"].values.tolist() == NAMES, name
        xr.testing.assert_allclose(found, expected)


def test_names_come_from_the_data_where_the_fit_had_none(two_of_ten, result):
    table, _ = two_of_ten
    X = table.to_numpy()
    plain = CNS(n_clusters=3, scale=False).fit(X).result_
    assert plain.profile(X)["feature"].values.tolist()[:2] == ["feature 0", "feature 1"]
    assert plain.profile(table)["feature"].values.tolist() == NAMES
    cells = anndata.AnnData(X, obsm={"X_pca": X[:, :2]}, var=pd.DataFrame(index=NAMES))
    assert plain.profile(cells)["feature"].values.tolist() == NAMES
    some = plain.profile(cells, columns=["x3", "x9"])
    assert some["feature"].values.tolist() == ["x3", "x9"]
    coordinates = plain.profile(cells, component="obsm/X_pca", columns=[0, 1])
    assert coordinates["feature"].values.tolist() == ["X_pca 0", "X_pca 1"]
    assert plain.profile(X, columns=[3, 7])["feature"].values.tolist() == ["feature 3", "feature 7"]


def test_rows_come_back_in_the_form_of_the_data(result, two_of_ten, tmp_path):
    table, _ = two_of_ten
    numbers = result.exemplars(3)
    for name, (source, options) in forms_of(table, tmp_path).items():
        rows = result.exemplars(3, source, **options)
        assert list(rows) == [0, 1, 2]
        values = rows[1]
        if name in ("pandas", "reordered", "parquet", "parquet in parts", "dask dataframe"):
            assert values.index.tolist() == table.index[numbers[1]].tolist(), name
            values = values[NAMES].to_numpy()
        elif name == "anndata":
            assert values.obs_names.tolist() == table.index[numbers[1]].tolist()
            values = values.X
        elif name == "lazy dataset":
            values = np.stack([values[each].values for each in NAMES], axis=1)
        elif name == "xarray":
            assert values["row"].values.tolist() == numbers[1].tolist()
            values = values.transpose("row", "band").values
        np.testing.assert_allclose(values, table.to_numpy()[numbers[1]], err_msg=name)
    assert "note" in result.exemplars(1, forms_of(table, tmp_path)["parquet in parts"][0])[0]


def test_rows_between_two_clusters_come_back_too(result, two_of_ten):
    table, _ = two_of_ten
    K = int(np.argsort(-result.overlap[0] + 2 * np.eye(3)[0])[0])
    numbers = result.between(0, K, n=4)
    assert result.between(0, K, 4, table).index.tolist() == table.index[numbers].tolist()
    assert result.between(K, 0, n=4).tolist() == numbers.tolist()


def test_other_numbers_of_clusters(result, two_of_ten):
    table, _ = two_of_ten
    labels = result.at(2).labels.compute()
    profile = result.profile(table, n_clusters=2)
    np.testing.assert_allclose(profile["mean"], table.groupby(labels).mean())
    assert result.exemplars(2, n_clusters=2).shape == (2, 2)
    assert set(labels[result.exemplars(2, n_clusters=2)[1]]) == {1}


def test_skipped_rows_are_left_out(two_of_ten):
    table = two_of_ten[0].copy()
    table.iloc[::7, 0] = np.nan
    result = CNS(n_clusters=3, scale=False, missing="skip").fit(table).result_
    profile = result.profile(table)
    kept = result.labels.compute() >= 0
    assert kept.sum() == int(profile["size"].sum()) < 600
    means = table[kept].groupby(result.labels.compute()[kept]).mean()
    np.testing.assert_allclose(profile["mean"], means)
    assert kept[result.exemplars(5)].all()
    np.testing.assert_allclose(result.overlap.sum(axis=1), 1)
    assert "86 rows skipped: NaN (label -3)" in repr(result)


def test_a_fit_of_a_sample_tells_about_all_rows():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=4000)
    X = rng.standard_normal((4000, 3)) + 12 * np.eye(3)[y]
    result = CNS().fit(X, sample=1500).result_
    assert int(result.profile(X)["size"].sum()) == 4000
    assert {each.name for each in result.explain(0, X).features[:2]} == {"feature 0", "feature 1"}
    others = result.profile(X, n_clusters=2)
    assert int(others["size"].sum()) == 4000


def test_a_graph_without_rows_is_explained_by_rows_that_are_given_later(blobs):
    given = np.argsort(((blobs[:, None] - blobs[None]) ** 2).sum(axis=2), axis=1)[:, :50]
    result = CNS().fit(None, graph=given).result_
    assert result.profile(blobs)["mean"].shape == (len(result.clusters), 5)
    with pytest.raises(InvalidDataError, match="Only a graph was clustered, so a map needs coordinates, or rows X"):
        result.plot.map()


@pytest.mark.usefixtures("client")
def test_workers_chunks_and_memory_give_the_same_answers(result, two_of_ten):
    table, _ = two_of_ten
    X = table.to_numpy()
    chunked = da.from_array(X, chunks=(101, 4))
    on_workers = result.explain(1, chunked), result.exemplars(4, chunked)[1], result.between(0, 1), result.overlap
    points = result.plot.map(chunked).collections[0].get_offsets()
    with dask.config.set(scheduler="threads"):
        here = result.explain(1, X), result.exemplars(4, X)[1], result.between(0, 1), result.overlap
    assert on_workers[0].rules == here[0].rules
    assert [each.name for each in on_workers[0].features] == [each.name for each in here[0].features]
    for there, local in zip(on_workers[1:], here[1:], strict=True):
        np.testing.assert_allclose(there, local, atol=1e-12)
    np.testing.assert_allclose(points, result.plot.map(X).collections[0].get_offsets(), atol=1e-9)


def test_errors_say_what_is_wrong(result, two_of_ten):
    table, _ = two_of_ten
    with pytest.raises(InvalidDataError, match="The data have 300 rows, but 600 were clustered"):
        result.profile(table[:300])
    with pytest.raises(InvalidSettingError, match="These columns are not in the table: x9"):
        result.profile(table[NAMES[:9]])
    with pytest.raises(InvalidDataError, match="The rows have 9 features, and the fit has 10"):
        result.profile(table.to_numpy()[:, :9])
    for wrong in (3, -1, "0", 1.5, True):
        with pytest.raises(InvalidSettingError, match="There is no cluster .*The clusters are 0, 1, 2"):
            result.explain(wrong, table)
        with pytest.raises(InvalidSettingError, match="There is no cluster .*The clusters are 0, 1, 2"):
            result.between(0, wrong)
    with pytest.raises(InvalidSettingError, match="two different clusters"):
        result.between(1, 1)
    with pytest.raises(InvalidSettingError, match="n must be an integer from 1 to 1000"):
        result.exemplars(0)


def test_an_array_with_another_number_of_features_is_refused(blobs):
    result = CNS().fit(blobs).result_
    with pytest.raises(InvalidDataError, match="The rows have 3 features instead of 5"):
        result.profile(blobs[:, :3])


def test_an_opened_result_explains_too(two_of_ten, tmp_path):
    table, _ = two_of_ten
    CNS(n_clusters=3, scale=False).fit(table, out=tmp_path / "out.zarr")
    opened = open_result(tmp_path / "out.zarr")
    assert opened.explain(2, table) == open_result(tmp_path / "out.zarr").explain(2, table)


def test_all_clusters_at_once(result, two_of_ten):
    everything = result.explain(None, two_of_ten[0])
    assert [each.cluster for each in everything] == result.clusters
    assert everything[1].to_dict() == result.explain(1, two_of_ten[0]).to_dict()
