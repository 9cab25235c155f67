"""Plan files: written whole or not at all, read back exactly, every fault with its place."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hardware import Cluster, cluster_from_json
from hardware.errors import InputError, Problem, quote
from hardware.fields import Section
from hardware.input_file import read_text
from hardware.json_reader import parse_json
from hardware.yaml_reader import Document
from planner.graph import ModelGraph
from planner.plan import FORMAT_VERSION, Plan, Prediction, Proof
from planner.readers import parse_graph
from planner.readers.json_lines import json_lines
from planner.strategy import Strategy
from planner.workload import Workload

MAX_FILE_SIZE = 32_000_000
"""Largest plan file that is read [bytes]: four times the largest model graph."""

T = TypeVar("T")


def plan_text(plan: Plan) -> str:
    """The text of a plan's file; equal plans have equal texts, byte for byte."""
    return json.dumps(plan.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_plan(plan: Plan, path: str | Path) -> None:
    """Write a plan whole or not at all.

    Raises
    ------
    OSError
        If it cannot be written; what stood there before is left as it was.
    """
    write_files({Path(path): plan_text(plan)})


def write_files(texts: Mapping[Path, str]) -> None:
    """Write files by way of temporary ones beside them, which take their names once all of them are on the disk.

    Raises
    ------
    OSError
        If a folder is missing, full or closed to us, or a path is no regular file. No file is left half written.
    """
    waiting: list[tuple[Path, Path]] = []
    try:
        for path, text in texts.items():
            # A link keeps pointing to its file, which is replaced; devices and pipes are never replaced.
            final = path.resolve()
            if final.exists() and not final.is_file():
                raise OSError(f"{path}: not a regular file")
            temporary = final.with_name(f".{final.name[:100]}.{secrets.token_hex(6)}.tmp")
            with temporary.open("x", encoding="utf-8", newline="") as file:
                waiting.append((temporary, final))
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        for temporary, final in waiting:
            temporary.replace(final)
    finally:
        for temporary, _ in waiting:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def read_plan(path: str | Path) -> Plan:
    """The plan of a file.

    Raises
    ------
    InputError
        If it cannot be read, is of an unknown major format, or with every fault: line, key, value, what is accepted.
    """
    return parse_plan(read_text(path, max_size=MAX_FILE_SIZE), str(path))


def parse_plan(text: str, file: str) -> Plan:
    """The plan that ``plan_text`` wrote; keys that this version does not know are passed over."""
    try:
        return _read(Section(document=parse_json(text, file)))
    except InputError as error:
        raise InputError(_with_lines(error.problems, text)) from None


def _with_lines(problems: tuple[Problem, ...], text: str) -> list[Problem]:
    """The problems in the order of the file, each with its line."""
    if not any(problem.path for problem in problems):
        return list(problems)
    lines = Document(file="", content=None, lines=json_lines(text))
    located = [
        Problem(file=problem.file, line=lines.line(problem.path), path=problem.path, message=problem.message)
        for problem in problems
    ]
    return sorted(located, key=lambda problem: problem.line or 0)


def _read(top: Section) -> Plan:
    if not isinstance(top.content, dict):
        top.report(f"a plan is a mapping, got {quote(top.content)}")
        top.finish()
    _check_version(top)
    top.finish()
    target = top.text("target")
    headroom = top.number("headroom", minimum=0)
    strategy = _record(top, "strategy", Strategy)
    prediction = _record(top, "prediction", Prediction)
    proof = None if top.content["proof"] is None else _record(top, "proof", Proof)  # type: ignore[index]
    provenance = _validated(top, "provenance", dict[str, str])
    workload = _record(top, "workload", Workload)
    cluster = _cluster(top)
    model = _model(top)
    top.finish()
    assert target is not None and headroom is not None and strategy is not None and prediction is not None
    assert provenance is not None and workload is not None and cluster is not None and model is not None
    plan = Plan(
        model=model,
        cluster=cluster,
        workload=workload,
        target=target,
        headroom=headroom,
        strategy=strategy,
        prediction=prediction,
        proof=proof,
        provenance=provenance,
    )
    _check_derived(top, plan)
    top.finish()
    return plan


_KEYS = ("target", "headroom", "strategy", "mesh", "stages", "schedule", "prediction", "proof", "provenance")
_PARTS = ("workload", "cluster", "model")


def _check_version(top: Section) -> None:
    """Another major version may mean other things by the same keys, so nothing else is read."""
    version = top.text("format_version")
    if version is None:
        return
    match = re.fullmatch(r"([0-9]{1,6})\.([0-9]{1,6})", version)
    ours = int(FORMAT_VERSION.split(".")[0])
    if match is None:
        top.report(f"must be a version such as '{FORMAT_VERSION}', got {quote(version)}", "format_version")
    elif int(match[1]) != ours:
        newer = int(match[1]) > ours
        how = "upgrade the planner (pip install --upgrade parallelism-planner)" if newer else "search again"
        top.report(
            f"format {quote(version)} is not known, this planner reads {ours}.x: {how} to use it", "format_version"
        )
    else:
        for key in (*_KEYS, *_PARTS, "cost_model_version"):
            if key not in top.mapping:
                top.report(f"the key {key!r} is missing")


def _record(top: Section, key: str, record: type[T]) -> T | None:
    """A record whose fields are all in the file, defaults or not."""
    section = Section(document=top.document, path=(*top.path, key), problems=top.problems)
    if isinstance(section.content, dict):
        missing = [name for name in _names(record) if name not in section.mapping and not _is_older(top)]
        for name in missing:
            section.report(f"the key {name!r} is missing")
        if missing:
            return None
    return _validated(top, key, record)


def _is_older(top: Section) -> bool:
    """Whether the file is of an earlier minor format: fields that it could not know take their defaults."""
    return int(str(top.mapping["format_version"]).split(".")[1]) < int(FORMAT_VERSION.split(".")[1])


def _names(record: type[object]) -> tuple[str, ...]:
    return tuple(getattr(record, "__slots__", ()))


def _validated(top: Section, key: str, kind: type[T]) -> T | None:
    """A value checked against a type, numbers as strictly as JSON writes them."""
    try:
        value: T = TypeAdapter(kind).validate_json(json.dumps(top.mapping[key]), strict=True)
    except ValidationError as error:
        for fault in error.errors(include_url=False):
            top.report(_message(fault), key, *_path(fault["loc"], top.mapping[key]))
        return None
    return value


def _message(fault: Any) -> str:
    text = str(fault["msg"]).removeprefix("Value error, ")
    text = text[0].lower() + text[1:]
    if fault["type"] in ("value_error", "missing"):
        return text
    return f"{text}, got {quote(fault['input'])}"


def _path(location: tuple[str | int, ...], content: object) -> tuple[str | int, ...]:
    """The part of a location that stands in the file; the checker adds names of types."""
    path: list[str | int] = []
    for part in location:
        inside = part in content if isinstance(content, dict) else isinstance(content, list) and isinstance(part, int)
        if not inside:
            break
        content = content[part]  # type: ignore[index]  # a key of a mapping, or a position of a list
        path.append(part)
    return tuple(path)


def _cluster(top: Section) -> Cluster | None:
    content = _without_digest(top, "cluster")
    try:
        return None if content is None else cluster_from_json(Document(file=top.document.file, content=content))
    except InputError as error:
        _take(top, "cluster", error)
        return None


def _model(top: Section) -> ModelGraph | None:
    content = _without_digest(top, "model")
    try:
        return None if content is None else parse_graph(Document(file=top.document.file, content=content), "model")
    except InputError as error:
        _take(top, "model", error)
        return None


def _without_digest(top: Section, key: str) -> dict[str, object] | None:
    content = top.mapping[key]
    if not isinstance(content, dict):
        top.report(f"must be a mapping, got {quote(content)}", key)
        return None
    return {name: value for name, value in content.items() if name != "digest"}


def _take(top: Section, key: str, error: InputError) -> None:
    for problem in error.problems:
        top.report(problem.message, key, *problem.path)


def _check_derived(top: Section, plan: Plan) -> None:
    """What a file repeats for its readers must agree with what it follows from."""
    try:
        ours = plan.to_json()
    except ValueError as error:  # stages that do not add up to the model
        top.report(str(error), "strategy")
        return
    if len(plan.prediction.memory_by_stage) != plan.strategy.pp:
        top.report(f"must have pp = {plan.strategy.pp} entries", "prediction", "memory_by_stage")
    if plan.strategy.world_size > plan.cluster.num_devices:
        top.report(
            f"the strategy uses {plan.strategy.world_size} devices, the cluster has {plan.cluster.num_devices}",
            "strategy",
        )
    for key in ("mesh", "stages", "schedule"):
        _compare(top, (key,), top.mapping[key], ours[key], "the strategy")
    _compare(top, ("prediction",), top.mapping["prediction"], ours["prediction"], "the other figures", derived=True)
    for key in _PARTS:
        theirs, part = top.mapping[key], ours[key]
        assert isinstance(theirs, dict) and isinstance(part, dict)
        if theirs.get("digest") != part["digest"]:
            top.report(
                f"does not belong to this {key}: {quote(theirs.get('digest'))}, which was changed since; search again",
                key,
                "digest",
            )


_DERIVED = ("fits", "peak_memory", "total", "binding")
"""Figures of a prediction that follow from others."""


def _compare(
    top: Section, path: tuple[str | int, ...], theirs: object, ours: object, cause: str, *, derived: bool = False
) -> None:
    """Report where a value of the file differs from the one that follows from the rest of it."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            _compare(top, (*path, key), theirs.get(key), value, cause, derived=derived)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for position, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            _compare(top, (*path, position), their, our, cause, derived=derived)
    elif theirs != ours and (not derived or path[-1] in _DERIVED):
        top.report(f"is {quote(theirs)}, but from {cause} follows {quote(ours)}", *path)
