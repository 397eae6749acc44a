"""Digests of values: what tells one data set, or one plan, from another."""

import hashlib
from importlib.metadata import version
from typing import Any


def digest(value: Any) -> str:
    """A short word for plain values."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()


def resume_key(*sizes: Any) -> dict[str, str]:
    """What else must be the same to go on with unfinished work: how it is cut into pieces, and by which version."""
    return {"sizes": digest(sizes), "cns_dask": version("cns_dask")}
