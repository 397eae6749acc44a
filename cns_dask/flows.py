"""Clusters as a step of a flow of tables: two more columns, lazily."""

import os
from typing import Any

import dask
import numpy as np

from cns_dask import pipeline
from cns_dask.errors import InvalidSettingError, InvalidTypeError
from cns_dask.execution.cluster import inside_task
from cns_dask.inputs.data import open_data
from cns_dask.inputs.table_forms import CLUSTER, CONFIDENCE, from_parts, partitions
from cns_dask.inputs.tables import is_lazy_table, is_table, numeric_columns, with_columns
from cns_dask.results.predict import Predictor
from cns_dask.results.result import Result
from cns_dask.settings import Settings, check_settings
from cns_dask.smoothing.memberships import Clustering


def assign_clusters(
    table: Any,
    model: Any = None,
    *,
    columns: Any = None,
    names: tuple[str, str] = (CLUSTER, CONFIDENCE),
    out: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    sample: float | None = None,
) -> Any:
    """Add the cluster and the confidence of every row to a table, as two more columns.

    A Dask DataFrame gives a lazy one, with the same index, partitions and divisions: nothing is computed before it is
    asked for, not even its lengths.

    Parameters
    ----------
    table
        A DataFrame of Dask or pandas.
    model
        A fitted `CNS`, a `Result`, or the path or URL of one, which predicts; every task carries its path only. None:
        the rows are clustered themselves, by a task that the others wait for, as often as they are computed; with `out`
        once.
    columns
        The columns that are features. None: those that the model was fitted on, or all.
    names
        Names of the new columns.
    out
        Without a model: where the result of the fit is kept (path or URL).
    settings
        Without a model: the parameters of the fit.
    sample
        Without a model: cluster only so many rows, or this share of them, and predict the others: see `CNS.fit`.

    Examples
    --------
    >>> import pandas as pd
    >>> import dask.dataframe as dd
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(center, 1, (100, 2)) for center in (0, 20)])
    >>> lazy = dd.from_pandas(pd.DataFrame(X, columns=["a", "b"]), npartitions=3)
    >>> assign_clusters(lazy, columns=["a", "b"], settings=Settings(n_clusters=2)).compute().groupby("cluster").size()
    cluster
    0    100
    1    100
    dtype: int64
    """
    if not is_table(table):
        raise InvalidTypeError(f"assign_clusters needs a DataFrame, not {type(table).__name__}. Use CNS.predict.")
    names = _two_names(names)
    if model is None:
        options = {"settings": check_settings(settings), "out": out, "sample": sample}
        return _fitted(table, numeric_columns(table, columns), names, options)
    predictor = Predictor(model)
    columns = predictor.result.columns if columns is None else columns
    columns = numeric_columns(table, columns)
    if not is_lazy_table(table):
        return assign_block(table, predictor, columns, names)
    meta = with_columns(table._meta, names, *_no_answers())
    return table.map_partitions(assign_block, predictor, columns, names, meta=meta)


def _two_names(names: Any) -> tuple[str, str]:
    if not isinstance(names, tuple | list) or len(names) != 2 or names[0] == names[1]:
        raise InvalidSettingError(
            f"names must be two different names of columns, as ('cluster', 'sure'). Got {names!r}."
        )
    return names[0], names[1]


def _no_answers() -> tuple[Any, Any]:
    return np.empty(0, np.int64), np.empty(0)


def assign_block(frame: Any, predictor: Predictor, columns: list[Any], names: tuple[str, str]) -> Any:
    """A partition with two more columns."""
    clustering = predictor.clustering(predictor.block(frame, columns))
    return with_columns(frame, names, clustering.labels, clustering.confidence)


class _Uncomputed:
    """A lazy table as it is: Dask would compute it before the task that gets it."""

    def __init__(self, table: Any) -> None:
        self.table = table


class _Fitted:
    """A result and where the rows of each partition begin in it; it travels as a path."""

    def __init__(self, result: Result, starts: list[int]) -> None:
        self.result, self.starts = result, starts

    def __reduce__(self) -> tuple[Any, ...]:
        return _fitted_at, (self.result.path, self.starts)

    def part(self, number: int) -> Clustering:
        rows = slice(*self.starts[number : number + 2])
        labels, confidence = (self.result.stored(name)[rows] for name in ("labels", "confidence"))
        return Clustering(None, np.asarray(labels), np.asarray(confidence))


def _fitted_at(path: str, starts: list[int]) -> _Fitted:
    return _Fitted(Result.at_path(path), starts)


def _fitted(table: Any, columns: list[Any], names: tuple[str, str], options: dict[str, Any]) -> Any:
    if not is_lazy_table(table):
        result = pipeline.fit(open_data(table, columns=columns), **options)
        return with_columns(table, names, *dask.compute(result.labels, result.confidence))
    fitted = dask.delayed(fit_table)(_Uncomputed(table[columns]), options)
    parts = [dask.delayed(assign_part)(part, fitted, number, names) for number, part in enumerate(partitions(table))]
    return from_parts(parts, with_columns(table._meta, names, *_no_answers()), table.divisions)


def fit_table(uncomputed: _Uncomputed, options: dict[str, Any]) -> _Fitted:
    """Cluster the rows of a lazy table, from within a task."""
    with inside_task():
        data = open_data(uncomputed.table)
        result = pipeline.fit(data, **options)
    return _Fitted(result, np.cumsum([0, *(data.sizes or ())]).tolist())


def assign_part(frame: Any, fitted: _Fitted, number: int, names: tuple[str, str]) -> Any:
    """A partition with two more columns, from the fit of all."""
    clustering = fitted.part(number)
    return with_columns(frame, names, clustering.labels, clustering.confidence)
