"""Plots: what they draw, on whose axes, and with which names."""

import dask.array as da
import numpy as np
import pandas as pd
import pytest

from cns_dask import CNS
from cns_dask.errors import CNSError, InvalidDataError
from cns_dask.results.colors import cluster_colors

mpl = pytest.importorskip("matplotlib")
mpl.use("Agg")
plt = pytest.importorskip("matplotlib.pyplot")


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=300)
    X = rng.standard_normal((300, 3)) + 9 * np.eye(3)[y]
    return pd.DataFrame(X, columns=["$x^{", "<b>width</b>", "a name that is so long that it has to be cut somewhere"])


@pytest.fixture(scope="module")
def result(table):
    return CNS().fit(table).result_


@pytest.fixture(autouse=True)
def no_figures_are_left():
    yield
    plt.close("all")


def drawn(axes):
    """The axes, after everything was really drawn."""
    axes.figure.canvas.draw()
    return axes


def test_each_plot_returns_axes_and_draws_where_it_is_told(result, table):
    calls = {
        "map": lambda **where: result.plot.map(table, **where),
        "criterion": result.plot.criterion,
        "scales": result.plot.scales,
        "profile": lambda **where: result.plot.profile(table, **where),
        "overlap": result.plot.overlap,
    }
    for call in calls.values():
        assert isinstance(drawn(call()), mpl.axes.Axes)
        _, given = plt.subplots()
        assert drawn(call(ax=given)) is given
        assert given.get_title()
        assert given.get_xlabel()


def test_a_map_shows_rows_in_the_colors_of_their_clusters(result, table):
    axes = drawn(result.plot.map(table))
    (points,) = axes.collections
    assert len(points.get_offsets()) == 300
    labels = result.labels.compute()
    colors = [mpl.colors.to_hex(color) for color in points.get_facecolors()[:, :3]]
    assert colors == [cluster_colors(3)[label] for label in labels]
    np.testing.assert_allclose(points.get_facecolors()[:, 3], 0.2 + 0.8 * result.confidence.compute(), atol=1e-6)
    assert sorted(text.get_text() for text in axes.texts) == ["0", "1", "2"]
    for text in axes.texts:  # names are written on rows of their clusters
        row = int(np.linalg.norm(points.get_offsets() - np.array(text.xy), axis=1).argmin())
        assert labels[row] == int(text.get_text())


def test_a_map_takes_coordinates_and_draws_some_rows(result, table):
    some = result.plot.map(table, n_rows=100)
    assert 60 < len(some.collections[0].get_offsets()) < 140
    assert f"{len(some.collections[0].get_offsets())} of 300 rows" in some.get_title()
    given = da.from_array(np.c_[np.arange(300.0), -np.arange(300.0)], chunks=(70, 2))
    offsets = result.plot.map(coordinates=given).collections[0].get_offsets()
    np.testing.assert_array_equal(offsets, given.compute())
    named = result.plot.map(table.assign(east=1.0, north=2.0), coordinates=["east", "north"])
    assert (named.get_xlabel(), named.get_ylabel()) == ("east", "north")
    np.testing.assert_array_equal(named.collections[0].get_offsets(), [[1, 2]] * 300)


def test_coordinates_that_do_not_fit_are_refused(result, table):
    with pytest.raises(InvalidDataError, match="A map needs two coordinates of every row. Got 3"):
        result.plot.map(coordinates=table)
    with pytest.raises(InvalidDataError, match="The data have 299 rows, but 300 were clustered"):
        result.plot.map(coordinates=table.to_numpy()[1:, :2])
    with pytest.raises(ValueError, match="need the table X"):
        result.plot.map(coordinates=["east", "north"])


def test_a_profile_names_features_and_clusters(result, table):
    axes = drawn(result.plot.profile(table))
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[0] == r"\$x^{"
    assert names[2] == "a name that is so lo...somewhere"
    effects = result.profile(table)["effect"].values.T
    np.testing.assert_array_equal(axes.images[0].get_array(), effects)


def test_many_features_are_cut_to_those_with_the_largest_effects(table):
    rng = np.random.default_rng(0)
    wide = np.c_[rng.standard_normal((300, 60)), table.to_numpy()]
    axes = CNS(scale=False).fit(table).result_.plot.profile(wide, columns=list(range(63)))
    assert len(axes.get_yticklabels()) == 30
    assert [label.get_text() for label in axes.get_yticklabels()][-3:] == ["feature 60", "feature 61", "feature 62"]
    assert axes.get_title() == "effect sizes, 30 of 63 features"


def test_noise_and_one_cluster():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, (150, 2)), rng.normal(20, 1, (150, 2))])
    only = CNS(n_clusters=1).fit(X).result_
    for axes in (only.plot.map(X[:, :2]), only.plot.profile(X), only.plot.overlap(), only.plot.scales()):
        drawn(axes)
    line = CNS().fit(X[:, :1]).result_
    drawn(line.plot.map(X[:, :1]))


def test_without_matplotlib_the_error_says_what_to_install(result, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    with pytest.raises(CNSError, match=r"Plots need matplotlib: pip install 'cns_dask\[plots\]'"):
        result.plot.overlap()
