"""Memberships of new points, from a stored result.

f(x) = (1-lam) * mean of F over the k nearest training points of x + lam/K

F is affine in P, so this is the F of P(x) = (1-lam) * mean of P over these points. A point that coincides with a
training row (the first of equal ones) takes that row's P: up to the solver's tolerance the same number, unless that row
is a representative, which keeps its own.
"""

from __future__ import annotations

import os
import threading
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import dask
import dask.array as da
import numpy as np

from cns_dask.array_types import ArrayLike, FloatArray, IntArray
from cns_dask.errors import InvalidDataError, NotAResultError
from cns_dask.execution.cluster import delayed_chunks, processes
from cns_dask.execution.compute import compute
from cns_dask.execution.run import Run
from cns_dask.inputs.data import open_data
from cns_dask.inputs.forms import Data
from cns_dask.inputs.missing import CLUSTERED, row_codes
from cns_dask.inputs.preprocess import Transform, transform_rows
from cns_dask.inputs.scan import fingerprint_of
from cns_dask.inputs.table_forms import CLUSTER, LazyTable, beside, block_of, frame_of
from cns_dask.inputs.tables import SHOWN_COLUMNS, is_table, numeric_columns
from cns_dask.neighbors.cells import Cells, search_new_rows
from cns_dask.neighbors.exact import search_everywhere
from cns_dask.numeric import mean_of_rows
from cns_dask.progress import Progress
from cns_dask.results.result import Result, open_result
from cns_dask.results.skipped import mark_skipped
from cns_dask.settings import Settings
from cns_dask.smoothing.criterion import Choice
from cns_dask.smoothing.memberships import Clustering, clustering_block, from_blocks
from cns_dask.smoothing.plan import clustering_stage
from cns_dask.storage.chunks import FLOAT_BYTES, row_slices, rows_per_chunk
from cns_dask.storage.fingerprints import digest, resume_key
from cns_dask.storage.layout import Kind
from cns_dask.storage.outputs import open_output

TASKS_PER_THREAD = 4  # that carry rows at the same time
HELD_BYTES = 512 * 2**20  # of absorption that a process keeps in memory; larger one is read where it is needed
_loading = threading.Lock()


class Predictor:
    """Clusters of blocks of rows, for use inside `map_blocks` and `map_partitions`.

    It travels with a task as the path of the stored result, and is opened once in every process: the workers must see
    that path.

    Parameters
    ----------
    model
        A fitted `CNS`, a `Result`, or the path or URL of one.

    Examples
    --------
    >>> import dask.array as da
    >>> from cns_dask import CNS
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(center, 1, (100, 5)) for center in (0, 5, 10)])
    >>> model = CNS().fit(X)
    >>> lazy = da.from_array(X, chunks=(50, 5)).map_blocks(Predictor(model), drop_axis=1, dtype=int)
    >>> bool((lazy.compute() == model.labels_).all())
    True
    """

    def __init__(self, model: Any) -> None:
        self.result: Result = open_result(model)
        _check_rows_are_there(self.result)
        self._digest = digest(self.result.details)

    def __reduce__(self) -> tuple[Any, ...]:
        return _predictor_at, (self.result.path, self._digest)

    def __call__(self, rows: Any) -> Any:
        """Cluster of every row: a NumPy array, or a Series for a pandas DataFrame."""
        if not is_table(rows):
            return self.clustering(np.asarray(rows, np.float64)).labels
        return beside(rows.index, self.clustering(self.block(rows)).labels, CLUSTER)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return self.result.path, self._digest

    def block(self, frame: Any, columns: Any = None) -> FloatArray:
        """The values of the features in a pandas DataFrame: of the columns that the fit was asked to use, or all.

        Examples
        --------
        >>> import pandas as pd
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> frame = pd.DataFrame(demo_points(300), columns=list("abcdefgh"))
        >>> predictor = Predictor(CNS().fit(frame, columns=list("abc")))
        >>> predictor.block(frame).shape
        (300, 3)
        """
        return block_of(frame[numeric_columns(frame, columns or self.result.columns)])

    def clustering(self, rows: FloatArray, first_row: int = 0) -> Clustering:
        """Memberships, labels and confidence of some rows (m, d), of which errors number the first as `first_row`.

        Examples
        --------
        >>> import pandas as pd
        >>> from cns_dask import CNS
        >>> from cns_dask.demo import demo_points
        >>> frame = pd.DataFrame(demo_points(300), columns=list("abcdefgh"))
        >>> predictor = Predictor(CNS().fit(frame, columns=list("abc")))
        >>> predictor.clustering(predictor.block(frame)).labels.shape
        (300,)
        """
        if rows.shape[1] != self.opened.transform.n_features:
            raise InvalidDataError(
                f"The rows have {rows.shape[1]} features instead of {self.opened.transform.n_features}."
            )
        return self.opened.clustering(rows, first_row)

    @cached_property
    def opened(self) -> LoadedModel:
        """The parts of the result that are needed, loaded or opened."""
        result = self.result
        arrays = result.cells, result.stored("points"), result.stored("absorption"), result.first_copy
        return LoadedModel(result.choice, result.transform, result.numbers(), result.settings, *arrays)


@lru_cache(maxsize=8)
def _predictor_at(path: str, digest_then: str) -> Predictor:
    """The predictor of this process for a result."""
    predictor = Predictor(Result.at_path(path))
    if predictor._digest != digest_then:
        raise NotAResultError(f"The result at {path} has changed while it is used. Start again with the new one.")
    return predictor


def rows_at_once(n_features: int, n_neighbors: int, n_clusters: int) -> int:
    """New rows whose neighbours are searched for together."""
    return rows_per_chunk(2**62, max(n_features, n_neighbors, n_clusters))


@dataclass(frozen=True)
class LoadedModel:
    """What predicts: the small parts of a result in memory, and the large ones opened."""

    choice: Choice
    transform: Transform
    numbers: list[int]  # of the clusters, in the order of the columns of the absorption
    settings: Settings
    cells: Cells | None  # the training rows in cells; None where all of them are searched
    points: ArrayLike
    absorption: ArrayLike
    first_copy: ArrayLike | None  # first row that equals each row; None if all rows differ

    @property
    def skips(self) -> bool:
        """Whether rows with missing values get a label that says so, instead of an error."""
        return self.settings.missing == "skip"

    def clustering(self, rows: FloatArray, first_row: int) -> Clustering:
        """Memberships, labels and confidence of some rows (m, d)."""
        codes = row_codes(rows) if self.skips else np.zeros(len(rows), np.int8)
        filled = with_fillers(rows, codes, self.transform)
        P = self.absorption_of(filled, np.arange(first_row, first_row + len(rows)))
        return mark_skipped(clustering_block(P, self.numbers, noise=self.settings.noise), codes)

    def absorption_of(self, rows: FloatArray, row_numbers: IntArray) -> FloatArray:
        """P of some rows that are all finite (m, K), a part of them at a time; errors name them by these numbers."""
        step = rows_at_once(self.transform.n_features, self.choice.n_neighbors, self.choice.n_clusters)
        parts = row_slices(len(rows), step) or [slice(0, 0)]
        return np.concatenate([self._absorption_of(rows[part], row_numbers[part])[0] for part in parts])

    def clustering_with_neighbors(
        self, rows: FloatArray, first_row: int
    ) -> tuple[Clustering, tuple[FloatArray, IntArray]]:
        """Their clustering, and distances and row numbers of their nearest training rows."""
        P, nearest = self._absorption_of(rows, np.arange(first_row, first_row + len(rows)))
        return clustering_block(P, self.numbers, noise=self.settings.noise), nearest

    def _absorption_of(self, rows: FloatArray, row_numbers: IntArray) -> tuple[FloatArray, tuple[FloatArray, IntArray]]:
        distances, indices = self.search(transform_rows(rows, self.transform, row_numbers))
        P = absorption_block(indices, distances, self.held_absorption, self.choice.n_clusters, self.choice.lam)
        return P, (distances, indices)

    @cached_property
    def held_absorption(self) -> ArrayLike:
        """The absorption of the training rows: in memory, once for all threads of a process, if it is not too large."""
        with _loading:
            if "held_absorption" in self.__dict__:  # another thread was first
                return self.__dict__["held_absorption"]
            n_rows, K = self.absorption.shape[0], self.choice.n_clusters
            held = np.asarray(self.absorption[:, :K]) if n_rows * K * FLOAT_BYTES <= HELD_BYTES else self.absorption
            self.__dict__["held_absorption"] = held
            return held

    def search(self, queries: FloatArray) -> tuple[FloatArray, IntArray]:
        """Distances and row numbers of the nearest training rows (m, k)."""
        k = self.choice.n_neighbors
        if self.cells is None:
            return search_everywhere(queries, self.points, k, self.first_copy)
        return search_new_rows(queries, self.cells, k, self.points.shape[0])


def predict(result: Result, new: Any, **options: Any) -> Clustering:
    """Cluster new rows with a stored result, lazily and chunk by chunk.

    Parameters
    ----------
    result
        An opened result.
    new
        Rows with the features of the training data (m, d): see `open_data`.
    **options
        Options of `open_data`; those of the fit are used where they are not given.
    """
    predictor = Predictor(result)
    data = check_features(result, open_new(result, new, **options))
    starts = np.nan_to_num(np.cumsum([0, *data.X.chunks[0][:-1]])).astype(int).tolist()
    rows = delayed_chunks(data.X)
    blocks = [dask.delayed(predict_block)(predictor, *each) for each in zip(rows, starts, strict=True)]
    return from_blocks(blocks, data.X.chunks[0], result.choice.n_clusters)


def predict_in_memory(result: Result, data: Data, field: str) -> Any:
    """Labels, memberships or confidence (`field`) of rows that are in this process's memory, as a NumPy array.

    The rows travel inside the tasks, of which the scheduler has few at a time: if a worker is lost, another gets its
    rows too.
    """
    answer, X = Field(Predictor(result), field), check_features(result, data).X
    parts: list[Any] = []
    chunks = row_slices(X.shape[0], X.chunksize[0])
    at_once = TASKS_PER_THREAD * sum(threads for _, threads, _ in processes())
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": 2**62}):
        for at in range(0, len(chunks), at_once):
            some = chunks[at : at + at_once]
            rows = [X[part].compute(scheduler="synchronous") for part in some]
            tasks = [dask.delayed(answer)(block, part.start) for block, part in zip(rows, some, strict=True)]
            parts += compute(tasks, stage="predict")
    return np.concatenate(parts)


def predict_table(result: Result, new: Any, **options: Any) -> Any:
    """Labels, confidence and memberships of new rows as a table: with their index and partitions, if they have some."""
    data = open_new(result, new, **options)
    return frame_of(predict(result, data), result.clusters, replace(data, sizes=None))


def predict_wrapped(result: Result, data: Data, field: str, name: str) -> Any:
    """Labels, memberships or confidence (`field`) of new rows, in their form."""
    clusters = result.clusters if field == "memberships" else None
    if isinstance(data.form, LazyTable):
        return data.form.mapped(Field(Predictor(result), field), name, clusters)
    if not data.in_memory:
        return data.wrap(getattr(predict(result, data), field), name, clusters)
    values = predict_in_memory(result, data, field)
    with dask.config.set(scheduler="synchronous"):
        return data.wrap(da.from_array(values, chunks=-1), name, clusters)


class Field:
    """One of the answers of a predictor."""

    def __init__(self, predictor: Predictor, name: str) -> None:
        self._predictor, self._name = predictor, name

    def __call__(self, rows: FloatArray, first_row: int = 0) -> Any:
        """Its values for some rows, of which errors number the first as `first_row`."""
        return getattr(self._predictor.clustering(rows, first_row), self._name)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return self._predictor.__dask_tokenize__(), self._name


def _check_rows_are_there(result: Result) -> None:
    if result.points is None:
        raise NotAResultError(
            "The result holds no training rows, because only a graph was clustered. Fit with the rows too."
        )


def open_new(result: Result, new: Any, *, by_name: bool = True, **options: Any) -> Data:
    """Open new rows as those of the fit were; if `by_name`, the columns of a table are found by their names."""
    _check_rows_are_there(result)
    columns = {"columns": result.columns} if by_name and result.columns else {}
    return open_data(new, defaults=columns | result.read_options, min_rows=1, counted=False, **options)


def check_features(result: Result, data: Data) -> Data:
    """The same data, if they have as many features as those of the fit."""
    n_features = result.transform.n_features
    if data.X.shape[1] != n_features:
        raise InvalidDataError(f"The rows have {data.X.shape[1]} features instead of {n_features}.")
    return data


def feature_positions(result: Result, data: Data) -> list[int]:
    """Where the features of the fit are in other data: by name where both have names, else in the same order."""
    names = result.feature_names
    if names is None or data.names is None:
        return list(range(check_features(result, data).X.shape[1]))
    lost = [str(name) for name in names if name not in data.names]
    if lost:
        shown = ", ".join(lost[:SHOWN_COLUMNS]) + (", ..." if len(lost) > SHOWN_COLUMNS else "")
        raise InvalidDataError(f"The rows lack features of the other fit: {shown}. Add or rename the columns.")
    return [data.names.index(name) for name in names]


def with_features_of(result: Result, data: Data, X: da.Array) -> da.Array:
    """Rows X (n, d) of other data with the features of the fit, in its order."""
    positions = feature_positions(result, data)
    return X if positions == list(range(X.shape[1])) else X[:, positions].rechunk({1: -1})


def predict_block(predictor: Predictor, rows: FloatArray, first_row: int) -> Clustering:
    """The clustering of one chunk of new rows."""
    return predictor.clustering(rows, first_row)


def with_fillers(rows: FloatArray, codes: Any, transform: Transform) -> FloatArray:
    """The rows, with a placeholder instead of each that is skipped."""
    if (codes == CLUSTERED).all():
        return rows
    other = np.zeros(transform.n_features)
    other[transform.kept] = transform.center + transform.scale
    return np.where((codes == CLUSTERED)[:, None], rows, other)


def predict_to(
    out: str | os.PathLike[str],
    result: Result,
    new: Any,
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> None:
    """Cluster new rows and store labels, memberships and confidence in a Zarr group at `out`.

    What an earlier run has left unfinished is continued; a finished output of the same rows and model stays as it is.
    """
    progress = progress or Progress()
    data = open_data(open_new(result, new, **options), min_rows=1)
    n_clusters = result.choice.n_clusters
    rows = rows_per_chunk(data.X.shape[0], max(data.X.shape[1], result.choice.n_neighbors, n_clusters))
    data = replace(data, X=data.X.rechunk({0: rows}))
    model = result.details.get("fingerprint") or digest(result.details)  # of a temporary one
    fingerprint = {"data": fingerprint_of(data, progress), "model": model}
    stage = clustering_stage("predict", data.X.shape[0], rows, n_clusters)
    written: dict[str, Any] = {"overwrite": overwrite, "inputs": (*data.files, result.path), "tell": progress.tell}
    with open_output(out, Kind.PREDICTION, fingerprint, resume_key(rows), **written) as output:
        if output.writer is not None:
            run = Run(output.writer, progress)
            run.check_ready(disk_bytes=0)
            shared = replace(data, X=run.share(data.X)) if data.in_memory else data
            run.write(stage, vars(predict(result, shared)))
            output.writer.put("cluster", result.clusters)
            output.writer.describe(model=result.path, choice=asdict(result.choice))


def absorption_block(
    indices: IntArray, distances: FloatArray, absorption: ArrayLike, n_clusters: int, lam: float
) -> FloatArray:
    """P of some new rows (m, K) from their nearest training rows (m, k); only these are read of stored `absorption`."""
    if not len(indices):
        return np.empty((0, n_clusters))
    if not isinstance(absorption, np.ndarray):
        needed, position = np.unique(indices, return_inverse=True)
        absorption, indices = np.asarray(absorption[needed, :n_clusters]), position.reshape(indices.shape)
    absorption = absorption[:, :n_clusters]
    P = mean_of_rows(absorption, indices)
    if np.isnan(P).any():
        raise NotAResultError("Part of the stored absorption is missing. Fit again.")
    is_training_row = distances[:, :1] == 0
    return np.asarray(np.where(is_training_row, absorption[indices[:, 0]], (1 - lam) * P))
