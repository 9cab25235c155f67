"""Small configs, one per family, and a way to read values as if they came from a file."""

from __future__ import annotations

from typing import Any

from hardware.yaml_reader import Document
from planner.graph import ModelGraph
from planner.readers import parse_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 8,
    "num_hidden_layers": 3,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
GPT2: dict[str, Any] = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_embd": 64,
    "n_head": 8,
    "n_layer": 3,
    "n_positions": 512,
    "vocab_size": 1000,
}
MIXTRAL: dict[str, Any] = {
    **LLAMA,
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_experts_per_tok": 2,
    "num_local_experts": 4,
}
QWEN3: dict[str, Any] = {**LLAMA, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 16}
QWEN3_MOE: dict[str, Any] = {
    **QWEN3,
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "decoder_sparse_step": 2,
    "mlp_only_layers": [],
    "moe_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
}
DEEPSEEK_V3: dict[str, Any] = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_size": 64,
    "intermediate_size": 96,
    "kv_lora_rank": 24,
    "max_position_embeddings": 512,
    "moe_intermediate_size": 32,
    "moe_layer_freq": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_attention_heads": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 40,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "vocab_size": 1000,
}
MISTRAL: dict[str, Any] = {**LLAMA, "model_type": "mistral", "architectures": ["MistralForCausalLM"]}
KIMI_K2: dict[str, Any] = {**DEEPSEEK_V3, "model_type": "kimi_k2"}

CONFIGS: dict[str, dict[str, Any]] = {
    config["model_type"]: config for config in (LLAMA, MISTRAL, GPT2, MIXTRAL, QWEN3, QWEN3_MOE, DEEPSEEK_V3, KIMI_K2)
}
"""A small config of each model type."""

GRAPH: dict[str, Any] = {
    "format_version": "1.0",
    "seq_len": 2048,
    "layer_types": {
        "block": {"parameters": 12_000_000, "dims": {"hidden": 1024}, "output": ["batch", "seq", "hidden"]}
    },
    "layers": [{"type": "block", "count": 24}],
    "measurements": [
        {"device": "a100-sxm-80gb", "microbatch_size": 1, "forward": "2.5 ms", "backward": "5 ms", "saved": "64 MiB"},
        {"device": "a100-sxm-80gb", "tp": 2, "microbatch_size": 1, "forward": 0.0015, "backward": 0.003, "saved": 123},
    ],
}
"""A graph as people write it by hand."""


def read(content: object, name: str = "sample") -> ModelGraph:
    """The model of a document."""
    return parse_model(Document(file="model.json", content=content), name)
