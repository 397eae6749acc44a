"""Digests of values: what tells one data set, or one plan, from another."""

import hashlib
import json
from collections.abc import Collection, Mapping
from importlib.metadata import version
from typing import Any


def digest(value: Any) -> str:
    """A short word for plain values."""
    return hashlib.blake2b(repr(value).encode(), digest_size=16).hexdigest()


def resume_key(*sizes: Any) -> dict[str, str]:
    """What else must be the same to go on with unfinished work: how it is cut into pieces, and by which version."""
    return {"sizes": digest(sizes), "cns_dask": version("cns_dask")}


#: Parts of a fingerprint that some work has and other work has not, and their plurals.
OWNERS = {"data": "the data", "graph": "the lists of the graph"}
#: Fields that hold digests: what is said if one differs.
DIGESTS = {
    "content": "{owner} hold other values, or their files were written again",
    "previous": "the previous fit, whose numbers are kept, is another one",
    "within": "the rows are those of another cluster, or of a cluster of another fit",
    "model": "the fit that predicts is another one",
    "sizes": "the work was cut into other pieces",
}


def differences(saved: Any, fingerprint: Mapping[str, Any]) -> str:
    """How other work differs from that which is saved, in words; empty if it is the same.

    Examples
    --------
    >>> differences({"settings": {"metric": "euclidean"}}, {"settings": {"metric": "cosine"}})
    "metric was 'euclidean', now it is 'cosine'"
    """
    now = json.loads(json.dumps(fingerprint))
    before = saved if isinstance(saved, dict) else {}
    if not before and now:
        return "what it was made of is not recorded"
    words = {}
    for owner, words_of_it in OWNERS.items():
        was, is_now = before.get(owner) is not None, now.get(owner) is not None
        if was != is_now:
            words[owner] = (
                f"{words_of_it} were given then, and not now" if was else f"{words_of_it} were not given then"
            )
            before, now = ({name: part for name, part in each.items() if name != owner} for each in (before, now))
    theirs, ours = _flat(before), _flat(now)
    for field in sorted(ours.keys() | theirs.keys()):
        if ours.get(field) != theirs.get(field):
            words[field] = _in_words(field, theirs.get(field), ours.get(field))
    return ", ".join(text for field, text in words.items() if not _goes_without_saying(field, words))


def _goes_without_saying(field: str, different: Collection[str]) -> bool:
    """Whether a difference follows from another one: other columns hold other values, other work has other pieces."""
    if field == "sizes":
        return len(different) > 1
    owner, _, name = field.rpartition(".")
    return name == "content" and any(each.startswith((f"{owner}.shape", f"{owner}.options")) for each in different)


def _in_words(field: str, before: Any, now: Any) -> str:
    owner, _, name = field.rpartition(".")
    if name in DIGESTS:
        return DIGESTS[name].format(owner=OWNERS.get(owner, owner))
    if name == "shape" and isinstance(before, list) and isinstance(now, list):
        sizes = (" x ".join(map(str, shape)) for shape in (before, now))
        return "the {} had {} rows x columns, now {}".format(owner, *sizes)
    return f"{name} was {before!r}, now it is {now!r}"


def _flat(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat
