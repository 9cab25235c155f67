"""What each op kind keeps for its backward pass: ``kernels.yaml`` as records."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from hardware.yaml_reader import read_package_yaml


class Engine(StrEnum):
    """The roofline an op sits on."""

    GEMM = "gemm"
    MEMORY = "memory"
    ATTENTION = "attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Facts of one op kind under one backend."""

    engine: Engine
    """Which roofline it sits on."""
    saves_inputs: bool = False
    """Whether the inputs are kept."""
    saves_output: bool = False
    """Whether the output is kept."""
    row_bytes: int = 0
    """Bytes kept per row of the output (all its dims but the last)."""
    element_bytes: int = 0
    """Bytes kept per element of the output."""
    input_bytes: int = 0
    """Bytes kept per element of the first input, in place of the input itself."""
    score_bytes: int = 0
    """Bytes kept per attention score."""
    score_traffic: int = 0
    """Bytes moved per score of the whole square; 0 for a kernel that never writes scores and skips masked ones."""
    backward: float
    """Time of the backward over the time of the forward."""
    source: str
    """Who says so."""


@cache
def load_kernels() -> dict[str, Kernel]:
    """All kernels, by op kind (``linear``) or op kind and backend (``attention.flash``)."""
    table = read_package_yaml("costmodels", "kernels.yaml")
    return {name: Kernel(**{**row, "engine": Engine(row["engine"])}) for name, row in table.items()}


def kernel_for(kind: str, attention: str) -> Kernel:
    """The kernel of an op kind under an attention backend."""
    name = f"{kind}.{attention}" if kind == "attention" else kind
    return load_kernels()[name]
