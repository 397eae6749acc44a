"""What a result says of itself besides its arrays: written by a fit, and checked when a result is opened.

Stores come from anywhere, so nothing in one is believed before it was checked: the types of the attributes by
`Description`, what they say of the arrays by `check_description`, the arrays by `storage.layout`.
"""

from dataclasses import dataclass, field
from typing import Annotated

import msgspec

from cns_dask.errors import NotAResultError
from cns_dask.execution.memory import MemoryRecord
from cns_dask.inputs.preprocess import Transform, TransformSummary
from cns_dask.results.history import Changes
from cns_dask.results.samples import Sample
from cns_dask.settings import Settings
from cns_dask.smoothing.criterion import Choice
from cns_dask.smoothing.scales import Selection
from cns_dask.smoothing.verdict import Verdict
from cns_dask.storage.records import typed_record
from cns_dask.storage.store import ResultStore

Name = str | int
ByK = Annotated[dict[str, int], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Description:
    """The attributes of a stored result."""

    settings: Settings
    choice: Choice  # what is stored as labels and memberships
    selection: Selection
    verdict: Verdict
    numbers: list[int]  # number of every cluster, in the order of the columns of the absorption
    next_number: int  # the smallest that no cluster has had, here or in the fits that this one followed
    n_candidates: ByK  # candidates, and local maxima of which they were taken
    n_maxima: ByK
    n_unreached: int  # rows from which no walk reaches what represents a cluster: they prefer none
    most_passes: int  # over the graph, for one column
    is_certain: bool  # whether the choice was made with absorption that was solved to `tol`
    largest_residual: float | None  # of the stored absorption, and while the grid was evaluated; None: not finite
    grid_residual: float | None
    versions: dict[str, str]
    seconds: dict[str, float]  # by stage
    memory: MemoryRecord
    started: dict[str, float] = field(default_factory=dict)  # when each stage began, in seconds since 1970
    features: list[Name] | None = None  # names, if the data had some
    read_options: dict[str, str | list[Name]] = field(default_factory=dict)  # with which the data were opened
    transform: TransformSummary | None = None  # None for a graph alone
    within: int | None = None  # the cluster of another fit whose rows were clustered further
    changes: Changes | None = None  # since the previous fit
    sample: Sample | None = None  # None if all rows were clustered


def read_description(store: ResultStore) -> Description:
    """The attributes of a result, if they have the right types."""
    return typed_record(Description, store.attributes)


def check_description(store: ResultStore) -> None:
    """Refuse a result whose attributes do not fit its arrays."""
    about, sizes = read_description(store), store.sizes
    n_labelled = sizes["clustered"] if about.sample is None else sizes["row"]
    ks, lams = store.read("k").tolist(), store.read("lam").tolist()
    rules = {
        "its choice is not in its grid": all(
            choice is None
            or (
                choice.n_neighbors in ks
                and (choice.lam in lams or (choice.selection == "communities" and 0 < choice.lam < 1))
                and 1 <= choice.n_clusters <= sizes["clustered"]
            )
            for choice in (about.choice, about.selection.used, about.selection.paper, about.selection.scales)
        ),
        "its counts are impossible": about.n_candidates.keys() == about.n_maxima.keys() == set(map(str, ks))
        and 0 <= about.n_unreached <= n_labelled
        and (
            about.sample is None or about.sample.n_rows == sizes["clustered"] <= sizes["row"] - about.sample.n_skipped
        ),
        "its graph has too few neighbours": max(ks) <= sizes["neighbor"],
        "its clusters are numbered otherwise": about.choice.n_clusters == sizes["cluster"] == len(about.numbers)
        and sorted(about.numbers) == store.read("cluster").tolist()
        and len(set(about.numbers)) == len(about.numbers)
        and min(about.numbers) >= 0
        and max(about.numbers) < max(about.next_number, len(about.numbers)) <= 2**53,
        "its dimension is impossible": about.selection.dimension is None or 0 < about.selection.dimension < 2**31,
        "its transform does not fit": ("points" in store) == (about.transform is not None)
        and (about.transform is None or _fits(about.transform, store)),
    }
    wrong = [what for what, holds in rules.items() if not holds]
    if wrong:
        raise NotAResultError(f"This is not a result of cns_dask: {', '.join(wrong)}.")


def stored_transform(store: ResultStore, summary: TransformSummary) -> Transform:
    """The fitted preprocessing in a store, which may be unfinished."""
    return Transform(
        kept=store.read("transform/kept"),
        center=store.read("transform/center"),
        scale=store.read("transform/scale"),
        components=store.read("transform/components") if "transform/components" in store else None,
        **vars(summary),
    )


def _fits(transform: TransformSummary, store: ResultStore) -> bool:
    """Whether the stored arrays make up a transform of so many features to points as they are stored."""
    kept = store.read("transform/kept")
    n_points = store.sizes["component"]
    return bool(
        len(kept) <= transform.n_features < 2**31
        and (kept < transform.n_features).all()
        and ("transform/components" in store or n_points == len(kept))
        and transform.magnitude >= 0
    )
