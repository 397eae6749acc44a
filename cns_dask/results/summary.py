"""A result at a glance, for a terminal and for a notebook: text, and HTML with a bar of the clusters' sizes."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import dask

from cns_dask.results.colors import cluster_colors
from cns_dask.results.samples import sample_in_words

if TYPE_CHECKING:
    from cns_dask.results.result import Result

MOST_COUNTED = 20_000_000  # rows whose labels are counted only to be shown
SHOWN_SIZES = 12
WIDTH, HEIGHT = 480, 22  # of the bar, in pixels


def summary_text(result: Result) -> str:
    """Some lines about a result."""
    sizes = counted_sizes(result)
    shown = ", ".join(map(str, sizes[:SHOWN_SIZES])) + (", ..." if len(sizes) > SHOWN_SIZES else "")
    lines = [
        f"<Result: {result.n_rows} rows, {_number(len(result.clusters), 'cluster')}>",
        *_sentences(result),
        f"sizes: {shown}" if sizes else "",
        f"at {result.path}",
    ]
    return "\n".join(line for line in lines if line)


def summary_html(result: Result) -> str:
    """The same as HTML, with the sizes as a bar; no script."""
    sizes = counted_sizes(result)
    bar = size_bar(result.clusters, sizes) if sizes else ""
    sentences = "".join(f"<div>{escape(each)}</div>" for each in _sentences(result))
    return (
        f"<div><b>{result.n_rows} rows, {_number(len(result.clusters), 'cluster')}</b>{sentences}{bar}"
        f"<div style='opacity:.7'>at {escape(result.path)}</div></div>"
    )


def _sentences(result: Result) -> list[str]:
    choice = result.choice
    sample = [] if result.sample is None else [sample_in_words(result.sample, result.n_rows)]
    skipped = (
        [f"{_number(result.n_skipped, 'row')} skipped: NaN (label -3) or infinite values (label -2)"]
        if result.n_skipped
        else []
    )
    chosen = "the paper's criterion" if choice.selection == "paper" else choice.selection
    return [
        result.verdict.sentence,
        *result.verdict.doubts,
        *sample,
        *skipped,
        f"k = {choice.n_neighbors}, lam = {choice.lam:.4g}, chosen by {chosen}",
    ]


def counted_sizes(result: Result) -> list[int]:
    """Rows of each cluster; none where counting them would take long."""
    if result.n_rows > MOST_COUNTED:
        return []
    with dask.config.set(scheduler="threads"):
        return [int(size) for size in result.sizes()]


def size_bar(clusters: Sequence[int], sizes: Sequence[int]) -> str:
    """An SVG bar with a part for every cluster, as wide as its share of the rows.

    Examples
    --------
    >>> size_bar([0, 1], [30, 10]).count("<rect")
    2
    """
    total, start, parts = max(1, sum(sizes)), 0.0, []
    for number, size, color in zip(clusters, sizes, cluster_colors(len(clusters)), strict=True):
        width = WIDTH * size / total
        parts.append(
            f"<rect x='{start:.1f}' width='{max(0.5, width - 1):.1f}' height='{HEIGHT}' fill='{color}'>"
            f"<title>cluster {number}: {_number(size, 'row')}</title></rect>"
        )
        if width > 8 + 8 * len(str(number)):
            parts.append(
                f"<text x='{start + width / 2:.1f}' y='{HEIGHT - 6}' text-anchor='middle' font-size='13' "
                f"font-family='sans-serif' fill='white' stroke='black' stroke-width='2.5' paint-order='stroke'>{number}"
                "</text>"
            )
        start += width
    words = ", ".join(f"cluster {number}: {size}" for number, size in zip(clusters, sizes, strict=True))
    return (
        f"<svg width='{WIDTH}' height='{HEIGHT}' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' style='display:block;"
        f"margin:.4em 0;max-width:100%'><title>Rows of each cluster: {words}</title>{''.join(parts)}</svg>"
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
