"""Paragraphs, tables and bars, and how they become text without ever being cropped."""

from __future__ import annotations

import io
import textwrap

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

WIDTH = 110
"""Paragraphs are wrapped here [characters]."""
_UNLIMITED = 10_000
"""Console width at which no table is ever squeezed; a narrow terminal wraps lines itself."""
BAR = 20
"""Length of a full bar [characters]."""


def render(*parts: RenderableType, colour: bool) -> str:
    """The parts below one another, with escapes for colours only if asked for."""
    output = io.StringIO()
    console = Console(
        file=output,
        width=_UNLIMITED,
        height=_UNLIMITED,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        markup=False,
        emoji=False,
        highlight=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, (str, Text)))
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def table(*columns: str, left: int = 1) -> Table:
    """A table without boxes; the first columns are text, the others numbers."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for position, name in enumerate(columns):
        made.add_column(name, justify="left" if position < left else "right", no_wrap=True)
    return made


def heading(text: str, note: str = "") -> Text:
    """The line above a table."""
    return Text.assemble((text, "bold"), (f"  {note}" if note else "", "dim"))


def paragraph(text: str, *, indent: str = "", style: str = "") -> Text:
    """Text wrapped at ``WIDTH``, later lines indented."""
    rows = textwrap.wrap(text, WIDTH, subsequent_indent=indent or "  ", break_on_hyphens=False, break_long_words=False)
    first = text[: len(text) - len(text.lstrip())]
    rows = [first + rows[0].lstrip(), *rows[1:]] if rows else [""]
    return Text("\n".join(rows), style=style)


def bar(share: float, *, length: int = BAR, style: str = "cyan") -> Text:
    """A bar that fills with the share, 0 to 1; beyond 1 it is full and ends in ``>``."""
    filled = round(min(max(share, 0.0), 1.0) * length)
    end = ">" if share > 1 else ""
    return Text.assemble(("█" * filled, "red" if share > 1 else style), ("░" * (length - filled), "dim"), (end, "red"))


def shares(values: list[float], total: float) -> list[str]:
    """Percentages with one digit that add up to 100.0: the largest remainders are rounded up."""
    if total <= 0:
        return ["0.0 %"] * len(values)
    exact = [value / total * 1000 for value in values]
    floors = [int(value // 1) for value in exact]
    missing = round(sum(exact)) - sum(floors)
    order = sorted(range(len(values)), key=lambda index: (floors[index] - exact[index], index))
    for index in order[:missing]:
        floors[index] += 1
    return [f"{value / 10:.1f} %" for value in floors]
