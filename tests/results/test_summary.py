"""A result and a model at a glance."""

import shutil

import numpy as np
import pytest
from sklearn.base import clone

from cns_dask import CNS, Result
from cns_dask.results import summary
from cns_dask.results.summary import size_bar, summary_html


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    return CNS().fit(np.concatenate([rng.normal(center, 1, (100 + center, 5)) for center in (0, 9, 18)]))


def test_text_tells_clusters_sizes_and_verdict(model):
    lines = repr(model.result_).splitlines()
    assert lines[0] == "<Result: 327 rows, 3 clusters>"
    assert model.result_.verdict.sentence in lines
    assert f"sizes: {', '.join(map(str, model.result_.sizes()))}" in lines
    assert lines[-1] == f"at {model.result_.path}"


def test_rows_are_not_counted_only_to_be_shown(model, monkeypatch):
    monkeypatch.setattr(summary, "MOST_COUNTED", 100)
    assert "sizes" not in repr(model.result_)
    assert "<svg" not in model.result_._repr_html_()


def test_html_has_a_bar_and_no_script(model):
    page = summary_html(model.result_)
    assert page.count("<rect") == 3
    assert "cluster 0: " in page
    assert "script" not in page


def test_bars_are_as_wide_as_shares():
    bar = size_bar([0, 4], [300, 100])
    assert "width='359.0'" in bar
    assert "cluster 4: 100 rows" in bar
    assert "cluster 9: 1 row<" in size_bar([9], [1])


def test_a_model_whose_result_is_gone_prints_too(tmp_path):
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(center, 1, (60, 3)) for center in (0, 9)])
    gone = CNS().fit(X, out=tmp_path / "out.zarr")
    gone.result_ = Result.at_path(str(tmp_path / "out.zarr"))
    shutil.rmtree(tmp_path / "out.zarr")
    assert repr(gone) == "CNS()"
    assert gone._fitted_html() == ""


def test_a_model_prints_as_scikit_learn_does_until_it_is_fitted(model):
    assert repr(CNS()) == "CNS()"
    assert repr(clone(model)) == "CNS()"
    assert "<svg" not in CNS()._repr_html_()
    assert repr(model) == f"CNS()  # {model.result_.verdict.sentence}"
    assert CNS()._repr_mimebundle_()["text/plain"] == "CNS()"
    for page in (model._repr_html_(), model._repr_mimebundle_()["text/html"]):
        assert page == f"<code>CNS()</code>{summary_html(model.result_)}"
    assert model._repr_mimebundle_()["text/plain"] == repr(model)
