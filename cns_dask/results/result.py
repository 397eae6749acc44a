"""A stored fit, opened: lazy arrays, the choice, and other numbers of clusters without a new fit."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cached_property
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import FloatArray, IntArray
from cns_dask.errors import NotAResultError
from cns_dask.execution.memory import MemoryRecord
from cns_dask.inputs.forms import Data
from cns_dask.inputs.missing import CLUSTERED
from cns_dask.inputs.preprocess import Transform
from cns_dask.inputs.table_forms import CLUSTER, CONFIDENCE, LazyTable, frame_of, nested_clusters
from cns_dask.inputs.xarrays import dataset_of
from cns_dask.neighbors.cells import Cells, stored_cells
from cns_dask.neighbors.graph import NeighborGraph, stored_graph
from cns_dask.results.clusterings import absorption_at, choice_at, is_solved, sources_at, stored_evidence
from cns_dask.results.description import Description, check_description, read_description, stored_transform
from cns_dask.results.explaining import Explained
from cns_dask.results.fit_rows import same_rows
from cns_dask.results.history import Changes
from cns_dask.results.samples import Sample
from cns_dask.results.scales import Layer, Scale, layers_of, stable_scales, tree_of
from cns_dask.results.skipped import with_skipped
from cns_dask.settings import Grid, Settings, check_integer
from cns_dask.smoothing.criterion import Choice, best_by_n_clusters
from cns_dask.smoothing.memberships import Clustering, clustering
from cns_dask.smoothing.scales import Evidence, Selection
from cns_dask.smoothing.verdict import Verdict
from cns_dask.storage.layout import Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.store import ResultStore, open_store


class Result(Explained):
    """The outcome of a fit. Arrays with one row per data row are lazy Dask arrays; the others are NumPy arrays.

    Examples
    --------
    >>> from cns_dask.demo import demo_result
    >>> result = demo_result()
    >>> result.choice.n_clusters, result.labels[:3].compute()
    (6, array([3, 5, 2]))
    >>> result.memberships.shape
    (300, 6)
    """

    def __init__(self, store: ResultStore) -> None:
        self._store = store

    @cached_property
    def _description(self) -> Description:
        return read_description(self._store)

    @property
    def path(self) -> str:
        """Where the result is stored."""
        return self._store.location.path

    @property
    def n_rows(self) -> int:
        """Number of rows, with those that were skipped."""
        return int(self.stored("labels").shape[0])

    @property
    def n_skipped(self) -> int:
        """Number of rows without a label: NaN or infinite values, or in another cluster than the one of `within`."""
        return self.n_rows - self.n_clustered if self.sample is None else self.sample.n_skipped

    @property
    def n_clustered(self) -> int:
        """Number of rows that were clustered themselves: those of the sample, or all that were not skipped."""
        return int(self.stored("absorption").shape[0])

    @property
    def sample(self) -> Sample | None:
        """How the rows were drawn that were clustered, and how well they speak for all; None if all rows were."""
        return self._description.sample

    @property
    def rows(self) -> da.Array:
        """Row number of every clustered row: what `points`, `graph` and the stored absorption have a row for."""
        if "rows" in self._store:
            return self._store.open("rows")
        return da.arange(self.n_rows, chunks=self.labels.chunks[0])

    @property
    def labels(self) -> da.Array:
        """Cluster of every row (n,)."""
        return self._store.open("labels")

    @property
    def memberships(self) -> da.Array:
        """Soft memberships (n, K), rows sum to 1."""
        return self._store.open("memberships")

    @property
    def confidence(self) -> da.Array:
        """How clearly each row belongs to its cluster (n,), 0 to 1."""
        return self._store.open("confidence")

    @property
    def within(self) -> int | None:
        """The cluster of another fit whose rows were clustered further; None for all rows."""
        return self._description.within

    @property
    def representatives(self) -> IntArray:
        """The most prominent row among those that represent each cluster (K,)."""
        return self._store.read("representatives")

    @property
    def criterion(self) -> FloatArray:
        """Criterion (k, lam, K) of every grid point; the axes are those of `grid`, and K = 1, 2, ..."""
        return self._store.read("criterion")

    @property
    def picks(self) -> IntArray:
        """Row picked by the paper as K-th representative (k, lam, K); the first K represent K clusters."""
        return self._store.read("picks")

    @property
    def grid(self) -> Grid:
        """The ks, lams and numbers of clusters that were tried."""
        ks, lams = self._store.read("k"), self._store.read("lam")
        largest, scale = (self._store.array(name).shape[0] for name in ("n_clusters", "scale"))
        return Grid(tuple(ks.tolist()), tuple(lams.tolist()), largest, scale, self.settings.few_scale)

    @property
    def choice(self) -> Choice:
        """The chosen k, lam and K, and their margin."""
        return self._description.choice

    @property
    def selection(self) -> Selection:
        """Which choice was used and why, and those of the paper's criterion and of the scales."""
        return self._description.selection

    @property
    def scaling(self) -> str | None:
        """Whether features were scaled, and why; None for a graph alone.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> demo_result().scaling
        'features are scaled to unit variance'
        """
        summary = self._description.transform
        return None if summary is None else summary.scaling

    @property
    def verdict(self) -> Verdict:
        """How sure the choice is: one sentence, and doubts.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> demo_result().verdict.sentence
        '6 clusters: the graph has 1.3 times the modularity of data without clusters. The paper would choose 4.'
        """
        return self._description.verdict

    @property
    def is_certain(self) -> bool:
        """Whether the choice was made with absorption that was solved to `tol`, so that no rounding can change it."""
        return self._description.is_certain

    @property
    def evidence(self) -> Evidence:
        """How far K = 1, 2, ... clusters stand out from data without structure: `total` (K,), `values` of every k."""
        return stored_evidence(self._store, self.selection.dimension, self.n_clustered)

    @property
    def scales(self) -> list[Scale]:
        """The numbers of clusters that are stable over a range of walk lengths, best first.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> [scale.n_clusters for scale in demo_result().scales]
        [4]
        """
        return stable_scales(self)

    def layers(self) -> list[Layer]:
        """The clusters of all stable scales, from fine to coarse, with their sizes and purity; labels are lazy.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> [layer.n_clusters for layer in demo_result().layers()]
        [4]
        """
        return layers_of(self)

    @property
    def tree(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Which clusters of finer layers lie in each cluster: children by parent, as in EVoC's `cluster_tree_`.

        A cluster is (layer, number), layer 0 is the finest, and the root is in a layer of its own.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> demo_result().tree[1, 0]  # the root
        [(0, 0), (0, 1), (0, 2), (0, 3)]
        """
        return tree_of(self.layers())

    @property
    def settings(self) -> Settings:
        """The parameters of the fit."""
        return self._description.settings

    @property
    def largest_residual(self) -> float:
        """Largest residual of the stored absorption, which bounds the error of every membership; NaN if not finite."""
        return _residual(self._description.largest_residual)

    @property
    def grid_residual(self) -> float:
        """Largest residual of the absorption that the grid was evaluated with."""
        return _residual(self._description.grid_residual)

    @property
    def details(self) -> dict[str, Any]:
        """All that is stored about the run: residuals, versions, seconds per stage."""
        return self._store.attributes

    @property
    def seconds(self) -> dict[str, float]:
        """How long each stage took, in the run that ended."""
        return self._description.seconds

    @property
    def memory(self) -> tuple[int, int]:
        """Largest memory of a process, measured and planned, in bytes."""
        memory = self._description.memory
        return max(memory.peak_bytes.values()), max(memory.planned_bytes.values())

    @property
    def memory_record(self) -> MemoryRecord:
        """Memory of every process: planned, used at most, and used at some moments of the run."""
        return self._description.memory

    @property
    def started(self) -> dict[str, float]:
        """When each stage began, in seconds since 1970; empty for results of older versions."""
        return self._description.started

    @property
    def graph(self) -> NeighborGraph:
        """The kNN graph at the largest k, and its recall if it is approximate."""
        return stored_graph(self._store)

    @property
    def cells(self) -> Cells | None:
        """The rows in cells, for searches; None where these are exact."""
        return stored_cells(self._store)

    @property
    def points(self) -> da.Array | None:
        """The rows as the neighbours saw them: scaled, projected, normalised (n, components).

        None if only their graph was given.
        """
        return self._store.open("points") if "points" in self._store else None

    @property
    def first_copy(self) -> Any:
        """The first row that equals each row (n,), opened; None if all rows differ, or copies count as others do."""
        return self._store.array("first_copy") if "first_copy" in self._store else None

    def stored(self, name: str) -> Any:
        """An array of the store, opened: small to ship, and sliced by the tasks that need some of it.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> result = demo_result()
        >>> result.stored("labels")[:3]
        array([3, 5, 2])
        """
        return self._store.array(name)

    @property
    def transform(self) -> Transform:
        """The fitted preprocessing."""
        summary = self._description.transform
        if summary is None:
            raise NotAResultError("The result has no transform, because only a graph was clustered.")
        return stored_transform(self._store, summary)

    def at(
        self, n_clusters: int | None = None, selection: str | None = None, data: Any = None, **options: Any
    ) -> Clustering:
        """Another clustering of the same rows: what a fit with this `n_clusters` or `selection` would have given.

        It needs no new graph and no new grid. What is not stored yet is solved for, on the workers, and kept in the
        result; memberships, labels and confidence are lazy.

        Parameters
        ----------
        n_clusters
            Number of clusters. None: what `selection` chooses.
        selection
            "paper", "scales", "communities" or "auto": see `Settings`. None: as in the fit.
        data
            After the fit of a sample: the data of that fit. Rows outside the sample are then predicted, lazily; without
            them they get the label -5 and no memberships (NaN).
        **options
            Options of `open_data` for `data`; those of the fit are used where they are not given.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> result = demo_result()
        >>> result.at(n_clusters=2).labels[:4].compute()
        array([1, 0, 0, 0])
        >>> result.at(selection="paper").memberships.shape
        (300, 4)
        """
        choice = self.choice_at(n_clusters, selection)
        if self._is_chosen(choice):
            return self._clustering
        sources = sources_at(self._store, self.grid, choice)
        settings = self.settings
        stored = absorption_at(self._store, choice, sources, settings.tol, settings.seed)
        if "codes" not in self._store:
            return clustering(stored.lazy(), choice.n_clusters, noise=settings.noise)
        codes = self._store.open("codes")
        counts = tuple(map(int, dask.compute(*((block == CLUSTERED).sum() for block in codes.blocks))))
        if data is not None and self.sample is not None:
            from cns_dask.results.assignment import assigned_at

            X = same_rows(self, data, options).X.rechunk({0: codes.chunks[0]})
            return assigned_at(self, X, codes, counts, choice, stored)
        return with_skipped(stored.lazy(), None, choice.n_clusters, codes, counts, noise=settings.noise)

    def choice_at(self, n_clusters: int | None = None, selection: str | None = None) -> Choice:
        """The k, lam and K of `at`.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> demo_result().choice_at(selection="paper").n_clusters
        4
        """
        if n_clusters is not None:
            largest = max(self.criterion.shape[2], self.evidence.values.shape[1])
            n_clusters = check_integer("n_clusters", n_clusters, 1, largest)
        if n_clusters is None and selection is None:
            return self.choice
        settings = self.settings if selection is None else replace(self.settings, selection=selection)
        return choice_at(self._store, self.grid, self.evidence, self.selection, settings, n_clusters)

    def is_solved(self, n_clusters: int | None = None, selection: str | None = None) -> bool:
        """Whether `at` has all that it needs in the store, and nothing to solve for.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> demo_result().is_solved(selection="auto"), demo_result().is_solved(n_clusters=7)
        (True, False)
        """
        choice = self.choice_at(n_clusters, selection)
        return self._is_chosen(choice) or is_solved(self._store, choice)

    def _is_chosen(self, choice: Choice) -> bool:
        """Whether it is the choice of the fit, whose answers are stored."""
        own = self.choice
        return (choice.n_neighbors, choice.lam, choice.n_clusters, choice.selection) == (
            own.n_neighbors,
            own.lam,
            own.n_clusters,
            own.selection,
        )

    def numbers(self) -> list[int]:
        """Number of every cluster, in the order of the columns of the stored absorption.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> demo_result().numbers()
        [0, 1, 2, 3, 4, 5]
        """
        return self._description.numbers

    @property
    def next_number(self) -> int:
        """The smallest number that no cluster has had, here or in the fits that this one followed."""
        return self._description.next_number

    @property
    def clusters(self) -> list[int]:
        """Numbers of the clusters in the order of the columns of `memberships`: 0, 1, ... without a previous fit."""
        return sorted(self.numbers())

    def sizes(self) -> IntArray:
        """Number of rows in each cluster (K,).

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> result = demo_result()
        >>> result.sizes()
        array([76, 75, 49, 48, 28, 24])
        """
        clusters = np.asarray(self.clusters)
        parts = (dask.delayed(count_labels)(block, clusters) for block in self.labels.to_delayed().ravel())
        sizes: IntArray = np.sum(dask.compute(*parts), axis=0)
        return sizes

    @property
    def changes(self) -> Changes | None:
        """What has changed since the previous fit whose numbers were kept; None if there was none."""
        return self._description.changes

    @property
    def read_options(self) -> dict[str, Any]:
        """The options with which the data were opened: see `open_data`."""
        options = self._description.read_options
        return {name: value for name, value in options.items() if name in ("columns", "component", "features")}

    @property
    def columns(self) -> list[Any] | None:
        """Names of the features: the columns that the fit was asked to use, or all of a table; None for others."""
        return self.read_options.get("columns") or self.feature_names

    @property
    def feature_names(self) -> list[Any] | None:
        """Names of the features, in their order; None if the data had none."""
        return self._description.features or None

    def to_dataframe(self, data: Any = None, *, memberships: bool = True, **options: Any) -> Any:
        """Label, confidence and memberships of every row as a table.

        Parameters
        ----------
        data
            The table that was clustered (or another form: see `open_data`): the answer has its index, and its
            partitions if it is lazy. None: a lazy table with row numbers.
        memberships
            Whether to add a column for each cluster.
        **options
            Options of `open_data` for `data`.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> result = demo_result()
        >>> result.to_dataframe(memberships=False).compute().groupby("cluster").size().tolist()
        [76, 75, 49, 48, 28, 24]
        """
        rows = None if data is None else same_rows(self, data, options)
        names = {"labels": (CLUSTER, None), "confidence": (CONFIDENCE, None), "memberships": ("", self.clusters)}
        if not memberships:
            del names["memberships"]
        frame = None if rows is None else self._beside_index(rows, names)
        if frame is None:
            frame = frame_of(self._clustering, self.clusters, rows, memberships=memberships)
        return frame if self.within is None else nested_clusters(frame, self.within)

    @property
    def _clustering(self) -> Clustering:
        return Clustering(self.memberships, self.labels, self.confidence)

    def wrapped(self, data: Data, field: str, name: str) -> Any:
        """Labels, memberships or confidence (`field`) in the form of the data that were clustered.

        Examples
        --------
        >>> import pandas as pd
        >>> from cns_dask import CNS, open_data
        >>> from cns_dask.demo import demo_points
        >>> table = pd.DataFrame(demo_points(300)).add_prefix("x")
        >>> CNS().fit(table).result_.wrapped(open_data(table), "labels", "group").head(2).tolist()
        [3, 5]
        """
        clusters = self.clusters if field == "memberships" else None
        frame = self._beside_index(data, {field: (name, clusters)})
        return data.wrap(getattr(self, field), name, clusters) if frame is None else frame

    def _beside_index(self, data: Data, names: dict[str, tuple[str, list[int] | None]]) -> Any:
        """Stored arrays beside the index of the caller's own lazy table; None for other forms."""
        if not isinstance(data.form, LazyTable) or not data.form.digests or data.sizes is None:
            return None
        return data.form.beside_index([self.stored(field) for field in names], list(names.values()), data.sizes)

    def to_xarray(self, data: Any = None, **options: Any) -> Any:
        """Labels, confidence and memberships as an xarray Dataset, lazily.

        Parameters
        ----------
        data
            The DataArray or Dataset that was clustered: the answer has the shape and coordinates of its rows. None: one
            dimension, row.
        **options
            Options of `open_data` for `data`.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> result = demo_result()
        >>> dict(result.to_xarray().sizes)
        {'row': 300, 'cluster': 6}
        """
        form = None if data is None else same_rows(self, data, options).form
        choice = self.choice
        details = {"n_neighbors": choice.n_neighbors, "lam": choice.lam, "criterion": choice.value, "result": self.path}
        return dataset_of(self._clustering, self.clusters, form, details)

    @classmethod
    def at_path(cls, path: str) -> Result:
        """A result for tasks: opened without a check, also where it is temporary and the caller keeps it.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> result = demo_result()
        >>> Result.at_path(result.path).n_rows
        300
        """
        return cls(ResultStore(Location(path)))

    def best_by_n_clusters(self) -> list[Choice]:
        """The best k and lam of every number of clusters, best first.

        Examples
        --------
        >>> from cns_dask.demo import demo_result
        >>> result = demo_result()
        >>> [choice.n_clusters for choice in result.best_by_n_clusters()[:3]]
        [4, 5, 6]
        """
        return best_by_n_clusters(self.criterion, self.grid, self.n_clustered)


def count_labels(labels: IntArray, clusters: IntArray) -> IntArray:
    """Rows in each of some clusters, which are sorted."""
    at = np.minimum(np.searchsorted(clusters, labels), len(clusters) - 1)
    return np.bincount(at[clusters[at] == labels], minlength=len(clusters))


def _residual(stored: float | None) -> float:
    return float("nan") if stored is None else stored


def open_result(path: Any) -> Result:
    """Open the result of a fit.

    Parameters
    ----------
    path
        The Zarr group that `CNS.fit(..., out=path)` or `cns-dask fit --out path` wrote (path or URL). A fitted `CNS` or
        a `Result` gives its result as it is.

    Examples
    --------
    >>> import tempfile
    >>> from cns_dask import CNS
    >>> from cns_dask.demo import demo_points
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = CNS().fit(demo_points(300), out=f"{folder}/clusters.zarr")
    ...     open_result(f"{folder}/clusters.zarr").choice.n_clusters
    6
    """
    result = getattr(path, "result_", path)
    if isinstance(result, Result):
        return result
    if not isinstance(path, str | os.PathLike):
        unfitted = " that is not fitted" if hasattr(path, "fit") else ""
        raise NotAResultError(
            f"A fitted CNS, a Result, or the path or URL of one is needed, not a {type(path).__name__}{unfitted}."
        )
    store = open_store(path, Kind.RESULT)
    check_description(store)
    return Result(store)
