"""Bytes of weights, gradients and optimizer states under ZeRO."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.memory import StateBytes, ceil_div, state_bytes

BF16_ADAM = {"weight_bytes": 2, "gradient_bytes": 4, "optimizer_bytes": 12}


def states(num_parameters: int, shards: int, zero_stage: int) -> StateBytes:
    return state_bytes(num_parameters, ceil_div(num_parameters, shards), zero_stage, **BF16_ADAM)


def test_plain_states_take_18_bytes_a_weight() -> None:
    # bf16 weight 2, fp32 gradient 4, fp32 master 4, two fp32 moments 8.
    got = states(1000, 1, 0)
    assert (got.weights, got.gradients, got.optimizer, got.total) == (2000, 4000, 12_000, 18_000)


@pytest.mark.parametrize(("zero_stage", "total"), [(0, 18_000), (1, 7500), (2, 4000), (3, 2250)])
def test_zero_shards_one_more_kind_a_stage(zero_stage: int, total: int) -> None:
    # 1000 weights over 8: shards of 125. ZeRO-1 6 + 12/8 = 7.5; ZeRO-2 2 + 16/8 = 4; ZeRO-3 18/8 = 2.25 bytes each.
    assert states(1000, 8, zero_stage).total == total


def test_a_shard_is_rounded_up() -> None:
    # 1001 over 8: 126 weights.
    got = states(1001, 8, 3)
    assert (got.weights, got.gradients, got.optimizer) == (2 * 126, 4 * 126, 12 * 126)


@pytest.mark.parametrize(
    ("value", "divisor", "quotient"),
    [(0, 8, 0), (1, 8, 1), (8, 8, 1), (9, 8, 2), (10**30, 7, 142857142857142857142857142858)],
)
def test_ceil_div(value: int, divisor: int, quotient: int) -> None:
    assert ceil_div(value, divisor) == quotient


@given(st.integers(0, 10**15), st.integers(1, 10**6))
def test_each_stage_needs_no_more_than_the_one_before(num_parameters: int, shards: int) -> None:
    totals = [states(num_parameters, shards, stage).total for stage in range(4)]
    assert totals == sorted(totals, reverse=True)
    assert totals[3] * shards >= totals[0]  # nothing is lost in sharding


def test_arrays_of_stages_stay_whole_numbers() -> None:
    stage = np.arange(4)
    got = state_bytes(np.full(4, 10**15), np.full(4, 10**15 // 8), stage, **BF16_ADAM)
    assert got.total.dtype == np.int64
    assert got.total.tolist() == [states(10**15, 8, int(number)).total for number in stage]


def test_huge_counts_are_exact() -> None:
    assert states(10**18 + 1, 1, 0).total == 18 * (10**18 + 1)
