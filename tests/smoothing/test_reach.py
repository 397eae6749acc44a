import numpy as np
import pytest

from cns_dask import CNS
from cns_dask.smoothing.reach import spread_reach
from cns_dask.smoothing.walk import walk_on


def line(n_rows):
    """Every row lists itself and the row before it: walks lead to row 0."""
    return np.stack([np.arange(n_rows), np.maximum(np.arange(n_rows) - 1, 0)], axis=1)


def test_rows_that_reach_a_source_are_positive_and_others_stay_zero():
    P = np.zeros((300, 2))
    P[100, 0], P[5, 1], P[20, 1] = 0.5, 0.25, -1e-12
    spread_reach(walk_on(line(300), 2), P, 0.1)
    assert (P[:100, 0] == 0).all()
    assert (P[100:, 0] > 0).all()
    assert (P[:5, 1] == 0).all()
    assert (P[5:, 1] > 0).all()
    assert P[101, 0] == pytest.approx(0.9 * 0.5 / 2)
    assert P[20, 1] == pytest.approx(0.25 * 0.45**15)


@pytest.mark.parametrize("selection", ["paper", "scales"])
def test_no_row_of_a_line_is_noise(selection):
    X = np.linspace(0, 1, 3000)[:, None]
    model = CNS(noise=True, selection=selection, n_clusters=2).fit(X)
    assert set(model.labels_.tolist()) == {0, 1}
    assert (np.diff(model.labels_) != 0).sum() == 1  # rows beyond a source belong to it
