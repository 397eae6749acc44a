import json
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version

import pytest

from cns_dask.storage.fingerprints import differences, digest, resume_key


@dataclass(frozen=True)
class Sizes:
    rows: int
    width: int = 3


def test_a_digest_is_a_short_word_that_never_changes():
    """It is stored with results: another word for the same value would make all of them look like other work."""
    assert digest(("a", 1, 2.5, None)) == "0dc69d0f24adda63c6037ad105e8d6a8"


def test_a_digest_is_the_same_in_another_process():
    code = "from cns_dask.storage.fingerprints import digest; print(digest({'x': ('a', 1)}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == digest({"x": ("a", 1)})


def test_values_that_differ_have_different_digests():
    values = [(1, 2), (2, 1), [1, 2], (1.0, 2), ("1", 2), 12, None, "None"]
    assert len({digest(value) for value in values}) == len(values)


def test_unfinished_work_goes_on_only_with_the_same_sizes_and_version():
    first = resume_key(Sizes(5), Sizes(7))
    assert first["cns_dask"] == version("cns_dask")
    assert resume_key(Sizes(5), Sizes(7)) == first
    for others in ((Sizes(7), Sizes(5)), (Sizes(5),), (Sizes(5), replace(Sizes(7), width=4))):
        assert resume_key(*others)["sizes"] != first["sizes"]


DATA = {"shape": [600, 8], "dtype": "float64", "content": "8aa3"}
LISTS = {"shape": [600, 25], "dtype": "int64", "content": "77b0"}
WORK = {"data": DATA, "graph": None, "settings": {"tol": 1, "metric": "cosine"}, "previous": None, "sizes": "c0ffee"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"sizes": "0ther"}, "the work was cut into other pieces"),
        ({"settings": {"tol": 2, "metric": "cosine"}, "sizes": "0ther"}, "tol was 1, now it is 2"),
        ({"data": DATA | {"content": "7eb0"}}, "the data hold other values, or their files were written again"),
        (
            {"data": DATA | {"shape": [500, 8], "content": "7eb0"}},
            "the data had 600 x 8 rows x columns, now 500 x 8",
        ),
        ({"data": DATA | {"options": {"columns": ["a"]}}}, "columns was None, now it is ['a']"),
        ({"graph": LISTS}, "the lists of the graph were not given then"),
        (
            {"data": None, "graph": LISTS},
            "the data were given then, and not now, the lists of the graph were not given then",
        ),
        ({"previous": "d16e"}, "the previous fit, whose numbers are kept, is another one"),
    ],
)
def test_differences_are_told_in_words(changes, words):
    saved = json.loads(json.dumps(WORK))
    assert differences(saved, WORK | changes) == words


def test_work_that_says_nothing_of_itself_is_other_work():
    assert differences(None, WORK) == differences({}, WORK) == "what it was made of is not recorded"
