"""The memory of a run: what was planned, what each process really used at most, and who ran short of it."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import psutil

from cns_dask.errors import MemoryPressureWarning
from cns_dask.execution.cluster import active_client, processes

POLL_SECONDS = 2.0
MOST_MOMENTS, MOST_PROCESSES = 60, 64  # that are kept of what was seen
SPILLED_BYTES = 64 * 2**20  # less does not matter: Dask begins early


ByProcess = Annotated[dict[str, Annotated[int, msgspec.Meta(ge=0, le=2**62)]], msgspec.Meta(min_length=1)]


Percent = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


@dataclass(frozen=True)
class Moment:
    """What processes did at some moment of a run."""

    time: Annotated[float, msgspec.Meta(ge=0, le=1e12)]  # in seconds since 1970
    used: dict[str, tuple[int, Percent]]  # by process: bytes, and percent of a processor


@dataclass(frozen=True)
class MemoryRecord:
    """What is stored about the memory of a run, by process."""

    planned_bytes: ByProcess
    peak_bytes: ByProcess  # used at most
    short_of_memory: dict[str, str]  # what happened to those that ran short
    moments: list[Moment] = field(default_factory=list)  # in their order, evenly spread over the run


@dataclass
class Memory:
    """Bytes that were planned for each process, those that it used at most, and the processes that ran short."""

    planned: dict[str, int]
    peaks: dict[str, int] = field(default_factory=dict)
    short: dict[str, str] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    _step: int = 1  # every so many moments one is kept
    _seen: int = 0

    def note(self, used: dict[str, tuple[int, float]]) -> None:
        """Keep what processes do now: all of a short run, and fewer moments of a long one."""
        if self._seen % self._step == 0:
            first = dict(list(used.items())[:MOST_PROCESSES])
            self.moments.append(Moment(round(time.time(), 2), first))
        self._seen += 1
        if len(self.moments) > MOST_MOMENTS:
            self.moments, self._step = self.moments[::2], 2 * self._step

    def saw(self, process: str, used: int) -> None:
        """Note what a process used at some moment, or at most."""
        self.peaks[process] = max(used, self.peaks.get(process, 0))

    def record(self) -> MemoryRecord:
        """As stored with a result."""
        return MemoryRecord(self.planned, self.peaks, self.short, self.moments)


@contextmanager
def watched_memory(
    worker_bytes: Callable[[int], int], tell: Callable[[str], None] = lambda _: None
) -> Iterator[Memory]:
    """Watch the processes that tasks run in; those that write memory to disk, or pause, are told once, with advice."""
    client = active_client()
    memory = Memory({name: worker_bytes(threads) for name, threads, _ in processes()})
    if client is None:
        reset_peak()
        name = next(iter(memory.planned))
        with _repeated(_look_at_this_process(name, memory), POLL_SECONDS / 8):
            yield memory
        memory.saw(name, peak())
        return
    client.run(reset_peak, on_error="ignore")
    with _repeated(lambda: _poll(client, memory, tell), POLL_SECONDS):
        yield memory
        for address, used in client.run(peak, on_error="ignore").items():
            if isinstance(used, int):
                memory.saw(f"worker {address}", used)
        with suppress(Exception):
            _poll(client, memory, tell)
    if memory.short:
        warnings.warn(_advice(memory), MemoryPressureWarning, stacklevel=4)


@contextmanager
def _repeated(look: Callable[[], None], seconds: float) -> Iterator[None]:
    """Look every so many seconds, in a thread."""
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(seconds):
            with suppress(Exception):  # a scheduler that does not answer now may answer later
                look()

    thread = threading.Thread(target=watch, daemon=True, name="cns-dask-memory")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _look_at_this_process(name: str, memory: Memory) -> Callable[[], None]:
    process = psutil.Process()
    process.cpu_percent()  # the next call tells what was used since

    def look() -> None:
        memory.note({name: (process.memory_info().rss, process.cpu_percent())})

    return look


def _poll(client: Any, memory: Memory, tell: Callable[[str], None]) -> None:
    workers = client.scheduler_info(n_workers=-1)["workers"]
    known = {f"worker {address}": worker["metrics"] for address, worker in workers.items()}
    memory.note({name: (int(each["memory"]), float(each.get("cpu", 0))) for name, each in known.items()})
    for address, worker in workers.items():
        name, metrics = f"worker {address}", worker["metrics"]
        memory.saw(name, int(metrics["memory"]))
        spilled = int(metrics.get("spilled_bytes", {}).get("disk", 0))
        what = "paused" if worker["status"] == "paused" else "wrote memory to disk" if spilled > SPILLED_BYTES else ""
        if what and name not in memory.short:
            memory.short[name] = what
            if len(memory.short) == 1:
                tell(_advice(memory))


def _advice(memory: Memory) -> str:
    what = ", ".join(f"{name} {happened}" for name, happened in memory.short.items())
    return (
        f"Some workers are short of memory ({what}): the run goes on, slowly. Give the workers more memory or fewer "
        "threads; `cns-dask plan` says what a fit needs, and other work on the same workers adds."
    )


def reset_peak() -> None:
    """Forget the largest memory that this process had, where the system allows it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak() -> int:
    """Largest memory that this process had since, in bytes."""
    try:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if os.uname().sysname == "Darwin" else used * 1024
