"""What a fit needs of its surroundings, looked at one by one: for questions of users, and before a long run."""

import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cns_dask.cli.options import SchedulerOptions
from cns_dask.errors import CNSError, one_line

PACKAGES = (
    "cns_dask",
    "dask",
    "distributed",
    "dask-ml",
    "numpy",
    "scipy",
    "scikit-learn",
    "numba",
    "pynndescent",
    "zarr",
    "pandas",
)
OPTIONAL = {
    "bokeh": "Dask's dashboard",
    "matplotlib": "plots",
    "xarray": "xarray and netCDF",
    "anndata": "AnnData",
    "s3fs": "object stores",
    "dask-jobqueue": "Slurm",
}
LEAST_MEMORY, LEAST_SPACE = 2**30, 2**30
DEADLOCK_ENDS = (3, 11, 10)  # before, Python 3.11 may deadlock in `sys._current_frames`, which Dask's profiler calls


@dataclass(frozen=True)
class Finding:
    """Something that was looked at."""

    subject: str
    status: str  # "well", "note" if it may matter, "wrong" if a fit would fail
    found: str


def examine(cluster: SchedulerOptions, scratch: str | None, *, debug: bool = False) -> list[Finding]:
    """Look at everything; what goes wrong on the way is a finding too."""
    looks: dict[str, Callable[[], Iterator[Finding]]] = {
        "packages": _packages,
        "threads": _threads,
        "memory": _memory,
        "scratch": lambda: _scratch(scratch),
        "kernels": _kernels,
        "scheduler": lambda: _scheduler(cluster, debug=debug),
    }
    findings: list[Finding] = []
    for subject, look in looks.items():
        try:
            findings += look()
        except (CNSError, OSError, ImportError) as error:
            findings.append(Finding(subject, "wrong", one_line(error)))
    return findings


def _packages() -> Iterator[Finding]:
    python = f"{platform.python_version()} on {platform.platform(terse=True)}"
    hangs = (3, 11) <= sys.version_info < DEADLOCK_ENDS
    advice = ": workers that you start yourself may hang, unless distributed.worker.profile.enabled is False"
    yield Finding("Python", "note" if hangs else "well", python + (advice if hangs else ""))
    for name in PACKAGES:
        version = _version(name)
        yield Finding(name, "wrong" if version is None else "well", version or "not installed")
    for name, use in OPTIONAL.items():
        version = _version(name)
        yield Finding(name, "note" if version is None else "well", version or f"not installed, only needed for {use}")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _threads() -> Iterator[Finding]:
    import dask.system

    usable, there = dask.system.CPU_COUNT, os.cpu_count()
    limited = "" if usable == there else f" of {there}: this process may not use the others"
    yield Finding("threads", "well", f"{usable}{limited}")
    pools = {name: os.environ[name] for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS") if name in os.environ}
    layer = os.environ.get("NUMBA_THREADING_LAYER")
    if layer == "omp":
        yield Finding("threads", "note", "NUMBA_THREADING_LAYER=omp: two searches at once may abort. Leave it unset")
    if pools:
        yield Finding("threads", "note", ", ".join(f"{name}={value}" for name, value in pools.items()))


def _memory() -> Iterator[Finding]:
    import psutil
    from dask.utils import format_bytes

    from cns_dask.execution.cluster import machine_memory

    machine = psutil.virtual_memory()
    limit = machine_memory()
    free = min(limit, machine.available)
    limited = f", limited to {format_bytes(limit)} here (container or ulimit)" if limit < machine.total else ""
    status = "well" if free >= LEAST_MEMORY else "wrong"
    yield Finding("memory", status, f"{format_bytes(free)} free of {format_bytes(machine.total)}{limited}")


def _scratch(scratch: str | None) -> Iterator[Finding]:
    from dask.utils import format_bytes

    from cns_dask.config import default_scratch

    place = scratch or default_scratch() or os.curdir
    if "://" in place:
        from cns_dask.storage.locations import Location

        location = Location(place) / "cns-dask-doctor"
        location.write("test", b"test")
        location.remove("test")
        yield Finding("scratch", "well", f"{place} can be written")
        return
    folder = Path(place).absolute()
    if not folder.is_dir():
        yield Finding("scratch", "wrong", f"{folder} is not a folder. Create it, or give another one with --scratch")
        return
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"test")
        file.flush()
    free = shutil.disk_usage(folder).free
    status = "well" if free >= LEAST_SPACE else "note"
    yield Finding("scratch", status, f"{folder} can be written, {format_bytes(free)} free")


def _kernels() -> Iterator[Finding]:
    from cns_dask.warmup import compiled_kernels

    done, lost = compiled_kernels()
    text = f"{len(done)} of {len(done) + len(lost)} compiled"
    more = "; the first fit compiles the others: cns-dask warmup does it now" if lost else ""
    yield Finding("kernels", "note" if lost else "well", f"{text}{more}")


def _scheduler(cluster: SchedulerOptions, *, debug: bool) -> Iterator[Finding]:
    if cluster.address is None:
        yield Finding("scheduler", "well", "none given with --scheduler")
        return
    from dask.utils import format_bytes

    from cns_dask.execution.cluster import on_every_worker, processes

    with cluster.connect(debug=debug):
        workers = list(processes())
        limits = [limit for _, _, limit in workers if limit]
        size = f", {format_bytes(min(limits))} of memory or more each" if limits else ""
        threads = sum(count for _, count, _ in workers)
        found = f"{cluster.address} answers: {len(workers)} worker(s), {threads} thread(s){size}"
        yield Finding("scheduler", "well", found)
        here = _own_versions()
        others = {name: versions for name, versions in on_every_worker(_own_versions).items() if versions != here}
        for name, versions in others.items():
            differing = [f"{key} {versions.get(key)} instead of {value}" for key, value in here.items()]
            words = [text for text, key in zip(differing, here, strict=True) if versions.get(key) != here[key]]
            yield Finding(name, "wrong", f"other versions than here: {', '.join(words)}")


def _own_versions() -> dict[str, Any]:
    """Versions that have to be the same everywhere."""
    return {"Python": platform.python_version(), **{name: _version(name) for name in PACKAGES[:3]}}
