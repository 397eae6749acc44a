"""Stores come from anywhere: whatever one says of itself is checked when it is opened."""

import contextlib
import copy
import json
import math
import shutil
from dataclasses import asdict

import dask
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from cns_dask import open_result
from cns_dask.cli.show import print_result
from cns_dask.errors import CNSError, DamagedError, DataNotFoundError, NotAResultError
from cns_dask.pipeline import fit
from cns_dask.results.description import Description, check_description, read_description
from cns_dask.results.history import Changes, Drift
from cns_dask.results.predict import predict
from cns_dask.settings import Settings
from cns_dask.storage.records import typed_record

HUGE, ENDLESS = 10**15, 10**400
DRIFT = Drift(n_rows=200, n_new=50, outside=0.125, confidence=0.5, confidence_before=0.75)
CHANGES = Changes(births=(5, 6), deaths=(1,), splits=((2, (2, 7, 8)),), merges=((0, (0, 3)),), kept=0.987, drift=DRIFT)


@pytest.fixture(scope="module")
def rows(blobs):
    return blobs[:200]


@pytest.fixture(scope="module")
def stored(rows, tmp_path_factory):
    """A small result whose new rows are searched in cells."""
    out = tmp_path_factory.mktemp("described") / "r.zarr"
    with dask.config.set({"cns_dask.sizes": {"n_cells": 5}}):
        fit(rows, Settings(method="cells", recall=0.9, n_neighbors=(5, 10), lam=0.1), out=out)
    return out


def use(path, rows):
    """All that a user would look at."""
    result = open_result(path)
    with dask.config.set(scheduler="synchronous"):
        repr(result)
        print_result(result)
        predict(result, rows[:3]).labels.compute()
        result.at(2).labels.compute()
        _ = result.columns, result.within, result.changes, result.seconds, result.scales, result.tree


def test_what_a_fit_has_written_is_read_as_it_was(stored, rows):
    use(stored, rows)
    result = open_result(stored)
    assert asdict(read_description(result._store)).keys() == Description.__dataclass_fields__.keys()
    check_description(result._store)


def test_changes_come_back_as_they_were():
    assert typed_record(Changes, json.loads(json.dumps(asdict(CHANGES)))) == CHANGES


@pytest.mark.parametrize(
    "wrong",
    [
        {"births": None},
        {"deaths": ["x"]},
        {"splits": [[1]]},
        {"merges": [1]},
        {"kept": "most"},
        {"drift": None},
        {"drift": {**asdict(DRIFT), "n_new": "50"}},
    ],
)
def test_other_changes_are_no_result(wrong):
    with pytest.raises(NotAResultError, match="This is not a result of cns_dask"):
        typed_record(Changes, {**asdict(CHANGES), **wrong})


def changed(path, target, change):
    """A copy whose attributes were changed; those of the graph are under "graph"."""
    if not target.exists():
        shutil.copytree(path, target)
    known = {name: json.loads((path / name).read_text()) for name in ("zarr.json", "graph/zarr.json")}
    tree = {**known["zarr.json"]["attributes"], "graph": known["graph/zarr.json"]["attributes"]}
    change(tree)
    graph = tree.pop("graph", {})
    for name, attributes in (("zarr.json", tree), ("graph/zarr.json", graph)):
        (target / name).write_text(json.dumps({**known[name], "attributes": attributes}))
    return target


ATTRIBUTES = [
    ("numbers", [HUGE, 1, 2, 3]),
    ("numbers", [0]),
    ("numbers", [-5, 1, 2, 3]),
    ("numbers", [1, 1, 2, 3]),
    ("numbers", "abc"),
    ("next_number", ENDLESS),
    ("next_number", "7"),
    *(("choice.n_clusters", value) for value in (10**12, 0, True, -1, 2.0, None)),
    *(("choice.n_neighbors", value) for value in (10**6, 0, -1, 7, "5")),
    *(("choice.lam", value) for value in (0, 1, -1, math.nan, math.inf, ENDLESS, "0.1")),
    ("selection", "paper"),
    ("selection.used", None),
    ("selection.paper.n_clusters", 10**12),
    ("selection.scales.n_neighbors", 10**6),
    ("selection.dimension", -1),
    ("selection.dimension", math.nan),
    ("selection.why", 5),
    ("settings.metric", "l1"),
    ("settings.tol", 0),
    ("settings", []),
    ("verdict.doubts", "all"),
    ("verdict.sentence", 3),
    ("memory", {}),
    ("memory.peak_bytes", {"worker": "much"}),
    ("seconds", {"points": "long"}),
    ("versions", {"dask": 3}),
    ("read_options", {"columns": 5}),
    ("features", {"a": 1}),
    ("within", "3"),
    ("changes", 5),
    ("n_candidates", [1]),
    ("n_candidates", {"5": 3}),
    ("n_unreached", ENDLESS),
    ("n_unreached", -1),
    ("largest_residual", "small"),
    ("transform", None),
    ("transform.n_features", 3),
    ("transform.n_features", 10**12),
    ("transform.normalize", 1),
    ("transform.magnitude", -1),
    ("graph.method", "guessed"),
    ("graph.recall", [{"n_neighbors": 5}]),
    ("graph.reach", None),
    ("graph.reach", math.nan),
]


@pytest.mark.parametrize(("at", "value"), ATTRIBUTES)
def test_attributes_that_no_fit_has_written_are_refused(stored, rows, tmp_path, at, value):
    *above, name = at.split(".")

    def change(tree):
        for each in above:
            tree = tree[each]
        tree[name] = value

    with pytest.raises(NotAResultError, match="This is not a result of cns_dask: "):
        use(changed(stored, tmp_path / "r.zarr", change), rows)


@pytest.mark.parametrize("name", sorted(Description.__dataclass_fields__))
def test_a_lost_attribute_is_missed(stored, rows, tmp_path, name):
    path = changed(stored, tmp_path / "r.zarr", lambda tree: tree.pop(name))
    try:
        use(path, rows)
    except NotAResultError:
        return
    assert name in ("features", "read_options", "within", "changes", "sample", "started")  # there are none


HOSTILE = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 2, 10**6, HUGE, 2**63, -(2**63), ENDLESS, math.inf, -math.inf, math.nan, 1e308, 5e-324]),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-3, 3) | st.floats() | st.text(max_size=3), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(-3, 3) | st.none(), max_size=3),
)


def places(tree, above=()):
    """The way to everything in a tree."""
    for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
        yield (*above, key)
        if isinstance(value, dict | list):
            yield from places(value, (*above, key))


def whatever_the_attributes_say(stored, rows, target, data):
    """It is shown or refused: nothing foreign is raised, nothing takes long and nothing needs much memory."""

    def change(tree):
        *above, last = data.draw(st.sampled_from(sorted(places(tree), key=str)))
        for each in above:
            tree = tree[each]
        if data.draw(st.integers(0, 9)) == 0 and isinstance(tree, dict):
            del tree[last]
        else:
            tree[last] = data.draw(HOSTILE)

    changed(stored, target, change)
    with contextlib.suppress(CNSError):
        use(target, rows)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return tmp_path_factory.mktemp("hostile") / "r.zarr"


@settings(max_examples=40, deadline=20_000, derandomize=True)  # the next test looks for new ones
@given(data=st.data())
def test_whatever_the_attributes_say(stored, rows, target, data):
    whatever_the_attributes_say(stored, rows, target, data)


@pytest.mark.slow
@settings(max_examples=500, deadline=20_000)
@given(data=st.data())
def test_whatever_the_attributes_say_500_times(stored, rows, target, data):
    whatever_the_attributes_say(stored, rows, target, data)


def edited(path, target, name, edit):
    """A copy in which an array was written anew, whole and with its checksums."""
    shutil.copytree(path, target)
    group = zarr.open_group(str(target), mode="r+")
    old = group[name]
    values = np.asarray(edit(old[...]))
    metadata = copy.deepcopy(old.metadata.to_dict())
    options = {"attributes": metadata["attributes"]}
    if values.ndim == old.ndim:
        options["dimension_names"] = metadata["dimension_names"]
    codecs = old.compressors
    chunks = tuple(max(1, min(size, chunk)) for size, chunk in zip(values.shape, (*old.chunks, 1), strict=False))
    new = group.create_array(
        name, shape=values.shape, chunks=chunks, dtype=values.dtype, compressors=codecs, overwrite=True, **options
    )
    new[...] = values
    return target


def with_first(value):
    def edit(values):
        values.flat[0] = value
        return values

    return edit


def shorter(values):
    return values[:-1]


def longer(values):
    return np.concatenate([values, values[-1:]])


def narrower(values):
    return values[:, :-1]


ARRAYS = [
    *((name, shorter) for name in ("representatives", "k", "lam", "confidence", "labels", "absorption", "cluster")),
    *((name, longer) for name in ("representatives", "k", "cells/starts", "cells/rows", "transform/kept", "evidence")),
    *((name, narrower) for name in ("memberships", "absorption", "points", "cells/points", "cells/centers")),
    ("graph/indices", lambda values: values[:, :5]),
    ("representatives", with_first(HUGE)),
    ("representatives", with_first(-1)),
    ("candidates", with_first(10**6)),
    ("picks", with_first(-2)),
    ("candidate_clusters", with_first(10**6)),
    ("cluster", with_first(HUGE)),
    ("k", with_first(0)),
    ("k", with_first(10**6)),
    ("lam", with_first(np.nan)),
    ("lam", with_first(1.0)),
    ("cells/starts", with_first(10**12)),
    ("cells/starts", lambda values: values[::-1]),
    ("cells/centers", with_first(np.nan)),
    ("cells/offset", with_first(np.inf)),
    ("cells/rows", lambda values: values + 10**6),
    ("cells/rows", lambda values: values - 10**6),
    ("transform/kept", with_first(5)),
    ("transform/kept", with_first(-1)),
    ("transform/scale", with_first(0.0)),
    ("transform/center", with_first(np.nan)),
    ("communities", lambda values: values + 10**6),
    ("communities", lambda values: values - 10**6),
    ("community_clusters", lambda values: values + 10**6),
    ("graph/indices", with_first(10**6)),
    ("graph/indices", with_first(-(10**6))),
    ("labels", lambda values: values.astype(np.float64)),
    ("labels", lambda values: values[:, None]),
]


@pytest.mark.parametrize(("name", "edit"), ARRAYS)
def test_arrays_that_no_fit_has_written_are_refused(stored, rows, tmp_path, name, edit):
    shutil.rmtree(stored / "at", ignore_errors=True)
    with pytest.raises(NotAResultError):
        use(edited(stored, tmp_path / "r.zarr", name, edit), rows)


def test_labels_that_no_fit_has_written_are_not_counted(stored, tmp_path):
    result = open_result(edited(stored, tmp_path / "r.zarr", "labels", with_first(HUGE)))
    assert result.sizes().sum() == 199


@pytest.mark.parametrize("name", ["labels", "k", "representatives", "absorption", "graph/indices", "evidence"])
def test_a_lost_array_is_missed_at_once(stored, tmp_path, name):
    shutil.copytree(stored, tmp_path / "r.zarr")
    shutil.rmtree(tmp_path / "r.zarr" / name)
    with pytest.raises(DamagedError, match=f"The array {name} is missing"):
        open_result(tmp_path / "r.zarr")


def test_a_result_that_is_gone_is_no_fit_of_a_graph_alone(stored, rows, tmp_path):
    shutil.copytree(stored, tmp_path / "r.zarr")
    result = open_result(tmp_path / "r.zarr")
    shutil.rmtree(tmp_path / "r.zarr")
    with pytest.raises(DataNotFoundError, match=r"There is no result at .*r\.zarr any more"):
        predict(result, rows)
