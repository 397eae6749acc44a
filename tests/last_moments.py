"""A run that replaces a result is killed before each file operation of its end, one after the other, and run again.

python tests/last_moments.py FOLDER      prints one line of JSON for every operation
"""

import json
import os
import sys
from pathlib import Path

import numpy as np

from cns_dask.storage.layout import ArrayPlan, Kind
from cns_dask.storage.outputs import open_output
from cns_dask.storage.store import open_store

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link")
KILLED = 9


def replace(folder, value, killed_before, note):
    """Replace the result in a folder; the process ends before an operation."""
    counted, done = [], False

    def count(event, arguments):
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if done and (event in CHANGES or writes):
            counted.append(event)
            if len(counted) == killed_before:
                os.write(note, f"{event} {arguments[0]}".encode())
                os._exit(KILLED)

    sys.addaudithook(count)
    options = {"overwrite": True, "scratch": folder / "scratch"}
    with open_output(folder / "r.zarr", Kind.RESULT, {"data": value}, {"plan": 1}, **options) as output:
        if output.writer is not None:
            output.writer.put("labels", np.full(3, value))
            output.writer.create(ArrayPlan("a", (3,), (3,), scratch=True))[:] = 1
            output.writer.records.write("piece.json", b"done")
            done = True


def in_child(function, *arguments):
    """Run a function in a process of its own; its exit code, and what it noted."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function(*arguments, write)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as notes:
        noted = notes.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), noted


def labels(folder, note):
    os.write(note, json.dumps(open_store(folder / "r.zarr", Kind.RESULT).read("labels").tolist()).encode())


def main():
    operation, code = 0, KILLED
    while code == KILLED:
        operation += 1
        folder = Path(sys.argv[1]) / str(operation)
        (folder / "scratch").mkdir(parents=True)
        in_child(replace, folder, 1, 0)
        code, noted = in_child(replace, folder, 2, operation)
        between = in_child(labels, folder)[1]
        again, _ = in_child(replace, folder, 2, 0)
        left = [path.name for path in (*folder.iterdir(), *(folder / "scratch").iterdir())]
        line = {"code": code, "before": noted, "between": between, "again": again, "left": left}
        sys.stdout.write(json.dumps({**line, "after": in_child(labels, folder)[1]}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
