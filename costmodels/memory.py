"""State bytes of weights, gradients and optimizer under ZeRO sharding. Functions take ints or integer arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Integer: TypeAlias = Any
"""An int or a numpy array of ints."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """States of one rank."""

    weights: Integer
    """[bytes]"""
    gradients: Integer
    """[bytes]"""
    optimizer: Integer
    """[bytes]"""

    @property
    def total(self) -> Integer:
        """Sum of the three [bytes]."""
        return self.weights + self.gradients + self.optimizer


def ceil_div(value: Integer, divisor: Integer) -> Integer:
    """Quotient rounded up."""
    return -(-value // divisor)


def state_bytes(
    num_parameters: Integer,
    share: Integer,
    zero_stage: Integer,
    *,
    weight_bytes: int,
    gradient_bytes: int,
    optimizer_bytes: int,
) -> StateBytes:
    """Weights, gradients and optimizer states that one rank holds through the step.

    Parameters
    ----------
    num_parameters
        Parameters of the rank after tensor and expert parallelism.
    share
        Parameters of one shard: ``ceil_div(num_parameters, shards)``.
    zero_stage
        0 keeps all three whole; 1 shards the optimizer, 2 also gradients, 3 also weights.
    weight_bytes, gradient_bytes, optimizer_bytes
        Bytes per parameter of each.

    Notes
    -----
    bf16 with fp32 gradients and Adam: 18 bytes plain, ``6 + 12 / d`` with a sharded optimizer (Megatron-LM,
    ``theoretical_memory_usage.py``). Left out here: gathered weights of
    ZeRO-3 and unsharded gradients of ZeRO-2/3, which are transients of a layer.
    """
    return StateBytes(
        weights=weight_bytes * _pick(zero_stage >= 3, share, num_parameters),
        gradients=gradient_bytes * _pick(zero_stage >= 2, share, num_parameters),
        optimizer=optimizer_bytes * _pick(zero_stage >= 1, share, num_parameters),
    )


def _pick(condition: Any, yes: Integer, no: Integer) -> Integer:
    """``yes`` where the condition holds, else ``no``; for numbers and arrays."""
    if isinstance(condition, bool):
        return yes if condition else no
    return np.where(condition, yes, no)
