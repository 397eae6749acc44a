"""The rows of a fit, given once more by the caller: opened, and checked to be as many and to have its features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cns_dask.errors import InvalidDataError
from cns_dask.inputs.data import open_data
from cns_dask.inputs.forms import Data
from cns_dask.inputs.tables import is_table
from cns_dask.results.profile import feature_names

if TYPE_CHECKING:
    from cns_dask.results.result import Result


def same_rows(result: Result, source: Any, options: dict[str, Any]) -> Data:
    """The data of a fit, opened as the fit has opened them."""
    data = open_data(source, defaults=result.read_options, min_rows=1, **options)
    if data.X.shape[0] != result.n_rows:
        raise InvalidDataError(
            f"The data have {data.X.shape[0]} rows, but {result.n_rows} were clustered. Give the data of the fit."
        )
    return data


def any_rows(result: Result, source: Any, options: dict[str, Any]) -> Data:
    """The same, of which only the rows matter: columns of a table that hold no numbers are not in the way."""
    named: dict[str, Any] = {"columns": result.columns} if result.columns else {}
    if not named and is_table(source):
        named = {"columns": list(source.select_dtypes(["number", "bool"]).columns) or None}
    opened = open_data(source, defaults=named | result.read_options, min_rows=1, **options)
    return same_rows(result, opened, {})


def same_features(result: Result, source: Any, options: dict[str, Any]) -> tuple[Data, tuple[str, ...]]:
    """The same with the features of the fit, found by name in tables, and their names.

    With `columns` in the options: of these instead, whether the fit has used them or not.
    """
    chosen = options.get("columns") is not None
    named = {} if chosen or not result.columns else {"columns": result.columns}
    opened = open_data(source, defaults=named | result.read_options, min_rows=1, **options)
    data = same_rows(result, opened, {})
    width = int(data.X.shape[1])
    if not chosen and result.points is not None and width != result.transform.n_features:
        raise InvalidDataError(
            f"The rows have {width} features instead of {result.transform.n_features}. Give the data of the fit, or "
            "choose features with columns=[...]."
        )
    known = result.feature_names if not chosen and len(result.feature_names or ()) == width else None
    return data, feature_names(data.names or data.labels or known, width)
