"""What reaches the terminal: the result on stdout, progress and hints on stderr."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from hardware.units import format_count, format_time

if TYPE_CHECKING:  # not needed to run, and slow to import for --help
    from planner.solvers.result import Progress

QUIET_SECONDS = 1.0
"""Shorter runs show no progress."""
HEARTBEAT_SECONDS = 5.0
"""Between lines where stderr is no terminal."""
REFRESH_SECONDS = 0.1
"""Between updates of the line on a terminal."""


def wants_colour(stream: TextIO) -> bool:
    """Whether escapes may be written to a stream."""
    return stream.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def emit(text: str) -> None:
    """Write the result to stdout."""
    _write(sys.stdout, text if text.endswith("\n") else text + "\n")


def _write(stream: TextIO, text: str) -> None:
    """Write to a stream; a reader that has gone away is no error."""
    try:
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="replace")  # where the encoding lacks a sign
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # What is left in the stream's buffer goes nowhere, so that the flush at the exit says nothing either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def emit_json(values: Mapping[str, object]) -> None:
    """Write one JSON object to stdout."""
    emit(json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False))


def hint(text: str, *, quiet: bool = False) -> None:
    """Write a line for people to stderr."""
    if not quiet:
        _write(sys.stderr, text + "\n")


class Interruption:
    """Ctrl-C as a wish: the first one waits for a moment at which the search can stop, the second one acts at once."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        # Python runs handlers in the main thread only, and lets no other thread set one.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _note(self, *_: object) -> None:
        self.wanted = True
        self._restore()

    def _restore(self) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None

    def check(self, progress: Progress) -> None:
        """Raise ``KeyboardInterrupt`` if it is wanted and nothing is half done."""
        if self.wanted and not progress.improved:
            raise KeyboardInterrupt


class ProgressLine:
    """Shows a search on stderr: one line that changes on a terminal, else lines now and then."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty()
        self._shown = -math.inf
        self._drawn = False

    def __call__(self, progress: Progress) -> None:
        """Show a moment, unless it is too early or too soon."""
        if progress.seconds < QUIET_SECONDS:
            return
        pause = REFRESH_SECONDS if self._live else HEARTBEAT_SECONDS
        if progress.seconds - self._shown < pause and not (progress.improved and not self._live):
            return
        self._shown = progress.seconds
        if self._live:
            _write(self._stream, f"\r\x1b[K{progress_text(progress)}")
            self._drawn = True
        else:
            _write(self._stream, ("* " if progress.improved else "  ") + progress_text(progress) + "\n")

    def clear(self) -> None:
        """Remove the line."""
        if self._drawn:
            _write(self._stream, "\r\x1b[K")
            self._drawn = False


def progress_text(progress: Progress) -> str:
    """A moment of a search in one line."""
    degrees = " ".join(
        f"{name}{value}"
        for name, value in progress.degrees.items()
        if value > 1 and name not in ("dp_shard", "dp_replicate")
    )
    bound = format_time(progress.lower_bound) if 0 < progress.lower_bound < math.inf else "-"
    parts = [f"{progress.seconds:5.1f} s"]
    if progress.best is None:
        parts.append(f"no plan yet, bound {bound}")
    else:
        gap = 1 - min(progress.lower_bound, progress.best) / progress.best
        parts.append(f"best {format_time(progress.best)} {degrees or '1 device'}, bound {bound}, gap {gap:.1%}")
    parts.append(f"{format_count(progress.num_bounded)} bounded, {format_count(progress.num_evaluated)} simulated")
    return "  ".join(parts)
