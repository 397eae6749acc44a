"""Little data as if they were much: the plan in small pieces, for runs in processes of their own.

python tests/small.py fit x.zarr --out o.zarr      as cns-dask fit x.zarr --out o.zarr
"""

from dataclasses import replace

from cns_dask import graphs, pipeline
from cns_dask.plan import make_plan, plan_graph


def shrink() -> None:
    """Cut all that this process plans into small pieces; workers do what they are told."""

    def smaller(*arguments):
        return replace(make_plan(*arguments), columns_per_block=8, rows_per_column_chunk=1500)

    def smaller_graph(*arguments, exact):
        plan = plan_graph(*arguments, exact=exact)
        return replace(
            plan, rows_per_chunk=700, n_cells=plan.n_cells and 24, rows_per_cell_chunk=600, rows_per_search=500
        )

    pipeline.make_plan, pipeline.plan_graph, graphs.plan_graph = smaller, smaller_graph, smaller_graph
    pipeline.rows_that_fit = lambda *_: 700


if __name__ == "__main__":
    from cns_dask.cli import main

    shrink()
    main()
