"""Devices, links and nodes known by name, each figure with its source."""

import re
from functools import cache
from importlib.resources import files
from typing import Any

from hardware.device import Device
from hardware.errors import quote, suggest
from hardware.link import Link
from hardware.node import Node
from hardware.units import Dimension, parse_quantity
from hardware.yaml_reader import parse_yaml

DEVICE_DIMENSIONS = {
    "memory": Dimension.BYTES,
    "memory_bandwidth": Dimension.BANDWIDTH,
    "gemm_latency": Dimension.TIME,
    "gemm_efficiency": Dimension.RATIO,
    "memory_efficiency": Dimension.RATIO,
    "attention_efficiency": Dimension.RATIO,
    "context_memory": Dimension.BYTES,
    "communicator_memory": Dimension.BYTES,
    "host_link": Dimension.BANDWIDTH,
}
"""Fields of a device that are one quantity, and what they measure."""
LINK_DIMENSIONS = {
    "bandwidth": Dimension.BANDWIDTH,
    "line_rate": Dimension.BANDWIDTH,
    "latency": Dimension.TIME,
}
"""Fields of a link, and what they measure."""
_ENTRY = re.compile(r"^([a-z0-9.-]+):\n", re.MULTILINE)


def device_names() -> list[str]:
    """Names of the devices, sorted."""
    return sorted(_read("devices"))


def link_names() -> list[str]:
    """Names of the links, sorted."""
    return sorted(_read("links"))


def node_names() -> list[str]:
    """Names of the nodes, sorted."""
    return sorted(_read("nodes"))


@cache
def load_device(name: str) -> Device:
    """The device of that name; a ValueError names the nearest if there is none."""
    entry = _entry("device", name)
    values, provenance = _figures(entry, DEVICE_DIMENSIONS)
    peak = entry["peak_flops"]
    values["peak_flops"] = {key: parse_quantity(rate, Dimension.FLOPS) for key, rate in peak["value"].items()}
    return Device(name=name, **values, provenance={**provenance, "peak_flops": peak["source"]})


@cache
def load_link(name: str) -> Link:
    """The link of that name; a ValueError names the nearest if there is none."""
    values, provenance = _figures(_entry("link", name), LINK_DIMENSIONS)
    return Link(**values, provenance=provenance)


@cache
def load_node(name: str) -> Node:
    """The node of that name; a ValueError names the nearest if there is none."""
    entry = _entry("node", name)
    return Node(
        name=name,
        device=load_device(entry["device"]),
        num_devices=entry["devices_per_node"],
        intra_node=load_link(entry["intra_node"]),
        num_nics=entry["nics"]["count"],
        nic=load_link(entry["nics"]["link"]),
    )


def _figures(entry: dict[str, Any], dimensions: dict[str, Dimension]) -> tuple[dict[str, Any], dict[str, str]]:
    """Values in base units and sources, by field."""
    values = {key: parse_quantity(entry[key]["value"], dimension) for key, dimension in dimensions.items()}
    return values, {key: entry[key]["source"] for key in dimensions}


def _entry(kind: str, name: str) -> dict[str, Any]:
    """One entry of the catalog, the only one that is parsed: parsing all of them takes a tenth of a second."""
    known = _read(f"{kind}s")
    if name not in known:
        hint = suggest(name, sorted(known)) or f"; known: {', '.join(sorted(known))}"
        raise ValueError(f"unknown {kind} {quote(name)}{hint}")
    content = parse_yaml(known[name], f"catalog/{kind}s.yaml, {name}").content
    assert isinstance(content, dict)
    return content


def _read(kind: str) -> dict[str, str]:
    """Text of each entry by name; an entry starts with its name alone on a line that is not indented."""
    text = (files("hardware") / "catalog" / f"{kind}.yaml").read_text(encoding="utf-8")
    _, *parts = _ENTRY.split(text)
    return dict(zip(parts[::2], parts[1::2], strict=True))
