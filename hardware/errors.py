"""Faults of input files: where each stands, what is accepted, all of them at once."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Path = tuple[str | int, ...]
"""Keys and list positions from the top of a file down to one value."""

MAX_QUOTED = 60
"""Longest piece of input that a message repeats [characters]."""
MAX_SHOWN = 100
"""Most problems that one message lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One fault of an input."""

    file: str
    """Name of the file as the user gave it, or the argument itself where there is no file."""
    line: int | None = None
    """Line in the file, from 1; None where there are no lines."""
    path: Path = ()
    """Key path of the value at fault; empty for the whole file."""
    message: str
    """What is wrong and what is accepted."""

    def __str__(self) -> str:
        where = f"{printable(self.file)}:" if self.line is None else f"{printable(self.file)}:{self.line}:"
        return f"{where} {format_path(self.path)}: {self.message}" if self.path else f"{where} {self.message}"


class InputError(ValueError):
    """An input cannot be used; carries every problem found in it."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        assert self.problems, "an InputError needs a problem"
        super().__init__(self.problems)

    def __str__(self) -> str:
        lines = [str(problem) for problem in self.problems[:MAX_SHOWN]]
        left_out = len(self.problems) - len(lines)
        return "\n".join([*lines, f"and {left_out} more problems"] if left_out else lines)


def format_path(path: Path) -> str:
    """A key path as people write it, such as ``nodes[0].nics``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f"{'.' if text else ''}{printable(part)}"
    return text


def printable(text: str, limit: int = 4 * MAX_QUOTED) -> str:
    """The text cut to ``limit`` characters, control characters escaped so that none reaches a terminal."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def quote(value: object) -> str:
    """A value of the input as a message repeats it: short, on one line, quoted if text."""
    if isinstance(value, str):
        return f"'{printable(value, MAX_QUOTED)}'"
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if abs(value) < 10**MAX_QUOTED else "a number of over 60 digits"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return "nothing" if value is None else printable(str(value), MAX_QUOTED)


def suggest(word: str, known: Sequence[str]) -> str:
    """``, did you mean 'x'?`` for the known words most like ``word``, or nothing."""
    folded = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower()[:MAX_QUOTED], folded, n=2, cutoff=0.6)
    return f", did you mean {' or '.join(repr(folded[name]) for name in close)}?" if close else ""
