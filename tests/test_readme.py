"""The README's snippets, run from top to bottom on files as they name them."""

import re
from pathlib import Path

import anndata
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import scipy.sparse
import xarray as xr
import zarr

from cns_dask.demo import demo_points

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def make_files(folder):
    X = demo_points(600, 5)
    np.save(folder / "rows.npy", X)
    zarr.create_array(str(folder / "rows.zarr"), shape=X.shape, chunks=(200, 5), dtype="f8")[...] = X
    group = zarr.create_group(str(folder / "group.zarr"))
    group.create_array("night/rows", shape=X.shape, chunks=(200, 5), dtype="f8")[...] = X
    table = pd.DataFrame(X[:, :3], columns=list("abc"), index=[f"row {row}" for row in range(600)]).assign(
        town="Bergen"
    )
    (folder / "days").mkdir()
    for number in range(3):
        table[200 * number : 200 * number + 200].to_csv(folder / "days" / f"day{number}.csv", index=False)
    later = pd.concat([table, table[:60].assign(a=table["a"][:60] + 0.1)])
    for name, rows in (("night", table), ("tomorrow", later)):
        dd.from_pandas(rows, npartitions=4, sort=False).to_parquet(folder / f"{name}.parquet")
    dims, locations = ("time", "lat", "lon"), {"lat": np.arange(20.0), "lon": np.arange(30.0)}
    cube = xr.Dataset({"heat": (dims, X.T.reshape(5, 20, 30)), "rain": (dims, X.T[::-1].reshape(5, 20, 30))}, locations)
    cube.assign(wind=cube["heat"] + cube["rain"]).chunk({"lat": 7}).to_zarr(folder / "cube.zarr", consolidated=False)
    cells = anndata.AnnData(scipy.sparse.csr_matrix(np.maximum(X, 0)), obsm={"X_pca": X})
    cells.write_h5ad(folder / "cells.h5ad")
    words = scipy.sparse.random(600, 150, 0.1, format="csr", random_state=0)
    scipy.sparse.save_npz(folder / "words.npz", words)
    return table


def test_from_your_data_to_clusters(tmp_path, monkeypatch):
    section = re.search(r"## From your data to clusters\n(.*?)\n## ", README, re.S)[1]
    snippets = re.findall(r"```python\n(.*?)```", section, re.S)
    assert len(snippets) >= 11
    names = {"np": np, "da": da, "dd": dd, "pd": pd, "xr": xr, "anndata": anndata, "scipy": scipy}
    names["table"] = make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    for snippet in snippets:
        exec(compile(snippet, "README.md", "exec"), names)
    assert names["model"].result_.changes.drift.n_rows == 660
    clustered = pd.read_parquet(tmp_path / "clustered.parquet")
    assert clustered.index.tolist() == names["table"].index.tolist()
    assert "cns" in names["cells"].obs
