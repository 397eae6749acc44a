"""Cluster data on workers that are Slurm jobs of their own.

DASK_CONFIG=deploy/slurm/jobqueue.yaml python examples/slurm/fit.py data.zarr clusters.zarr --jobs 4

Without data, a mixture is made. The folder must be one that all nodes see.
"""

import argparse
from pathlib import Path

import zarr
from dask_jobqueue import SLURMCluster
from distributed import Client

from cns_dask import CNS
from cns_dask.demo import demo_points


def stored_demo(path="demo.zarr"):
    rows = demo_points(30_000)
    if not Path(path).exists():
        zarr.create_array(path, shape=rows.shape, chunks=(5_000, rows.shape[1]), dtype="f8")[...] = rows
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="?")
    parser.add_argument("out", nargs="?", default="clusters.zarr")
    parser.add_argument("--jobs", type=int, default=4)
    options = parser.parse_args()
    data = options.data or stored_demo()
    with SLURMCluster() as cluster, Client(cluster) as client:
        cluster.adapt(minimum_jobs=options.jobs, maximum_jobs=options.jobs)  # a job that is lost is submitted again
        print(f"waiting for the first of {options.jobs} jobs", flush=True)
        client.wait_for_workers(1)
        model = CNS(verbose=True).fit(data, out=options.out)
        print(f"{model.n_clusters_} clusters in {model.result_.n_rows} rows: {options.out}")


if __name__ == "__main__":
    main()
