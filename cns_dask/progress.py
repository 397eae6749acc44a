"""What a run tells while it runs: stages with their counts and times, in bars or in lines."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

LOG = logging.getLogger("cns_dask")
LINE_SECONDS = 30  # between lines about a long stage


class Progress:
    """Stages of a run with their counts and times; this one is silent, its children show them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.started: dict[str, float] = {}  # when each stage began, in seconds since 1970

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        """Run a stage of `total` pieces; call what is yielded after each of them."""
        started = time.perf_counter()
        self.started[name] = time.time()
        self._begin(name, total)
        try:
            yield self._advance
        finally:
            self.seconds[name] = time.perf_counter() - started
            self._end(self.seconds[name])

    def resumed(self, name: str, count: int | None = None, total: int | None = None) -> None:
        """Tell that pieces of a stage (or all of it) were done by an earlier run."""
        what = "all done" if count is None else f"{count} of {total} piece{'s' if total != 1 else ''} done"
        LOG.info("%s: %s by an earlier run", name, what)
        self.tell(f"{name}: {what} by an earlier run")

    def tell(self, line: str) -> None:
        """Say something about the run."""

    def _begin(self, name: str, total: int) -> None: ...
    def _advance(self) -> None: ...
    def _end(self, seconds: float) -> None: ...


class PartProgress(Progress):
    """Stages of a part of a run, told by the progress of the whole with a word in front."""

    def __init__(self, whole: Progress, word: str) -> None:
        self._whole, self._word = whole, word
        self.seconds, self.started = whole.seconds, whole.started

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        """Run a stage of the part."""
        with self._whole.stage(f"{self._word} {name}", total) as advance:
            yield advance

    def resumed(self, name: str, count: int | None = None, total: int | None = None) -> None:
        """Tell that pieces of a stage were done by an earlier run."""
        self._whole.resumed(f"{self._word} {name}", count, total)

    def tell(self, line: str) -> None:
        """Say something about the run."""
        self._whole.tell(line)


class LineProgress(Progress):
    """Plain lines for logs and pipes: when a stage begins and ends, and now and then between."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def tell(self, line: str) -> None:
        """Write it."""
        self._write(line)

    def _begin(self, name: str, total: int) -> None:
        self._stage, self._done, self._started = f"{name}: {{}} of {total}", 0, time.perf_counter()
        self._tell()
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(self._ended,), daemon=True, name="cns-dask-progress").start()

    def _advance(self) -> None:
        self._done += 1

    def _beat(self, ended: threading.Event) -> None:
        """Tell now and then how far the stage is, also while a single piece takes long."""
        while not ended.wait(LINE_SECONDS):
            self._tell(f", {time.perf_counter() - self._started:.0f} s so far")

    def _tell(self, more: str = "") -> None:
        self._write(self._stage.format(self._done) + more)

    def _end(self, seconds: float) -> None:
        self._ended.set()
        self._tell(f", {seconds:.1f} s")


class BarProgress(Progress):
    """A bar for every stage, with counts and elapsed time: for terminals."""

    def __init__(self, console: Any) -> None:
        super().__init__()
        self._console = console

    def tell(self, line: str) -> None:
        """Print it above the bar."""
        self._console.print(line, highlight=False, markup=False)

    def _begin(self, name: str, total: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Bars(*columns, console=self._console, redirect_stdout=False)  # a new one leaves the old lines
        self._bars.start()
        self._bar = self._bars.add_task(name, total=total)

    def _advance(self) -> None:
        self._bars.advance(self._bar)

    def _end(self, seconds: float) -> None:  # noqa: ARG002 - the bar has its own clock
        self._bars.stop()


class ForgivingStream:
    """A stream of text that drops what cannot be written: it is closed, nobody reads it, or its disk is full."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream  # None where a process was started without

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write what can be written."""
        with suppress(OSError, ValueError, AttributeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write now what can be written."""
        with suppress(OSError, ValueError, AttributeError):
            self._stream.flush()


def visible_progress() -> Progress:
    """Bars where someone looks (a terminal, a notebook), plain lines elsewhere; on standard error.

    What cannot be written there is dropped: progress never ends a run.
    """
    from rich.console import Console

    stream: Any = ForgivingStream(sys.stderr)
    console = Console(file=stream)
    if console.is_terminal or console.is_jupyter:
        return BarProgress(console)
    return LineProgress(lambda line: print(line, file=stream, flush=True))
