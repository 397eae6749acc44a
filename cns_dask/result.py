"""A stored fit, opened: lazy arrays, the choice, and other numbers of clusters without a new fit."""

from __future__ import annotations

import os
from typing import Any, TypeVar, get_type_hints

import dask
import dask.array as da
import numpy as np

from cns_dask.criterion import best_by_n_clusters
from cns_dask.cubes import dataset_of
from cns_dask.data import open_data
from cns_dask.errors import InvalidDataError, InvalidSettingError, NotAResultError
from cns_dask.memberships import clustering
from cns_dask.missing import KEPT, put_back
from cns_dask.places import Place
from cns_dask.settings import METHODS, Settings, check_integer
from cns_dask.store import ResultStore, open_result_store
from cns_dask.tables import CLUSTER, CONFIDENCE, LazyTable, frame_of
from cns_dask.types import (
    Cells,
    Changes,
    Choice,
    Clustering,
    Data,
    Drift,
    FloatArray,
    Grid,
    IntArray,
    NeighborGraph,
    Recall,
    Transform,
)

T = TypeVar("T")


class Result:
    """What a fit has found. Arrays with one row per data row are lazy Dask arrays; the others are NumPy arrays.

    Examples
    --------
    >>> from cns_dask import CNS
    >>> from cns_dask.demo import demo_points
    >>> result = CNS().fit(demo_points(300)).result_
    >>> result.choice.n_clusters, result.labels[:3].compute()
    (4, array([1, 0, 3]))
    >>> result.memberships.shape
    (300, 4)
    """

    def __init__(self, store: ResultStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        choice = self.choice
        return (
            f"<Result: {self.n_rows} rows in {choice.n_clusters} clusters, k = {choice.n_neighbors}, "
            f"lam = {choice.lam:.4g}, at {self.path}>"
        )

    @property
    def path(self) -> str:
        """Where the result is stored."""
        return str(self._store.path)

    @property
    def n_rows(self) -> int:
        """Number of rows, with those that were left out."""
        return int(self.stored("labels").shape[0])

    @property
    def n_skipped(self) -> int:
        """Number of rows that were left out, because of NaN or infinite values."""
        return self.n_rows - int(self.stored("columns").shape[0])

    @property
    def rows(self) -> da.Array:
        """Row number of every clustered row: what `points`, `graph` and the stored columns have a row for."""
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
    def representatives(self) -> IntArray:
        """Row that represents each cluster (K,)."""
        return self._store.read("representatives")

    @property
    def criterion(self) -> FloatArray:
        """Criterion (k, lam, K) of every cell; the axes are those of `grid`, and K = 1, 2, ..."""
        return self._store.read("criterion")

    @property
    def picks(self) -> IntArray:
        """Row picked as K-th representative in every cell (k, lam, K); the first K of a cell serve K clusters."""
        return self._store.read("picks")

    @property
    def grid(self) -> Grid:
        """The cells that were tried."""
        ks, lams = self._store.read("k"), self._store.read("lam")
        return Grid(tuple(ks.tolist()), tuple(lams.tolist()), self._store.array("n_clusters").shape[0])

    @property
    def choice(self) -> Choice:
        """The winning cell and its margin."""
        return _typed(Choice, self._store.attributes.get("choice"))

    @property
    def settings(self) -> Settings:
        """The parameters of the fit."""
        try:
            return Settings(**self._store.attributes["settings"])
        except (KeyError, TypeError, InvalidSettingError) as error:
            raise NotAResultError(f"The settings of a result must be those of a fit. Got others ({error}).") from error

    @property
    def largest_residual(self) -> float:
        """Largest residual of the stored columns: it bounds the error of every membership. NaN if it is not finite."""
        return self._residual("largest_residual")

    @property
    def grid_residual(self) -> float:
        """Largest residual of the columns that the grid was searched with."""
        return self._residual("grid_residual")

    def _residual(self, name: str) -> float:
        stored = self._store.attributes[name]
        return float("nan") if stored is None else float(stored)

    @property
    def details(self) -> dict[str, Any]:
        """All that was noted about the run: residuals, versions, seconds per stage."""
        return self._store.attributes

    @property
    def seconds(self) -> dict[str, float]:
        """How long each stage took, in the run that ended."""
        found = self._store.attributes.get("seconds")
        if not isinstance(found, dict) or not all(isinstance(value, float | int) for value in found.values()):
            raise NotAResultError(f"A result must tell seconds of stages. Got {found!r}.")
        return found

    @property
    def memory(self) -> tuple[int, int]:
        """Largest memory of a process, measured and planned, in bytes."""
        found: Any = self._store.attributes.get("memory")
        try:
            used, planned = (max(map(int, found[name].values())) for name in ("peak_bytes", "planned_bytes"))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise NotAResultError(f"A result must tell the memory of processes. Got {found!r}.") from error
        return used, planned

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

    def stored(self, name: str) -> Any:
        """An array of the store, opened: small to ship, and sliced by the tasks that need some of it.

        Examples
        --------
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> result = CNS().fit(demo_points(300)).result_
        >>> result.stored("labels")[:3]
        array([1, 0, 3])
        """
        return self._store.array(name)

    @property
    def transform(self) -> Transform:
        """The fitted preprocessing."""
        read = self._store.read
        return Transform(
            kept=read("transform/kept"),
            center=read("transform/center"),
            scale=read("transform/scale"),
            components=read("transform/components") if "transform/components" in self._store else None,
            **self._store.attributes["transform"],
        )

    def at(self, n_clusters: int) -> Clustering:
        """The clustering into another number of clusters for the same k and lam, lazily and without a new fit.

        Examples
        --------
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> result = CNS().fit(demo_points(300)).result_
        >>> result.at(n_clusters=2).labels[:4].compute()
        array([1, 0, 0, 0])
        """
        columns = self._store.open("columns")
        check_integer("n_clusters", n_clusters, 1, columns.shape[1])
        numbers = self.numbers(n_clusters)
        if "codes" not in self._store:
            return clustering(columns, n_clusters, numbers)
        codes = self._store.open("codes")
        counts = dask.compute(*((block == KEPT).sum() for block in codes.blocks))
        return put_back(columns, numbers, n_clusters, codes, tuple(map(int, counts)))

    def numbers(self, n_clusters: int | None = None) -> list[int]:
        """Number of the cluster of every pick, in the order of the picks; of those beyond the choice, new numbers.

        Examples
        --------
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> result = CNS().fit(demo_points(300)).result_
        >>> result.numbers(), result.numbers(6)
        ([0, 1, 2, 3], [0, 1, 2, 3, 4, 5])
        """
        known = self._store.attributes.get("numbers")
        n_chosen = self.choice.n_clusters
        known = list(range(n_chosen)) if known is None else known
        if not (isinstance(known, list) and len(known) == n_chosen and all(type(number) is int for number in known)):
            raise NotAResultError(f"A result must number its {n_chosen} clusters. Got {known!r}.")
        wanted = n_chosen if n_clusters is None else n_clusters
        first_new = max(self.next_number, max(known) + 1)
        return known[:wanted] + list(range(first_new, first_new + wanted - n_chosen))

    @property
    def next_number(self) -> int:
        """The smallest number that no cluster has had, here or in the fits that this one followed."""
        found = self._store.attributes.get("next_number", 0)
        return max(int(found) if isinstance(found, int) else 0, self.choice.n_clusters)

    @property
    def clusters(self) -> list[int]:
        """Numbers of the clusters in the order of the columns of `memberships`: 0, 1, ... unless the fit was `like`."""
        return sorted(self.numbers())

    def sizes(self) -> IntArray:
        """Number of rows in each cluster (K,).

        Examples
        --------
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> result = CNS().fit(demo_points(300)).result_
        >>> result.sizes()
        array([116,  48,  76,  60])
        """
        labels = da.maximum(self.labels, -1) + 1  # rows that were left out, first
        clusters = np.asarray(self.clusters)
        counts = da.bincount(labels, minlength=int(clusters.max()) + 2).compute()
        sizes: IntArray = np.asarray(counts, np.int64)[clusters + 1]
        return sizes

    @property
    def changes(self) -> Changes | None:
        """What has changed since the earlier fit that this one was `like`; None if there was none."""
        found = self._store.attributes.get("changes")
        if found is None:
            return None
        try:
            births, deaths = (tuple(map(int, found[name])) for name in ("births", "deaths"))
            splits, merges = (
                tuple((int(one), tuple(map(int, others))) for one, others in found[name])
                for name in ("splits", "merges")
            )
            return Changes(births, deaths, splits, merges, float(found["kept"]), _typed(Drift, found["drift"]))
        except (KeyError, TypeError, ValueError) as error:
            raise NotAResultError(f"The changes of a result must be told as a fit does. Got {found!r}.") from error

    @property
    def reading(self) -> dict[str, Any]:
        """The options with which the data were opened: see `open_data`."""
        found = self._store.attributes.get("reading", {})
        plain = {name: value for name, value in found.items() if name in ("columns", "component", "features")}
        if not all(isinstance(value, str | list) for value in plain.values()):
            raise NotAResultError(f"The options of reading must be names. Got {found!r}.")
        return plain

    @property
    def columns(self) -> list[Any] | None:
        """Names of the features: the columns that the fit was asked to use, or all of a table; None for others."""
        return self.reading.get("columns") or _names(self._store.attributes.get("features"))

    def to_dataframe(self, like: Any = None, *, memberships: bool = True, **reading: Any) -> Any:
        """Label, confidence and memberships of every row as a table.

        Parameters
        ----------
        like
            The table that was clustered (or what else: see `open_data`): the answer has its index, and its partitions
            if it is lazy. None: a lazy table with row numbers.
        memberships
            Whether to add a column for each cluster.
        **reading
            Options of `open_data` for `like`.

        Examples
        --------
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> result = CNS().fit(demo_points(300)).result_
        >>> result.to_dataframe(memberships=False).compute().groupby("cluster").size().tolist()
        [116, 48, 76, 60]
        """
        data = None if like is None else self._same_rows(like, reading)
        names = {"labels": (CLUSTER, None), "confidence": (CONFIDENCE, None), "memberships": ("", self.clusters)}
        if not memberships:
            del names["memberships"]
        if data is not None and (placed := self._placed(data, names)) is not None:
            return placed
        found = Clustering(self.memberships, self.labels, self.confidence)
        return frame_of(found, self.clusters, data, memberships=memberships)

    def like(self, data: Data, field: str, name: str) -> Any:
        """Labels, memberships or confidence (`field`) in the form of the data that were clustered.

        Examples
        --------
        >>> import pandas as pd
        >>> from cns_dask import CNS, open_data
        >>> from cns_dask.demo import demo_points
        >>> table = pd.DataFrame(demo_points(300)).add_prefix("x")
        >>> CNS().fit(table).result_.like(open_data(table), "labels", "group").head(2).tolist()
        [1, 0]
        """
        clusters = self.clusters if field == "memberships" else None
        placed = self._placed(data, {field: (name, clusters)})
        return data.give(getattr(self, field), name, clusters) if placed is None else placed

    def _placed(self, data: Data, names: dict[str, tuple[str, list[int] | None]]) -> Any:
        """Stored arrays beside the index of the caller's own lazy table."""
        if not isinstance(data.form, LazyTable) or not data.form.marks or data.sizes is None:
            return None
        return data.form.placed([self.stored(field) for field in names], list(names.values()), data.sizes)

    def to_xarray(self, like: Any = None, **reading: Any) -> Any:
        """Labels, confidence and memberships as an xarray Dataset, lazily.

        Parameters
        ----------
        like
            The DataArray or Dataset that was clustered: the answer has the shape and coordinates of its rows. None: one
            dimension, row.
        **reading
            Options of `open_data` for `like`.

        Examples
        --------
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> result = CNS().fit(demo_points(300)).result_
        >>> dict(result.to_xarray().sizes)
        {'row': 300, 'cluster': 4}
        """
        form = None if like is None else self._same_rows(like, reading).form
        found = Clustering(self.memberships, self.labels, self.confidence)
        choice = self.choice
        told = {"n_neighbors": choice.n_neighbors, "lam": choice.lam, "criterion": choice.value, "result": self.path}
        return dataset_of(found, self.clusters, form, told)

    def _same_rows(self, like: Any, reading: dict[str, Any]) -> Data:
        data = open_data(like, like=self.reading, min_rows=1, **reading)
        if data.X.shape[0] != self.n_rows:
            raise InvalidDataError(
                f"The data must be those that were clustered: {self.n_rows} rows. Got {data.X.shape[0]}."
            )
        return data

    @classmethod
    def at_place(cls, path: str) -> Result:
        """A result for tasks: at its place, which may be a temporary one that the caller keeps.

        Examples
        --------
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> result = CNS().fit(demo_points(300)).result_
        >>> Result.at_place(result.path).n_rows
        300
        """
        return cls(ResultStore(Place(path)))

    def best_by_n_clusters(self) -> list[Choice]:
        """The best cell of every number of clusters, best first.

        Examples
        --------
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> result = CNS().fit(demo_points(300)).result_
        >>> [choice.n_clusters for choice in result.best_by_n_clusters()[:3]]
        [4, 5, 6]
        """
        return best_by_n_clusters(self.criterion, self.grid, self.n_rows - self.n_skipped)


def _names(found: Any) -> list[Any] | None:
    """Names from a store, which come from anywhere."""
    is_list = isinstance(found, list) and all(isinstance(name, str | int) for name in found)
    return found if is_list and found else None


def stored_graph(store: ResultStore) -> NeighborGraph:
    """The graph in a store, opened lazily."""
    known = store.graph_attributes
    distances = store.open("graph/distances") if "graph/distances" in store else None
    method, recall = known.get("method"), known.get("recall")
    if method not in (*METHODS, "given") or not isinstance(recall, list):
        raise NotAResultError(f"The graph must tell how it was found. Got method {method!r}, recall {recall!r}.")
    values = tuple(_typed(Recall, value) for value in recall)
    return NeighborGraph(store.open("graph/indices"), distances, method, values)


def _typed(record: type[T], values: Any) -> T:
    """A record from stored values, each of which has the type that it must have: stores come from anywhere."""
    hints = get_type_hints(record)
    allowed = {name: (hint | int) if isinstance(0.0, hint) else hint for name, hint in hints.items()}
    fits = isinstance(values, dict) and values.keys() == hints.keys()
    if not fits or not all(isinstance(values[name], kind) for name, kind in allowed.items()):
        raise NotAResultError(f"A result must hold the values of {record.__name__}. Got {values!r}.")
    return record(**values)


def stored_cells(store: ResultStore) -> Cells | None:
    """The cells in a store, opened."""
    if "cells/points" not in store:
        return None
    names = ("centers", "starts", "points", "rows", "offset")
    arrays = {name: store.array(f"cells/{name}") for name in names}
    return Cells(**arrays, reach=store.graph_attributes["reach"])


def open_result(path: str | os.PathLike[str]) -> Result:
    """Open the result of a fit.

    Parameters
    ----------
    path
        The Zarr group that `CNS.fit(..., out=path)` or `cns-dask fit --out path` wrote.

    Examples
    --------
    >>> import tempfile
    >>> from cns_dask import CNS
    >>> from cns_dask.demo import demo_points
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     model = CNS().fit(demo_points(300), out=f"{folder}/clusters.zarr")
    ...     open_result(f"{folder}/clusters.zarr").choice.n_clusters
    4
    """
    return Result(open_result_store(path))
