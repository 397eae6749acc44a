"""Find the neighbours of stored points: exactly, approximately with a measured recall, or as the caller gives them."""

import warnings

from cns_dask.errors import LowRecallWarning
from cns_dask.execution.run import Run
from cns_dask.neighbors.approximate import ApproximateSearch
from cns_dask.neighbors.copies import distinct_rows, expand_lists
from cns_dask.neighbors.exact import exact_graph
from cns_dask.neighbors.given import listed
from cns_dask.neighbors.graph import GraphSummary, NeighborGraph
from cns_dask.neighbors.plan import GraphSizes, exact_stage, given_stage


def find_neighbors(run: Run, sizes: GraphSizes, smallest_k: int, method: str, recall: float, seed: int) -> GraphSummary:
    """Find the neighbours of the stored points; recall is measured at `smallest_k` and at the length of the lists."""
    if sizes.is_exact:
        graph = exact_graph(run.writer.array("points"), sizes.n_neighbors)
        run.write(exact_stage(sizes), {"graph/indices": graph.indices, "graph/distances": graph.distances})
        return GraphSummary("exact")
    summary = ApproximateSearch(run, sizes, seed).find(method, recall, smallest_k)
    reached = summary.recall[-1]
    if reached.low < recall:
        warnings.warn(
            f"The recall of the graph is {reached.mean:.4f} ({reached.low:.4f} to {reached.high:.4f}) at "
            f"k = {reached.n_neighbors}, of which the lower end is below the {recall} that was asked for. "
            "Use method='exact', or a lower recall.",
            LowRecallWarning,
            stacklevel=4,
        )
    return summary


def find_among_distinct(
    run: Run, sizes: GraphSizes, of_distinct: GraphSizes, smallest_k: int, method: str, recall: float, seed: int
) -> GraphSummary:
    """Find the neighbours among different rows, and give them to all: see `copies`."""
    beside = distinct_rows(run, sizes, of_distinct)
    summary = find_neighbors(beside, of_distinct, smallest_k, method, recall, seed)
    expand_lists(run, beside, sizes)
    return summary


def store_given_graph(run: Run, sizes: GraphSizes, graph: NeighborGraph) -> GraphSummary:
    """Check the lists of a graph that the caller has, and store them."""
    lists = listed(graph, sizes.n_neighbors, sizes.rows_per_chunk)
    arrays = {"graph/indices": lists.indices, "graph/distances": lists.distances}
    present = {name: values for name, values in arrays.items() if values is not None}
    run.write(given_stage(sizes, with_distances=len(present) == 2), present)
    return GraphSummary(graph.method, graph.recall, preprocessing=graph.preprocessing)
