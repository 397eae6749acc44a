"""Named errors and warnings.

Every message says in plain English what is wrong and, where it is not obvious, what to do. Each class also inherits the
built-in that it specialises, and carries one string only, so that it survives the way back from a worker.
"""


def plain_text(text: str) -> str:
    """The same without characters that a terminal would obey: they are shown as escapes."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def one_line(text: object) -> str:
    r"""A message, often of another package, in one line.

    Examples
    --------
    >>> one_line("Expected 5 fields in line 31,\n  saw 6\n")
    'Expected 5 fields in line 31, saw 6'
    """
    return " ".join(str(text).split())


class CNSError(Exception):
    """Base of all errors raised on purpose by this package."""


class UsageError(CNSError):
    """Base of those that the caller can mend by calling differently: exit code 2 on the command line."""


class InvalidSettingError(UsageError, ValueError):
    """A parameter of the method is outside its range, or does not fit the data."""


class InvalidDataError(UsageError, ValueError):
    """The data cannot be clustered as they are."""


class InvalidTypeError(InvalidDataError, TypeError):
    """The data are not numbers, or not in a dense array."""


class DataNotFoundError(UsageError, FileNotFoundError):
    """Nothing is stored at the given path."""


class OutputError(UsageError, OSError):
    """The output exists already, or cannot be written."""


class OutputInUseError(OutputError):
    """Another run is writing to the output."""


class StoreError(CNSError, OSError):
    """A disk or an object store does not answer, however often it is asked."""


class InvalidLocationError(UsageError, StoreError):
    """What is given as a path or URL is none, or no package here opens it."""


class DamagedError(CNSError, RuntimeError):
    """A stored chunk is missing, or not as it was written."""


class SchedulerLostError(CNSError, ConnectionError):
    """The scheduler does not answer any more."""


class WorkersLostError(CNSError, RuntimeError):
    """A task was on several workers when they died."""


class NotAResultError(UsageError, ValueError):
    """What is given is no result of this package, or its path holds something else."""


class SchedulerError(UsageError, ConnectionError):
    """No Dask scheduler answers, or its workers cannot do the work."""


class UnsupportedPythonError(UsageError, ImportError):
    """Python was started with an option that a package below does not bear."""


class NotEnoughMemoryError(CNSError, RuntimeError):
    """The plan needs more memory than the workers have.

    No MemoryError, because such a one does not unpickle once tblib is loaded.
    """


class MemoryPressureWarning(UserWarning):
    """A worker had to write its memory to disk, or paused, for want of memory."""


class NotConvergedWarning(UserWarning):
    """Absorption was not solved to the tolerance; the message says which residual was reached."""


class LowRecallWarning(UserWarning):
    """An approximate graph misses more neighbours than asked for; the message gives the recall that was measured."""


class ApproximateAxesWarning(UserWarning):
    """Principal axes that were found by iteration are far from exact; the message gives their residual."""


class ChoiceWarning(UserWarning):
    """The number of clusters is in doubt; the message says why, and what to do."""
