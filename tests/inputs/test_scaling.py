import numpy as np
import pytest
from scipy import sparse

from cns_dask import CNS, neighbor_graph, open_result
from cns_dask.inputs.data import open_data
from cns_dask.inputs.scaling import Scaling, are_components, is_normalized, known_scaling, scaling_of, scaling_sample

RNG = np.random.default_rng(0)


def choose_scaling(X, scale, selection, *, is_sparse=False) -> Scaling:
    """Return the decision of a fit."""
    return known_scaling(scale, selection, is_sparse=is_sparse) or scaling_of(scaling_sample(X).compute())


def components(n_rows=500, n_features=12):
    """Principal components of a table."""
    X = RNG.standard_normal((n_rows, n_features)) @ RNG.standard_normal((n_features, n_features))
    left, lengths, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    return left * lengths


def table(n_rows=500):
    """Correlated features in units of their own."""
    X = RNG.standard_normal((n_rows, 5)) @ RNG.standard_normal((5, 5))
    return X * [1, 1000, 0.01, 5, 20]


def test_principal_components_are_seen():
    X = components()
    assert are_components(X)
    assert not are_components(X[:, ::-1])  # variances rise
    assert not are_components(X / X.std(axis=0))
    assert not are_components(table())
    assert not are_components(RNG.standard_normal((500, 12)))
    assert not are_components(X[:, :2])


def test_rows_of_unit_norm_are_seen():
    X = RNG.standard_normal((50, 4))
    assert is_normalized(X / np.linalg.norm(X, axis=1, keepdims=True))
    assert not is_normalized(X)
    assert not is_normalized(np.ones((5, 1)))


@pytest.mark.parametrize(
    ("X", "selection", "expected", "word"),
    [
        (components(), "auto", False, "principal components"),
        (components(), "paper", True, "the paper does so"),
        (table(), "auto", True, "unit variance"),
        (sparse.random(200, 30, 0.1, random_state=0, format="csr"), "auto", False, "sparse"),
    ],
)
def test_what_is_scaled_by_default(X, selection, expected, word):
    data = open_data(X)
    found = choose_scaling(data.X, "auto", selection, is_sparse=data.is_sparse)
    assert (found.scale, word in found.why) == (expected, True)


@pytest.mark.parametrize("scale", [True, False])
def test_a_setting_is_kept(scale):
    assert choose_scaling(open_data(components()).X, scale, "auto").scale is scale


def test_the_decision_is_stored_and_does_not_depend_on_chunks(tmp_path):
    import dask.array as da

    X = components(9000, 4)  # more rows than are sampled
    whole = CNS().fit(X[:600], out=tmp_path / "a.zarr")
    result = open_result(tmp_path / "a.zarr")
    assert result.settings.scale == "auto"
    assert (result.stored("transform/scale")[:] == 1).all()
    assert result.scaling == "features are not scaled: they are principal components"
    np.testing.assert_array_equal(whole.predict(X[:600]), whole.labels_)
    decisions = {choose_scaling(da.from_array(X, chunks=(rows, 4)), "auto", "auto").scale for rows in (700, 9000)}
    assert decisions == {False}


def test_rows_are_treated_as_those_of_a_given_graph():
    X = components(300, 6)
    scaled = neighbor_graph(X, n_neighbors=20, scale=True)
    assert CNS().fit(X, graph=scaled).result_.settings.scale is True
    with pytest.raises(ValueError, match="The graph was made with scale=True"):
        CNS(scale=False).fit(X, graph=scaled)


def test_rows_with_missing_values_are_left_out_of_the_decision():
    X = components()
    X[3, 2] = np.nan
    assert "principal components" in CNS(missing="skip").fit(X).result_.scaling


def test_sorted_rows_are_sampled_evenly():
    centers = 5 * RNG.standard_normal((10, 12))
    X = centers[np.repeat(np.arange(10), 3000)] + RNG.standard_normal((30_000, 12))
    left, lengths, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    assert not choose_scaling(open_data(left * lengths).X, "auto", "auto").scale


def test_components_that_were_found_in_other_rows_are_seen():
    X = RNG.standard_normal((4000, 20)) @ RNG.standard_normal((20, 20))
    axes = np.linalg.svd(X[:400] - X[:400].mean(axis=0), full_matrices=False)[2]
    assert are_components(X[400:] @ axes.T)


def test_a_graph_treats_rows_as_a_fit_does_by_default():
    X = components(300, 6)
    graph = neighbor_graph(X, n_neighbors=20, scale="auto")
    result = CNS().fit(X, graph=graph).result_
    assert not graph.preprocessing.scale
    np.testing.assert_array_equal(result.graph.indices[:, :20].compute(), CNS().fit(X).result_.graph.indices[:, :20])
