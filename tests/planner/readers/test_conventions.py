"""The forms that the cost tables rely on hold in all families."""

from __future__ import annotations

from typing import Any

import pytest

from planner.graph import BATCH, CHOICES, SEQ, Axis, Layer, ModelGraph, Op, OpKind
from planner.readers import model_names, read_model
from tests.planner.readers.samples import CONFIGS, DEEPSEEK_V3, GPT2, LLAMA, MISTRAL, MIXTRAL, QWEN3, QWEN3_MOE, read

MODELS = {**{name: read_model(name) for name in model_names()}, **{name: read(its) for name, its in CONFIGS.items()}}
HIDDEN = (BATCH, SEQ, "hidden")
AXES = {
    "heads": Axis.TP,
    "kv_heads": Axis.TP,
    "ffn": Axis.TP,
    "shared_ffn": Axis.TP,
    "vocab": Axis.TP,
    "experts": Axis.EP,
    "expert_ffn": Axis.ETP,
}
"""Dims that an axis splits; the others are never split."""
KNOWN = {
    *AXES,
    *("hidden", "positions", "head_size", "gate", "router_experts", CHOICES),
    *("q_latent", "kv_latent", "rope_size", "nope_size", "qk_size", "v_size"),
}

ATTENTION = [
    "attention_norm norm (hidden) layernorm",
    "q linear (heads, head_size)",
    "k linear (kv_heads, head_size)",
    "v linear (kv_heads, head_size)",
]
ROTARY = ["q_rotary rotary (heads, head_size)", "k_rotary rotary (kv_heads, head_size)"]
QK_NORM = ["q_norm norm (heads, head_size)", "k_norm norm (kv_heads, head_size)"]
CORE = ["attention attention (heads, head_size) core_attn", "out linear (hidden)"]
ADD = ["attention_residual residual (hidden)", "mlp_norm norm (hidden) layernorm"]
GATED = ["gate_up linear (gate, ffn)", "activation activation (ffn)", "down linear (hidden)"]
EXPERTS = [
    "router linear (router_experts)",
    "router_topk router (choices)",
    "dispatch dispatch (choices, hidden)",
    "expert_gate_up grouped_linear (choices, gate, expert_ffn)",
    "expert_activation activation (choices, expert_ffn) moe_act",
    "expert_down grouped_linear (choices, hidden)",
    "combine combine (hidden)",
]
SHARED = [
    "shared_gate_up linear (gate, shared_ffn) shared_experts",
    "shared_activation activation (shared_ffn) shared_experts",
    "shared_down linear (hidden) shared_experts",
    "shared_residual residual (hidden)",
]
LATENT = [
    "attention_norm norm (hidden) layernorm",
    "q_a linear (q_latent)",
    "q_a_norm norm (q_latent)",
    "q_b linear (heads, qk_size) mla_up_proj",
    "kv_a linear (kv_latent)",
    "k_rope linear (rope_size)",
    "kv_a_norm norm (kv_latent)",
    "k_b linear (heads, nope_size) mla_up_proj",
    "v_b linear (heads, v_size) mla_up_proj",
    "q_rotary rotary (heads, qk_size) mla_up_proj",
    "k_assemble rotary (heads, qk_size) mla_up_proj",
    "attention attention (heads, v_size) core_attn",
    "out linear (hidden)",
]
END = ["mlp_residual residual (hidden)"]


def row(layer: Layer, op: Op) -> str:
    dims = ", ".join(dim for dim in layer.tensors[op.output].dims if dim not in (BATCH, SEQ))
    return f"{op.name} {op.kind} ({dims})" + (f" {op.module}" if op.module else "")


@pytest.mark.parametrize(
    ("config", "name", "expected"),
    [
        (LLAMA, "decoder", ATTENTION + ROTARY + CORE + ADD + GATED + END),
        (MISTRAL, "decoder", ATTENTION + ROTARY + CORE + ADD + GATED + END),
        (QWEN3, "decoder", ATTENTION + QK_NORM + ROTARY + CORE + ADD + GATED + END),
        (MIXTRAL, "moe_decoder", ATTENTION + ROTARY + CORE + ADD + EXPERTS + END),
        (QWEN3_MOE, "dense_decoder", ATTENTION + QK_NORM + ROTARY + CORE + ADD + GATED + END),
        (QWEN3_MOE, "moe_decoder", ATTENTION + QK_NORM + ROTARY + CORE + ADD + EXPERTS + END),
        (DEEPSEEK_V3, "dense_decoder", LATENT + ADD + GATED + END),
        (DEEPSEEK_V3, "moe_decoder", LATENT + ADD + EXPERTS + SHARED + END),
        (
            {**GPT2, "resid_pdrop": 0, "attn_pdrop": 0},
            "decoder",
            [*ATTENTION, *CORE, *ADD, "fc linear (ffn)", "activation activation (ffn)", "proj linear (hidden)", *END],
        ),
    ],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_decoder_layers_are_these_ops(config: dict[str, Any], name: str, expected: list[str]) -> None:
    layer = read(config).layer_types[name]
    assert [row(layer, op) for op in layer.ops] == expected


def test_ends_of_the_stack_are_these_ops() -> None:
    model = read(LLAMA)
    embedding, head = model.layer_types["embedding"], model.layer_types["head"]
    assert [row(embedding, op) for op in embedding.ops] == ["word_embeddings embedding (hidden)"]
    assert [(op.sums, op.inputs) for op in embedding.ops] == [(("vocab",), ())]
    assert [row(head, op) for op in head.ops] == [
        "final_norm norm (hidden) layernorm",
        "lm_head linear (vocab)",
        "loss loss ()",
    ]
    assert [op.sums for op in head.ops] == [(), ("hidden",), ("vocab",)]
    assert head.tensors["logits"].dims == (BATCH, SEQ, "vocab")
    assert (head.output, head.tensors["loss"].dims) == ("loss", (BATCH, SEQ))


def test_gpt2_has_positions_and_dropout() -> None:
    model = read(GPT2)
    embedding, decoder = model.layer_types["embedding"], model.layer_types["decoder"]
    assert [row(embedding, op) for op in embedding.ops] == [
        "word_embeddings embedding (hidden)",
        "position_embeddings embedding (hidden)",
        "position_residual residual (hidden)",
        "embedding_dropout dropout (hidden)",
    ]
    assert [op.name for op in decoder.ops if op.kind is OpKind.DROPOUT] == ["attention_dropout", "mlp_dropout"]
    bare = read({**GPT2, "resid_pdrop": 0.0, "embd_pdrop": 0})
    assert not [op for layer in bare.layer_types.values() for op in layer.ops if op.kind is OpKind.DROPOUT]


@pytest.mark.parametrize("name", MODELS)
def test_stack_goes_from_embedding_to_head(name: str) -> None:
    model = MODELS[name]
    first, last = model.blocks[0], model.blocks[-1]
    assert (first.layer_type, first.count) == ("embedding", 1)
    assert (last.layer_type, last.count) == ("head", 1)
    kinds = {block.layer_type for block in model.blocks[1:-1]}
    assert kinds in ({"decoder"}, {"moe_decoder"}, {"dense_decoder", "moe_decoder"}, {"decoder", "window_decoder"})
    assert set(model.layer_types) == {block.layer_type for block in model.blocks}
    assert model.layer_types["embedding"].input is None
    for layer_type in {block.layer_type for block in model.blocks[1:]}:
        layer = model.layer_types[layer_type]
        assert layer.input == "input" and layer.tensors["input"].dims == HIDDEN
        assert layer_type == "head" or layer.tensors[layer.output].dims == HIDDEN


@pytest.mark.parametrize("name", MODELS)
def test_dims_split_along_their_axis(name: str) -> None:
    model = MODELS[name]
    for layer in model.layer_types.values():
        assert set(layer.dims) <= KNOWN
        for dim in layer.dims.values():
            assert dim.axis == AXES.get(dim.name)
            assert dim.replicable == (dim.name == "kv_heads")
            assert dim.padded == (dim.name == "vocab")
            assert dim.granularity == (128 if dim.name == "vocab" else 1)
        assert layer.dims["hidden"].size == model.layer_types["embedding"].dims["hidden"].size
        assert "gate" not in layer.dims or layer.dims["gate"].size == 2
        assert layer.is_moe == layer.name.startswith("moe")


@pytest.mark.parametrize("name", MODELS)
def test_every_op_keeps_the_form_of_its_kind(name: str) -> None:
    for layer in MODELS[name].layer_types.values():
        names = [parameter.name for parameter in layer.parameters]
        assert len(names) == len(set(names))
        assert len({op.name for op in layer.ops}) == len(layer.ops)
        for op in layer.ops:
            check_form(layer, op)


def check_form(layer: Layer, op: Op) -> None:
    dims = layer.tensors[op.output].dims
    kept = dims[2:]
    inputs = [layer.tensors[tensor].dims for tensor in op.inputs]
    weights = [parameter.dims for parameter in op.parameters]
    assert dims[:2] == (BATCH, SEQ)
    match op.kind:
        case OpKind.LINEAR:
            assert inputs == [(*inputs[0][: -len(op.sums)], *op.sums)]
            assert weights in ([(*kept, *op.sums)], [(*kept, *op.sums), kept])
        case OpKind.GROUPED_LINEAR:
            assert inputs == [(BATCH, SEQ, CHOICES, *op.sums)]
            assert weights == [("experts", *kept[1:], *op.sums)]
        case OpKind.ATTENTION:
            assert len(inputs) == 3 and not weights and op.causal and op.module == "core_attn"
            assert inputs[0][2] == kept[0] == "heads"
            assert inputs[2][3] == kept[1]
        case OpKind.NORM:
            assert inputs == [dims]
            assert weights in ([dims[-1:]], [dims[-1:]] * 2)
        case OpKind.ACTIVATION:
            assert not weights and [tuple(dim for dim in inputs[0] if dim != "gate")] == [dims]
        case OpKind.RESIDUAL:
            assert inputs == [dims, dims] and not weights
        case OpKind.DROPOUT:
            assert inputs == [dims] and not weights
        case OpKind.ROTARY:
            assert not weights and (inputs == [dims] or op.name == "k_assemble")
        case OpKind.EMBEDDING:
            assert not inputs and weights == [(*op.sums, "hidden")] and dims == HIDDEN
        case OpKind.ROUTER:
            assert inputs == [(BATCH, SEQ, "router_experts")] and dims == (BATCH, SEQ, CHOICES)
        case OpKind.DISPATCH:
            assert inputs == [HIDDEN, (BATCH, SEQ, CHOICES)] and dims == (BATCH, SEQ, CHOICES, "hidden")
        case OpKind.COMBINE:
            assert inputs == [(BATCH, SEQ, CHOICES, "hidden"), (BATCH, SEQ, CHOICES)]
            assert (op.sums, dims) == ((CHOICES,), HIDDEN)
        case OpKind.LOSS:
            assert inputs == [(BATCH, SEQ, "vocab")] and op.sums == ("vocab",) and dims == (BATCH, SEQ)


def windows(model: ModelGraph) -> list[int | None]:
    """Window of each decoder layer, in order."""
    found: list[int | None] = []
    for block in model.blocks[1:-1]:
        ops = model.layer_types[block.layer_type].ops
        found += [op.window for op in ops if op.kind is OpKind.ATTENTION] * block.count
    return found


def test_windows_go_to_the_attention_op() -> None:
    assert windows(read(LLAMA)) == [None] * 3
    assert windows(read(MISTRAL)) == [4096] * 3  # transformers' default where the key is absent
    assert windows(read({**MISTRAL, "sliding_window": None})) == [None] * 3
    assert windows(read({**MIXTRAL, "sliding_window": 128})) == [128] * 3
    assert windows(read({**QWEN3, "sliding_window": 128})) == [None] * 3
    on = {"use_sliding_window": True, "sliding_window": 128}
    assert windows(read({**QWEN3, **on, "max_window_layers": 1})) == [None, 128, 128]
    assert windows(read({**QWEN3, **on, "max_window_layers": 0})) == [128] * 3
    listed = ["sliding_attention", "full_attention", "sliding_attention"]
    assert windows(read({**QWEN3, **on, "layer_types": listed})) == [128, None, 128]
    assert windows(read({**QWEN3_MOE, **on})) == [128] * 3


def kinds(model: ModelGraph) -> str:
    """D for dense and M for MoE of each decoder layer, in order."""
    return "".join(
        ("M" if model.layer_types[block.layer_type].is_moe else "D") * block.count for block in model.blocks[1:-1]
    )


def test_experts_are_in_the_layers_that_the_file_says() -> None:
    assert kinds(read(MIXTRAL)) == "MMM"
    assert kinds(read(QWEN3_MOE)) == "DMD"
    assert kinds(read({**QWEN3_MOE, "decoder_sparse_step": 1, "mlp_only_layers": [0]})) == "DMM"
    assert kinds(read({**QWEN3_MOE, "mlp_only_layers": [1]})) == "DDD"
    assert kinds(read(DEEPSEEK_V3)) == "DMM"
    assert kinds(read({**DEEPSEEK_V3, "first_k_dense_replace": 0})) == "MMM"
    assert kinds(read({**DEEPSEEK_V3, "first_k_dense_replace": 3})) == "DDD"
    assert kinds(read({**DEEPSEEK_V3, "first_k_dense_replace": 0, "moe_layer_freq": 2})) == "MDM"


def test_latent_queries_and_shared_experts_are_optional() -> None:
    layer = read({**DEEPSEEK_V3, "q_lora_rank": None, "n_shared_experts": 0}).layer_types["moe_decoder"]
    expected = [line for line in LATENT if not line.startswith("q_")]
    expected.insert(1, "q linear (heads, qk_size) mla_up_proj")
    expected.insert(-3, "q_rotary rotary (heads, qk_size) mla_up_proj")
    assert [row(layer, op) for op in layer.ops] == expected + ADD + EXPERTS + END
    assert "q_latent" not in layer.dims and "shared_ffn" not in layer.dims
    with_shared = read(DEEPSEEK_V3).layer_types["moe_decoder"]
    assert with_shared.dims["shared_ffn"].size == 2 * 32


def test_what_is_left_out_is_said() -> None:
    assert read(DEEPSEEK_V3).notes == ("Multi-token prediction (num_nextn_predict_layers = 1) is left out.",)
    assert read({**DEEPSEEK_V3, "num_nextn_predict_layers": 0}).notes == ()
    (note,) = read({**LLAMA, "quantization_config": {"quant_method": "fp8"}}).notes
    assert note.startswith("quantization_config is left out")
