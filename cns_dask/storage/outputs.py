"""Outputs: made beside where they are wanted, kept while unfinished, moved there when complete.

    .NAME.unfinished/       beside NAME
        run.json            what the work is: data, settings, plan; and the name of its folder
        lock-1              who does it
        FOLDER/done/        records of finished pieces
        FOLDER/scratch.zarr intermediate arrays (or where `scratch` says)
        FOLDER/result.zarr  moved to NAME at the end
        FOLDER/replaced     what was at NAME, for a moment

Each new run gets a fresh folder, so that stray tasks of an abandoned run cannot write into it.
"""

import errno
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cns_dask.errors import InvalidDataError, InvalidSettingError, OutputError, OutputInUseError, StoreError, UsageError
from cns_dask.storage.arrays import attributes_of, open_group
from cns_dask.storage.fingerprints import differences
from cns_dask.storage.layout import FORMAT_VERSION, Kind
from cns_dask.storage.locations import Location
from cns_dask.storage.locks import locked
from cns_dask.storage.store import (
    DESCRIPTIONS,
    ResultStore,
    ResultWriter,
    TemporaryFolder,
    is_there,
    kind_of,
    open_store,
    result_files,
    unfinished_folder,
)

Fingerprint = dict[str, Any]
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
BAD_INPUT = (InvalidDataError, InvalidSettingError)  # nothing that was done would serve another run
RESULT, DONE, REPLACED = "result.zarr", "done", "replaced"  # names in the folder of a run
MOVING = "moving"  # marks that what is at the output in an object store may be half a copy


@dataclass(frozen=True)
class Output:
    """An output: what is or will be stored there, and the writer that fills it; None if it is finished already."""

    store: ResultStore
    writer: ResultWriter | None


@contextmanager
def open_output(
    out: str | os.PathLike[str] | None,
    kind: Kind,
    fingerprint: Fingerprint,
    resume_key: Fingerprint,
    *,
    overwrite: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    inputs: Iterable[str] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[Output]:
    """Open an output: as it is if it is finished, else to be filled in the block; see `new_output`.

    `out` may be None for a temporary result, which goes with the last reference to it. `inputs` are the paths or URLs
    that the work reads: none of them is written to.
    """
    if out is None:
        folder = TemporaryFolder()
        yield Output(folder.store(), folder.writer())
        return
    fingerprint = {**fingerprint, "format_version": FORMAT_VERSION}
    work = {**fingerprint, **resume_key}
    is_to_replace = overwrite and not _was_moved(_target(out), fingerprint, work)
    finished = None if is_to_replace else find_finished(out, kind, fingerprint)
    if finished is not None:
        tell(f"{out} is finished already")
        _sweep(unfinished_folder(finished.location), work, scratch)
        yield Output(finished, None)
        return
    check_output(out, kind, overwrite=overwrite)
    check_apart(inputs, out, _scratch_folder(scratch))
    with new_output(out, kind, fingerprint, resume_key, overwrite=overwrite, scratch=scratch, tell=tell) as writer:
        yield Output(ResultStore(_target(out)), writer)


def find_finished(out: str | os.PathLike[str], kind: Kind, fingerprint: Fingerprint) -> ResultStore | None:
    """What is at `out` if it is the finished output of the same work; an error if it is that of other work."""
    location = _target(out)
    if kind_of(location) != kind:
        return None
    store = open_store(location, kind)
    different = differences(store.attributes.get("fingerprint"), fingerprint)
    if different:
        raise OutputError(
            f"{out} already holds a {kind} of other data or settings: {different}. Choose another output, or "
            "overwrite it."
        )
    return store


def begun_work(out: str | os.PathLike[str], *, overwrite: bool) -> Fingerprint:
    """Of what data and settings the work at `out` is: unfinished, or finished and not to be replaced; else empty."""
    target = _target(out)
    saved = _parsed(unfinished_folder(target).read("run.json"))
    work = (saved or {}).get("work")
    if work is None and not overwrite:
        work = attributes_of(str(target)).get("fingerprint")
    return work if isinstance(work, dict) else {}


@contextmanager
def new_output(
    out: str | os.PathLike[str],
    kind: Kind,
    fingerprint: Fingerprint,
    resume_key: Fingerprint,
    *,
    overwrite: bool = False,
    scratch: str | os.PathLike[str] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Iterator[ResultWriter]:
    """Fill a new output, or go on with an unfinished one, and move it to `out` when the block ends well.

    `kind` says what it is, `fingerprint` of what data and settings, and `resume_key` what else must be the same to go
    on with unfinished work (how it is cut into pieces). An existing output of the same kind is replaced at that moment,
    and only with `overwrite`. What was done is kept if the block fails, unless the caller has to change the input.
    """
    target = check_output(out, kind, overwrite=overwrite)
    scratch_folder = _scratch_folder(scratch)
    unfinished = unfinished_folder(target)
    try:
        unfinished.make()
    except OSError as error:
        raise OutputError(f"{out} cannot be written ({error}).") from error
    try:
        with locked(unfinished, tell) as check_lock:
            _put_back(unfinished, target)
            check_output(out, kind, overwrite=overwrite)  # while we waited, another run may have finished
            work = {**fingerprint, **resume_key}
            existing = _unfinished_name(unfinished, work, out, overwrite=overwrite)
            name = existing or _begin(unfinished, work, target, scratch_folder)
            result, scratch_group = unfinished / name / RESULT, _scratch(unfinished, name, target, scratch_folder)
            try:
                yield _writer(result, scratch_group, unfinished / name / DONE, check_lock)
                check_lock()
                check_output(out, kind, overwrite=overwrite)  # something may have appeared there meanwhile
                mark_complete(result, kind, fingerprint)
                if target.is_local:
                    result.rename_to(target, aside=unfinished / name / REPLACED)
                else:
                    unfinished.write(MOVING, b"")
                    result.copy_to(target, result_files(result), last="zarr.json", unwanted=DESCRIPTIONS)
            except Exception as error:
                is_untouched = not (unfinished / name / DONE).names() and not isinstance(error, OutputInUseError)
                is_useless = isinstance(error, BAD_INPUT) or (isinstance(error, UsageError) and is_untouched)
                if existing is None and is_useless:
                    _clear(unfinished, scratch_group)
                raise
            _clear(unfinished, scratch_group)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise _disk_full(error, out) from error
        raise
    finally:
        if unfinished.is_local:
            with suppress(OSError):  # it holds something, or another run has just removed it
                Path(unfinished.path).rmdir()


def _writer(result: Location, scratch: Location, records: Location, check_lock: Callable[[], None]) -> ResultWriter:
    try:
        return ResultWriter(result, scratch, records, check_lock)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        raise OutputError(
            f"Intermediate arrays cannot be written to {scratch} ({error}). Give another scratch folder."
        ) from error


def mark_complete(result: Location, kind: Kind, fingerprint: Fingerprint) -> None:
    """Mark a group as complete."""
    open_group(result, "r+").attrs.update(format=kind, format_version=FORMAT_VERSION, fingerprint=fingerprint)


def _scratch(unfinished: Location, name: str, target: Location, folder: Location | None) -> Location:
    """Where the scratch arrays of the work in the folder `name` are."""
    return unfinished / name / "scratch.zarr" if folder is None else folder / f"{target.name}-{name}.scratch"


def _unfinished_name(
    unfinished: Location, work: Fingerprint, out: str | os.PathLike[str], *, overwrite: bool
) -> str | None:
    """Name of the folder of the same work, if an earlier run has begun it; other work is refused, or abandoned."""
    saved = _parsed(unfinished.read("run.json"))
    if saved is None:
        return None
    name = _folder_of(saved, work)
    if name is None and not overwrite:
        different = differences(saved.get("work"), work)
        raise OutputError(
            f"There is unfinished work of other data or settings for {out}: {different}. It can only go on with the "
            "same. Choose another output, or overwrite it."
        )
    return name


def _was_moved(target: Location, fingerprint: Fingerprint, work: Fingerprint) -> bool:
    """Whether a run of the same work was killed after it had moved its result to the output."""
    unfinished = unfinished_folder(target)
    name = _folder_of(_parsed(unfinished.read("run.json")), work)
    if name is None or not (unfinished / name / DONE).names():
        return False
    is_there = not differences(attributes_of(str(target)).get("fingerprint"), fingerprint)
    return is_there and not (unfinished / name / RESULT).exists("zarr.json")


def _put_back(unfinished: Location, target: Location) -> None:
    """Where a run was killed while it moved its result, the old one comes back, or goes for good; half a copy goes."""
    if unfinished.exists(MOVING):
        if not target.exists("zarr.json"):
            target.remove()
        unfinished.remove(MOVING)
    saved = _parsed(unfinished.read("run.json")) or {}
    aside = unfinished / str(saved.get("folder", "")) / REPLACED
    if not aside.is_local or not str(saved.get("folder", "")).isalnum() or not aside.exists():
        return
    if target.exists():
        aside.remove()
    else:
        Path(aside.path).rename(target.path)


def _folder_of(saved: dict[str, Any] | None, work: Fingerprint) -> str | None:
    """Name of the folder of some work, if that is what a run has noted about itself."""
    folder = str((saved or {}).get("folder", ""))
    return folder if folder.isalnum() and not differences((saved or {}).get("work"), work) else None


def _begin(unfinished: Location, work: Fingerprint, target: Location, scratch: Location | None) -> str:
    """Begin new work, with nothing of what was abandoned; return the name of its folder."""
    abandoned = str((_parsed(unfinished.read("run.json")) or {}).get("folder", ""))
    _clear(unfinished, _scratch(unfinished, abandoned, target, scratch) if abandoned.isalnum() else None)
    name = uuid.uuid4().hex
    unfinished.write("run.json", json.dumps({"folder": name, "work": work}).encode())
    return name


def _clear(unfinished: Location, scratch: Location | None = None) -> None:
    """Remove all but the locks: first what may lie elsewhere, because without `run.json` nobody would find it."""
    if scratch is not None:
        scratch.remove()
    unfinished.remove("run.json")
    unfinished.remove(MOVING)
    for name in unfinished.names():
        if not name.startswith("lock-") and not name.endswith(".new"):  # of a lock that is being renewed
            unfinished.remove(name)


def _sweep(unfinished: Location, work: Fingerprint, scratch: str | os.PathLike[str] | None) -> None:
    """Remove leftovers of a run that was killed after its result was moved: without `run.json` nobody needs them."""
    saved = _parsed(unfinished.read("run.json"))
    name = _folder_of(saved, work)
    if (name is None and saved is not None) or not unfinished.exists():
        return
    with suppress(OutputError), locked(unfinished):
        target = unfinished.parent / unfinished.name.removeprefix(".").removesuffix(".unfinished")
        _clear(unfinished, None if name is None else _scratch(unfinished, name, target, _scratch_folder(scratch)))
    if unfinished.is_local:
        with suppress(OSError):
            Path(unfinished.path).rmdir()


def _parsed(content: bytes | None) -> dict[str, Any] | None:
    """What a run has noted about itself: nothing if there is no such note, and an empty one if it is broken."""
    if content is None:
        return None
    try:
        parsed = json.loads(content)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _disk_full(error: OSError, out: str | os.PathLike[str]) -> OutputError:
    return OutputError(
        f"The disk is full ({error.strerror}) while writing {out}. What was done is kept: make room, and run the same "
        "again to go on. A fit can have its intermediate arrays on another disk, in a scratch folder."
    )


def _scratch_folder(scratch: str | os.PathLike[str] | None) -> Location | None:
    if scratch is None:
        return None
    if not os.fspath(scratch):
        raise OutputError("The path is empty. Give the name of a scratch folder, or leave it out.")
    folder = Location(scratch)
    if folder.is_local and not Path(folder.path).is_dir():
        is_other = Path(folder.path).exists()
        wrong = "is not a folder. Choose another one." if is_other else "does not exist. Create it first."
        raise OutputError(f"The scratch folder {scratch} {wrong}")
    return folder


def _target(out: str | os.PathLike[str]) -> Location:
    if not os.fspath(out):
        raise OutputError("The path is empty. Give the output a name.")
    location = Location(out)
    try:
        return Location(Path(location.path).resolve()) if location.is_local else location  # a link is followed
    except (OSError, RuntimeError, ValueError) as error:
        raise OutputError(f"{out} is not a path of this system ({error}).") from error


def check_output(out: str | os.PathLike[str], kind: Kind, *, overwrite: bool = False) -> Location:
    """Return the location where a group of this kind can be written, or say why not."""
    target, exists = writable_location(out)
    if exists and not _is_half_copied(target):
        if not overwrite:
            raise OutputError(f"{out} already exists. Choose another output, or overwrite it.")
        if kind_of(target) != kind:
            raise OutputError(f"{out} is not a {kind}, so it is not overwritten. Choose another output.")
    return target


def check_apart(
    inputs: Iterable[str], out: str | os.PathLike[str], scratch: str | os.PathLike[str] | None = None
) -> None:
    """Refuse an output that is one of the inputs, lies in one or holds one, and a scratch folder that lies in one.

    What is read would be replaced, or change while it is read.
    """
    for source in inputs:
        read, written = f"{_target(source)}/", f"{_target(out)}/"
        if written.startswith(read) or read.startswith(written):
            raise OutputError(f"{out} is, lies in or holds {source}, which is read. Choose another output.")
        if scratch is not None and f"{_target(scratch)}/".startswith(read):
            raise OutputError(f"The scratch folder {scratch} lies in {source}, which is read. Choose another one.")


def _is_half_copied(target: Location) -> bool:
    """Whether a run was killed while it copied its result to an output in an object store."""
    return not target.is_local and not target.exists("zarr.json") and unfinished_folder(target).exists(MOVING)


def writable_location(out: str | os.PathLike[str]) -> tuple[Location, bool]:
    """The location of an output, in a folder that can be written, and whether something is there."""
    target = _target(out)
    try:
        exists = is_there(target)
    except StoreError:
        raise
    except (OSError, ValueError) as error:
        raise OutputError(f"{out} is not a path of this system ({error}).") from error
    if target.is_local:
        _check_folder(Path(target.parent.path))
    return target, exists


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise OutputError(f"The folder of the output, {folder}, does not exist. Create it first.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"The folder of the output, {folder}, is not writable.")


def check_space(location: Location, needed: int) -> None:
    """Refuse to start when the disk has less room than the plan needs."""
    free = location.free_bytes()
    if free is not None and free < needed:
        raise OutputError(
            f"The work needs {needed / 2**20:.0f} MiB on the disk of {location}, and {free / 2**20:.0f} MiB are free. "
            "Use another output or scratch folder, or a smaller max_candidates."
        )
