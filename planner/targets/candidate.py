"""What rules look at: one strategy or many as numbers, and the facts of a model and a workload.

A candidate is decided in three steps: its *core* (degrees, microbatches), its *outer* choices (sharding of states,
placement, kind of context parallelism) and its *inner* choices (layers and recomputation of each stage). Fields of
steps not taken yet are ``None``. Core and outer fields are ints, or integer arrays of one shape for many candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from planner.graph import Axis, ModelGraph
from planner.plan import edge_layers
from planner.strategy import CpKind, RankOrder, Recompute, Strategy
from planner.workload import Workload

Integer: TypeAlias = Any
"""An int or a numpy array of ints."""

RING, ULYSSES = 0, 1
"""Values of ``Candidate.cp_kind``."""
PP_OUTER, DP_OUTER = 0, 1
"""Values of ``Candidate.rank_order``."""

CP_KINDS = (CpKind.RING, CpKind.ULYSSES)
"""Kinds of context parallelism by index."""
RANK_ORDERS = (RankOrder.PP_OUTER, RankOrder.DP_OUTER)
"""Rank orders by index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One strategy, or many that are told apart by arrays."""

    num_devices: Integer
    """Devices that the strategy has to use."""
    tp: Integer
    cp: Integer
    pp: Integer
    vpp: Integer
    ep: Integer
    etp: Integer
    dp: Integer
    microbatch_size: Integer
    """Sequences."""
    num_microbatches: Integer
    """Of one step and replica."""
    cp_kind: Integer = None
    """0 ring, 1 Ulysses."""
    zero_stage: Integer = None
    dp_shard: Integer = None
    dp_replicate: Integer = None
    rank_order: Integer = None
    """0 pp outermost, 1 dp outermost."""
    sequence_parallel: Integer = None
    """0 or 1."""
    layers_per_stage: tuple[int, ...] | None = None
    """[virtual stage]"""
    recompute: Recompute | None = None
    recompute_layers: tuple[int, ...] | None = None
    """[virtual stage]"""


def candidate_of(strategy: Strategy, num_devices: int) -> Candidate:
    """A complete strategy as a candidate for so many devices."""
    return Candidate(
        num_devices=num_devices,
        tp=strategy.tp,
        cp=strategy.cp,
        pp=strategy.pp,
        vpp=strategy.vpp,
        ep=strategy.ep,
        etp=strategy.etp,
        dp=strategy.dp,
        microbatch_size=strategy.microbatch_size,
        num_microbatches=strategy.num_microbatches,
        cp_kind=CP_KINDS.index(strategy.cp_kind),
        zero_stage=strategy.zero_stage,
        dp_shard=strategy.dp_shard,
        dp_replicate=strategy.dp_replicate,
        rank_order=RANK_ORDERS.index(strategy.rank_order),
        sequence_parallel=int(strategy.sequence_parallel),
        layers_per_stage=strategy.layers_per_stage,
        recompute=strategy.recompute,
        recompute_layers=strategy.recompute_layers,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DimFact:
    """A dim that a mesh axis splits; equal ones of several layer types once."""

    name: str
    size: int
    granularity: int
    """Shards are multiples of it."""
    axis: Axis
    replicable: bool
    padded: bool

    def accepts(self, degree: Integer) -> Any:
        """Whether the dim can be split over a degree. [as the degree]"""
        units = self.size // self.granularity
        even = (self.size % self.granularity == 0) & (units % degree == 0)
        if self.padded:
            return degree >= 1
        return even | (degree % max(units, 1) == 0) if self.replicable else even


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What rules need to know of a model and a workload."""

    dims: tuple[DimFact, ...]
    """Dims that tp, ep or etp split, in the order of the layers."""
    num_body_layers: int
    """Layers that stages count: all but embedding and head."""
    has_embedding: bool
    """Whether the first stage holds a layer that is not counted."""
    has_head: bool
    """Whether the last stage holds a layer that is not counted."""
    seq_len: int
    """[tokens]"""
    global_batch_size: int
    """[sequences]"""
    is_moe: bool
    """Whether any layer has experts."""
    tied_embeddings: bool
    """Whether the head uses the embedding's weight."""
    has_window: bool = False
    """Whether attention of any layer sees a window only."""
    latent_dims: tuple[tuple[str, int], ...] = ()
    """(name, size) of the latents of multi-head latent attention; Megatron may split them over tp."""

    def sizes(self, name: str) -> tuple[int, ...]:
        """Sizes of the dims of a name, each once."""
        return tuple(dict.fromkeys(dim.size for dim in self.dims if dim.name == name))

    def on_axis(self, axis: Axis) -> tuple[DimFact, ...]:
        """Dims that an axis splits."""
        return tuple(dim for dim in self.dims if dim.axis is axis)

    @property
    def heads(self) -> int | None:
        """Attention heads of the first layer type that has any."""
        return next(iter(self.sizes("heads")), None)

    @property
    def kv_heads(self) -> int | None:
        """Heads of keys and values, where they are counted apart."""
        return next(iter(self.sizes("kv_heads")), None)

    @property
    def num_experts(self) -> int | None:
        """Experts of the first layer type that has any."""
        return next((dim.size for dim in self.on_axis(Axis.EP)), None)

    @property
    def has_latent_attention(self) -> bool:
        """Whether attention is multi-head latent attention."""
        return bool(self.latent_dims)


def model_facts(graph: ModelGraph, workload: Workload) -> ModelFacts:
    """The facts of a model under a workload."""
    leading, trailing = edge_layers(graph)
    layers = [graph.layer_types[block.layer_type] for block in graph.blocks]
    dims = [
        DimFact(
            name=dim.name,
            size=dim.size,
            granularity=dim.granularity,
            axis=dim.axis,
            replicable=dim.replicable,
            padded=dim.padded,
        )
        for layer in layers
        for dim in layer.dims.values()
        if dim.axis is not None
    ]
    latents = [sizes for layer in layers for sizes in _latents({name: dim.size for name, dim in layer.dims.items()})]
    return ModelFacts(
        dims=_unique(dims),
        num_body_layers=graph.num_layers - leading - trailing,
        has_embedding=leading > 0,
        has_head=trailing > 0,
        seq_len=workload.seq_len,
        global_batch_size=workload.global_batch_size,
        is_moe=graph.is_moe,
        tied_embeddings=bool(graph.shared_parameters),
        has_window=any(op.window is not None for layer in layers for op in layer.ops),
        latent_dims=_unique(latents),
    )


def _latents(sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Widths of the products that make the latents; the rotary key is made together with the keys' and values'."""
    if "kv_latent" not in sizes:
        return []
    made = [("kv_latent + rope_size", sizes["kv_latent"] + sizes.get("rope_size", 0))]
    return [("q_latent", sizes["q_latent"]), *made] if "q_latent" in sizes else made


def _unique(items: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(items))
