"""Qwen3: Llama's layers with queries and keys normed per head, and a window in some of them where switched on."""

from planner.readers.blocks import (
    DECODER,
    WINDOW_DECODER,
    GatedMlp,
    GroupedAttention,
    decoder_layer,
    embedding_layer,
    head_layer,
    make_dims,
)
from planner.readers.config import MAX_LAYERS, MAX_POSITIONS, Config
from planner.readers.stack import Stack

HEAD_SIZE = 128
"""Where head_dim is absent (transformers, Qwen3Config)."""
POSITIONS = 32_768
"""Where max_position_embeddings is absent (transformers, Qwen3Config and Qwen3MoeConfig)."""

_FULL, _SLIDING = "full_attention", "sliding_attention"


def read_qwen3(config: Config) -> Stack:
    """The layers of a dense Qwen3."""
    dims = make_dims(
        vocab=config.size("vocab_size"),
        **config.attention_sizes(default_kv_heads=32, default_head_size=HEAD_SIZE),
        ffn=config.size("intermediate_size"),
    )
    num_layers = config.size("num_hidden_layers", maximum=MAX_LAYERS)
    window, bias = read_window(config), config.flag("attention_bias", default=False)
    order = _attention_types(config, num_layers, window)
    windows = {kind: window if kind == _SLIDING else None for kind in order}
    names = {_FULL: DECODER, _SLIDING: WINDOW_DECODER if len(windows) > 1 else DECODER}
    tied = config.flag("tie_word_embeddings", default=False)
    return Stack(
        embedding=embedding_layer(dims),
        decoders={
            names[kind]: decoder_layer(names[kind], dims, qwen_attention(bias, its), GatedMlp())
            for kind, its in windows.items()
        },
        order=[names[kind] for kind in order],
        head=head_layer(dims, tied=tied),
        tied=tied,
        max_positions=config.size("max_position_embeddings", default=POSITIONS, maximum=MAX_POSITIONS),
    )


def qwen_attention(bias: bool, window: int | None) -> GroupedAttention:
    """Attention of both kinds of Qwen3."""
    return GroupedAttention(bias=bias, out_bias=bias, qk_norm=True, window=window)


def read_window(config: Config) -> int | None:
    """The window where it is switched on."""
    window = config.optional_size("sliding_window", absent=4096)
    return window if config.flag("use_sliding_window", default=False) else None


def _attention_types(config: Config, num_layers: int, window: int | None) -> list[str]:
    """Kind of attention of each layer: as listed, else windows from layer ``max_window_layers`` on."""
    listed = config.choices("layer_types", (_FULL, _SLIDING), num_layers)
    num_full = config.size("max_window_layers", default=28, minimum=0)
    if window is None:
        return [_FULL] * num_layers
    return listed or [_SLIDING if number >= num_full else _FULL for number in range(num_layers)]
