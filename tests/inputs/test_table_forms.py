"""Answers for tables, beside their index and partition by partition."""

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from tabular import NAMES, Counted, parts

from cns_dask import CNS, open_data
from cns_dask.errors import InvalidDataError
from cns_dask.inputs.table_forms import LazyTable, PartitionIndex, Table, beside, digest_partition, frame_of, in_parts
from cns_dask.smoothing.memberships import Clustering


@pytest.mark.slow
def test_two_hundred_partitions_of_unknown_length(blobs):
    reference, table = CNS().fit(blobs), parts(blobs, 200)
    with Counted() as counted:
        model = CNS().fit(table, columns=NAMES)
        answers = model.labels_, model.confidence_, model.memberships_
    assert counted.tasks.count("digest_partition") == 200  # each is counted once
    assert counted.tasks.count("memberships") > 0
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
    with pytest.raises(InvalidDataError, match="has changed since it was clustered: 199 rows differ"):
        model.labels_.compute(scheduler="synchronous")


def test_partitions_that_are_not_as_declared_are_refused(blobs):
    table = dd.from_pandas(pd.DataFrame(blobs, columns=NAMES), npartitions=3)
    words = table.map_partitions(lambda part: part.assign(b="many"), meta=table._meta)
    with pytest.raises(
        InvalidDataError, match="other values than the numbers that it declares .*string to float: 'many'"
    ):
        open_data(words).X.compute()
    narrow = table.map_partitions(lambda part: part[["a", "b"]], meta=table._meta)
    with pytest.raises(InvalidDataError, match=r"part of the table is not as it declares \(.*Missing: \['c'.*\)\."):
        open_data(narrow)
    seen = []
    changing = table.map_partitions(lambda part: part[: seen.append(part) or len(seen)], meta=table._meta)
    with pytest.raises(InvalidDataError, match="A chunk of the data has shape .* must not change between passes"):
        CNS().fit(changing)


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


def test_partitions_are_recognised_alone_together_and_again():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0, 5.0]}, index=list("vwxyz"))
    cuts = [frame[:2], frame[:0], frame[2:5]]
    index = PartitionIndex(*zip(*map(digest_partition, cuts), strict=True))
    assert [index.rows(cut) for cut in cuts] == [[slice(0, 2)], [], [slice(2, 5)]]
    assert index.rows(frame) == [slice(0, 2), slice(2, 5)]
    assert index.rows(pd.concat([cuts[2], cuts[0]])) == [slice(2, 5), slice(0, 2)]
    for other in (frame[:1], frame[1:3], frame[:2].assign(a=[1.0, 2.5]), frame[:2].set_axis(["v", "u"])):
        with pytest.raises(InvalidDataError, match=f"{len(other)} rows differ"):
            index.rows(other)


def test_equal_partitions_take_the_rows_of_the_first():
    frame = pd.DataFrame({"a": [1.0, 2.0]})
    index = PartitionIndex(*zip(*map(digest_partition, [frame, frame]), strict=True))
    assert index.rows(frame) == [slice(0, 2)]


def test_values_are_cut_where_the_partitions_are():
    values = da.arange(7, chunks=3)
    assert [np.asarray(part).tolist() for part in dask.compute(*in_parts(values, (2, 0, 5)))] == [
        [0, 1],
        [],
        [2, 3, 4, 5, 6],
    ]
    assert [part.tolist() for part in dask.compute(*in_parts(values, None))] == [[0, 1, 2], [3, 4, 5], [6]]
    wide = da.ones((4, 3), chunks=(4, 1))
    assert [np.shape(part) for part in dask.compute(*in_parts(wide, (1, 3, 0)))] == [(1, 3), (3, 3), (0, 3)]


def test_one_value_per_row_is_a_series_and_one_per_cluster_a_frame():
    series = beside(["x", "y"], [1, 2], "cluster")
    pd.testing.assert_series_equal(series, pd.Series([1, 2], index=["x", "y"], name="cluster"))
    frame = beside(["x", "y"], np.eye(2), "unused", [3, 7])
    expected = pd.DataFrame(np.eye(2), index=["x", "y"], columns=["membership_3", "membership_7"])
    pd.testing.assert_frame_equal(frame, expected)


def test_forms_wrap_values_with_the_index_of_their_table():
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0]}, index=list("xyz"))
    expected = pd.Series([10, 20, 30], index=list("xyz"), name="ten")
    values = da.from_array(np.array([10, 20, 30]), chunks=2)
    pd.testing.assert_series_equal(Table(frame.index).wrap(values, "ten", None, None), expected)
    lazy = LazyTable(dd.from_pandas(frame, npartitions=3)).wrap(values, "ten", None, (1, 1, 1))
    assert lazy.npartitions == 3
    pd.testing.assert_series_equal(lazy.compute(), expected, check_index_type=False)
    doubled = LazyTable(dd.from_pandas(frame, npartitions=3), ("a",)).mapped(lambda rows: 2 * rows[:, 0], "two", None)
    assert doubled.compute().tolist() == [2.0, 4.0, 6.0]


def test_rows_of_arrays_are_numbered_where_their_sizes_are_known():
    labels = da.from_array(np.array([1, 0, 1, 1, 0]), chunks=2)
    confidence, memberships = labels / 2, da.stack([labels, 1 - labels], axis=1).rechunk({1: -1})
    frame = frame_of(Clustering(memberships, labels, confidence), [4, 6], None)
    assert frame.divisions == (0, 2, 4, 4)
    computed = frame.compute()
    assert computed.columns.tolist() == ["cluster", "confidence", "membership_4", "membership_6"]
    assert computed.index.name == "row"
    assert computed["membership_6"].to_dict() == {0: 0, 1: 1, 2: 0, 3: 0, 4: 1}
    unknown = Clustering(memberships[labels >= 0], labels[labels >= 0], confidence[labels >= 0])
    table = frame_of(unknown, [4, 6], None, memberships=False)
    assert not table.known_divisions
    assert table.compute()["cluster"].tolist() == [1, 0, 1, 1, 0]
