"""Progress on stderr: nothing for short runs, a line that changes on a terminal, lines now and then elsewhere."""

from __future__ import annotations

import io

import pytest

from planner.cli.terminal import ProgressLine, progress_text
from planner.solvers.result import Progress


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


def moment(seconds: float, *, best: float | None = 2.0, improved: bool = False) -> Progress:
    return Progress(
        seconds=seconds,
        best=best,
        lower_bound=1.5,
        num_bounded=12_345,
        num_evaluated=7,
        improved=improved,
        degrees={"dp": 4, "dp_shard": 4, "tp": 8, "pp": 1},
    )


def test_a_moment_in_one_line() -> None:
    text = progress_text(moment(3))
    assert text == "  3.0 s  best 2.000 s dp4 tp8, bound 1.500 s, gap 25.0%  12.3 K bounded, 7 simulated"
    assert "no plan yet, bound 1.500 s" in progress_text(moment(3, best=None))


def test_short_runs_say_nothing() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    line(moment(0.9, improved=True))
    line.clear()
    assert stream.getvalue() == ""


def test_pipe_gets_a_heartbeat_and_each_new_best() -> None:
    stream = io.StringIO()
    line = ProgressLine(stream)
    for seconds, improved in ((1.0, False), (2.0, False), (3.0, True), (7.9, False), (8.1, False)):
        line(moment(seconds, improved=improved))
    line.clear()
    rows = stream.getvalue().splitlines()
    assert [row[:7] for row in rows] == ["    1.0", "*   3.0", "    8.1"]
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("improved", [False, True])
def test_terminal_gets_one_line_that_changes_and_goes_away(improved: bool) -> None:
    stream = Terminal()
    line = ProgressLine(stream)
    for tenths in range(10, 20):
        line(moment(tenths / 10 + 0.001, improved=improved))
    line.clear()
    assert "\n" not in stream.getvalue() and stream.getvalue().endswith("\r\x1b[K")
