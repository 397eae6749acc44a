"""Whether features are scaled to unit variance: tables with units need it, principal components lose most by it.

The variance of a principal component tells how much it says. It is seen from a sample of the rows: components have no
correlation, and their variances fall from one to the next.
"""

from dataclasses import dataclass

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray

#: Stretches of consecutive rows that are sampled, and rows and numbers in all of them. Few stretches are in few chunks.
STRETCHES, SAMPLE_ROWS, SAMPLE_NUMBERS = 16, 8192, 2**23
#: Most features whose correlations are examined.
MOST_FEATURES = 2048
#: Mean of |r| sqrt(n) over pairs of features below which they are uncorrelated. Independent features have 0.8, and
#: tables 2 to 35.
LARGEST_CORRELATION = 1.0
#: Share of features whose variance is below that of the feature before it, and ratio of the largest variance to the
#: smallest, from which variances fall.
LEAST_FALLING, LEAST_RATIO = 0.7, 2.0
#: Largest difference of the norm of a row from 1.
NORM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Scaling:
    """Whether features are scaled, and why."""

    scale: bool
    why: str  # a sentence without its full stop


def choose_scaling(X: da.Array, scale: bool | str, selection: str, *, is_sparse: bool = False) -> Scaling:
    """Decide whether the features of rows X (n, d) are scaled, where the setting leaves it open."""
    if isinstance(scale, bool):
        return Scaling(scale, f"features are {'' if scale else 'not '}scaled: scale={scale} was given")
    if selection == "paper":
        return Scaling(True, "features are scaled: the paper does so")
    if is_sparse:
        return Scaling(False, "features are not scaled: they are sparse")
    kind = dask.delayed(kind_of_rows)(_sample(X)).compute()
    if kind is not None:
        return Scaling(False, f"features are not scaled: {kind}")
    return Scaling(True, "features are scaled to unit variance")


def _sample(X: da.Array) -> list[da.Array]:
    """Return stretches of rows, by their numbers and those of features alone."""
    n_rows, width = X.shape[0], int(np.clip(SAMPLE_NUMBERS // X.shape[1], STRETCHES, SAMPLE_ROWS)) // STRETCHES
    if n_rows <= STRETCHES * width:
        return [X]
    return [X[start : start + width] for start in ((n_rows - width) * at // (STRETCHES - 1) for at in range(STRETCHES))]


def kind_of_rows(parts: list[FloatArray]) -> str | None:
    """Return why rows should not be scaled, in words; None if they should. Those with missing values do not count."""
    rows = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])
    rows = rows[np.isfinite(rows).all(axis=1)]
    if is_normalized(rows):
        return "rows have unit norm"
    return "they are principal components" if are_components(rows) else None


def is_normalized(rows: FloatArray) -> bool:
    """Tell whether all rows have unit norm.

    Examples
    --------
    >>> is_normalized(np.array([[0.6, 0.8], [1.0, 0.0]])), is_normalized(np.array([[1.0, 1.0], [1.0, 0.0]]))
    (True, False)
    """
    if rows.shape[1] < 2 or not len(rows):
        return False
    with np.errstate(over="ignore"):
        norms = np.sqrt((rows * rows).sum(axis=1))
    return bool(np.abs(norms - 1).max() <= NORM_TOLERANCE)


def are_components(rows: FloatArray) -> bool:
    """Tell whether features (n, d) are principal components: uncorrelated, with falling variances."""
    if len(rows) < 3 or not 2 < rows.shape[1] <= MOST_FEATURES:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        centered = rows - rows.mean(axis=0)
        deviations = np.sqrt((centered * centered).mean(axis=0))
    used = deviations > 0
    if not np.isfinite(deviations).all() or used.sum() < 3:
        return False
    scaled, variances = centered[:, used] / deviations[used], deviations[used] ** 2
    correlations = np.abs(scaled.T @ scaled / len(rows))[np.triu_indices(int(used.sum()), 1)]
    is_uncorrelated = correlations.mean() * np.sqrt(len(rows)) < LARGEST_CORRELATION
    falls = np.mean(np.diff(variances) < 0) >= LEAST_FALLING
    return bool(is_uncorrelated and falls and variances.max() >= LEAST_RATIO * variances.min())
