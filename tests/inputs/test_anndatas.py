import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.neighbors import kneighbors_graph

from cns_dask import CNS, annotate, open_data, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError


@pytest.fixture
def cells(blobs):
    found = anndata.AnnData(np.abs(blobs), obs=pd.DataFrame(index=[f"c{row}" for row in range(600)]))
    found.var_names = list("vwxyz")
    found.obsm["X_pca"] = blobs
    found.layers["counts"] = sp.csr_matrix(blobs)
    return found


def test_clusters_go_where_scverse_looks_for_them(cells, blobs, tmp_path):
    reference = CNS().fit(blobs)
    model = CNS().fit(cells, component="obsm/X_pca", out=tmp_path / "r.zarr")
    assert model.labels_.index.tolist() == cells.obs_names.tolist()
    annotate(cells, model)
    assert cells.obs["cns"].astype(int).tolist() == reference.labels_.tolist()
    np.testing.assert_array_equal(cells.obs["cns_confidence"], reference.confidence_)
    np.testing.assert_array_equal(cells.obsm["cns_memberships"], reference.memberships_)
    walk = cells.obsp["cns_connectivities"]
    np.testing.assert_allclose(walk.sum(axis=1), 1)
    assert (cells.obsp["cns_distances"] > 0).sum() == 600 * (reference.n_neighbors_ - 1)
    assert cells.uns["cns"]["n_clusters"] == reference.n_clusters_
    cells.write_h5ad(tmp_path / "x.h5ad")  # all of it can be stored
    stored = anndata.read_h5ad(tmp_path / "x.h5ad")
    assert stored.obs["cns"].tolist() == cells.obs["cns"].tolist()
    annotate(stored, open_result(tmp_path / "r.zarr"), key="again")
    assert stored.obs["again"].tolist() == cells.obs["cns"].tolist()


def test_cells_that_were_left_out(cells, blobs):
    bad = blobs.copy()
    bad[[3, 70]] = np.nan
    cells.obsm["X_pca"] = bad
    annotate(cells, CNS(missing="skip").fit(cells, component="obsm/X_pca"))
    assert cells.obs["cns"].isna().to_numpy().nonzero()[0].tolist() == [3, 70]
    sums = np.asarray(cells.obsp["cns_connectivities"].sum(axis=1)).ravel()
    assert np.flatnonzero(sums == 0).tolist() == [3, 70]


def test_neighbours_from_obsp(cells, blobs):
    cells.obsp["distances"] = kneighbors_graph(blobs, 40, mode="distance")
    model = CNS(k_multipliers=(1, 2), scale=False).fit(graph=cells.obsp["distances"])
    annotate(cells, model, key="by_graph")
    assert cells.obs["by_graph"].nunique() == model.n_clusters_


def test_matrices_and_their_names(cells, blobs, tmp_path):
    np.testing.assert_array_equal(open_data(cells).X.compute(), np.abs(blobs))
    np.testing.assert_array_equal(open_data(cells, columns=["y", "v"]).X.compute(), np.abs(blobs)[:, [3, 0]])
    assert open_data(cells, component="layers/counts").sparse
    cells.write_h5ad(tmp_path / "x.h5ad")
    np.testing.assert_array_equal(open_data(tmp_path / "x.h5ad", component="layers/counts").X.compute(), blobs)
    backed = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r")
    np.testing.assert_array_equal(open_data(backed).X.compute(), np.abs(blobs))
    with pytest.raises(InvalidDataError, match="must be all of a file"):
        open_data(backed[:100])
    backed.file.close()
    np.testing.assert_array_equal(
        open_data(tmp_path / "x.h5ad", columns=["y", "v"]).X.compute(), np.abs(blobs)[:, [3, 0]]
    )
    empty = anndata.AnnData(obs=cells.obs, obsm={"X_pca": blobs})
    with pytest.raises(InvalidDataError, match="must have a matrix X. Got none. Choose a component: obsm/X_pca"):
        open_data(empty)
    for source in (cells, tmp_path / "x.h5ad"):
        for component in ("obs", "obsm", "X/a"):
            with pytest.raises(InvalidSettingError, match="X, obsm/KEY or layers/KEY"):
                open_data(source, component=component)
        with pytest.raises(InvalidSettingError, match="component must be in .*Got (obsm/)?X_umap"):
            open_data(source, component="obsm/X_umap")
    with pytest.raises(InvalidSettingError, match="names of variables"):
        open_data(cells, columns=["v", "nothing"])
    (tmp_path / "bad.h5ad").write_bytes(b"no HDF5")
    with pytest.raises(InvalidDataError, match="must be an AnnData file"):
        open_data(tmp_path / "bad.h5ad")
    with pytest.raises(InvalidDataError, match="must be those that were clustered \\(600\\). Got 599"):
        annotate(cells[1:].copy(), CNS(n_neighbors=12, lam=0.1).fit(blobs))
