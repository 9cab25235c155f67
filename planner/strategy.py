"""One way to split a training step over the devices: the point that search looks for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum


class CpKind(StrEnum):
    """How attention sees the whole sequence under context parallelism."""

    RING = "ring"
    """Keys and values travel round the group."""
    ULYSSES = "ulysses"
    """All-to-all swaps the sequence shard for a shard of heads."""


class Recompute(StrEnum):
    """What is dropped after the forward pass and computed again in the backward pass."""

    NONE = "none"
    SELECTIVE = "selective"
    """The cheap modules: norms, expert activations, latent up-projections, unfused core attention."""
    FULL = "full"
    """All of a layer but its input."""


class RankOrder(StrEnum):
    """Mesh axes from the innermost (neighbouring ranks) to the outermost."""

    PP_OUTER = "tp-cp-ep-dp-pp"
    DP_OUTER = "tp-cp-ep-pp-dp"


SELECTIVE_MODULES = ("layernorm", "mla_up_proj", "moe_act")
"""Modules that selective recomputation drops, by Megatron-Core's names; unfused core attention as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Degrees, placement, stage contents, recomputation and schedule of one plan."""

    tp: int = 1
    """Tensor parallel degree."""
    cp: int = 1
    """Context parallel degree."""
    cp_kind: CpKind = CpKind.RING
    """Kind of context parallelism; ``ring`` where cp is 1."""
    pp: int = 1
    """Pipeline stages (ranks of a pipeline)."""
    vpp: int = 1
    """Virtual stages per rank; above 1 the schedule is interleaved."""
    ep: int = 1
    """Expert parallel degree."""
    etp: int = 1
    """Tensor parallel degree of the experts."""
    dp_shard: int = 1
    """Data-parallel ranks that states are sharded over (1 with zero_stage 0)."""
    dp_replicate: int = 1
    """Data-parallel replicas of each shard group."""
    zero_stage: int = 0
    """0: DDP; 1: optimizer, 2: and gradients, 3: and weights sharded over dp_shard x cp."""
    microbatch_size: int = 1
    """Sequences of a microbatch."""
    num_microbatches: int = 1
    """Microbatches of one step and replica."""
    sequence_parallel: bool = True
    """Whether activations outside tensor-parallel regions are split over tp."""
    rank_order: RankOrder = RankOrder.PP_OUTER
    """Which axes are neighbours."""
    recompute: Recompute = Recompute.NONE
    """Kind of recomputation."""
    recompute_layers: tuple[int, ...] = (0,)
    """Layers that recompute in each virtual stage: its first ones. [virtual stage]"""
    layers_per_stage: tuple[int, ...] = (1,)
    """Layers of each virtual stage, without embedding (first stage) and head (last stage). [virtual stage]"""

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "pp", "vpp", "ep", "etp", "dp_shard", "dp_replicate", "microbatch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_microbatches < 1:
            raise ValueError(f"num_microbatches must be at least 1, got {self.num_microbatches}")
        if self.zero_stage not in (0, 1, 2, 3):
            raise ValueError(f"zero_stage must be 0, 1, 2 or 3, got {self.zero_stage}")
        for name in ("layers_per_stage", "recompute_layers"):
            if len(getattr(self, name)) != self.num_stages:
                raise ValueError(f"{name} must have pp x vpp = {self.num_stages} entries")

    @property
    def dp(self) -> int:
        """Data parallel degree."""
        return self.dp_shard * self.dp_replicate

    @property
    def num_stages(self) -> int:
        """Virtual stages of the pipeline."""
        return self.pp * self.vpp

    @property
    def world_size(self) -> int:
        """Devices in use."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def schedule(self) -> str:
        """Name of the pipeline schedule."""
        return "interleaved-1f1b" if self.vpp > 1 else "1f1b"

    @property
    def state_shards(self) -> int:
        """Ranks over which a dense layer's sharded states are spread."""
        return self.dp_shard * self.cp if self.zero_stage else 1

    @property
    def expert_replicas(self) -> int:
        """Ranks that hold the same expert weights before sharding (the expert data parallel degree)."""
        return self.dp * self.cp * self.tp // (self.ep * self.etp)

    @property
    def expert_state_shards(self) -> int:
        """Ranks over which an expert layer's sharded states are spread."""
        return max(1, self.dp_shard * self.cp * self.tp // (self.ep * self.etp)) if self.zero_stage else 1

    @property
    def degrees(self) -> dict[str, int]:
        """Degrees by their names."""
        names = ("dp", "dp_shard", "dp_replicate", "tp", "pp", "vpp", "cp", "ep", "etp")
        return {name: getattr(self, name) for name in names}

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        values = asdict(self)
        for name, value in values.items():
            if isinstance(value, StrEnum):
                values[name] = value.value
            elif isinstance(value, tuple):
                values[name] = list(value)
        return values


def strategy_from_json(values: dict[str, object]) -> Strategy:
    """The strategy that ``Strategy.to_json`` wrote."""
    known: dict[str, object] = dict(values)
    known["cp_kind"] = CpKind(str(known["cp_kind"]))
    known["rank_order"] = RankOrder(str(known["rank_order"]))
    known["recompute"] = Recompute(str(known["recompute"]))
    for name in ("recompute_layers", "layers_per_stage"):
        known[name] = tuple(known[name])  # type: ignore[arg-type]  # a list in JSON
    return Strategy(**known)  # type: ignore[arg-type]  # checked by __post_init__
