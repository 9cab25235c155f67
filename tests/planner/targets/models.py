"""Small models and strategies for tests of targets and exports."""

from __future__ import annotations

from typing import Any

from planner.graph import (
    BATCH,
    CHOICES,
    SEQ,
    Axis,
    Block,
    Dim,
    Layer,
    ModelGraph,
    Op,
    OpKind,
    Parameter,
    SharedParameter,
    Tensor,
)
from planner.strategy import Recompute, Strategy
from planner.targets import PP_OUTER, RING, Candidate
from planner.workload import Workload

HIDDEN = (BATCH, SEQ, "hidden")


def linear(
    name: str, x: str, output: str, kept: tuple[str, ...], sums: tuple[str, ...], module: str | None = None
) -> Op:
    """A matrix product with one weight."""
    return Op(
        name=name,
        kind=OpKind.LINEAR,
        inputs=(x,),
        output=output,
        sums=sums,
        parameters=(Parameter(name=f"{name}.weight", dims=(*kept, *sums)),),
    )


def embedding(dims: dict[str, Dim]) -> Layer:
    """Tokens to hidden states."""
    op = Op(
        name="word_embeddings",
        kind=OpKind.EMBEDDING,
        inputs=(),
        output="x",
        sums=("vocab",),
        parameters=(Parameter(name="word_embeddings", dims=("vocab", "hidden")),),
    )
    return Layer(
        name="embedding",
        dims={name: dims[name] for name in ("vocab", "hidden")},
        tensors={"x": Tensor(name="x", dims=HIDDEN)},
        ops=(op,),
        input=None,
        output="x",
    )


def head(dims: dict[str, Dim]) -> Layer:
    """Hidden states to the loss; its weight has the embedding's name, so that it can be shared."""
    product = Op(
        name="lm_head",
        kind=OpKind.LINEAR,
        inputs=("x",),
        output="logits",
        sums=("hidden",),
        parameters=(Parameter(name="word_embeddings", dims=("vocab", "hidden")),),
    )
    loss = Op(name="loss", kind=OpKind.LOSS, inputs=("logits",), output="losses", sums=("vocab",))
    tensors = {
        "x": Tensor(name="x", dims=HIDDEN),
        "logits": Tensor(name="logits", dims=(BATCH, SEQ, "vocab")),
        "losses": Tensor(name="losses", dims=(BATCH, SEQ)),
    }
    used = {name: dims[name] for name in ("vocab", "hidden")}
    return Layer(name="head", dims=used, tensors=tensors, ops=(product, loss), input="x", output="losses")


def decoder(name: str, dims: dict[str, Dim], *, experts: bool, window: int | None = None) -> Layer:
    """Attention and a gated MLP, or experts, without norms and residual sums."""
    heads, kv_heads = (BATCH, SEQ, "heads", "head_size"), (BATCH, SEQ, "kv_heads", "head_size")
    ops = [
        linear("q", "x", "q", ("heads", "head_size"), ("hidden",)),
        linear("k", "x", "k", ("kv_heads", "head_size"), ("hidden",)),
        linear("v", "x", "v", ("kv_heads", "head_size"), ("hidden",)),
        Op(name="attention", kind=OpKind.ATTENTION, inputs=("q", "k", "v"), output="a", window=window),
        linear("out", "a", "y", ("hidden",), ("heads", "head_size")),
    ]
    tensors: dict[str, tuple[str, ...]] = {"x": HIDDEN, "q": heads, "k": kv_heads, "v": kv_heads, "a": heads}
    tensors |= {"y": HIDDEN, "z": HIDDEN}
    if experts:
        chosen = (BATCH, SEQ, CHOICES)
        tensors |= {"scores": (BATCH, SEQ, "router_experts"), "probs": chosen, "sent": (*chosen, "hidden")}
        tensors |= {"up": (*chosen, "gate", "expert_ffn"), "act": (*chosen, "expert_ffn"), "back": (*chosen, "hidden")}
        up = Parameter(name="up.weight", dims=("experts", "gate", "expert_ffn", "hidden"))
        down = Parameter(name="down.weight", dims=("experts", "hidden", "expert_ffn"))
        grouped, hidden, ffn = OpKind.GROUPED_LINEAR, ("hidden",), ("expert_ffn",)
        ops += [
            linear("router", "y", "scores", ("router_experts",), ("hidden",)),
            Op(name="topk", kind=OpKind.ROUTER, inputs=("scores",), output="probs"),
            Op(name="dispatch", kind=OpKind.DISPATCH, inputs=("y", "probs"), output="sent"),
            Op(name="up", kind=grouped, inputs=("sent",), output="up", sums=hidden, parameters=(up,)),
            Op(name="act", kind=OpKind.ACTIVATION, inputs=("up",), output="act"),
            Op(name="down", kind=grouped, inputs=("act",), output="back", sums=ffn, parameters=(down,)),
            Op(name="combine", kind=OpKind.COMBINE, inputs=("back", "probs"), output="z", sums=(CHOICES,)),
        ]
    else:
        tensors |= {"up": (BATCH, SEQ, "gate", "ffn"), "act": (BATCH, SEQ, "ffn")}
        ops += [
            linear("gate_up", "y", "up", ("gate", "ffn"), ("hidden",)),
            Op(name="activation", kind=OpKind.ACTIVATION, inputs=("up",), output="act"),
            linear("down", "act", "z", ("hidden",), ("ffn",)),
        ]
    used = {dim for names in tensors.values() for dim in names} | ({"experts"} if experts else set())
    return Layer(
        name=name,
        dims={dim: value for dim, value in dims.items() if dim in used},
        tensors={key: Tensor(name=key, dims=value) for key, value in tensors.items()},
        ops=tuple(ops),
        input="x",
        output="z",
    )


def model(
    *,
    layers: int = 8,
    heads: int = 32,
    kv_heads: int = 8,
    ffn: int = 96,
    vocab: int = 1000,
    experts: int = 0,
    expert_ffn: int = 48,
    dense_layers: int = 0,
    tied: bool = False,
    window: int | None = None,
) -> ModelGraph:
    """A decoder-only model; with experts, all layers but the first ``dense_layers`` have them."""
    dims = {
        dim.name: dim
        for dim in (
            Dim(name="hidden", size=64),
            Dim(name="vocab", size=vocab, granularity=128, axis=Axis.TP, padded=True),
            Dim(name="heads", size=heads, axis=Axis.TP),
            Dim(name="kv_heads", size=kv_heads, axis=Axis.TP, replicable=True),
            Dim(name="head_size", size=4),
            Dim(name="gate", size=2),
            Dim(name="ffn", size=ffn, axis=Axis.TP),
            Dim(name="experts", size=max(experts, 1), axis=Axis.EP),
            Dim(name="router_experts", size=max(experts, 1)),
            Dim(name=CHOICES, size=2),
            Dim(name="expert_ffn", size=expert_ffn, axis=Axis.ETP),
        )
    }
    body = [Block(layer_type="decoder", count=layers)]
    types = {"decoder": decoder("decoder", dims, experts=False, window=window)}
    if experts:
        types = {"moe_decoder": decoder("moe_decoder", dims, experts=True, window=window)}
        body = [Block(layer_type="moe_decoder", count=layers - dense_layers)]
        if dense_layers:
            types["dense_decoder"] = decoder("dense_decoder", dims, experts=False, window=window)
            body.insert(0, Block(layer_type="dense_decoder", count=dense_layers))
    shared = SharedParameter(name="word_embeddings", layer_types=("embedding", "head"))
    return ModelGraph(
        name="small",
        family="llama",
        seq_len=128,
        layer_types={"embedding": embedding(dims), **types, "head": head(dims)},
        blocks=(Block(layer_type="embedding", count=1), *body, Block(layer_type="head", count=1)),
        shared_parameters=(shared,) if tied else (),
    )


def workload(*, global_batch_size: int = 16, seq_len: int = 128, **values: Any) -> Workload:
    """A job on a small model."""
    return Workload(global_batch_size=global_batch_size, seq_len=seq_len, **values)


def strategy(**values: Any) -> Strategy:
    """A strategy whose stages hold 8 layers as evenly as can be, and which makes a global batch of 16."""
    num_stages = values.get("pp", 1) * values.get("vpp", 1)
    layers = tuple(8 * (stage + 1) // num_stages - 8 * stage // num_stages for stage in range(num_stages))
    replicas = values.get("dp_shard", 1) * values.get("dp_replicate", 1) * values.get("microbatch_size", 1)
    return Strategy(
        **{
            "layers_per_stage": layers,
            "recompute_layers": (0,) * num_stages,
            "num_microbatches": max(1, 16 // replicas),
            **values,
        }
    )


def candidate(**values: Any) -> Candidate:
    """A candidate of all ones, on as many devices and with as large a batch as its degrees make."""
    degrees = {name: values.get(name, 1) for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp")}
    size = degrees["tp"] * degrees["cp"] * degrees["pp"] * degrees["dp"]
    num_stages = degrees["pp"] * degrees["vpp"]
    defaults: dict[str, Any] = {
        **degrees,
        "num_devices": size,
        "microbatch_size": 1,
        "num_microbatches": 1,
        "cp_kind": RING,
        "zero_stage": 0,
        "dp_shard": 1,
        "dp_replicate": degrees["dp"] if "dp_shard" not in values else degrees["dp"] // values["dp_shard"],
        "rank_order": PP_OUTER,
        "sequence_parallel": 1,
        "layers_per_stage": (1,) * num_stages if isinstance(num_stages, int) else None,
        "recompute": Recompute.NONE,
        "recompute_layers": (0,) * num_stages if isinstance(num_stages, int) else None,
    }
    return Candidate(**{**defaults, **values})
