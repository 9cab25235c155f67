"""Kernel times: the roofline's limits by hand, and its error on measured products."""

from __future__ import annotations

import csv
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.compute import OPTIMIZER_TRAFFIC, kernel_time, memory_time, optimizer_time
from costmodels.kernels import Engine
from hardware import Device, load_device
from tests.conftest import ROOT

DATA = ROOT.parent / "shared" / "data" / "costdata"

DEVICE = Device(
    name="round",
    memory=10**10,
    memory_bandwidth=1e12,
    peak_flops={"bf16": 100e12, "fp32": 10e12},
    gemm_latency=5e-6,
    gemm_efficiency=0.8,
    memory_efficiency=0.5,
    attention_efficiency=0.4,
    context_memory=0,
    communicator_memory=0,
    host_link=1e9,
)


def test_a_kernel_of_nothing_takes_its_launch() -> None:
    for engine in Engine:
        assert kernel_time(0, 0, DEVICE, engine, "bf16") == 5e-6


def test_a_large_product_runs_at_the_reachable_peak() -> None:
    # 8e12 FLOPs at 0.8 x 100 TFLOPS = 100 ms; 1 GB at 0.5 TB/s = 2 ms is hidden.
    assert kernel_time(8e12, 1e9, DEVICE, Engine.GEMM, "bf16") == pytest.approx(5e-6 + 0.1)


def test_a_thin_product_runs_at_the_memory() -> None:
    # 1e9 FLOPs = 12.5 us; 100 MB at 0.5 TB/s = 200 us.
    assert kernel_time(1e9, 1e8, DEVICE, Engine.GEMM, "bf16") == pytest.approx(205e-6)


def test_the_ridge_is_where_both_take_the_same() -> None:
    # 80 TFLOPS / 0.5 TB/s = 160 FLOPs a byte.
    below, at, above = (kernel_time(x * 1e8, 1e8, DEVICE, Engine.GEMM, "bf16") for x in (159, 160, 161))
    assert below == at < above


def test_attention_has_its_own_efficiency_and_precision_its_peak() -> None:
    assert kernel_time(4e12, 0, DEVICE, Engine.ATTENTION, "bf16") == pytest.approx(5e-6 + 0.1)
    assert kernel_time(8e11, 0, DEVICE, Engine.GEMM, "fp32") == pytest.approx(5e-6 + 0.1)


def test_a_memory_op_ignores_flops() -> None:
    assert kernel_time(1e15, 1e9, DEVICE, Engine.MEMORY, "bf16") == memory_time(1e9, DEVICE)
    assert memory_time(1e9, DEVICE) == pytest.approx(5e-6 + 2e-3)


def test_optimizer_reads_and_writes_states_and_reads_gradients() -> None:
    # 14 bytes a weight read and written, 4 read: 32 MB for a million weights, 64 us at 0.5 TB/s.
    assert OPTIMIZER_TRAFFIC == 2
    assert optimizer_time(14e6, 4e6, DEVICE) == pytest.approx(5e-6 + 64e-6)


@given(st.floats(0, 1e18), st.floats(0, 1e15), st.floats(1, 10), st.sampled_from(list(Engine)))
def test_more_work_never_takes_less(flops: float, num_bytes: float, factor: float, engine: Engine) -> None:
    time = kernel_time(flops, num_bytes, DEVICE, engine, "bf16")
    assert kernel_time(flops * factor, num_bytes, DEVICE, engine, "bf16") >= time
    assert kernel_time(flops, num_bytes * factor, DEVICE, engine, "bf16") >= time
    assert time >= DEVICE.gemm_latency


def test_arrays_give_what_numbers_give() -> None:
    flops, num_bytes = np.array([0.0, 1e9, 8e12]), np.array([0.0, 1e8, 1e9])
    rows = kernel_time(flops, num_bytes, DEVICE, Engine.GEMM, "bf16")
    singles = [kernel_time(a, b, DEVICE, Engine.GEMM, "bf16") for a, b in zip(flops, num_bytes, strict=True)]
    assert rows.tolist() == singles


# Mean error over all shapes of the measured table (aiconfigurator), and the bound that we keep.
GEMM_ERRORS = {
    "a100_sxm": ("a100-sxm-80gb", 10.0, 12),
    "h100_sxm": ("h100-sxm", 7.2, 9),
    "h200_sxm": ("h200-sxm", 7.2, 9),
    "b200_sxm": ("b200-sxm", 10.0, 12),
    "gb200": ("gb200", 10.1, 12),
    "l40s": ("l40s", 17.7, 20),
}


@pytest.mark.skipif(not DATA.exists(), reason="measured tables are not beside the repository")
def test_error_on_measured_products() -> None:
    errors: dict[str, list[float]] = defaultdict(list)
    with (DATA / "gemm_fwd_aiconfigurator.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["system"] in GEMM_ERRORS:
                m, n, k = (int(row[name]) for name in "mnk")
                device = load_device(GEMM_ERRORS[row["system"]][0])
                time = kernel_time(2 * m * n * k, 2 * (m * k + k * n + m * n), device, Engine.GEMM, "bf16")
                errors[row["system"]].append(float(time) / (float(row["time_us"]) * 1e-6) - 1)
    assert set(errors) == set(GEMM_ERRORS)
    for system, (_, expected, bound) in GEMM_ERRORS.items():
        mean = 100 * np.mean(np.abs(errors[system]))
        assert mean == pytest.approx(expected, abs=0.1), system
        assert mean < bound
        assert abs(np.mean(errors[system])) < 0.05  # no bias
