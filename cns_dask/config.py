"""Defaults from Dask's configuration: the namespace `cns-dask`, in files, environment variables or `dask.config.set`.

    dask.config.set({"cns-dask.scratch": "/fast/disk"})
    DASK_CNS_DASK__WORKERS=4 cns-dask fit data.zarr --out clusters.zarr

Arguments and options that are given win. `cns-dask.yaml` lists the keys with their defaults.
"""

from pathlib import Path
from typing import Any

import dask
import yaml
from dask.utils import parse_bytes

from cns_dask.errors import InvalidSettingError

DEFAULTS = yaml.safe_load(Path(__file__).with_name("cns-dask.yaml").read_text(encoding="utf-8"))
dask.config.update_defaults(DEFAULTS)
LEAST_ROWS = 1000  # of a sample


def default_scratch() -> str | None:
    """Folder for intermediate arrays; None: beside the output.

    Examples
    --------
    >>> with dask.config.set({"cns-dask.scratch": "/fast/disk"}):
    ...     default_scratch()
    '/fast/disk'
    """
    value = _value("scratch")
    return None if value is None else _checked("scratch", value, str, "a path or URL")


def default_workers() -> int:
    """Worker processes that a fit starts if no client is active."""
    workers: int = _checked("workers", _value("workers") or 0, int, "a number of processes, at least 0")
    if workers < 0:
        raise _wrong("workers", workers, "a number of processes, at least 0")
    return workers


def default_memory() -> int | None:
    """Memory limit of each worker that is started, in bytes; None: Dask's own.

    Examples
    --------
    >>> with dask.config.set({"cns-dask.memory": "2GiB"}):
    ...     default_memory()
    2147483648
    """
    value = _value("memory")
    return None if value is None else memory_bytes("cns-dask.memory in Dask's configuration", value)


def memory_bytes(name: str, text: Any) -> int:
    """A size in bytes, of a number or of text as 8GiB."""
    try:
        n_bytes = int(parse_bytes(text))
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise InvalidSettingError(f"{name} must be a size as 8GiB. Got {text!r}.") from error
    if n_bytes < 1:
        raise InvalidSettingError(f"{name} must be a size as 8GiB. Got {text!r}.")
    return n_bytes


def default_sample(n_rows: int) -> float | None:
    """Sample of data with so many rows; None: all of them, also if these are few, or the sample would have few.

    Examples
    --------
    >>> with dask.config.set({"cns-dask.sample": 1000}):
    ...     default_sample(500), default_sample(5000)
    (None, 1000)
    """
    value = _value("sample")
    if value is None:
        return None
    sample: float = _checked("sample", value, (int, float), "a number of rows, or a share of them below 1")
    n_sampled = sample if sample >= 1 else sample * n_rows
    return None if n_sampled >= n_rows or n_sampled < LEAST_ROWS else sample


def wants_report() -> bool:
    """Whether a fit that keeps its result also writes a report beside it."""
    return bool(_checked("report", _value("report") or False, bool, "true or false"))


def report_path(out: Any, wanted: bool | None = None) -> Path | None:
    """Where the report of a result goes if it is wanted, by default as configured: beside the result.

    None for URLs and temporary ones.

    Examples
    --------
    >>> with dask.config.set({"cns-dask.report": True}):
    ...     print(report_path("results/clusters.zarr"), report_path("s3://bucket/clusters.zarr"))
    results/clusters.html None
    """
    if out is None or not (wants_report() if wanted is None else wanted) or "://" in str(out):
        return None
    path = Path(out)
    return path.with_suffix(".html") if path.suffix == ".zarr" else path.with_name(f"{path.name}.html")


def _value(name: str) -> Any:
    return dask.config.get(f"cns-dask.{name}", None)


def _checked(name: str, value: Any, kind: Any, words: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _wrong(name, value, words)
    return value


def _wrong(name: str, value: Any, words: str) -> InvalidSettingError:
    return InvalidSettingError(f"cns-dask.{name} in Dask's configuration must be {words}. Got {value!r}.")
