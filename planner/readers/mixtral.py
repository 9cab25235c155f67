"""Mixtral: Mistral's attention, and gated experts in every layer."""

from planner.readers.blocks import GroupedAttention, MoeMlp, make_dims
from planner.readers.config import MAX_LAYERS, MAX_POSITIONS, Config
from planner.readers.stack import Stack, mixed_stack


def read_mixtral(config: Config) -> Stack:
    """The layers of a Mixtral."""
    experts, choices = config.size("num_local_experts"), config.size("num_experts_per_tok")
    config.check_choices("num_experts_per_tok", choices, "num_local_experts", experts)
    dims = make_dims(
        vocab=config.size("vocab_size"),
        **config.attention_sizes(default_kv_heads=8),
        experts=experts,
        router_experts=experts,
        choices=choices,
        expert_ffn=config.size("intermediate_size"),
    )
    return mixed_stack(
        dims,
        GroupedAttention(window=config.optional_size("sliding_window")),
        MoeMlp(),
        [True] * config.size("num_hidden_layers", maximum=MAX_LAYERS),
        tied=config.flag("tie_word_embeddings", default=False),
        max_positions=config.size("max_position_embeddings", default=131_072, maximum=MAX_POSITIONS),
    )
