import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from tabular import NAMES, parts

from cns_dask import CNS, Predictor, assign_clusters, drift, neighbor_graph, open_data
from cns_dask.errors import InvalidDataError, InvalidSettingError, InvalidTypeError
from cns_dask.inputs.tables import categories, is_lazy_table, is_table, open_table, with_columns


@pytest.mark.parametrize(
    ("column", "named"),
    [
        (pd.Series(["x", "y", "z"]), r"bad \("),
        (pd.Series(["x", "y", "z"], dtype="string"), r"bad \(string"),
        (pd.Series(pd.Categorical(["x", "y", "x"])), r"bad \(category"),
        (pd.Series(pd.Categorical([1, 2, 1])), r"bad \(category"),
        (pd.Series(pd.to_datetime(["2026-01-01", "2026-01-02", "2026-01-03"])), r"bad \(datetime64"),
        (pd.Series(pd.to_timedelta([1, 2, 3])), r"bad \(timedelta64"),
        (pd.Series([1j, 2j, 3j]), r"bad \(complex128"),
        (pd.Series([[1], [2], [3]]), r"bad \((object|string)"),
    ],
)
def test_columns_that_are_no_numbers_are_named(column, named):
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0], "bad": column})
    for each in (table, dd.from_pandas(table, npartitions=2)):
        with pytest.raises(InvalidDataError, match=f"Some columns hold no numbers: {named}.*columns="):
            open_data(each)
    assert open_data(table, columns=["a"]).X.shape == (3, 1)


def test_missing_values_of_every_type_are_nan():
    table = pd.DataFrame({
        "nullable": pd.array([1, None, 3], dtype="Int64"), "arrow": pd.array([None, 2, 3], dtype="int64[pyarrow]"),
        "truth": pd.array([True, False, None], dtype="boolean"), "plain": [1, 2, np.nan],
    })  # fmt: skip
    expected = [[1, np.nan, 1, 1], [np.nan, 2, 0, 2], [3, 3, np.nan, np.nan]]
    for each in (table, dd.from_pandas(table, npartitions=1)):
        np.testing.assert_array_equal(open_data(each).X.compute(), expected)


def test_features_are_found_by_their_names(blobs, tmp_path):
    table = pd.DataFrame(blobs * [1, 10, 100, 1, 1], columns=NAMES)
    model = CNS(n_neighbors=12, lam=0.1).fit(table)
    other = table[NAMES[::-1]].assign(word="x")
    np.testing.assert_array_equal(assign_clusters(other, model)["cluster"], model.labels_)
    np.testing.assert_array_equal(Predictor(model)(other), model.labels_)
    assert drift(model, other).n_new == 0
    chosen = CNS(n_neighbors=12, lam=0.1).fit(table, columns=list(pd.Index(NAMES[:3])))
    with pytest.warns(UserWarning, match="does not have valid feature names"):  # scikit-learn's
        np.testing.assert_array_equal(chosen.predict(table.to_numpy()[:, :3]), chosen.labels_)  # just these
    with pytest.raises(InvalidDataError, match=r"have 5 features, and the fit has 3, in this order: \['a', 'b', 'c'\]"):
        chosen.predict(table.to_numpy())
    numbered = pd.DataFrame(blobs)
    by_number = CNS(n_neighbors=12, lam=0.1).fit(numbered, columns=list(np.arange(3)))
    np.testing.assert_array_equal(by_number.predict(numbered), by_number.labels_)


def test_neighbours_of_some_columns(blobs):
    table = pd.DataFrame(blobs, columns=NAMES).assign(word="x")
    found = neighbor_graph(table, 5, columns=NAMES[:3]).indices.compute()
    np.testing.assert_array_equal(found, neighbor_graph(blobs[:, :3], 5).indices.compute())


def test_wrong_columns_and_files(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0]})
    with pytest.raises(InvalidSettingError, match="not in the table: z. It has a, b."):
        open_data(table, columns=["a", "z"])
    with pytest.raises(InvalidDataError, match="Some columns have the same name"):
        open_data(pd.concat([table, table], axis=1))
    with pytest.raises(InvalidDataError, match="at least 1 feature"):
        open_data(table[[]])
    with pytest.raises(InvalidSettingError, match="component has no meaning for a table"):
        open_data(table, component="X")
    (tmp_path / "x.parquet").write_bytes(b"no such thing")
    with pytest.raises(InvalidDataError, match="x.parquet cannot be read as a table by read_parquet"):
        open_data(tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_bytes(b"")
    with pytest.raises(InvalidDataError, match="x.csv cannot be read as a table by read_csv"):
        open_data(tmp_path / "x.csv")


def test_tables_of_pandas_and_of_dask_are_told_from_arrays():
    table = pd.DataFrame({"a": [1.0, 2.0]})
    lazy = dd.from_pandas(table, npartitions=1)
    assert (is_table(table), is_lazy_table(table)) == (True, False)
    assert (is_table(lazy), is_lazy_table(lazy)) == (True, True)
    assert not any(map(is_table, (table["a"], table.to_numpy(), lazy.to_dask_array(), [[1.0]])))


def test_a_series_is_to_come_as_a_table():
    table = pd.DataFrame({"a": [1.0, 2.0, 3.0]})
    for each in (table, dd.from_pandas(table, npartitions=2)):
        with pytest.raises(InvalidTypeError, match=r"Give it as a DataFrame: table\[\['a'\]\], not table\['a'\]"):
            CNS().fit(each["a"])
        assert not is_table(each["a"])
        assert open_data(each[["a"]]).X.shape == (3, 1)


def test_a_lazy_table_is_opened_without_reading_it(blobs):
    data = open_table(parts(blobs, 7), ["c", "a"])
    assert data.names == ("c", "a")
    assert not data.in_memory
    assert data.X.numblocks == (7, 1)
    assert np.isnan(data.X.shape[0])
    np.testing.assert_array_equal(data.X.compute(), blobs[:, [2, 0]])


def test_labels_become_categories_that_are_words():
    found = categories(np.array([7, 2, -3, 7]), [2, 5, 7])
    assert found.categories.tolist() == ["2", "5", "7"]
    assert found.tolist()[:2] == ["7", "2"]
    assert found.isna().tolist() == [False, False, True, False]


def test_new_columns_replace_none():
    table = pd.DataFrame({"a": [1.0, 2.0]}, index=["x", "y"])
    wider = with_columns(table, ("cluster", "sure"), np.array([0, 1]), np.array([0.5, 1.0]))
    assert wider.to_dict("list") == {"a": [1.0, 2.0], "cluster": [0, 1], "sure": [0.5, 1.0]}
    assert table.columns.tolist() == ["a"]
    with pytest.raises(InvalidSettingError, match="already has columns a. Give other names"):
        with_columns(table, ("cluster", "a"), np.array([0, 1]), np.array([0.5, 1.0]))
