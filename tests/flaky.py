"""A file system that fails now and then: flaky:///path is /path on this disk."""

import errno
import random
from pathlib import Path

import fsspec
from fsspec.implementations.local import LocalFileSystem

FAILURES = {"read": 0, "write": 0}
SHARE = 0.06
_chance = random.Random(5)


def maybe_fail(kind):
    if _chance.random() < SHARE:
        FAILURES[kind] += 1
        raise OSError(errno.EIO, f"injected {kind} error")


class FlakyFileSystem(LocalFileSystem):
    """Local files, whose reading and writing fails now and then."""

    protocol = "flaky"
    auto_mkdir = True

    def __init__(self, **options):
        super().__init__(auto_mkdir=True, **options)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("flaky://") if isinstance(path, str) else path)

    def cat_file(self, *arguments, **options):
        maybe_fail("read")
        return super().cat_file(*arguments, **options)

    def pipe_file(self, path, value, mode="overwrite", **options):
        maybe_fail("write")
        self.makedirs(self._parent(path), exist_ok=True)
        with Path(self._strip_protocol(path)).open("xb" if mode == "create" else "wb") as file:
            file.write(value)


fsspec.register_implementation("flaky", FlakyFileSystem, clobber=True)
