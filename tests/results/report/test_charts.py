import re

import numpy as np

from cns_dask.results.report.charts import (
    confidence_chart,
    confidence_strip,
    criterion_chart,
    evidence_chart,
    surface_chart,
)
from cns_dask.settings import Grid
from cns_dask.smoothing.criterion import Choice

GRID = Grid((5, 10), (0.1, 0.2), 4)
SURFACE = np.full((2, 2, 4), np.nan)
SURFACE[0, 0] = [0.1, 0.5, 0.3, 0.2]
SURFACE[1, 1, :3] = [0.1, 0.2, 0.9]


def choice(n_clusters, k, lam, value):
    return Choice(n_neighbors=k, lam=lam, n_clusters=n_clusters, value=value, margin=0.1, selection="paper")


def heights(made, kind):
    return [float(each) for each in re.findall(rf'height="([\d.]+)" class="{kind}"', made)]


def test_the_choice_and_the_next_best_are_marked():
    made = evidence_chart(np.array([0.0, 2.0, 8.0, 4.0]), 3, 1.8)
    assert re.findall(r'class="mark"[^>]*>(\d+)<', made) == ["3", "4"]
    assert len(heights(made, "chosen")) == 1
    assert heights(made, "chosen")[0] > 1.9 * max(heights(made, "bar"))


def test_no_evidence_at_all_can_be_drawn():
    assert "1 were chosen" in evidence_chart(np.zeros(5), 1, 1.8)


def test_every_k_has_a_line_and_a_name():
    made = criterion_chart(SURFACE, GRID, choice(3, 10, 0.2, 0.9))
    assert len(re.findall(r"<path ", made)) == 2
    assert re.findall(r">(k = \d+)<", made) == ["k = 10", "k = 5"]
    assert made.count("<circle") == 1


def test_every_grid_point_tells_its_best_number_of_clusters():
    made = surface_chart(SURFACE, GRID, choice(3, 10, 0.2, 0.9))
    assert re.findall(r">(K = \d+)<", made) == ["K = 2", "K = 3"]  # the others have none
    assert made.count('class="outline"') == 1


def test_all_rows_are_in_the_chart_of_confidence():
    counts = np.array([0] * 10 + [1] * 5 + [100] * 5)
    made = confidence_chart(counts)
    assert "over 99" not in made
    assert "100\u202f% of the rows" in made
    assert len(heights(made, "bar")) == 20
    assert confidence_strip(counts, "#0072b2", "cluster 1").count("<rect") == 10
