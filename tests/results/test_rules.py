"""Rules of small trees: what they say, and how right they are."""

import dask.array as da
import numpy as np
import pytest

from cns_dask.results import profile
from cns_dask.results.profile import survey
from cns_dask.results.rules import Condition, round_between, rules_of, tightest


def part_of(rows, labels, chunk=500):
    return survey(da.from_array(rows, chunks=(chunk, -1)), da.from_array(labels, chunks=-1), range(labels.max() + 1))


@pytest.fixture
def boxes():
    """Rows in the unit square; cluster 1 is a corner, cluster 2 a band, cluster 0 the rest."""
    rows = np.random.default_rng(0).random((3000, 4))
    corner = (rows[:, 1] > 0.7) & (rows[:, 2] <= 0.4)
    band = ~corner & (rows[:, 3] > 0.9)
    return rows, np.where(corner, 1, np.where(band, 2, 0))


def test_a_corner_is_found(boxes):
    rules = rules_of(part_of(*boxes), 1, list("abcd"))
    (rule,) = rules.rules
    assert [(condition.name, condition.is_upper) for condition in rule.conditions] == [("b", False), ("c", True)]
    assert rule.conditions[0].threshold == pytest.approx(0.7, abs=0.01)
    assert str(rule) == f"b > {rule.conditions[0].threshold:.15g} and c <= {rule.conditions[1].threshold:.15g}"
    assert (rules.precision, rules.recall) == (1, 1)
    assert 2000 < rules.n_rows <= 3000  # as many of each other cluster


def test_shares_are_counted_by_rows_of_all_clusters(boxes, monkeypatch):
    rows, labels = boxes
    monkeypatch.setattr(profile, "MOST_SAMPLED", 150)  # of the large cluster few rows are kept
    rules = rules_of(part_of(rows, labels), 2, list("abcd"))
    assert rules.n_rows == 450
    holds = np.logical_or.reduce([rule.holds(rows) for rule in rules.rules])
    assert rules.precision == pytest.approx((labels[holds] == 2).mean(), abs=0.08)
    assert rules.recall == pytest.approx(holds[labels == 2].mean(), abs=0.05)


def test_small_clusters_have_rules_too():
    rng = np.random.default_rng(0)
    labels = (rng.random(20_000) < 0.01).astype(int)
    rows = rng.standard_normal((20_000, 3))
    rows[labels == 1] += [4, 4, 0]
    rules = rules_of(part_of(rows, labels, 5000), 1, list("abc"))
    assert {condition.name for condition in rules.rules[0].conditions} <= {"a", "b"}
    assert rules.precision > 0.7
    assert rules.recall > 0.7
    rows[labels == 1] -= [3, 3, 0]  # nowhere are they in the majority
    rules = rules_of(part_of(rows, labels, 5000), 1, list("abc"))
    assert 0.02 < rules.precision < 0.6
    assert rules.recall > 0.1


def test_rules_do_not_depend_on_chunks(boxes):
    assert rules_of(part_of(*boxes, chunk=3000), 2, list("abcd")) == rules_of(part_of(*boxes, chunk=111), 2, "abcd")


def test_values_that_are_the_same_in_single_precision():
    rng = np.random.default_rng(0)
    rows = 1.7e9 + rng.random((400, 1)) * 8
    labels = (rows[:, 0] > 1.7e9 + 5).astype(int)
    rules = rules_of(part_of(rows, labels), 1, ["time"])
    assert (rules.precision, rules.recall) == (1, 1)
    assert 1.7e9 + 4.8 < rules.rules[0].conditions[0].threshold < 1.7e9 + 5.2


def test_of_many_features_only_those_with_large_effects_are_in_rules():
    rng = np.random.default_rng(0)
    labels = np.arange(600) % 2
    rows = rng.standard_normal((600, 80))
    rows[:, 70] += 9 * labels
    rules = rules_of(part_of(rows, labels), 1, [f"x{at}" for at in range(80)], np.abs(np.arange(80) - 20))
    assert [condition.name for condition in rules.rules[0].conditions] == ["x70"]
    assert (rules.precision, rules.recall) == (1, 1)


def test_one_cluster_and_constant_features_have_no_rules():
    rows, labels = np.zeros((50, 2)), np.zeros(50, int)
    assert rules_of(part_of(rows, labels), 0, ["a", "b"]).rules == ()
    labels[25:] = 1
    assert rules_of(part_of(rows, labels), 0, ["a", "b"]).rules == ()


def test_missing_values_do_not_matter_much(boxes):
    rows, labels = boxes
    rows = rows.copy()
    rows[::40, 1], rows[5::40, 2], rows[:, 0] = np.nan, np.inf, np.nan
    rules = rules_of(part_of(rows, labels), 1, list("abcd"))
    assert rules.precision > 0.9
    assert rules.recall > 0.9


def test_conditions_that_follow_from_others_are_left_out():
    loose, tight, other = Condition(0, "a", True, 5.0), Condition(0, "a", True, 3.0), Condition(0, "a", False, 1.0)
    assert tightest([loose, other, tight]) == (tight, other)
    assert tightest([tight, loose]) == (tight,)


def test_thresholds_have_few_digits():
    assert round_between(1.9, 3.0) == 2.45
    assert round_between(0, 1) == 0.5
    assert round_between(123456.0, 123457.0) == 123456
    low = 1.0
    high = np.nextafter(1.0, 2)
    assert low <= round_between(low, high) < high
