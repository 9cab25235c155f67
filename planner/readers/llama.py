"""Llama and Mistral: grouped attention with rotary positions, gated MLP, RMSNorm."""

from planner.readers.blocks import DECODER, GatedMlp, GroupedAttention, decoder_layer, make_dims
from planner.readers.config import MAX_LAYERS, MAX_POSITIONS, Config
from planner.readers.stack import Stack, uniform_stack


def read_llama(config: Config) -> Stack:
    """The layers of a Llama; key and value heads default to the query heads."""
    bias = config.flag("attention_bias", default=False)
    attention = GroupedAttention(bias=bias, out_bias=bias)
    mlp = GatedMlp(bias=config.flag("mlp_bias", default=False))
    return _read(config, attention, mlp, default_kv_heads=None, default_positions=2048)


def read_mistral(config: Config) -> Stack:
    """The layers of a Mistral: a Llama without biases, whose queries see a window of keys."""
    attention = GroupedAttention(window=config.optional_size("sliding_window", absent=4096))
    return _read(config, attention, GatedMlp(), default_kv_heads=8, default_positions=131_072)


def _read(
    config: Config,
    attention: GroupedAttention,
    mlp: GatedMlp,
    *,
    default_kv_heads: int | None,
    default_positions: int,
) -> Stack:
    dims = make_dims(
        vocab=config.size("vocab_size"),
        **config.attention_sizes(default_kv_heads=default_kv_heads),
        ffn=config.size("intermediate_size"),
    )
    return uniform_stack(
        dims,
        decoder_layer(DECODER, dims, attention, mlp),
        config.size("num_hidden_layers", maximum=MAX_LAYERS),
        tied=config.flag("tie_word_embeddings", default=False),
        max_positions=config.size("max_position_embeddings", default=default_positions, maximum=MAX_POSITIONS),
    )
