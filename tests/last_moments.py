"""A run is killed before each operation of its end, one after the other, and then another run follows.

python tests/last_moments.py FOLDER CASE      prints one line of JSON for every operation

FOLDER is on this disk, or a URL of an object store. The CASE says what is there before, and what follows: "first" is
nothing and the same run again, "replace" a result and the same run again, "other" a result and another run that
replaces it too. Every line tells the value that is read then, and after the run that follows; several for a mixture.
"""

import json
import os
import subprocess
import sys

import numpy as np

from cns_dask.storage.layout import ArrayPlan, Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.outputs import open_output
from cns_dask.storage.store import open_store

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")
REQUESTS = ("put_object", "copy_object", "delete_objects")
KILLED = 9
CASES = ("first", "replace", "other")


def last_moments(folder, case):
    """The lines of all operations before which a run was killed."""
    done = subprocess.run(
        [sys.executable, __file__, str(folder), case], capture_output=True, text=True, timeout=1500, check=False
    )
    *lines, ended = map(json.loads, done.stdout.splitlines())
    assert ended["code"] == 0, done.stderr
    return lines


def before_changes(function):
    """Call a function before every change of files on this disk."""

    def audit(event, arguments):
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if event in CHANGES or writes:
            function(f"{event} {arguments[0]}")

    sys.addaudithook(audit)


def before_requests(function):
    """Call a function before every request that changes the object store."""
    from s3fs import S3FileSystem

    call = S3FileSystem._call_s3

    async def told(self, method, *arguments, **options):
        if method in REQUESTS:
            function(f"{method} {options.get('Key', '')}")
        return await call(self, method, *arguments, **options)

    S3FileSystem._call_s3 = told


def write(folder, value, overwrite, filled=lambda: None):
    """Write a result, all of whose values are the same."""
    options = {"overwrite": overwrite, "scratch": folder / "scratch"}
    with open_output(folder / "r.zarr", Kind.RESULT, {"data": value}, {"plan": 1}, **options) as output:
        if output.writer is not None:
            output.writer.put("labels", np.full(3, value))
            output.writer.put("confidence", np.full(3, value))
            output.writer.create(ArrayPlan("a", (3,), (3,), scratch=True))[:] = 1
            output.writer.records.write("piece.json", b"done")
            filled()


def old_and_new(case):
    """The values before and after, and that of the run that follows."""
    return {"first": (None, 2, 2), "replace": (1, 2, 2), "other": (1, 2, 3)}[case]


def read(folder):
    """The value of a result, nothing if there is none; what belongs to several results is told as it is."""
    try:
        store = open_store(folder / "r.zarr", Kind.RESULT)
        values = [store.attributes["fingerprint"]["data"], *store.read("labels"), *store.read("confidence")]
    except Exception:
        return None
    return int(values[0]) if len(set(values)) == 1 else str(values)


def killed(folder, case, operation, tell):
    """Write a result, over an old one if there is to be one; the process ends before an operation."""
    counted, is_filled = [], False

    def count(what):
        if is_filled:
            counted.append(what)
            if len(counted) == operation:
                tell(what)
                os._exit(KILLED)

    def filled():
        nonlocal is_filled
        is_filled = True

    old, new, _ = old_and_new(case)
    if old is not None:
        write(folder, old, overwrite=False)
    (before_changes if folder.is_local else before_requests)(count)
    write(folder, new, case != "first", filled)


def again(folder, case, tell):
    """What is there after that, and after the run that follows."""
    between = read(folder)
    try:
        write(folder, old_and_new(case)[-1], case != "first")
        error = ""
    except Exception as raised:
        error = str(raised)
    left = folder.names() + (folder / "scratch").names()
    tell(json.dumps({"between": between, "error": error, "after": read(folder), "left": left}))


def in_child(function, *arguments):
    """Run a function in a process of its own; its exit code, and what it told."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function(*arguments, lambda text: os.write(writable, text.encode()))
            code = 0
        finally:
            os._exit(code)
    os.close(writable)
    with os.fdopen(readable) as file:
        told = file.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), told


def main():
    root, case = sys.argv[1:]
    operation, code = 0, KILLED
    while code == KILLED:
        operation += 1
        folder = Location(f"{root}/{operation}")
        (folder / "scratch").make()
        code, before = in_child(killed, folder, case, operation)
        _, told = in_child(again, folder, case)
        sys.stdout.write(json.dumps({"code": code, "before": before, **json.loads(told)}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
