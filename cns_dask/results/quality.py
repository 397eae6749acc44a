"""How good everything is that was sampled, capped or solved to a tolerance: in words, for `show` and the report."""

from cns_dask.neighbors.graph import describe_quality
from cns_dask.results.result import Result
from cns_dask.results.samples import sample_in_words


def quality_in_words(result: Result) -> list[str]:
    """One sentence for each part of the method that is approximate, or could have been.

    Examples
    --------
    >>> from cns_dask.demo import demo_result
    >>> quality_in_words(demo_result())[0]
    'Neighbours: exact.'
    """
    return [
        *([] if result.sample is None else [sample_in_words(result.sample, result.n_rows)]),
        describe_quality(result.graph),
        *_axes(result),
        _candidates(result),
        _absorption(result),
        *_unreached(result),
    ]


def _axes(result: Result) -> list[str]:
    if result.points is None or result.transform.components is None:
        return []
    n_features, n_axes = result.transform.components.shape
    error = result.transform.axes_error
    how = "exact" if error is None else f"by subspace iteration, to a relative residual of {error:.2g}"
    return [f"Axes: {n_axes} principal axes of {n_features} features, {how}."]


def _candidates(result: Result) -> str:
    kept, found = result.details["n_candidates"], result.details["n_maxima"]
    capped = [f"{kept[k]} of {found[k]} at k = {k}" for k in found if kept.get(k, 0) < found[k]]
    if not capped:
        return f"Candidates: all local maxima, {min(kept.values())} to {max(kept.values())} for a k."
    return f"Candidates: {', '.join(capped)}, because there are at most {result.settings.max_candidates}."


def _absorption(result: Result) -> str:
    certain = "so rounding cannot change the choice" if result.is_certain else "which may decide between near choices"
    return (
        f"Absorption: residual at most {result.largest_residual:.1e}; {result.grid_residual:.1e} while the grid was "
        f"evaluated, {certain}."
    )


def _unreached(result: Result) -> list[str]:
    n_unreached = result.details["n_unreached"]
    share = n_unreached / (result.n_rows - result.n_skipped)
    return [f"Reach: {n_unreached} rows ({share:.1%}) prefer no cluster: no walk reaches any."] if n_unreached else []
