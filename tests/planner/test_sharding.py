"""Sharding: the collectives of each family follow from named dims alone, and so do local sizes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.graph import Axis, Dim, Layer, Op, OpKind, Parameter, Tensor
from planner.sharding import (
    Exchange,
    Region,
    Shards,
    is_expert,
    layer_exchanges,
    local_elements,
    local_size,
    op_region,
    parameter_elements,
    tensor_region,
)
from tests.planner.readers.samples import DEEPSEEK_V3, GPT2, LLAMA, MISTRAL, MIXTRAL, QWEN3, QWEN3_MOE, read

GATHER, REDUCE = Exchange.TP_GATHER, Exchange.TP_REDUCE
TRAVEL, SPREAD, CONTEXT = Exchange.EP_ALL_TO_ALL, Exchange.ETP_EXCHANGE, Exchange.CP_ATTENTION


def shards(
    tp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1, microbatch_size: int = 1, seq_len: int = 64, *, sp: bool = True
) -> Shards:
    return Shards(tp=tp, cp=cp, ep=ep, etp=etp, microbatch_size=microbatch_size, seq_len=seq_len, sequence_parallel=sp)


def exchanges(layer: Layer) -> list[tuple[Exchange, str]]:
    return [(kind, op.name) for kind, op, _ in layer_exchanges(layer)]


def pair_of_products(first: tuple[str, ...], second_sums: tuple[str, ...]) -> Layer:
    """x[hidden] -> y[first] -> z[hidden], as two products."""
    dims = {
        "hidden": Dim(name="hidden", size=16),
        "ffn": Dim(name="ffn", size=64, axis=Axis.TP),
        "plain": Dim(name="plain", size=64),
    }
    tensors = {
        name: Tensor(name=name, dims=("batch", "seq", *its))
        for name, its in {"x": ("hidden",), "y": first, "z": ("hidden",)}.items()
    }
    ops = (
        Op(
            name="out",
            kind=OpKind.LINEAR,
            inputs=("x",),
            output="y",
            sums=("hidden",),
            parameters=(Parameter(name="a", dims=(*first, "hidden")),),
        ),
        Op(
            name="back",
            kind=OpKind.LINEAR,
            inputs=("y",),
            output="z",
            sums=second_sums,
            parameters=(Parameter(name="b", dims=("hidden", *second_sums)),),
        ),
    )
    return Layer(name="pair", dims=dims, tensors=tensors, ops=ops, input="x", output="z")


def test_column_then_row_gathers_once_and_reduces_once() -> None:
    layer = pair_of_products(("ffn",), ("ffn",))
    assert exchanges(layer) == [(GATHER, "out"), (REDUCE, "back")]
    assert [op_region(layer, op) for op in layer.ops] == [Region.TENSOR, Region.TENSOR]
    assert tensor_region(layer, layer.tensors["y"].dims) is Region.TENSOR


def test_products_over_dims_that_nothing_splits_exchange_nothing() -> None:
    layer = pair_of_products(("plain",), ("plain",))
    assert exchanges(layer) == []
    assert [op_region(layer, op) for op in layer.ops] == [Region.SEQUENCE, Region.SEQUENCE]


DENSE_MLP = [(GATHER, "gate_up"), (REDUCE, "down")]
ATTENTION = [(GATHER, "q"), (CONTEXT, "attention"), (REDUCE, "out")]
EXPERTS = [(TRAVEL, "dispatch"), (SPREAD, "dispatch"), (SPREAD, "combine"), (TRAVEL, "combine")]
# Each rank makes its share of the heads from latents that all hold: latent of q, latent of k and v, shared rope key.
LATENT = [(GATHER, "q_b"), (GATHER, "k_b"), (GATHER, "k_assemble"), (CONTEXT, "attention"), (REDUCE, "out")]
SHARED = [(GATHER, "shared_gate_up"), (REDUCE, "shared_down")]


@pytest.mark.parametrize(
    ("config", "name", "expected"),
    [
        (LLAMA, "decoder", ATTENTION + DENSE_MLP),
        (MISTRAL, "decoder", ATTENTION + DENSE_MLP),
        (QWEN3, "decoder", ATTENTION + DENSE_MLP),
        (GPT2, "decoder", [*ATTENTION, (GATHER, "fc"), (REDUCE, "proj")]),
        (MIXTRAL, "moe_decoder", ATTENTION + EXPERTS),
        (QWEN3_MOE, "dense_decoder", ATTENTION + DENSE_MLP),
        (QWEN3_MOE, "moe_decoder", ATTENTION + EXPERTS),
        (DEEPSEEK_V3, "dense_decoder", LATENT + DENSE_MLP),
        (DEEPSEEK_V3, "moe_decoder", LATENT + EXPERTS + SHARED),
    ],
)
def test_decoder_layers_exchange_what_megatron_does(
    config: dict[str, Any], name: str, expected: list[tuple[Exchange, str]]
) -> None:
    assert exchanges(read(config).layer_types[name]) == expected


@pytest.mark.parametrize("config", [LLAMA, GPT2, MIXTRAL, DEEPSEEK_V3])
def test_vocabulary_is_reduced_after_the_embedding_and_in_the_loss(config: dict[str, Any]) -> None:
    model = read(config)
    assert exchanges(model.layer_types["embedding"]) == [(REDUCE, "word_embeddings")]
    head = model.layer_types["head"]
    assert exchanges(head) == [(GATHER, "lm_head"), (REDUCE, "loss")]
    # The loss reduces one number a token, not a row of the vocabulary.
    assert layer_exchanges(head)[1][2] == ("batch", "seq")


def test_a_tensor_is_gathered_once_for_q_k_and_v() -> None:
    found = layer_exchanges(read(LLAMA).layer_types["decoder"])
    assert [dims for kind, _, dims in found if kind is GATHER] == [("batch", "seq", "hidden")] * 2


def test_tokens_travel_to_as_many_experts_as_they_choose() -> None:
    found = layer_exchanges(read(MIXTRAL).layer_types["moe_decoder"])
    assert {dims for kind, _, dims in found if kind is TRAVEL} == {("batch", "seq", "choices", "hidden")}


# Tokens of a region.


def test_tokens_by_region() -> None:
    # 2 sequences of 64 tokens, cp 2: 64 tokens a context shard; tp 4 splits them to 16 outside products.
    its = shards(tp=4, cp=2, microbatch_size=2)
    assert its.num_tokens(Region.TENSOR) == 64
    assert its.num_tokens(Region.SEQUENCE) == 16
    assert its.num_tokens(Region.EXPERT) == 16
    assert shards(tp=4, cp=2, microbatch_size=2, sp=False).num_tokens(Region.SEQUENCE) == 64
    # Ranks that share an expert gather each other's tokens.
    assert shards(tp=4, cp=2, etp=2, microbatch_size=2).num_tokens(Region.EXPERT) == 32


# Local sizes.


@pytest.mark.parametrize(
    ("tp", "local"),
    [(1, 32_000), (2, 16_000), (4, 8064), (8, 4096)],
)
def test_vocabulary_is_padded_to_128_times_tp(tp: int, local: int) -> None:
    # 32,000 = 250 x 128; over 4 ranks 63 x 128 = 8,064 each (32,256); over 8 ranks 32 x 128 = 4,096 (32,768).
    dim = Dim(name="vocab", size=32_000, granularity=128, axis=Axis.TP, padded=True)
    assert local_size(dim, shards(tp=tp)) == local
    assert local * tp == math.ceil(32_000 / (128 * tp)) * 128 * tp


@pytest.mark.parametrize(("tp", "local"), [(1, 8), (2, 4), (8, 1), (16, 1), (64, 1)])
def test_kv_heads_are_copied_where_there_are_more_ranks(tp: int, local: int) -> None:
    dim = Dim(name="kv_heads", size=8, axis=Axis.TP, replicable=True)
    assert int(local_size(dim, shards(tp=tp))) == local


def test_a_plain_dim_is_split_by_its_own_axis() -> None:
    assert local_size(Dim(name="experts", size=64, axis=Axis.EP), shards(ep=8, tp=4)) == 8
    assert local_size(Dim(name="expert_ffn", size=64, axis=Axis.ETP), shards(etp=2, tp=4)) == 32
    assert local_size(Dim(name="hidden", size=64), shards(tp=4)) == 64
    assert local_size(Dim(name="heads", size=10, axis=Axis.TP), shards(tp=4)) == 3  # rounded up: never too small


def test_norms_are_whole_on_each_rank_and_experts_are_split_by_ep_and_etp() -> None:
    # As llm-analysis issue 19 had it wrong: norms are not divided by tp; experts not by tp but by ep and etp.
    layer = read(MIXTRAL).layer_types["moe_decoder"]
    by_name = {parameter.name: parameter for parameter in layer.parameters}
    its = shards(tp=8, ep=4, etp=2)
    assert parameter_elements(layer, by_name["attention_norm.weight"], its) == 64
    assert parameter_elements(layer, by_name["expert_gate_up.weight"], its) == 4 // 4 * 2 * 96 // 2 * 64
    assert is_expert(layer, by_name["expert_gate_up.weight"])
    assert not is_expert(layer, by_name["router.weight"])


def test_a_tensor_of_heads_by_hand() -> None:
    # q: 2 x 64 tokens over cp 2, 8 heads over tp 4, 8 each.
    layer = read(LLAMA).layer_types["decoder"]
    dims = layer.tensors["q"].dims
    assert local_elements(layer, dims, Region.TENSOR, shards(tp=4, cp=2, microbatch_size=2)) == 64 * 2 * 8


@given(st.integers(1, 10**6), st.integers(1, 256), st.sampled_from([1, 128]), st.booleans(), st.booleans())
def test_local_parts_cover_the_dim(size: int, tp: int, granularity: int, padded: bool, replicable: bool) -> None:
    dim = Dim(
        name="d", size=size, granularity=granularity, axis=Axis.TP, padded=padded, replicable=replicable and not padded
    )
    local = int(local_size(dim, shards(tp=tp)))
    if dim.replicable:
        assert local == max(1, size // tp)
    else:
        assert local * tp >= size
        assert (local - (granularity if padded else 1)) * tp < size  # one unit less would not
    as_array = local_size(dim, Shards(
        tp=np.array([tp]), cp=1, ep=1, etp=1, microbatch_size=1, seq_len=1, sequence_parallel=True
    ))  # fmt: skip
    assert as_array.tolist() == [local]
