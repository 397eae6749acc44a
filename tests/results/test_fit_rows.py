"""The data of a fit, given again."""

import numpy as np
import pandas as pd
import pytest

from cns_dask import CNS
from cns_dask.errors import InvalidDataError
from cns_dask.results.fit_rows import any_rows, same_features, same_rows


@pytest.fixture(scope="module")
def table(blobs):
    return pd.DataFrame(blobs, columns=list("abcde"))


def test_columns_of_the_fit_are_found_by_name(table):
    result = CNS().fit(table, columns=["b", "d"]).result_
    data, names = same_features(result, table[["e", "d", "a", "b"]].assign(note="x"), {})
    assert names == ("b", "d")
    np.testing.assert_array_equal(data.X.compute(), table[["b", "d"]])
    data, names = same_features(result, table, {"columns": ["a"]})
    assert names == ("a",)
    assert data.X.shape == (600, 1)


def test_positions_of_an_array_keep_their_numbers(blobs):
    result = CNS().fit(blobs, columns=[4, 1]).result_
    assert same_features(result, blobs, {})[1] == ("feature 4", "feature 1")


def test_words_in_a_table_are_not_in_the_way_of_its_rows(blobs, table):
    result = CNS().fit(blobs).result_
    assert any_rows(result, table.assign(note="x"), {}).X.shape == (600, 5)
    assert result.exemplars(2, table.assign(note="x"))[0]["note"].tolist() == ["x", "x"]


def test_other_rows_are_refused(table):
    result = CNS().fit(table).result_
    with pytest.raises(InvalidDataError, match="The data have 599 rows, but 600 were clustered"):
        same_rows(result, table[1:], {})
