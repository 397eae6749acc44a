import anndata
import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.neighbors import kneighbors_graph

from cns_dask import CNS, annotate, open_result
from cns_dask.errors import InvalidDataError, InvalidSettingError, InvalidTypeError
from cns_dask.storage.arrays import StoredArray


@pytest.fixture
def cells(blobs):
    names = [f"c{row}" for row in range(600)]
    return anndata.AnnData(np.abs(blobs), obs=pd.DataFrame(index=names), obsm={"X_pca": blobs})


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
    itself = cells.obsp["cns_connectivities"].diagonal()  # every row is its own first neighbour
    assert np.flatnonzero(itself == 0).tolist() == [3, 70]


@pytest.fixture
def read_rows(monkeypatch):
    """The number of rows of every reading of the graph."""
    counts, read = [], StoredArray.__getitem__

    def counted(self, selection):
        values = read(self, selection)
        if self.shape[1:] and self._array.path.startswith("graph/"):
            counts.append(len(values))
        return values

    monkeypatch.setattr(StoredArray, "__getitem__", counted)
    return counts


@pytest.mark.parametrize("skipped", [[], [3, 199, 200, 599]])
@pytest.mark.parametrize("kind", ["dask", "backed"])
def test_the_graph_of_lazy_cells_is_not_read_before_it_is_used(cells, blobs, tmp_path, read_rows, kind, skipped):
    rows = blobs.copy()
    rows[skipped] = np.nan
    with dask.config.set({"cns_dask.sizes": {"rows_per_chunk": 200}}):
        model = CNS(missing="skip", n_neighbors=12, lam=0.1).fit(rows, out=tmp_path / "r.zarr")
    annotate(cells, model)
    lazy = anndata.AnnData(da.from_array(np.abs(blobs), chunks=(300, 5)), obs=pd.DataFrame(index=cells.obs_names))
    if kind == "backed":
        lazy.write_h5ad(tmp_path / "x.h5ad")
        lazy = anndata.read_h5ad(tmp_path / "x.h5ad", backed="r+")
    read_rows.clear()
    annotate(lazy, open_result(tmp_path / "r.zarr"))
    assert sum(read_rows) == 0
    assert isinstance(lazy.obsm["cns_memberships"], da.Array)
    pd.testing.assert_frame_equal(lazy.obs, cells.obs)
    lazy.write_h5ad(tmp_path / "y.h5ad")
    assert max(read_rows) <= 200  # chunk by chunk
    stored = anndata.read_h5ad(tmp_path / "y.h5ad")
    for name in ("cns_connectivities", "cns_distances"):
        assert scipy.sparse.issparse(stored.obsp[name])
        assert (stored.obsp[name] != cells.obsp[name]).nnz == 0
    if kind == "backed":
        lazy.file.close()


def test_neighbours_from_obsp(cells, blobs):
    cells.obsp["distances"] = kneighbors_graph(blobs, 40, mode="distance")
    model = CNS(k_multipliers=(1, 2), scale=False).fit(graph=cells.obsp["distances"])
    annotate(cells, model, key="by_graph")
    assert cells.obs["by_graph"].nunique() == model.n_clusters_


def test_other_cells_than_those_that_were_clustered(cells, blobs):
    others = cells[1:].copy()
    with pytest.raises(InvalidDataError, match="has 599 observations, but 600 were clustered"):
        annotate(others, CNS(n_neighbors=12, lam=0.1).fit(blobs))
    assert others.obs.columns.tolist() == []  # nothing was written
    with pytest.raises(InvalidTypeError, match="needs an AnnData object, not ndarray"):
        annotate(blobs, CNS(n_neighbors=12, lam=0.1).fit(blobs))


def test_only_annotated_matrices_are_annotated(blobs):
    model = CNS().fit(blobs)
    for other in (
        blobs,
        da.from_array(blobs),
        dask.delayed(blobs),
        pd.DataFrame(blobs),
        None,
        "x.h5ad",
        anndata.AnnData,
    ):
        with pytest.raises(InvalidTypeError, match="annotate needs an AnnData object, not"):
            annotate(other, model)
    for key in (3, "", "a/b"):
        with pytest.raises(InvalidSettingError, match="key must be a name without a slash"):
            annotate(anndata.AnnData(blobs), model, key=key)
