"""Qwen3-MoE: Qwen3's attention with experts, and dense layers between them where the file says so."""

from planner.readers.blocks import MoeMlp, make_dims
from planner.readers.config import MAX_LAYERS, MAX_POSITIONS, Config
from planner.readers.qwen3 import POSITIONS, qwen_attention, read_window
from planner.readers.stack import Stack, mixed_stack


def read_qwen3_moe(config: Config) -> Stack:
    """The layers of a Qwen3-MoE."""
    experts_key = config.first_of("num_experts", "num_local_experts")
    experts, choices = config.size(experts_key), config.size("num_experts_per_tok")
    config.check_choices("num_experts_per_tok", choices, experts_key, experts)
    num_layers = config.size("num_hidden_layers", maximum=MAX_LAYERS)
    is_moe = _expert_layers(config, num_layers)
    dims = make_dims(
        vocab=config.size("vocab_size"),
        **config.attention_sizes(default_kv_heads=4),
        ffn=config.size("intermediate_size", default=1 if all(is_moe) else None),
        experts=experts,
        router_experts=experts,
        choices=choices,
        expert_ffn=config.size("moe_intermediate_size"),
    )
    return mixed_stack(
        dims,
        qwen_attention(config.flag("attention_bias", default=False), read_window(config)),
        MoeMlp(),
        is_moe,
        tied=config.flag("tie_word_embeddings", default=False),
        max_positions=config.size("max_position_embeddings", default=POSITIONS, maximum=MAX_POSITIONS),
    )


def _expert_layers(config: Config, num_layers: int) -> list[bool]:
    """Whether each layer has experts: every ``decoder_sparse_step``-th, without the layers listed as dense."""
    step = config.size("decoder_sparse_step", default=1)
    dense = config.layer_numbers("mlp_only_layers", num_layers)
    return [number not in dense and (number + 1) % step == 0 for number in range(num_layers)]
