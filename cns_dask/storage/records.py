"""Small values as JSON behind a checksum: what a finished piece of work returned. Reading one can run nothing.

Plain values are JSON's own. Arrays, tuples and registered dataclasses are objects with one key that tells which.
"""

import base64
import hashlib
import json
import math
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import msgspec
import numpy as np

from cns_dask.errors import NotAResultError

T = TypeVar("T")
NUMBER_KINDS = "biufc"  # NumPy's kinds of types that hold plain numbers
_recordable: dict[str, type[Any]] = {}


def recordable(dataclass: type[T]) -> type[T]:
    """Let values of a dataclass be recorded: a decorator, used where the class is defined."""
    _recordable[dataclass.__name__] = dataclass
    return dataclass


def encode(value: Any) -> bytes:
    """A value as text, behind a checksum of it."""
    text = json.dumps(_plain(value)).encode()
    return _checksum(text) + b"\n" + text


def decode(content: bytes) -> Any:
    """The value of such a text; ValueError if it is none, or not as it was written."""
    checksum, _, text = content.partition(b"\n")
    if checksum != _checksum(text):
        raise ValueError("not a record: another checksum")
    try:
        return _value(json.loads(text))
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"not a record: {error}") from error


def _checksum(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=8).hexdigest().encode()


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in NUMBER_KINDS:
            raise TypeError(f"Only arrays of numbers are recorded, not of type {value.dtype}.")
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.str, list(value.shape), data]}
    if is_dataclass(value):
        name = type(value).__name__
        if name not in _recordable:
            raise TypeError(f"{name} is not declared as recordable.")
        return {name: {field.name: _plain(getattr(value, field.name)) for field in fields(value)}}
    if isinstance(value, tuple | list):
        return {"tuple": [_plain(each) for each in value]}
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(each)] for key, each in value.items()]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"Only plain values are recorded, not {type(value).__name__}.")


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise ValueError("not a record: a bare list")
        return plain
    ((what, content),) = plain.items()
    if what == "array":
        name, shape, data = content
        dtype = np.dtype(name)
        if dtype.kind not in NUMBER_KINDS or dtype.hasobject:
            raise ValueError(f"not a record: an array of type {name}")
        return np.frombuffer(base64.b64decode(data, validate=True), dtype).reshape(shape).copy()
    if what == "tuple":
        return tuple(_value(each) for each in content)
    if what == "dict":
        return {_value(key): _value(each) for key, each in content}
    if what == "float":
        return float(content)
    return _recordable[what](**{name: _value(each) for name, each in content.items()})


def typed_record(record: type[T], values: Any, what: str = "") -> T:
    """A dataclass from the attributes of a store, each of which must have its type: stores come from anywhere."""
    try:
        return msgspec.convert(values, record)
    except msgspec.ValidationError as error:
        raise NotAResultError(f"This is not a result of cns_dask: {what or 'its description'}: {error}.") from error
