"""Colours stay apart, also as colour-blind people see them."""

import itertools
import re

import numpy as np
import pytest

from cns_dask.results.colors import OTHERS, cluster_colors

#: What dichromats see of linear RGB: Machado, Oliveira and Fernandes (2009), severity 1.
VISIONS = {
    "normal": np.eye(3),
    "protanope": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranope": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
}
#: Linear RGB to OKLab (Ottosson, 2020).
CONES = [[0.41222, 0.53633, 0.05145], [0.21190, 0.68070, 0.10740], [0.08830, 0.28172, 0.62998]]
OKLAB = [[0.21045, 0.79362, -0.00407], [1.97800, -2.42859, 0.45059], [0.02590, 0.78277, -0.80868]]


def oklab(color, vision="normal"):
    values = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    return np.cbrt(np.clip(linear @ np.transpose(VISIONS[vision]), 0, 1) @ np.transpose(CONES)) @ np.transpose(OKLAB)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize(("n", "apart"), [(12, 0.07), (30, 0.045), (60, 0.03)])
def test_no_two_colors_look_alike(n, apart, vision):
    seen = [oklab(color, vision) for color in cluster_colors(n)]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > apart  # 0.02 is just noticeable


def test_colors_show_on_white_and_on_dark_pages():
    lightness = [oklab(color)[0] for color in cluster_colors(60)]
    assert min(lightness) > 0.38
    assert max(lightness) < 0.86


def test_more_colors_begin_with_the_same_ones_and_then_repeat():
    assert all(re.fullmatch("#[0-9a-f]{6}", color) for color in [*cluster_colors(60), OTHERS])
    assert cluster_colors(130)[:7] == cluster_colors(7)
    assert cluster_colors(61)[60] == cluster_colors(1)[0]
    assert OTHERS not in cluster_colors(60)
