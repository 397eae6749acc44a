"""Clustering by non-parametric smoothing on Dask.

from cns_dask import CNS, open_result
model = CNS().fit(X)                # NumPy, Dask, a path or URL
model.labels_, model.memberships_, model.n_clusters_
"""

from importlib.metadata import version

from cns_dask.annotated import annotate
from cns_dask.changes import drift
from cns_dask.data import open_data
from cns_dask.estimator import CNS
from cns_dask.flows import assign_clusters
from cns_dask.forecast import Forecast, plan
from cns_dask.graphs import neighbor_graph
from cns_dask.predict import Predictor
from cns_dask.result import Result, open_result
from cns_dask.settings import Settings
from cns_dask.transition import transition_matrix

__version__ = version("cns_dask")
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
