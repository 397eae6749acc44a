"""Whether features are scaled to unit variance: tables with units need it, principal components lose most by it.

The variance of a principal component tells how much it says. It is seen from a sample of the rows: components have no
correlation, and their variances fall from one to the next.
"""

from dataclasses import dataclass

import dask
import numpy as np

from cns_dask.array_types import FloatArray
from cns_dask.inputs.forms import Data

#: Stretches of consecutive rows that are sampled, and rows in all of them. Few stretches are in few chunks.
STRETCHES, SAMPLE_ROWS = 16, 8192
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


def choose_scaling(data: Data, scale: bool | str, selection: str) -> Scaling:
    """Decide whether the features of some data are scaled, where the setting leaves it open."""
    if isinstance(scale, bool):
        return Scaling(scale, f"features are {'' if scale else 'not '}scaled: scale={scale} was given")
    if selection == "paper":
        return Scaling(True, "features are scaled: the paper does so")
    if data.is_sparse:
        return Scaling(False, "features are not scaled: they are sparse")
    rows = _sample(data)
    if is_normalized(rows):
        return Scaling(False, "features are not scaled: rows have unit norm")
    if are_components(rows):
        return Scaling(False, "features are not scaled: they are principal components")
    return Scaling(True, "features are scaled to unit variance")


def _sample(data: Data) -> FloatArray:
    """Return rows of evenly spaced stretches, by their numbers alone; those with missing values are left out."""
    n_rows, width = data.X.shape[0], SAMPLE_ROWS // STRETCHES
    if n_rows <= SAMPLE_ROWS:
        parts = [data.X]
    else:
        starts = [(n_rows - width) * at // (STRETCHES - 1) for at in range(STRETCHES)]
        parts = [data.X[start : start + width] for start in starts]
    rows = np.concatenate([np.asarray(part, dtype=np.float64) for part in dask.compute(*parts)])
    return np.asarray(rows[np.isfinite(rows).all(axis=1)])


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
