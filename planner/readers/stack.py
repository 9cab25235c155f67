"""What a family's reader hands over: the layers, not yet a model with a name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.graph import Dim, Layer
from planner.readers.blocks import (
    DECODER,
    DENSE_DECODER,
    MOE_DECODER,
    GatedMlp,
    MoeMlp,
    Part,
    decoder_layer,
    embedding_layer,
    head_layer,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Embedding, decoder layers in order, head."""

    embedding: Layer
    """The first layer."""
    decoders: Mapping[str, Layer]
    """Types of decoder layers by name."""
    order: Sequence[str]
    """Type of each decoder layer."""
    head: Layer
    """The last layer."""
    tied: bool
    """Whether the head uses the embedding's weight."""
    max_positions: int
    """Longest context of the model [tokens]."""
    learned_positions: bool = False
    """Whether longer sequences are impossible rather than untried."""
    notes: tuple[str, ...] = ()
    """What was left out, in words for people."""


def uniform_stack(
    dims: Mapping[str, Dim], decoder: Layer, num_layers: int, *, tied: bool, max_positions: int, norm_bias: bool = False
) -> Stack:
    """A stack of equal decoder layers."""
    return Stack(
        embedding=embedding_layer(dims),
        decoders={decoder.name: decoder},
        order=[decoder.name] * num_layers,
        head=head_layer(dims, tied=tied, norm_bias=norm_bias),
        tied=tied,
        max_positions=max_positions,
    )


def mixed_stack(
    dims: Mapping[str, Dim],
    attention: Part,
    moe: MoeMlp,
    is_moe: Sequence[bool],
    *,
    tied: bool,
    max_positions: int,
    notes: tuple[str, ...] = (),
) -> Stack:
    """A stack whose layers have experts or a dense gated MLP, as ``is_moe`` says for each."""
    dense_name = DENSE_DECODER if any(is_moe) else DECODER
    order = [MOE_DECODER if its else dense_name for its in is_moe]
    decoders: dict[str, Layer] = {}
    for name in dict.fromkeys(order):
        decoders[name] = decoder_layer(name, dims, attention, moe if name == MOE_DECODER else GatedMlp())
    return Stack(
        embedding=embedding_layer(dims),
        decoders=decoders,
        order=order,
        head=head_layer(dims, tied=tied),
        tied=tied,
        max_positions=max_positions,
        notes=notes,
    )
