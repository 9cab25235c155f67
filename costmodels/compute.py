"""Kernel times from FLOPs and bytes: one roofline with a launch latency and fitted efficiencies.

All functions take numbers or numpy arrays.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from costmodels.kernels import Engine
from hardware import Device

Number: TypeAlias = Any
"""A float or a numpy array of floats."""


def kernel_time(flops: Number, num_bytes: Number, device: Device, engine: Engine, precision: str) -> Number:
    """Time of one kernel [s].

    Parameters
    ----------
    flops
        Floating-point operations, a multiply-add counted as 2.
    num_bytes
        Bytes read from and written to device memory.
    device
        Its peaks and fitted constants.
    engine
        Which roofline it sits on.
    precision
        Number format of matrix products, a key of ``device.peak_flops``.

    Notes
    -----
    ``latency + max(flops / (peak efficiency), bytes / (bandwidth memory_efficiency))``. Fitted on 9,867 measured
    products of 7 devices with 7-10 % mean error (aiconfigurator tables); left out: tile quantisation, power limits.
    """
    if engine is Engine.MEMORY:
        return memory_time(num_bytes, device)
    efficiency = device.attention_efficiency if engine is Engine.ATTENTION else device.gemm_efficiency
    rate = device.peak_flops[precision] * efficiency
    return device.gemm_latency + np.maximum(
        flops / rate, num_bytes / (device.memory_bandwidth * device.memory_efficiency)
    )


def memory_time(num_bytes: Number, device: Device) -> Number:
    """Time of a kernel that only moves bytes [s]: launch latency and bytes over the reachable bandwidth."""
    return device.gemm_latency + num_bytes / (device.memory_bandwidth * device.memory_efficiency)


OPTIMIZER_TRAFFIC = 2
"""Each state byte is read once and written once by a fused optimizer step [1]."""


def optimizer_time(state_bytes: Number, gradient_bytes: Number, device: Device) -> Number:
    """Time of a fused optimizer step over the states that a rank owns [s].

    Parameters
    ----------
    state_bytes
        Optimizer states and weights read and written on this rank [bytes].
    gradient_bytes
        Gradients read on this rank [bytes].
    device
        Its memory bandwidth.
    """
    return memory_time(OPTIMIZER_TRAFFIC * state_bytes + gradient_bytes, device)
