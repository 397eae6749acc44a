"""Samples of rows, drawn by row number: the same rows for any chunking, workers and scheduler.

A hash of row number and seed spreads the rows evenly over 0 to 2^64, and a draw takes those in a range: so nothing has
one entry per row, and draws of ranges that lie apart have no row in common. What is drawn is written to scratch while
the data are read for the first time, and the method knows no other rows.
"""

from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import InvalidSettingError
from cns_dask.execution.cluster import delayed_chunks
from cns_dask.execution.plan import Stage, Step
from cns_dask.execution.run import Piece, Run
from cns_dask.inputs.missing import CLUSTERED, OUTSIDE_SAMPLE, row_codes
from cns_dask.inputs.preprocess import SHOWN_ROWS, refuse_rows
from cns_dask.inputs.spool import joined
from cns_dask.settings import as_plain
from cns_dask.storage.arrays import StoredArray
from cns_dask.storage.chunks import FLOAT_BYTES, row_slices
from cns_dask.storage.layout import ArrayPlan

LEAST_ROWS = 1000  # fewer do not speak for more
COMPARED_ROWS = 20_000  # about so many rows of neither sample tell how well two of them agree
LARGEST_CHECKED = 0.45  # share of a sample beside which there is room for a second one, and for these rows

Marks = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Draw:
    """The rows whose hash lies in a range.

    Examples
    --------
    >>> np.flatnonzero(Draw(0, 2**62, seed=0).marks(0, 20))  # about every fourth
    array([ 2,  4,  6,  8, 18])
    """

    low: int
    high: int  # excluded
    seed: int

    def marks(self, start: int, stop: int) -> Marks:
        """Whether each of the rows `start` to `stop` (excluded) is drawn."""
        beyond = row_hashes(start, stop, self.seed) - np.uint64(self.low)  # those below `low` wrap around
        return np.asarray(beyond < np.uint64(self.high - self.low))

    def count(self, rows: slice) -> int:
        """How many of some rows are drawn."""
        return int(self.marks(rows.start, rows.stop).sum())


@dataclass(frozen=True)
class Sampling:
    """What is drawn of `n_rows` rows: a sample, a second one to check it, and rows to compare both on."""

    size: int | float  # rows, or their share, as asked for
    n_rows: int
    seed: int
    is_checked: bool = False

    @property
    def expected_rows(self) -> int:
        """Number of rows of a sample, about."""
        return self.size if isinstance(self.size, int) else round(self.size * self.n_rows)

    @property
    def sample(self) -> Draw:
        """The rows that are clustered."""
        return Draw(0, self._width, self.seed)

    @property
    def second(self) -> Draw:
        """As many others."""
        return Draw(self._width, 2 * self._width, self.seed)

    @property
    def compared(self) -> Draw:
        """Rows that are in neither."""
        low = 2 * self._width
        return Draw(low, min(2**64, low + 2**64 * COMPARED_ROWS // self.n_rows), self.seed)

    @property
    def _width(self) -> int:
        is_number = isinstance(self.size, int)
        return 2**64 * int(self.size) // self.n_rows if is_number else int(2**64 * self.size)


def row_hashes(start: int, stop: int, seed: int) -> Any:
    """A number from 0 to 2^64 for each of the rows `start` to `stop` (excluded): Steele's splitmix64."""
    hashes = np.arange(start + 1, stop + 1, dtype=np.uint64)
    hashes *= np.uint64(0x9E37_79B9_7F4A_7C15)
    hashes += np.uint64((seed * 0xD134_2543_DE82_EF95) % 2**64)
    for shift, factor in (30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB):
        hashes ^= hashes >> np.uint64(shift)
        hashes *= np.uint64(factor)
    return hashes ^ (hashes >> np.uint64(31))


def check_sampling(size: Any, n_rows: int, seed: int, *, is_checked: bool) -> Sampling | None:
    """What is drawn for a sample of this size, rows or a share of them; None if that is all of them.

    Examples
    --------
    >>> check_sampling(0.25, 10_000, seed=0, is_checked=False).expected_rows
    2500
    >>> check_sampling(20_000, 10_000, seed=0, is_checked=False) is None
    True
    """
    is_checked = as_plain(is_checked)
    if not isinstance(is_checked, bool):
        raise InvalidSettingError(f"check_sample must be True or False. Got {is_checked!r}.")
    if size is None:
        if is_checked:
            raise InvalidSettingError("There is no sample to check. Give the size of one, or leave check_sample out.")
        return None
    plain = as_plain(size)
    if isinstance(plain, float) and plain > 1 and plain.is_integer():
        plain = int(plain)  # 1e6
    is_number = isinstance(plain, int | float) and not isinstance(plain, bool)
    if not is_number or not (plain >= 1 if isinstance(plain, int) else 0 < plain <= 1):
        raise InvalidSettingError(
            f"sample must be a positive number of rows, or a share of them between 0 and 1. Got {plain!r}."
        )
    if plain >= (n_rows if isinstance(plain, int) else 1):
        return None
    return _large_enough(Sampling(plain, n_rows, seed, is_checked))


def _large_enough(sampling: Sampling) -> Sampling:
    expected, n_rows = sampling.expected_rows, sampling.n_rows
    if expected < min(LEAST_ROWS, n_rows):
        raise InvalidSettingError(
            f"A sample of {expected} rows is too small to speak for {n_rows}: take at least {min(LEAST_ROWS, n_rows)}."
        )
    if sampling.is_checked and expected > LARGEST_CHECKED * n_rows:
        raise InvalidSettingError(
            f"check_sample needs a second sample beside the first, and rows to compare both on: take at most "
            f"{LARGEST_CHECKED:.0%} of the rows, which are {int(LARGEST_CHECKED * n_rows)}. Got {expected}."
        )
    return sampling


def sample_stage(shape: tuple[int, int], chunk: int, most: int, *, is_sparse: bool = False) -> Stage:
    """Read data of this shape in chunks of `chunk` rows, of which at most `most` are drawn; write these, and why not.

    Rows that are mostly zeros are compressed.
    """
    n_rows, n_features = shape
    n_chunks = -(-n_rows // chunk)
    step = Step("sample", n_chunks, 4 * FLOAT_BYTES * chunk * n_features, work=n_rows * n_features)
    codes = ArrayPlan("codes", (n_rows,), (chunk,))
    part = (most, n_features)
    drawn = ArrayPlan("sample", (n_chunks * most, n_features), part, scratch=True, compressed=is_sparse)
    return Stage("sample", (step,), (ArrayPlan("raw rows", shape, (chunk, n_features)),), (codes, drawn))


def take_sample(
    X: da.Array, draw: Draw, counts: tuple[int, ...], rows: int, stage: Stage, run: Run, *, skips: bool
) -> da.Array:
    """Run that stage: the drawn rows of X (n, d), `counts` of each of its chunks, read from scratch by `rows`.

    Missing or infinite values, in whatever row, are an error unless it `skips` them.
    """
    with run.stage(stage) as running:
        codes, drawn = running.create("codes"), running.create("sample")
        most = drawn.chunks[0]
        parts, places = row_slices(X.shape[0], codes.chunks[0]), row_slices(drawn.shape[0], most)
        pieces = [
            Piece(
                sample_block,
                (block, part, draw, codes, drawn, place),
                ((codes, (part,)), (drawn, (place, slice(None)))),
            )
            for block, part, place in zip(delayed_chunks(X), parts, places, strict=True)
        ]
        n_bad, bad = zip(*running.run("sample", pieces), strict=True)
    if sum(n_bad) and not skips:
        refuse_rows(np.concatenate(bad), sum(n_bad))
    filled = (slice(place.start, place.start + count) for place, count in zip(places, counts, strict=True))
    return joined([(drawn, place) for place in filled], rows)


def drawn_rows(X: da.Array, draw: Draw, counts: tuple[int, ...]) -> da.Array:
    """The same rows, lazily from X: whoever computes them reads all of it."""
    starts = np.cumsum([0, *X.chunks[0][:-1]]).tolist()
    blocks = [
        da.from_delayed(dask.delayed(drawn_block)(block, start, draw), (count, X.shape[1]), X.dtype)
        for block, start, count in zip(delayed_chunks(X), starts, counts, strict=True)
        if count
    ]
    return da.concatenate(blocks)


def drawn_block(block: FloatArray, first_row: int, draw: Draw) -> FloatArray:
    """Those of some rows that are drawn and have no missing value."""
    return np.asarray(block[(row_codes(block) == CLUSTERED) & draw.marks(first_row, first_row + len(block))])


def sample_block(
    block: FloatArray, rows: slice, draw: Draw, codes: StoredArray, drawn: StoredArray, place: slice
) -> tuple[int, IntArray]:
    """Write those of some rows that are drawn, and the codes of all; how many have codes of missing values, and which.

    Of these, the first few are told.
    """
    found, marks = row_codes(block), draw.marks(rows.start, rows.stop)
    codes[rows] = np.where((found == CLUSTERED) & ~marks, OUTSIDE_SAMPLE, found)
    part = np.zeros((place.stop - place.start, block.shape[1]))
    kept = block[(found == CLUSTERED) & marks]
    part[: len(kept)] = kept
    drawn[place] = part
    bad = np.flatnonzero(found != CLUSTERED)
    return len(bad), rows.start + bad[: SHOWN_ROWS + 1]
