"""``planner show``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from hardware import device_names, load_device, node_names, read_cluster
from hardware.errors import InputError, Problem, quote, suggest
from hardware.input_file import read_text
from hardware.json_reader import parse_json
from planner.cli.inputs import parse_whole
from planner.cli.status import OK
from planner.cli.terminal import emit, emit_json, wants_colour
from planner.plan_file import MAX_FILE_SIZE, read_plan
from planner.readers import model_names, read_model
from planner.report.show import cluster_json, cluster_text, device_text, model_json, model_text
from planner.report.text import plan_text


def run_show(thing: str, *, seq_len: str | None, as_json: bool) -> int:
    """Print a model, cluster, device or plan."""
    colour = wants_colour(sys.stdout)
    length = None if seq_len is None else parse_whole("--seq-len", seq_len, maximum=10**9)
    kind = kind_of(thing)
    if kind == "catalog":
        names = {"models": list(model_names()), "nodes": list(node_names()), "devices": list(device_names())}
        lines = [f"{title + ':':<9}{', '.join(values)}" for title, values in names.items()]
        _print(dict(names), "\n".join(lines), as_json)
    elif kind == "device":
        device = load_device(thing)
        _print(device.to_json(), device_text(device, colour=colour), as_json)
    elif kind == "cluster":
        cluster = read_cluster(thing)
        _print(cluster_json(cluster), cluster_text(cluster, colour=colour), as_json)
    elif kind == "plan":
        plan = read_plan(thing)
        _print(plan.to_json(), plan_text(plan, colour=colour), as_json)
    else:
        model = read_model(thing)
        tokens = length or model.seq_len
        _print(model_json(model, tokens), model_text(model, tokens, colour=colour), as_json)
    return OK


def _print(values: dict[str, object], text: str, as_json: bool) -> None:
    if as_json:
        emit_json(values)
    else:
        emit(text)


def kind_of(thing: str) -> str:
    """``catalog``, ``model``, ``cluster``, ``device`` or ``plan``: by name, then by what a file holds."""
    if thing == "catalog":
        return "catalog"
    node = thing.strip().split("*")[0].strip()
    if thing in model_names():
        return "model"
    if thing in device_names():
        return "device"
    if node in node_names() or "*" in thing:
        return "cluster"
    if not _exists(thing):
        match = re.fullmatch(r"(.+?)\s*x\s*[0-9]+", thing.strip())  # NODExCOUNT
        if match is not None and match[1] in node_names():
            return "cluster"
        raise InputError([Problem(file=thing, message=_unknown(thing))])
    if Path(thing).is_dir():
        return "model"
    return _kind_of_json(thing) if thing.endswith(".json") else "cluster"


def _kind_of_json(path: str) -> str:
    content = parse_json(read_text(path, max_size=MAX_FILE_SIZE), path).content
    keys = content.keys() if isinstance(content, dict) else ()
    if "strategy" in keys and "prediction" in keys:
        return "plan"
    return "cluster" if {"nodes", "levels"} & set(keys) else "model"


def _unknown(thing: str) -> str:
    if thing.endswith((".json", ".yaml", ".yml")):
        return "no such file"
    models, nodes, devices = model_names(), node_names(), device_names()
    known = f"; models: {', '.join(models)}; nodes: {', '.join(nodes)}; devices: {', '.join(devices)}"
    hint = suggest(thing, [*models, *nodes, *devices]) or known
    return f"no such file, and {quote(thing)} is no model, node or device of the catalog{hint}"


def _exists(thing: str) -> bool:
    try:
        return Path(thing).exists()
    except (OSError, ValueError):
        return False
