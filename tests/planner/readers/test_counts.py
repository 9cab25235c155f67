"""Parameters and FLOPs of the families, against what transformers builds and against sums by hand."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hardware.errors import InputError
from planner.graph import BATCH, SEQ, Layer, ModelGraph, OpKind
from planner.readers import FAMILIES, model_names, read_model
from tests.planner.readers.samples import DEEPSEEK_V3, GPT2, KIMI_K2, LLAMA, MIXTRAL, QWEN3, QWEN3_MOE, read

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "hf-configs"
CONFIGS = Path(os.environ.get("HF_CONFIGS", SHARED))
"""Folder of public config.json files with COUNTS.csv, what transformers counts on its meta device."""

# Counted by transformers 5.24 on the meta device; gpt3-175b: 96 (12 h^2 + 13 h) + (50,257 + 2,048) h + 2 h.
TOTALS = {
    "deepseek-v3": 671_026_404_352,
    "gpt3-175b": 174_604_259_328,
    "llama-2-70b": 68_976_648_192,
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "mixtral-8x22b": 140_620_634_112,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
}
LAYERS = {
    "deepseek-v3": [(583_483_392, 3), (11_507_286_016, 58)],
    "gpt3-175b": [(1_812_099_072, 96)],
    "llama-2-70b": [(855_654_400, 80)],
    "llama-2-7b": [(202_383_360, 32)],
    "llama-3.1-405b": [(3_187_703_808, 126)],
    "llama-3.1-70b": [(855_654_400, 80)],
    "llama-3.1-8b": [(218_112_000, 32)],
    "mixtral-8x22b": [(2_504_060_928, 56)],
    "mixtral-8x7b": [(1_451_270_144, 32)],
    "qwen3-235b-a22b": [(2_487_755_008, 94)],
    "qwen3-30b-a3b": [(623_120_640, 48)],
}
SEQ_LENS = {
    "deepseek-v3": 4096,
    "gpt3-175b": 2048,
    "llama-2-70b": 4096,
    "llama-2-7b": 4096,
}


def per_layer(model: ModelGraph) -> list[tuple[int, int]]:
    """Parameters and count of each run of decoder layers."""
    return [(model.layer_types[block.layer_type].num_parameters, block.count) for block in model.blocks[1:-1]]


def test_every_catalog_model_is_counted() -> None:
    assert model_names() == tuple(TOTALS) == tuple(LAYERS)


@pytest.mark.parametrize("name", TOTALS)
def test_catalog_counts_are_exact(name: str) -> None:
    model = read_model(name)
    assert model.name == name
    assert model.num_parameters == TOTALS[name]
    assert per_layer(model) == LAYERS[name]
    assert model.seq_len == SEQ_LENS.get(name, 8192)
    assert model.notes[0].startswith("Source: ")


def public_configs() -> Iterator[tuple[str, dict[str, str]]]:
    """The public configs of families that are read."""
    if not (CONFIGS / "COUNTS.csv").is_file():
        return
    with (CONFIGS / "COUNTS.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            yield row["file"], row


def test_public_configs_have_the_counts_of_transformers() -> None:
    rows = dict(public_configs())
    if not rows:
        pytest.skip("neither HF_CONFIGS nor ../shared/data/hf-configs holds COUNTS.csv")
    num_read = 0
    for name, row in rows.items():
        path = CONFIGS / f"{name}.json"
        if row["model_type"] not in FAMILIES:
            with pytest.raises(InputError):
                read_model(path)
            continue
        model = read_model(path)
        if row["params_total"]:  # transformers cannot build kimi_k2
            num_read += 1
            assert model.num_parameters == int(row["params_total"]), name
            runs = " ".join(f"{size}x{count}" for size, count in per_layer(model))
            assert runs == row["params_per_layer_runlength"], name
    assert num_read == 21


def test_kimi_k2_is_a_deepseek_v3_of_one_trillion() -> None:
    shape = {
        "first_k_dense_replace": 1,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "kv_lora_rank": 512,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 384,
        "n_shared_experts": 1,
        "num_attention_heads": 64,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 61,
        "q_lora_rank": 1536,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "vocab_size": 163_840,
    }
    attention = (
        7168 * 1536 + 1536 + 1536 * 64 * 192 + 7168 * (512 + 64) + 512 + 512 * 64 * (128 + 128) + 64 * 128 * 7168
    )
    norms, expert = 2 * 7168, 3 * 7168 * 2048
    dense = attention + norms + 3 * 7168 * 18432
    moe = attention + norms + 384 * 7168 + 385 * expert
    model = read({**KIMI_K2, **shape})
    assert model.family == "deepseek_v3"
    assert per_layer(model) == [(dense, 1), (moe, 60)]
    assert model.num_parameters == 2 * 163_840 * 7168 + 7168 + dense + 60 * moe == 1_026_408_209_408


def linear_flops(layer: Layer, num_tokens: int) -> int:
    """Two FLOPs per output element and summed element of the matrix products."""
    total = 0
    for op in layer.ops:
        if op.kind in (OpKind.LINEAR, OpKind.GROUPED_LINEAR):
            kept = tuple(dim for dim in layer.tensors[op.output].dims if dim not in (BATCH, SEQ))
            total += 2 * num_tokens * layer.num_elements((*kept, *op.sums))
    return total


def test_llama_layer_has_two_flops_per_weight_and_token() -> None:
    # q and out 2 x 4096 x 4096, k and v 2 x 4096 x 1024, gate, up and down 3 x 4096 x 14336: 218,103,808 weights.
    layer = read_model("llama-3.1-8b").layer_types["decoder"]
    assert linear_flops(layer, 10) == 2 * 218_103_808 * 10
    assert layer.num_parameters == 218_103_808 + 2 * 4096  # the norms


def test_a_token_pays_for_the_experts_it_visits() -> None:
    # Attention 2 x 4096 x 4096 + 2 x 4096 x 1024, router 4096 x 8, and 2 of the 8 experts of 3 x 4096 x 14336.
    layer = read_model("mixtral-8x7b").layer_types["moe_decoder"]
    assert linear_flops(layer, 1) == 2 * (41_943_040 + 32_768 + 2 * 176_160_768)


def test_biases_are_counted_where_the_flags_say_so() -> None:
    plain = read(LLAMA).layer_types["decoder"].num_parameters
    # q 64, k and v 2 x 16, out 64; gate and up 2 x 96, down 64.
    biased = read({**LLAMA, "attention_bias": True, "mlp_bias": True})
    assert biased.layer_types["decoder"].num_parameters == plain + 64 + 32 + 64 + 192 + 64
    qwen = read(QWEN3).layer_types["decoder"].num_parameters
    # head_dim 16: q 128, k and v 2 x 32, out 64.
    assert read({**QWEN3, "attention_bias": True}).layer_types["decoder"].num_parameters == qwen + 128 + 64 + 64
    deepseek = read(DEEPSEEK_V3).layer_types["dense_decoder"].num_parameters
    # q_a 40, kv_a 24 + 8, out 64.
    biased = read({**DEEPSEEK_V3, "attention_bias": True})
    assert biased.layer_types["dense_decoder"].num_parameters == deepseek + 40 + 32 + 64


@pytest.mark.parametrize(
    ("config", "tied_by_default"),
    [(LLAMA, False), (GPT2, True), (MIXTRAL, False), (QWEN3, False), (QWEN3_MOE, False), (DEEPSEEK_V3, False)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else None,
)
def test_a_tied_head_is_counted_once(config: dict[str, Any], tied_by_default: bool) -> None:
    tied, untied = (read({**config, "tie_word_embeddings": flag}) for flag in (True, False))
    assert untied.num_parameters - tied.num_parameters == 1000 * 64
    assert not untied.shared_parameters
    (shared,) = tied.shared_parameters
    assert (shared.name, shared.layer_types) == ("word_embeddings", ("embedding", "head"))
    assert bool(read(config).shared_parameters) is tied_by_default
    assert read({**config, "tie_word_embeddings": None}) == read(config)


def test_gpt2_is_counted_by_hand() -> None:
    # Words 1000 x 64, positions 512 x 64; per layer qkv 3 (64 x 64 + 64), out 64 x 64 + 64, MLP 2 x 64 x 256 + 256 +
    # 64, two norms of 2 x 64; final norm 2 x 64.
    layer = 3 * 4160 + 4160 + 2 * 64 * 256 + 256 + 64 + 4 * 64
    assert read(GPT2).num_parameters == 64_000 + 32_768 + 3 * layer + 128
    assert read({**GPT2, "n_inner": None}) == read(GPT2) == read({**GPT2, "n_inner": 256})


def test_absent_values_are_those_of_transformers() -> None:
    without = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    assert read(without) == read({**LLAMA, "num_key_value_heads": 8}) == read({**LLAMA, "num_key_value_heads": None})
    assert read({**LLAMA, "head_dim": None}) == read(LLAMA) == read({**LLAMA, "head_dim": 8})
    mixtral = {key: value for key, value in MIXTRAL.items() if key != "num_key_value_heads"}
    assert read(mixtral) == read({**MIXTRAL, "num_key_value_heads": 8})
    qwen = {key: value for key, value in QWEN3.items() if key != "head_dim"}
    assert read(qwen) == read({**QWEN3, "head_dim": 128})
    moe = {key: value for key, value in QWEN3_MOE.items() if key != "head_dim"}
    assert read(moe) == read({**QWEN3_MOE, "head_dim": 8})
    renamed = {**QWEN3_MOE, "num_local_experts": QWEN3_MOE["num_experts"]}
    del renamed["num_experts"]
    assert read(renamed) == read(QWEN3_MOE)
    for key in ("first_k_dense_replace", "moe_layer_freq", "n_shared_experts", "q_lora_rank"):
        default = {"first_k_dense_replace": 3, "moe_layer_freq": 1, "n_shared_experts": 1, "q_lora_rank": 1536}[key]
        absent = {name: value for name, value in DEEPSEEK_V3.items() if name != key}
        assert read(absent) == read({**DEEPSEEK_V3, key: default})


def test_sequence_length_is_our_key_or_the_context_up_to_8192() -> None:
    assert read(LLAMA).seq_len == 512
    assert read({**LLAMA, "max_position_embeddings": 8192}).seq_len == 8192
    assert read({**LLAMA, "max_position_embeddings": 8193}).seq_len == 8192
    assert read({**LLAMA, "_planner_seq_len": 131_072}).seq_len == 131_072
    assert read({key: value for key, value in LLAMA.items() if key != "max_position_embeddings"}).seq_len == 2048
