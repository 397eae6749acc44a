import pickle

import dask.array as da
import numpy as np
import pytest

from cns_dask import Predictor, Settings
from cns_dask.errors import DamagedError, InvalidDataError, NotAResultError
from cns_dask.inputs.missing import row_codes
from cns_dask.inputs.preprocess import apply_transform, learn_transform, transform_block
from cns_dask.pipeline import fit
from cns_dask.results.predict import absorption_block, predict, with_fillers


@pytest.fixture(scope="module", params=["euclidean", "cosine", "projected"])
def result(request, blobs):
    if request.param == "projected":
        return fit(blobs, Settings(max_components=3))
    return fit(blobs, Settings(metric=request.param))


@pytest.mark.parametrize("chunk", [600, 50])
def test_training_rows_keep_their_labels_and_memberships(result, blobs, chunk):
    found = predict(result, da.from_array(blobs, chunks=(chunk, 5)))
    np.testing.assert_array_equal(found.labels.compute(), result.labels.compute())
    np.testing.assert_array_equal(found.memberships.compute(), result.memberships.compute())
    np.testing.assert_array_equal(found.confidence.compute(), result.confidence.compute())


def test_equation_of_new_points(result, blobs):
    """f(x) = (1-lam) * mean of F over the k nearest training points + lam/K."""
    new = blobs[:40] + 0.3 * np.random.default_rng(0).standard_normal((40, 5))
    choice, F, points = result.choice, result.memberships.compute(), result.points.compute()
    queries = transform_block(new, result.transform)
    nearest = np.argsort(((queries[:, None] - points[None]) ** 2).sum(-1), axis=1)[:, : choice.n_neighbors]
    expected = (1 - choice.lam) * F[nearest].mean(axis=1) + choice.lam / choice.n_clusters
    found = predict(result, new)
    np.testing.assert_allclose(found.memberships.compute(), expected, atol=1e-14)
    np.testing.assert_array_equal(found.labels.compute(), expected.argmax(axis=1))


def test_a_training_row_that_is_no_representative_satisfies_the_equation_itself(result, blobs):
    result = fit(blobs, Settings(metric=result.settings.metric, selection="scales"))
    choice, F = result.choice, result.memberships.compute()
    nearest = result.graph.indices[:, : choice.n_neighbors].compute()
    smoothed = (1 - choice.lam) * F[nearest].mean(axis=1) + choice.lam / choice.n_clusters
    sources = result.stored("sources")[...]
    assert set(result.representatives) <= set(sources)
    others = np.setdiff1d(np.arange(600), sources)
    np.testing.assert_allclose(smoothed[others], F[others], atol=1e-9)


def test_a_damaged_result_is_an_error_and_never_a_label(blobs, tmp_path):
    result = fit(blobs, Settings(), out=tmp_path / "r.zarr")
    (chunk,) = (file for file in (tmp_path / "r.zarr" / "absorption" / "c").rglob("*") if file.is_file())
    chunk.unlink()
    with pytest.raises(DamagedError, match="The chunk absorption/c/0/0 of a result is missing"):
        predict(result, blobs).labels.compute(scheduler="synchronous")


def test_one_row_and_bad_rows(result, blobs):
    assert predict(result, blobs[:1]).labels.compute().tolist() == result.labels[:1].compute().tolist()
    with pytest.raises(InvalidDataError, match="The rows have 4 features instead of 5"):
        predict(result, blobs[:, :4])
    bad = np.full((3, 5), np.nan)
    for source in (bad, da.from_array(bad)):
        with pytest.raises(InvalidDataError, match=r"There are NaN or infinite values in 3 row\(s\): 0, 1, 2\."):
            predict(result, source).labels.compute()


def test_absorption_of_new_rows_is_the_discounted_mean_of_their_neighbours():
    absorption = np.array([[0.6, 0.0, 9.0], [0.0, 0.4, 9.0], [0.2, 0.2, 9.0]])
    indices, distances = np.array([[0, 1], [2, 0]]), np.array([[0.5, 0.7], [0.0, 0.3]])
    P = absorption_block(indices, distances, absorption, n_clusters=2, lam=0.5)
    np.testing.assert_allclose(P, [[0.15, 0.1], [0.2, 0.2]])  # the second is a training row, and keeps its own
    assert absorption_block(indices[:0], distances[:0], absorption, 2, 0.5).shape == (0, 2)
    with pytest.raises(NotAResultError, match="Part of the stored absorption is missing"):
        absorption_block(indices, distances, np.where(absorption == 0.4, np.nan, absorption), 2, 0.5)


def test_a_predictor_travels_as_a_path_and_notices_another_result(blobs, tmp_path):
    fit(blobs, Settings(n_neighbors=12, lam=0.1), out=tmp_path / "r.zarr")
    old = pickle.dumps(Predictor(tmp_path / "r.zarr"))
    assert len(old) < 1000
    result = fit(blobs, Settings(n_neighbors=20, lam=0.1), out=tmp_path / "r.zarr", overwrite=True)
    new = pickle.dumps(Predictor(tmp_path / "r.zarr"))
    np.testing.assert_array_equal(pickle.loads(new)(blobs), result.labels.compute())
    with pytest.raises(NotAResultError, match="r.zarr has changed while it is used"):
        pickle.loads(old)


def test_rows_that_cannot_be_clustered_are_filled_for_the_search_only(blobs):
    transform = learn_transform(da.from_array(blobs), metric="cosine", scale=True, max_components=100)
    rows = blobs[:3].copy()
    rows[1] = np.nan
    filled = with_fillers(rows, row_codes(rows), transform)
    np.testing.assert_array_equal(filled[[0, 2]], rows[[0, 2]])
    assert np.isfinite(apply_transform(da.from_array(filled), transform)).all()
    assert with_fillers(blobs, row_codes(blobs), transform) is blobs
