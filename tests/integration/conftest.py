"""Data and references for runs that are disturbed."""

from pathlib import Path

import numpy as np
import pytest
import zarr


@pytest.fixture(scope="session")
def rows() -> np.ndarray:
    """Five overlapping clusters (4000, 5)."""
    rng = np.random.default_rng(11)
    centers = 2.2 * rng.standard_normal((5, 5))
    return centers[rng.integers(5, size=4000)] + rng.standard_normal((4000, 5))


@pytest.fixture(scope="session")
def stored_rows(rows, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("rows") / "x.zarr"
    zarr.create_array(str(path), shape=rows.shape, chunks=(500, 5), dtype="f8")[...] = rows
    return path


@pytest.fixture(scope="session")
def small_plan():
    """Everything in many pieces, in this process."""
    import small

    with pytest.MonkeyPatch.context() as patch:
        changed = {small.pipeline: ("make_plan", "plan_graph", "rows_that_fit"), small.graphs: ("plan_graph",)}
        for module, names in changed.items():
            for name in names:
                patch.setattr(module, name, getattr(module, name))  # undone in the end
        small.shrink()
        yield


@pytest.fixture(scope="session")
def undisturbed(stored_rows, small_plan):
    """The labels of a run that nothing disturbs, by cells."""
    from cns_dask.pipeline import fit
    from cns_dask.settings import Settings

    return fit(stored_rows, Settings(method="cells")).labels.compute()
