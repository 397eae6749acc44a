"""Data and references for runs that are disturbed."""

import sys
from pathlib import Path

import dask
import numpy as np
import pytest
import small
import zarr
from generators import mixture
from processes import answers, background, free_ports, wait_until


@pytest.fixture(scope="session")
def rows() -> np.ndarray:
    """Five overlapping clusters (4000, 5)."""
    return mixture(4000, 5, n_clusters=5, spread=2.2, seed=11)


@pytest.fixture(scope="session")
def stored_rows(rows, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "x.zarr"
    zarr.create_array(str(path), shape=rows.shape, chunks=(500, 5), dtype="f8")[...] = rows
    return path


@pytest.fixture
def small_plan():
    """Everything in many pieces, in this process."""
    with dask.config.set({"cns_dask.sizes": small.SIZES}):
        yield


@pytest.fixture(scope="session")
def undisturbed(stored_rows):
    """The labels of a run that nothing disturbs, by cells."""
    from cns_dask.pipeline import fit
    from cns_dask.settings import Settings

    with dask.config.set({"cns_dask.sizes": small.SIZES}):
        return fit(stored_rows, Settings(method="cells")).labels.compute()


@pytest.fixture(scope="session")
def object_store():
    """A real object store on this machine, which everything that runs here finds in its environment."""
    pytest.importorskip("moto", reason="needs moto[server]")
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs")
    (port,) = free_ports(1)
    settings = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
    }
    with (
        background(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", port),
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in settings.items():
            patch.setenv(name, value)
        wait_until(lambda: answers(port), "object store", 60)
        yield s3fs.S3FileSystem(skip_instance_cache=True)
