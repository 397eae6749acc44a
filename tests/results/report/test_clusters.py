import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.results.colors import cluster_colors
from cns_dask.results.report import shown as shown_module
from cns_dask.results.report.clusters import cards, heat_rows
from cns_dask.results.report.shown import collect


@pytest.fixture(scope="module")
def shown():
    """Three clusters, each set apart by one of six features."""
    rng = np.random.default_rng(0)
    of_row = np.arange(600) % 3
    rows = rng.standard_normal((600, 6))
    rows[np.arange(600), of_row] += 14
    return collect(CNS(n_neighbors=12, lam=0.1, n_clusters=3).fit(rows).result_)


def test_the_features_that_set_a_cluster_apart_come_first(shown):
    made = cards(shown, cluster_colors(3))
    assert {card.features[0].name for card in made} == {"feature 0", "feature 1", "feature 2"}
    for card in made:
        first = card.features[0]
        assert first.is_above
        assert first.effect.startswith("+")
        assert 0 < first.length <= 50
        assert len(card.features) == 5
        assert card.size == 200
        labels = shown.result.labels.compute()
        assert set(labels[card.exemplars]) == {card.cluster}
        assert card.cluster not in [other for other, _ in card.nearest]


def test_a_rule_says_what_a_cluster_is_and_how_often_that_is_right(shown):
    for card in cards(shown, cluster_colors(3)):
        (rule,) = card.rules
        assert rule.startswith(f"{card.features[0].name} > ")
        assert card.right == "holds for 100% of its rows, and is right for 100%"


def test_rules_that_would_take_long_are_left_out(monkeypatch, shown):
    monkeypatch.setattr(shown_module, "MOST_RULES", 17)  # there are 3 clusters times 6 features
    assert cards(collect(shown.result), cluster_colors(3))[0].rules == []


def test_the_heat_map_shows_the_strongest_features_in_a_diagonal(shown):
    heat = heat_rows(shown, cluster_colors(3))
    values = np.array([[float(each.replace("\u2212", "-")) for each in row] for _, row in heat["rows"]])
    assert values.shape == (6, 3)
    assert heat["hidden_features"] == heat["hidden_clusters"] == 0
    assert {name for name, _ in heat["rows"]} == {f"feature {at}" for at in range(6)}
    strongest = [int(np.abs(row).argmax()) for row in values if np.abs(row).max() > 1]  # without noise, full of ties
    assert len(strongest) == 3
    assert strongest == sorted(strongest)
