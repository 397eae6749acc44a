"""The first approximate fit on a fresh worker, cold and warmed up by the preload `cns_dask.warmup`.

python examples/benchmarks/warmup.py [--rows 60000]

Every line is a worker process of its own, started as `dask worker` on this machine; all in one run.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import zarr
from distributed import Client

from cns_dask import CNS
from cns_dask.demo import demo_points

DASK = [sys.executable, "-m", "dask"]


@contextmanager
def running(*words):
    with subprocess.Popen([*DASK, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def fits(data, folder, preload):
    """Seconds until a fresh worker has joined, of its first fit, and of its second."""
    file = str(folder / f"scheduler-{bool(preload)}.json")
    with running("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", file):
        while not Path(file).exists():
            time.sleep(0.1)
        began = time.perf_counter()
        worker = ["worker", "--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard", "--nthreads", "2"]
        with running(*worker, *preload), Client(scheduler_file=file) as client:
            client.wait_for_workers(1)
            marks = [time.perf_counter()]
            for number in range(2):
                CNS(method="descent", n_neighbors=15, lam=0.02).fit(data, out=folder / f"{bool(preload)}-{number}.zarr")
                marks.append(time.perf_counter())
    return marks[0] - began, marks[1] - marks[0], marks[2] - marks[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=60_000)
    with tempfile.TemporaryDirectory() as name:
        folder, rows = Path(name), demo_points(parser.parse_args().rows)
        data = folder / "x.zarr"
        zarr.create_array(str(data), shape=rows.shape, chunks=(10_000, rows.shape[1]), dtype="f8")[...] = rows
        print(f"{len(rows)} rows, method=descent, one worker of two threads\n")
        print("| worker | joins after | first fit | second fit |\n|---|---:|---:|---:|")
        found = {}
        for label, preload in (("cold", ()), ("--preload cns_dask.warmup", ("--preload", "cns_dask.warmup"))):
            found[label] = fits(data, folder, preload)
            print(f"| {label} | " + " | ".join(f"{took:.1f} s" for took in found[label]) + " |", flush=True)
    cold, warm = (took[1] for took in found.values())
    print(f"\nfirst fit, cold / warmed up: {cold / warm:.1f}")


if __name__ == "__main__":
    main()
