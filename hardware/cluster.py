"""A cluster: equal devices under nested levels of network."""

import hashlib
import json
from dataclasses import dataclass

from hardware.checks import check_not_negative, check_whole
from hardware.device import Device
from hardware.link import Link

MAX_DEVICES = 10**7
"""Largest cluster that is read."""
FORMAT_VERSION = "1.0"
"""Version of a cluster's JSON: a minor one adds keys, a major one changes their meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One level of the network: a unit holds the units of the level below, joined by a link."""

    name: str
    """Name, such as ``node`` or ``spine``."""
    num_devices: int
    """Devices in one unit of this level."""
    link: Link
    """What one device can use towards the other units of the level below, while all devices do."""

    def __post_init__(self) -> None:
        check_whole("num_devices", self.num_devices, "devices")
        if self.num_devices < 1:
            raise ValueError(f"num_devices must be at least 1, got {self.num_devices}")

    def to_json(self) -> dict[str, object]:
        """The level as JSON values in base units."""
        return {"name": self.name, "num_devices": self.num_devices, "link": self.link.to_json()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal devices in equal nodes, and the levels of network above them."""

    name: str
    """Name that the user gave."""
    device: Device
    """The device, the same everywhere."""
    num_devices: int
    """Devices in the cluster."""
    devices_per_node: int
    """Devices joined by the innermost level (the NVLink domain, not the chassis)."""
    levels: tuple[Level, ...]
    """Levels, innermost first: ``levels[0]`` is the node, the last covers the cluster; one for a single node."""
    reserve: int = 0
    """Memory of each device that the job may not use [bytes]."""
    price: float | None = None
    """Price of one device [USD/h]; None if not known."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        check_whole("num_devices", self.num_devices, "devices")
        if not 1 <= self.num_devices <= MAX_DEVICES:
            raise ValueError(f"num_devices must be 1 to {MAX_DEVICES}, got {self.num_devices}")
        self._check_levels()
        check_whole("reserve", self.reserve, "bytes")
        check_not_negative("reserve", self.reserve, "bytes")
        limit = self.device.memory - self.device.runtime_memory(self.num_devices)
        if self.reserve >= limit:
            raise ValueError(
                f"reserve must be below {limit} bytes, what {self.device.name} has for the job, got {self.reserve}"
            )
        if self.price is not None:
            check_not_negative("price", self.price, "USD/h")

    def _check_levels(self) -> None:
        if not self.levels or self.levels[0].num_devices != self.devices_per_node:
            raise ValueError(f"levels[0] must be the node of {self.devices_per_node} devices")
        for below, level in zip(self.levels, self.levels[1:], strict=False):
            if level.num_devices == below.num_devices:
                raise ValueError(
                    f"level {level.name!r} joins nothing: it has the {below.num_devices} devices of {below.name!r}"
                )
            if level.num_devices % below.num_devices:
                raise ValueError(
                    f"level {level.name!r}: {multiple_hint(level.num_devices, below.num_devices, 'devices')}"
                )
        if self.levels[-1].num_devices != self.num_devices:
            raise ValueError(
                f"the last level must cover all {self.num_devices} devices, "
                f"{self.levels[-1].name!r} has {self.levels[-1].num_devices}"
            )

    @property
    def num_nodes(self) -> int:
        """Nodes in the cluster."""
        return self.num_devices // self.devices_per_node

    @property
    def usable_memory(self) -> int:
        """Memory of a device that the job may use, for tensors and for its own runtime [bytes]."""
        return self.device.memory - self.reserve

    @property
    def runtime_memory(self) -> int:
        """Part of the usable memory that context and communication library take [bytes]."""
        return self.device.runtime_memory(self.num_devices)

    def to_json(self) -> dict[str, object]:
        """The cluster as JSON values: bytes, s, bytes/s, FLOP/s, USD/h, and the source of each figure."""
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "device": self.device.to_json(),
            "num_devices": self.num_devices,
            "devices_per_node": self.devices_per_node,
            "levels": [level.to_json() for level in self.levels],
            "reserve": self.reserve,
            "price": None if self.price is None else float(self.price),
        }

    def digest(self) -> str:
        """SHA-256 of the canonical JSON, in hexadecimal; equal clusters have equal digests."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode("utf-8")).hexdigest()


def multiple_hint(value: int, unit: int, noun: str) -> str:
    """Says that a count must be a multiple of another, and which are nearest."""
    lower = value // unit * unit
    nearest = f"{lower} or {lower + unit}" if lower else str(unit)
    return f"must be a multiple of {unit} {noun}, got {value}; nearest: {nearest}"
