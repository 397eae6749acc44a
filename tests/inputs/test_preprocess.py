import subprocess
import sys

import dask.array as da
import numpy as np
import oracle
import pytest
from scipy import sparse

from cns_dask.errors import InvalidDataError
from cns_dask.inputs.data import open_data
from cns_dask.inputs.preprocess import apply_transform, learn_transform, preprocess_stages, transform_rows


def prepared(X, chunk=50, metric="euclidean", scale=True, max_components=100):
    array = da.from_array(X, chunks=(chunk, -1))
    transform = learn_transform(array, metric=metric, scale=scale, max_components=max_components)
    return apply_transform(array, transform).compute(), transform


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
@pytest.mark.parametrize("scale", [True, False])
def test_rows_equal_the_dense_version(metric, scale):
    X = np.random.default_rng(0).normal(3, [1, 10, 0.1], (120, 3))
    X = np.insert(X, 1, 7.0, axis=1)  # constant
    points, transform = prepared(X, metric=metric, scale=scale)
    np.testing.assert_allclose(points, oracle.prepare(X, metric, scale), atol=1e-12)
    assert transform.kept.tolist() == [0, 2, 3]


@pytest.mark.parametrize("scale", [True, False])
def test_numbers_are_those_of_the_scaler_of_dask_ml(scale):
    from dask_ml.preprocessing import StandardScaler

    rng = np.random.default_rng(0)
    X = da.from_array(rng.normal(5, [1e-3, 1, 1e3], (1000, 3)), chunks=(77, 3))
    scaler = StandardScaler(with_std=scale).fit(X)
    transform = learn_transform(X, metric="euclidean", scale=scale, max_components=100)
    np.testing.assert_array_equal(transform.center, scaler.mean_)
    np.testing.assert_array_equal(transform.scale, scaler.scale_ if scale else np.ones(3))


def test_a_fit_without_principal_axes_does_not_need_dask_ml():
    code = (
        "import sys; sys.modules['dask_ml'] = None\n"
        "from cns_dask import CNS\n"
        "from cns_dask.demo import demo_points\n"
        "assert CNS().fit(demo_points()).n_clusters_ > 1"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize(("n_rows", "n_features"), [(150, 40), (25, 40)])
def test_projection_equals_the_dense_version_up_to_signs(n_rows, n_features):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n_rows, n_features)) @ rng.standard_normal((n_features, n_features))
    points, _ = prepared(X, max_components=10)
    dense = oracle.prepare(X, "euclidean", max_components=10)
    np.testing.assert_allclose(np.abs(points), np.abs(dense), atol=1e-9)


@pytest.mark.parametrize("n_rows", [150, 25])
def test_axes_in_a_subspace_are_the_principal_axes(monkeypatch, n_rows):
    rng = np.random.default_rng(1)
    X = rng.standard_normal((n_rows, 60)) * np.geomspace(100, 1e-3, 60)
    monkeypatch.setattr("cns_dask.inputs.preprocess.FACTOR_BYTES", 60 * 60 * 8 - 1)
    array = da.from_array(X, chunks=(50, -1))
    transform = learn_transform(array, metric="euclidean", scale=False, max_components=10)
    dense = oracle.prepare(X, "euclidean", False, max_components=10)
    np.testing.assert_allclose(np.abs(apply_transform(array, transform)), np.abs(dense), atol=1e-5)
    monkeypatch.setattr("cns_dask.inputs.preprocess.FACTOR_BYTES", 2**30)
    exact = learn_transform(array, metric="euclidean", scale=False, max_components=10)
    assert not np.array_equal(exact.components, transform.components)  # the other way was taken


@pytest.mark.parametrize("scale", [True, False])
def test_sparse_chunks_are_multiplied_as_they_are(monkeypatch, scale):
    monkeypatch.setattr("cns_dask.inputs.preprocess.FACTOR_BYTES", 0)
    fills = []
    monkeypatch.setattr(
        "cns_dask.inputs.arrays.filled_block", lambda block: fills.append(len(fills)) or np.asarray(block.toarray())
    )
    rng = np.random.default_rng(1)
    matrix = sparse.random(600, 130, 0.1, format="csr", rng=rng).multiply(np.geomspace(10, 0.1, 130)).tocsr()
    matrix = (matrix @ sparse.diags((np.arange(130) != 7) * 1.0)).tocsr()  # a constant feature is left out
    data = open_data(matrix)
    options = {"metric": "euclidean", "scale": scale, "max_components": 12}
    dense = learn_transform(data.X, **options)
    n_filled = len(fills)
    ours = learn_transform(data.X, **options, sparse=data.sparse)
    assert len(fills) - n_filled == n_filled - 6 * data.X.numblocks[0]  # four steps, the coordinates and the residual
    np.testing.assert_allclose(np.abs(ours.components), np.abs(dense.components), atol=1e-8)
    assert ours.axes_error == pytest.approx(dense.axes_error)


def test_equal_rows_stay_equal_after_projection():
    rng = np.random.default_rng(2)
    X = np.repeat(rng.standard_normal((40, 30)), 3, axis=0)[rng.permutation(120)]
    points, _ = prepared(X, chunk=17, max_components=5)
    assert len(np.unique(points, axis=0)) == 40


def test_constant_data_become_one_column_of_zeros():
    points, _ = prepared(np.full((10, 3), 4.0))
    np.testing.assert_array_equal(points, np.zeros((10, 1)))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_named_by_row(bad):
    X = np.random.default_rng(3).standard_normal((100, 2))
    X[[13, 77], 1] = bad
    with pytest.raises(InvalidDataError, match=r"There are NaN or infinite values in 2 row\(s\): 13, 77\."):
        prepared(X)
    _, transform = prepared(np.nan_to_num(X, posinf=0, neginf=0))
    with pytest.raises(InvalidDataError, match=r"1 row\(s\): (13|77)"):
        apply_transform(da.from_array(X, chunks=(50, -1)), transform).compute(scheduler="synchronous")


def test_rows_without_direction_are_named():
    X = np.array([[1.0, 2.0], [-1.0, -2.0], [0.0, 0.0], [2.0, 1.0], [-2.0, -1.0]])
    with pytest.raises(InvalidDataError, match=r"\(their norm is 0\): 2\."):
        prepared(X, metric="cosine")
    half = np.random.default_rng(5).standard_normal((50, 3))
    symmetric = np.concatenate([half, -half, np.zeros((1, 3))])  # its computed mean is 0 only up to rounding
    with pytest.raises(InvalidDataError, match=r"\(their norm is 0\): 100\."):
        prepared(symmetric, metric="cosine")


def test_another_number_of_features():
    _, transform = prepared(np.random.default_rng(4).standard_normal((50, 3)))
    with pytest.raises(InvalidDataError, match="The rows have 2 features instead of 3"):
        apply_transform(da.ones((5, 2)), transform)


def test_values_whose_differences_overflow_are_named_by_row():
    _, transform = prepared(np.random.default_rng(6).normal(0, [1e-300, 1], (50, 2)))
    rows = np.ones((3, 2))
    rows[1, 0] = 1e300
    with pytest.raises(InvalidDataError, match=r"overflow double precision in 1 row\(s\): 41\."):
        transform_rows(rows, transform, np.arange(40, 40 + len(rows)))


def test_at_most_five_rows_are_named():
    with pytest.raises(InvalidDataError, match=r"in 9 row\(s\): 0, 1, 2, 3, 4, \.\.\."):
        prepared(np.full((9, 2), np.nan))


def test_stages_count_chunks_and_the_arrays_that_they_read_and_write():
    learn, apply = preprocess_stages(n_rows=1000, n_features=40, n_components=10, rows_per_chunk=300)
    assert (learn.name, learn.n_tasks, learn.n_recorded) == ("preprocess", 4, 0)
    assert (apply.name, apply.n_tasks, apply.n_recorded) == ("points", 4, 4)
    assert apply.array("points").shape == (1000, 10)
    assert apply.moved_bytes == 8 * 1000 * (40 + 10)
    assert apply.task_bytes > preprocess_stages(1000, 40, 40, 300)[1].task_bytes  # axes take memory too
