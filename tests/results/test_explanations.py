"""How an explanation reads, as text, as HTML and as JSON."""

import json

import dask.array as da
import numpy as np
import pytest

from cns_dask.results.explanations import explain_cluster
from cns_dask.results.profile import profile_of, survey


def explained(names=("height", "width"), K=2, at=1):
    rng = np.random.default_rng(0)
    labels = np.arange(400) % K
    rows = rng.standard_normal((400, 2)) + np.c_[8 * labels, np.zeros(400)]
    part = survey(da.from_array(rows), da.from_array(labels), range(K))
    return explain_cluster(part, profile_of(part, tuple(names), range(K)), at)


def test_text_names_what_sets_it_apart_and_the_rule():
    lines = repr(explained()).splitlines()
    assert lines[0] == "cluster 1: 200 rows, 50 % of all"
    assert lines[1].split()[:2] == ["height", "+7.8"]
    assert lines[2].startswith("rule: height > ")
    assert "100 % of the rows that it holds for are in the cluster, 100 %" in lines[3]
    assert "width" not in repr(explained())  # hardly differs


def test_names_that_try_to_be_more_than_names():
    explanation = explained(("<script>alert(1)</script>\x1b[31m\n", "b"))
    assert "<script>" not in explanation._repr_html_()
    assert "&lt;script&gt;" in explanation._repr_html_()
    assert "\x1b" not in repr(explanation)


def test_json_has_all_features():
    values = json.loads(json.dumps(explained().to_dict(), allow_nan=False))
    assert [each["name"] for each in values["features"]] == ["height", "width"]
    assert values["features"][0]["effect"] == pytest.approx(8, abs=0.3)
    assert values["precision"] == values["recall"] == 1
    assert values["rules"][0]["rule"].startswith("height > ")


def test_a_single_cluster_is_not_set_apart_by_anything():
    only = explained(K=1, at=0)
    assert "no feature sets it apart" in repr(only)
    assert "no simple rule" in repr(only)
    assert json.dumps(only.to_dict(), allow_nan=False)
