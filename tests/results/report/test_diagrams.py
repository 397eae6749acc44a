import re

import numpy as np

from cns_dask.results.colors import cluster_colors
from cns_dask.results.report.diagrams import (
    Bar,
    heat_map,
    map_svg,
    overlap_graph,
    pills,
    signed,
    spread_apart,
    tree_chart,
)


def test_names_of_sixty_clusters_do_not_overlap():
    places = np.random.default_rng(0).normal(0.5, 0.12, (60, 2)).clip(0, 1)
    moved = spread_apart(places, 0.04, 0.037)
    gaps = np.abs(moved[:, None] - moved[None]) / (0.04, 0.037)
    apart = (gaps >= 0.9).any(axis=2) | np.eye(60, dtype=bool)
    assert apart.all()
    assert (moved >= 0).all()
    assert (moved <= 1).all()


def test_names_in_one_spot_are_moved_apart():
    moved = spread_apart(np.full((5, 2), 0.5))
    assert len(np.unique(moved.round(4), axis=0)) == 5


def test_the_largest_clusters_are_named():
    at = np.repeat(np.arange(100), np.arange(1, 101))
    names = pills(np.random.default_rng(0).random((len(at), 2)), at, list(range(100)), cluster_colors(100))
    assert [pill.cluster for pill in names] == list(range(40, 100))


def test_every_row_is_a_dot_in_the_colour_of_its_cluster():
    share, at = np.random.default_rng(0).random((50, 2)), np.arange(50) % 2
    confidence = np.linspace(0, 1, 50)
    names = pills(share, at, [3, 7], cluster_colors(2))
    assert [pill.cluster for pill in names] == [3, 7]
    made = map_svg(share, at, confidence, cluster_colors(2), names, None, "rows")
    for color in cluster_colors(2):
        paths = re.findall(rf'<path d="([^"]*)" stroke="{color}" [^>]*stroke-opacity="([\d.]+)"', made)
        assert sum(path.count("M") for path, _ in paths) == 25
        assert {opacity for _, opacity in paths} == {"0.4", "0.9"}


def test_the_heat_map_names_all_and_does_not_rely_on_colour():
    made = heat_map(np.array([[3.0, -3.0]]), ["<b>"], [0, 4], cluster_colors(2))
    assert "&lt;b&gt;, cluster 4: \u22123.0" in made
    assert ">+3.0<" in made
    assert 'class="below"' in made
    small = heat_map(np.array([[3.0] * 40]), ["a"], list(range(40)), cluster_colors(40))
    assert small.count(">+</text>") == 40


def test_clusters_that_overlap_are_joined():
    overlap = np.eye(3)
    overlap[0, 1] = overlap[1, 0] = 0.3
    made = overlap_graph(overlap, np.array([5, 50, 500]), [0, 1, 2], cluster_colors(3))
    assert re.findall(r"<title>(\d and \d: [^<]*)</title>", made) == ["0 and 1: 30\u202f%"]
    radii = [float(each) for each in re.findall(r' r="([\d.]+)"', made)]
    assert radii == sorted(radii)


def test_effects_have_their_sign():
    assert [signed(value) for value in (0.04, -0.06, 2.0, -1000.0)] == ["0", "\u22120.1", "+2.0", "\u22121000"]


def test_the_tree_marks_what_is_shown():
    made = tree_chart(
        [(1, [Bar(0, "#0072b2", 0.0, 1.0)]), (2, [Bar(0, "#0072b2", 0.0, 0.7), Bar(1, "#e69f00", 0.7, 0.3)])], 2
    )
    assert re.search(r'class="tick strong"[^>]*>K = 2<', made)
    assert made.count("<rect") == 3
