"""YAML 1.2 as plain values, with the line of each."""

import re
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path as FilePath
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
    StreamEndEvent,
    StreamStartEvent,
)

from hardware.errors import InputError, Path, Problem, printable, quote
from hardware.input_file import read_text

MAX_SIZE = 100_000
"""Largest YAML file [bytes]; the parser takes up to 2 s for it, and some 20 times what a cluster.yaml needs."""
MAX_DEPTH = 50
"""Deepest nesting that is read."""
MAX_DIGITS = 400
"""Longest number that is read [characters]; a longer one stays text, and its reader refuses it."""

_INT = re.compile(r"[-+]?[0-9]+")
_BASED_INT = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """The content of an input file."""

    file: str
    """Name of the file as the user gave it."""
    content: object
    """Dicts with text keys, lists, and scalars."""
    lines: dict[Path, int] = field(default_factory=dict)
    """Line of each key path, from 1; empty where lines are not known."""

    def line(self, path: Path) -> int | None:
        """Line of a key path, or of its nearest parent that has one."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path)


def read_yaml(path: str | FilePath) -> Document:
    """The content of a YAML 1.2 file; an InputError with all problems where it cannot be used."""
    return parse_yaml(read_text(path, max_size=MAX_SIZE), str(path))


def read_package_yaml(package: str, name: str) -> dict[str, Any]:
    """The content of a YAML file that a package carries, read afresh; ``name`` is relative to the package."""
    document = parse_yaml((files(package) / name).read_text(encoding="utf-8"), f"{package}/{name}")
    assert isinstance(document.content, dict), f"{package}/{name} is not a mapping"
    return document.content


def parse_yaml(text: str, file: str) -> Document:
    """The content of YAML 1.2 text.

    Parameters
    ----------
    text
        One document; plain scalars follow the core schema, so ``1e12`` is a float and ``no`` is text.
    file
        Name for messages.

    Raises
    ------
    InputError
        For a syntax error, a repeated or structured key, an anchor, alias or tag, a second document, nesting beyond
        ``MAX_DEPTH``, or no content.
    """
    builder = _Builder(file)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if not builder.take(event):
                break
    except YAMLError as error:
        builder.report(_error_line(error, text), (), f"not YAML: {_error_text(error)}")
    except (ValueError, RecursionError) as error:
        builder.report(None, (), f"not YAML: {printable(str(error))}")
    if not builder.problems and builder.content is None:
        builder.report(None, (), "the file has no content")
    if builder.problems:
        raise InputError(builder.problems)
    return Document(file=file, content=builder.content, lines=builder.lines)


def _error_line(error: YAMLError, text: str) -> int | None:
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    if mark is not None:
        return int(mark.line) + 1
    position = getattr(error, "position", None)
    return text.count("\n", 0, position) + 1 if isinstance(position, int) else None


def _error_text(error: YAMLError) -> str:
    text = error.problem if isinstance(error, MarkedYAMLError) else getattr(error, "reason", None)
    return printable(str(text or type(error).__name__))


def parse_scalar(text: str) -> object:
    """A plain scalar by the core schema of YAML 1.2: null, bool, int, float or text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > MAX_DIGITS:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _BASED_INT.fullmatch(text):
        return int(text, 0)
    return float(text) if _FLOAT.fullmatch(text) else text


class _Builder:
    """Turns parser events into values without recursion, so that depth is ours to limit."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self.content: object = None
        self.lines: dict[Path, int] = {}
        self._stack: list[tuple[dict[str, Any] | list[Any], Path]] = []
        self._key: list[str | None] = []
        self._num_documents = 0

    def report(self, line: int | None, path: Path, message: str) -> None:
        self.problems.append(Problem(file=self.file, line=line, path=path, message=message))

    def take(self, event: Any) -> bool:
        """Use one event; False if there is no sense in going on."""
        line = int(event.start_mark.line) + 1
        match event:
            case StreamStartEvent() | StreamEndEvent():
                return True
            case DocumentStartEvent():
                return self._start_document(line)
            case MappingStartEvent() | SequenceStartEvent():
                return self._open({} if isinstance(event, MappingStartEvent) else [], event, line)
            case MappingEndEvent() | SequenceEndEvent():
                self._stack.pop()
                self._key.pop()
            case ScalarEvent() | AliasEvent():
                self._scalar(event, line)
        return True

    def _start_document(self, line: int) -> bool:
        self._num_documents += 1
        if self._num_documents > 1:
            self.report(line, (), "a second document: the file must hold one")
        return self._num_documents == 1

    def _open(self, value: dict[str, Any] | list[Any], event: Any, line: int) -> bool:
        if self._awaits_key():
            self.report(line, self._stack[-1][1], "a key must be text, not a list or mapping")
            return False
        if len(self._stack) >= MAX_DEPTH:
            self.report(line, (), f"nested deeper than {MAX_DEPTH} levels")
            return False
        path = self._place(value, line)
        self._check_plain(event, path, line)
        self._stack.append((value, path))
        self._key.append(None)
        return True

    def _scalar(self, event: Any, line: int) -> None:
        if isinstance(event, AliasEvent):
            self.report(line, self._here(), "aliases (*name) are not accepted: write the value out")
        text = getattr(event, "value", "")
        if self._awaits_key():
            self._start_entry(text, line)
            return
        plain = isinstance(event, ScalarEvent) and event.style is None
        path = self._place(parse_scalar(text) if plain else text, line)
        if isinstance(event, ScalarEvent):
            self._check_plain(event, path, line)

    def _awaits_key(self) -> bool:
        return bool(self._stack) and isinstance(self._stack[-1][0], dict) and self._key[-1] is None

    def _start_entry(self, key: str, line: int) -> None:
        container, path = self._stack[-1]
        if key in container:
            first = self.lines.get((*path, key))
            self.report(line, (*path, key), f"the key {quote(key)} is repeated (first on line {first})")
        else:
            self.lines[(*path, key)] = line
        self._key[-1] = key

    def _here(self) -> Path:
        """Path of the value that comes next."""
        if not self._stack:
            return ()
        container, path = self._stack[-1]
        if isinstance(container, list):
            return (*path, len(container))
        return path if self._key[-1] is None else (*path, self._key[-1])

    def _place(self, value: object, line: int) -> Path:
        """Put a value where it belongs and say where that is."""
        path = self._here()
        self.lines.setdefault(path, line)
        if not self._stack:
            self.content = value
            return path
        container = self._stack[-1][0]
        if isinstance(container, list):
            container.append(value)
        else:
            container[str(self._key[-1])] = value
            self._key[-1] = None
        return path

    def _check_plain(self, event: Any, path: Path, line: int) -> None:
        if event.anchor is not None:
            self.report(line, path, "anchors (&name) are not accepted")
        if event.tag is not None:
            self.report(line, path, "tags (!name) are not accepted")
