"""One writer: a run holds its output by a small file that it renews while it lives.

Locks are numbered, and only made where none is: whoever takes over from a dead run makes the next number, so of several
that try, one succeeds. A run that was only asleep sees the higher number when it wakes, and ends.
"""

from __future__ import annotations

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cns_dask.errors import OutputInUseError
from cns_dask.places import Place

RENEW_SECONDS = 5
DEAD_SECONDS = 60  # without renewal


@contextmanager
def locked(place: Place, tell: Callable[[str], None] = lambda _: None) -> Iterator[Callable[[], None]]:
    """Hold a folder while the block runs; refuse if another run holds it and lives.

    Yields a function that raises if the folder was taken away meanwhile.
    """
    content = _content()
    number = _take(place, content, tell)
    stop, renewed = threading.Event(), [time.monotonic()]

    def renew() -> None:
        while not stop.wait(RENEW_SECONDS):
            with suppress(Exception):  # a store that does not answer now may answer later
                content["renewed"] += 1
                if max(_numbers(place), default=0) == number:
                    place.write(_name(number), _text(content))
                    renewed[0] = time.monotonic()

    def still_ours() -> None:
        if max(_numbers(place), default=0) != number or time.monotonic() - renewed[0] > DEAD_SECONDS:
            raise OutputInUseError(
                f"Only one run may write to an output. This one was silent for too long, and lost {place.path}: "
                "another may have taken over."
            )

    thread = threading.Thread(target=renew, daemon=True, name="cns-dask-lock")
    thread.start()
    try:
        yield still_ours
    finally:
        stop.set()
        thread.join()
        for each in sorted(_numbers(place)):
            if each <= number:
                place.remove(_name(each))


def _take(place: Place, content: dict[str, Any], tell: Callable[[str], None]) -> int:
    """Make the next lock, once the one before it is dead; return its number."""
    last = max(_numbers(place), default=0)
    dead = place.read(_name(last)) if last else None
    if dead is not None:
        _refuse_if_alive(place, _name(last), dead, tell)
    number = last + 1
    if not place.claim(_name(number), _text(content)):
        _refuse(place.read(_name(number)))
    others = {each: place.read(_name(each)) for each in _numbers(place) if each != number}
    new = [found for each, found in others.items() if each >= last and found is not None and found != dead]
    if new:  # made while the last one went: both withdraw rather than both stay
        place.remove(_name(number))
        _refuse(new[0])
    return number


def _refuse_if_alive(place: Place, name: str, first: bytes, tell: Callable[[str], None]) -> None:
    alive = _lives_here(first)
    if alive is None:  # elsewhere, or not sure: see whether it renews
        tell(f"{place.name} is held by a run elsewhere: waiting up to {DEAD_SECONDS} s to see whether it lives")
        deadline = time.monotonic() + DEAD_SECONDS
        while time.monotonic() < deadline and place.read(name) == first:
            time.sleep(0.5)
        now = place.read(name)
        alive = now is not None and now != first
    if alive:
        _refuse(first)


def _refuse(content: bytes | None) -> None:
    holder = _parsed(content)
    raise OutputInUseError(
        f"Only one run may write to an output. Got one that is being written by process {holder.get('pid')} on "
        f"{holder.get('host')!r}. Wait for it, stop it, or choose another output."
    )


def _lives_here(content: bytes) -> bool | None:
    """Whether the holder of a lock lives; None if it is not on this machine, or its clock was set meanwhile."""
    import psutil

    holder = _parsed(content)
    if holder.get("host") != platform.node() or holder.get("boot") != _boot():
        return None
    try:
        process = psutil.Process(int(holder["pid"]))
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        same = abs(process.create_time() - float(holder.get("born", 0))) < 1
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False
    return True if same else None


def _content() -> dict[str, Any]:
    import psutil

    return {
        "host": platform.node(),
        "boot": _boot(),
        "pid": os.getpid(),
        "born": psutil.Process().create_time(),
        "run": uuid.uuid4().hex,
        "renewed": 0,
    }


def _boot() -> str:
    """What tells this machine, and its containers, from others with the same name."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}-{Path('/proc/self/ns/pid').stat().st_ino}"
    except OSError:
        return ""


def _numbers(place: Place) -> list[int]:
    names = (name.removeprefix("lock-") for name in place.names() if name.startswith("lock-"))
    return [int(name) for name in names if name.isdigit()]


def _name(number: int) -> str:
    return f"lock-{number}"


def _text(content: dict[str, Any]) -> bytes:
    return json.dumps(content).encode()


def _parsed(content: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(content or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
