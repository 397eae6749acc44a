"""Little data as if they were much: everything in small pieces, for runs in processes of their own.

python tests/small.py fit x.zarr --out o.zarr      as cns-dask fit x.zarr --out o.zarr
"""

import dask

SIZES = {
    "rows_per_chunk": 700,
    "n_cells": 24,
    "rows_per_cell_chunk": 600,
    "rows_per_search": 500,
    "block_width": 8,
    "rows_per_absorption_chunk": 1500,
}


if __name__ == "__main__":
    from cns_dask.cli import main

    dask.config.set({"cns_dask.sizes": SIZES})
    main()
