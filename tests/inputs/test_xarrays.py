from functools import partial

import dask.array as da
import numpy as np
import pytest
import xarray as xr

from cns_dask import CNS, open_data
from cns_dask.errors import InvalidDataError, InvalidSettingError
from cns_dask.inputs.xarrays import LabeledForm


@pytest.fixture
def cube(blobs):
    values = blobs.reshape(20, 30, 5).transpose(2, 0, 1)
    coords = {
        "lat": np.linspace(-1, 1, 20),
        "lon": np.arange(30),
        "place": (("lat", "lon"), np.arange(600).reshape(20, 30)),
    }
    return xr.DataArray(values, dims=("time", "lat", "lon"), coords=coords, name="heat")


@pytest.mark.parametrize("lazy", [False, True])
def test_answers_have_the_shape_and_coordinates_of_the_rows(cube, blobs, lazy, tmp_path):
    labels = CNS().fit(blobs).labels_
    cube = cube.chunk({"lat": 6, "lon": 11, "time": 2}) if lazy else cube
    model = CNS().fit(cube, features="time")
    assert model.labels_.dims == ("lat", "lon")
    assert (model.labels_.chunks is not None) == lazy
    xr.testing.assert_equal(model.labels_.coords["place"], cube.coords["place"])
    np.testing.assert_array_equal(model.labels_, labels.reshape(20, 30))
    assert model.memberships_.dims == ("lat", "lon", "cluster")
    np.testing.assert_array_equal(model.predict(cube), labels.reshape(20, 30))
    whole = model.result_.to_xarray(cube)
    assert set(whole) == {"labels", "confidence", "memberships"}
    np.testing.assert_array_equal(whole["labels"], labels.reshape(20, 30))
    if lazy:  # in the chunks of the data: so it can be stored
        assert whole["memberships"].chunks[:2] == whole["labels"].chunks == cube.chunks[1:]
        whole.to_zarr(tmp_path / "map.zarr", consolidated=False)
    assert whole["cluster"].values.tolist() == model.result_.clusters
    assert model.result_.to_xarray()["labels"].dims == ("row",)


def test_masked_places_are_left_out_and_stay_where_they_are(cube):
    sea = cube.isel(time=0) > 1.5
    model = CNS(missing="skip").fit(cube.where(~sea), features="time")
    np.testing.assert_array_equal(model.labels_ == -3, sea)
    np.testing.assert_array_equal(np.isnan(model.memberships_).all("cluster"), sea)
    assert (model.labels_.values[~sea.values] >= 0).all()


def test_variables_are_features(cube, blobs):
    data = xr.Dataset({f"v{at}": cube.isel(time=at) for at in range(5)}).assign(area=("lat", np.arange(20.0)))
    with pytest.raises(InvalidDataError, match=r"must have the same dimensions, and these differ: .*area \('lat',\)"):
        open_data(data)
    names = [f"v{at}" for at in range(5)]
    np.testing.assert_array_equal(open_data(data, columns=names).X.compute(), blobs)
    with pytest.raises(InvalidSettingError, match=r"not variables of the data set: \['w'\]"):
        open_data(data, columns=["v1", "w"])
    with pytest.raises(InvalidSettingError, match="needs one variable"):
        open_data(data, columns=names, features="lat")
    words = data.assign(v1=(("lat", "lon"), np.full((20, 30), "x")))
    with pytest.raises(InvalidDataError, match="Some variables hold no numbers: v1"):
        open_data(words, columns=names)


def test_dimensions_and_labels(cube, blobs):
    with pytest.raises(InvalidSettingError, match="features names the dimension.*time.*lat.*lon.*Got None"):
        open_data(cube)
    with pytest.raises(InvalidSettingError, match="Got 'depth'"):
        open_data(cube, features="depth")
    flat = xr.DataArray(blobs, dims=("row", "gene"), coords={"gene": list("abcde")})
    np.testing.assert_array_equal(open_data(flat, columns=["c", "a"]).X.compute(), blobs[:, [2, 0]])
    with pytest.raises(InvalidSettingError, match="Some columns are not labels of gene"):
        open_data(flat, columns=["z"])
    with pytest.raises(InvalidDataError, match="at least 2 row"):
        open_data(flat[:0])


@pytest.mark.parametrize("name", ["map.nc", "map.zarr"])
def test_stored_data_sets_are_read_lazily(cube, blobs, tmp_path, name):
    data = cube.to_dataset().assign(area=("lat", np.arange(20.0)))
    store = data.to_netcdf if name == "map.nc" else partial(data.to_zarr, consolidated=False)
    store(tmp_path / name)
    opened = open_data(tmp_path / name, columns=["heat"], features="time")
    np.testing.assert_array_equal(opened.X.compute(), blobs)
    assert opened.files == (str(tmp_path / name),)
    assert opened.form.is_lazy
    with pytest.raises(InvalidSettingError, match="needs one variable, not"):
        open_data(tmp_path / name, features="time")


def test_files_that_xarray_does_not_open(tmp_path):
    (tmp_path / "map.nc").write_bytes(b"no such thing")
    with pytest.raises(InvalidDataError, match="xarray cannot open .*map.nc") as told:
        open_data(tmp_path / "map.nc")
    assert "\n" not in str(told.value)


def test_chunks_of_variables_that_are_not_as_declared_are_refused(cube):
    lazy = cube.chunk({"lat": 10}).data.map_blocks(lambda block: block[:, :5], dtype=float, meta=np.empty((0, 0, 0)))
    data = xr.Dataset({"heat": cube.copy(data=lazy), "cold": cube})
    with pytest.raises(InvalidDataError, match=r"A chunk of the data has shape \(5, 5, 30\) instead of \(5, 10, 30\)"):
        open_data(data, columns=["heat"], features="time").X.compute()
    with pytest.raises(InvalidDataError, match=r"A chunk of the data has shape \(5, 5, 30\) instead of \(5, 10, 30\)"):
        open_data(data).X.compute()


def test_one_value_per_cluster_adds_a_dimension():
    form = LabeledForm(("lat", "lon"), (2, 3), {"lon": [7, 8, 9]}, None)
    labels = form.wrap(da.arange(6), "labels", None, None)
    assert labels.sel(lon=8).values.tolist() == [1, 4]
    memberships = form.wrap(da.ones((6, 2)), "memberships", [3, 5], None)
    assert memberships.dims == ("lat", "lon", "cluster")
    assert memberships["cluster"].values.tolist() == [3, 5]
