"""The layout of a stored result: every array of it is a row of `LAYOUT`.

One Zarr v3 group, which xarray opens as it is: all arrays name their dimensions, and `cluster`, `k`, `lam` and
`n_clusters` are coordinates. The attributes hold the settings, the choice and its margin, residuals, versions, seconds
per stage, planned and used memory, and the fingerprint of data and settings; those of `graph` how it was found and its
recall. Every chunk carries a checksum. Data only, never pickles.
"""

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

FORMAT_VERSION = 5


class Kind(StrEnum):
    """What a finished group says that it is."""

    RESULT = "result of cns_dask"
    PREDICTION = "prediction of cns_dask"
    GRAPH = "graph of cns_dask"


@dataclass(frozen=True)
class ArraySpec:
    """One array of a result: its dimensions, type and meaning."""

    dims: tuple[str, ...]
    dtype: str
    meaning: str


LAYOUT: dict[str, ArraySpec] = {
    "labels": ArraySpec(("row",), "int64", "cluster of every row: its largest membership"),
    "memberships": ArraySpec(("row", "cluster"), "float64", "F: soft membership of every row, rows sum to 1"),
    "cluster": ArraySpec(("cluster",), "int64", "number of the cluster, as in labels"),
    "confidence": ArraySpec(("row",), "float64", "0: no cluster preferred, 1: only one in reach"),
    "representatives": ArraySpec(("cluster",), "int64", "most prominent row that represents each cluster"),
    "sources": ArraySpec(("source",), "int64", "all rows that represent clusters"),
    "source_clusters": ArraySpec(("source",), "int64", "the cluster that each of them represents"),
    "criterion": ArraySpec(("k", "lam", "n_clusters"), "float64", "C / R; NaN where there are too few candidates"),
    "codes": ArraySpec(("row",), "int8", "why a row was skipped: -2 infinite, -3 missing value; 0: it was clustered"),
    "rows": ArraySpec(("clustered",), "int64", "row number of every clustered row, where some were skipped"),
    "k": ArraySpec(("k",), "int64", "numbers of neighbours tried, the row itself included"),
    "lam": ArraySpec(("lam",), "float64", "weights of the start solution tried"),
    "n_clusters": ArraySpec(("n_clusters",), "int64", "numbers of clusters tried"),
    "picks": ArraySpec(
        ("k", "lam", "n_clusters"), "int64", "row picked as K-th representative; -1 where there is none"
    ),
    "criterion_parts": ArraySpec(
        ("part", "k", "lam", "n_clusters"), "float64", "the same of parts of the rows: how they differ tells the noise"
    ),
    "smallest": ArraySpec(("k", "lam", "n_clusters"), "int64", "rows of the smallest of the clusters of these picks"),
    "scale": ArraySpec(("scale",), "int64", "numbers of clusters that were tried by their scale"),
    "evidence": ArraySpec(("k", "scale"), "float64", "how far a number of clusters stands out from unstructured data"),
    "evidence_with_borders": ArraySpec(("k", "scale"), "float64", "what is left of it if clusters must have borders"),
    "rates": ArraySpec(("k", "rate"), "float64", "rates of the chain over candidates, ascending; NaN beyond them"),
    "candidates": ArraySpec(("k", "candidate"), "int64", "rows that may represent a cluster; -1 where there are fewer"),
    "candidate_clusters": ArraySpec(
        ("k", "scale", "candidate"), "int64", "the cluster of each candidate if there are so many; -1 if it is in none"
    ),
    "absorption": ArraySpec(
        ("row", "chosen"), "float64", "P: chance that a walk from the row is absorbed where a cluster is represented"
    ),
    "points": ArraySpec(("row", "component"), "float64", "rows as the neighbours saw them"),
    "graph/indices": ArraySpec(("row", "neighbor"), "int64", "nearest rows, the row itself first"),
    "graph/distances": ArraySpec(("row", "neighbor"), "float64", "distances to them"),
    "cells/centers": ArraySpec(("cell", "component"), "float32", "centres of the cells of an approximate search"),
    "cells/starts": ArraySpec(("edge",), "int64", "position of the first row of every cell, and the number of rows"),
    "cells/points": ArraySpec(("position", "component"), "float32", "points less the offset, by cell and row"),
    "cells/rows": ArraySpec(("position",), "int64", "their row numbers"),
    "cells/offset": ArraySpec(("component",), "float64", "subtracted from points before they are rounded"),
    "transform/kept": ArraySpec(("feature",), "int64", "raw features that are not constant"),
    "transform/center": ArraySpec(("feature",), "float64", "subtracted from the kept features"),
    "transform/scale": ArraySpec(("feature",), "float64", "divided out of the kept features"),
    "transform/components": ArraySpec(("feature", "component"), "float64", "principal axes"),
}

#: Arrays with a row for clustered rows only: where rows were skipped their first dimension is `clustered`.
OF_CLUSTERED_ROWS = ("absorption", "points", "graph/indices", "graph/distances")
UNCOMPRESSED = ("cells/points", "cells/rows")  # searches map them, and noise does not compress


@dataclass(frozen=True)
class ArrayPlan:
    """An array before it is made."""

    name: str  # a name of `LAYOUT`, or any other for a `scratch` array, which is removed before the run ends
    shape: tuple[int, ...]  # its shape, and that of its chunks
    chunks: tuple[int, ...]
    dtype: str | None = None  # its type; None for the one in `LAYOUT`
    scratch: bool = False

    @property
    def nbytes(self) -> int:
        """Uncompressed size."""
        dtype = self.dtype or (LAYOUT[self.name].dtype if self.name in LAYOUT else "float64")
        return math.prod(self.shape) * np.dtype(dtype).itemsize
