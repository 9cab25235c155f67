"""Values of the graph JSON."""

from enum import StrEnum
from typing import TypeVar

from hardware.errors import MAX_QUOTED, quote, suggest
from hardware.fields import Section
from hardware.units import Dimension

C = TypeVar("C", bound=StrEnum)

UNIT = {Dimension.TIME: "seconds", Dimension.BYTES: "bytes"}
"""Base units of the plain numbers that we write."""


def is_name(text: str) -> bool:
    """Whether text can name something: printable, not blank, not long."""
    return bool(text.strip()) and text.isprintable() and len(text) <= MAX_QUOTED


def word(section: Section, key: str, *, default: str | None = None) -> str | None:
    """A name; ``default`` where the key is absent."""
    if default is not None and not section.has(key):
        return default
    value = section.text(key)
    if value is None:
        return None
    if not is_name(value):
        section.report(f"must be printable text of 1 to {MAX_QUOTED} characters, got {quote(value)}", key)
        return None
    return value


def choice(section: Section, key: str, known: type[C], *, default: C | None = None) -> C | None:
    """One of the choices; ``default`` where the key is absent."""
    if default is not None and not section.has(key):
        return default
    value = section.text(key)
    if value is None:
        return None
    names = [its.value for its in known]
    if value not in names:
        hint = suggest(value, names) or f"; known: {', '.join(names)}"
        section.report(f"unknown {key} {quote(value)}{hint}", key)
        return None
    return known(value)


def texts(section: Section, key: str, *, required: bool = False) -> tuple[str, ...]:
    """A list of text, which may be empty."""
    if not required and not section.has(key):
        return ()
    value = section.mapping.get(key)
    if key not in section.mapping:
        section.report(f"the key {key!r} is missing")
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        section.report(f"must be a list of text, got {quote(value)}", key)
        return ()
    return tuple(value)


def flag(section: Section, key: str, *, default: bool) -> bool:
    """True or false."""
    value = section.mapping.get(key, default)
    if not isinstance(value, bool):
        section.report(f"must be true or false, got {quote(value)}", key)
        return default
    return value


def quantity(section: Section, key: str, dimension: Dimension, *, maximum: float) -> float | int | None:
    """A plain number in base units, as our JSON has it, or text with a unit, as people write it."""
    value = section.mapping.get(key)
    parsed: float | int | None
    if isinstance(value, str) or value is None:
        parsed = section.quantity(key, dimension, positive=False)
    elif dimension is Dimension.BYTES:
        return section.count(key, minimum=0, maximum=int(maximum))
    else:
        parsed = section.number(key, minimum=0)
    if parsed is not None and parsed > maximum:
        section.report(f"must be at most {maximum:g} {UNIT[dimension]}, got {quote(value)}", key)
        return None
    return parsed
