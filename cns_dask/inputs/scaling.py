"""Whether features are scaled to unit variance: tables with units need it, principal components lose most by it.

The variance of a principal component tells how much it says. It is seen from a sample of the rows: components have no
correlation, and their variances fall from one to the next. Other features are scaled within their modes: see `modes`.
"""

from dataclasses import dataclass

import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.inputs.modes import within_modes

#: Rows and numbers of the sample, at most.
SAMPLE_ROWS, SAMPLE_NUMBERS = 8192, 2**23
#: Most features whose correlations are examined.
MOST_FEATURES = 2048
#: Mean |r| over pairs of features, relative to that of uncorrelated ones in a sample, below which there is no
#: correlation. Tables have 2 to 60.
SAMPLING_NOISE = 1.25
#: Mean |r| below which many features are nearly uncorrelated, and the number that is many: components that were found
#: in other rows, whose variances would hardly fall by chance. Tables have 0.03 to 0.6.
NEARLY_UNCORRELATED, MANY_FEATURES = 0.15, 8
#: Rank correlation of variance and position, and ratio of the largest variance to the smallest, from which variances
#: fall.
FALLING_RANKS, LEAST_RATIO = -0.9, 2.0
#: How most tables are treated.
UNIT_VARIANCE = "features are scaled to unit variance"
#: Largest difference of the norm of a row from 1.
NORM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class Scaling:
    """Whether features are scaled, and why."""

    scale: bool
    why: str | None = None  # a sentence without its full stop
    within_modes: FloatArray | None = None  # deviation of each feature within its modes, relative to its deviation


def known_scaling(scale: bool | str, selection: str, *, is_sparse: bool = False) -> Scaling | None:
    """Decide whether features are scaled without looking at the rows; None where these decide."""
    if isinstance(scale, bool):
        return Scaling(scale, f"features are {'' if scale else 'not '}scaled: scale={scale} was given")
    if selection == "paper":
        return Scaling(True, "features are scaled: the paper does so")
    return Scaling(False, "features are not scaled: they are sparse") if is_sparse else None


def scaling_sample(X: da.Array) -> da.Array:
    """Return rows of X (n, d) at equal distances, so that sorted rows are sampled evenly too."""
    n_sampled = int(np.clip(SAMPLE_NUMBERS // X.shape[1], 1, SAMPLE_ROWS))
    return X[:: -(-X.shape[0] // n_sampled)]


def scaling_of(sample: FloatArray) -> Scaling:
    """Decide whether features are scaled from a sample of the rows (m, d)."""
    rows = np.asarray(sample, dtype=np.float64)
    if is_normalized(rows):
        return Scaling(False, "features are not scaled: rows have unit norm")
    if are_components(rows):
        return Scaling(False, "features are not scaled: they are principal components")
    shares = within_modes(np.unique(rows, axis=0))  # copies are no modes
    n_modal = np.count_nonzero(shares < 1)
    if n_modal == 0:
        return Scaling(True, UNIT_VARIANCE)
    return Scaling(True, f"{UNIT_VARIANCE}, {n_modal} of {len(shares)} within their modes", shares)


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
    pairs = np.triu_indices(len(variances), 1)
    correlations = np.abs(scaled.T @ scaled / len(rows))[pairs].mean()
    squares = scaled**2
    noise = np.sqrt(2 / np.pi * (squares.T @ squares)[pairs]).mean() / len(rows)  # of r where features are uncorrelated
    limit = NEARLY_UNCORRELATED if len(variances) >= MANY_FEATURES else 0.0
    is_uncorrelated = correlations < max(SAMPLING_NOISE * noise, limit)
    ranks = np.argsort(np.argsort(variances, kind="stable"), kind="stable")
    falls = np.corrcoef(ranks, np.arange(len(ranks)))[0, 1] <= FALLING_RANKS
    return bool(is_uncorrelated and falls and variances.max() >= LEAST_RATIO * variances.min())
