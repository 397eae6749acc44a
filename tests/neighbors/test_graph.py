"""The record of a graph: what is stored about it, and what a reader is told."""

import json

import numpy as np
import pytest
from runs import run_in

from cns_dask import neighbor_graph
from cns_dask.errors import NotAResultError
from cns_dask.neighbors.graph import GraphSummary, NeighborGraph, describe_quality, stored_graph
from cns_dask.neighbors.recall import Recall
from cns_dask.storage.records import decode, encode

RECALL = (Recall(5, 0.999, 0.99, 1.0, 1000), Recall(20, 0.98765, 0.98, 0.99, 1000))
INDICES = np.array([[0, 1], [1, 0], [2, 1]])


@pytest.fixture
def writer(tmp_path):
    arrays = {"graph__indices": INDICES, "graph__distances": np.array([[0.0, 1.0], [0.0, 1.0], [0.0, 2.0]])}
    return run_in(tmp_path, 2, **arrays).writer


def test_a_stored_graph_is_the_one_that_was_described(writer):
    summary = GraphSummary("cells", RECALL, reach=0.5, visited_per_row=77.5)
    writer.describe_graph(**summary.as_attributes())
    graph = stored_graph(writer)
    assert (graph.method, graph.recall) == ("cells", RECALL)
    np.testing.assert_array_equal(graph.indices.compute(), INDICES)
    assert graph.distances.compute()[2, 1] == 2
    assert writer.graph_attributes["reach"] == 0.5


def test_a_summary_survives_a_record_and_leaves_out_what_it_does_not_know():
    summary = GraphSummary("cells", RECALL, reach=0.5)
    assert decode(encode(summary)) == summary
    attributes = summary.as_attributes()
    assert attributes.keys() == {"method", "recall", "reach"}
    assert json.loads(json.dumps(attributes)) == attributes
    assert GraphSummary("exact").as_attributes() == {"method": "exact", "recall": []}


@pytest.mark.parametrize(
    "attributes",
    [{"method": "guessed", "recall": []}, {"recall": []}, {"method": "exact", "recall": 0.9}],
)
def test_a_graph_that_is_described_otherwise_is_refused(writer, attributes):
    writer.describe_graph(**attributes)
    with pytest.raises(NotAResultError, match="not a result of cns_dask: its graph: "):
        stored_graph(writer)


def test_a_recall_with_other_fields_is_refused(writer):
    writer.describe_graph(method="cells", recall=[{"mean": 0.9}])
    with pytest.raises(NotAResultError):
        stored_graph(writer)


def test_a_graph_without_distances_has_none(tmp_path):
    writer = run_in(tmp_path, 2, graph__indices=INDICES).writer
    writer.describe_graph(**GraphSummary("given").as_attributes())
    assert stored_graph(writer).distances is None


def test_quality_in_one_sentence():
    exact = neighbor_graph(np.arange(12.0).reshape(6, 2), 2)
    assert describe_quality(exact) == "Neighbours: exact."
    assert describe_quality(NeighborGraph(None, None, "descent", RECALL)) == (
        "Neighbours: descent, recall 0.9990 (0.9900 to 1.0000) at k = 5, 0.9877 (0.9800 to 0.9900) at k = 20 "
        "(95 % interval, 1000 rows)."
    )
