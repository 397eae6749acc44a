"""Outputs: made beside the place where they are wanted, kept while unfinished, moved there when complete.

.NAME.unfinished/       beside NAME
run.json            what the work is: data, settings, plan
lock-1              who does it
done/               what each finished piece returned
scratch.zarr        intermediate values (or where `scratch` says)
result.zarr         moved to NAME at the end
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cns_dask.errors import OutputError, StoreError, UsageError
from cns_dask.locks import locked
from cns_dask.places import Place
from cns_dask.store import FORMAT_VERSION, ResultStore, kind_of, open_result_store, unfinished_place

Fingerprint = dict[str, Any]
FULL = (errno.ENOSPC, errno.EDQUOT)


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
    and only with `overwrite`.
    What was done is kept if the block fails, unless the caller has to mend the input.
    """
    target = check_output(out, kind, overwrite=overwrite)
    work = unfinished_place(target)
    store = ResultStore(work / "result.zarr", _scratch_place(work, target, scratch), work / "done")
    try:
        work.make()
    except OSError as error:
        raise OutputError(f"The output must be writable. Got {out} ({error}).") from error
    try:
        with locked(work, tell) as still_ours:
            fresh = not _goes_on(work, store, {**fingerprint, **details}, out, overwrite=overwrite)
            try:
                store.begin()
                yield store
                still_ours()
                check_output(out, kind, overwrite=overwrite)  # something may have appeared there meanwhile
            except UsageError:
                if fresh:
                    _clear(work, store)
                raise
            except OSError as error:
                raise (_full(error, out) if error.errno in FULL else error) from error
            store.describe(format=kind, format_version=FORMAT_VERSION, fingerprint=fingerprint)  # it is complete
            work.write("moving", b"")
            store.place.move_to(target, aside=work / "replaced", last="zarr.json")
            store.place = target
            _clear(work, store)
    finally:
        if work.is_local and not work.names():
            Path(work.path).rmdir()


def _goes_on(
    work: Place, store: ResultStore, fingerprint: Fingerprint, out: str | os.PathLike[str], *, overwrite: bool
) -> bool:
    """Whether the work was begun by an earlier run, and is the same; a new one begins with nothing."""
    known = work.read("run.json")
    if known is not None:
        different = differences(_parsed(known), fingerprint)
        if not different:
            return True
        if not overwrite:
            raise OutputError(
                f"Unfinished work is continued with the same data and settings only. Got {out}, where {different}. "
                "Choose another, or overwrite it."
            )
    _clear(work, store)
    work.write("run.json", json.dumps(fingerprint).encode())
    return False


def _clear(work: Place, store: ResultStore) -> None:
    """Remove all but the locks; first what makes it look like work that can go on."""
    work.remove("run.json")
    store.scratch_place.remove()
    for name in work.names():
        if not name.startswith("lock-"):
            work.remove(name)


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


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


def _full(error: OSError, out: str | os.PathLike[str]) -> OutputError:
    return OutputError(
        f"The disk must have room for the result and intermediate values. Got {error.strerror} while writing {out}. "
        "What was done is kept: make room, or use --scratch on another disk, and run the same again to go on."
    )


def _scratch_place(work: Place, target: Place, scratch: str | os.PathLike[str] | None) -> Place:
    if scratch is None:
        return work / "scratch.zarr"
    folder = Place(scratch)
    if folder.is_local and not Path(folder.path).is_dir():
        raise OutputError(f"The folder for intermediate values must exist. Got {scratch}. Create it first.")
    return folder / f"{target.name}-{hashlib.sha256(target.path.encode()).hexdigest()[:12]}.scratch"


def _target(out: str | os.PathLike[str]) -> Place:
    place = Place(out)
    try:
        return Place(Path(place.path).resolve()) if place.is_local else place  # a link is followed
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"The output must be a path of this system. Got {out} ({error}).") from error


def check_output(out: str | os.PathLike[str], kind: str, *, overwrite: bool = False) -> Place:
    """Return the place where a group of this kind can be written, or say why not."""
    target = _target(out)
    try:
        exists = target.exists()
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise OutputError(f"The output must be a path of this system. Got {out} ({error}).") from error
    if exists and not unfinished_place(target).exists("moving"):
        if not overwrite:
            raise OutputError(f"The output must not exist. Got {out}. Choose another, or overwrite it.")
        if kind_of(target) != kind:
            raise OutputError(f"Only a {kind} is overwritten by one. Got {out}, which is something else.")
    if target.is_local:
        _check_folder(Path(target.parent.path))
    return target


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
