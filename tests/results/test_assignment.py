"""Fits of a sample: the sampled rows as in a fit of them alone, all others as new rows."""

import anndata
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import xarray as xr
import zarr
from conftest import SMALL_SIZES
from generators import mixture

from cns_dask import CNS, annotate, assign_clusters, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.inputs.missing import OUTSIDE_SAMPLE
from cns_dask.inputs.sampling import Sampling
from cns_dask.pipeline import fit
from cns_dask.results.assignment import assign_stage
from cns_dask.results.predict import predict
from cns_dask.settings import Settings
from cns_dask.sizing import plan_sizes

pytestmark = pytest.mark.filterwarnings("ignore::cns_dask.errors.ChoiceWarning")
ARRAYS = ("labels", "memberships", "confidence", "codes", "rows", "points", "absorption", "graph/indices", "criterion")


@pytest.fixture(autouse=True)
def small_samples(monkeypatch):
    """Small ones are enough here."""
    monkeypatch.setattr("cns_dask.inputs.sampling.LEAST_ROWS", 100)


@pytest.fixture(scope="module")
def rows():
    """Four clusters (1500, 5)."""
    return mixture(1500, 5, n_clusters=4, spread=4, seed=7)


def stored(result, *names):
    return {name: np.asarray(result.stored(name)[...]) for name in names or ARRAYS}


def check_all_rows(result, X, **options):
    """The sampled rows are those of a fit of them alone, and the others are predicted."""
    numbers, others = result.rows.compute(), result.stored("codes")[...] == OUTSIDE_SAMPLE
    dense = X.toarray() if scipy.sparse.issparse(X) else X
    alone = fit(dense[numbers], result.settings, **options)
    for name in ("labels", "memberships", "confidence"):
        np.testing.assert_array_equal(stored(result, name)[name][numbers], getattr(alone, name).compute())
    new = predict(result, dense)
    for name in ("labels", "memberships", "confidence"):
        np.testing.assert_array_equal(stored(result, name)[name][others], getattr(new, name).compute()[others])
    assert others.sum() > len(numbers) / 2
    np.testing.assert_array_equal(result.representatives, numbers[alone.representatives])


@pytest.mark.parametrize(
    "settings",
    [{}, {"metric": "cosine"}, {"method": "cells"}, {"noise": True, "selection": "paper"}],
    ids=lambda settings: "-".join(map(str, settings.values())) or "plain",
)
@pytest.mark.usefixtures("small_chunks")
def test_sampled_rows_are_clustered_alone_and_all_others_predicted(rows, settings):
    check_all_rows(fit(rows, Settings(**settings), sample=500), rows)


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_wide_and_sparse_rows():
    X = np.zeros((700, 130))
    X[:, :5] = mixture(700, 5, n_clusters=3, spread=4, seed=3)
    X[:, 5:] = np.random.default_rng(0).random((700, 125)) < 0.02
    for each in (X, scipy.sparse.csr_matrix(X), da.from_array(X, chunks=(111, 130))):
        result = fit(each, Settings(), sample=300)
        assert result.points.shape[1] == 100
        check_all_rows(result, X)


def test_neither_chunks_nor_workers_nor_the_source_change_anything(rows, client, tmp_path):
    zarr.create_array(str(tmp_path / "x.zarr"), shape=rows.shape, chunks=(200, 5), dtype="f8")[...] = rows
    with dask.config.set({"cns_dask.sizes": SMALL_SIZES}):
        on_workers = stored(fit(tmp_path / "x.zarr", Settings(), sample=0.3, check_sample=True))
        in_memory = stored(fit(rows, Settings(), sample=0.3))
        assert client.status == "running"
        with dask.config.set(scheduler="threads"):
            here = fit(da.from_array(rows, chunks=(333, 5)), Settings(), sample=0.3)
    for name, values in stored(here).items():
        np.testing.assert_array_equal(values, on_workers[name], err_msg=name)
        np.testing.assert_array_equal(values, in_memory[name], err_msg=name)


@pytest.fixture
def with_gaps(rows):
    """Rows with missing and infinite values, and some of each in a sample of 500."""
    X = rows.copy()
    X[10:40, 2] = np.nan
    X[900:910, 0] = np.inf
    return X


@pytest.mark.usefixtures("small_chunks")
def test_rows_with_missing_values_are_skipped_in_and_outside_the_sample(with_gaps):
    result = fit(with_gaps, Settings(missing="skip"), sample=500)
    labels, codes = result.labels.compute(), result.stored("codes")[...]
    assert (labels[10:40] == -3).all()
    assert (labels[900:910] == -2).all()
    assert (np.delete(labels, [*range(10, 40), *range(900, 910)]) >= 0).all()
    assert result.n_skipped == 40
    assert np.isnan(result.memberships[10:40].compute()).all()
    assert result.n_clustered == (codes == 0).sum() < (codes == OUTSIDE_SAMPLE).sum()
    check_all_rows(result, with_gaps)


@pytest.mark.usefixtures("small_chunks")
def test_a_missing_value_anywhere_is_an_error_before_anything_else(with_gaps, tmp_path):
    with pytest.raises(InvalidDataError, match=r"in 40 row\(s\): 10, 11, 12, 13, 14, \.\.\."):
        fit(with_gaps, Settings(), sample=500, out=tmp_path / "r.zarr")
    assert not list(tmp_path.iterdir())


def test_tables_get_labels_with_their_index(rows, tmp_path):
    frame = pd.DataFrame(rows, columns=list("abcde"), index=[f"r{at:04}" for at in range(len(rows))])
    expected = CNS().fit(rows, sample=500).labels_
    labels = CNS().fit(frame, sample=500).labels_
    assert labels.index.equals(frame.index)
    np.testing.assert_array_equal(labels, expected)
    frame.to_parquet(tmp_path / "x.parquet")
    for lazy in (dd.from_pandas(frame, npartitions=4), tmp_path / "x.parquet"):
        model = CNS().fit(lazy, sample=500)
        table = model.result_.to_dataframe(lazy).compute()
        assert list(table.index) == list(frame.index)
        np.testing.assert_array_equal(table["cluster"], expected)
    for each in (frame, dd.from_pandas(frame, npartitions=4)):
        np.testing.assert_array_equal(dask.compute(assign_clusters(each, sample=500))[0]["cluster"], expected)


def test_other_forms_of_data_get_answers_for_all_rows(rows):
    expected = CNS().fit(rows, sample=500).labels_
    cube = xr.DataArray(rows.reshape(30, 50, 5), dims=("y", "x", "feature"), coords={"y": np.arange(30.0)})
    model = CNS().fit(cube, features="feature", sample=500)
    np.testing.assert_array_equal(model.labels_.values.ravel(), expected)
    assert model.result_.to_xarray(cube, features="feature")["labels"].dims == ("y", "x")
    cells = anndata.AnnData(rows)
    annotate(cells, CNS().fit(cells, sample=500))
    np.testing.assert_array_equal(cells.obs["cns"].astype(int), expected)
    connected = np.asarray(cells.obsp["cns_connectivities"].sum(axis=1)).ravel()
    assert (connected > 0).sum() == model.result_.n_clustered


def test_rows_without_a_direction_are_named_wherever_they_are(rows):
    X, settings = rows.copy(), Settings(metric="cosine")
    at = int(np.flatnonzero(~Sampling(500, 1500, 0).sample.marks(0, 1500))[7])
    X[at] = fit(rows, settings, sample=500).transform.center
    with pytest.raises(InvalidDataError, match=rf"these rows have none \(their norm is 0\): {at}"):
        fit(X, settings, sample=500)


def test_other_numbers_of_clusters_of_a_sample(rows):
    result = fit(rows, Settings(), sample=500)
    alone = result.at(n_clusters=2)
    in_sample = result.stored("codes")[...] == 0
    labels = alone.labels.compute()
    assert ((labels == OUTSIDE_SAMPLE) == ~in_sample).all()
    assert (np.isnan(alone.memberships.compute()).any(axis=1) == ~in_sample).all()
    whole = result.at(n_clusters=2, data=rows)
    np.testing.assert_array_equal(whole.labels.compute()[in_sample], labels[in_sample])
    other = fit(rows, Settings(n_clusters=2), sample=500)
    np.testing.assert_array_equal(whole.labels.compute(), other.labels.compute())
    np.testing.assert_allclose(whole.memberships.compute(), other.memberships.compute(), atol=1e-8)
    same = result.at(n_clusters=result.choice.n_clusters)
    np.testing.assert_array_equal(same.labels.compute(), result.labels.compute())
    with pytest.raises(InvalidDataError, match="The data have 10 rows, but 1500 were clustered"):
        result.at(n_clusters=2, data=rows[:10])


def test_layers_and_trees_count_rows_of_the_sample(rows):
    result = fit(rows, Settings(), sample=500)
    layers = result.layers()
    assert {int(layer.sizes.sum()) for layer in layers} == {result.n_clustered}
    assert (len(layers), 0) in result.tree
    assert result.sizes().sum() == 1500


def test_a_second_sample_tells_how_well_the_first_speaks_for_all(rows, tmp_path):
    settings = Settings(n_clusters=4)
    result = fit(rows, settings, sample=500, check_sample=True, out=tmp_path / "r.zarr")
    agreement = open_result(tmp_path / "r.zarr").sample.agreement
    assert agreement == result.sample.agreement
    second = Sampling(500, 1500, 0).second.count(slice(0, 1500))
    assert agreement.n_rows == 1500 - result.n_clustered - second
    assert agreement.rand > 0.7
    assert agreement.same > 0.8
    assert "A second sample gave" in repr(result)
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"]
    assert sorted(path.name for path in (tmp_path / "r.zarr").iterdir()) == sorted(
        [*{name.split("/")[0] for name in (*ARRAYS, "transform", "zarr.json")}, *REST]
    )
    unchecked = fit(rows, settings, sample=500)
    assert "check_sample=True" in repr(unchecked)
    np.testing.assert_array_equal(unchecked.labels.compute(), result.labels.compute())


#: The small arrays of a result.
REST = (
    "candidate_clusters", "candidates", "cluster", "communities", "community_clusters", "criterion_parts",
    "evidence", "evidence_with_borders", "k", "lam",
    "n_clusters", "picks", "rates", "representatives", "scale", "smallest", "source_clusters", "sources",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
def test_numbers_of_a_previous_fit_are_kept():
    rows = mixture(1500, 5, n_clusters=4, spread=12, seed=1)
    first = CNS().fit(rows, sample=500)
    order = np.random.default_rng(0).permutation(len(rows))
    for previous in (first, CNS().fit(rows)):
        again = CNS(random_state=5).fit(rows[order], sample=600, previous=previous)
        assert np.mean(again.labels_ == previous.labels_[order]) > 0.9
        assert again.result_.changes.kept > 0.9
    whole = CNS().fit(rows, previous=first)
    assert np.mean(whole.labels_ == first.labels_) > 0.9


def test_a_fit_of_a_sample_is_other_work_than_that_of_all_rows(rows, tmp_path):
    out = tmp_path / "r.zarr"
    fit(rows, Settings(), sample=500, out=out)
    assert fit(rows, Settings(), sample=500, out=out).n_clustered < 1500
    for other in ({}, {"sample": 600}, {"sample": 500, "check_sample": True}):
        with pytest.raises(OSError, match="other data or settings: sample was"):
            fit(rows, Settings(), out=out, **other)


def test_samples_of_what_has_no_rows_to_draw_are_refused(rows):
    graph = (np.arange(1500)[:, None] + np.arange(1, 9)) % 1500
    for source in (None, rows):
        with pytest.raises(InvalidSettingError, match="Only rows can be sampled"):
            fit(source, Settings(n_neighbors=4), graph=graph, sample=500)
    with pytest.raises(InvalidSettingError, match="cannot be sampled. Leave sample or within out"):
        fit(rows, Settings(), within=(fit(rows, Settings()), 0), sample=500)


def test_a_sample_of_all_rows_is_an_ordinary_fit(rows):
    result = fit(rows, Settings(), sample=1.0)
    assert result.sample is None
    assert result.n_clustered == 1500


def test_the_plan_of_the_assignment_grows_with_the_rows_in_disk_and_not_in_memory():
    sizes, _ = plan_sizes(10**6, 16, Settings())
    few, many = (assign_stage((n, 16), 50_000, sizes, 30) for n in (10**7, 10**9))
    assert few.task_bytes == many.task_bytes
    assert many.n_tasks == 100 * few.n_tasks
    assert many.array("memberships").shape == (10**9, 30)
