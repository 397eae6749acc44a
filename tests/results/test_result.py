import json

import dask.array as da
import numpy as np
import pytest
import xarray
import zarr

from cns_dask import Result, Settings, open_result
from cns_dask.errors import InvalidSettingError
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
        assert set(opened.coords) == {"cluster", "k", "lam", "n_clusters"}
        best = opened.criterion.compute().stack(cell=("k", "lam", "n_clusters")).idxmax("cell").item()
        choice = opened.attrs["choice"]
        assert best == (choice["n_neighbors"], choice["lam"], choice["n_clusters"])
        assert choice["n_clusters"] == opened.sizes["cluster"]
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
    assert result.best_by_n_clusters()[0].value == result.choice.value
    assert f"{result.choice.n_clusters} clusters" in repr(result)
    assert set(result.details) >= {"settings", "choice", "largest_residual", "versions", "seconds", "n_candidates"}
    assert result.largest_residual <= 1e-9


def test_any_other_number_of_clusters_needs_no_new_fit(path, blobs):
    result = open_result(path)
    choice = result.choice
    for K in (1, 2, choice.n_clusters, result.stored("columns").shape[1]):
        view = result.at(n_clusters=K)
        fixed = fit(blobs, Settings(metric="cosine", n_neighbors=choice.n_neighbors, lam=choice.lam, n_clusters=K))
        np.testing.assert_array_equal(view.labels.compute(), fixed.labels.compute())
        np.testing.assert_allclose(view.memberships.compute(), fixed.memberships.compute(), atol=1e-9)
        np.testing.assert_allclose(view.confidence.compute(), fixed.confidence.compute(), atol=1e-5)
    same = result.at(n_clusters=choice.n_clusters)
    np.testing.assert_array_equal(same.memberships.compute(), result.memberships.compute())
    for K in (0, result.stored("columns").shape[1] + 1, 2.5):
        with pytest.raises(InvalidSettingError, match=rf"n_clusters must be an integer from 1 to \d+\. Got {K}"):
            result.at(n_clusters=K)


def test_the_store_holds_data_only(path):
    group = zarr.open_group(str(path), mode="r")
    assert "scratch" not in group
    assert all(array.dtype.kind in "if" for _, array in group.arrays())
    json.dumps(group.attrs.asdict(), allow_nan=False)
    files = [file for file in path.rglob("*") if file.is_file()]
    assert all(file.name == "zarr.json" or "c" in file.relative_to(path).parts for file in files)


def test_stored_columns_give_the_stored_memberships(path):
    result = open_result(path)
    block = clustering_block(result.stored("columns")[:, : result.choice.n_clusters])
    np.testing.assert_array_equal(block.labels, result.labels.compute())
    assert isinstance(result, Result)
