import dask.array as da
import numpy as np
import pytest

from cns_dask import Settings
from cns_dask.errors import DamagedError, InvalidDataError
from cns_dask.pipeline import fit
from cns_dask.results.predict import predict


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
    from cns_dask.inputs.preprocess import transform_block

    queries = transform_block(new, result.transform)
    nearest = np.argsort(((queries[:, None] - points[None]) ** 2).sum(-1), axis=1)[:, : choice.n_neighbors]
    expected = (1 - choice.lam) * F[nearest].mean(axis=1) + choice.lam / choice.n_clusters
    found = predict(result, new)
    np.testing.assert_allclose(found.memberships.compute(), expected, atol=1e-14)
    np.testing.assert_array_equal(found.labels.compute(), expected.argmax(axis=1))


def test_a_training_row_that_is_no_representative_satisfies_the_equation_itself(result):
    choice, F = result.choice, result.memberships.compute()
    nearest = result.graph.indices[:, : choice.n_neighbors].compute()
    smoothed = (1 - choice.lam) * F[nearest].mean(axis=1) + choice.lam / choice.n_clusters
    others = np.setdiff1d(np.arange(600), result.representatives)
    np.testing.assert_allclose(smoothed[others], F[others], atol=1e-9)


def test_a_damaged_result_is_an_error_and_never_a_label(blobs, tmp_path):
    result = fit(blobs, Settings(), out=tmp_path / "r.zarr")
    (chunk,) = (file for file in (tmp_path / "r.zarr" / "columns" / "c").rglob("*") if file.is_file())
    chunk.unlink()
    with pytest.raises(DamagedError, match="chunk of a result must be there. Got none for columns/c/0/0"):
        predict(result, blobs).labels.compute(scheduler="synchronous")


def test_one_row_and_bad_rows(result, blobs):
    assert predict(result, blobs[:1]).labels.compute().tolist() == result.labels[:1].compute().tolist()
    with pytest.raises(InvalidDataError, match="must have 5 features. Got 4"):
        predict(result, blobs[:, :4])
    bad = np.full((3, 5), np.nan)
    for source in (bad, da.from_array(bad)):
        with pytest.raises(InvalidDataError, match=r"finite\. Got NaN or infinity in 3 row\(s\): 0, 1, 2"):
            predict(result, source).labels.compute()
