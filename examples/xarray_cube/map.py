"""Cluster the locations of a time-latitude-longitude cube by their profile over the year, and draw the map.

    python examples/xarray_cube/map.py [--folder cube]

The cube (made up: monthly temperatures of a planet with one ocean) lies in Zarr, in chunks. Its feature dimension is
time; latitude and longitude are stacked to rows, and what was found comes back in their shape, with their coordinates.
Places at sea have no values and are left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.figure import Figure

from cns_dask import CNS

LATITUDES, LONGITUDES, MONTHS = np.linspace(-88, 88, 45), np.linspace(0, 356, 90), np.arange(1, 13)


def made_up_planet(seed: int = 0) -> xr.Dataset:
    """Monthly temperatures (time, lat, lon); NaN at sea."""
    rng = np.random.default_rng(seed)
    lat = xr.DataArray(LATITUDES, coords={"lat": LATITUDES})
    lon = xr.DataArray(LONGITUDES, coords={"lon": LONGITUDES})
    month = xr.DataArray(MONTHS, coords={"time": MONTHS})
    inland = np.cos(np.deg2rad(lon - 200)) + 0.3 * np.sin(np.deg2rad(3 * lon + 2 * lat))  # -1.3, ocean, to 1.3
    season = -np.cos(np.deg2rad(30 * (month - 1))) * np.sign(lat)
    belt = xr.where(abs(lat) < 20, 27.0, xr.where(abs(lat) < 50, 12.0, -14.0))  # climates have borders
    swing = xr.where(abs(lat) < 20, 1.5, xr.where(inland > 0.5, 16.0, 7.0))
    rain = xr.where((abs(lat) < 20) & (inland > 0.4), -6.0, 0.0) * np.sin(np.deg2rad(30 * month)) ** 2
    heat = belt + swing * season + rain
    heat = heat + 1.2 * rng.standard_normal(heat.shape)
    return heat.where(inland > -0.4).transpose("time", "lat", "lon").to_dataset(name="temperature")


def draw(labels: xr.DataArray, cube: xr.DataArray, out: Path) -> None:
    """The map, and the mean profile of every cluster."""
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    land = labels.where(labels >= 0)
    left.pcolormesh(land["lon"], land["lat"], land % 20, cmap="tab20", vmin=0, vmax=19)
    left.set(xlabel="longitude", ylabel="latitude", facecolor="#dde8f0", title="clusters of locations (pale: sea)")
    for number in np.unique(labels.values[labels.values >= 0]):
        profile = cube.where(labels == number).mean(["lat", "lon"])
        right.plot(profile["time"], profile, color=colormaps["tab20"](number % 20), label=str(number))
    right.set(xlabel="month", ylabel="temperature", title="mean profile")
    right.legend(frameon=False, fontsize=7, ncols=3)
    figure.savefig(out, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("cube"))
    folder = parser.parse_args().folder
    folder.mkdir()
    made_up_planet().chunk({"time": 6, "lat": 15, "lon": 30}).to_zarr(folder / "cube.zarr", consolidated=False)

    cube = xr.open_zarr(folder / "cube.zarr", consolidated=False)["temperature"]
    model = CNS(missing="skip").fit(cube, features="time", out=folder / "clusters.zarr")
    found = model.result_.to_xarray(cube)  # labels, confidence and memberships by latitude and longitude, lazy
    found.to_zarr(folder / "map.zarr", consolidated=False)

    labels = found["labels"].compute()
    draw(labels, cube.compute(), folder / "map.png")
    print(
        f"{model.n_clusters_} clusters of {int((labels >= 0).sum())} places on land, {int((labels < 0).sum())} at sea"
    )
    print(f"as a Dataset: {folder / 'map.zarr'}   picture: {folder / 'map.png'}")


if __name__ == "__main__":
    main()
