import io

import dask.array as da
import numpy as np
import pytest

from cns_dask.results.report.coordinates import Plane
from cns_dask.results.report.density import HEIGHT, WIDTH, Box, Counts, box_of, count_pixels, density_png


def plane(xy, labels, chunk):
    arrays = (da.from_array(each, chunks=(chunk, *each.shape[1:])) for each in (xy, labels, np.ones(len(xy))))
    return Plane(*arrays, None, "")


def test_all_rows_are_counted_whatever_the_chunks():
    rng = np.random.default_rng(0)
    xy, labels = rng.uniform(0, 1, (5000, 2)), rng.choice([2, 5, 9, -3], 5000)
    xy[::100] = np.nan
    xy[1::500] = 7.0  # outside
    box = Box((0.0, 0.0), (1.0, 1.0))
    counts = [count_pixels(plane(xy, labels, chunk), [2, 5, 9], box) for chunk in (5000, 333)]
    np.testing.assert_array_equal(counts[0].keys, counts[1].keys)
    np.testing.assert_array_equal(counts[0].counts, counts[1].counts)
    known = (labels >= 0) & np.isfinite(xy).all(axis=1)
    assert counts[1].n_outside == (known & (xy[:, 0] == 7)).sum() > 0
    assert counts[1].counts.sum() == known.sum() - counts[1].n_outside
    by_cluster = np.bincount(counts[1].keys // (WIDTH * HEIGHT), counts[1].counts)
    np.testing.assert_array_equal(by_cluster, [(known & (labels == c) & (xy[:, 0] < 1)).sum() for c in (2, 5, 9)])


def test_the_image_has_the_colour_of_most_rows_and_is_denser_where_there_are_more():
    image = pytest.importorskip("PIL.Image")
    keys = np.array([0, 1, WIDTH * HEIGHT, WIDTH * HEIGHT + 1])
    content = density_png(Counts(keys, np.array([5, 1, 4, 900]), 0), ["#ff0000", "#0000ff"])
    pixels = np.asarray(image.open(io.BytesIO(content)))
    assert pixels.shape == (HEIGHT, WIDTH, 4)
    assert pixels[0, 0, :3].tolist() == [255, 0, 0]
    assert pixels[0, 1, :3].tolist() == [0, 0, 255]
    assert 0 < pixels[0, 0, 3] < pixels[0, 1, 3] == 255
    assert not pixels[1:].any()


def test_a_few_rows_far_outside_do_not_shrink_the_map():
    xy = np.random.default_rng(0).standard_normal((3000, 2))
    xy[0] = 1e6
    box = box_of(xy, is_square=True)
    assert box.high[0] < 20
    assert (box.high[0] - box.low[0]) / (box.high[1] - box.low[1]) == pytest.approx(WIDTH / HEIGHT)


def test_rows_without_extent_have_a_box():
    for xy in (np.zeros((5, 2)), np.full((3, 2), np.nan), np.empty((0, 2))):
        box = box_of(xy, is_square=True)
        assert box.low[0] < box.high[0]
        assert box.low[1] < box.high[1]
