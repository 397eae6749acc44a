import anndata
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

from cns_dask import open_data
from cns_dask.errors import InvalidDataError, InvalidSettingError


@pytest.fixture
def cells(blobs):
    found = anndata.AnnData(np.abs(blobs), obs=pd.DataFrame(index=[f"c{row}" for row in range(600)]))
    found.var_names = list("vwxyz")
    found.obsm["X_pca"] = blobs
    found.layers["counts"] = sp.csr_matrix(blobs)
    return found


@pytest.fixture
def path(cells, tmp_path):
    cells.write_h5ad(tmp_path / "x.h5ad")
    return tmp_path / "x.h5ad"


def test_matrices_and_their_names(cells, blobs):
    data = open_data(cells)
    np.testing.assert_array_equal(data.X.compute(), np.abs(blobs))
    assert data.wrap(data.X[:, 0], "first").index.tolist() == cells.obs_names.tolist()
    np.testing.assert_array_equal(open_data(cells, columns=["y", "v"]).X.compute(), np.abs(blobs)[:, [3, 0]])
    np.testing.assert_array_equal(open_data(cells, columns=[3, 0]).X.compute(), np.abs(blobs)[:, [3, 0]])
    assert open_data(cells, component="layers/counts").is_sparse
    np.testing.assert_array_equal(open_data(cells, component="obsm/X_pca", columns=[1]).X.compute(), blobs[:, [1]])


def test_a_table_in_obsm_has_columns_by_name(cells, blobs):
    cells.obsm["scores"] = pd.DataFrame(blobs[:, :2], index=cells.obs_names, columns=["s", "t"])
    np.testing.assert_array_equal(open_data(cells, component="obsm/scores", columns=["t"]).X.compute(), blobs[:, [1]])


@pytest.mark.parametrize("ending", ["h5ad", "zarr"])
@pytest.mark.filterwarnings("ignore::UserWarning")  # of anndata and zarr about formats
def test_a_table_in_obsm_of_a_file_has_columns_by_name(cells, blobs, tmp_path, ending):
    cells.obsm["scores"] = pd.DataFrame(blobs[:, :2], index=cells.obs_names, columns=["s", "t"])
    path = tmp_path / f"t.{ending}"
    getattr(cells, "write_h5ad" if ending == "h5ad" else "write_zarr")(path)
    data = open_data(path, component="obsm/scores")
    np.testing.assert_array_equal(data.X.compute(), blobs[:, :2])
    assert data.files == (str(path),)
    assert data.wrap(data.X[:, 0], "first").index.tolist() == cells.obs_names.tolist()
    np.testing.assert_array_equal(open_data(path, component="obsm/scores", columns=["t"]).X.compute(), blobs[:, [1]])


def test_matrices_on_disk(path, blobs):
    np.testing.assert_array_equal(open_data(path, component="layers/counts").X.compute(), blobs)
    backed = anndata.read_h5ad(path, backed="r")
    np.testing.assert_array_equal(open_data(backed).X.compute(), np.abs(blobs))
    with pytest.raises(InvalidDataError, match="Some observations of a file on disk cannot be read alone"):
        open_data(backed[:100])
    backed.file.close()
    data = open_data(path, columns=["y", "v"])
    np.testing.assert_array_equal(data.X.compute(), np.abs(blobs)[:, [3, 0]])
    assert data.files == (str(path),)


def test_components_that_are_not_there(cells, path, blobs):
    empty = anndata.AnnData(obs=cells.obs, obsm={"X_pca": blobs})
    with pytest.raises(InvalidDataError, match="The AnnData has no matrix X. Choose a component: obsm/X_pca"):
        open_data(empty)
    for source in (cells, path):
        for component in ("obs", "obsm", "X/a"):
            with pytest.raises(InvalidSettingError, match=f"must be X, obsm/KEY or layers/KEY.*Got {component}"):
                open_data(source, component=component)
    with pytest.raises(InvalidSettingError, match="There is no X_umap in obsm. It holds X_pca"):
        open_data(cells, component="obsm/X_umap")
    with pytest.raises(InvalidSettingError, match="x.h5ad has no component obsm/X_umap"):
        open_data(path, component="obsm/X_umap")


def test_names_that_are_not_there_or_not_unique(cells):
    with pytest.raises(InvalidSettingError, match=r"Some of the columns \['v', 'nothing'\] are not names of variables"):
        open_data(cells, columns=["v", "nothing"])
    cells.var_names = list("vvxyz")
    with pytest.raises(InvalidDataError, match="Some variables have the same name"):
        open_data(cells, columns=["v"])


def test_a_file_that_is_something_else(tmp_path):
    (tmp_path / "bad.h5ad").write_bytes(b"no HDF5")
    with pytest.raises(InvalidDataError, match="bad.h5ad is not an AnnData file"):
        open_data(tmp_path / "bad.h5ad")
