"""One group of nodes, and links, as cluster.yaml writes them."""

import logging
from collections.abc import Callable
from dataclasses import replace

from hardware.catalog import link_names, load_device, load_link, load_node
from hardware.cluster import MAX_DEVICES
from hardware.device import Device
from hardware.fields import Section
from hardware.link import Link
from hardware.node import Node
from hardware.units import Dimension, format_bandwidth, format_time

logger = logging.getLogger(__name__)

NETWORK_EFFICIENCY = 0.97
"""Payload share of a network port's line rate: 48.5 of 50 GB/s on ConnectX-7 (aliyun/SimAI calbusbw.h).

ConnectX-6 reaches 0.94; ``efficiency`` beside the bandwidth overrides it.
"""
NODE_EFFICIENCY = 0.8
"""Payload share of the line rate inside a node: NVLink 20.0 of 25 GB/s, PCIe 25.6 of 32 GB/s (same sources)."""
UNUSUAL = 10
"""A figure this many times outside the catalog's range is read with a warning."""

_CATALOG_KEYS = ("count", "node", "price")
_FULL_KEYS = ("count", "device", "devices_per_node", "intra_node", "nics", "price")
_LINK_KEYS = ("bandwidth", "latency", "efficiency")


def read_node(section: Section) -> tuple[int, Node] | None:
    """Count and node of one item of ``nodes``; None if it has problems, which are then reported."""
    from_catalog = section.has("node")
    if not section.check_keys(_CATALOG_KEYS if from_catalog else (*_FULL_KEYS, "node")):
        return None
    count = section.count("count", maximum=MAX_DEVICES)
    price = section.quantity("price", Dimension.PRICE, required=False, positive=False)
    node = _catalog_node(section, price) if from_catalog else _full_node(section, price, count)
    return None if node is None or count is None else (count, node)


def _catalog_node(section: Section, price: float | None) -> Node | None:
    name = section.text("node")
    if name is None:
        return None
    try:
        return replace(load_node(name), price=price)
    except ValueError as error:
        section.report(str(error), "node")
        return None


def _full_node(section: Section, price: float | None, count: int | None) -> Node | None:
    problems_before = len(section.problems)
    device = _read_device(section)
    num_devices = section.count("devices_per_node", maximum=MAX_DEVICES)
    intra_node = _read_intra_node(section, device, num_devices)
    num_nics, nic = _read_nics(section, required=count != 1)
    if len(section.problems) > problems_before:
        return None
    assert device is not None
    assert num_devices is not None
    assert intra_node is not None
    return Node(
        name=device.name,
        device=device,
        num_devices=num_devices,
        intra_node=intra_node,
        num_nics=num_nics,
        nic=nic,
        price=price,
    )


def _read_device(section: Section) -> Device | None:
    name = section.text("device")
    if name is None:
        return None
    try:
        return load_device(name)
    except ValueError as error:
        section.report(str(error), "device")
        return None


def _read_intra_node(section: Section, device: Device | None, num_devices: int | None) -> Link | None:
    if num_devices == 1 and device is not None and not section.has("intra_node"):
        # A node of one device sends nothing inside itself; the host link stands in and is never used.
        return Link(bandwidth=device.host_link, latency=0.0)
    value = section.section("intra_node")
    if value is None:
        return None
    if isinstance(value.content, str):
        return _catalog_link(section, "intra_node", value.content)
    return read_link(value, network=False) if value.check_keys(_LINK_KEYS) else None


def _read_nics(section: Section, *, required: bool) -> tuple[int, Link | None]:
    nics = section.section("nics", required=required)
    if nics is None or not nics.check_keys(("count", "link", *_LINK_KEYS)):
        return 0, None
    count = nics.count("count", maximum=MAX_DEVICES)
    if nics.has("link"):
        for key in _LINK_KEYS:
            if nics.has(key):
                nics.report(f"not with 'link', which has its own {key}", key)
        name = nics.text("link")
        link = None if name is None else _catalog_link(nics, "link", name)
    else:
        link = read_link(nics, network=True)
    return (0, None) if count is None or link is None else (count, link)


def _catalog_link(section: Section, key: str, name: str) -> Link | None:
    try:
        return load_link(name)
    except ValueError as error:
        section.report(str(error), key)
        return None


def read_link(section: Section, *, network: bool) -> Link | None:
    """A link given by ``bandwidth`` (line rate of one port or device, one direction), ``latency`` and ``efficiency``.

    ``network`` tells a port or a level of network, whose payload is 0.97 of the line rate, from a link inside a node
    (0.8), unless ``efficiency`` is given.
    """
    line_rate = section.quantity("bandwidth", Dimension.BANDWIDTH)
    latency = section.quantity("latency", Dimension.TIME, positive=False)
    efficiency = _read_efficiency(section, NETWORK_EFFICIENCY if network else NODE_EFFICIENCY)
    if line_rate is None or latency is None or efficiency is None:
        return None
    _warn_if_unusual(section, line_rate, latency)
    given = "given in the cluster file"
    return Link(
        bandwidth=line_rate * efficiency,
        latency=latency,
        line_rate=line_rate,
        provenance={
            "bandwidth": f"{given}, {efficiency:g} of the line rate",
            "line_rate": given,
            "latency": given,
        },
    )


def _read_efficiency(section: Section, default: float) -> float | None:
    if not section.has("efficiency"):
        return default
    value = section.quantity("efficiency", Dimension.RATIO)
    if value is not None and value > 1:
        section.report(f"must be at most 1, got {value:g}", "efficiency")
        return None
    return value


def _warn_if_unusual(section: Section, line_rate: float, latency: float) -> None:
    """A slip of unit (bit for byte, ms for us) is mostly a factor of eight or a thousand."""
    links = [load_link(name) for name in link_names()]
    rates = [link.line_rate or link.bandwidth for link in links]
    _warn_outside(section, "bandwidth", line_rate, (min(rates), max(rates)), format_bandwidth)
    times = [link.latency for link in links]
    _warn_outside(section, "latency", latency, (min(times), max(times)), format_time)


def _warn_outside(
    section: Section, key: str, value: float, usual: tuple[float, float], show: Callable[[float], str]
) -> None:
    lowest, highest = usual
    if value < lowest / UNUSUAL or value > highest * UNUSUAL:
        logger.warning(
            "%s:%s: %s of %s is unusual: links of the catalog have %s to %s; check its unit",
            section.document.file,
            section.document.line((*section.path, key)),
            key,
            show(value),
            show(lowest),
            show(highest),
        )
