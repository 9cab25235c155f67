"""Nodes, and the cluster that equal nodes make."""

from collections.abc import Sequence
from dataclasses import dataclass

from hardware.checks import check_whole
from hardware.cluster import Cluster, Level
from hardware.device import Device
from hardware.link import Link


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Devices that one fast link joins, and their way to other nodes."""

    name: str
    """Name in the catalog, or the user's own."""
    device: Device
    """The device."""
    num_devices: int
    """Devices in the node."""
    intra_node: Link
    """What one device can use towards the others of its node."""
    num_nics: int = 0
    """Network ports of the node; 0 if it stands alone."""
    nic: Link | None = None
    """One network port; None if the node stands alone."""
    price: float | None = None
    """Price of one device [USD/h]; None if not known."""

    def __post_init__(self) -> None:
        check_whole("num_devices", self.num_devices, "devices")
        check_whole("num_nics", self.num_nics, "ports")
        if self.num_devices < 1:
            raise ValueError(f"num_devices must be at least 1, got {self.num_devices}")
        if (self.num_nics > 0) != (self.nic is not None):
            raise ValueError(f"a node has both num_nics and nic or neither, got {self.num_nics} ports")

    @property
    def network_link(self) -> Link | None:
        """What one device can use out of the node while all devices do: its share of the ports."""
        if self.nic is None:
            return None
        return self.nic.divided(self.num_devices / self.num_nics, f"{self.num_devices} devices on {self.num_nics} NICs")


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """A level of network above the node."""

    name: str
    """Name, such as ``rail-group``."""
    num_nodes: int
    """Nodes in one unit."""
    oversubscription: float = 1.0
    """Rate into this level over rate through it; levels multiply, as two 2:1 tiers pass a quarter."""
    link: Link | None = None
    """What one device can use, before oversubscription; None for that of the level below."""

    def __post_init__(self) -> None:
        if not 1 <= self.oversubscription < float("inf"):
            raise ValueError(f"oversubscription must be at least 1, got {self.oversubscription}")


def build_cluster(
    node: Node, num_nodes: int, *, name: str = "", network: Sequence[NetworkLevel] = (), reserve: int = 0
) -> Cluster:
    """The cluster of ``num_nodes`` equal nodes.

    Parameters
    ----------
    node
        The node.
    num_nodes
        How many, at least 1.
    name
        Name of the cluster; by default ``NODE*COUNT``.
    network
        Levels above the node, innermost first, the last over all nodes; by default one level without oversubscription.
        A level with no more nodes than the one below is left out.
    reserve
        Memory of each device that the job may not use [bytes].

    Raises
    ------
    ValueError
        Where the nodes have no network, or the levels do not nest.
    """
    levels = [Level(name="node", num_devices=node.num_devices, link=node.intra_node)]
    link = node.network_link
    for above in network or (NetworkLevel(name="network", num_nodes=num_nodes),):
        link = above.link or link
        if link is not None:
            link = link.divided(above.oversubscription, f"oversubscription of {above.name!r}")
        if above.num_nodes * node.num_devices == levels[-1].num_devices:
            continue
        if link is None:
            raise ValueError(f"{num_nodes} nodes of {node.name!r} need a network, but the node has no NICs")
        levels.append(Level(name=above.name, num_devices=above.num_nodes * node.num_devices, link=link))
    return Cluster(
        name=name or f"{node.name}*{num_nodes}",
        device=node.device,
        num_devices=num_nodes * node.num_devices,
        devices_per_node=node.num_devices,
        levels=tuple(levels),
        reserve=reserve,
        price=node.price,
    )
