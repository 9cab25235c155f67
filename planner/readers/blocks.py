"""Building blocks of decoder-only language models: a family names its dims and puts them together."""

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from planner.graph import (
    BATCH,
    CHOICES,
    SEQ,
    Axis,
    Block,
    Dim,
    Layer,
    Op,
    OpKind,
    Parameter,
    SharedParameter,
    Tensor,
)

WORD_EMBEDDINGS = "word_embeddings"
"""Parameter of the embedding, and of a head that shares it."""
VOCAB_GRANULARITY = 128
"""Trainers pad the vocabulary to a multiple of this times tp (Megatron-LM, ``--make-vocab-size-divisible-by``)."""

EMBEDDING = "embedding"
DECODER = "decoder"
WINDOW_DECODER = "window_decoder"
DENSE_DECODER = "dense_decoder"
MOE_DECODER = "moe_decoder"
HEAD = "head"

_KINDS_OF_DIM = {
    "hidden": Dim(name="hidden", size=1),
    "positions": Dim(name="positions", size=1),
    "vocab": Dim(name="vocab", size=1, granularity=VOCAB_GRANULARITY, axis=Axis.TP, padded=True),
    "heads": Dim(name="heads", size=1, axis=Axis.TP),
    "kv_heads": Dim(name="kv_heads", size=1, axis=Axis.TP, replicable=True),
    "head_size": Dim(name="head_size", size=1),
    "q_latent": Dim(name="q_latent", size=1),
    "kv_latent": Dim(name="kv_latent", size=1),
    "rope_size": Dim(name="rope_size", size=1),
    "nope_size": Dim(name="nope_size", size=1),
    "qk_size": Dim(name="qk_size", size=1),
    "v_size": Dim(name="v_size", size=1),
    "gate": Dim(name="gate", size=2),
    "ffn": Dim(name="ffn", size=1, axis=Axis.TP),
    "shared_ffn": Dim(name="shared_ffn", size=1, axis=Axis.TP),
    "experts": Dim(name="experts", size=1, axis=Axis.EP),
    "router_experts": Dim(name="router_experts", size=1),
    CHOICES: Dim(name=CHOICES, size=1),
    "expert_ffn": Dim(name="expert_ffn", size=1, axis=Axis.ETP),
}
"""How each dim may be split. ``make_dims`` gives each its size; ``gate`` has 2, the gate and the value."""


def make_dims(**sizes: int) -> dict[str, Dim]:
    """Dims of a model by name, with the gate of gated MLPs."""
    return {name: replace(_KINDS_OF_DIM[name], size=size) for name, size in {"gate": 2, **sizes}.items()}


@dataclass(slots=True)
class LayerBuilder:
    """Collects the ops of one layer; an op's tensor carries the op's name unless it is given another."""

    name: str
    dims: Mapping[str, Dim]
    input: str | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def add_input(self, name: str, dims: tuple[str, ...]) -> str:
        """Declare the tensor that comes from the layer before."""
        self.input = name
        self.tensors[name] = Tensor(name=name, dims=dims)
        return name

    def add(
        self,
        name: str,
        kind: OpKind,
        inputs: tuple[str, ...],
        dims: tuple[str, ...],
        *,
        output: str | None = None,
        sums: tuple[str, ...] = (),
        parameters: Mapping[str, tuple[str, ...]] | None = None,
        module: str | None = None,
        window: int | None = None,
    ) -> str:
        """Append an op and return the name of the tensor it writes."""
        output = output or name
        self.tensors[output] = Tensor(name=output, dims=dims)
        weights = tuple(Parameter(name=weight, dims=its) for weight, its in (parameters or {}).items())
        self.ops.append(
            Op(
                name=name,
                kind=kind,
                inputs=inputs,
                output=output,
                sums=sums,
                parameters=weights,
                module=module,
                window=window,
            )
        )
        return output

    def dims_of(self, tensor: str) -> tuple[str, ...]:
        """Dims of a tensor made so far."""
        return self.tensors[tensor].dims

    def linear(
        self,
        name: str,
        x: str,
        kept: tuple[str, ...],
        sums: tuple[str, ...],
        *,
        output: str | None = None,
        weight: str | None = None,
        bias: bool = False,
        module: str | None = None,
    ) -> str:
        """A matrix product that replaces the dims it sums over by the dims it keeps."""
        parameters = {weight or f"{name}.weight": (*kept, *sums)}
        if bias:
            parameters[f"{name}.bias"] = kept
        dims = (BATCH, SEQ, *kept)
        return self.add(name, OpKind.LINEAR, (x,), dims, output=output, sums=sums, parameters=parameters, module=module)

    def norm(self, name: str, x: str, dim: str = "hidden", *, bias: bool = False, module: str | None = None) -> str:
        """RMSNorm over one dim, or LayerNorm with a bias."""
        parameters: dict[str, tuple[str, ...]] = {f"{name}.weight": (dim,)}
        if bias:
            parameters[f"{name}.bias"] = (dim,)
        return self.add(name, OpKind.NORM, (x,), self.dims_of(x), parameters=parameters, module=module)

    def residual(self, name: str, x: str, y: str, *, output: str | None = None) -> str:
        """Sum of two tensors of equal dims."""
        return self.add(name, OpKind.RESIDUAL, (x, y), self.dims_of(x), output=output)

    def dropout(self, name: str, x: str, *, applied: bool) -> str:
        """Dropout where the model has it."""
        return self.add(name, OpKind.DROPOUT, (x,), self.dims_of(x)) if applied else x

    def build(self, output: str) -> Layer:
        """The layer, with only the dims it uses, in their order in the model."""
        used = {dim for tensor in self.tensors.values() for dim in tensor.dims}
        used |= {dim for op in self.ops for parameter in op.parameters for dim in parameter.dims}
        return Layer(
            name=self.name,
            dims={name: dim for name, dim in self.dims.items() if name in used},
            tensors=self.tensors,
            ops=tuple(self.ops),
            input=self.input,
            output=output,
        )


class Part(Protocol):
    """The attention or the MLP of a decoder layer."""

    def add_to(self, layer: LayerBuilder, x: str) -> str:
        """Append the ops that read the normed tensor ``x``; return the tensor for the residual sum."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Attention whose query heads share key and value heads in groups, or have one each."""

    bias: bool = False
    """Whether the projections to q, k and v have biases."""
    out_bias: bool = False
    """Whether the projection of the output has one."""
    qk_norm: bool = False
    """Whether q and k are normed per head."""
    rotary: bool = True
    """Whether positions are rotated into q and k."""
    window: int | None = None
    """Keys a query sees at most; ``None``: all."""

    def add_to(self, layer: LayerBuilder, x: str) -> str:
        """Projections, norms, rotary, attention, projection of the output."""
        q = layer.linear("q", x, ("heads", "head_size"), ("hidden",), bias=self.bias)
        k = layer.linear("k", x, ("kv_heads", "head_size"), ("hidden",), bias=self.bias)
        v = layer.linear("v", x, ("kv_heads", "head_size"), ("hidden",), bias=self.bias)
        if self.qk_norm:
            q = layer.norm("q_norm", q, "head_size")
            k = layer.norm("k_norm", k, "head_size")
        if self.rotary:
            q = layer.add("q_rotary", OpKind.ROTARY, (q,), layer.dims_of(q))
            k = layer.add("k_rotary", OpKind.ROTARY, (k,), layer.dims_of(k))
        dims = (BATCH, SEQ, "heads", "head_size")
        x = layer.add("attention", OpKind.ATTENTION, (q, k, v), dims, module="core_attn", window=self.window)
        return layer.linear("out", x, ("hidden",), ("heads", "head_size"), bias=self.out_bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention: keys and values are made from a small latent and one rotary key for all heads."""

    bias: bool = False
    """Whether the projections from and to the hidden state have biases."""
    q_latent: bool = True
    """Whether queries, too, are made from a latent."""

    def add_to(self, layer: LayerBuilder, x: str) -> str:
        """Down projections, norms of the latents, up projections, rotary, attention, projection of the output."""
        up = "mla_up_proj"
        if self.q_latent:
            q = layer.linear("q_a", x, ("q_latent",), ("hidden",), bias=self.bias)
            q = layer.norm("q_a_norm", q, "q_latent")
            q = layer.linear("q_b", q, ("heads", "qk_size"), ("q_latent",), module=up)
        else:
            q = layer.linear("q", x, ("heads", "qk_size"), ("hidden",), module=up)
        latent = layer.linear("kv_a", x, ("kv_latent",), ("hidden",), bias=self.bias)
        rope_key = layer.linear("k_rope", x, ("rope_size",), ("hidden",), bias=self.bias)
        latent = layer.norm("kv_a_norm", latent, "kv_latent")
        k = layer.linear("k_b", latent, ("heads", "nope_size"), ("kv_latent",), module=up)
        v = layer.linear("v_b", latent, ("heads", "v_size"), ("kv_latent",), module=up)
        qk_dims = (BATCH, SEQ, "heads", "qk_size")
        q = layer.add("q_rotary", OpKind.ROTARY, (q,), qk_dims, module=up)
        k = layer.add("k_assemble", OpKind.ROTARY, (k, rope_key), qk_dims, module=up)
        v_dims = (BATCH, SEQ, "heads", "v_size")
        x = layer.add("attention", OpKind.ATTENTION, (q, k, v), v_dims, module="core_attn")
        return layer.linear("out", x, ("hidden",), ("heads", "v_size"), bias=self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedMlp:
    """down(activation(gate(x)) * up(x)); gate and up are one product."""

    bias: bool = False
    """Whether the projections have biases."""
    dim: str = "ffn"
    """The dim between them."""
    prefix: str = ""
    """Put before the names of the ops."""
    module: str | None = None
    """Recompute module of the ops."""

    def add_to(self, layer: LayerBuilder, x: str) -> str:
        """Both halves, activation, way back."""
        x = layer.linear(
            f"{self.prefix}gate_up", x, ("gate", self.dim), ("hidden",), bias=self.bias, module=self.module
        )
        x = layer.add(f"{self.prefix}activation", OpKind.ACTIVATION, (x,), (BATCH, SEQ, self.dim), module=self.module)
        return layer.linear(f"{self.prefix}down", x, ("hidden",), (self.dim,), bias=self.bias, module=self.module)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainMlp:
    """proj(activation(fc(x)))."""

    bias: bool = True
    """Whether the projections have biases."""

    def add_to(self, layer: LayerBuilder, x: str) -> str:
        """Way out, activation, way back."""
        x = layer.linear("fc", x, ("ffn",), ("hidden",), bias=self.bias)
        x = layer.add("activation", OpKind.ACTIVATION, (x,), (BATCH, SEQ, "ffn"))
        return layer.linear("proj", x, ("hidden",), ("ffn",), bias=self.bias)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeMlp:
    """Gated experts, of which each token visits ``choices``, and the shared experts that all tokens visit."""

    shared: bool = False
    """Whether there are shared experts."""

    def add_to(self, layer: LayerBuilder, x: str) -> str:
        """Router, way to the experts, experts, way back, shared experts."""
        chosen = (BATCH, SEQ, CHOICES)
        scores = layer.linear("router", x, ("router_experts",), ("hidden",))
        probs = layer.add("router_topk", OpKind.ROUTER, (scores,), chosen, output="probs")
        y = layer.add("dispatch", OpKind.DISPATCH, (x, probs), (*chosen, "hidden"))
        y = layer.add(
            "expert_gate_up",
            OpKind.GROUPED_LINEAR,
            (y,),
            (*chosen, "gate", "expert_ffn"),
            sums=("hidden",),
            parameters={"expert_gate_up.weight": ("experts", "gate", "expert_ffn", "hidden")},
        )
        y = layer.add("expert_activation", OpKind.ACTIVATION, (y,), (*chosen, "expert_ffn"), module="moe_act")
        y = layer.add(
            "expert_down",
            OpKind.GROUPED_LINEAR,
            (y,),
            (*chosen, "hidden"),
            sums=("expert_ffn",),
            parameters={"expert_down.weight": ("experts", "hidden", "expert_ffn")},
        )
        y = layer.add("combine", OpKind.COMBINE, (y, probs), (BATCH, SEQ, "hidden"), sums=(CHOICES,))
        if self.shared:
            shared = GatedMlp(dim="shared_ffn", prefix="shared_", module="shared_experts").add_to(layer, x)
            y = layer.residual("shared_residual", y, shared)
        return y


def embedding_layer(dims: Mapping[str, Dim], *, positions: bool = False, dropout: bool = False) -> Layer:
    """Tokens to hidden states, with learned positions where the model has them."""
    layer = LayerBuilder(EMBEDDING, dims)
    out = (BATCH, SEQ, "hidden")
    x = layer.add(
        WORD_EMBEDDINGS, OpKind.EMBEDDING, (), out, sums=("vocab",), parameters={WORD_EMBEDDINGS: ("vocab", "hidden")}
    )
    if positions:
        name = "position_embeddings"
        y = layer.add(name, OpKind.EMBEDDING, (), out, sums=("positions",), parameters={name: ("positions", "hidden")})
        x = layer.residual("position_residual", x, y)
    return layer.build(layer.dropout("embedding_dropout", x, applied=dropout))


def decoder_layer(
    name: str, dims: Mapping[str, Dim], attention: Part, mlp: Part, *, norm_bias: bool = False, dropout: bool = False
) -> Layer:
    """A pre-norm decoder layer: x + attention(norm(x)), then x + mlp(norm(x))."""
    layer = LayerBuilder(name, dims)
    x = layer.add_input("input", (BATCH, SEQ, "hidden"))
    y = attention.add_to(layer, layer.norm("attention_norm", x, bias=norm_bias, module="layernorm"))
    x = layer.residual("attention_residual", x, layer.dropout("attention_dropout", y, applied=dropout))
    y = mlp.add_to(layer, layer.norm("mlp_norm", x, bias=norm_bias, module="layernorm"))
    return layer.build(layer.residual("mlp_residual", x, layer.dropout("mlp_dropout", y, applied=dropout)))


def head_layer(dims: Mapping[str, Dim], *, tied: bool, norm_bias: bool = False) -> Layer:
    """Hidden states to the loss of each token."""
    layer = LayerBuilder(HEAD, dims)
    x = layer.add_input("input", (BATCH, SEQ, "hidden"))
    x = layer.norm("final_norm", x, bias=norm_bias, module="layernorm")
    weight = WORD_EMBEDDINGS if tied else None
    x = layer.linear("lm_head", x, ("vocab",), ("hidden",), output="logits", weight=weight)
    return layer.build(layer.add("loss", OpKind.LOSS, (x,), (BATCH, SEQ), sums=("vocab",)))


def runs(names: Iterable[str]) -> tuple[Block, ...]:
    """Runs of equal layers in a row of layer types."""
    return tuple(Block(layer_type=name, count=sum(1 for _ in group)) for name, group in itertools.groupby(names))


def tied_embeddings(tied: bool) -> tuple[SharedParameter, ...]:
    """The parameter that the head shares with the embedding, if it does."""
    return (SharedParameter(name=WORD_EMBEDDINGS, layer_types=(EMBEDDING, HEAD)),) if tied else ()
