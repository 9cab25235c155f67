"""What people type, as the values that the library takes; all problems are gathered before any is shown."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from hardware.errors import InputError, Problem, quote, suggest
from hardware.fields import Section
from hardware.units import Dimension, parse_quantity
from hardware.yaml_reader import read_yaml
from planner.graph import ModelGraph
from planner.workload import Attention, Optimizer, Precision, Workload

T = TypeVar("T")

MAX_WHOLE = 10**15
"""Largest whole number of an option."""
CHOICES: Mapping[str, type[StrEnum]] = {"precision": Precision, "optimizer": Optimizer, "attention": Attention}
"""Fields of a workload that are one of some words."""
COUNTS = {"global_batch_size": 10**9, "seq_len": 10**9, "gradient_bytes": 4}
"""Fields of a workload that are whole numbers, and the largest."""
TYPICAL_BATCH = 1024


class Problems:
    """Problems of all inputs, one line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, line: str) -> None:
        """Note one."""
        self.lines.append(line)

    def attempt(self, read: Callable[[], T], prefix: str = "") -> T | None:
        """What a function reads, or ``None`` with its problems noted."""
        try:
            return read()
        except ValueError as error:
            self.lines += [prefix + line for line in str(error).splitlines()]
            return None

    def finish(self) -> None:
        """Raise a ``ValueError`` with all of them, if there are any."""
        if self.lines:
            raise ValueError("\n".join(dict.fromkeys(self.lines)))


def parse_whole(option: str, text: str, *, minimum: int = 1, maximum: int = MAX_WHOLE) -> int:
    """A whole number of an option."""
    plain = text.strip().replace("_", "")
    if not plain.removeprefix("-").isdecimal() or not plain.isascii():
        raise ValueError(f"{option}: must be a whole number, got {quote(text)}")
    if not minimum <= int(plain[:30]) <= maximum:
        nearest = minimum if int(plain[:30]) < minimum else maximum
        raise ValueError(f"{option}: must be {minimum} to {maximum}, got {quote(text)}; nearest: {nearest}")
    return int(plain)


def parse_share(option: str, text: str) -> float:
    """A share of an option, as ``3%`` or ``0.03``."""
    try:
        value = float(parse_quantity(text, Dimension.RATIO))
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if not value < 1:
        raise ValueError(f"{option}: must be below 1 (100 %), got {quote(text)}; did you mean {text.strip(' %')}%?")
    return value


def parse_seconds(option: str, text: str) -> float:
    """A time of an option; a bare number is in seconds."""
    unit = "" if text.strip()[-1:].isalpha() else " s"
    try:
        value = float(parse_quantity(text + unit, Dimension.TIME))
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from None
    if value <= 0:
        raise ValueError(f"{option}: must be above 0 s, got {quote(text)}")
    return value


def parse_pairs(option: str, texts: tuple[str, ...], problems: Problems) -> dict[str, str]:
    """``KEY=VALUE`` and ``KEY<=VALUE`` by key."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if key.endswith("<"):
            key, value = key[:-1], f"<={value}"
        key = key.strip().replace("-", "_")
        if not sign or not key or not value.strip():
            problems.add(f"{option} {quote(text)}: must be KEY=VALUE, as tp=8")
        elif key in pairs:
            problems.add(f"{option} {key}: is given twice; write {key}={pairs[key]},{value} to allow both")
        else:
            pairs[key] = value
    return pairs


def check_output(path: str | None, problems: Problems, *, folder: bool = False) -> None:
    """Note why nothing could be written to a path, before any work is done."""
    if path is None:
        return
    target = Path(path)
    try:
        if folder:
            if target.exists() and not target.is_dir():
                problems.add(f"-o {path}: is a file, not a folder")
        elif not path.strip() or target.is_dir():
            problems.add(f"-o {path}: is a folder; name a file in it, as {target / 'plan.json'}")
        elif target.exists() and not target.is_file():
            problems.add(f"-o {path}: is not a regular file")
        elif not target.resolve().parent.is_dir():
            problems.add(f"-o {path}: the folder {target.parent} does not exist")
        elif not os.access(target.resolve().parent, os.W_OK):
            problems.add(f"-o {path}: the folder {target.parent} cannot be written to")
    except (OSError, ValueError) as error:
        problems.add(f"-o {path}: {getattr(error, 'strerror', None) or error}")


def resolve_workload(
    problems: Problems,
    *,
    options: Mapping[str, str | None],
    file: str | None,
    model: ModelGraph | None,
    base: Workload | None = None,
) -> Workload | None:
    """The workload of options, a file, a plan and the model's sequence length: the first that says wins.

    ``None`` where that cannot be said because of problems, all of which are noted.
    """
    before = len(problems.lines)
    values: dict[str, object] = {}
    if base is not None:
        values = {field.name: getattr(base, field.name) for field in fields(Workload)}
    elif model is not None:
        values["seq_len"] = model.seq_len
    if file is not None:
        values |= problems.attempt(lambda: read_workload_file(file)) or {}
    for name, text in options.items():
        if text is not None:
            value = problems.attempt(lambda name=name, text=text: _option(name, text))  # type: ignore[misc]
            if value is not None:
                values[name] = value
    if "global_batch_size" not in values and len(problems.lines) == before:
        problems.add(
            "--global-batch-size is missing: a step's time needs its number of sequences, at least one for each "
            f"data-parallel replica; large models train with about 1,000, as --global-batch-size {TYPICAL_BATCH}"
        )
    if len(problems.lines) > before or "seq_len" not in values:
        return None
    return problems.attempt(lambda: Workload(**values))  # type: ignore[arg-type]  # each read with its field's type


def _option(name: str, text: str) -> object:
    option = "--" + name.replace("_", "-")
    if name in COUNTS:
        return parse_whole(option, text, maximum=COUNTS[name])
    if name in CHOICES:
        return _choice(option, text, CHOICES[name])
    return text


def _choice(option: str, text: str, kind: type[StrEnum]) -> StrEnum:
    names = [member.value for member in kind]
    if text.strip().lower() not in names:
        hint = suggest(text, names).rstrip("?")
        raise ValueError(f"{option}: {quote(text)} is not accepted{hint}; accepted: {', '.join(names)}")
    return kind(text.strip().lower())


def read_workload_file(path: str) -> dict[str, object]:
    """The fields that a workload file gives; an ``InputError`` with every problem of it."""
    section = Section(document=read_yaml(path))
    names = [field.name for field in fields(Workload)]
    if not section.check_keys(names):
        section.finish()
    values: dict[str, object] = {}
    for name in names:
        if name not in section.mapping:
            continue
        if name in COUNTS:
            values[name] = section.count(name, maximum=COUNTS[name])
        elif name == "expert_imbalance":
            values[name] = section.number(name, minimum=1)
        else:
            values[name] = _word(section, name)
    section.finish()
    try:
        # Fields check each other's limits; those not given take values that are always accepted.
        Workload(**{"global_batch_size": 1, "seq_len": 1, **values})  # type: ignore[arg-type]
    except ValueError as error:
        raise InputError([Problem(file=path, message=str(error))]) from None
    return values


def _word(section: Section, name: str) -> object:
    text = section.text(name)
    if text is None or name not in CHOICES:
        return text
    try:
        return _choice(name, text, CHOICES[name])
    except ValueError as error:
        section.report(str(error).removeprefix(f"{name}: "), name)
        return None
