"""Devices, links and clusters: what the planner plans for. Names are loaded when they are first used."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hardware.catalog import device_names, link_names, load_device, load_link, load_node, node_names
    from hardware.cluster import Cluster, Level
    from hardware.cluster_file import cluster_schema, parse_cluster, read_cluster
    from hardware.cluster_json import cluster_from_json
    from hardware.device import Device
    from hardware.errors import InputError, Problem
    from hardware.link import Link
    from hardware.node import NetworkLevel, Node, build_cluster
    from hardware.units import Dimension, parse_quantity

_HOMES = {
    "Cluster": "cluster",
    "Device": "device",
    "Dimension": "units",
    "InputError": "errors",
    "Level": "cluster",
    "Link": "link",
    "NetworkLevel": "node",
    "Node": "node",
    "Problem": "errors",
    "build_cluster": "node",
    "cluster_from_json": "cluster_json",
    "cluster_schema": "cluster_file",
    "device_names": "catalog",
    "link_names": "catalog",
    "load_device": "catalog",
    "load_link": "catalog",
    "load_node": "catalog",
    "node_names": "catalog",
    "parse_cluster": "cluster_file",
    "parse_quantity": "units",
    "read_cluster": "cluster_file",
}

__all__ = [
    "Cluster",
    "Device",
    "Dimension",
    "InputError",
    "Level",
    "Link",
    "NetworkLevel",
    "Node",
    "Problem",
    "build_cluster",
    "cluster_from_json",
    "cluster_schema",
    "device_names",
    "link_names",
    "load_device",
    "load_link",
    "load_node",
    "node_names",
    "parse_cluster",
    "parse_quantity",
    "read_cluster",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'hardware' has no attribute {name!r}")
    value = getattr(import_module(f"hardware.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
