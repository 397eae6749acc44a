"""What a page tells of the run: warnings, the command that repeats it, stages and processes over time, memory."""

from __future__ import annotations

import shlex
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from cns_dask.results.report.shown import Shown
from cns_dask.results.report.svg import number, percent
from cns_dask.results.report.timeline import memory_chart, timeline_chart
from cns_dask.results.result import Result
from cns_dask.settings import Settings


def warnings_of(result: Result, shown: Shown) -> list[str]:
    """What a reader should know before anything else."""
    found = [] if shown.is_other else list(result.verdict.doubts)
    if result.n_skipped:
        why = "they are in other clusters" if result.within is not None else "values are missing or infinite"
        found.append(f"{number(result.n_skipped)} of {number(result.n_rows)} rows have no cluster: {why}.")
    n_unreached = result.details["n_unreached"]
    if n_unreached:
        share = n_unreached / max(1, result.n_rows - result.n_skipped)
        found.append(f"{number(n_unreached)} rows ({percent(share)}) prefer no cluster: no walk reaches any.")
    target, measured = result.settings.recall, result.graph.recall
    missed = [each for each in measured or () if each.mean < target]
    if missed:
        least = min(each.mean for each in missed)
        found.append(f"Only {100 * least:.1f} % of the true neighbours were found; {100 * target:g} % were asked for.")
    if not result.largest_residual <= result.settings.tol:
        found.append("The absorption was not solved to its tolerance: memberships may be off by its residual.")
    for process, happened in result.memory_record.short_of_memory.items():
        found.append(f"{process} was short of memory: it {happened}.")
    if result.sample is not None and result.sample.agreement is None:
        found.append("A sample was clustered, and how well it speaks for all rows was not measured.")
    return found


def changed_settings(result: Result) -> dict[str, Any]:
    """The settings that are not the default ones."""
    settings = result.settings
    return {
        each.name: getattr(settings, each.name)
        for each in fields(Settings)
        if getattr(settings, each.name) != each.default
    }


def command_line(result: Result) -> str:
    """The command that makes such a result; the place of the data is not stored."""
    words = ["cns-dask", "fit"]
    if result.points is None:
        words += ["--graph", "GRAPH"]
    else:
        words.append("DATA")
    for name, value in result.read_options.items():
        words += [f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value)]
    for name, value in changed_settings(result).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        else:
            text = ",".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value or 0)
            words += [f"--{option}", text]
    if result.sample is not None:
        words += ["--sample", str(result.sample.size), *(["--check-sample"] if result.sample.agreement else [])]
    return shlex.join([*words, "--out", "clusters.zarr"])


def python_call(result: Result) -> str:
    """The same in Python."""
    listed = ", ".join(f"{name}={value!r}" for name, value in changed_settings(result).items())
    read = "".join(f", {name}={value!r}" for name, value in result.read_options.items())
    sample = "" if result.sample is None else f", sample={result.sample.size!r}"
    return f"CNS({listed}).fit({'graph=graph' if result.points is None else 'X'}{read}{sample})"


def run_of(result: Result) -> dict[str, Any]:
    """Stages and processes over time, and their memory."""
    memory, durations = result.memory_record, result.seconds
    names = {process: _short_name(process, at) for at, process in enumerate(memory.peak_bytes, 1)}
    started = {name: at for name, at in result.started.items() if name in durations}
    began = min(started.values(), default=0.0)
    if len(started) < len(durations):  # of an older version: one stage after the other
        began, at = 0.0, 0.0
        started = {}
        for name, length in durations.items():
            started[name] = at
            at += length
    stages = sorted(((name, at - began, durations[name]) for name, at in started.items()), key=lambda each: each[1])
    moments = [
        (moment.time - began, {names.get(name, name): used / 100 for name, (_, used) in moment.used.items()})
        for moment in memory.moments
        if began and moment.time >= began
    ]
    return {
        "timeline": timeline_chart(stages, moments, list(names.values())),
        "stages": stages,
        "memory": memory_chart(
            *(
                {names.get(name, name): used for name, used in each.items()}
                for each in (memory.peak_bytes, memory.planned_bytes)
            )
        ),
        "peaks": [
            (names[name], name, used, memory.planned_bytes.get(name)) for name, used in memory.peak_bytes.items()
        ],
        "date": _date(began),
    }


def _short_name(process: str, at: int) -> str:
    """Addresses of workers are long, and of no use to readers."""
    return f"worker {at}" if process.startswith("worker ") else process


def _date(seconds: float) -> str:
    """When a run began."""
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC" if seconds else ""
    except (OverflowError, OSError, ValueError):
        return ""
