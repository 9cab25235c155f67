"""Software stacks: headroom, launch floors and overlap of a framework (``stacks.yaml``)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from hardware.units import Dimension, parse_quantity
from hardware.yaml_reader import read_package_yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """What a training framework adds to the kernels."""

    name: str
    """Name in the catalog."""
    headroom: float
    """Share of device memory left free for allocator slack."""
    launch_floor_forward: float
    """Least time per op of a layer's forward pass: launching its kernels [s]."""
    launch_floor_backward: float
    """Least time per op of a layer's backward pass [s]."""
    overlap: float
    """Share of a compute window that hides data-parallel communication, 0 to 1."""
    sources: Mapping[str, str]
    """Field -> where its value comes from."""

    def __post_init__(self) -> None:
        if not (0 <= self.headroom < 1 and 0 <= self.overlap <= 1):
            raise ValueError(f"stack {self.name}: headroom and overlap are shares between 0 and 1")


@cache
def load_stacks() -> dict[str, Stack]:
    """All stacks of the catalog by name."""
    stacks = {}
    for name, row in read_package_yaml("costmodels", "stacks.yaml").items():
        times = {
            key: float(parse_quantity(row[key], Dimension.TIME))
            for key in ("launch_floor_forward", "launch_floor_backward")
        }
        stacks[name] = Stack(name=name, **{**row, **times})
    return stacks


def load_stack(name: str) -> Stack:
    """A stack by name; ``ValueError`` names the nearest one."""
    stacks = load_stacks()
    if name not in stacks:
        near = difflib.get_close_matches(name, stacks, n=1) or sorted(stacks)
        raise ValueError(f"unknown software stack {name!r}; accepted: {', '.join(sorted(stacks))}; nearest: {near[0]}")
    return stacks[name]
