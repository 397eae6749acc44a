import pytest
from hypothesis import given
from hypothesis import strategies as st

from cns_dask.storage.chunks import CHUNK_BYTES, clip, row_slices, rows_per_chunk


@pytest.mark.parametrize(
    ("n_rows", "width", "expected"),
    [
        (500, 4, 500),  # never more than there are
        (2000, 4, 1024),  # no smaller tasks
        (80_000, 4, 10_000),  # an eighth
        (10**9, 4, CHUNK_BYTES // 32),  # no larger chunks
        (10**6, 10**9, 128),  # but some rows, however wide
    ],
)
def test_rows_of_a_chunk(n_rows, width, expected):
    assert rows_per_chunk(n_rows, width) == expected


@given(n_rows=st.integers(1, 10**10), width=st.integers(1, 10**5))
def test_chunks_are_bounded_for_any_size(n_rows, width):
    rows = rows_per_chunk(n_rows, width)
    assert 1 <= rows <= n_rows
    assert rows <= 128 or 8 * width * rows <= CHUNK_BYTES
    assert rows >= min(n_rows, 128)


@given(n_rows=st.integers(0, 1000), step=st.integers(1, 100))
def test_slices_hold_every_row_once(n_rows, step):
    slices = row_slices(n_rows, step)
    assert [row for part in slices for row in range(part.start, part.stop)] == list(range(n_rows))
    assert all(part.stop - part.start == step for part in slices[:-1])


def test_clip():
    assert [clip(value, 2, 4) for value in (1, 2, 3, 4, 5)] == [2, 2, 3, 4, 4]
    assert clip(5, low=8, high=6) == 8  # the lower bound wins
