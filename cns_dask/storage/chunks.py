"""How many rows one chunk holds: it follows from the data alone, because sums must not depend on the workers."""

import math

FLOAT_BYTES = 8  # of a float64
CHUNK_BYTES = 32 * 2**20  # of one chunk of rows
MIN_CHUNK_ROWS = 1024  # smaller tasks would wait longer for their turn than they work


def rows_per_chunk(n_rows: int, width: int) -> int:
    """Rows of a chunk: an eighth of the data (for a few cores), at least 1 024 rows, but never above CHUNK_BYTES.

    Examples
    --------
    >>> rows_per_chunk(100_000, 16), rows_per_chunk(3_000, 16), rows_per_chunk(100_000, 9_500)
    (12500, 1024, 441)
    """
    largest = max(128, CHUNK_BYTES // (FLOAT_BYTES * width))
    return min(n_rows, largest, max(MIN_CHUNK_ROWS, math.ceil(n_rows / 8)))


def row_slices(n_rows: int, step: int) -> list[slice]:
    """Consecutive slices of `step` rows.

    Examples
    --------
    >>> row_slices(5, 3)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    return [slice(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]


def clip(value: int, low: int, high: int) -> int:
    """The value, but at least `low` and at most `high`."""
    return max(low, min(value, high))
