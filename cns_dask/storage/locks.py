"""One writer: a run holds its output by a small file that it renews while it lives.

Locks are numbered, and only made where none is: whoever takes over from a dead run makes the next number, so of several
that try, one succeeds. A run that was only asleep sees the higher number when it wakes, and ends.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from cns_dask.errors import OutputInUseError
from cns_dask.storage.locations import Location
from cns_dask.storage.owners import lives_here, parsed, this_process

RENEW_SECONDS = 5
DEAD_SECONDS = 60  # without renewal


@contextmanager
def locked(
    location: Location,
    tell: Callable[[str], None] = lambda _: None,
    *,
    renew_seconds: float = RENEW_SECONDS,
    dead_seconds: float = DEAD_SECONDS,
) -> Iterator[Callable[[], None]]:
    """Hold a folder while the block runs; refuse if another run holds it and lives.

    Yields a function that raises if the folder was taken away meanwhile.
    """
    content = {**this_process(), "renewed": 0}
    number = _take(location, content, tell, dead_seconds)
    stop, renewed = threading.Event(), [time.monotonic()]

    def renew() -> None:
        while not stop.wait(renew_seconds):
            with suppress(Exception):  # a store that does not answer now may answer later
                content["renewed"] += 1
                if _is_ours(location, number, content) and _last(location, number) == number:
                    location.write(_name(number), _text(content))
                    renewed[0] = time.monotonic()

    def check_lock() -> None:
        is_held = _is_ours(location, number, content) and _last(location, number) == number
        if not is_held or time.monotonic() - renewed[0] > dead_seconds:
            raise OutputInUseError(
                f"This run was silent for too long and lost its lock on {location.path}: another run may have taken "
                "over."
            )

    thread = threading.Thread(target=renew, daemon=True, name="cns-dask-lock")
    thread.start()
    try:
        yield check_lock
    finally:
        stop.set()
        thread.join()
        if _is_ours(location, number, content):  # else another run took over, ended, and removed it
            for each in sorted({*_numbers(location), number}):
                if each <= number:
                    location.remove(_name(each))


def _take(location: Location, content: dict[str, Any], tell: Callable[[str], None], dead_seconds: float) -> int:
    """Make the next lock, once the one before it is dead; return its number."""
    last = _last(location)
    dead = location.read(_name(last)) if last else None
    if dead is not None:
        _refuse_if_alive(location, _name(last), dead, tell, dead_seconds)
    number = last + 1
    if not location.claim(_name(number), _text(content)):
        _refuse(location.read(_name(number)))
    numbers = {*_numbers(location), last, number + 1} - {number}  # the last two even if the listing lags behind
    others = {each: location.read(_name(each)) for each in numbers}
    new = [lock for each, lock in others.items() if each >= last and lock is not None and lock != dead]
    if new:  # made while the last one went: both withdraw rather than both stay
        location.remove(_name(number))
        _refuse(new[0])
    return number


def _refuse_if_alive(
    location: Location, name: str, first: bytes, tell: Callable[[str], None], dead_seconds: float
) -> None:
    alive = lives_here(first)
    if alive is None:  # elsewhere, or not sure: see whether it renews
        tell(f"{location.name} is held by a run elsewhere: waiting up to {dead_seconds} s to see whether it lives")
        deadline = time.monotonic() + dead_seconds
        while time.monotonic() < deadline and location.read(name) == first:
            time.sleep(0.5)
        now = location.read(name)
        alive = now is not None and now != first
    if alive:
        _refuse(first)


def _is_ours(location: Location, number: int, content: dict[str, Any]) -> bool:
    return bool(parsed(location.read(_name(number))).get("run") == content["run"])


def _refuse(content: bytes | None) -> None:
    holder = parsed(content)
    raise OutputInUseError(
        f"Another run is writing to this output: process {holder.get('pid')} on {holder.get('host')!r}. "
        "Wait for it, stop it, or choose another output."
    )


def _last(location: Location, known: int = 0) -> int:
    """The highest number; the listing of an object store may lag behind, so locks are asked for by name too."""
    last = max((known, *_numbers(location)))
    return next(number for number in itertools.count(last) if not location.exists(_name(number + 1)))


def _numbers(location: Location) -> list[int]:
    names = (name.removeprefix("lock-") for name in location.names() if name.startswith("lock-"))
    return [int(name) for name in names if name.isdigit()]


def _name(number: int) -> str:
    return f"lock-{number}"


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()
