"""compose() and the rank's costs: by hand, overlap within its limits, and non-decreasing in every entry."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collectives import Affine
from hardware import build_cluster, load_node
from planner.cost import (
    ANY_CP_KIND,
    FREE,
    Entries,
    Group,
    JobCosts,
    compose,
    compose_layers,
    exposed_reduction,
    gathered_bytes,
    job_costs,
    rank_states,
    rank_tails,
)
from planner.layer_costs import CP_KINDS, Kind
from planner.strategy import CpKind
from planner.workload import Precision, Workload
from tests.planner.readers.samples import CONFIGS, LLAMA, read
from tests.planner.test_tables import keys, table

CLUSTER = build_cluster(load_node("dgx-a100-80gb"), 4)
JOB = job_costs(CLUSTER, Workload(global_batch_size=8, seq_len=128), overlap=0.5, headroom=0.1)


def group(latency: float, per_byte: float) -> Group:
    """A group of one algorithm, for one row."""
    affine: Affine = (np.array([latency]), np.array([per_byte]))
    return Group(algorithms=(affine,))


def entries(**changes: Any) -> Entries:
    """One row with one layer type: forward 10 ms, backward 20 ms, a million dense weights over 8 shards."""
    values: dict[str, Any] = {
        "forward": np.array([[10e-3]]),
        "backward": np.array([[20e-3]]),
        "recompute": np.zeros((3, 1, 1)),
        "saved": np.zeros((3, 1, 1)),
        "transient": np.zeros((3, 1, 1)),
        "price": np.zeros((3, 1)),
        "dense_parameters": np.array([[1e6]]),
        "expert_parameters": np.array([[0.0]]),
        "num_microbatches": np.array([4]),
        "zero_stage": np.array([0]),
        "dense_shards": np.array([8]),
        "expert_shards": np.array([2]),
        "dense_shard_group": group(1e-6, 1e-9),
        "dense_replica_group": group(1e-6, 1e-8),
        "expert_shard_group": group(1e-6, 1e-9),
        "expert_replica_group": group(1e-6, 1e-8),
        "link_time": np.zeros((1, 1)),
        "shared_time": np.zeros(1),
        "shared_parameters": np.zeros(1),
    }
    return Entries(**values | changes)


# Layers with ZeRO.


@pytest.mark.parametrize("zero_stage", [0, 1])
def test_below_zero_2_a_layer_takes_its_table_times(zero_stage: int) -> None:
    got = compose(entries(zero_stage=np.array([zero_stage])), JOB)
    assert (got.forward[0, 0], got.backward[0, 0]) == (10e-3, 20e-3)


def test_zero_3_gathers_what_compute_does_not_hide() -> None:
    # 2 MB of weights at 10 ns a byte = 20 ms, of which half of 10 ms is hidden forward: 10 + 15. Backward 20 ms again
    # and 4 MB of gradients = 40 ms, of which half of 20 ms is hidden: 20 + 50. Latencies of 1 us each.
    slow = entries(zero_stage=np.array([3]), dense_shard_group=group(1e-6, 1e-8))
    got = compose(slow, JOB)
    assert got.forward[0, 0] == pytest.approx(25e-3 + 1e-6)
    assert got.backward[0, 0] == pytest.approx(70e-3 + 2e-6)


def test_zero_2_reduces_in_each_microbatch_and_gathers_nothing_forward() -> None:
    got = compose(entries(zero_stage=np.array([2]), dense_shard_group=group(1e-6, 1e-8)), JOB)
    assert got.forward[0, 0] == 10e-3
    assert got.backward[0, 0] == pytest.approx(20e-3 + 40e-3 + 1e-6 - 10e-3)


def test_communication_that_compute_covers_is_free() -> None:
    got = compose(entries(zero_stage=np.array([3]), dense_shard_group=group(0.0, 1e-12)), JOB)
    assert (got.forward[0, 0], got.backward[0, 0]) == (10e-3, 20e-3)


@given(
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1e-6),
    st.sampled_from([0, 1, 2, 3]),
    st.floats(0, 1),
)
def test_overlapped_time_lies_between_compute_and_the_sum(
    forward: float, backward: float, per_byte: float, zero_stage: int, overlap: float
) -> None:
    job = dataclasses.replace(JOB, overlap=overlap)
    row = entries(
        forward=np.array([[forward]]),
        backward=np.array([[backward]]),
        zero_stage=np.array([zero_stage]),
        dense_shard_group=group(1e-6, per_byte),
    )
    gather = (1e-6 + 2e6 * per_byte) * (zero_stage >= 3)
    reduce = (1e-6 + 4e6 * per_byte) * (zero_stage >= 2)
    got = compose(row, job)
    for whole, compute, traffic in (
        (got.forward[0, 0], forward, gather),
        (got.backward[0, 0], backward, gather + reduce),
    ):
        assert max(compute, traffic) * (1 - 1e-9) <= whole <= (compute + traffic) * (1 + 1e-9)


def test_open_choices_cost_nothing_of_data_parallelism() -> None:
    still_open = entries(zero_stage=3, dense_shard_group=FREE, dense_replica_group=FREE, expert_shard_group=FREE,
                         expert_replica_group=FREE)  # fmt: skip
    assert still_open.open
    got = compose(still_open, JOB)
    assert (got.forward[0, 0], got.backward[0, 0]) == (10e-3, 20e-3)
    tails = rank_tails(np.array([1e6]), np.array([0.0]), still_open, JOB)
    assert tails.reduction[0] == tails.gather[0] == 0


# The end of a step.


def test_plain_data_parallelism_reduces_all_gradients_once() -> None:
    # No shards: all-reduce of 4 MB over the replicas = 2 x (1 us + 4e6 x 10 ns) = 80 ms + 2 us.
    tails = rank_tails(np.array([1e6]), np.array([0.0]), entries(dense_shards=np.array([1])), JOB)
    assert tails.reduction[0] == pytest.approx(80e-3 + 2e-6)
    assert tails.gather[0] == 0


def test_zero_1_scatters_gradients_and_gathers_weights() -> None:
    # Reduce-scatter of 4 MB at 1 ns = 4 ms; replicas all-reduce an eighth at 10 ns: 2 x 5 ms; gather of 2 MB = 2 ms.
    tails = rank_tails(np.array([1e6]), np.array([0.0]), entries(zero_stage=np.array([1])), JOB)
    assert tails.reduction[0] == pytest.approx(4e-3 + 1e-6 + 10e-3 + 2e-6)
    assert tails.gather[0] == pytest.approx(2e-3 + 1e-6)


@pytest.mark.parametrize(("zero_stage", "gathers"), [(0, False), (1, True), (2, True), (3, False)])
def test_new_weights_are_gathered_where_only_the_update_was_sharded(zero_stage: int, gathers: bool) -> None:
    tails = rank_tails(np.array([1e6]), np.array([0.0]), entries(zero_stage=np.array([zero_stage])), JOB)
    assert (tails.gather[0] > 0) == gathers


def test_a_rank_updates_its_shard() -> None:
    # 125,000 weights: 14 bytes of states read and written, 4 of gradients read: 4 MB at 2,039 x 0.75 GB/s + 6.5 us.
    tails = rank_tails(np.array([1e6]), np.array([0.0]), entries(zero_stage=np.array([1])), JOB)
    assert tails.optimizer[0] == pytest.approx(6.5e-6 + 125_000 * 32 / (2039e9 * 0.75))
    assert tails.update[0] == tails.optimizer[0] + tails.gather[0]


def test_experts_reduce_over_their_own_groups() -> None:
    slow = entries(zero_stage=np.array([1]), expert_shard_group=group(0.0, 1e-7), expert_replica_group=group(0.0, 0.0))
    dense = rank_tails(np.array([1e6]), np.array([0.0]), slow, JOB).reduction[0]
    both = rank_tails(np.array([1e6]), np.array([1e6]), slow, JOB).reduction[0]
    assert both - dense == pytest.approx(4e6 * 1e-7)


def test_the_last_backward_hides_a_share_of_the_reduction() -> None:
    assert exposed_reduction(10.0, 4.0, JOB) == 8.0  # 10 - 0.5 x 4
    assert exposed_reduction(1.0, 4.0, JOB) == 0.0


# Memory of a rank.


def test_states_by_stage_and_kind_of_weight() -> None:
    # 1,001 dense weights over 8 (126 a shard), 11 expert weights over 2 (6 a shard); ZeRO-1: 6 bytes whole, 12 sharded.
    dense, expert = rank_states(np.array([1001]), np.array([11]), entries(zero_stage=np.array([1])), JOB)
    assert int(dense.total[0]) == 6 * 1001 + 12 * 126
    assert int(expert.total[0]) == 6 * 11 + 12 * 6


@pytest.mark.parametrize(("zero_stage", "per_weight"), [(0, 0), (1, 0), (2, 4), (3, 2 * 2 + 4)])
def test_what_zero_holds_unsharded_for_a_moment(zero_stage: int, per_weight: int) -> None:
    # ZeRO-3 two layers of bf16 weights, ZeRO-2/3 one layer of fp32 gradients.
    held = gathered_bytes(np.array([100]), np.array([10]), entries(zero_stage=np.array([zero_stage])), JOB)
    assert held.tolist() == [110 * per_weight]


def test_the_budget_leaves_headroom_and_reserve() -> None:
    cluster = dataclasses.replace(CLUSTER, reserve=2**30)
    job = job_costs(cluster, Workload(global_batch_size=8, seq_len=128), overlap=0.5, headroom=0.1)
    assert job.budget == int(CLUSTER.device.memory * 0.9) - 2**30
    assert job.runtime == CLUSTER.device.context_memory + CLUSTER.device.communicator_memory
    single = dataclasses.replace(Workload(global_batch_size=8, seq_len=128), precision=Precision.FP32)
    assert job_costs(CLUSTER, single, 0.5, 0.1).weight_bytes == 4


# Monotone: a bound is the same function of lesser entries.

NUMBERS = ("forward", "backward", "dense_parameters", "expert_parameters")
GROUPS = ("dense_shard_group", "dense_replica_group", "expert_shard_group", "expert_replica_group")


@st.composite
def ordered_entries(draw: st.DrawFn) -> tuple[Entries, Entries]:
    """Two rows, the second with no entry below the first."""
    less: dict[str, Any] = {"zero_stage": np.array([draw(st.integers(0, 3))])}
    more = dict(less)
    for name in NUMBERS:
        scale = 1.0 if name in ("forward", "backward") else 1e9
        values = [
            float(round(value * scale)) if scale > 1 else value
            for value in (draw(st.floats(0, 1)), draw(st.floats(0, 1)))
        ]
        less[name], more[name] = (np.array([[value]]) for value in sorted(values))
    for name in GROUPS:
        latencies, slopes = (sorted((draw(st.floats(0, 1e-3)), draw(st.floats(0, 1e-8)))) for _ in range(2))
        less[name], more[name] = (group(latencies[index], slopes[index]) for index in range(2))
    return entries(**less), entries(**more)


def costs_of(row: Entries, job: JobCosts) -> list[float]:
    times = compose(row, job)
    dense, expert = row.dense_parameters[0], row.expert_parameters[0]
    tails = rank_tails(dense, expert, row, job)
    states = rank_states(dense, expert, row, job)
    found = [times.forward, times.backward, tails.reduction, tails.optimizer, tails.gather]
    found += [states[0].total, states[1].total, gathered_bytes(dense, expert, row, job)]
    return [float(np.asarray(value).reshape(-1)[0]) for value in found]


@given(ordered_entries())
def test_no_cost_falls_when_an_entry_grows(rows: tuple[Entries, Entries]) -> None:
    less, more = (costs_of(row, JOB) for row in rows)
    for low, high in zip(less, more, strict=True):
        assert low <= high * (1 + 1e-12)


@given(st.integers(1, 10**9), st.integers(1, 10**6))
def test_whole_shards_never_need_less_than_their_bound(weights: int, shards: int) -> None:
    row = entries(zero_stage=np.array([3]), dense_shards=np.array([shards]))
    whole, bound = (
        rank_states(np.array([float(weights)]), np.array([0.0]), row, JOB, whole=whole)[0].total[0]
        for whole in (True, False)
    )
    assert bound <= whole < bound + 18 + 1e-6


# Layers from a table.


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_least_entries_are_the_least_over_kinds_of_context_parallelism(name: str) -> None:
    made = table(read(CONFIGS[name]), keys(tp=2, cp=4))
    times = compose_layers(made, [True] * len(made.layer_types))
    for array in (times.forward, times.backward):
        assert (array[:, ANY_CP_KIND] == array[:, :ANY_CP_KIND].min(axis=1)).all()
    for array in (times.recompute, times.saved, times.transient):
        assert (array[:, :, ANY_CP_KIND] == array[:, :, :ANY_CP_KIND].min(axis=2)).all()


def test_a_ring_hides_behind_attention_and_no_more() -> None:
    made = table(read(LLAMA), keys(cp=4))
    costs = made.costs[CpKind.RING, "decoder"]
    index = made.layer_types.index("decoder")
    for hidden in (0.0, float(costs.cp_forward[0]) / 2, 1.0):
        changed = dataclasses.replace(costs, attention_forward=np.array([hidden]))
        altered = dataclasses.replace(made, costs=made.costs | {(CpKind.RING, "decoder"): changed})
        got = compose_layers(altered, [False, True, False]).forward[index, CP_KINDS.index(CpKind.RING), 0]
        exposed = max(0.0, float(costs.cp_forward[0]) - hidden)
        assert got == pytest.approx(float(costs.forward[0] + costs.tp_forward[0]) + exposed)


def test_layer_times_do_not_fall_when_a_column_grows() -> None:
    made = table(read(CONFIGS["deepseek_v3"]), keys(tp=2, cp=2, ep=2))
    body = [False, True, True, False]
    before = compose_layers(made, body)
    columns = ("forward", "input_grad", "weight_grad", "tp_forward", "tp_backward", "ep_forward", "cp_forward")
    for column in (*columns, "cp_backward", "recompute", "saved", "transient"):
        grown = {
            key: dataclasses.replace(costs, **{column: getattr(costs, column) * 2}) for key, costs in made.costs.items()
        }
        after = compose_layers(dataclasses.replace(made, costs=grown), body)
        for name in ("forward", "backward", "recompute", "saved", "transient"):
            assert (getattr(after, name) >= getattr(before, name)).all(), (column, name)


def test_price_is_time_per_freed_byte_of_layers_that_may_recompute() -> None:
    made = table(read(LLAMA), keys(tp=2))
    times = compose_layers(made, [name == "decoder" for name in made.layer_types])
    costs = made.costs[CpKind.RING, "decoder"]
    freed = float(costs.saved[Kind.NONE, 0] - costs.saved[Kind.FULL, 0])
    assert times.price[Kind.FULL, 0, 0] == pytest.approx(float(costs.recompute[Kind.FULL, 0]) / freed)
    assert np.isinf(times.price[Kind.NONE]).all()
