"""Compile before the first fit: everything that a worker would compile while others wait for it.

Our own kernels are compiled once for an installation, and kept. pynndescent, which `method="descent"` needs, is
compiled in every process anew, for most of a minute. As a preload of workers this is done before they join:

    dask worker --preload cns_dask.warmup ...
"""

import logging
import time
import warnings
from pathlib import Path
from typing import Any

import dask

from cns_dask import numeric, pipeline
from cns_dask.demo import demo_points
from cns_dask.errors import CNSError
from cns_dask.neighbors import descent, distances
from cns_dask.settings import Settings
from cns_dask.smoothing import passes

LOG = logging.getLogger("distributed.preloading")  # where Dask's workers tell about their start
#: Fits that compile our kernels: each search, in both precisions.
FITS = Settings(method="exact"), Settings(method="cells", grid_tol=1e-4), Settings(method="descent", grid_tol=1e-4)


def warm_up() -> dict[str, float]:
    """Compile the kernels and pynndescent in this process; return the seconds that each took."""
    began = time.perf_counter()
    with dask.config.set(scheduler="synchronous"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of a few rows: only what they compile counts
        for settings in FITS:
            pipeline.fit(demo_points(), settings)
    compiled = time.perf_counter()
    descent.warm_up(n_features=2, n_neighbors=8)  # a few rows are compared without it
    return {"kernels": compiled - began, "pynndescent": time.perf_counter() - compiled}


def compiled_kernels() -> tuple[list[str], list[str]]:
    """Names of our kernels that are compiled for this installation, and of those that are not yet."""
    done: list[str] = []
    lost: list[str] = []
    for module in (numeric, distances, passes):
        for name, kernel in vars(module).items():
            if hasattr(kernel, "py_func") and kernel.__module__ == module.__name__:
                stored = Path(kernel.stats.cache_path).glob(f"{module.__name__.rpartition('.')[2]}.{name}-*.nbi")
                (done if any(stored) else lost).append(name)
    return done, lost


def dask_setup(worker: Any) -> None:  # noqa: ARG001 - Dask calls it so
    """Warm up a worker before it joins; one that cannot be warmed joins all the same."""
    try:
        seconds = warm_up()
    except (CNSError, OSError, ImportError) as error:
        LOG.warning("cns_dask is not warmed up: %s", error)
        return
    LOG.info("cns_dask is warmed up: %s", seconds_in_words(seconds))


def seconds_in_words(seconds: dict[str, float]) -> str:
    """One line about what was compiled."""
    return ", ".join(f"{name} in {took:.1f} s" for name, took in seconds.items())
