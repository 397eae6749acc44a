"""Outputs: made beside the place where they are wanted, kept while unfinished, moved there when complete.

    .NAME.unfinished/       beside NAME
        run.json            what the work is: data, settings, plan; and the name of its folder
        lock-1              who does it
        FOLDER/done/        what each finished piece returned
        FOLDER/scratch.zarr intermediate values (or where `scratch` says)
        FOLDER/result.zarr  moved to NAME at the end

Every new work has a folder of another name: tasks that still run for one that was given up cannot write into it.
"""

from __future__ import annotations

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from cns_dask.errors import (
    InvalidDataError,
    InvalidSettingError,
    OutputError,
    OutputInUseError,
    StoreError,
    UsageError,
)
from cns_dask.locks import locked
from cns_dask.places import Place
from cns_dask.store import FORMAT_VERSION, ResultStore, kind_of, open_result_store, unfinished_place

Fingerprint = dict[str, Any]
FULL = (errno.ENOSPC, errno.EDQUOT)
TO_MEND = (InvalidDataError, InvalidSettingError)  # nothing that was done would serve another run
MOVING = "moving"  # the mark that what is at the output of an object store may be half a copy


def finished(out: str | os.PathLike[str], kind: str, fingerprint: Fingerprint) -> ResultStore | None:
    """What is at `out` if it is the finished output of the same work; an error if it is that of other work."""
    place = _target(out)
    if kind_of(place) != kind:
        return None
    store = open_result_store(place, kind)
    different = differences(store.attributes.get("fingerprint"), fingerprint)
    if different:
        raise OutputError(
            f"The output must not exist, or be of the same data and settings. Got {out}, where {different}. "
            "Choose another, or overwrite it."
        )
    return store


def make(
    out: str | os.PathLike[str],
    kind: str,
    fingerprint: Fingerprint,
    details: Fingerprint,
    fill: Callable[[ResultStore], None],
    *,
    overwrite: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> ResultStore:
    """The output of some work: as it is if it is finished, else filled now; see `new_result`."""
    fingerprint = {**fingerprint, "format_version": FORMAT_VERSION}
    there = None if overwrite else finished(out, kind, fingerprint)
    if there is not None:
        tell(f"{out} is finished already")
        _sweep(unfinished_place(there.place), {**fingerprint, **details}, scratch)
        return there
    with new_result(out, kind, fingerprint, details, overwrite=overwrite, scratch=scratch, tell=tell) as store:
        fill(store)
    return store


@contextmanager
def new_result(
    out: str | os.PathLike[str],
    kind: str,
    fingerprint: Fingerprint,
    details: Fingerprint,
    *,
    overwrite: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[ResultStore]:
    """Fill a new result, or go on with an unfinished one, and move it to `out` when the block ends well.

    `kind` says what it is, `fingerprint` of what data and settings, and `details` what else must be the same to go on
    with unfinished work (how it is cut into pieces). An existing output of the same kind is replaced at that moment,
    and only with `overwrite`. What was done is kept if the block fails, unless the caller has to mend the input.
    """
    target = check_output(out, kind, overwrite=overwrite)
    elsewhere = _scratch_folder(scratch)
    work = unfinished_place(target)
    try:
        work.make()
    except OSError as error:
        raise OutputError(f"The output must be writable. Got {out} ({error}).") from error
    try:
        with locked(work, tell) as still_ours:
            check_output(out, kind, overwrite=overwrite)  # while we waited, another run may have finished
            known = _begun(work, {**fingerprint, **details}, out, overwrite=overwrite)
            name = known or _begin(work, {**fingerprint, **details})
            store = _store(work, name, target, elsewhere)
            store.still_ours = still_ours
            try:
                store.begin()
                yield store
                still_ours()
                check_output(out, kind, overwrite=overwrite)  # something may have appeared there meanwhile
                store.describe(format=kind, format_version=FORMAT_VERSION, fingerprint=fingerprint)  # it is complete
                if not target.is_local:
                    work.write(MOVING, b"")
                store.place.move_to(target, aside=work / name / "replaced", last="zarr.json")
            except Exception as error:
                nothing_done = not (work / name / "done").names() and not isinstance(error, OutputInUseError)
                if known is None and (isinstance(error, TO_MEND) or (isinstance(error, UsageError) and nothing_done)):
                    _clear(work, store)
                raise
            store.place = target
            _clear(work, store)
    except OSError as error:
        if error.errno in FULL:
            raise _full(error, out) from error
        raise
    finally:
        if work.is_local:
            with suppress(OSError):  # it holds something, or another run has just removed it
                Path(work.path).rmdir()


def _store(work: Place, name: str, target: Place, elsewhere: Place | None) -> ResultStore:
    """The store of the work in the folder `name`."""
    scratch = work / name / "scratch.zarr" if elsewhere is None else elsewhere / f"{target.name}-{name}.scratch"
    return ResultStore(work / name / "result.zarr", scratch, work / name / "done")


def _begun(work: Place, fingerprint: Fingerprint, out: str | os.PathLike[str], *, overwrite: bool) -> str | None:
    """The folder of the same work, if an earlier run has begun it; other work is refused, or given up."""
    known = _parsed(work.read("run.json"))
    if known is None:
        return None
    different = differences(known.get("work"), fingerprint)
    if not different and str(known.get("folder", "")).isalnum():
        return str(known["folder"])
    if not overwrite:
        raise OutputError(
            f"Unfinished work is continued with the same data and settings only. Got {out}, where {different}. "
            "Choose another, or overwrite it."
        )
    return None


def _begin(work: Place, fingerprint: Fingerprint) -> str:
    """Begin new work, with nothing; return the name of its folder."""
    _clear(work)
    name = uuid.uuid4().hex
    work.write("run.json", json.dumps({"folder": name, "work": fingerprint}).encode())
    return name


def _clear(work: Place, store: ResultStore | None = None) -> None:
    """Remove all but the locks; first what makes it look like work that can go on."""
    work.remove("run.json")
    work.remove(MOVING)
    if store is not None:
        store.scratch_place.remove()
    for name in work.names():
        if not name.startswith("lock-") and not name.endswith(".new"):  # of a lock that is being renewed
            work.remove(name)


def _sweep(work: Place, fingerprint: Fingerprint, scratch: str | os.PathLike[str] | None) -> None:
    """Remove what a run has left that was killed when its result was in place already."""
    known = _parsed(work.read("run.json"))
    if known is None or differences(known.get("work"), fingerprint) or not str(known.get("folder", "")).isalnum():
        return
    with suppress(OutputError), locked(work):
        target = work.parent / work.name.removeprefix(".").removesuffix(".unfinished")
        _clear(work, _store(work, str(known["folder"]), target, _scratch_folder(scratch)))
    if work.is_local:
        with suppress(OSError):
            Path(work.path).rmdir()


def differences(known: Any, fingerprint: Fingerprint) -> str:
    """The fields in which two fingerprints differ, as words; empty if they are equal."""
    ours, theirs = _flat(json.loads(json.dumps(fingerprint))), _flat(known if isinstance(known, dict) else {})
    return ", ".join(
        f"{field} is {theirs.get(field)!r}, not {ours.get(field)!r}"
        for field in sorted(ours.keys() | theirs.keys())
        if ours.get(field) != theirs.get(field)
    )


def _flat(tree: dict[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, dict) else {f"{above}{key}": value}
    return flat


def _parsed(content: bytes | None) -> dict[str, Any] | None:
    """What a run has noted about itself: nothing if there is no such note, and an empty one if it is broken."""
    if content is None:
        return None
    try:
        found = json.loads(content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _full(error: OSError, out: str | os.PathLike[str]) -> OutputError:
    return OutputError(
        f"The disk must have room for the result and intermediate values. Got {error.strerror} while writing {out}. "
        "What was done is kept: make room, or use --scratch on another disk, and run the same again to go on."
    )


def _scratch_folder(scratch: str | os.PathLike[str] | None) -> Place | None:
    if scratch is None:
        return None
    folder = Place(scratch)
    if folder.is_local and not Path(folder.path).is_dir():
        raise OutputError(f"The folder for intermediate values must exist. Got {scratch}. Create it first.")
    return folder


def _target(out: str | os.PathLike[str]) -> Place:
    place = Place(out)
    try:
        return Place(Path(place.path).resolve()) if place.is_local else place  # a link is followed
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"The output must be a path of this system. Got {out} ({error}).") from error


def check_output(out: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> Place:
    """Return the place where a group of this kind can be written, or say why not."""
    target, exists = writable_place(out)
    half_moved = exists and not target.is_local and unfinished_place(target).exists(MOVING)
    if exists and not half_moved:
        if not overwrite:
            raise OutputError(f"The output must not exist. Got {out}. Choose another, or overwrite it.")
        if kind_of(target) != kind:
            raise OutputError(f"Only a {kind} is overwritten by one. Got {out}, which is something else.")
    return target


def writable_place(out: str | os.PathLike[str]) -> tuple[Place, bool]:
    """The place of an output, in a folder that can be written, and whether something is there."""
    target = _target(out)
    try:
        exists = target.exists()
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise OutputError(f"The output must be a path of this system. Got {out} ({error}).") from error
    if target.is_local:
        _check_folder(Path(target.parent.path))
    return target, exists


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise OutputError(f"The folder of the output must exist. Got {folder}. Create it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"The folder of the output must be writable. Got {folder}.")


def check_space(place: Place, needed: int) -> None:
    """Refuse to start when the disk has less room than the plan needs."""
    free = place.free_bytes()
    if free is not None and free < needed:
        raise OutputError(
            f"The disk of {place} must have at least {needed / 2**20:.0f} MiB free. Got {free / 2**20:.0f} MiB. "
            "Use another output or scratch, or a smaller max_candidates."
        )
