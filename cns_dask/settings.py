"""The parameters of the method, validated as data, and the grid that they mean for n rows."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cns_dask.errors import InvalidSettingError

#: Up to so many rows the grid is evaluated to `tol`; above to this looser residual.
TIGHT_ROWS, LOOSE_TOL = 20_000, 1e-4
#: Largest K that is tried where `max_clusters` does not say it: by the paper's criterion, and by their scale.
PAPER_CLUSTERS, SCALE_CLUSTERS = 30, 50
#: More rows may have more clusters: by their scale up to half of sqrt(n) are tried, but no more than this, half of the
#: 300 candidates. If none of them stands out only numbers up to SCALE_CLUSTERS count.
MANY_SCALE_CLUSTERS = 150
MAX_ROWS = 10**12  # that anybody may ask about

#: Up to so many rows the search is exact. The lines cross near 10 000, in 2 as in 100 dimensions (measured by
#: `examples/benchmarks/neighbors.py --parts crossover`); at twice that exactness costs a second more, and is kept.
EXACT_ROWS = 20_000
SEARCH_RULE = f"exact for up to {EXACT_ROWS} rows; above in cells, or by descent where a sample shows it is cheaper"
SEARCH_HELP = f"Search for neighbours: exact, cells, descent, or auto: {SEARCH_RULE}."
RECALL_HELP = "Share of the neighbours that an approximate search has to find."

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


@dataclass(frozen=True)
class Grid:
    """The (k, lam, K) that a fit tries; its (k, lam) pairs are the grid points."""

    ks: tuple[int, ...]  # numbers of neighbours, the point itself included, ascending
    lams: tuple[float, ...]  # weights of the start solution, ascending
    max_clusters: int  # largest number of clusters by the paper's criterion; smaller ones come with it for free
    max_scale: int = SCALE_CLUSTERS  # largest number of clusters by their scale
    few_scale: int | None = None  # if none stands out, only numbers up to this count; None: all count


Allowed = tuple[str, Check]  # what a value must be, in words and as a check
METRICS, METHODS = ("euclidean", "cosine"), ("auto", "exact", "cells", "descent")
SELECTIONS, ABOUT_MISSING = ("auto", "paper", "scales", "communities"), ("error", "skip")
POSITIVE: Allowed = ("a positive integer", _integer(1))
SOME_POSITIVE: Allowed = ("None or a positive integer", _optional(_integer(1)))
TOLERANCE: Allowed = ("a number from 1e-13 to 0.1", _tolerance)
SOME_TOLERANCE: Allowed = ("None or a number from 1e-13 to 0.1", _optional(_tolerance))
MULTIPLES: Allowed = ("a sequence of positive integers", _each(_integer(1)))
FACTORS: Allowed = ("a sequence of positive numbers", _each(_number(0, math.inf)))
TRUE_OR_FALSE: Allowed = ("True or False", lambda value: isinstance(value, bool))
AUTO_OR_BOOL: Allowed = ("'auto', True or False", lambda value: isinstance(value, bool) or value == "auto")
SOME_KS: Allowed = ("None, a positive integer or a sequence of them", _optional(_integer(1), _each(_integer(1))))
SOME_LAMS: Allowed = (
    "None, a number between 0 and 1 (both excluded) or a sequence of them",
    _optional(_number(0, 1), _each(_number(0, 1))),
)


def _one_of(*words: str) -> Allowed:
    return f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words


def setting(
    default: Any, allowed: Allowed, help_text: str, *, parse: type | None = None, words: tuple[str, ...] = ()
) -> Any:
    """A field of `Settings`: the only place where its default, its range and its help are written.

    `parse` is the type of each of several values that the command line separates by commas. `words` are all values, if
    these are words.
    """
    return field(default=default, metadata={"allowed": allowed, "help": help_text, "parse": parse, "words": words})


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
        Largest number of clusters tried. None: 30 by the paper's criterion; by their scale 50, or above 10 000 rows
        half the square root of the number of rows, up to 150.
    min_cluster_size
        Fewest rows of a cluster. None: twice k, or a tenth of the rows if that is less. `selection="paper"` knows no
        such limit.
    noise
        Whether rows from which no representative of a cluster is reached get the label -1. Otherwise they are in the
        first cluster, with confidence 0.
    selection
        What chooses k, lam and K: "paper", its criterion; "scales", the gaps between the rates at which walks mix
        inside clusters and leave them (see `cns_dask.smoothing.scales`), and one cluster where there is no structure;
        "communities", groups of basins of largest modularity whose borders are real (see
        `cns_dask.smoothing.communities`, `cns_dask.smoothing.borders` and `cns_dask.smoothing.islands`); or "auto":
        communities in more than three intrinsic dimensions, and scales in fewer, or where communities have no border.
        All of them are stored.
    max_candidates
        At most so many points are considered as representatives of clusters.
    scale
        Whether features are divided by their standard deviation (they are always centred). "auto": not if they are
        principal components (uncorrelated, with falling variances), have unit norm, or are sparse; otherwise yes, and
        features with several modes by their deviation within these. With `selection="paper"` "auto" is True.
    max_components
        More features than this are projected on as many principal components. None: never.
    tol
        Largest residual of the absorption that is stored, which bounds the error of every membership.
    grid_tol
        Largest residual of the absorption that the grid is evaluated with, which decides on k, lam, K and
        representatives.
        None: `tol` up to 20 000 rows, where it costs little; above 1e-4, in single precision. With
        `selection="paper"` the k that wins, and others that could, are then evaluated once more to `tol`.
    random_state
        Seed of the samples of an approximate search, of the rows that `sample` draws, and of the start vector of the
        spectrum estimate, which can change speed, not results beyond `tol`. None: a new one for every fit, which is
        stored with the result; a run that goes on with unfinished work takes that of the work.
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

    metric: str = setting("euclidean", _one_of(*METRICS), "euclidean or cosine.", words=METRICS)
    method: str = setting("auto", _one_of(*METHODS), SEARCH_HELP, words=METHODS)
    recall: float = setting(0.99, ("a number between 0 and 1 (both excluded)", _number(0, 1)), RECALL_HELP)
    n_neighbors: int | tuple[int, ...] | None = setting(None, SOME_KS, "Fix k, or the ks to try.", parse=int)
    lam: float | tuple[float, ...] | None = setting(None, SOME_LAMS, "Fix lam, or the lams to try.", parse=float)
    n_clusters: int | None = setting(None, SOME_POSITIVE, "Fix the number of clusters.")
    k_multipliers: tuple[int, ...] = setting((1, 2, 3, 4), MULTIPLES, "Tried ks: these times floor(ln n).", parse=int)
    lam_multipliers: tuple[float, ...] = setting((1, 2, 3, 4, 5), FACTORS, "Tried lams: these / sqrt(n).", parse=float)
    max_clusters: int | None = setting(None, SOME_POSITIVE, "Most clusters to try.")
    min_cluster_size: int | None = setting(None, SOME_POSITIVE, "Fewest rows of a cluster.")
    noise: bool = setting(False, TRUE_OR_FALSE, "Label rows that no cluster reaches -1.")
    selection: str = setting("auto", _one_of(*SELECTIONS), "What chooses k, lam and K.", words=SELECTIONS)
    max_candidates: int = setting(300, POSITIVE, "Most candidate representatives.")
    scale: bool | str = setting("auto", AUTO_OR_BOOL, "Scale features to unit variance.", words=("auto",))
    max_components: int | None = setting(100, SOME_POSITIVE, "Project more features on so many axes; 0: never.")
    tol: float = setting(1e-9, TOLERANCE, "Largest residual of the stored absorption.")
    grid_tol: float | None = setting(None, SOME_TOLERANCE, "The same while the grid is evaluated.")
    random_state: int | None = setting(0, ("None or an integer of at least 0", _optional(_integer(0))), "Seed.")
    missing: str = setting(
        "error", _one_of(*ABOUT_MISSING), "NaN or infinite values: error, or skip the rows.", words=ABOUT_MISSING
    )

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, check_setting(each.name, getattr(self, each.name)))

    @property
    def seed(self) -> int:
        """`random_state` as a number; 0 where none was drawn yet."""
        return self.random_state or 0

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
        >>> [Settings().grid(n_rows).max_scale for n_rows in (1_000, 40_000, 1_000_000)]
        [50, 100, 150]
        """
        n_rows = check_integer("n_rows", n_rows, 2, MAX_ROWS)
        ks = self._neighbor_counts(n_rows)
        lams = self._weights(n_rows)
        many = min(max(SCALE_CLUSTERS, math.isqrt(n_rows) // 2), MANY_SCALE_CLUSTERS)
        largest, scale = (max(self.max_clusters or default, self.n_clusters or 1) for default in (PAPER_CLUSTERS, many))
        for name in ("n_clusters", "min_cluster_size"):
            if (getattr(self, name) or 1) > n_rows:
                raise InvalidSettingError(
                    f"{name} must be at most the number of rows ({n_rows}). Got {getattr(self, name)}."
                )
        return Grid(ks, lams, min(largest, n_rows), min(scale, n_rows), self.few_scale)

    @property
    def few_scale(self) -> int | None:
        """Numbers of clusters up to which count by their scale if none stands out; None: all."""
        return SCALE_CLUSTERS if self.max_clusters is None and self.n_clusters is None else None

    def tol_of_grid(self, n_rows: int) -> float:
        """Residual to which the grid is evaluated for `n_rows` rows.

        Examples
        --------
        >>> Settings().tol_of_grid(10_000), Settings().tol_of_grid(100_000)
        (1e-09, 0.0001)
        """
        if self.grid_tol is not None:
            return self.grid_tol
        return self.tol if n_rows <= TIGHT_ROWS else max(self.tol, LOOSE_TOL)

    def tightens(self, n_rows: int) -> bool:
        """Whether the paper's choice is made certain: what could win is evaluated once more, to `tol`.

        Examples
        --------
        >>> Settings(selection="paper").tightens(100_000), Settings().tightens(100_000)
        (True, False)
        """
        return self.selection == "paper" and self.grid_tol is None and self.tol_of_grid(n_rows) > self.tol

    @property
    def finds_communities(self) -> bool:
        """Whether a fit finds communities."""
        return self.selection in ("auto", "communities")

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
                f"No k of the grid is below the number of rows ({n_rows}): k_multipliers {self.k_multipliers} times "
                f"floor(ln n) = {unit}. Use smaller ones, or n_neighbors."
            )
        return allowed

    def _weights(self, n_rows: int) -> tuple[float, ...]:
        if self.lam is not None:
            return _ascending(float(lam) for lam in _several(self.lam))
        lams = _ascending(m / math.sqrt(n_rows) for m in self.lam_multipliers)
        allowed = tuple(lam for lam in lams if lam < 1)
        if not allowed:
            raise InvalidSettingError(
                f"No lam of the grid is below 1: lam_multipliers {self.lam_multipliers} divided by the square root of "
                f"the number of rows ({n_rows}). Use smaller ones, or lam."
            )
        return allowed


def check_setting(name: str, value: Any) -> Any:
    """Refuse a value that a parameter cannot have; return it as a plain one."""
    plain = as_plain(value)
    text, is_allowed = Settings.__dataclass_fields__[name].metadata["allowed"]
    if not is_allowed(plain):
        raise InvalidSettingError(f"{name} must be {text}. Got {plain!r}.")
    return plain


def check_integer(name: str, value: Any, low: int, high: int) -> int:
    """Refuse a value that is no integer from `low` to `high`; return it as a plain one."""
    plain = as_plain(value)
    if not _integer(low)(plain) or plain > high:
        raise InvalidSettingError(f"{name} must be an integer from {low} to {high}. Got {plain!r}.")
    return int(plain)


def check_settings(settings: Any) -> Settings:
    """The settings, or the default ones for None; an error for anything else."""
    if settings is not None and not isinstance(settings, Settings):
        raise InvalidSettingError(f"settings must be Settings(...), not {type(settings).__name__}.")
    return settings or Settings()


def _ascending(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(sorted(set(values)))


def _several(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def as_plain(value: Any) -> Any:
    """Turn lists and NumPy scalars or arrays into tuples and Python numbers: settings are stored as JSON."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(as_plain, value)) if isinstance(value, list | tuple) else value


def choose_method(n_rows: int, method: str = "auto", exact_rows: int = EXACT_ROWS) -> str:
    """The method that "auto" stands for before the data are read: see SEARCH_RULE.

    Whether "descent" replaces "cells" is decided when a sample has shown how many rows a search would meet.

    Examples
    --------
    >>> choose_method(20_000), choose_method(20_001)
    ('exact', 'cells')
    """
    if method != "auto":
        return method
    return "exact" if n_rows <= exact_rows else "cells"
