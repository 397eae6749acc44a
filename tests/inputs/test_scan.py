import threading

import dask
import dask.array as da
import numpy as np
import pytest
from tabular import Counted

from cns_dask.inputs.data import open_data
from cns_dask.inputs.scan import Scan, fingerprint_of, scan
from cns_dask.progress import LineProgress, Progress

X = np.arange(24.0).reshape(8, 3)
BAD = np.where(np.arange(8)[:, None] % 3, X, np.nan)  # rows 0, 3 and 6 are missing


def scanned(array, *, hashed=True, counted=True, in_memory=True):
    rows = array.chunksize[0]
    return scan(array, rows, hashed=hashed, counted=counted, in_memory=in_memory, progress=Progress())


def lazy(values, rows=3):
    return da.from_array(values, chunks=(rows, 3))


def test_rows_that_can_be_clustered_are_counted_chunk_by_chunk():
    assert scanned(lazy(BAD), hashed=False) == Scan(("", "", ""), (2, 2, 1), 3)
    assert scanned(lazy(np.where(BAD == 4, np.inf, BAD)), hashed=False).counts == (1, 2, 1)
    assert scanned(lazy(BAD), counted=False).counts == (3, 3, 2)


def test_nothing_is_read_without_a_reason():
    with Counted() as counted:
        assert scanned(lazy(BAD), hashed=False, counted=False) == Scan((), (3, 3, 2), 3)
    assert counted.tasks == []


def test_hashes_follow_the_values_of_their_chunk_alone():
    before, after = scanned(lazy(X)).hashes, X.copy()
    after[7, 2] += 1e-9
    assert len(set(before)) == 3
    assert scanned(lazy(np.asfortranarray(X))).hashes == before
    assert scanned(lazy(after)).hashes[:2] == before[:2]
    assert scanned(lazy(after)).hashes[2] != before[2]


@pytest.mark.parametrize("in_memory", [True, False])
def test_rows_in_memory_are_scanned_where_they_are(in_memory):
    threads = set()

    def seen(block):
        threads.add(threading.get_ident())
        return block

    array = lazy(X, 1).map_blocks(seen, dtype=float, meta=np.empty((0, 0)))
    with dask.config.set(scheduler="threads"):
        scanned(array, in_memory=in_memory)
    assert (threads == {threading.get_ident()}) == in_memory


@pytest.mark.parametrize("width", [3, 150])
def test_the_chunks_of_the_caller_do_not_matter(width):
    values = np.random.default_rng(0).standard_normal((40, width))
    values[::7, 1] = np.nan
    options = {"hashed": True, "counted": True, "in_memory": False, "progress": Progress()}
    expected, *others = (scan(da.from_array(values, chunks=(rows, -1)), 9, **options) for rows in (9, 40, 13, 4))
    assert expected.counts == (7, 8, 8, 7, 4)
    assert all(other == expected for other in others)


def test_progress_is_told_about_every_chunk():
    lines = []
    scan(lazy(X), 3, hashed=True, counted=False, in_memory=True, progress=LineProgress(lines.append))
    assert lines[0] == "scan: 0 of 3"
    assert lines[-1].startswith("scan: 3 of 3, ")


def test_data_in_memory_are_told_apart_by_values_and_shape():
    first = fingerprint_of(open_data(X), Progress())
    assert first["shape"] == [8, 3]
    assert first["dtype"] == "float64"
    assert fingerprint_of(open_data(X.copy()), Progress()) == first
    assert fingerprint_of(open_data(X + 1), Progress())["content"] != first["content"]
    assert fingerprint_of(open_data(X.reshape(6, 4)), Progress())["shape"] == [6, 4]
    hashes = scanned(open_data(X).X).hashes
    with Counted() as counted:
        assert fingerprint_of(open_data(X), Progress(), hashes) == first
    assert counted.tasks == []


def test_files_are_told_apart_by_their_versions_without_being_read(tmp_path):
    np.save(tmp_path / "x.npy", X)
    with Counted() as counted:
        first = fingerprint_of(open_data(tmp_path / "x.npy"), Progress())
        assert fingerprint_of(open_data(tmp_path / "x.npy"), Progress()) == first
        some = fingerprint_of(open_data(tmp_path / "x.npy", columns=[0, 1]), Progress())
    assert counted.tasks == []
    assert some == {**first, "shape": [8, 2], "options": {"columns": [0, 1]}}
    np.save(tmp_path / "x.npy", X[:7])
    assert fingerprint_of(open_data(tmp_path / "x.npy"), Progress())["content"] != first["content"]
