"""Whatever comes: a clear error of ours, or a valid result."""

import warnings

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cns_dask import CNS
from cns_dask.errors import CNSError, InvalidDataError
from cns_dask.inputs.missing import row_codes

DTYPES = ["?", "i1", "u1", ">i2", "<i4", "i8", "u8", "f2", ">f4", "f4", "<f8", ">f8", "f16", "c8", "M8[s]", "U2", "O"]
SPECIAL = [0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 1e300, -1e300, 1e-300, 5e-324, 1.7e308, 2.0**53]


@st.composite
def odd_arrays(draw):
    """An array of any type and shape, with few or many equal, huge, tiny, missing or infinite values."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.tuples(st.integers(0, 30), st.integers(0, 4)))
    if dtype.kind in "OUMc":
        values = draw(st.sampled_from([0, 1, 2]))
        return np.full(shape, values).astype(dtype)
    if dtype.kind == "f":
        ordinary = st.floats(-10, 10, width=16)
        odd = st.sampled_from(SPECIAL)
        share = draw(st.sampled_from([0, 1, 4]))
        elements = st.one_of(*([ordinary] * (4 - min(share, 3)) + [odd] * share))
        values = draw(hnp.arrays(np.float64, shape, elements=elements, fill=st.just(1.0)))
        with np.errstate(over="ignore"):
            return values.astype(dtype)
    return draw(hnp.arrays(dtype, shape))


@st.composite
def odd_sources(draw):
    """The same in memory, masked, or lazy in any chunks, some of them empty."""
    X = draw(odd_arrays())
    form = draw(st.sampled_from(["memory", "list", "masked", "dask", "unknown", "fortran"]))
    if form == "list":
        return X.tolist()
    if form == "masked" and X.dtype.kind in "biuf":
        return np.ma.masked_array(X, mask=draw(hnp.arrays(bool, X.shape)))
    if form == "fortran":
        return np.asfortranarray(X)
    if form in {"dask", "unknown"} and len(X):
        cuts = sorted(draw(st.lists(st.integers(0, len(X)), max_size=4)))
        sizes = tuple(np.diff([0, *cuts, len(X)]).tolist())
        lazy = da.from_array(X, chunks=(sizes, -1 if X.shape[1] else (0,)))
        return lazy[da.from_array(np.ones(len(X), bool), chunks=(sizes,))] if form == "unknown" else lazy
    return X


def check(source, parameters):
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with dask.config.set(scheduler="synchronous"):
                model = CNS(**parameters).fit(source)
                found = dask.compute(model.labels_, model.memberships_, model.confidence_)
    except CNSError as error:
        assert str(error)  # noqa: PT017 - any error of ours will do
        return
    labels, memberships, confidence = found
    K = model.n_clusters_
    assert labels.shape == confidence.shape == (len(memberships),)
    kept = labels >= 0
    assert set(labels[~kept]) <= {-2, -3}
    assert kept.sum() >= 2
    assert (labels < K).all()
    assert memberships.shape == (len(labels), K)
    np.testing.assert_allclose(memberships[kept].sum(axis=1), 1, atol=1e-6)
    assert memberships[kept].min() >= -1e-6
    assert np.isnan(memberships[~kept]).all()
    assert np.isfinite(confidence).all()
    assert ((confidence >= 0) & (confidence <= 1)).all()
    if parameters["missing"] == "error":
        assert kept.all()


parameters = st.fixed_dictionaries(
    {
        "missing": st.sampled_from(["error", "skip"]),
        "metric": st.sampled_from(["euclidean", "cosine"]),
        "scale": st.booleans(),
        "max_components": st.sampled_from([1, 2, None]),
        "max_clusters": st.integers(1, 5),
        "selection": st.sampled_from(["auto", "paper", "scales"]),
        "min_cluster_size": st.sampled_from([None, 1, 5]),
    }
)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(odd_sources(), parameters)
def test_an_error_of_ours_or_a_valid_result(source, parameters):
    check(source, parameters)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@settings(max_examples=2000, suppress_health_check=list(HealthCheck))
@given(odd_sources(), parameters)
def test_an_error_of_ours_or_a_valid_result_many_times(source, parameters):
    check(source, parameters)


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_units_do_not_matter(blobs, unit, scale):
    """Columns in extreme units, all of them or one: the clusters are those of ordinary ones."""
    ordinary = CNS(scale=scale).fit(blobs)
    model = CNS(scale=scale).fit(blobs * unit)
    np.testing.assert_array_equal(model.labels_, ordinary.labels_)
    np.testing.assert_array_equal(model.predict(blobs * unit), ordinary.labels_)
    if scale:
        X = blobs.copy()
        X[:, 2] *= unit
        np.testing.assert_array_equal(CNS().fit(X).labels_, CNS().fit(blobs).labels_)


def test_one_huge_outlier_leaves_the_other_columns_to_decide(blobs):
    X = blobs.copy()
    X[17, 1] = 1e300
    model, without = CNS().fit(X), CNS().fit(np.delete(X, 1, axis=1))
    others = np.delete(np.arange(600), 17)
    assert np.isfinite(model.memberships_).all()
    assert model.n_clusters_ == without.n_clusters_
    assert (model.labels_[others] == without.labels_[others]).mean() > 0.99


def test_types_do_not_matter(blobs):
    X = np.round(blobs * 10)
    reference = CNS().fit(X).labels_
    for dtype in ("i2", ">i4", "f2", ">f8", ">f4", "f16"):
        np.testing.assert_array_equal(CNS().fit(X.astype(dtype)).labels_, reference, err_msg=dtype)
    flags = blobs > 0
    np.testing.assert_array_equal(CNS().fit(flags).labels_, CNS().fit(flags.astype(float)).labels_)


def test_duplicates_in_bulk():
    X = np.repeat(np.random.default_rng(0).standard_normal((7, 3)), 150, axis=0)
    model = CNS().fit(X)
    np.testing.assert_array_equal(model.predict(X), model.predict(X[::150]).repeat(150))  # equal rows, equal labels
    assert (model.memberships_ >= -1e-9).all()
    np.testing.assert_allclose(model.memberships_.sum(axis=1), 1)


def test_empty_chunks_and_partitions(blobs):
    reference = CNS().fit(blobs).labels_
    lazy = da.from_array(blobs, chunks=((0, 100, 0, 0, 400, 100, 0), 5))
    np.testing.assert_array_equal(CNS().fit(lazy).labels_.compute(), reference)
    unknown = lazy[da.from_array(np.arange(600) < 550, chunks=(lazy.chunks[0],))]
    np.testing.assert_array_equal(CNS().fit(unknown).labels_.compute(), CNS().fit(blobs[:550]).labels_)


def test_values_that_overflow_are_named():
    with pytest.raises(InvalidDataError, match=r"overflow double precision in 1 row\(s\): 4"):
        CNS().fit(np.array([[1.7e308]] * 4 + [[-1.7e308]]))
    assert row_codes(np.array([[np.inf, np.nan]])).tolist() == [-3]
