import anndata
import numpy as np
import pandas as pd
import pytest

from cns_dask import CNS
from cns_dask.errors import InvalidSettingError
from cns_dask.inputs.data import open_data
from cns_dask.results.overlap import overlap_of
from cns_dask.results.report.coordinates import GRAPH, plane_of
from cns_dask.smoothing.memberships import Clustering


def plane(result, data=None, coordinates=None):
    shown = Clustering(result.memberships, result.labels, result.confidence)
    return plane_of(result, shown, overlap_of(shown), data, coordinates)


@pytest.fixture(scope="module")
def result(blobs):
    return CNS(n_neighbors=12, lam=0.1).fit(blobs).result_


def test_principal_axes_are_those_of_the_scaled_rows(result, blobs):
    scaled = (blobs - blobs.mean(axis=0)) / result.stored("transform/scale")[:]
    expected = scaled @ np.linalg.svd(scaled, full_matrices=False)[2][:2].T
    xy = plane(result).xy.compute()
    np.testing.assert_allclose(np.abs(xy), np.abs(expected), atol=1e-8)


@pytest.mark.parametrize("width", [1, 2])
def test_one_or_two_features_are_drawn_as_they_are(width, blobs):
    table = pd.DataFrame(1000 + 5 * blobs[:200, :width], columns=["height", "weight"][:width])
    drawn = plane(CNS(n_clusters=2).fit(table).result_)
    np.testing.assert_allclose(drawn.xy.compute()[:, :width], table.to_numpy(), rtol=1e-9)
    assert drawn.axes == ("height", "weight" if width == 2 else "")


def test_rows_that_were_skipped_do_not_shift_the_picture(blobs):
    X = blobs.copy()
    X[::7] = np.nan
    drawn = plane(CNS(n_neighbors=12, lam=0.1, missing="skip").fit(X).result_)
    whole = CNS(n_neighbors=12, lam=0.1).fit(X[~np.isnan(X[:, 0])])
    assert len(drawn.xy) == len(drawn.confidence) == 600 - len(X[::7])
    np.testing.assert_array_equal(drawn.labels.compute(), whole.labels_)
    np.testing.assert_array_equal(drawn.rows.compute(), np.flatnonzero(np.arange(600) % 7))


def test_after_the_fit_of_a_sample_the_data_show_all_rows(blobs):
    X = np.concatenate([blobs, blobs + 0.01, blobs - 0.01])
    X[3] = np.inf
    sampled = CNS(n_neighbors=12, lam=0.1, missing="skip").fit(X, sample=1200).result_
    few, every = plane(sampled), plane(sampled, open_data(X))
    assert few.xy.shape[0] == sampled.n_clustered < every.xy.shape[0] == 1800
    np.testing.assert_allclose(every.xy.compute()[sampled.rows.compute()], few.xy.compute(), atol=1e-9)
    assert np.isnan(every.xy.compute()[3]).all()


def test_the_layout_needs_no_rows_and_draws_rows_beside_their_cluster(result):
    alone = CNS(n_neighbors=12, lam=0.1).fit(graph=result.graph).result_
    drawn = plane(alone)
    xy, labels = drawn.xy.compute(), alone.labels.compute()
    np.testing.assert_array_equal(xy, plane(alone, coordinates=GRAPH).xy.compute())
    clear = alone.confidence.compute() > 0.9
    centers = np.array([xy[clear & (labels == cluster)].mean(axis=0) for cluster in alone.clusters])
    nearest = ((xy[clear][:, None] - centers) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == labels[clear]).mean() > 0.95


def test_coordinates_of_the_caller(result, blobs, tmp_path):
    xy = np.random.default_rng(0).standard_normal((600, 2))
    table = pd.DataFrame(blobs).add_prefix("x").assign(east=xy[:, 0], north=xy[:, 1])
    cells = anndata.AnnData(blobs, obsm={"X_umap": xy})
    np.save(tmp_path / "xy.npy", xy)
    for data, coordinates in (
        (None, xy),
        (None, str(tmp_path / "xy.npy")),
        (table, "east, north"),
        (table, ["east", "north"]),
        (cells, "obsm/X_umap"),
    ):
        np.testing.assert_array_equal(plane(result, data, coordinates).xy.compute(), xy)
    assert plane(result, table, "east,north").axes == ("east", "north")
    for coordinates in ("east,north", "obsm/X_umap"):
        with pytest.raises(InvalidSettingError, match="are part of the data. Give the data too"):
            plane(result, None, coordinates)
