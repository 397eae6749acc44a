"""The layout of a stored result: every array of it is a row of `LAYOUT`.

One Zarr v3 group, which xarray opens as it is: all arrays name their dimensions, and `cluster`, `k`, `lam` and
`n_clusters` are coordinates. The attributes hold the settings, the choice and its margin, residuals, versions, seconds
per stage, planned and used memory, and the fingerprint of data and settings; those of `graph` how it was found and its
recall. Every chunk carries a checksum. Data only, never pickles.
"""

import math
from collections.abc import Set
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

FORMAT_VERSION = 7


class Kind(StrEnum):
    """What a finished group says that it is."""

    RESULT = "result of cns_dask"
    PREDICTION = "prediction of cns_dask"
    GRAPH = "graph of cns_dask"


@dataclass(frozen=True)
class Range:
    """The values that an array may have: from `low` to below a number, or below the size of a dimension."""

    low: float
    below: float | str


TINY = 5e-324  # the smallest positive number
FINITE = Range(float(np.finfo(np.float64).min), math.inf)
A_ROW, A_ROW_OR_NONE = Range(0, "row"), Range(-1, "row")


@dataclass(frozen=True)
class ArraySpec:
    """One array of a result: its dimensions, type and meaning, and the values that it may have where that is checked.

    Dimensions of one name have one size in all arrays of a result.
    """

    dims: tuple[str, ...]
    dtype: str
    meaning: str
    values: Range | None = None


LAYOUT: dict[str, ArraySpec] = {
    "labels": ArraySpec(("row",), "int64", "cluster of every row: its largest membership"),
    "memberships": ArraySpec(("row", "cluster"), "float64", "F: soft membership of every row, rows sum to 1"),
    "cluster": ArraySpec(("cluster",), "int64", "number of the cluster, as in labels"),
    "confidence": ArraySpec(("row",), "float64", "0: no cluster preferred, 1: only one in reach"),
    "representatives": ArraySpec(
        ("cluster",), "int64", "most prominent row that represents each cluster", values=A_ROW
    ),
    "sources": ArraySpec(("source",), "int64", "all rows that represent clusters"),
    "source_clusters": ArraySpec(("source",), "int64", "the cluster that each of them represents"),
    "criterion": ArraySpec(("k", "lam", "n_clusters"), "float64", "C / R; NaN where there are too few candidates"),
    "codes": ArraySpec(
        ("row",), "int8", "why a row was not clustered: -2 infinite, -3 missing, -5 outside the sample; 0: it was"
    ),
    "rows": ArraySpec(("clustered",), "int64", "row number of every clustered row, where others were not"),
    "k": ArraySpec(("k",), "int64", "numbers of neighbours tried, the row itself included", values=Range(1, "row")),
    "lam": ArraySpec(("lam",), "float64", "weights of the start solution tried", values=Range(TINY, 1)),
    "n_clusters": ArraySpec(("n_clusters",), "int64", "numbers of clusters tried"),
    "picks": ArraySpec(
        ("k", "lam", "n_clusters"),
        "int64",
        "row picked as K-th representative; -1 where there is none",
        values=A_ROW_OR_NONE,
    ),
    "criterion_parts": ArraySpec(
        ("part", "k", "lam", "n_clusters"), "float64", "the same of parts of the rows: how they differ tells the noise"
    ),
    "smallest": ArraySpec(("k", "lam", "n_clusters"), "int64", "rows of the smallest of the clusters of these picks"),
    "scale": ArraySpec(("scale",), "int64", "numbers of clusters that were tried by their scale"),
    "evidence": ArraySpec(("k", "scale"), "float64", "how far a number of clusters stands out from unstructured data"),
    "evidence_with_borders": ArraySpec(("k", "scale"), "float64", "what is left of it if clusters must have borders"),
    "rates": ArraySpec(("k", "rate"), "float64", "rates of the chain over candidates, ascending; NaN beyond them"),
    "candidates": ArraySpec(
        ("k", "candidate"), "int64", "rows that may represent a cluster; -1 where there are fewer", values=A_ROW_OR_NONE
    ),
    "candidate_clusters": ArraySpec(
        ("k", "scale", "candidate"),
        "int64",
        "the cluster of each candidate if there are so many; -1 if it is in none",
        values=Range(-1, "scale"),
    ),
    "absorption": ArraySpec(
        ("row", "chosen"), "float64", "P: chance that a walk from the row is absorbed where a cluster is represented"
    ),
    "communities": ArraySpec(("row",), "int32", "part of a community that every row is in; -1 for none"),
    "community_clusters": ArraySpec(
        ("layer", "community"),
        "int64",
        "the cluster of each part if there are 1, 2, ... clusters",
        values=Range(0, "community"),
    ),
    "points": ArraySpec(("row", "component"), "float64", "rows as the neighbours saw them"),
    "first_copy": ArraySpec(
        ("row",), "int64", "first row that equals each row, where some rows are copies", values=A_ROW
    ),
    "graph/indices": ArraySpec(("row", "neighbor"), "int64", "nearest rows, the row itself first"),
    "graph/distances": ArraySpec(("row", "neighbor"), "float64", "distances to them"),
    "cells/centers": ArraySpec(
        ("cell", "component"), "float32", "centres of the cells of an approximate search", values=FINITE
    ),
    "cells/starts": ArraySpec(
        ("edge",), "int64", "position of the first row of every cell, and the number of rows", values=Range(0, math.inf)
    ),
    "cells/points": ArraySpec(("position", "component"), "float32", "points less the offset, by cell and row"),
    "cells/rows": ArraySpec(("position",), "int64", "their row numbers"),
    "cells/offset": ArraySpec(
        ("component",), "float64", "subtracted from points before they are rounded", values=FINITE
    ),
    "transform/kept": ArraySpec(("feature",), "int64", "raw features that are not constant", values=Range(0, math.inf)),
    "transform/center": ArraySpec(("feature",), "float64", "subtracted from the kept features", values=FINITE),
    "transform/scale": ArraySpec(
        ("feature",), "float64", "divided out of the kept features", values=Range(TINY, math.inf)
    ),
    "transform/components": ArraySpec(("feature", "component"), "float64", "principal axes", values=FINITE),
}

#: Arrays that not every result has: of rows that are not clustered, and of rows besides their graph.
OPTIONAL = {"codes", "rows", "points", "graph/distances", "communities", "community_clusters", "first_copy"} | {
    name for name in LAYOUT if name[:5] in ("cells", "trans")
}
#: Arrays that a finished store must have.
REQUIRED: dict[str | None, Set[str]] = {
    Kind.RESULT: LAYOUT.keys() - OPTIONAL,
    Kind.PREDICTION: {"labels", "memberships", "confidence", "cluster"},
    Kind.GRAPH: {"graph/indices"},
}
#: Dimensions that must be so much larger than another.
LARGER = {"chosen": ("cluster", 0), "edge": ("cell", 1), "position": ("clustered", 0)}
#: Arrays with a row for clustered rows only: where others were not clustered their first dimension is `clustered`.
OF_CLUSTERED_ROWS = ("absorption", "communities", "points", "first_copy", "graph/indices", "graph/distances")
UNCOMPRESSED = ("cells/points", "cells/rows")  # searches map them, and noise does not compress
GROUPS = sorted({name.partition("/")[0] for name in LAYOUT if "/" in name})  # in the group of a result


@dataclass(frozen=True)
class ArrayPlan:
    """An array before it is made."""

    name: str  # a name of `LAYOUT`, or any other for a `scratch` array, which is removed before the run ends
    shape: tuple[int, ...]  # its shape, and that of its chunks
    chunks: tuple[int, ...]
    dtype: str | None = None  # its type; None for the one in `LAYOUT`
    scratch: bool = False
    compressed: bool = False  # whether a scratch array is

    @property
    def nbytes(self) -> int:
        """Uncompressed size."""
        dtype = self.dtype or (LAYOUT[self.name].dtype if self.name in LAYOUT else "float64")
        return math.prod(self.shape) * np.dtype(dtype).itemsize
