"""Wide rows in other chunks than those of the plan."""

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
from generators import mixture

from cns_dask import CNS, neighbor_graph
from cns_dask.inputs.data import open_data
from cns_dask.inputs.spool import needs_spool, spool_stage
from cns_dask.pipeline import fit
from cns_dask.progress import LineProgress
from cns_dask.settings import Settings

SETTINGS = Settings(n_neighbors=6, lam=0.1, max_components=8)


@pytest.fixture(scope="module")
def wide():
    """Four clusters in 120 features (500, 120)."""
    return mixture(500, 120, n_clusters=4, spread=4, seed=2)


@pytest.fixture
def small():
    with dask.config.set({"cns_dask.sizes": {"rows_per_chunk": 90}}):
        yield


def lazy(X, rows):
    return da.from_array(X, chunks=(rows, -1)).map_blocks(np.array, dtype=float, meta=np.empty((0, 0)))


def test_only_wide_lazy_rows_in_other_chunks_are_written_first(wide):
    assert needs_spool(open_data(lazy(wide, 70)), 90)
    assert not needs_spool(open_data(lazy(wide, 90)), 90)
    assert not needs_spool(open_data(wide), 90)
    assert not needs_spool(open_data(lazy(wide[:, :100], 70)), 90)


def test_the_stage_has_an_array_for_every_chunk_of_the_caller(wide):
    stage = spool_stage(lazy(wide, 200), 90)
    assert [array.shape for array in stage.writes] == [(200, 120), (200, 120), (100, 120)]
    assert stage.writes[0].chunks == (90, 120)
    assert stage.n_recorded == 3


@pytest.mark.parametrize("rows", [500, 200, 31])
def test_the_chunks_of_the_caller_do_not_matter(wide, small, rows, tmp_path):
    expected = fit(wide, SETTINGS, out=tmp_path / "r.zarr")
    told = []
    other = fit(lazy(wide, rows), SETTINGS, progress=LineProgress(told.append))
    assert f"input: 0 of {-(-500 // rows)}" in told
    np.testing.assert_array_equal(other.points.compute(), expected.points.compute())
    np.testing.assert_array_equal(other.labels.compute(), expected.labels.compute())
    again = fit(lazy(wide, rows), SETTINGS, out=tmp_path / "r.zarr", progress=LineProgress(told.append))
    assert told[-1].endswith("r.zarr is finished already")
    assert again.path == expected.path


def test_with_skipped_rows_a_previous_fit_and_tables(wide, small):
    X = wide.copy()
    X[::50, 3] = np.nan
    expected = CNS(**SETTINGS.as_dict() | {"missing": "skip"}).fit(X)
    table = pd.DataFrame(X).add_prefix("x")
    other = CNS(**SETTINGS.as_dict() | {"missing": "skip"}).fit(lazy(X, 77), previous=expected)
    np.testing.assert_array_equal(other.labels_.compute(), expected.labels_)
    lazy_table = dask.dataframe.from_pandas(table, npartitions=3)
    np.testing.assert_array_equal(
        CNS(**SETTINGS.as_dict() | {"missing": "skip"}).fit(lazy_table).labels_.compute(), expected.labels_
    )


def test_each_chunk_is_computed_once_for_all_passes(wide, small):
    calls = []

    def counted(block):
        calls.append(len(block))
        return block

    X = da.from_array(wide, chunks=(200, -1)).map_blocks(counted, dtype=float, meta=np.empty((0, 0)))
    fit(X, SETTINGS)
    assert calls == [200, 200, 100] or sorted(calls) == [100, 200, 200]


def test_a_graph_alone(wide, small):
    expected, other = (neighbor_graph(each, 5).indices.compute() for each in (wide, lazy(wide, 130)))
    np.testing.assert_array_equal(other, expected)


def test_chunks_of_the_caller_may_be_empty_or_small(wide, small):
    parts = [wide[:0], wide[:7], wide[7:7], wide[7:400], wide[400:401], wide[401:]]
    X = da.concatenate(
        [
            da.from_array(part, chunks=(-1, -1)).map_blocks(np.array, dtype=float, meta=np.empty((0, 0)))
            for part in parts
        ]
    )
    np.testing.assert_array_equal(fit(X, SETTINGS).points.compute(), fit(wide, SETTINGS).points.compute())
