"""GPT-2 and GPT-3: learned positions, full attention heads, GELU MLP, LayerNorm, biases everywhere."""

from planner.readers.blocks import (
    DECODER,
    GroupedAttention,
    PlainMlp,
    decoder_layer,
    embedding_layer,
    head_layer,
    make_dims,
)
from planner.readers.config import MAX_LAYERS, MAX_POSITIONS, Config
from planner.readers.stack import Stack


def read_gpt2(config: Config) -> Stack:
    """The layers of a GPT-2."""
    hidden, heads = config.size("n_embd"), config.size("n_head")
    positions = config.size("n_positions", default=1024, maximum=MAX_POSITIONS)
    dims = make_dims(
        hidden=hidden,
        positions=positions,
        vocab=config.size("vocab_size"),
        heads=heads,
        kv_heads=heads,
        head_size=config.head_size("n_embd", hidden, "n_head", heads),
        ffn=config.size("n_inner", default=4 * hidden),
    )
    if config.flag("add_cross_attention", default=False):
        config.report("cross-attention is not supported; accepted: false", "add_cross_attention")
    dropout = config.probability("resid_pdrop", default=0.1) > 0
    tied = config.flag("tie_word_embeddings", default=True)
    attention = GroupedAttention(bias=True, out_bias=True, rotary=False)
    decoder = decoder_layer(DECODER, dims, attention, PlainMlp(), norm_bias=True, dropout=dropout)
    embedding_dropout = config.probability("embd_pdrop", default=0.1) > 0
    return Stack(
        embedding=embedding_layer(dims, positions=True, dropout=embedding_dropout),
        decoders={DECODER: decoder},
        order=[DECODER] * config.size("n_layer", maximum=MAX_LAYERS),
        head=head_layer(dims, tied=tied, norm_bias=True),
        tied=tied,
        max_positions=positions,
        learned_positions=True,
    )
