"""The parameters of the method, validated as data, and the grid that they mean for n rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from cns_dask.errors import InvalidSettingError
from cns_dask.types import Grid

METRICS = ("euclidean", "cosine")
METHODS = ("auto", "exact", "cells", "descent")
MISSING = ("error", "skip")

TIGHT_ROWS, LOOSE_TOL = 20_000, 1e-4  # up to so many rows the grid is searched with `tol`; above with this

Check = Callable[[Any], bool]


def _integer(low: int) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= low


def _number(low: float, high: float) -> Check:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and low < value < high


def _each(check: Check) -> Check:
    return lambda value: isinstance(value, tuple) and len(value) > 0 and all(map(check, value))


def _optional(*checks: Check) -> Check:
    return lambda value: value is None or any(check(value) for check in checks)


def _tolerance(value: Any) -> bool:
    return _number(0, 1)(value) and 1e-13 <= value <= 0.1


#: name -> (what the value must be, how that is checked): the only place where a range is written.
CONSTRAINTS: dict[str, tuple[str, Check]] = {
    "metric": (f"one of {METRICS}", lambda value: isinstance(value, str) and value in METRICS),
    "method": (f"one of {METHODS}", lambda value: isinstance(value, str) and value in METHODS),
    "recall": ("a number between 0 and 1 (both excluded)", _number(0, 1)),
    "n_neighbors": (
        "None, a positive integer or a sequence of them",
        _optional(_integer(1), _each(_integer(1))),
    ),
    "lam": (
        "None, a number between 0 and 1 (both excluded) or a sequence of them",
        _optional(_number(0, 1), _each(_number(0, 1))),
    ),
    "n_clusters": ("None or a positive integer", _optional(_integer(1))),
    "k_multipliers": ("a sequence of positive integers", _each(_integer(1))),
    "lam_multipliers": ("a sequence of positive numbers", _each(_number(0, math.inf))),
    "max_clusters": ("a positive integer", _integer(1)),
    "max_candidates": ("a positive integer", _integer(1)),
    "scale": ("True or False", lambda value: isinstance(value, bool)),
    "max_components": ("None or a positive integer", _optional(_integer(1))),
    "tol": ("a number from 1e-13 to 0.1", _tolerance),
    "grid_tol": ("None or a number from 1e-13 to 0.1", _optional(_tolerance)),
    "random_state": ("an integer of at least 0", _integer(0)),
    "missing": (f"one of {MISSING}", lambda value: isinstance(value, str) and value in MISSING),
}


@dataclass(frozen=True)
class Settings:
    """Parameters of a fit. The defaults are the paper's; none has to be set.

    Parameters
    ----------
    metric
        "euclidean" or "cosine".
    method
        How neighbours are found: "exact", "cells" or "descent" (approximately: see `neighbor_graph`), or "auto":
        exactly for few rows and approximately for many.
    recall
        Share of the true neighbours that an approximate search has to find. It is measured.
    n_neighbors
        Fixes k (one integer) or the tried ks (several); the point itself counts as its first neighbour.
        None: `k_multipliers` times floor(ln n).
    lam
        Fixes the weight of the start solution, or the tried ones. None: `lam_multipliers` / sqrt(n).
    n_clusters
        Fixes K. None: the K with the best criterion, 1 to `max_clusters`.
    k_multipliers, lam_multipliers
        The automatic grid; values that a small n does not allow (k >= n, lam >= 1) are left out.
    max_clusters
        Largest number of clusters tried.
    max_candidates
        At most so many points are considered as representatives of clusters.
    scale
        Whether columns are divided by their standard deviation (they are always centred).
    max_components
        More columns than this are projected on as many principal components. None: never.
    tol
        Largest residual of the columns that are kept, which bounds the error of every membership.
    grid_tol
        Largest residual of the columns that the grid is searched with, which decide on k, lam, K and representatives.
        None: `tol` up to 20 000 rows, where it costs little; above 1e-4, in single precision, which led to the same
        decisions wherever we compared.
    random_state
        Seed of the samples of an approximate search, and of the start vector of the spectrum estimate, which can change
        speed, not results beyond `tol`.
    missing
        What to do with rows that hold NaN or infinite values: "error", or "skip": the others are clustered as if these
        were not there, and these get the label -3 (a value is missing) or -2 (one is infinite), no memberships (NaN)
        and confidence 0. Row numbers stay those of the input.

    Examples
    --------
    >>> Settings(metric="cosine").grid(n_rows=1000).ks
    (6, 12, 18, 24)
    >>> Settings(tol=2)
    Traceback (most recent call last):
    cns_dask.errors.InvalidSettingError: tol must be a number from 1e-13 to 0.1. Got 2.
    """

    metric: str = "euclidean"
    method: str = "auto"
    recall: float = 0.99
    n_neighbors: int | tuple[int, ...] | None = None
    lam: float | tuple[float, ...] | None = None
    n_clusters: int | None = None
    k_multipliers: tuple[int, ...] = (1, 2, 3, 4)
    lam_multipliers: tuple[float, ...] = (1, 2, 3, 4, 5)
    max_clusters: int = 30
    max_candidates: int = 300
    scale: bool = True
    max_components: int | None = 100
    tol: float = 1e-9
    grid_tol: float | None = None
    random_state: int = 0
    missing: str = "error"

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, check_setting(field.name, getattr(self, field.name)))

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, as stored with a result.

        Examples
        --------
        >>> Settings(metric="cosine").as_dict()["metric"]
        'cosine'
        """
        return asdict(self)

    def grid(self, n_rows: int) -> Grid:
        """Return the ks, lams and the largest K to try for `n_rows` rows.

        Examples
        --------
        >>> Settings().grid(10_000).ks
        (9, 18, 27, 36)
        """
        ks = self._neighbor_counts(n_rows)
        lams = self._weights(n_rows)
        largest = max(self.max_clusters, self.n_clusters or 1)
        if (self.n_clusters or 1) > n_rows:
            raise InvalidSettingError(
                f"n_clusters must be at most the number of rows ({n_rows}). Got {self.n_clusters}."
            )
        return Grid(ks, lams, min(largest, n_rows))

    def tol_of_grid(self, n_rows: int) -> float:
        """Residual to which the columns of the grid are solved for `n_rows` rows.

        Examples
        --------
        >>> Settings().tol_of_grid(10_000), Settings().tol_of_grid(100_000)
        (1e-09, 0.0001)
        """
        if self.grid_tol is not None:
            return self.grid_tol
        return self.tol if n_rows <= TIGHT_ROWS else max(self.tol, LOOSE_TOL)

    def _neighbor_counts(self, n_rows: int) -> tuple[int, ...]:
        if self.n_neighbors is not None:
            ks = _ascending(_several(self.n_neighbors))
            if ks[-1] >= n_rows:
                raise InvalidSettingError(f"n_neighbors must be below the number of rows ({n_rows}). Got {ks[-1]}.")
            return ks
        unit = math.floor(math.log(n_rows))
        allowed = tuple(k for k in _ascending(max(1, m * unit) for m in self.k_multipliers) if k < n_rows)
        if not allowed:
            raise InvalidSettingError(
                f"k_multipliers times floor(ln n) must hold a value below the number of rows ({n_rows}). "
                f"Got {self.k_multipliers} times {unit}."
            )
        return allowed

    def _weights(self, n_rows: int) -> tuple[float, ...]:
        if self.lam is not None:
            return _ascending(float(lam) for lam in _several(self.lam))
        lams = _ascending(m / math.sqrt(n_rows) for m in self.lam_multipliers)
        allowed = tuple(lam for lam in lams if lam < 1)
        if not allowed:
            raise InvalidSettingError(
                f"lam_multipliers must hold a value below the square root of the number of rows ({n_rows}). "
                f"Got {self.lam_multipliers}."
            )
        return allowed


def check_setting(name: str, value: Any) -> Any:
    """Refuse a value that a parameter cannot have; return it as a plain one."""
    plain = _as_plain(value)
    text, holds = CONSTRAINTS[name]
    if not holds(plain):
        raise InvalidSettingError(f"{name} must be {text}. Got {plain!r}.")
    return plain


def check_integer(name: str, value: Any, low: int, high: int) -> None:
    """Refuse a value that is no integer from `low` to `high`."""
    plain = _as_plain(value)
    if not _integer(low)(plain) or plain > high:
        raise InvalidSettingError(f"{name} must be an integer from {low} to {high}. Got {value!r}.")


def _ascending(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(values)))


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _as_plain(value: Any) -> Any:
    """Turn lists and NumPy scalars or arrays into tuples and Python numbers: settings are stored as JSON."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(_as_plain, value)) if isinstance(value, list | tuple) else value
