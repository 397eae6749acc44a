import json

import anndata
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray
import zarr

from cns_dask import CNS, Predictor, Result, Settings, annotate, assign_clusters, drift, open_data, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotAResultError
from cns_dask.pipeline import fit
from cns_dask.smoothing.memberships import clustering_block


@pytest.fixture(scope="module")
def path(blobs, tmp_path_factory):
    out = tmp_path_factory.mktemp("result") / "blobs.zarr"
    fit(blobs, Settings(metric="cosine"), out=out)
    return out


def test_xarray_opens_the_group_with_dimensions_and_coordinates(path):
    with xarray.open_zarr(path, consolidated=False) as opened:
        assert opened.labels.dims == ("row",)
        assert opened.memberships.dims == ("row", "cluster")
        assert opened.criterion.dims == ("k", "lam", "n_clusters")
        assert set(opened.coords) == {"cluster", "k", "lam", "n_clusters", "scale"}
        assert opened.evidence.dims == ("k", "scale")
        best = opened.criterion.compute().stack(cell=("k", "lam", "n_clusters")).idxmax("cell").item()
        paper = opened.attrs["selection"]["paper"]
        assert best == (paper["n_neighbors"], paper["lam"], paper["n_clusters"])
        assert opened.attrs["choice"] == opened.attrs["selection"]["used"]
        assert opened.attrs["choice"]["n_clusters"] == opened.sizes["cluster"]
        np.testing.assert_array_equal(opened.labels.values, opened.memberships.argmax("cluster").values)
    with xarray.open_zarr(path, group="graph", consolidated=False) as graph:
        assert graph.indices.dims == ("row", "neighbor")


def test_open_result_gives_lazy_rows_and_all_that_was_found(path, blobs):
    result = open_result(path)
    for array in (result.labels, result.memberships, result.confidence, result.points, result.graph.indices):
        assert isinstance(array, da.Array)
        assert array.shape[0] == 600
    assert result.settings == Settings(metric="cosine")
    assert result.criterion.shape == (4, 5, 30)
    assert result.grid == result.settings.grid(600)
    assert result.sizes().sum() == 600
    assert result.labels[result.representatives].compute().tolist() == list(range(result.choice.n_clusters))
    assert result.best_by_n_clusters()[0].value == result.selection.paper.value
    assert result.selection.used == result.choice
    assert result.stored("absorption").shape == (600, result.choice.n_clusters)
    assert result.evidence.values.shape == result.evidence.with_borders.shape == (4, 50)
    assert result.evidence.structure == result.selection.structure
    assert f"{result.choice.n_clusters} clusters" in repr(result)
    assert result.verdict.sentence in repr(result)
    assert set(result.details) >= {"settings", "choice", "largest_residual", "versions", "seconds", "n_candidates"}
    assert result.largest_residual <= 1e-9


def test_any_other_number_of_clusters_needs_no_new_fit(path, blobs):
    result = open_result(path)
    choice = result.choice
    for K in (1, 2, choice.n_clusters, 7):
        view = result.at(n_clusters=K)
        fixed = fit(blobs, Settings(metric="cosine", n_clusters=K))
        assert (fixed.choice.n_neighbors, fixed.choice.lam) == (
            result.choice_at(K).n_neighbors,
            result.choice_at(K).lam,
        )
        np.testing.assert_array_equal(view.labels.compute(), fixed.labels.compute())
        np.testing.assert_allclose(view.memberships.compute(), fixed.memberships.compute(), atol=1e-9)
        np.testing.assert_allclose(view.confidence.compute(), fixed.confidence.compute(), atol=1e-5)
    same = result.at(n_clusters=choice.n_clusters)
    np.testing.assert_array_equal(same.memberships.compute(), result.memberships.compute())
    for K in (0, 51, 2.5):
        with pytest.raises(InvalidSettingError, match=rf"n_clusters must be an integer from 1 to \d+\. Got {K}"):
            result.at(n_clusters=K)


USES = {
    "open_result": lambda rows, model: open_result(model),
    "Predictor": lambda rows, model: Predictor(model),
    "drift": lambda rows, model: drift(model, rows),
    "previous": lambda rows, model: CNS().fit(rows, previous=model),
    "within": lambda rows, model: CNS().fit(rows, within=(model, 0)),
    "annotate": lambda rows, model: annotate(anndata.AnnData(rows), model),
    "assign_clusters": lambda rows, model: assign_clusters(pd.DataFrame(rows), model),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("model", [CNS(), 3, b"x", ()], ids=["unfitted", "number", "bytes", "tuple"])
def test_what_is_no_result_is_refused_wherever_one_is_needed(use, model, blobs):
    with pytest.raises(NotAResultError, match="A fitted CNS, a Result, or the path or URL of one is needed, not a"):
        USES[use](blobs, model)


def test_a_model_and_a_result_are_opened_as_they_are(blobs):
    model = CNS(n_neighbors=12, lam=0.1).fit(blobs)
    assert open_result(model) is open_result(model.result_) is model.result_
    with pytest.raises(NotAResultError, match="not a NoneType"):
        open_result(None)
    with pytest.raises(NotAResultError, match="not a CNS that is not fitted"):
        open_result(CNS())


def test_the_store_holds_data_only(path):
    group = zarr.open_group(str(path), mode="r")
    assert "scratch" not in group
    assert all(array.dtype.kind in "if" for _, array in group.arrays())
    json.dumps(group.attrs.asdict(), allow_nan=False)
    files = [file for file in path.rglob("*") if file.is_file()]
    assert all(file.name == "zarr.json" or "c" in file.relative_to(path).parts for file in files)


def test_stored_absorption_gives_the_stored_memberships(path):
    result = open_result(path)
    block = clustering_block(result.stored("absorption")[:, : result.choice.n_clusters])
    np.testing.assert_array_equal(block.labels, result.labels.compute())
    assert isinstance(result, Result)


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
    with pytest.raises(InvalidDataError, match="The data have 599 rows, but 600 were clustered"):
        result.to_dataframe(pd.DataFrame(blobs[1:]))


def test_answers_are_wrapped_in_the_form_of_the_data(path, blobs):
    result = open_result(path)
    table = pd.DataFrame(blobs, index=[f"r{row}" for row in range(600)])
    labels = result.wrapped(open_data(table), "labels", "group")
    pd.testing.assert_series_equal(labels, pd.Series(result.labels.compute(), index=table.index, name="group"))
    memberships = result.wrapped(open_data(table), "memberships", "unused")
    assert memberships.columns.tolist() == [f"membership_{number}" for number in result.clusters]
    assert isinstance(result.wrapped(open_data(da.from_array(blobs)), "labels", "group"), da.Array)
