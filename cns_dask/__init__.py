"""Clustering by non-parametric smoothing on Dask.

from cns_dask import CNS, open_result
model = CNS().fit(X)                # NumPy, Dask, a path or URL
model.labels_, model.memberships_, model.n_clusters_
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cns_dask.estimator import CNS
    from cns_dask.execution.forecast import Forecast
    from cns_dask.flows import assign_clusters
    from cns_dask.graphs import neighbor_graph
    from cns_dask.inputs.data import open_data
    from cns_dask.planning import plan
    from cns_dask.results.annotations import annotate
    from cns_dask.results.changes import drift
    from cns_dask.results.predict import Predictor
    from cns_dask.results.result import Result, open_result
    from cns_dask.settings import Settings
    from cns_dask.smoothing.walk import transition_matrix

__all__ = [
    "CNS",
    "Forecast",
    "Predictor",
    "Result",
    "Settings",
    "annotate",
    "assign_clusters",
    "drift",
    "neighbor_graph",
    "open_data",
    "open_result",
    "plan",
    "transition_matrix",
]

#: Public names are imported when they are first used: the packages behind them take seconds to load.
_MODULES = {
    "CNS": "estimator",
    "Forecast": "execution.forecast",
    "Predictor": "results.predict",
    "Result": "results.result",
    "Settings": "settings",
    "annotate": "results.annotations",
    "assign_clusters": "flows",
    "drift": "results.changes",
    "neighbor_graph": "graphs",
    "open_data": "inputs.data",
    "open_result": "results.result",
    "plan": "planning",
    "transition_matrix": "smoothing.walk",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("cns_dask")
    if name not in _MODULES:
        raise AttributeError(f"module 'cns_dask' has no attribute {name!r}")
    return getattr(import_module(f"cns_dask.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
