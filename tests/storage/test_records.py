import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cns_dask.errors import NotAResultError
from cns_dask.inputs.preprocess import Transform
from cns_dask.smoothing.candidates import Candidates
from cns_dask.smoothing.criterion import Choice
from cns_dask.smoothing.start import Start
from cns_dask.storage.records import _checksum, decode, encode, recordable, typed_record

arrays = hnp.arrays(
    st.sampled_from(["f8", "f4", "i8", "u4", "c16", "?", "i1"]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)
)
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
values = st.recursive(
    plain | arrays, lambda some: st.tuples(some, some) | st.dictionaries(st.text() | st.integers(), some, max_size=3)
)


def same(a, b):
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and (a == b or np.isnan(a))


@given(values)
def test_values_come_back_as_they_were(value):
    assert same(decode(encode(value)), value)


def test_records_come_back_as_they_were():
    start = Start(Candidates(np.arange(3), np.arange(3) * 2, 3), np.array([2, 0, 1]), np.array([1 + 2j]))
    back = decode(encode(start))
    assert same(vars(back.candidates), vars(start.candidates))
    assert same(back.nodes, start.nodes)
    for record in (
        Choice(5, 0.1, 3, 0.5, None),
        Transform(2, np.arange(2), np.zeros(2), np.ones(2), None, normalize=False, magnitude=1.0),
    ):
        assert same(vars(decode(encode(record))), vars(record))


@pytest.mark.parametrize("value", [object(), np.array([object()]), np.array(["a"]), {1, 2}, pytest.raises])
def test_what_is_not_data_is_not_kept(value):
    with pytest.raises(TypeError, match="Only"):
        encode(value)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"\xff", b"[1]", b"{}", b'{"a": 1, "b": 2}', b'{"Popen": {"args": "id"}}', b'{"tuple": 5}',
        b'{"array": ["|O", [1], "AAAAAAAAAAA="]}', b'{"array": ["<f8", [9], "AAAA"]}', b'{"array": ["<f8", [1], "?"]}',
        b'{"Choice": {"lam": 1}}', b'{"float": "x"}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_not_a_record_is_an_error_and_runs_nothing(content):
    for text in (content, _checksum(content) + b"\n" + content):
        with pytest.raises(ValueError, match=r".*"):
            decode(text)


def test_a_changed_record_is_not_believed():
    content = bytearray(encode((1, np.arange(3))))
    content[-9] ^= 1
    with pytest.raises(ValueError, match="another checksum"):
        decode(bytes(content))


def test_records_are_plain_json():
    assert json.loads(encode((1, None)).splitlines()[1]) == {"tuple": [1, None]}


@recordable
@dataclass(frozen=True)
class Point:
    name: str
    x: float
    number: int | None = None


@dataclass(frozen=True)
class Undeclared:
    x: int


def test_only_dataclasses_that_were_declared_are_recorded():
    assert decode(encode((Point("a", 0.5), {"b": Point("b", -1.0, 3)}))) == (
        Point("a", 0.5),
        {"b": Point("b", -1.0, 3)},
    )
    with pytest.raises(TypeError, match="Undeclared is not declared as recordable"):
        encode(Undeclared(1))


def test_attributes_of_a_store_become_a_record():
    assert typed_record(Point, {"name": "a", "x": 2, "number": None}) == Point("a", 2)  # JSON writes 2.0 as it likes


@pytest.mark.parametrize(
    "values",
    [None, [], {"name": "a"}, {"name": 1, "x": 2.0, "number": 3}, {"name": "a", "x": "2", "number": 3}],
)
def test_attributes_that_are_missing_or_of_another_type_are_refused(values):
    with pytest.raises(NotAResultError, match=r"not a result of cns_dask: its description: (Expected|Object missing)"):
        typed_record(Point, values)
