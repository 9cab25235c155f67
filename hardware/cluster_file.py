"""cluster.yaml, a resolved cluster's JSON, or the short form ``NODE*COUNT``, as a Cluster."""

import json
import math
import re
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from hardware.catalog import load_node, node_names
from hardware.cluster import MAX_DEVICES, Cluster, multiple_hint
from hardware.cluster_json import cluster_from_json
from hardware.errors import InputError, Problem, quote, suggest
from hardware.fields import Section
from hardware.input_file import read_text
from hardware.json_reader import parse_json
from hardware.node import NetworkLevel, Node, build_cluster
from hardware.node_fields import read_link, read_node
from hardware.units import Dimension
from hardware.yaml_reader import Document, read_yaml

_SHORT_FORM = re.compile(r"(?P<node>[A-Za-z0-9._-]+?)\s*[*x]\s*(?P<count>[0-9]+)")
_LEVEL_KEYS = ("name", "nodes", "oversubscription", "bandwidth", "latency", "efficiency")


def read_cluster(source: str | Path) -> Cluster:
    """The cluster that a user named.

    Parameters
    ----------
    source
        Path of a cluster.yaml or of a resolved cluster in JSON; or, as text, ``NODE*COUNT`` (``NODExCOUNT``, ``NODE``).

    Raises
    ------
    InputError
        With every problem found: file, line, key path, value, what is accepted.
    """
    if isinstance(source, str) and not _looks_like_path(source):
        return _read_short_form(source)
    if not str(source).endswith(".json"):
        return parse_cluster(read_yaml(source))
    document = parse_json(read_text(source), str(source))
    resolved = isinstance(document.content, dict) and "format_version" in document.content
    return cluster_from_json(document) if resolved else parse_cluster(document)


def cluster_schema() -> dict[str, Any]:
    """JSON Schema of cluster.yaml."""
    schema = json.loads((files("hardware") / "cluster.schema.json").read_text(encoding="utf-8"))
    assert isinstance(schema, dict)
    return schema


def _looks_like_path(source: str) -> bool:
    text, nodes = source.strip(), node_names()
    match = _SHORT_FORM.fullmatch(text)
    if text in nodes or (match is not None and match["node"] in nodes):
        return False
    return _exists(source) or ("*" not in source and source.endswith((".yaml", ".yml", ".json")))


def _exists(source: str) -> bool:
    try:
        return Path(source).exists()
    except (OSError, ValueError):
        return False


def _read_short_form(source: str) -> Cluster:
    text = source.strip()
    match = None if text in node_names() else _SHORT_FORM.fullmatch(text)
    name, count = (match["node"], match["count"]) if match else (text, "1")
    try:
        if len(count) > 8 or int(count) < 1:
            raise ValueError(f"the count must be 1 to {MAX_DEVICES} devices, got {quote(count)}")
        return build_cluster(load_node(name), int(count))
    except ValueError as error:
        message = str(error) if match or text in node_names() else _not_a_cluster(text)
        raise InputError([Problem(file=source, message=message)]) from error


def _not_a_cluster(text: str) -> str:
    names = node_names()
    hint = suggest(text.split("*")[0], names) or f"; nodes: {', '.join(names)}"
    return f"no such file, and not NODE*COUNT with a node of the catalog{hint}"


def parse_cluster(document: Document) -> Cluster:
    """The cluster that a cluster.yaml describes; an InputError with all problems if it cannot be used."""
    top = Section(document=document)
    if not top.check_keys(("name", "nodes", "network", "reserve")):
        top.finish()
    groups = [read_node(section) for section in top.items("nodes")]
    node, num_nodes = _merge(top, groups)
    network = _read_network(top, num_nodes)
    reserve = top.quantity("reserve", Dimension.BYTES, required=False, positive=False)
    name = top.text("name", required=False)
    if node is not None and num_nodes * node.num_devices > MAX_DEVICES:
        top.report(f"{num_nodes * node.num_devices} devices; at most {MAX_DEVICES} are read", "nodes")
    top.finish()
    assert node is not None
    try:
        return build_cluster(node, num_nodes, name=name or "", network=network, reserve=int(reserve or 0))
    except ValueError as error:
        top.report(str(error))
        raise InputError(top.problems) from error


def _merge(top: Section, groups: list[tuple[int, Node] | None]) -> tuple[Node | None, int]:
    """The one kind of node and how many; (None, 0) where a group could not be read or the groups differ."""
    known = [group for group in groups if group is not None]
    if not known or len(known) < len(groups):
        return None, 0
    first = known[0][1]
    for position, (_, node) in enumerate(known[1:], start=1):
        difference = _difference(first, node)
        if difference:
            top.report(f"{difference}; write one file for each kind", "nodes", position)
    return _with_mean_price(known), sum(count for count, _ in known)


def _difference(first: Node, node: Node) -> str | None:
    """In which way two groups cannot be one, if any; sources and prices may differ."""
    if node.device != first.device:
        return f"mixed devices are not searched yet: {node.device.name} here, {first.device.name} in nodes[0]"
    keys = {"devices_per_node": "num_devices", "intra_node": "intra_node", "nics": "network_link"}
    differing = [key for key, name in keys.items() if _figures(getattr(node, name)) != _figures(getattr(first, name))]
    if differing:
        return f"mixed nodes are not searched yet: {', '.join(differing)} differ from nodes[0]"
    if (node.price is None) != (first.price is None):
        return "a price must be given for all groups or for none"
    return None


def _figures(value: Any) -> object:
    """What of a link or count decides about speed."""
    return (value.bandwidth, value.latency) if hasattr(value, "bandwidth") else value


def _with_mean_price(groups: list[tuple[int, Node]]) -> Node:
    """The first group's node at the mean price of a device."""
    first = groups[0][1]
    if first.price is None or any(node.price is None for _, node in groups):
        return first
    total = sum(count * (node.price or 0.0) for count, node in groups)
    price = total / sum(count for count, _ in groups)
    return first if len({node.price for _, node in groups}) == 1 else replace(first, price=price)


def _read_network(top: Section, num_nodes: int) -> list[NetworkLevel]:
    """Levels above the node; those that could be read where ``num_nodes`` is 0, for nodes not known."""
    if "network" not in top.mapping:
        return []
    levels: list[NetworkLevel] = []
    sections = top.items("network")
    for section in sections:
        below = levels[-1].num_nodes if levels else 1
        level = _read_level(section, below, num_nodes, last=section is sections[-1])
        if level is not None:
            levels.append(level)
    return levels


def _read_level(section: Section, below: int, num_nodes: int, *, last: bool) -> NetworkLevel | None:
    if not section.check_keys(_LEVEL_KEYS):
        return None
    name = section.text("name")
    nodes = section.count("nodes", maximum=MAX_DEVICES, required=not last)
    nodes = num_nodes if nodes is None and last and not section.has("nodes") else nodes
    oversubscription = section.number("oversubscription", minimum=1, required=False)
    needs_link = any(section.has(key) for key in ("bandwidth", "latency", "efficiency"))
    link = read_link(section, network=True) if needs_link else None
    if nodes is not None and num_nodes:
        _check_nodes(section, nodes, below, num_nodes, last=last)
    if name is None or not nodes:
        return None
    return NetworkLevel(name=name, num_nodes=nodes, oversubscription=oversubscription or 1.0, link=link)


def _check_nodes(section: Section, nodes: int, below: int, num_nodes: int, *, last: bool) -> None:
    """The last level covers all nodes, each other one divides them, and each holds whole units of the one below."""
    if last and nodes == num_nodes:
        return
    if last:
        section.report(f"the last level must cover all {num_nodes} nodes, got {nodes}: leave it out", "nodes")
    elif num_nodes % nodes:
        section.report(
            f"must divide the {num_nodes} nodes, got {nodes}; nearest: {_divisors(num_nodes, nodes)}", "nodes"
        )
    elif nodes % below:
        section.report(multiple_hint(nodes, below, "nodes, as the level below"), "nodes")


def _divisors(number: int, near: int) -> str:
    """The divisors of a number next below and above another."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    divisors = sorted({*small, *(number // d for d in small)})
    lower = [d for d in divisors if d < near][-1:]
    upper = [d for d in divisors if d > near][:1]
    return " or ".join(str(d) for d in lower + upper)
