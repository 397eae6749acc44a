"""Centring, scaling, projection and, for cosine, division by the norm; the fitted transform that new rows need too.

The only door to dask-ml, which finds principal axes of wide rows. This is the one stage that runs work on its own.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import ApproximateAxesWarning, InvalidDataError
from cns_dask.execution.compute import merged
from cns_dask.execution.plan import Stage, Step
from cns_dask.inputs.scaling import Scaling, scaling_of, scaling_sample
from cns_dask.numeric import project_block
from cns_dask.storage.chunks import FLOAT_BYTES
from cns_dask.storage.layout import ArrayPlan
from cns_dask.storage.records import recordable

SMALLEST = 2.0**-250  # squares of smaller values, and of larger ones than its inverse, may leave the range
FACTOR_BYTES = 256 * 2**20  # of the factors of all chunks, which are in one task's memory together
POWER_STEPS = 4  # of the subspace iteration
AXES_TOL = 0.05  # relative residual of axes; the variance along them is then within some percent of the largest
SPARE_VECTORS = 10  # of the subspace iteration, beyond those that are wanted
SHOWN_ROWS = 5  # of those that an error names
TINY = float(np.finfo(np.float64).tiny)
EPSILON = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class TransformSummary:
    """What is stored of a transform besides its arrays."""

    n_features: int  # as of a `Transform`
    normalize: bool
    magnitude: float
    axes_error: float | None = None
    is_scaled: bool = True
    scaling: str | None = None


@recordable
@dataclass(frozen=True)
class Transform:
    """The fitted preprocessing: everything that turns a raw row into the row that the neighbours saw."""

    n_features: int  # number of raw features
    kept: IntArray  # raw features that are not constant (kept,)
    center: FloatArray  # subtracted from, then divided out of, every kept feature (kept,)
    scale: FloatArray
    components: FloatArray | None  # principal axes as columns (kept, components), or None without projection
    normalize: bool  # whether rows are divided by their norm (cosine distance)
    #: Norm that a row of the largest scaled values would have: rounding errors of the centring are a few units in its
    #: last place
    magnitude: float
    axes_error: float | None = None  # relative residual of axes that were found by iteration; None for exact ones
    is_scaled: bool = True  # whether features are scaled to unit variance, and why
    scaling: str | None = None
    by_modes: bool = False  # whether the variance of some is that within their modes

    @property
    def scale_setting(self) -> bool | str:
        """The setting that scales these rows in this way."""
        return "auto" if self.by_modes else self.is_scaled

    @property
    def summary(self) -> TransformSummary:
        """What is stored of it besides its arrays."""
        return TransformSummary(
            self.n_features, self.normalize, self.magnitude, self.axes_error, self.is_scaled, self.scaling
        )


def preprocess_stages(n_rows: int, n_features: int, n_components: int, rows_per_chunk: int) -> tuple[Stage, Stage]:
    """Learn the transform, then apply it: rows of `n_features` become points of `n_components`."""
    chunks, work = -(-n_rows // rows_per_chunk), n_rows * n_features
    axes = FLOAT_BYTES * n_features * n_components if n_features > n_components else 0  # and partial sums as large
    held = 5 * (FLOAT_BYTES * rows_per_chunk * n_features + axes)  # as stored, as numbers, and in between
    factors = FLOAT_BYTES * chunks * n_features**2
    if axes and factors <= FACTOR_BYTES:
        held = max(held, 3 * factors)  # together, and while they become one
    points = ArrayPlan("points", (n_rows, n_components), (rows_per_chunk, n_components))
    raw = ArrayPlan("raw rows", (n_rows, n_features), (rows_per_chunk, n_features))
    return (
        Stage("preprocess", (Step("learn_transform", chunks, held, work, recorded=False),), reads=(raw,)),
        Stage("points", (Step("transform", chunks, held, work),), reads=(raw,), writes=(points,)),
    )


def learn_transform(
    X: da.Array,
    *,
    metric: str,
    scale: bool | Scaling | None,
    max_components: int | None,
    center: bool = True,
    sparse: da.Array | None = None,
) -> Transform:
    """Learn the transform of the method's section "Data" from the rows of X (n, d), which may be `sparse` too.

    Where `scale` is None the rows decide whether features are scaled: see `inputs.scaling`. Without `center` the mean
    is not subtracted: so rows fit a graph of rows as they are.

    Raises
    ------
    InvalidDataError
        If a value is NaN or infinite; the first such rows are named.
    """
    sample = scaling_sample(X) if scale is None else None
    lowest, highest, sample = dask.compute(X.min(axis=0), X.max(axis=0), sample)
    if not (np.isfinite(lowest) & np.isfinite(highest)).all():
        _refuse_not_finite(X)
    scaling = scaling_of(sample) if scale is None else scale if isinstance(scale, Scaling) else Scaling(scale)
    kept = np.flatnonzero(highest > lowest)
    if kept.size == 0:
        kept = np.array([0])  # constant data: one feature of zeros, where all distances are 0
    unit = units_of(np.maximum(np.abs(lowest), np.abs(highest))[kept], scale=scaling.scale)
    ordinary = bool((unit == 1).all())
    mean, deviation = _mean_and_deviation(X[:, kept] if ordinary else X[:, kept] / unit, scale=scaling.scale)
    if scaling.within_modes is not None:
        deviation *= scaling.within_modes[kept]
    transform = Transform(
        n_features=X.shape[1],
        kept=kept,
        center=mean * unit if center else np.zeros(kept.size),
        scale=deviation * unit,
        components=None,
        normalize=metric == "cosine",
        magnitude=0.0,
        is_scaled=scaling.scale,
        scaling=scaling.why,
        by_modes=scaling.within_modes is not None,
    )
    magnitude = np.maximum(np.abs(lowest), np.abs(highest))[kept] / transform.scale
    transform = replace(transform, magnitude=float(np.linalg.norm(magnitude)))
    if max_components is None or kept.size <= max_components:
        return transform
    return with_components(X, transform, max_components, sparse)


def _mean_and_deviation(X: da.Array, *, scale: bool) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation (1 without `scale`) of every feature: the numbers of dask-ml's StandardScaler.

    In dask's own words, so that a fit without principal axes does not load dask-ml, which takes seconds.
    """
    mean, variance = dask.compute(da.nanmean(X, axis=0), da.nanvar(X, axis=0) if scale else np.ones(X.shape[1]))
    return np.asarray(mean), np.sqrt(np.where(variance == 0, 1.0, variance))


def units_of(largest: FloatArray, *, scale: bool) -> FloatArray:
    """What to divide features by before their squares are summed: 1, or a power of two if these would leave the range.

    Features that are not scaled share one unit, so that their distances keep their proportions.
    """
    largest = largest if scale else np.full_like(largest, largest.max())
    extreme = (largest > 1 / SMALLEST) | (largest < SMALLEST)
    return np.where(extreme & (largest > 0), np.ldexp(1.0, np.frexp(largest)[1] - 1), 1.0)


def apply_transform(X: da.Array, transform: Transform, numbers: da.Array | None = None) -> da.Array:
    """Transform every row of X (n, d), lazily; errors name rows by `numbers` (n,), in the same chunks, if given."""
    if X.shape[1] != transform.n_features:
        raise InvalidDataError(f"The rows have {X.shape[1]} features instead of {transform.n_features}.")
    width = transform.kept.size if transform.components is None else transform.components.shape[1]
    options: dict[str, Any] = {"chunks": (X.chunks[0], (width,)), "meta": np.empty((0, 0)), "token": "points"}
    if numbers is None:
        return X.map_blocks(transform_block, transform=transform, **options)
    return X.map_blocks(transform_numbered, numbers[:, None], transform=transform, **options)


def transform_block(block: FloatArray, transform: Transform, block_info: Any = None) -> FloatArray:
    """Transform the rows of one block."""
    first_row = block_info[0]["array-location"][0][0] if block_info else 0
    return transform_rows(block, transform, np.arange(first_row, first_row + len(block)))


def transform_numbered(block: FloatArray, numbers: IntArray, transform: Transform) -> FloatArray:
    """Transform the rows of one block that have other numbers than their positions."""
    return transform_rows(block, transform, numbers[:, 0])


def transform_rows(block: FloatArray, transform: Transform, numbers: IntArray) -> FloatArray:
    """Transform some rows, which errors name by their numbers; each result depends on its row alone."""
    if not np.isfinite(block).all():
        bad = numbers[~np.isfinite(block).all(axis=1)]
        refuse_rows(bad, len(bad))
    with np.errstate(over="ignore", invalid="ignore"):
        rows = (block[:, transform.kept] - transform.center) / transform.scale
    beyond = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if beyond.size:
        raise InvalidDataError(
            f"Differences of values overflow double precision in {beyond.size} row(s): "
            f"{_first(numbers[beyond])}. Divide the feature by its largest value."
        )
    if transform.components is not None:
        projected = np.zeros((rows.shape[0], transform.components.shape[1]))
        project_block(np.ascontiguousarray(rows), transform.components, projected)
        rows = projected
    return normalize_block(rows, transform, numbers) if transform.normalize else np.ascontiguousarray(rows)


def normalize_block(rows: FloatArray, transform: Transform, numbers: IntArray) -> FloatArray:
    """Divide every row by its norm: Euclidean neighbours of the result are cosine neighbours."""
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    without = np.flatnonzero(norms[:, 0] <= 8 * EPSILON * transform.magnitude)  # nothing but rounding of the centring
    if without.size:
        raise InvalidDataError(
            f"The cosine metric needs a direction, and these rows have none (their norm is 0): "
            f"{_first(numbers[without])}. Remove them, or use the euclidean metric."
        )
    return np.asarray(rows / norms)


def warn_of_axes(transform: Transform) -> None:
    """Tell the caller when the principal axes are far from exact."""
    if transform.axes_error is not None and transform.axes_error > AXES_TOL:
        warnings.warn(
            f"The principal axes were found to a relative residual of {transform.axes_error:.2f}: the variance hardly "
            "falls from one to the next, so other axes would do as well, with other neighbours. Use a larger "
            "max_components, or fewer features.",
            ApproximateAxesWarning,
            stacklevel=3,
        )


def with_components(X: da.Array, transform: Transform, n_components: int, sparse: da.Array | None = None) -> Transform:
    """Add the first principal axes of the scaled rows.

    The rows are centred, so these are their first singular vectors: those of the triangular factor of the rows, which
    is as wide as they are. (dask-ml's PCA has the same axes, but computes the other factor too, which is as large as
    the data, to choose their signs.) Where the factors of all chunks are too large, those in a subspace.
    """
    scaled = apply_transform(X, replace(transform, normalize=False))
    n_components, error = min(n_components, X.shape[0]), None
    if FLOAT_BYTES * scaled.numblocks[0] * scaled.shape[1] ** 2 > FACTOR_BYTES:
        components, error = _axes_in_subspace(scaled if sparse is None else sparse, n_components, transform)
    else:
        factor = np.asarray(da.linalg.qr(scaled)[1].compute())
        components = np.linalg.svd(factor, full_matrices=False)[2][:n_components]
    return replace(transform, components=np.ascontiguousarray(components.T), axes_error=error)


def _axes_in_subspace(rows: da.Array, n_components: int, transform: Transform) -> tuple[FloatArray, float]:
    """The first singular vectors (n_components, d) of scaled rows (n, d), by subspace iteration; and their error.

    Sparse chunks come as they are, and are scaled while they are multiplied: they stay sparse.

    The error is the relative residual |C V - V (V'CV)| / |V'CV| of the axes V of the covariance C: 0 for exact ones,
    and a tenth where the variance hardly falls from one axis to the next, so that others would do as well.

    A few more random vectors than wanted are multiplied with the rows' covariance POWER_STEPS times; the rows' singular
    vectors within the subspace that they span then are dask-ml's TruncatedSVD of the rows' coordinates there. Every
    step reads all rows, chunk by chunk, and ends before the next begins: in one graph, as that of `svd_compressed`, the
    chunks would stay in memory from one step to the next.
    """
    from dask_ml.decomposition import TruncatedSVD

    width = min(n_components + SPARE_VECTORS, len(transform.kept))
    basis = dask.delayed(random_basis)(len(transform.kept), width).persist()
    for _ in range(POWER_STEPS):
        basis = dask.delayed(orthonormal)(_spread(rows, basis, transform)).persist()
    coordinates = rows.map_blocks(
        scaled_product, basis, transform, chunks=(rows.chunks[0], (width,)), meta=np.empty((0, 0)), token="coordinates"
    )
    svd = TruncatedSVD(n_components=n_components, algorithm="tsqr", compute=False).fit(coordinates)
    basis, axes = dask.compute(basis, svd.components_)
    axes = np.asarray(axes @ basis.T)
    spread = np.asarray(_spread(rows, dask.delayed(axes.T), transform).compute())
    inside = axes @ spread
    return axes, float(np.linalg.norm(spread - axes.T @ inside) / (np.linalg.norm(inside) + TINY))


def _spread(rows: da.Array, basis: Any, transform: Transform) -> Any:
    """The product of the covariance of the rows with a basis (d, width), as a Delayed."""
    spread = rows.map_blocks(spread_block, basis, transform, meta=np.empty((0, 0)), token="spread")
    return merged(spread.to_delayed().ravel(), sum)  # few at once: each is as large as the basis


def random_basis(n_features: int, width: int) -> FloatArray:
    """Orthonormal columns (n_features, width), the same everywhere."""
    return orthonormal(np.random.default_rng(0).standard_normal((n_features, width)))


def orthonormal(vectors: FloatArray) -> FloatArray:
    """An orthonormal basis of what some columns span."""
    return np.asarray(np.linalg.qr(vectors)[0])


def _is_sparse(block: Any) -> bool:
    return hasattr(block, "tocsr")


def scaled_product(block: Any, basis: FloatArray, transform: Transform) -> FloatArray:
    """Scaled rows times a basis (m, width); of sparse rows, which are not scaled yet, without filling them."""
    if not _is_sparse(block):
        return np.asarray(block @ basis)
    shift = (transform.center / transform.scale) @ basis
    return np.asarray(block[:, transform.kept] @ (basis / transform.scale[:, None]) - shift)


def spread_block(block: Any, basis: FloatArray, transform: Transform) -> FloatArray:
    """A chunk's part of the product of the covariance with the basis (d, width)."""
    product = scaled_product(block, basis, transform)
    if not _is_sparse(block):
        return np.asarray(block.T @ product)
    shift = np.outer(transform.center, product.sum(axis=0))
    return np.asarray((block[:, transform.kept].T @ product - shift) / transform.scale[:, None])


def _refuse_not_finite(X: da.Array) -> None:
    bad = ~da.isfinite(X).all(axis=1)
    numbers = da.where(bad, da.arange(X.shape[0], chunks=bad.chunks), X.shape[0])
    count, rows = dask.compute(bad.sum(), da.topk(numbers, -min(SHOWN_ROWS + 1, X.shape[0])))
    refuse_rows(rows[:count], int(count))


def refuse_rows(rows: Any, count: int) -> None:
    """Refuse data with missing or infinite values in `count` rows, of which `rows` are the first."""
    raise InvalidDataError(
        f"There are NaN or infinite values in {count} row(s): {_first(rows)}. Remove or fill them; a fit "
        "skips them with missing='skip'."
    )


def _first(rows: Any) -> str:
    shown = ", ".join(str(row) for row in rows[:SHOWN_ROWS])
    return f"{shown}, ..." if len(rows) > SHOWN_ROWS else shown
