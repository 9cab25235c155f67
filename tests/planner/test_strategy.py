"""Strategy: degrees that follow from others, and its JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from planner.strategy import CpKind, RankOrder, Recompute, Strategy, strategy_from_json

# 2 x 2 x 2 x (4 x 2) = 64 devices; experts: 4 x 2 of the 32 ranks beside pp.
FULL = Strategy(
    tp=2,
    cp=2,
    pp=2,
    ep=4,
    etp=2,
    dp_shard=4,
    dp_replicate=2,
    zero_stage=1,
    layers_per_stage=(3, 3),
    recompute_layers=(1, 0),
)


def test_derived_degrees_by_hand() -> None:
    assert FULL.dp == 8
    assert FULL.world_size == 64
    assert FULL.num_stages == 2
    assert FULL.state_shards == 4 * 2  # context ranks shard too
    assert FULL.expert_replicas == 8 * 2 * 2 // (4 * 2) == 4
    assert FULL.expert_state_shards == 4 * 2 * 2 // (4 * 2) == 2
    assert FULL.degrees == {
        "dp": 8, "dp_shard": 4, "dp_replicate": 2, "tp": 2, "pp": 2, "vpp": 1, "cp": 2, "ep": 4, "etp": 2
    }  # fmt: skip


def test_nothing_is_sharded_without_zero() -> None:
    plain = dataclasses.replace(FULL, zero_stage=0, dp_shard=1, dp_replicate=8)
    assert plain.state_shards == plain.expert_state_shards == 1


def test_experts_over_more_ranks_than_a_shard_group_are_not_sharded() -> None:
    # 16 expert ranks, shard groups of 4 x 2 x 2 = 16 ranks: each expert weight is there once.
    assert dataclasses.replace(FULL, ep=8).expert_state_shards == 1
    assert dataclasses.replace(FULL, ep=16).expert_state_shards == 1


def test_schedule_follows_from_virtual_stages() -> None:
    assert FULL.schedule == "1f1b"
    looped = dataclasses.replace(FULL, vpp=3, layers_per_stage=(1,) * 6, recompute_layers=(0,) * 6)
    assert looped.schedule == "interleaved-1f1b"
    assert looped.num_stages == 6


@pytest.mark.parametrize(
    "name",
    ["tp", "cp", "pp", "vpp", "ep", "etp", "dp_shard", "dp_replicate", "microbatch_size", "num_microbatches"],
)
@pytest.mark.parametrize("value", [0, -1])
def test_degrees_start_at_1(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got {value}"):
        dataclasses.replace(FULL, **{name: value})


@pytest.mark.parametrize("value", [-1, 4])
def test_zero_stages_are_0_to_3(value: int) -> None:
    with pytest.raises(ValueError, match="zero_stage must be 0, 1, 2 or 3"):
        dataclasses.replace(FULL, zero_stage=value)


@pytest.mark.parametrize("name", ["layers_per_stage", "recompute_layers"])
def test_each_virtual_stage_has_an_entry(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must have pp x vpp = 2 entries"):
        dataclasses.replace(FULL, **{name: (1, 1, 1)})


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(),
        FULL,
        dataclasses.replace(
            FULL,
            cp_kind=CpKind.ULYSSES,
            rank_order=RankOrder.DP_OUTER,
            recompute=Recompute.FULL,
            sequence_parallel=False,
        ),
    ],
)
def test_json_is_read_back(strategy: Strategy) -> None:
    assert strategy_from_json(json.loads(json.dumps(strategy.to_json()))) == strategy
