"""Frozen records that cross the edges between modules. They hold values and no behaviour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.floating[Any]]
IntArray: TypeAlias = NDArray[np.int64]
#: A NumPy array, a Dask array or an opened Zarr array: something with a shape that is sliced like an array.
ArrayLike: TypeAlias = Any


@dataclass(frozen=True)
class Grid:
    """The cells that a fit evaluates.

    Attributes
    ----------
    ks
        Numbers of neighbours, the point itself included, ascending.
    lams
        Weights of the start solution, ascending.
    max_clusters
        Largest number of clusters; smaller ones come with it for free.
    """

    ks: tuple[int, ...]
    lams: tuple[float, ...]
    max_clusters: int


@dataclass(frozen=True)
class Transform:
    """The fitted preprocessing: everything that turns a raw row into the row that the neighbours saw.

    Attributes
    ----------
    n_features
        Number of raw columns.
    kept
        Raw columns that are not constant (kept,).
    center, scale
        Subtracted from, then divided out of, every kept column (kept,).
    components
        Principal axes as columns (kept, components), or None without projection.
    normalize
        Whether rows are divided by their norm (cosine distance).
    magnitude
        Norm that a row of the largest scaled values would have: rounding errors of the centring are a few units in its
        last place.
    """

    n_features: int
    kept: IntArray
    center: FloatArray
    scale: FloatArray
    components: FloatArray | None
    normalize: bool
    magnitude: float


@dataclass(frozen=True)
class Cells:
    """Rows of the data in cells around centres, for search. The arrays may lie on disk.

    Attributes
    ----------
    centers
        Centre of every cell (cell, d), float32, shifted by `offset`.
    starts
        Position of the first row of every cell, and the number of rows (cell + 1,).
    points
        The rows, shifted by `offset`, by cell and then by row number (position, d), float32.
    rows
        Their row numbers (position,).
    offset
        Subtracted from a row before it is rounded to float32 (d,).
    reach
        How far beyond the border of a cell a search looks; 1 misses nothing.
    """

    centers: ArrayLike
    starts: ArrayLike
    points: ArrayLike
    rows: ArrayLike
    offset: ArrayLike
    reach: float


@dataclass(frozen=True)
class Recall:
    """Measured share of the true neighbours that a graph lists.

    Attributes
    ----------
    n_neighbors
        For lists of so many neighbours, the row itself included in the number but not in the share.
    mean, low, high
        The share on the sample, and its 95 % interval.
    n_rows
        Size of the sample.
    """

    n_neighbors: int
    mean: float
    low: float
    high: float
    n_rows: int


@dataclass(frozen=True)
class NeighborGraph:
    """A kNN graph.

    Attributes
    ----------
    indices
        Row numbers of the neighbours (n, k): the row itself first, then by distance, ties by row number.
    distances
        Distances to them (n, k); for cosine the Euclidean distance between normalised rows. None for a graph that came
        without.
    method
        How it was found: "exact", "cells", "descent" or "given".
    recall
        Measured recall at the smallest and the largest k, if it is approximate.
    """

    indices: ArrayLike
    distances: ArrayLike
    method: str = "exact"
    recall: tuple[Recall, ...] = ()


@dataclass(frozen=True)
class Candidates:
    """Points that may represent a cluster: their rows and in-degrees, in the order in which ties are broken."""

    rows: IntArray
    degrees: IntArray


@dataclass(frozen=True)
class Walk:
    """The random walk on the graph of one k, that is W, with rows numbered so that neighbours lie close together.

    Attributes
    ----------
    neighbors
        The k neighbours of every row, by their new numbers (n, k), unsigned: they index without a look at their sign.
    reads
        Tiles of rows in which each tile has neighbours (tile, TILE_READS).
    """

    neighbors: ArrayLike
    reads: ArrayLike


@dataclass(frozen=True)
class Start:
    """What the columns of one k start from.

    Attributes
    ----------
    candidates
        The points whose columns are wanted.
    places
        Their numbers in the walk (c,).
    nodes
        Interpolation nodes for the solver.
    """

    candidates: Candidates
    places: IntArray
    nodes: NDArray[np.complex128]


@dataclass(frozen=True)
class ColumnBlock:
    """Some columns of (I - (1-lam) W)^-1 for every lam.

    Attributes
    ----------
    values
        The columns (lam, row, column).
    residuals
        Largest absolute residual of every column (lam, column); it bounds the error of lam times the column.
    n_passes
        Products with W that were needed.
    """

    values: FloatArray
    residuals: FloatArray
    n_passes: int


@dataclass(frozen=True)
class Choice:
    """The winning cell.

    Attributes
    ----------
    n_neighbors, lam, n_clusters
        The cell.
    value
        Its criterion C / R.
    margin
        By how much the second best cell is smaller; None when there was no other cell.
    """

    n_neighbors: int
    lam: float
    n_clusters: int
    value: float
    margin: float | None


@dataclass(frozen=True)
class Clustering:
    """Soft and hard clusters of some rows.

    Attributes
    ----------
    memberships
        F, rows on the simplex (row, cluster).
    labels
        First largest membership of every row (row,).
    confidence
        0 where no cluster is preferred to 1 where only one is in reach (row,).
    """

    memberships: ArrayLike
    labels: ArrayLike
    confidence: ArrayLike


class Form(Protocol):
    """The caller's own form of rows, in which what was found for them is given back."""

    def give(self, values: ArrayLike, name: str, clusters: Sequence[int] | None, sizes: tuple[int, ...] | None) -> Any:
        """Lazy values of all rows (n,), or (n, clusters), in that form.

        `sizes` are the rows in each part of the caller's data; None if the chunks of `values` are these parts.
        """


@dataclass(frozen=True)
class Data:
    """Rows, opened.

    Attributes
    ----------
    X
        The rows (n, d): a Dask array of float64, its columns in one chunk.
    form
        How what was found for them is given back.
    in_memory
        Whether the chunks are parts of an array in this process's memory.
    sparse
        Whether they are mostly zeros, stored as such: a chunk of X is filled when it is computed.
    names
        Names of the features, where they have some.
    files
        Paths or URLs of what holds them, whose marks tell a change.
    reading
        The options with which they were opened.
    sizes
        Rows in each part (partition, chunk) of the caller's data; None if unknown.
    """

    X: Any
    form: Form
    in_memory: bool = False
    sparse: bool = False
    names: tuple[Any, ...] | None = None
    files: tuple[str, ...] = ()
    reading: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int, ...] | None = None

    def give(self, values: ArrayLike, name: str, clusters: Sequence[int] | None = None) -> Any:
        """Values of all rows, in the caller's form."""
        return self.form.give(values, name, clusters, self.sizes)


@dataclass(frozen=True)
class Drift:
    """New rows against those of a fit.

    Attributes
    ----------
    n_rows, n_new
        Rows, and those among them that are no row of the fit.
    outside
        Share of these that lie outside: farther from their nearest row of the fit than that row's own neighbours.
    confidence, confidence_before
        Mean confidence of the new rows under the model, and of the rows of the fit.
    """

    n_rows: int
    n_new: int
    outside: float
    confidence: float
    confidence_before: float


@dataclass(frozen=True)
class Changes:
    """Clusters of a fit against those of an earlier one.

    Attributes
    ----------
    births
        Clusters that are new: no old one has most of its rows there.
    deaths
        Old clusters of which nothing is left.
    splits
        Old clusters whose rows are now in several, with these.
    merges
        Clusters that hold most rows of several old ones, with these.
    kept
        Share of the rows that can be compared (at their old places, or near old rows) that keep their number.
    drift
        The rows against those of the earlier fit.
    """

    births: tuple[int, ...]
    deaths: tuple[int, ...]
    splits: tuple[tuple[int, tuple[int, ...]], ...]
    merges: tuple[tuple[int, tuple[int, ...]], ...]
    kept: float
    drift: Drift
