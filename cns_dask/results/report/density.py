"""All rows as an image: one pass that counts rows by cluster and pixel, and a PNG of these counts."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import dask
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.execution.compute import compute, merged
from cns_dask.results.report.coordinates import Plane

WIDTH, HEIGHT = 480, 360
MARGIN = 0.04  # of the range, on each side
OUTER = 0.001  # share of the rows on each side of an axis that may lie outside
ALPHA_LEVELS = 10  # few, so that the image compresses well


@dataclass(frozen=True)
class Box:
    """The part of a plane that is drawn."""

    low: tuple[float, float]
    high: tuple[float, float]

    def scaled(self, xy: FloatArray) -> FloatArray:
        """Points as shares of the box from its upper left corner (m, 2)."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        share = (xy - low) / (high - low)
        share[:, 1] = 1 - share[:, 1]
        return np.asarray(share)


@dataclass(frozen=True)
class Counts:
    """Rows by cluster and pixel, where there are some: sorted keys, position of the cluster times pixels + pixel."""

    keys: IntArray
    counts: IntArray
    n_outside: int  # rows that are beyond the box


def box_of(xy: FloatArray, *, is_square: bool) -> Box:
    """The box of some points, but for a few far outside; with the image's proportions if both axes have one unit.

    Examples
    --------
    >>> box_of(np.array([[0.0, 0.0], [1.0, 0.5]]), is_square=False).scaled(np.array([[0.5, 0.25]]))
    array([[0.5, 0.5]])
    """
    known = xy[np.isfinite(xy).all(axis=1)]
    if not len(known):
        known = np.zeros((1, 2))
    low, high = np.quantile(known, [OUTER, 1 - OUTER], axis=0, method="nearest")
    lowest, highest = known.min(axis=0), known.max(axis=0)
    near = 0.5 * (high - low)  # a little more takes all rows in
    low, high = np.maximum(low - near, lowest), np.minimum(high + near, highest)
    size = np.where(high > low, high - low, 1.0)
    middle, size = (low + high) / 2, size * (1 + 2 * MARGIN)
    if is_square:
        unit = max(size[0] / WIDTH, size[1] / HEIGHT)
        size = np.array([unit * WIDTH, unit * HEIGHT])
    ends = middle - size / 2, middle + size / 2
    return Box(*((float(end[0]), float(end[1])) for end in ends))


def count_pixels(plane: Plane, clusters: Sequence[int], box: Box) -> Counts:
    """Count all rows of a plane by cluster and pixel: chunk by chunk, and a few sums at once."""
    numbers = np.asarray(clusters)
    blocks = zip(plane.xy.to_delayed().ravel(), plane.labels.to_delayed().ravel(), strict=True)
    parts = [dask.delayed(count_block)(*block, numbers, box) for block in blocks]
    total: Counts = compute([merged(parts, add_counts)], stage="density")[0]
    return total


def count_block(xy: FloatArray, labels: IntArray, clusters: IntArray, box: Box) -> Counts:
    """Rows of one block by cluster and pixel; rows in no cluster do not count."""
    at = np.minimum(np.searchsorted(clusters, labels), len(clusters) - 1)
    known = (clusters[at] == labels) & np.isfinite(xy).all(axis=1)
    share = box.scaled(xy[known])
    inside = ((share >= 0) & (share < 1)).all(axis=1)
    column, row = (share[inside] * (WIDTH, HEIGHT)).astype(np.int64).T
    keys = at[known][inside] * (WIDTH * HEIGHT) + row * WIDTH + column
    unique, counts = np.unique(keys, return_counts=True)
    return Counts(unique, counts, int(known.sum() - inside.sum()))


def add_counts(parts: Sequence[Counts]) -> Counts:
    """The sum of counts."""
    keys, at = np.unique(np.concatenate([part.keys for part in parts]), return_inverse=True)
    counts = np.bincount(at, np.concatenate([part.counts for part in parts]), len(keys)).astype(np.int64)
    return Counts(keys, counts, sum(part.n_outside for part in parts))


def density_png(counts: Counts, colors: Sequence[str]) -> bytes:
    """An image in the colours of the clusters that have most rows in each pixel, denser where there are more."""
    pixels = WIDTH * HEIGHT
    cluster, pixel = np.divmod(counts.keys, pixels)
    total = np.bincount(pixel, counts.counts, pixels)
    first = np.lexsort((cluster, -counts.counts, pixel))  # the largest of every pixel comes first
    _, starts = np.unique(pixel[first], return_index=True)
    largest = first[starts]
    image = np.zeros((pixels, 4), np.uint8)
    some = pixel[largest]
    palette = np.array([[int(color[at : at + 2], 16) for at in (1, 3, 5)] for color in colors], np.uint8)
    image[some, :3] = palette[cluster[largest]]
    strength = np.log1p(total[some])
    top = np.quantile(strength, 0.99) if len(some) else 1.0
    level = np.ceil(np.clip(strength / max(top, 1e-12), 0, 1) * ALPHA_LEVELS) / ALPHA_LEVELS
    image[some, 3] = np.round(255 * (0.15 + 0.85 * level))
    return png(image.reshape(HEIGHT, WIDTH, 4))


def png(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    r"""An image (height, width, 4) of red, green, blue and opacity as PNG.

    Examples
    --------
    >>> png(np.zeros((1, 1, 4), np.uint8))[:4]
    b'\x89PNG'
    """
    height, width, _ = image.shape
    lines = np.concatenate([np.zeros((height, 1), np.uint8), image.reshape(height, -1)], axis=1)  # no filter

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)) + chunk(b"IEND", b"")


def data_uri(content: bytes) -> str:
    """A PNG inside a page."""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"
