import errno
import io
import re
import sys
import time

import pytest
from rich.console import Console

from cns_dask import progress as module
from cns_dask.progress import (
    BELIEF_SECONDS,
    BarProgress,
    ForgivingStream,
    LineProgress,
    Pace,
    PartProgress,
    visible_progress,
)


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


def test_what_is_left_follows_the_stages_that_have_ended():
    pace = Pace()
    pace.expect({"points": 10.0, "neighbors": 20.0, "evaluate": 70.0})
    assert pace.now(0, 0) is None  # nothing runs
    pace.begin("points")
    assert pace.now(0, 0) == (0.0, 100.0)
    share, left = pace.now(0, 4.0)
    assert (share, left) == (0.04, 96.0)  # the clock goes on, though no piece is done
    pace.end(30.0)  # it took three times as long as was expected
    pace.begin("neighbors")
    slower = (30 + BELIEF_SECONDS) / (10 + BELIEF_SECONDS)
    assert pace.now(0, 0)[1] == pytest.approx(slower * 90)
    assert pace.now(0.5, 60)[1] == pytest.approx(60 + slower * 70)  # its own pieces count more
    pace.end(120)
    pace.begin("evaluate")
    assert pace.now(1.0, 200)[1] == 0
    pace.end(200)
    assert pace.now(0, 0) is None


def test_stages_that_are_not_run_again_are_not_waited_for():
    pace = Pace()
    pace.expect({"points": 10.0, "neighbors": 20.0, "evaluate": 70.0})
    pace.begin("write")  # nothing was expected of it
    assert pace.now(0.5, 1) is None
    pace.end(1)
    pace.begin("evaluate")
    assert pace.now(0, 0) == (0.0, 70.0)


def test_the_share_never_falls():
    pace = Pace()
    pace.expect({"points": 1.0, "neighbors": 1.0})
    pace.begin("points")
    shares = [pace.now(done, seconds)[0] for done, seconds in [(0, 0.9), (0.1, 5), (0.2, 8), (0.9, 10)]]
    assert shares == sorted(shares)


def test_lines_and_bars_tell_how_long_a_run_will_take():
    lines, text = [], io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    for progress in (LineProgress(lines.append), BarProgress(console)):
        progress.expect({"points": 60.0, "neighbors": 540.0})
        with progress.stage("points", 2) as advance:
            advance()
    assert lines[0] == "points: 0 of 2 (0% of all, about 10 min left)"
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.getvalue())
    assert re.search(r"all .* 0%, about 10 min left", shown)
    assert re.search(r"points .* 1/2 0:00:00", shown)
    assert "all" not in shown.splitlines()[-1]  # only the line of the stage stays
