"""What is trained and how: everything that is neither the model's shape nor the cluster."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass
from enum import StrEnum


class Precision(StrEnum):
    """Number format of weights, activations and matrix products."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP32 = "fp32"


class Optimizer(StrEnum):
    """Update rule; it decides the state bytes per parameter."""

    ADAM = "adam"
    ADAMW = "adamw"
    LION = "lion"
    SGD = "sgd"


class Attention(StrEnum):
    """Attention backend; it decides what is kept for the backward pass."""

    FLASH = "flash"
    UNFUSED = "unfused"


ACTIVATION_BYTES = {Precision.BF16: 2, Precision.FP16: 2, Precision.FP32: 4}
"""Bytes of one weight or activation element."""

MOMENTS = {Optimizer.ADAM: 2, Optimizer.ADAMW: 2, Optimizer.LION: 1, Optimizer.SGD: 1}
"""Moments kept per parameter, in fp32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training job on a model."""

    global_batch_size: int
    """Sequences of one optimizer step."""
    seq_len: int
    """Tokens of a sequence."""
    precision: Precision = Precision.BF16
    """Format of weights and activations."""
    optimizer: Optimizer = Optimizer.ADAM
    """Update rule."""
    gradient_bytes: int = 4
    """Bytes of an accumulated and reduced gradient element (2 or 4)."""
    attention: Attention = Attention.FLASH
    """Attention backend."""
    stack: str = "megatron-core"
    """Name of the software stack in ``costmodels/stacks.yaml``."""
    expert_imbalance: float = 1.0
    """Load of the busiest expert-parallel rank over the mean, at least 1."""

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "seq_len"):
            value = getattr(self, name)
            if not 1 <= value <= 10**9:
                raise ValueError(f"{name} must be between 1 and 1e9, got {value}")
        if self.gradient_bytes not in (2, 4):
            raise ValueError(f"gradient_bytes must be 2 or 4, got {self.gradient_bytes}")
        if not 1 <= self.expert_imbalance < math.inf:
            raise ValueError(f"expert_imbalance must be at least 1 and finite, got {self.expert_imbalance}")

    @property
    def element_bytes(self) -> int:
        """Bytes of one weight or activation element."""
        return ACTIVATION_BYTES[self.precision]

    @property
    def optimizer_bytes(self) -> int:
        """Bytes of optimizer state per parameter: fp32 moments, and an fp32 master copy under 16-bit weights."""
        master = 4 if self.element_bytes < 4 else 0
        return 4 * MOMENTS[self.optimizer] + master

    @property
    def state_bytes(self) -> int:
        """Bytes of weights, gradients and optimizer states per parameter."""
        return self.element_bytes + self.gradient_bytes + self.optimizer_bytes

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()}

    def digest(self) -> str:
        """SHA-256 of the canonical JSON."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()


def workload_from_json(values: dict[str, object]) -> Workload:
    """The workload that ``Workload.to_json`` wrote."""
    known = dict(values)
    known["precision"] = Precision(str(known["precision"]))
    known["optimizer"] = Optimizer(str(known["optimizer"]))
    known["attention"] = Attention(str(known["attention"]))
    return Workload(**known)  # type: ignore[arg-type]  # checked by __post_init__
