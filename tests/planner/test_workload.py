"""Workload: bytes per parameter by choice, limits of its fields, and its JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from planner.workload import Attention, Optimizer, Precision, Workload, workload_from_json

PLAIN = Workload(global_batch_size=8, seq_len=128)


@pytest.mark.parametrize(
    ("precision", "optimizer", "gradient_bytes", "state_bytes"),
    [
        # weight + gradient + master + moments
        (Precision.BF16, Optimizer.ADAM, 4, 2 + 4 + 4 + 8),
        (Precision.BF16, Optimizer.ADAMW, 4, 18),
        (Precision.BF16, Optimizer.ADAM, 2, 16),
        (Precision.FP16, Optimizer.ADAM, 4, 18),
        (Precision.FP32, Optimizer.ADAM, 4, 4 + 4 + 0 + 8),
        (Precision.BF16, Optimizer.LION, 4, 2 + 4 + 4 + 4),
        (Precision.BF16, Optimizer.SGD, 4, 14),
        (Precision.FP32, Optimizer.SGD, 4, 12),
    ],
)
def test_bytes_per_parameter(precision: Precision, optimizer: Optimizer, gradient_bytes: int, state_bytes: int) -> None:
    its = dataclasses.replace(PLAIN, precision=precision, optimizer=optimizer, gradient_bytes=gradient_bytes)
    assert its.state_bytes == state_bytes


@pytest.mark.parametrize("field", ["global_batch_size", "seq_len"])
@pytest.mark.parametrize(("value", "accepted"), [(0, False), (1, True), (10**9, True), (10**9 + 1, False), (-1, False)])
def test_sizes_at_their_limits(field: str, value: int, accepted: bool) -> None:
    if accepted:
        assert getattr(dataclasses.replace(PLAIN, **{field: value}), field) == value
    else:
        with pytest.raises(ValueError, match=f"{field} must be between 1 and 1e9"):
            dataclasses.replace(PLAIN, **{field: value})


@pytest.mark.parametrize("value", [0.99, float("inf"), float("nan")])
def test_imbalance_is_at_least_1_and_finite(value: float) -> None:
    with pytest.raises(ValueError, match="expert_imbalance must be at least 1 and finite"):
        dataclasses.replace(PLAIN, expert_imbalance=value)


@pytest.mark.parametrize("value", [0, 1, 3, 8])
def test_gradients_have_2_or_4_bytes(value: int) -> None:
    with pytest.raises(ValueError, match="gradient_bytes must be 2 or 4"):
        dataclasses.replace(PLAIN, gradient_bytes=value)


@pytest.mark.parametrize(
    "workload",
    [PLAIN, dataclasses.replace(PLAIN, precision=Precision.FP32, optimizer=Optimizer.SGD, attention=Attention.UNFUSED)],
)
def test_json_is_read_back(workload: Workload) -> None:
    assert workload_from_json(json.loads(json.dumps(workload.to_json()))) == workload


def test_the_digest_sees_every_field() -> None:
    changes = [{"global_batch_size": 9}, {"seq_len": 129}, {"precision": Precision.FP16}, {"optimizer": Optimizer.LION}]
    changes += [{"gradient_bytes": 2}, {"attention": Attention.UNFUSED}, {"stack": "torch-eager"}]
    changes += [{"expert_imbalance": 1.5}]
    assert len(changes) == len(dataclasses.fields(Workload))
    digests = {PLAIN.digest(), *(dataclasses.replace(PLAIN, **change).digest() for change in changes)}
    assert len(digests) == len(changes) + 1
