"""Standard error that never ends a run."""

from contextlib import suppress
from typing import Any


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
