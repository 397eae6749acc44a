"""Shared data and clusters."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import dask
import fsspec
import numpy as np
import pytest
from generators import mixture
from hypothesis import settings
from processes import local_cluster

# Python 3.11 before 3.11.10 may deadlock in `sys._current_frames`, which Dask's profiler calls every few milliseconds.
os.environ["DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED"] = "False"
dask.config.refresh()

settings.register_profile("cns_dask", deadline=None)  # kernels are compiled in the first example
settings.load_profile("cns_dask")

ROOT = Path(__file__).parents[1]


def _shared(kind: str) -> Path:
    """The folder of reference material of one kind: in CNS_DASK_DATA, else in ../shared; skips when absent."""
    root = Path(os.environ.get("CNS_DASK_DATA", ROOT.parent / "shared"))
    folders = [root / kind] if kind == "goldens" else [root / kind, root]
    for folder in folders:
        if any(folder.glob("*.npz")):
            return folder
    pytest.skip(f"no {kind}: set CNS_DASK_DATA to a folder with {kind}/*.npz")


#: Little data as if they were much: several chunks of everything.
SMALL_SIZES = {
    "rows_per_chunk": 77,
    "n_cells": 12,
    "rows_per_cell_chunk": 90,
    "rows_per_search": 50,
    "block_width": 4,
    "rows_per_absorption_chunk": 50,
}


@pytest.fixture
def small_chunks() -> Iterator[None]:
    """Fit little data as if they were much."""
    with dask.config.set({"cns_dask.sizes": SMALL_SIZES}):
        yield


@pytest.fixture
def bucket() -> Iterator[str]:
    """URL of an empty folder in the memory of this process, which all tests share."""
    url = "memory://bucket"
    yield url
    filesystem = fsspec.filesystem("memory")
    if filesystem.exists("/bucket"):
        filesystem.rm("/bucket", recursive=True)


@pytest.fixture(scope="session")
def datasets() -> Path:
    return _shared("datasets")


@pytest.fixture(scope="session")
def goldens() -> Path:
    return _shared("goldens")


@pytest.fixture(scope="session")
def blobs() -> np.ndarray:
    """Four overlapping clusters (600, 5)."""
    return mixture(600, 5, n_clusters=4, spread=2.5, seed=7)


@pytest.fixture(scope="session")
def cluster():
    """Two real worker processes, started once for the whole run."""
    with local_cluster() as started:
        yield started


@pytest.fixture
def client(cluster):
    from distributed import Client

    with Client(cluster) as connected:
        yield connected
