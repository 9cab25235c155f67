"""Tables: what one layer keeps, computes and exchanges, by hand and against sums over a model that is not split."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.collectives import all_to_all_time, reduce_scatter_time, ring_exchange_time
from costmodels.stacks import Stack, load_stack
from hardware import Cluster, build_cluster, load_node
from planner.graph import Block, Dim, Layer, ModelGraph, Tensor
from planner.layer_costs import Keys, Kind, LayerCosts, distinct_rows
from planner.strategy import CpKind
from planner.tables import LayerTable, build_table
from planner.workload import Attention, Precision, Workload
from tests.planner.readers.samples import CONFIGS, DEEPSEEK_V3, GPT2, LLAMA, MIXTRAL, read

SEQ, MICROBATCH = 128, 2
A100 = build_cluster(load_node("dgx-a100-80gb"), 4)
STACK = load_stack("megatron-core")
NO_FLOOR = dataclasses.replace(STACK, launch_floor_forward=0.0, launch_floor_backward=0.0)
FLASH = Workload(global_batch_size=64, seq_len=SEQ)
UNFUSED = dataclasses.replace(FLASH, attention=Attention.UNFUSED)


def keys(tp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1, microbatch_size: int = MICROBATCH) -> Keys:
    """One key."""
    values = {"tp": tp, "cp": cp, "ep": ep, "etp": etp, "microbatch_size": microbatch_size}
    return Keys(**{name: np.array([value], dtype=np.int64) for name, value in values.items()})


def table(
    model: ModelGraph,
    its: Keys,
    *,
    workload: Workload = FLASH,
    cluster: Cluster = A100,
    stack: Stack = NO_FLOOR,
    sequence_parallel: bool = True,
) -> LayerTable:
    return build_table(model, cluster, workload, stack, its, sequence_parallel)


def layer(made: LayerTable, name: str = "decoder", kind: CpKind = CpKind.RING) -> LayerCosts:
    return made.costs[kind, name]


def saved(costs: LayerCosts, kind: Kind = Kind.NONE) -> int:
    return int(costs.saved[kind, 0])


# What a layer keeps. s tokens of a sequence, b sequences, h hidden, a heads, t tensor parallel; bytes over s b h.

GPT = read(GPT2)  # h 64, a 8, ffn 256, dropout on
SBH = SEQ * MICROBATCH * 64
ROWS = SEQ * MICROBATCH
LOG_SUM_EXP = 4 * 8 * ROWS
"""fp32 log-sum-exp of flash attention: one per row and head."""
STATISTICS = 2 * 4 * ROWS
"""One fp32 statistic per row of both norms."""


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_gpt_with_sequence_parallelism_keeps_34_bytes_over_t(tp: int) -> None:
    # Korthikanti et al. 2022, equation 3 without scores: norms 2+2; q, k, v share one input 2; q, k 4; v 2; attention
    # output 2; dropout mask 1; fc input 2, activation input 8, proj input 8, mask 1: 34, all divided by t.
    got = saved(layer(table(GPT, keys(tp=tp))))
    assert got == (34 * SBH + LOG_SUM_EXP + STATISTICS) // tp


@pytest.mark.parametrize("tp", [1, 2, 4, 8])
def test_gpt_without_sequence_parallelism_keeps_10_plus_24_over_t(tp: int) -> None:
    # Equation 2: norm inputs 4, inputs of the two first products 4, dropout masks 2 are on each rank; the rest is /t.
    got = saved(layer(table(GPT, keys(tp=tp), sequence_parallel=False)))
    assert got == 10 * SBH + (24 * SBH + LOG_SUM_EXP) // tp + STATISTICS


@pytest.mark.parametrize("tp", [1, 4])
def test_unfused_attention_keeps_5_bytes_per_score(tp: int) -> None:
    # 5 a s^2 b / t more: softmax output 2, mask 1, dropout output 2 (section 4.1); the log-sum-exp is gone.
    scores = 8 * SEQ * SEQ * MICROBATCH
    got = saved(layer(table(GPT, keys(tp=tp), workload=UNFUSED)))
    assert got == (34 * SBH + 5 * scores + STATISTICS) // tp


def test_full_recomputation_keeps_the_input_of_the_layer() -> None:
    costs = layer(table(GPT, keys(tp=4)))
    assert saved(costs, Kind.FULL) == 2 * SBH // 4
    whole = layer(table(GPT, keys(tp=4), sequence_parallel=False))
    assert saved(whole, Kind.FULL) == 2 * SBH


def test_selective_recomputation_frees_norm_outputs_and_statistics() -> None:
    costs = layer(table(GPT, keys(tp=2)))
    assert saved(costs) - saved(costs, Kind.SELECTIVE) == (2 * 2 * SBH + STATISTICS) // 2


def test_selective_recomputation_of_unfused_attention_frees_the_scores() -> None:
    costs = layer(table(GPT, keys(tp=2), workload=UNFUSED))
    scores = 8 * SEQ * SEQ * MICROBATCH
    assert saved(costs) - saved(costs, Kind.SELECTIVE) >= 5 * scores // 2


def test_llama_layer_by_hand() -> None:
    # h 64, 8 heads, 2 KV heads, ffn 96, bf16. Per token, elements: norm input 64, norm output 64 (q, k, v share it),
    # rotated q 64, rotated k 16, v 16, attention output 64, norm input 64, norm output 64, gate and up 192, product 96:
    # 704. fp32: one statistic for each of 2 norms, 8 log-sum-exps: 10.
    got = saved(layer(table(read(LLAMA), keys())))
    assert got == ROWS * (2 * 704 + 4 * 10)


def test_head_keeps_fp32_probabilities_in_place_of_logits() -> None:
    # vocab 1000 padded to 8 x 128 = 1024; final norm input and output 64 each, its statistic; softmax 4 bytes each.
    made = table(read(LLAMA), keys(tp=1))
    assert saved(layer(made, "head")) == ROWS * (2 * 128 + 4 + 4 * 1024)
    # Four ranks pad to 4 x 128 x 2 = 1024: 256 columns each; the norm's tokens are split over tp too.
    made = table(read(LLAMA), keys(tp=4))
    assert saved(layer(made, "head")) == ROWS * (2 * 128 + 4) // 4 + ROWS * 4 * 256


def test_fp32_activations_take_twice_the_bytes_of_bf16() -> None:
    single = dataclasses.replace(FLASH, precision=Precision.FP32)
    both = [saved(layer(table(read(LLAMA), keys(), workload=workload))) for workload in (FLASH, single)]
    assert both[1] - both[0] == ROWS * 2 * 704


# Communication.


def test_a_dense_layer_exchanges_four_times_over_tp() -> None:
    # Gathers before q and before gate_up, reductions after out and down, each of 2 s b h bytes; backward the adjoints.
    costs = layer(table(read(LLAMA), keys(tp=8)))
    links = [level.link for level in A100.levels]
    once = float(reduce_scatter_time(2 * SBH, [8, 1], links))
    assert costs.tp_forward[0] == pytest.approx(4 * once)
    assert costs.tp_backward[0] == pytest.approx(4 * once)


def test_without_sequence_parallelism_two_all_reduces_forward_and_two_backward() -> None:
    split = layer(table(read(LLAMA), keys(tp=8)))
    whole = layer(table(read(LLAMA), keys(tp=8), sequence_parallel=False))
    assert whole.tp_forward[0] == pytest.approx(split.tp_forward[0])  # all-reduce = reduce-scatter + all-gather
    assert whole.tp_backward[0] == pytest.approx(split.tp_backward[0])


def test_tp_across_two_nodes_sends_an_eighth_of_the_bytes_out() -> None:
    # 16 ranks as 8 in each of 2 nodes, 4 exchanges. With latency left out, slope = 7/8 / B_node + 1/2 / 8 / B_nic.
    big = dataclasses.replace(FLASH, seq_len=1 << 16)
    costs = [layer(table(read(LLAMA | {"num_attention_heads": 16, "num_key_value_heads": 16, "hidden_size": 256}),
                         keys(tp=tp), workload=big)) for tp in (8, 16)]  # fmt: skip
    nic = A100.levels[1].link.bandwidth
    num_bytes = 2 * MICROBATCH * (1 << 16) * 256
    extra = 4 * num_bytes * (1 / 2 / 8 / nic)
    assert costs[1].tp_forward[0] - costs[0].tp_forward[0] == pytest.approx(extra, rel=0.1)
    flat = 4 * num_bytes * (15 / 16) / nic  # what a model without hierarchy would charge
    assert costs[1].tp_forward[0] < flat / 4


def test_experts_send_each_token_to_its_choices_and_back() -> None:
    # mixtral sample: 2 choices of 4 experts; dispatch and combine each move tokens/(cp tp) x 2 x 64 elements.
    costs = layer(table(read(MIXTRAL), keys(ep=4)), "moe_decoder")
    links = [level.link for level in A100.levels]
    once = float(all_to_all_time(2 * 2 * SBH, [4, 1], links))
    assert costs.ep_forward[0] == pytest.approx(2 * once)


def test_expert_tensor_parallelism_gathers_and_reduces_around_the_experts() -> None:
    # Two ranks share each expert: a rank's 2 s b h rows go over ep, are gathered over etp (twice the rows), and back.
    costs = layer(table(read(MIXTRAL), keys(ep=2, etp=2)), "moe_decoder")
    links = [level.link for level in A100.levels]
    travel = float(all_to_all_time(2 * 2 * SBH, [2, 1], links))
    gather = float(reduce_scatter_time(2 * 2 * 2 * SBH, [2, 1], links))
    assert costs.ep_forward[0] == pytest.approx(2 * travel + 2 * gather)


def test_imbalance_slows_experts_and_their_exchange_only() -> None:
    even = layer(table(read(MIXTRAL), keys(ep=4)), "moe_decoder")
    uneven = dataclasses.replace(FLASH, expert_imbalance=1.5)
    skewed = layer(table(read(MIXTRAL), keys(ep=4), workload=uneven), "moe_decoder")
    assert skewed.forward[0] >= even.forward[0]
    assert skewed.ep_forward[0] > even.ep_forward[0]
    assert skewed.tp_forward[0] == even.tp_forward[0]


def test_ring_carries_keys_and_values_once_forward_and_twice_backward() -> None:
    costs = layer(table(read(LLAMA), keys(tp=2, cp=4)))
    links = [level.link for level in A100.levels]
    # 2 KV heads over tp 2: one of 8 each for key and value, 2 bytes, tokens / 4.
    once = float(ring_exchange_time(2 * (8 + 8) * ROWS // 4, [4, 1], links))
    assert costs.cp_forward[0] == pytest.approx(once)
    assert costs.cp_backward[0] == pytest.approx(2 * once)
    assert costs.attention_forward[0] > 0


def test_ulysses_swaps_q_k_v_and_the_output_and_hides_nothing() -> None:
    costs = layer(table(read(LLAMA), keys(cp=2)), kind=CpKind.ULYSSES)
    links = [level.link for level in A100.levels]
    parts = [2 * width * ROWS // 2 for width in (64, 16, 16, 64)]
    assert costs.cp_forward[0] == pytest.approx(sum(float(all_to_all_time(part, [2, 1], links)) for part in parts))
    assert costs.attention_forward[0] == 0


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_one_rank_pays_no_communication(name: str) -> None:
    made = table(read(CONFIGS[name]), keys())
    for costs in made.costs.values():
        for column in ("tp_forward", "tp_backward", "ep_forward", "cp_forward", "cp_backward"):
            assert getattr(costs, column)[0] == 0


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_one_rank_holds_all_weights(name: str) -> None:
    model = read(CONFIGS[name])
    made = table(model, keys())
    held = sum(
        block.count * int(costs.dense_parameters[0] + costs.expert_parameters[0])
        for block in model.blocks
        for costs in [made.costs[CpKind.RING, block.layer_type]]
    )
    # Embedding and head pad 1000 words to 1024; a tied head counts its copy, which pp = 1 gives back.
    padding = 2 * 24 * 64
    assert held - int(made.shared_parameters[0]) == model.num_parameters + padding // (
        2 if model.shared_parameters else 1
    )


@st.composite
def split_of(draw: st.DrawFn) -> tuple[str, int, int, int, int]:
    name = draw(st.sampled_from(sorted(CONFIGS)))
    tp, cp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2, 4]))
    ep, etp = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2, 4]))
    return name, tp, cp, ep, etp


@given(split_of())
def test_weights_of_all_ranks_add_up_to_the_model_its_padding_and_its_copies(
    chosen: tuple[str, int, int, int, int],
) -> None:
    name, tp, cp, ep, etp = chosen
    model = read(CONFIGS[name])
    made = table(model, keys(tp=tp, cp=cp, ep=ep, etp=etp))
    for layer_type in made.layer_types:
        its, costs = model.layer_types[layer_type], made.costs[CpKind.RING, layer_type]
        dense = expert = 0
        for parameter in its.parameters:
            axes = {its.dims[dim].axis.value for dim in parameter.dims if its.dims[dim].axis is not None}
            size = its.num_elements(parameter.dims)
            if "vocab" in parameter.dims:
                size = size // 1000 * math.ceil(1000 / (128 * tp)) * 128 * tp
            if "kv_heads" in parameter.dims:
                size = size // its.dims["kv_heads"].size * max(its.dims["kv_heads"].size, tp)
            if "ep" in axes:
                expert += size
            else:  # on every tp rank, whole or a share
                dense += size if "tp" in axes else size * tp
        assert int(costs.dense_parameters[0]) * tp == dense
        assert int(costs.expert_parameters[0]) * ep * etp == expert


# Times.


@given(
    st.sampled_from(sorted(CONFIGS)),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2]),
    st.floats(1.0, 16.0),
    st.sampled_from(["bandwidth", "memory", "peak"]),
)
def test_a_faster_device_or_link_never_costs_more(name: str, tp: int, cp: int, factor: float, what: str) -> None:
    device = A100.device
    levels = A100.levels
    if what == "bandwidth":
        levels = tuple(
            dataclasses.replace(
                level, link=dataclasses.replace(level.link, bandwidth=level.link.bandwidth * factor, line_rate=None)
            )
            for level in levels
        )
    elif what == "memory":
        device = dataclasses.replace(device, memory_bandwidth=device.memory_bandwidth * factor)
    else:
        peaks = {precision: rate * factor for precision, rate in device.peak_flops.items()}
        device = dataclasses.replace(device, peak_flops=peaks)
    faster = dataclasses.replace(A100, device=device, levels=levels)
    model, its = read(CONFIGS[name]), keys(tp=tp, cp=cp, ep=2 if tp * cp > 1 else 1)
    before, after = (table(model, its, cluster=cluster, stack=STACK) for cluster in (A100, faster))
    for key, costs in before.costs.items():
        for column in ("forward", "tp_forward", "tp_backward", "ep_forward", "cp_forward", "cp_backward", "recompute"):
            assert (getattr(after.costs[key], column) <= getattr(costs, column) * (1 + 1e-12)).all()
        whole = costs.input_grad + costs.weight_grad
        assert (after.costs[key].input_grad + after.costs[key].weight_grad <= whole * (1 + 1e-12)).all()


def test_a_layer_takes_at_least_its_launches() -> None:
    model = read(LLAMA)
    costs = layer(table(model, keys(), stack=STACK))
    num_ops = len(model.layer_types["decoder"].ops)
    assert costs.forward[0] == pytest.approx(num_ops * STACK.launch_floor_forward)
    assert costs.input_grad[0] + costs.weight_grad[0] == pytest.approx(num_ops * STACK.launch_floor_backward)


def test_backward_of_products_is_twice_the_forward() -> None:
    # One linear: forward f; weight gradient f, input gradient f.
    costs = layer(table(read(LLAMA), keys()), "head")
    assert costs.weight_grad[0] > 0
    assert costs.input_grad[0] > costs.weight_grad[0]  # and the norm and the loss


def test_full_recomputation_repeats_the_forward_pass_and_its_collectives() -> None:
    costs = layer(table(read(DEEPSEEK_V3), keys(tp=2, ep=2)), "moe_decoder")
    assert costs.recompute[Kind.FULL, 0] == pytest.approx(costs.forward[0] + costs.tp_forward[0] + costs.ep_forward[0])
    assert 0 < costs.recompute[Kind.SELECTIVE, 0] < costs.recompute[Kind.FULL, 0]


def test_more_is_kept_the_less_is_recomputed() -> None:
    for name in sorted(CONFIGS):
        for costs in table(read(CONFIGS[name]), keys(tp=2)).costs.values():
            assert costs.saved[Kind.NONE, 0] >= costs.saved[Kind.SELECTIVE, 0] >= costs.saved[Kind.FULL, 0]


# Keys and batches.


def test_a_batch_of_keys_has_the_rows_of_each() -> None:
    rng = np.random.default_rng(0)
    choices = {"tp": [1, 2, 4], "cp": [1, 2], "ep": [1, 2, 4], "etp": [1, 2], "microbatch_size": [1, 2, 3]}
    columns = {name: rng.choice(values, size=20).astype(np.int64) for name, values in choices.items()}
    model = read(MIXTRAL)
    whole = table(model, Keys(**columns), stack=STACK)
    for index in range(20):
        one = table(model, keys(**{name: int(column[index]) for name, column in columns.items()}), stack=STACK)
        for key, costs in whole.costs.items():
            for name in LayerCosts.__slots__:
                np.testing.assert_array_equal(getattr(costs, name)[..., index], getattr(one.costs[key], name)[..., 0])
        assert whole.boundary_bytes[index] == one.boundary_bytes[0]


def test_distinct_rows_finds_the_first_of_each() -> None:
    first, inverse = distinct_rows(np.array([2, 1, 2, 1]), np.array([5, 6, 5, 7]))
    assert first.tolist() == [1, 3, 0]
    assert inverse.tolist() == [2, 0, 2, 1]


# Sizes at the limit of integers.


def grow(**changes: int) -> ModelGraph:
    return read(LLAMA | {"hidden_size": 1024, "intermediate_size": 1024, "num_attention_heads": 16, "vocab_size": 1024,
                         "num_key_value_heads": 16, **changes})  # fmt: skip


def test_bytes_that_would_wrap_to_a_small_number_are_an_error() -> None:
    # 2^27 sequences of 2^27 tokens: 2^54 rows of 1,024 elements are 2^64, which int64 takes for 0.
    workload = Workload(global_batch_size=2**27, seq_len=2**27)
    with pytest.raises(ValueError, match=r"layer embedding: more than 4\.6e\+18 bytes on one rank"):
        table(grow(), keys(microbatch_size=2**27), workload=workload)


@pytest.mark.parametrize("attention", list(Attention))
@pytest.mark.parametrize("microbatch_size", [1, 2**10, 10**6, 2**20, 10**9])
@pytest.mark.parametrize("seq_len", [1, 2**20, 10**8, 2**29, 10**9])
def test_sizes_are_exact_or_refused(attention: Attention, microbatch_size: int, seq_len: int) -> None:
    workload = Workload(global_batch_size=microbatch_size, seq_len=seq_len, attention=attention)
    try:
        made = table(grow(), keys(microbatch_size=microbatch_size), workload=workload)
    except ValueError as error:
        assert "more than 4.6e+18 bytes on one rank" in str(error)  # noqa: PT017  # either outcome is right
        return
    rows = microbatch_size * seq_len
    scores = 5 * 16 * seq_len if attention is Attention.UNFUSED else 4 * 16
    # Per token, elements: norms 4 x 1024, q, k, v, attention output 4 x 1024, gate and up 2048, product 1024: 11,264.
    assert saved(layer(made)) == rows * (2 * 11_264 + 2 * 4 + scores)
    for costs in made.costs.values():
        assert costs.transient.min() >= 0
        assert np.isfinite(costs.forward).all()


@pytest.mark.parametrize("num_parameters", [10**15, 10**18, 10**20, 2**64])
def test_weights_are_exact_or_refused(num_parameters: int) -> None:
    block = Layer(
        name="block",
        dims={"hidden": Dim(name="hidden", size=8)},
        tensors={"x": Tensor(name="x", dims=("batch", "seq", "hidden"))},
        ops=(),
        input="x",
        output="x",
        opaque_parameters=num_parameters,
    )
    model = ModelGraph(
        name="m", family="graph", seq_len=8, layer_types={"block": block}, blocks=(Block(layer_type="block", count=3),)
    )
    if num_parameters <= 10**15:
        assert int(layer(table(model, keys(tp=8)), "block").dense_parameters[0]) == num_parameters // 8
    else:
        with pytest.raises(ValueError, match="more than"):
            table(model, keys(tp=1))
