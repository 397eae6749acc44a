"""Charts about the run: stages and processes over time, and the memory of processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from cns_dask.results.report.svg import cut, line, percent, rectangle, seconds, size_in_bytes, svg, tag, text, ticks

MOST_PROCESSES = 16  # that are drawn


def timeline_chart(
    stages: Sequence[tuple[str, float, float]],
    moments: Sequence[tuple[float, Mapping[str, float]]],
    processes: Sequence[str],
) -> Markup:
    """When each stage ran (name, start, seconds), and how busy each process was (0 to 1) at some moments."""
    end = max([start + length for _, start, length in stages] + [at for at, _ in moments] + [1e-9])
    left, right, top, height = 128.0, 690.0, 22.0, 19.0
    drawn = processes[:MOST_PROCESSES] if moments else []

    def x(value: float) -> float:
        return left + (right - left) * min(max(value, 0.0), end) / end

    bottom = top + height * (len(stages) + len(drawn)) + (14 if drawn else 0)
    times = time_ticks(end)
    parts = [line(x(value), top - 4, x(value), bottom, "grid") for value in times]
    for row, (name, start, length) in enumerate(stages):
        y, wide = top + row * height, max(1.5, x(start + length) - x(start))
        after = x(start) + wide + 5
        is_inside = after + 46 > right
        parts += [
            text(cut(name, 20), left - 8, y + 13, "tick", "end"),
            rectangle(x(start), y + 2, wide, height - 5, tag("title", f"{name}: {seconds(length)}"), class_="bar"),
            text(
                seconds(length), (x(start) - 5) if is_inside else after, y + 13, "tick", "end" if is_inside else "start"
            ),
        ]
    for row, name in enumerate(drawn):
        y = top + height * (len(stages) + row) + 14
        parts.append(text(cut(name, 18), left - 8, y + 13, "tick", "end"))
        parts += _busy(moments, name, x, y + 2, height - 5)
    parts += [text(seconds(value), x(value), bottom + 16, "tick", "middle") for value in times]
    more = len(processes) - len(drawn)
    if moments and more > 0:
        parts.append(text(f"and {more} more", left - 8, bottom + 16, "tick", "end"))
    return svg(
        720,
        bottom + 26,
        "The run over time",
        f"A bar for each of {len(stages)} stages from its start to its end, {seconds(end)} in all"
        + (f"; below, how busy {len(drawn)} process(es) were." if drawn else "."),
        *parts,
        class_="chart wide",
    )


def _busy(
    moments: Sequence[tuple[float, Mapping[str, float]]],
    name: str,
    x: Callable[[float], float],
    y: float,
    height: float,
) -> list[Markup]:
    """A strip that is dark where a process was busy."""
    times = [at for at, _ in moments]
    starts = [0.0 if not at else (times[at - 1] + times[at]) / 2 for at in range(len(times))]
    ends = [*starts[1:], times[-1]]
    return [
        rectangle(
            x(start), y, max(x(end) - x(start) - 0.4, 0.6), height,
            tag("title", f"{percent(used[name])} busy"), class_="busy",
            fill_opacity=float(0.06 + 0.9 * min(used[name], 1)),
        )
        for (_, used), start, end in zip(moments, starts, ends, strict=True)
        if name in used
    ]  # fmt: skip


def memory_chart(peaks: Mapping[str, int], planned: Mapping[str, int]) -> Markup:
    """The largest memory of each process against what was planned for it."""
    names = list(peaks)[:MOST_PROCESSES]
    top, height, left, right = 26.0, 30.0, 128.0, 640.0
    largest = max([*(peaks[name] for name in names), *(planned.get(name, 0) for name in names), 1])

    def x(value: float) -> float:
        return left + (right - left) * value / largest

    parts = []
    for row, name in enumerate(names):
        y, plan = top + row * height, planned.get(name)
        parts += [
            text(cut(name, 18), left - 8, y + 16, "tick", "end"),
            rectangle(left, y + 4, max(1.0, x(peaks[name]) - left), 16, tag("title", name), class_="bar"),
            text(size_in_bytes(peaks[name]), left + 6, y + 16, "onbar" if x(peaks[name]) > left + 70 else "tick"),
        ]
        if plan:
            parts.append(line(x(plan), y, x(plan), y + 24, "plan"))
    bottom = top + len(names) * height
    if planned:
        most = max(planned.values())
        parts.append(text(f"planned: {size_in_bytes(most)}", min(x(most), right), top - 8, "name", "end"))
    if len(peaks) > len(names):
        parts.append(text(f"and {len(peaks) - len(names)} more", left - 8, bottom + 12, "tick", "end"))
    return svg(
        720,
        bottom + 18,
        "Memory of each process",
        "; ".join(
            f"{name} used {size_in_bytes(peaks[name])}"
            + (f" of {size_in_bytes(planned[name])} planned" if name in planned else "")
            for name in names
        ),
        *parts,
        class_="chart wide",
    )


def time_ticks(end: float) -> list[float]:
    """Round times from 0 to the end of a run, in seconds.

    Examples
    --------
    >>> time_ticks(250)
    [0.0, 60.0, 120.0, 180.0, 240.0]
    """
    if end < 60:
        return ticks(0, end, 5)
    steps = [30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800]
    step = next((each for each in steps if each >= end / 6), 86400 * -(-end // 518400))
    return [float(at * step) for at in range(int(end / step) + 1)]
