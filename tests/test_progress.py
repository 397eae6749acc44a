import errno
import io
import re
import sys
import time

import pytest
from rich.console import Console

from cns_dask import progress as module
from cns_dask.progress import BarProgress, ForgivingStream, LineProgress, PartProgress, visible_progress


def test_lines_tell_counts_and_times(monkeypatch):
    lines = []
    progress = LineProgress(lines.append)
    monkeypatch.setattr(module, "LINE_SECONDS", 0.1)
    with progress.stage("neighbors", 3) as advance:
        advance()
        advance()
        while len(lines) < 3:  # also while a single piece takes long
            time.sleep(0.01)
    assert lines[0] == "neighbors: 0 of 3"
    for line in lines[1:-1]:
        assert re.fullmatch(r"neighbors: 2 of 3, \d+ s so far", line)
    assert re.fullmatch(r"neighbors: 2 of 3, \d+\.\d s", lines[-1])
    assert progress.seconds["neighbors"] >= 0


def test_a_part_of_a_run_is_told_with_a_word_in_front():
    lines = []
    whole = LineProgress(lines.append)
    part = PartProgress(whole, "second")
    with part.stage("neighbors", 1) as advance:
        advance()
    part.resumed("graph")
    part.tell("so far")
    assert lines[0] == "second neighbors: 0 of 1"
    assert lines[1].startswith("second neighbors: 1 of 1")
    assert lines[2:] == ["second graph: all done by an earlier run", "so far"]
    assert list(part.seconds) == list(whole.seconds) == ["second neighbors"]


def test_bars_tell_counts_and_times_on_a_terminal():
    text = io.StringIO()
    progress = BarProgress(Console(file=text, force_terminal=True, width=80))
    with progress.stage("cells", 2) as advance:
        advance()
        advance()
    with progress.stage("columns", 1) as advance:
        advance()
    shown = text.getvalue()
    assert re.search(r"cells.*2/2.*0:00:00", shown.replace("\n", " "))
    assert "cells" not in shown[shown.index("columns") :]  # a finished stage is not drawn again


class Full(io.StringIO):
    """A stream on a full disk."""

    def write(self, *_):
        raise OSError(errno.ENOSPC, "No space left on device")

    flush = write


class FullTerminal(Full):
    def isatty(self):
        return True


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [Full, FullTerminal, closed, lambda: None])
def test_progress_that_cannot_be_written_is_dropped(stream, monkeypatch):
    monkeypatch.setattr(sys, "stderr", stream())
    progress = visible_progress()
    progress.tell("began")
    with progress.stage("cells", 2) as advance:
        advance()
    assert "cells" in progress.seconds


def test_a_forgiving_stream_is_as_good_as_the_one_behind_it():
    behind = io.StringIO()
    stream = ForgivingStream(behind)
    assert stream.write("a line") == 6
    assert (stream.getvalue(), stream.isatty()) == ("a line", False)
