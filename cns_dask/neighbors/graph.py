"""A kNN graph as a record: its lists, how they were found, and how good they are."""

from dataclasses import asdict, dataclass, fields
from typing import Annotated, Any

import msgspec

from cns_dask.array_types import ArrayLike
from cns_dask.neighbors.recall import Recall
from cns_dask.storage.records import recordable, typed_record
from cns_dask.storage.store import ResultStore

GraphMethod = Annotated[str, msgspec.Meta(pattern="^(exact|cells|descent|given)$")]


@recordable
@dataclass(frozen=True)
class Preprocessing:
    """What was done to rows before their neighbours were searched: the settings of these names."""

    metric: str
    scale: bool | str
    max_components: int | None
    center: bool = True  # whether the mean was subtracted from every feature


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
    preprocessing
        What was done to the rows before; None if that is not known.
    """

    indices: ArrayLike
    distances: ArrayLike
    method: str = "exact"
    recall: tuple[Recall, ...] = ()
    preprocessing: Preprocessing | None = None


@recordable
@dataclass(frozen=True)
class GraphSummary:
    """What is stored about a graph besides its lists."""

    method: GraphMethod  # as of a `NeighborGraph`
    recall: tuple[Recall, ...] = ()
    reach: float | None = None  # of the search in cells: it visits cells nearer than this times the k-th distance
    visited_per_row: float | None = None  # rows that such a search visits on average
    unit: float | None = None  # of the stored distances, if it is not 1: those of extreme data would leave the range
    preprocessing: Preprocessing | None = None  # of the rows; None if that is not known

    def as_attributes(self) -> dict[str, Any]:
        """Plain values, for the attributes of the graph."""
        present = {
            field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) is not None
        }
        records = {} if self.preprocessing is None else {"preprocessing": asdict(self.preprocessing)}
        return present | {"recall": [asdict(each) for each in self.recall]} | records


def stored_graph(store: ResultStore) -> NeighborGraph:
    """The graph in a store, opened lazily."""
    summary = typed_record(GraphSummary, store.graph_attributes, "its graph")
    distances = store.open("graph/distances") if "graph/distances" in store else None
    if distances is not None and summary.unit not in (None, 1.0):
        distances = distances * summary.unit
    return NeighborGraph(store.open("graph/indices"), distances, summary.method, summary.recall, summary.preprocessing)


def describe_quality(graph: NeighborGraph) -> str:
    """What a reader should know about a graph, in one sentence."""
    if not graph.recall:
        return f"Neighbours: {graph.method}."
    shares = (f"{at.mean:.4f} ({at.low:.4f} to {at.high:.4f}) at k = {at.n_neighbors}" for at in graph.recall)
    rows = graph.recall[-1].n_rows
    return f"Neighbours: {graph.method}, recall {', '.join(shares)} (95 % interval, {rows} rows)."
