"""What a run tells while it runs: stages with their counts and times, in bars or in lines."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

LOG = logging.getLogger("cns_dask")
LINE_SECONDS = 30  # between lines about a long stage
TOLD_SECONDS = 2.0  # of less time that is left nobody is told
CLOCK_SECONDS = 0.5  # between two looks at the clock of a bar
#: Typical seconds count as much as so many seconds that were measured; a stage is judged by itself from this share on.
BELIEF_SECONDS, BELIEVED_SHARE = 5.0, 0.1


class Pace:
    """How far a run is, and how long it will take: from the expected seconds of its stages, and those that it took.

    Expected seconds are typical ones; how much slower this run is shows with every stage that ends.
    """

    def __init__(self) -> None:
        self._expected: dict[str, float] = {}  # of the stages that have not ended, in order
        self._passed = self._typical = 0.0  # seconds of the stages that have, and what was expected of them
        self._running, self._shown = "", 0.0

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Add stages that will run, in order."""
        self._expected |= seconds

    def begin(self, name: str) -> None:
        """A stage begins: those before it that did not run were done by an earlier run, or are not needed."""
        self._running = name if name in self._expected else ""
        while self._running and next(iter(self._expected)) != name:
            del self._expected[next(iter(self._expected))]

    def end(self, seconds: float) -> None:
        """The stage ends."""
        if self._running:
            self._typical += self._expected.pop(self._running)
            self._passed += seconds
        self._running = ""

    def now(self, done: float, seconds: float) -> tuple[float, float] | None:
        """Share of the run that has passed, and seconds that are left; None if nothing is expected of this stage.

        `done` is the share of the pieces of the stage that are done, after so many seconds.

        Examples
        --------
        >>> pace = Pace()
        >>> pace.expect({"points": 10.0, "neighbors": 30.0})
        >>> pace.begin("points")
        >>> pace.now(done=0.5, seconds=10.0)  # it takes twice as long as expected, which is believed when it has ended
        (0.2, 40.0)
        """
        if not self._running:
            return None
        slower = (self._passed + BELIEF_SECONDS) / (self._typical + BELIEF_SECONDS)
        expected = slower * self._expected[self._running]
        here = seconds * (1 - done) / done if done >= BELIEVED_SHARE else max(expected - seconds, 0.0)
        left = here + slower * (sum(self._expected.values()) - self._expected[self._running])
        passed = self._passed + seconds
        self._shown = max(self._shown, passed / (passed + left) if passed + left else 0.0)
        return self._shown, left


class Progress:
    """Stages of a run with their counts and times; this one is silent, its children show them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.started: dict[str, float] = {}  # when each stage began, in seconds since 1970
        self.pace = Pace()

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Tell which stages will run, in order, and what they typically take."""
        self.pace.expect(seconds)

    @contextmanager
    def stage(self, name: str, total: int) -> Iterator[Callable[[], None]]:
        """Run a stage of `total` pieces; call what is yielded after each of them."""
        started = time.perf_counter()
        self.pace.begin(name)
        self.started[name] = time.time()
        self._begin(name, total)
        try:
            yield self._advance
        finally:
            self.seconds[name] = time.perf_counter() - started
            self.pace.end(self.seconds[name])
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

    def expect(self, seconds: Mapping[str, float]) -> None:
        """Tell which stages of the part will run."""
        self._whole.expect({f"{self._word} {name}": each for name, each in seconds.items()})

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
        self._name, self._total, self._done, self._started = name, total, 0, time.perf_counter()
        self._tell(self._left())
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(self._ended,), daemon=True, name="cns-dask-progress").start()

    def _advance(self) -> None:
        self._done += 1

    def _beat(self, ended: threading.Event) -> None:
        """Tell now and then how far the stage is, also while a single piece takes long."""
        while not ended.wait(LINE_SECONDS):
            self._tell(f", {time.perf_counter() - self._started:.0f} s so far{self._left()}")

    def _left(self) -> str:
        now = self.pace.now(self._done / max(1, self._total), time.perf_counter() - self._started)
        is_told = now is not None and now[1] >= TOLD_SECONDS
        return f" ({now[0]:.0%} of all, about {duration(now[1])} left)" if now and is_told else ""

    def _tell(self, more: str = "") -> None:
        self._write(f"{self._name}: {self._done} of {self._total}{more}")

    def _end(self, seconds: float) -> None:
        self._ended.set()
        self._tell(f", {seconds:.1f} s")


class BarProgress(Progress):
    """A bar for every stage, with counts and elapsed time, above one for the whole run: for terminals."""

    def __init__(self, console: Any) -> None:
        super().__init__()
        self._console = console

    def tell(self, line: str) -> None:
        """Print it above the bar."""
        self._console.print(line, highlight=False, markup=False)

    def _begin(self, name: str, total: int) -> None:
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description:>12}"), BarColumn(), TextColumn("{task.fields[note]}"))
        self._bars = Bars(*columns, console=self._console, redirect_stdout=False)  # a new one leaves the old lines
        self._total, self._done, self._started = total, 0, time.perf_counter()
        self._bar = self._bars.add_task(name, total=total, note="")
        self._whole = self._bars.add_task("all", total=1.0, note="", visible=False)
        self._draw()
        self._bars.start()
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(self._ended,), daemon=True, name="cns-dask-progress").start()

    def _advance(self) -> None:
        self._done += 1
        self._draw()

    def _beat(self, ended: threading.Event) -> None:
        """Clocks go on while a single piece takes long."""
        while not ended.wait(CLOCK_SECONDS):
            self._draw()

    def _draw(self) -> None:
        seconds = time.perf_counter() - self._started
        self._bars.update(self._bar, completed=self._done, note=f"{self._done}/{self._total} {_clock(seconds)}")
        now = self.pace.now(self._done / max(1, self._total), seconds)
        if now is not None:
            note = f"{now[0]:.0%}, about {duration(now[1])} left" if now[1] >= TOLD_SECONDS else f"{now[0]:.0%}"
            self._bars.update(self._whole, completed=now[0], note=note, visible=True)

    def _end(self, seconds: float) -> None:
        self._ended.set()
        self._bars.update(self._bar, completed=self._done, note=f"{self._done}/{self._total} {_clock(seconds)}")
        self._bars.update(self._whole, visible=False)  # only the line of the stage stays
        self._bars.stop()


def _clock(seconds: float) -> str:
    return f"{seconds // 3600:.0f}:{seconds % 3600 // 60:02.0f}:{seconds % 60 // 1:02.0f}"


def duration(seconds: float) -> str:
    """A time in words.

    Examples
    --------
    >>> duration(3.2), duration(300), duration(7200)
    ('3 s', '5 min', '2.0 h')
    """
    if seconds < 2 * 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 2 * 3600 else f"{seconds / 3600:.1f} h"


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
