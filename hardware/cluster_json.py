"""Reads the JSON of a resolved cluster."""

from collections.abc import Mapping
from typing import Any

from hardware.cluster import FORMAT_VERSION, MAX_DEVICES, Cluster, Level
from hardware.device import BYTE_FIELDS, RATE_FIELDS, Device
from hardware.errors import InputError, Problem, quote
from hardware.fields import Section
from hardware.link import Link
from hardware.yaml_reader import Document

MAX_MEMORY = 10**18
"""Largest memory of a device that is read [bytes]."""

_CLUSTER_KEYS = ("format_version", "name", "device", "num_devices", "devices_per_node", "levels", "reserve", "price")
_LINK_KEYS = ("bandwidth", "latency", "line_rate", "provenance")


def cluster_from_json(data: Mapping[str, Any] | Document) -> Cluster:
    """The cluster that ``Cluster.to_json`` wrote, from its values or a document of them.

    Raises
    ------
    InputError
        With all problems: unknown or missing keys, values out of range, another major format version.
    """
    document = data if isinstance(data, Document) else Document(file="cluster", content=dict(data))
    top = Section(document=document)
    _check_version(top)
    if not top.check_keys(_CLUSTER_KEYS):
        top.finish()
    device_section = top.section("device")
    device = None if device_section is None else _device(device_section)
    levels = [_level(section) for section in top.items("levels")]
    name = top.text("name")
    num_devices = top.count("num_devices", maximum=MAX_DEVICES)
    devices_per_node = top.count("devices_per_node", maximum=MAX_DEVICES)
    reserve = top.count("reserve", minimum=0, maximum=MAX_MEMORY)
    price = _optional_number(top, "price")
    top.finish()
    assert None not in (name, device, num_devices, devices_per_node, reserve)
    fields: dict[str, Any] = {"name": name, "device": device, "num_devices": num_devices}
    fields |= {"devices_per_node": devices_per_node, "reserve": reserve, "price": price}
    try:
        return Cluster(**fields, levels=tuple(level for level in levels if level is not None))
    except ValueError as error:
        raise InputError([Problem(file=document.file, message=str(error))]) from error


def _check_version(top: Section) -> None:
    """Another major version may mean other things by the same keys, so nothing else is read."""
    if not top.mapping:
        return
    version = top.text("format_version")
    if version is not None and version.split(".")[0] != FORMAT_VERSION.split(".")[0]:
        top.report(
            f"cannot read format {version!r}, this version reads {FORMAT_VERSION}: write the cluster again with the "
            "matching version, or read its cluster.yaml",
            "format_version",
        )
        top.finish()


def _device(section: Section) -> Device | None:
    section.check_keys(("name", *BYTE_FIELDS, *RATE_FIELDS, "peak_flops", "provenance"))
    name = section.text("name")
    memory = {key: section.count(key, minimum=0, maximum=MAX_MEMORY) for key in BYTE_FIELDS}
    rates = {key: section.number(key, minimum=0) for key in RATE_FIELDS}
    peak = section.section("peak_flops")
    peak_flops = {} if peak is None else {key: peak.number(key, minimum=0) for key in peak.mapping}
    provenance = _provenance(section)
    if name is None or None in (*memory.values(), *rates.values(), *peak_flops.values()):
        return None
    values: dict[str, Any] = {**memory, **rates, "peak_flops": peak_flops, "provenance": provenance}
    try:
        return Device(name=name, **values)
    except ValueError as error:
        section.report(str(error))
        return None


def _level(section: Section) -> Level | None:
    section.check_keys(("name", "num_devices", "link"))
    name = section.text("name")
    num_devices = section.count("num_devices", maximum=MAX_DEVICES)
    link_section = section.section("link")
    link = None if link_section is None else _link(link_section)
    if name is None or num_devices is None or link is None:
        return None
    return Level(name=name, num_devices=num_devices, link=link)


def _link(section: Section) -> Link | None:
    section.check_keys(_LINK_KEYS)
    bandwidth = section.number("bandwidth", minimum=0)
    latency = section.number("latency", minimum=0)
    line_rate = _optional_number(section, "line_rate")
    provenance = _provenance(section)
    if bandwidth is None or latency is None:
        return None
    try:
        return Link(bandwidth=bandwidth, latency=latency, line_rate=line_rate, provenance=provenance)
    except ValueError as error:
        section.report(str(error))
        return None


def _optional_number(section: Section, key: str) -> float | None:
    return section.number(key, minimum=0) if section.has(key) else None


def _provenance(section: Section) -> dict[str, str]:
    sources = section.section("provenance", required=False)
    if sources is None:
        return {}
    if not isinstance(sources.content, dict):
        sources.report(f"must be a mapping, got {quote(sources.content)}")
    texts = {key: sources.text(key) for key in sources.mapping}
    return {key: text for key, text in texts.items() if text is not None}
