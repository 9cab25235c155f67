"""Reads a document key by key and gathers every problem instead of stopping at the first."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from hardware.errors import InputError, Path, Problem, quote, suggest
from hardware.units import Dimension, parse_quantity
from hardware.yaml_reader import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One value of a document, mostly a mapping, and its place.

    Each reading method returns None where the value is missing or wrong, and has then reported why.
    """

    document: Document
    """The document."""
    path: Path = ()
    """Where the value stands."""
    problems: list[Problem] = field(default_factory=list)
    """Problems so far, shared by all sections of the document."""

    @property
    def content(self) -> object:
        """The value itself."""
        value = self.document.content
        for part in self.path:
            value = value[part]  # type: ignore[index]  # The path was walked when the section was made.
        return value

    @property
    def mapping(self) -> dict[str, object]:
        """The value if it is a mapping, else an empty one."""
        content = self.content
        return content if isinstance(content, dict) else {}

    def report(self, message: str, *keys: str | int) -> None:
        """Note a problem with this section, or with what it has below ``keys``."""
        path = (*self.path, *keys)
        line = self.document.line(path)
        self.problems.append(Problem(file=self.document.file, line=line, path=path, message=message))

    def finish(self) -> None:
        """Raise an InputError with all problems in the order of the file, if there are any."""
        if self.problems:
            raise InputError(sorted(self.problems, key=lambda problem: problem.line or 0))

    def check_keys(self, known: Sequence[str]) -> bool:
        """Report each unknown key; False if the section is not a mapping at all."""
        if not isinstance(self.content, dict):
            self.report(f"must be a mapping with keys {', '.join(known)}, got {quote(self.content)}")
            return False
        for key in self.mapping:
            if key not in known:
                hint = suggest(str(key), known) or f"; known: {', '.join(known)}"
                self.report(f"unknown key {quote(key)}{hint}", key)
        return True

    def has(self, key: str) -> bool:
        """Whether the key is given, and not as null."""
        return self.mapping.get(key) is not None

    def _get(self, key: str, required: bool) -> object:
        value = self.mapping.get(key)
        if value is None and key in self.mapping:
            self.report("has no value", key)
        elif value is None and required:
            self.report(f"the key {key!r} is missing")
        return value

    def section(self, key: str, *, required: bool = True) -> "Section | None":
        """The section below a key."""
        if self._get(key, required) is None:
            return None
        return Section(document=self.document, path=(*self.path, key), problems=self.problems)

    def items(self, key: str, *, required: bool = True) -> list["Section"]:
        """The sections of a list that is not empty."""
        value = self._get(key, required)
        if value is None:
            return []
        if not isinstance(value, list) or not value:
            self.report(f"must be a list with at least one item, got {quote(value) if value else 'an empty one'}", key)
            return []
        paths = [(*self.path, key, position) for position in range(len(value))]
        return [Section(document=self.document, path=path, problems=self.problems) for path in paths]

    def text(self, key: str, *, required: bool = True) -> str | None:
        """Text that is not empty."""
        value = self._get(key, required)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip():
            self.report(f"must be text, got {quote(value)}", key)
            return None
        return value

    def count(self, key: str, *, maximum: int, minimum: int = 1, required: bool = True) -> int | None:
        """A whole number in the range; ``true``, ``8.0`` and ``1e3`` are not whole numbers."""
        value = self._get(key, required)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            hint = f", did you mean {int(value)}?" if isinstance(value, float) and value.is_integer() else ""
            self.report(f"must be a whole number in digits, got {quote(value)}{hint}", key)
            return None
        if not minimum <= value <= maximum:
            nearest = min(max(value, minimum), maximum)
            self.report(f"must be {minimum} to {maximum}, got {quote(value)}; nearest: {nearest}", key)
            return None
        return value

    def number(self, key: str, *, minimum: float = -math.inf, required: bool = True) -> float | None:
        """A finite number without a unit, at least ``minimum``."""
        value = self._get(key, required)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e300 or value != value:
            self.report(f"must be a number, got {quote(value)}", key)
            return None
        if value < minimum:
            self.report(f"must be at least {minimum:g}, got {quote(value)}; nearest: {minimum:g}", key)
            return None
        return float(value)

    def quantity(self, key: str, dimension: Dimension, *, required: bool = True, positive: bool = True) -> float | None:
        """A quantity with its unit, in base units (bytes as int)."""
        value = self._get(key, required)
        if value is None:
            return None
        try:
            parsed = parse_quantity(value, dimension)
        except ValueError as error:
            self.report(str(error), key)
            return None
        if positive and parsed == 0:
            self.report(f"must be above 0, got {quote(value)}", key)
            return None
        return parsed
