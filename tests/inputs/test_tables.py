import dask
import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest
from dask.callbacks import Callback

from cns_dask import CNS, Predictor, assign_clusters, drift, neighbor_graph, open_data
from cns_dask.errors import DataNotFoundError, InvalidDataError, InvalidSettingError

NAMES = list("abcde")


class Counted(Callback):
    """Counts tasks that run."""

    def __init__(self):
        super().__init__(posttask=self._count)
        self.tasks = []

    def _count(self, key, *_):
        self.tasks.append(dask.utils.key_split(key))


def parts(X, n_parts):
    """A table in so many partitions of unknown length, one of them empty, with words as index."""
    cuts = np.array_split(np.arange(len(X)), n_parts - 1)
    cuts.insert(3, np.array([], int))
    meta = pd.DataFrame({**dict.fromkeys(NAMES, pd.Series(dtype=float)), "note": pd.Series(dtype="string")})
    meta.index = pd.Index([], dtype="string", name="id")

    def part(rows):
        frame = pd.DataFrame(X[rows], columns=NAMES).assign(note=pd.array([f"n{row}" for row in rows], "string"))
        frame.index = pd.Index([f"id {row}" for row in rows], dtype="string", name="id")
        return frame

    return dd.from_map(part, cuts, meta=meta)


def test_two_hundred_partitions_of_unknown_length(blobs):
    reference, table = CNS().fit(blobs), parts(blobs, 200)
    with Counted() as counted:
        model = CNS().fit(table, columns=NAMES)
        answers = model.labels_, model.confidence_, model.memberships_
    assert sum(name == "write_blocks" for name in counted.tasks) > 0
    assert [answer.npartitions for answer in answers] == [200] * 3
    lengths = table.map_partitions(len).compute().tolist()
    assert lengths[3] == 0
    assert model.labels_.map_partitions(len).compute().tolist() == lengths
    labels, confidence, memberships = dask.compute(*answers)
    assert labels.index.tolist() == [f"id {row}" for row in range(600)]
    np.testing.assert_array_equal(labels, reference.labels_)
    np.testing.assert_array_equal(confidence, reference.confidence_)
    np.testing.assert_array_equal(memberships, reference.memberships_)
    every = model.result_.to_dataframe(table)
    assert every.npartitions == 200
    assert every.columns.tolist()[:3] == ["cluster", "confidence", "membership_0"]


@pytest.mark.parametrize("source", ["parts", "parquet", "parquet of features"])
def test_answers_are_put_beside_the_table_without_a_shuffle(blobs, tmp_path, source):
    table = parts(blobs, 12)
    if source != "parts":
        table.to_parquet(tmp_path / "x.parquet")
        table = dd.read_parquet(tmp_path / "x.parquet")
    model = CNS(n_neighbors=12, lam=0.1).fit(table, columns=NAMES)
    reference = CNS(n_neighbors=12, lam=0.1).fit(blobs)
    whole = table.assign(cluster=model.labels_, confidence=model.confidence_)
    if source == "parquet of features":  # files are then read together
        whole = whole[["a", "cluster", "confidence"]]
    if source == "parts":
        assert whole.npartitions == 12
    assert not any("shuffle" in str(key).lower() for key in whole.optimize().dask)
    found = whole.compute()
    assert found.index.tolist() == [f"id {row}" for row in range(600)]
    np.testing.assert_array_equal(found["cluster"], reference.labels_)
    np.testing.assert_array_equal(found["confidence"], reference.confidence_)
    np.testing.assert_array_equal(found["a"], blobs[:, 0])
    every = table.merge(model.result_.to_dataframe(table), left_index=True, right_index=True).compute()
    np.testing.assert_array_equal(every.loc[found.index, "cluster"], reference.labels_)


@pytest.mark.parametrize("ask", [
    lambda table: table.partitions[1], lambda table: table.get_partition(2), lambda table: table.partitions[[4, 2]],
])  # fmt: skip
def test_some_partitions_get_their_own_rows(blobs, ask):
    table = dd.from_pandas(pd.DataFrame(blobs, columns=NAMES), npartitions=6)  # of the same size
    model = CNS(n_neighbors=12, lam=0.1).fit(table)
    labels = pd.Series(CNS(n_neighbors=12, lam=0.1).fit(blobs).labels_)
    for found in (ask(model.labels_), ask(table.assign(cluster=model.labels_))["cluster"]):
        some = found.compute()
        assert len(some) > 0
        np.testing.assert_array_equal(some, labels[some.index])


def test_files_that_are_read_together_and_count_their_rows_alike(blobs, tmp_path):
    wide = pd.DataFrame(blobs, columns=NAMES).assign(**{f"more{at}": 0.0 for at in range(40)})
    for number in range(6):
        wide[100 * number : 100 * number + 100].reset_index(drop=True).to_parquet(tmp_path / f"part.{number}.parquet")
    table = dd.read_parquet(tmp_path)[NAMES]
    model = CNS(n_neighbors=12, lam=0.1).fit(table)
    found = table.assign(cluster=model.labels_).compute()
    np.testing.assert_array_equal(found["cluster"], CNS(n_neighbors=12, lam=0.1).fit(blobs).labels_)
    np.testing.assert_array_equal(found[NAMES], blobs)


def test_a_table_of_a_few_columns_of_files_still_gets_its_rows(blobs, tmp_path):
    parts(blobs, 12).to_parquet(tmp_path / "x.parquet")
    table = dd.read_parquet(tmp_path / "x.parquet")[NAMES[:2]]  # of which Dask reads several together
    model = CNS(n_neighbors=12, lam=0.1).fit(table)
    labels = model.labels_.compute()
    assert labels.index.tolist() == [f"id {row}" for row in range(600)]
    np.testing.assert_array_equal(labels, CNS(n_neighbors=12, lam=0.1).fit(blobs[:, :2]).labels_)


def test_a_table_that_has_changed_is_an_error(blobs):
    sizes, state = [200, 200, 200], {"rows": 200}

    def part(number):
        rows = state["rows"] if number == 1 else sizes[number]
        return pd.DataFrame(blobs[200 * number :][:rows], columns=NAMES)

    table = dd.from_map(part, range(3), meta=pd.DataFrame(columns=NAMES, dtype=float))
    model = CNS(n_neighbors=12, lam=0.1).fit(table)
    state["rows"] = 199
    with pytest.raises(InvalidDataError, match="Got 199 other rows"):
        model.labels_.compute(scheduler="synchronous")


def test_lengths_are_counted_once_and_predictions_not_at_all(blobs):
    table = parts(blobs, 20)
    read = []

    def seen(frame):
        read.append(len(frame))
        return frame

    table = table.map_partitions(seen, meta=table._meta)
    model = CNS(n_neighbors=12, lam=0.1).fit(blobs)
    with Counted() as counted:
        data = open_data(table, columns=NAMES)
    assert sum(read) == 600
    assert data.sizes[3] == 0
    with Counted() as counted:
        table_of_features = table[NAMES]
        labels = model.predict(table_of_features.rename(columns=dict(zip(NAMES, range(5), strict=True))))
        memberships = model.predict_proba(table_of_features.to_dask_array())
    assert counted.tasks == []
    assert sum(read) == 600
    assert np.isnan(memberships.shape[0])
    assert labels.npartitions == 20
    np.testing.assert_array_equal(labels.compute(), model.labels_)
    np.testing.assert_array_equal(memberships.compute(), model.memberships_)


def test_partitions_of_parquet_files_stay_although_small_ones_are_read_together(blobs, tmp_path):
    parts(blobs, 9).to_parquet(tmp_path / "x.parquet")
    table = dd.read_parquet(tmp_path / "x.parquet")
    model = CNS(n_neighbors=12, lam=0.1).fit(table, columns=NAMES)
    assert model.labels_.npartitions == table.npartitions == 9
    assert model.labels_.divisions == table.divisions
    pd.testing.assert_index_equal(model.labels_.compute().index, table.compute().index)


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
        with pytest.raises(InvalidDataError, match=f"Every column must hold numbers. Got {named}.*columns="):
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
    with pytest.raises(InvalidDataError, match=r"the 3 features of the fit, in this order: \['a', 'b', 'c'\]. Got 5"):
        chosen.predict(table.to_numpy())
    numbered = pd.DataFrame(blobs)
    by_number = CNS(n_neighbors=12, lam=0.1).fit(numbered, columns=list(np.arange(3)))
    np.testing.assert_array_equal(by_number.predict(numbered), by_number.labels_)


@pytest.mark.parametrize("columns", ["price", [True, False, True, True, True]])
def test_columns_are_a_list_of_names_or_positions(blobs, columns):
    with pytest.raises(InvalidSettingError, match="must be a list of names or positions"):
        open_data(blobs, columns=columns)


def test_neighbours_of_some_columns(blobs):
    table = pd.DataFrame(blobs, columns=NAMES).assign(word="x")
    found = neighbor_graph(table, 5, columns=NAMES[:3]).indices.compute()
    np.testing.assert_array_equal(found, neighbor_graph(blobs[:, :3], 5).indices.compute())


def test_wrong_columns_and_files(tmp_path):
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0]})
    with pytest.raises(InvalidSettingError, match="must be in the table. Got z; it has a, b"):
        open_data(table, columns=["a", "z"])
    with pytest.raises(InvalidDataError, match="different names"):
        open_data(pd.concat([table, table], axis=1))
    with pytest.raises(InvalidDataError, match="at least 1 feature"):
        open_data(table[[]])
    with pytest.raises(InvalidSettingError, match="component must not be given"):
        open_data(table, component="X")
    with pytest.raises(DataNotFoundError, match="must match a file. Got .*\\*.csv"):
        open_data(tmp_path / "*.csv")
    (tmp_path / "x.parquet").write_bytes(b"no such thing")
    with pytest.raises(InvalidDataError, match="read_parquet opens. Got .*x.parquet"):
        open_data(tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_bytes(b"")
    with pytest.raises(InvalidDataError, match="read_csv opens. Got .*x.csv"):
        open_data(tmp_path / "x.csv")


def test_files_are_read_by_the_numbers_in_their_names(tmp_path):
    for number in (2, 10, 1):
        pd.DataFrame({"a": [number, number + 0.5]}).to_csv(tmp_path / f"x{number}.csv", index=False)
    assert open_data(tmp_path / "x*.csv").X.compute().ravel().tolist() == [1, 1.5, 2, 2.5, 10, 10.5]


def test_folders_of_folders_and_names_like_patterns(blobs, tmp_path):
    table = pd.DataFrame(blobs, columns=NAMES)
    for year in (1, 2):
        (tmp_path / "hive" / f"year={year}").mkdir(parents=True)
        table[300 * year - 300 : 300 * year].to_parquet(tmp_path / "hive" / f"year={year}" / "p.parquet")
    np.testing.assert_array_equal(open_data(tmp_path / "hive", columns=NAMES).X.compute(), blobs)
    (tmp_path / "run[1]").mkdir()
    table.to_parquet(tmp_path / "run[1]" / "p.parquet")
    assert open_data(tmp_path / "run[1]" / "p.parquet").X.shape == (600, 5)
    with fsspec.open("memory://bucket/p1.parquet", "wb") as file:
        table.to_parquet(file)
    assert open_data("memory://bucket/*.parquet").X.shape == (600, 5)


def test_results_as_tables_by_row_number_and_by_index(blobs):
    result = CNS(n_neighbors=12, lam=0.1).fit(blobs).result_
    by_row = result.to_dataframe(memberships=False)
    assert by_row.columns.tolist() == ["cluster", "confidence"]
    assert by_row.known_divisions
    assert by_row.compute().index.tolist() == list(range(600))
    index = [f"r{row}" for row in range(600)]
    table = result.to_dataframe(pd.DataFrame(blobs, index=index))
    assert table.index.tolist() == index
    np.testing.assert_array_equal(table.iloc[:, 2:], result.memberships.compute())
    with pytest.raises(InvalidDataError, match="must be those that were clustered: 600 rows. Got 599"):
        result.to_dataframe(pd.DataFrame(blobs[1:]))
