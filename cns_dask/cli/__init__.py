"""The face for the command line: `cns-dask fit`, `plan`, `neighbors`, `predict`, `show`, `explain`, `report`, ...

Exit codes: 0 done, 2 wrong usage or input, 1 failure, 128 + the signal's number if stopped. Anywhere on the line,
--debug shows where an error comes from. This module imports next to nothing, so that Ctrl-C is answered from the start.
"""

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

from cns_dask.progress import ForgivingStream

STOPPED = "cns-dask: stopped. What was finished is kept: run the same command again to go on from there."


class _StoppedError(BaseException):
    """The user, or the system, wants the run to end. No Exception: nothing on the way out may take it for a failure."""


def main() -> None:
    """Run the command line."""
    with _forgiving_stderr(), _exit_codes(debug="--debug" in sys.argv):
        sys.unraisablehook = _ask_again
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _stop)
        warnings.showwarning = _show_warning
        from cns_dask.cli.commands import run

        run(sys.argv)


@contextmanager
def _forgiving_stderr() -> Iterator[None]:
    """What cannot be written to standard error (it is closed, or on a full disk) is dropped."""
    stream = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - for the rest of the process
    forgiving: Any = ForgivingStream(stream)
    try:
        with redirect_stderr(forgiving):
            yield
    finally:
        try:
            stream.flush()
        except OSError:  # Python would try once more at its end, and make a failure of it
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _stop(number: int, _: Any) -> None:
    signal.signal(number, signal.SIG_DFL)  # whoever asks twice means it
    raise _StoppedError(number)


def _ask_again(ignored: Any) -> None:
    """Python ignores what is raised while it frees an object: whoever asked to stop just then is heard soon after."""
    if isinstance(ignored.exc_value, _StoppedError):
        [number] = ignored.exc_value.args
        signal.signal(number, _stop)
        threading.Timer(0.05, os.kill, [os.getpid(), number]).start()
    else:
        sys.__unraisablehook__(ignored)


@contextmanager
def _exit_codes(*, debug: bool = False) -> Iterator[None]:
    """Errors end in one line and a code; with `debug` they show where they came from."""
    try:
        yield
    except _StoppedError as stopped:
        # without `_say`, which imports: an import may be what was stopped
        sys.stderr.write(f"{STOPPED}\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(128 + stopped.args[0])  # tasks that still run in threads are not waited for
    except Exception as error:
        if debug:
            raise
        from cns_dask.errors import CNSError, UsageError

        if isinstance(error, CNSError | OSError):
            _say(str(error))
        else:
            _say(f"{type(error).__name__}: {error} (this is not expected: --debug shows where it comes from)")
        sys.exit(2 if isinstance(error, UsageError) else 1)


def _show_warning(message: Any, category: type[Warning], *where: Any, **more: Any) -> None:
    """Our own warnings in one line, without the place in the code that a user does not know."""
    from cns_dask import errors

    if getattr(errors, category.__name__, None) is category:
        _say(f"warning: {message}")
    else:
        _python_warning(message, category, *where, **more)


_python_warning = warnings.showwarning


def _say(text: str) -> None:
    """One line on standard error, without anything that a terminal would obey: names may come from anywhere."""
    from cns_dask.cli.wording import in_options
    from cns_dask.errors import one_line, plain_text

    sys.stderr.write(f"cns-dask: {plain_text(one_line(in_options(text)))}\n")
