"""Folders on a disk or in an object store: small files written whole, and calls repeated while a store falters.

The only door to fsspec. Arrays are opened by `arrays`.
"""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import tenacity

from cns_dask.errors import DataNotFoundError, InvalidLocationError, StoreError

ATTEMPTS = 6
FIRST_PAUSE = 0.1  # seconds; doubled after every attempt
AT_ONCE = 16  # calls: an object store answers each in some tens of milliseconds
PERMANENT_ERRNOS = {
    errno.ENOENT, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY,
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP, errno.EFBIG,
}  # fmt: skip
PERMANENT_ERRORS = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
STORE_CLIENTS = {"aiohttp", "aiobotocore", "botocore", "urllib3"}  # their errors are no OSErrors


def is_transient(error: BaseException) -> bool:
    """Whether another attempt may succeed: a network or server that falters, no missing file and no full disk."""
    if isinstance(error, OSError):
        return not isinstance(error, (*PERMANENT_ERRORS, StoreError)) and error.errno not in PERMANENT_ERRNOS
    return type(error).__module__.split(".")[0] in STORE_CLIENTS


def _give_up(state: tenacity.RetryCallState) -> NoReturn:
    error = state.outcome.exception() if state.outcome else None
    raise StoreError(f"The store failed {ATTEMPTS} times in a row ({type(error).__name__}: {error}).") from error


#: One policy for every call of a store: ever longer pauses, of random length so that workers do not return together.
RETRY_POLICY: dict[str, Any] = {
    "retry": tenacity.retry_if_exception(is_transient),
    "stop": tenacity.stop_after_attempt(ATTEMPTS),
    "wait": tenacity.wait_exponential(FIRST_PAUSE) + tenacity.wait_random(0, FIRST_PAUSE),
    "retry_error_callback": _give_up,
}


def with_retries(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a function of a store, again if it falters."""
    return tenacity.Retrying(**RETRY_POLICY)(function, *arguments, **options)


async def with_retries_async(function: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
    """Await a function of a store, again if it falters."""
    return await tenacity.AsyncRetrying(**RETRY_POLICY)(function, *arguments, **options)


class Location:
    """A folder: a path of this machine (or of a disk that machines share), or a URL that fsspec knows, as s3://...

    Names are relative to it, with slashes. What is written appears whole or not at all.
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        if not isinstance(location, str | os.PathLike):
            raise InvalidLocationError(f"{location!r} is no path or URL. Give one as a string.")
        text = os.fspath(location).removeprefix("file://")
        if not text:
            raise DataNotFoundError("The path is empty.")
        self.is_local = "://" not in text
        self.path = absolute_path(text) if self.is_local else text.rstrip("/")
        protocol, _, key = self.path.partition("://")
        if not self.is_local and (not protocol or "/" not in key.strip("/") or set(key) & set("*?[]")):
            raise InvalidLocationError(f"{text} must name a bucket and a path in it, without any of * ? [ ].")

    def __str__(self) -> str:
        return self.path

    def __fspath__(self) -> str:
        return self.path

    def __truediv__(self, name: str) -> Location:
        return Location(f"{self.path}/{name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Location) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        """The folder that holds this one."""
        return _folder(self.path.rpartition("/")[0] or "/")

    @property
    def _files(self) -> Any:
        """The file system of a URL. Listings are never remembered: other machines write there too."""
        import fsspec  # type: ignore[import-untyped]

        protocol = self.path.partition("://")[0]
        try:
            return fsspec.filesystem(protocol, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise InvalidLocationError(
                f"No package here opens {self.path} ({error}). "
                "For Amazon's and compatible object stores: pip install 'cns_dask[s3]'."
            ) from error

    def _at(self, name: str) -> str:
        return f"{self.path}/{name}" if name else self.path

    def exists(self, name: str = "") -> bool:
        """Whether there is a file or folder."""
        at = self._at(name)
        return bool(with_retries(os.path.lexists if self.is_local else self._files.exists, at))

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            return bytes(with_retries(_read if self.is_local else self._files.cat_file, self._at(name)))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def write(self, name: str, content: bytes) -> None:
        """Write or replace a file."""
        if self.is_local:
            with_retries(_put, self._at(name), content, os.replace)
        else:
            with_retries(self._files.pipe_file, self._at(name), content)

    def claim(self, name: str, content: bytes) -> bool:
        """Write a file that must not be there yet; False if it is. Of several at once, one succeeds."""
        try:
            if self.is_local:
                with_retries(_put, self._at(name), content, os.link)
            else:
                with_retries(self._files.pipe_file, self._at(name), content, mode="create")
        except OSError as error:
            if not isinstance(error, FileExistsError) and error.errno != errno.EINVAL:  # some stores say so
                raise
            return self.read(name) == content  # ours, if only the answer to an earlier attempt was lost
        return True

    def names(self, folder: str = "") -> list[str]:
        """Names of the files and folders in a folder; none if it is not there."""
        at = self._at(folder)
        try:
            paths = with_retries(os.listdir, at) if self.is_local else with_retries(self._files.ls, at, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted({str(path).rstrip("/").rpartition("/")[2] for path in paths} - {""})

    def versions(self) -> list[tuple[Any, ...]]:
        """Name, size and what changes with the content (etag or time) of every file below, or of the file itself."""
        if not self.is_local:
            files = with_retries(self._files.find, self.path, detail=True)
            keys = ("ETag", "etag", "LastModified", "mtime", "created")
            return sorted(
                (name, info["size"], next((str(info[key]) for key in keys if info.get(key)), ""))
                for name, info in files.items()
            )
        root = Path(self.path)
        files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.is_file())
        stats = ((str(path.relative_to(root)), path.stat()) for path in files)
        return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]

    def matches(self, pattern: str) -> list[str]:
        """Paths or URLs of the files below whose names match a pattern with * and ?."""
        if self.is_local:
            return sorted(str(path) for path in Path(self.path).glob(pattern))
        paths = with_retries(self._files.glob, self._at(pattern))
        return sorted(f"{self.path.partition('://')[0]}://{str(path).lstrip('/')}" for path in paths)

    def remove(self, name: str = "") -> None:
        """Remove a file or a folder with all that it holds; nothing happens if it is not there."""
        at = self._at(name)
        try:
            if self.is_local:
                with_retries(_remove, at)
            else:
                with_retries(self._files.rm, at, recursive=True)
        except FileNotFoundError:
            pass

    def rename_to(self, target: Location, aside: Location) -> None:
        """Put this folder of a disk in the place of `target`; what is there goes `aside`, and back if that fails."""
        existed = target.exists()
        if existed:
            Path(target.path).rename(aside.path)
        try:
            Path(self.path).rename(target.path)
        except OSError:
            if existed:
                Path(aside.path).rename(target.path)
            raise

    def copy_to(self, target: Location, names: Sequence[str], last: str, unwanted: Sequence[str] = ()) -> None:
        """Put this folder of an object store, which cannot rename, in the place of `target`, which may exist.

        The file `last`, which makes the folder what it is, goes first from the old one and comes last. Listings may lag
        behind what was written: all files of this folder are named, and those that the old one must not leave.
        """
        target.remove(last)
        target.remove()
        target._remove_files(unwanted)
        others = [name for name in names if name != last]
        sources = [self._at(name) for name in others]
        try:
            with_retries(self._files.copy, sources, [target._at(name) for name in others])
            with_retries(self._files.copy, [self._at(last)], [target._at(last)])
        except FileNotFoundError as error:
            raise StoreError(
                f"A file of {self} is missing ({error}). The others are kept: run the same again to make it again."
            ) from error
        self.remove(last)
        self._remove_files(others)
        self.remove()

    def join_to(self, target: Location, names: Sequence[str]) -> None:
        """Put files of this folder, one after the other, into one file at `target`, which is replaced."""
        joined = f"{self.path}/joined" if self.is_local else target.path
        opened: Callable[[str, str], Any] = open if self.is_local else self._files.open
        with opened(joined, "wb") as whole:
            for name in names:
                with opened(self._at(name), "rb") as part:
                    shutil.copyfileobj(part, whole)
        if self.is_local:
            Path(joined).replace(target.path)

    def _remove_files(self, names: Sequence[str]) -> None:
        """Remove files of an object store, each of which may be there or not."""
        try:
            if names:
                with_retries(self._files.rm, [self._at(name) for name in names])
        except FileNotFoundError:  # so say some stores where one of them is not there
            with ThreadPoolExecutor(AT_ONCE) as pool:
                list(pool.map(self.remove, names))

    def make(self) -> None:
        """Make the folder where there are such things."""
        if self.is_local:
            Path(self.path).mkdir(parents=True, exist_ok=True)

    def free_bytes(self) -> int | None:
        """Free space, where that is known."""
        return shutil.disk_usage(self.path).free if self.is_local else None


def matches(folder: str, pattern: str) -> list[str]:
    """Paths or URLs of the files in a folder, or a whole bucket, whose names match a pattern with * and ?."""
    return _folder(folder.removeprefix("file://")).matches(pattern)


def describe_file(path: str) -> tuple[int | None, str]:
    """Size of a file (path or URL), where that is known, and a word that changes with its content."""
    import fsspec

    files, name = fsspec.core.url_to_fs(path, use_listings_cache=False)
    return files.info(name).get("size"), str(files.ukey(name))


def read_lines(path: str, start: int = 0, length: int | None = None) -> bytes:
    """Whole lines of a file (path or URL), decompressed by its ending; of parts that adjoin, each line is in one.

    The first part, or all if `length` is None, is read without seeking: not every web server allows it.
    """
    import fsspec

    with fsspec.open(path, "rb", compression="infer", use_listings_cache=False) as stream:
        if start:
            return bytes(fsspec.utils.read_block(stream, start, length, b"\n"))
        text: bytes = stream.read(-1 if length is None else length)
        while length is not None and (more := stream.read(2**16)):
            rest, end, _ = more.partition(b"\n")
            text += rest + end
            if end:
                break
        return text


def _folder(path: str) -> Location:
    """A folder that may be a whole bucket."""
    location = Location.__new__(Location)
    location.is_local, location.path = "://" not in path, path
    return location


def absolute_path(path: str) -> str:
    """The path as any working directory sees it."""
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError as error:  # nobody knows the home folder of ~user
        raise InvalidLocationError(f"{path} is not a path of this system ({error}).") from error
    except FileNotFoundError as error:
        raise InvalidLocationError(
            f"{path} is a relative path, and the working directory does not exist any more. Give the whole path."
        ) from error


def _read(path: str) -> bytes:
    return Path(path).read_bytes()


def _put(path: str, content: bytes, into: Callable[[Path, Path], Any]) -> None:
    """Beside it first, then renamed, or linked (which fails where a file is): whoever reads sees all or nothing."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{uuid.uuid4().hex}.new")
    try:
        beside.write_bytes(content)
        into(beside, target)
    finally:
        beside.unlink(missing_ok=True)


def _remove(path: str) -> None:
    """A folder is renamed first: what tasks that still run write into it cannot keep it, or bring it back half."""
    target = Path(path)
    gone = target.with_name(f".{target.name}.gone")
    if gone.is_dir():  # by a process that was killed while it removed it
        shutil.rmtree(gone, ignore_errors=True)
    if target.is_symlink() or not target.is_dir():
        target.unlink()
        return
    target.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)
