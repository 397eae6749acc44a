import subprocess
import sys
from dataclasses import dataclass, replace
from importlib.metadata import version

from cns_dask.storage.fingerprints import digest, resume_key


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
