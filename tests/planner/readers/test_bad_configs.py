"""A wrong config.json gives an InputError that names the key, and nothing else ever."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.errors import InputError
from planner.graph import ModelGraph
from tests.planner.readers.samples import CONFIGS, DEEPSEEK_V3, GPT2, LLAMA, MIXTRAL, QWEN3, QWEN3_MOE, read


def message(content: object) -> str:
    with pytest.raises(InputError) as caught:
        read(content)
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "change", "expected"),
    [
        (LLAMA, {"hidden_size": ...}, "the key 'hidden_size' is missing"),
        (LLAMA, {"hidden_size": None}, "hidden_size: has no value"),
        (LLAMA, {"hidden_size": True}, "hidden_size: must be a whole number in digits, got true"),
        (LLAMA, {"hidden_size": "64"}, "hidden_size: must be a whole number in digits, got '64'"),
        (LLAMA, {"hidden_size": 64.0}, "hidden_size: must be a whole number in digits, got 64.0, did you mean 64?"),
        (LLAMA, {"hidden_size": 64.5}, "hidden_size: must be a whole number in digits, got 64.5"),
        (LLAMA, {"hidden_size": float("nan")}, "hidden_size: must be a whole number in digits, got nan"),
        (LLAMA, {"hidden_size": [64]}, "hidden_size: must be a whole number in digits, got a list"),
        (LLAMA, {"hidden_size": 0}, "hidden_size: must be 1 to 10000000, got 0; nearest: 1"),
        (LLAMA, {"hidden_size": -64}, "hidden_size: must be 1 to 10000000, got -64; nearest: 1"),
        (LLAMA, {"num_hidden_layers": 10**7}, "num_hidden_layers: must be 1 to 100000, got 10000000; nearest: 100000"),
        (
            LLAMA,
            {"num_hidden_layers": 10**400},
            "num_hidden_layers: must be 1 to 100000, got a number of over 60 digits",
        ),
        (
            LLAMA,
            {"num_key_value_heads": 3},
            "num_attention_heads: must be a multiple of num_key_value_heads, which is 3",
        ),
        (
            LLAMA,
            {"num_key_value_heads": 16},
            "num_attention_heads: must be a multiple of num_key_value_heads, which is 16",
        ),
        (LLAMA, {"num_key_value_heads": 0}, "num_key_value_heads: must be 1 to 10000000, got 0; nearest: 1"),
        (LLAMA, {"hidden_size": 60}, "hidden_size: must be a multiple of num_attention_heads, which is 8, got 60"),
        (LLAMA, {"head_dim": -1}, "head_dim: must be 1 to"),
        (LLAMA, {"tie_word_embeddings": 0}, "tie_word_embeddings: must be true or false, got 0"),
        (LLAMA, {"attention_bias": "no"}, "attention_bias: must be true or false, got 'no'"),
        (LLAMA, {"max_position_embeddings": 10**10}, "max_position_embeddings: must be 1 to 1000000000"),
        (LLAMA, {"_planner_seq_len": 0}, "_planner_seq_len: must be 1 to 1000000000, got 0; nearest: 1"),
        (LLAMA, {"_source": 3}, "_source: must be text, got 3"),
        (GPT2, {"n_embd": 60}, "n_embd: must be a multiple of n_head, which is 8, got 60"),
        (GPT2, {"resid_pdrop": 1}, "resid_pdrop: must be at least 0 and below 1, got 1"),
        (GPT2, {"embd_pdrop": -0.1}, "embd_pdrop: must be at least 0, got -0.1"),
        (GPT2, {"embd_pdrop": True}, "embd_pdrop: must be a number, got true"),
        (GPT2, {"embd_pdrop": float("nan")}, "embd_pdrop: must be a number, got nan"),
        (GPT2, {"add_cross_attention": True}, "add_cross_attention: cross-attention is not supported"),
        (GPT2, {"_planner_seq_len": 513}, "_planner_seq_len: must be at most the 512 learned positions, got 513"),
        (
            MIXTRAL,
            {"num_experts_per_tok": 5},
            "num_experts_per_tok: must be at most num_local_experts, which is 4, got 5",
        ),
        (MIXTRAL, {"sliding_window": 0}, "sliding_window: must be 1 to 10000000, got 0"),
        (QWEN3, {"layer_types": ["full"]}, "layer_types: must be a list of full_attention or sliding_attention"),
        (QWEN3, {"layer_types": ["full_attention"]}, "layer_types: must have one item for each of the 3 layers, got 1"),
        (QWEN3, {"layer_types": [[]]}, "layer_types: must be a list of"),
        (QWEN3_MOE, {"mlp_only_layers": [3]}, "mlp_only_layers: names layer 3, but the layers are 0 to 2"),
        (QWEN3_MOE, {"mlp_only_layers": [True]}, "mlp_only_layers: must be a list of layer numbers"),
        (QWEN3_MOE, {"num_experts": ...}, "the key 'num_experts' is missing"),
        (QWEN3_MOE, {"decoder_sparse_step": 0}, "decoder_sparse_step: must be 1 to"),
        (DEEPSEEK_V3, {"kv_lora_rank": None}, "kv_lora_rank: has no value"),
        (DEEPSEEK_V3, {"n_shared_experts": -1}, "n_shared_experts: must be 0 to"),
        (DEEPSEEK_V3, {"moe_layer_freq": [1, 1]}, "moe_layer_freq: must be a whole number in digits, got a list"),
        (DEEPSEEK_V3, {"num_nextn_predict_layers": "one"}, "num_nextn_predict_layers: must be a whole number"),
        (
            LLAMA,
            {"model_type": "lama"},
            "model_type: unknown model family 'lama', did you mean 'llama'?; known: deepseek_v3",
        ),
        (
            LLAMA,
            {"model_type": "t5"},
            "model_type: unknown model family 't5'; known: deepseek_v3, gpt2, kimi_k2, llama",
        ),
        (LLAMA, {"model_type": 5}, "model_type: must be text, got 5"),
        (
            LLAMA,
            {"model_type": ..., "architectures": None},
            "the key 'model_type' is missing; known families: deepseek_v3",
        ),
        (LLAMA, {"architectures": "LlamaForCausalLM"}, "architectures: must be a list of names"),
        (
            LLAMA,
            {"architectures": ["LlamaForSequenceClassification"]},
            "architectures: 'LlamaForSequenceClassification' is not the language model; accepted with model_type",
        ),
    ],
)
def test_one_wrong_value_is_named(config: dict[str, Any], change: dict[str, object], expected: str) -> None:
    changed = {key: value for key, value in {**config, **change}.items() if value is not ...}
    text = message(changed)
    assert expected in text
    assert text.count("\n") == 0, text


def test_all_problems_come_at_once() -> None:
    text = message({**LLAMA, "hidden_size": "x", "vocab_size": -1, "attention_bias": 1, "intermediate_size": None})
    keys = {line.split(": ")[1] for line in text.splitlines()}
    assert keys == {"attention_bias", "hidden_size", "vocab_size", "intermediate_size"}


def test_the_family_is_found_by_architecture_alone() -> None:
    without = {key: value for key, value in MIXTRAL.items() if key != "model_type"}
    assert read(without) == read(MIXTRAL)


def test_keys_without_a_bearing_on_shapes_are_not_looked_at() -> None:
    assert read(
        {**LLAMA, "rope_scaling": {"type": 7}, "torch_dtype": None, "dtype": "odd", "bos_token_id": []}
    ) == read(LLAMA)


@pytest.mark.parametrize("content", [None, 3, "text", [], [LLAMA], {}, {"a": 1}])
def test_what_is_no_model_is_refused(content: object) -> None:
    assert "is neither a Hugging Face config.json" in message(content)


def read_or_refuse(content: object) -> ModelGraph | InputError:
    """The model, or the only exception that may come instead."""
    try:
        return read(content)
    except InputError as error:
        return error


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.sampled_from([0, 1, 2, 3, 7, 8, 2**31, 2**63, 10**400, -(10**400)]),
    st.floats(),
    st.text(max_size=80),
    st.lists(st.integers(-2, 5), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)
KEYS = sorted({key for config in CONFIGS.values() for key in config} | {"head_dim", "sliding_window", "layer_types"})


@settings(max_examples=600)
@given(
    name=st.sampled_from(sorted(CONFIGS)),
    changes=st.dictionaries(st.sampled_from(KEYS), JUNK, max_size=3),
    removed=st.lists(st.sampled_from(KEYS), max_size=2),
)
def test_mutated_configs_are_read_or_refused(name: str, changes: dict[str, object], removed: list[str]) -> None:
    config = copy.deepcopy(CONFIGS[name]) | changes
    for key in removed:
        config.pop(key, None)
    outcome = read_or_refuse(config)
    if isinstance(outcome, InputError):
        assert all(problem.file == "model.json" and len(str(problem)) < 1000 for problem in outcome.problems)
    else:
        assert outcome.num_parameters > 0
