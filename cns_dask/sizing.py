"""The stages of a fit, sized: from the numbers of rows and features and the settings alone."""

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import dask

from cns_dask.errors import InvalidSettingError
from cns_dask.execution.plan import Plan, Stage
from cns_dask.inputs.missing import numbers_stage
from cns_dask.inputs.preprocess import preprocess_stages
from cns_dask.inputs.sampling import sample_stage
from cns_dask.neighbors.copies import copies_stage
from cns_dask.neighbors.plan import GraphSizes, search_stages, size_search
from cns_dask.results.assignment import assign_stage
from cns_dask.settings import Grid, Settings
from cns_dask.smoothing.plan import SmoothingSizes, narrow, shared_bytes, size_smoothing, smoothing_stages
from cns_dask.storage.chunks import rows_per_chunk


def size_overrides() -> Mapping[str, int]:
    """Sizes of chunks and blocks from Dask's configuration: `dask.config.set({"cns_dask.sizes": {"n_cells": 12}})`."""
    overrides = {name.replace("-", "_"): value for name, value in dask.config.get("cns_dask.sizes", {}).items()}
    names = {field.name for sizes in (GraphSizes, SmoothingSizes) for field in fields(sizes)}
    unknown = sorted(overrides.keys() - names)
    if unknown:
        raise InvalidSettingError(
            f"cns_dask.sizes in Dask's configuration has unknown names {unknown}. The names are {sorted(names)}."
        )
    return overrides


def plan_sizes(
    n_rows: int,
    n_features: int,
    settings: Settings,
    method: str | None = None,
    n_candidates: list[int] | None = None,
    n_threads: int | None = None,
    n_distinct: int | None = None,
) -> tuple[GraphSizes, SmoothingSizes]:
    """Size all stages of a fit of `n_rows` rows, with blocks as wide as suits `n_threads`.

    The grid is that of `n_distinct` rows, where others are copies of these.
    """
    grid, overrides = settings.grid(n_rows if n_distinct is None else n_distinct), size_overrides()
    method = settings.method if method is None else method
    graph_sizes = size_search(n_rows, n_features, grid.ks[-1], method, settings.max_components, overrides)
    counts = settings.max_candidates if n_candidates is None else n_candidates
    tol = settings.tol_of_grid(n_rows)
    options = {
        "tightens": settings.tightens(n_rows),
        "every_row": settings.selection == "paper",
        "communities": settings.finds_communities,
    }
    rows = graph_sizes.rows_per_chunk
    sizes = size_smoothing(n_rows, rows, grid, counts, tol, overrides, **options)
    sizes = sizes if n_distinct is None else replace(sizes, n_distinct=n_distinct)
    return graph_sizes, sizes if n_threads is None else narrow(sizes, n_threads)


def plan_stages(
    n_features: int | None,
    graph_sizes: GraphSizes,
    sizes: SmoothingSizes,
    of_given: Stage | None = None,
    *,
    copies: bool = True,
) -> Plan:
    """All stages of a fit; without rows (`n_features` None) those of a graph alone, stored by the stage `of_given`.

    `copies` tells that equal rows are one place, where the graph is not given.
    """
    points = (graph_sizes.n_rows, n_features, graph_sizes.n_features, graph_sizes.rows_per_chunk)
    preprocess = () if n_features is None else preprocess_stages(*points)  # type: ignore[arg-type]
    search = search_stages(graph_sizes) if of_given is None else (of_given,)
    if copies and of_given is None:
        search = (copies_stage(graph_sizes), *search)
    return Plan((*preprocess, *search, *smoothing_stages(sizes)), shared_bytes(sizes))


def assigned_width(n_features: int, settings: Settings, n_sampled: int) -> int:
    """Numbers of the widest of what a task holds for every row that takes its cluster from a sample."""
    grid = settings.grid(n_sampled)
    return max(n_features, grid.ks[-1], grid.max_clusters)


def with_sample(
    plan: Plan,
    shape: tuple[int, int],
    chunk: int,
    graph_sizes: GraphSizes,
    grid: Grid,
    most: int,
    is_sparse: bool = False,
) -> Plan:
    """The plan of a fit of a sample of data of this shape, in chunks of `chunk` rows of which at most `most` are drawn.

    The stages for the sample alone, but its memberships, come between taking it and assigning all rows.
    """
    take = sample_stage(shape, chunk, most, is_sparse=is_sparse)
    number = numbers_stage(take.array("codes"), graph_sizes.n_rows, graph_sizes.rows_per_chunk)
    assign = assign_stage(shape, chunk, graph_sizes, grid.max_clusters)
    return replace(plan, stages=(take, number, *plan.stages[:-1], assign))


def plan_sample(n_rows: int, n_features: int, settings: Settings, n_sampled: int, **options: Any) -> Plan:
    """All stages of a fit of about `n_sampled` of `n_rows` rows; `options` of `plan_sizes`."""
    graph_sizes, sizes = plan_sizes(n_sampled, n_features, settings, **options)
    chunk = size_overrides().get("rows_per_chunk") or rows_per_chunk(
        n_rows, assigned_width(n_features, settings, n_sampled)
    )
    plan = plan_stages(n_features, graph_sizes, sizes, copies=settings.selection != "paper")
    most = -(-chunk * n_sampled // n_rows)
    return with_sample(plan, (n_rows, n_features), chunk, graph_sizes, sizes.grid, most)
