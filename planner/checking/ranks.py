"""Memory and time of each pipeline rank: its layers one by one, and the step as the replay of their times."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from costmodels.compute import optimizer_time
from costmodels.stacks import load_stack
from planner.checking.layer import LayerFigures, layer_figures, local_tokens, num_weights, place_of, split_size
from planner.checking.mesh import Group, make_mesh
from planner.checking.replay import TICK, Pipeline, enough_microbatches, finish_times, peak_kept, rank_order, to_ticks
from planner.graph import BATCH, SEQ
from planner.plan import Plan, edge_layers
from planner.strategy import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLayer:
    """One layer of a stage."""

    layer_type: str
    recomputes: bool


def held_layers(plan: Plan) -> list[list[HeldLayer]]:
    """Every layer of the model once, in order, dealt out to the virtual stages. [stage]

    A stage's first counted layers recompute; embedding and head are not counted, and never recompute.
    """
    names = [block.layer_type for block in plan.model.blocks for _ in range(block.count)]
    leading, trailing = edge_layers(plan.model)
    head = names[len(names) - trailing :]
    held = [[HeldLayer(layer_type=name, recomputes=False) for name in names[:leading]]]
    rest = iter(names[leading : len(names) - trailing])
    for stage, count in enumerate(plan.strategy.layers_per_stage):
        if stage:
            held.append([])
        again = plan.strategy.recompute_layers[stage]
        held[-1] += [HeldLayer(layer_type=next(rest), recomputes=index < again) for index in range(count)]
    held[-1] += [HeldLayer(layer_type=name, recomputes=False) for name in head]
    return held


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTimes:
    """A rank's share of the step [s each]."""

    parts: dict[str, float]
    """Terms of the breakdown but the bubble."""
    busy: float
    """Forward and backward of one microbatch."""
    exposed: float
    """Reduction after the last backward."""
    update: float
    """Optimizer step and gather of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What a plan should say."""

    memory: list[dict[str, int]]
    """Bytes by term. [rank]"""
    ranks: list[RankTimes]
    step_time: tuple[float, float]
    """Least and most; equal but for schedules too long to replay [s]."""


class RankAccount:
    """Adds up layers of ranks."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.strategy, self.workload = plan, plan.strategy, plan.workload
        self.stack = load_stack(plan.workload.stack)
        self.stages = held_layers(plan)
        types = dict.fromkeys(block.layer_type for block in plan.model.blocks)
        self.figures: dict[str, LayerFigures] = {name: layer_figures(name, plan, self.stack) for name in types}
        names = [block.layer_type for block in plan.model.blocks for _ in range(block.count)]
        leading, trailing = edge_layers(plan.model)
        self.counted = set(names[leading : len(names) - trailing])
        """Types of which layers may recompute."""
        self.mesh = make_mesh(plan)
        self.exposed = {name: self._layer_exchanges(figures) for name, figures in self.figures.items()}

    def layers(self, rank: int) -> list[HeldLayer]:
        """All layers of a rank, chunk after chunk."""
        return [layer for stage in self.stages[rank :: self.strategy.pp] for layer in stage]

    def unmeasured(self) -> list[str]:
        """Layer types whose cost nobody knows."""
        return [name for name, figures in self.figures.items() if not figures.known]

    # Weights and states

    def weights(self, rank: int) -> tuple[int, int]:
        """Weights of a rank outside and inside the experts; a shared weight once where one rank has both its users."""
        figures = [self.figures[layer.layer_type] for layer in self.layers(rank)]
        dense = sum(figure.dense for figure in figures)
        if self.strategy.pp == 1:
            dense -= self.shared_weights()
        return dense, sum(figure.expert for figure in figures)

    def shared_weights(self) -> int:
        """Copies of weights that an earlier layer type owns."""
        total = 0
        for shared in self.plan.model.shared_parameters:
            for name in shared.layer_types[1:]:
                layer = self.plan.model.layer_types[name]
                copies = [weight for weight in layer.parameters if weight.name == shared.name]
                total += sum(num_weights(layer, weight.dims, self.plan) for weight in copies)
        return total

    def memory(self, rank: int) -> dict[str, int]:
        """Bytes of a rank by term."""
        workload, strategy, zero = self.workload, self.strategy, self.strategy.zero_stage
        layers = self.layers(rank)
        figures = [self.figures[layer.layer_type] for layer in layers]
        terms = dict.fromkeys(("weights", "gradients", "optimizer"), 0)
        for total, group in zip(self.weights(rank), (self.mesh.dense_shards, self.mesh.expert_shards), strict=True):
            share = (total + group.size - 1) // group.size
            terms["weights"] += workload.element_bytes * (share if zero == 3 else total)
            terms["gradients"] += workload.gradient_bytes * (share if zero >= 2 else total)
            terms["optimizer"] += workload.optimizer_bytes * (share if zero >= 1 else total)
        largest = max(figure.dense for figure in figures) + max(figure.expert for figure in figures)
        # ZeRO-3 has the weights of the layer at work and of the next one whole, ZeRO-2 and 3 a layer's gradients.
        terms["gathered"] = largest * (
            (2 * workload.element_bytes if zero == 3 else 0) + (workload.gradient_bytes if zero >= 2 else 0)
        )
        kind = strategy.recompute if any(layer.recomputes for layer in layers) else Recompute.NONE
        terms["transient"] = max(
            self.figures[layer.layer_type].working[kind if layer.layer_type in self.counted else Recompute.NONE]
            for layer in layers
        )
        order = rank_order(rank, strategy.pp, strategy.vpp, enough_microbatches(strategy.pp, strategy.num_microbatches))
        saved = [sum(self._saved(layer) for layer in stage) for stage in self.stages]
        terms["activations"] = peak_kept(order, saved, len(saved))
        terms["runtime"] = self.plan.cluster.device.context_memory
        if self.plan.cluster.num_devices > 1:
            terms["runtime"] += self.plan.cluster.device.communicator_memory
        return terms

    def _saved(self, layer: HeldLayer) -> int:
        kind = self.strategy.recompute if layer.recomputes else Recompute.NONE
        return self.figures[layer.layer_type].saved[kind]

    # Times

    def _layer_exchanges(self, figures: LayerFigures) -> tuple[float, float]:
        """What a layer's compute does not hide of gathers and reduction under ZeRO-2/3, forward and backward [s]."""
        zero, workload = self.strategy.zero_stage, self.workload
        gather = self._exchange(figures.dense, figures.expert, workload.element_bytes) if zero == 3 else 0.0
        reduce = self._exchange(figures.dense, figures.expert, workload.gradient_bytes) if zero >= 2 else 0.0
        overlap = self.stack.overlap
        return (
            max(0.0, gather - overlap * figures.forward),
            max(0.0, gather + reduce - overlap * figures.backward),
        )

    def _exchange(self, dense: int, expert: int, element_bytes: int) -> float:
        """Reduce-scatter or all-gather of weights over their shard groups [s]."""
        time = self.mesh.dense_shards.exchange_time(element_bytes * dense) if dense else 0.0
        return time + (self.mesh.expert_shards.exchange_time(element_bytes * expert) if expert else 0.0)

    def stage_times(self, stage: int) -> tuple[float, float]:
        """Forward and backward of one microbatch on a virtual stage, recomputation included [s]."""
        forward, backward = [], []
        for layer in self.stages[stage]:
            figures, (ahead, back) = self.figures[layer.layer_type], self.exposed[layer.layer_type]
            forward += [figures.forward + ahead]
            backward += [figures.backward + back]
            if layer.recomputes:
                backward.append(figures.repeated[self.strategy.recompute])
        return math.fsum(forward), math.fsum(backward)

    def rank_times(self, rank: int, first_backward: float) -> RankTimes:
        """A rank's share of the step; `first_backward` is that of its first chunk."""
        count, zero = self.strategy.num_microbatches, self.strategy.zero_stage
        layers = self.layers(rank)
        figures = [self.figures[layer.layer_type] for layer in layers]
        dense, expert = self.weights(rank)
        reduction = self._reduction(dense, self.mesh.dense_shards, self.mesh.dense_copies)
        reduction += self._reduction(expert, self.mesh.expert_shards, self.mesh.expert_copies)
        reduction += self._shared_reduction(rank)
        exposed = max(0.0, reduction - self.stack.overlap * first_backward)
        gather = self._exchange(dense, expert, self.workload.element_bytes) if zero in (1, 2) else 0.0
        owned = sum(
            (total + group.size - 1) // group.size
            for total, group in ((dense, self.mesh.dense_shards), (expert, self.mesh.expert_shards))
        )
        states = (self.workload.optimizer_bytes + self.workload.element_bytes) * owned
        optimizer = float(optimizer_time(states, self.workload.gradient_bytes * owned, self.plan.cluster.device))
        again = [
            figure.repeated[self.strategy.recompute]
            for figure, layer in zip(figures, layers, strict=True)
            if layer.recomputes
        ]
        unhidden = [sum(self.exposed[layer.layer_type]) for layer in layers]
        terms: dict[str, Iterable[float]] = {
            "compute": (figure.compute_forward + figure.compute_backward for figure in figures),
            "recompute": again,
            "tensor_parallel": (figure.tp_forward + figure.tp_backward for figure in figures),
            "context_parallel": (figure.cp_forward + figure.cp_backward for figure in figures),
            "expert_parallel": (2 * figure.ep_forward for figure in figures),
            "data_parallel": unhidden,
        }
        once = {name: math.fsum(values) for name, values in terms.items()}
        parts = {name: count * value for name, value in once.items()}
        parts["data_parallel"] += exposed + gather
        parts["optimizer"] = optimizer
        return RankTimes(parts=parts, busy=math.fsum(once.values()), exposed=exposed, update=optimizer + gather)

    def _reduction(self, total: int, shards: Group, copies: Group) -> float:
        """A rank's gradients at the end of the step: to their shards under ZeRO-1, then over the copies [s]."""
        if not total:
            return 0.0
        num_bytes = self.workload.gradient_bytes * total
        scattered = shards.exchange_time(num_bytes) if self.strategy.zero_stage == 1 else 0.0
        return scattered + 2 * copies.exchange_time(num_bytes / shards.size)

    def _shared_reduction(self, rank: int) -> float:
        """Gradients of shared weights between the first and the last rank [s]."""
        shared = self.shared_weights()
        if not shared or self.strategy.pp == 1 or rank not in (0, self.strategy.pp - 1):
            return 0.0
        return self.mesh.pair_reduction_time(self.workload.gradient_bytes * shared)

    def boundary_bytes(self) -> int:
        """Largest tensor that a layer takes from the one before, for one microbatch [bytes]."""
        largest = 0
        for name in self.figures:
            layer = self.plan.model.layer_types[name]
            if layer.input:
                dims = layer.tensors[layer.input].dims
                width = math.prod(split_size(layer, dim, self.plan) for dim in dims if dim not in (BATCH, SEQ))
                elements = local_tokens(self.plan, place_of(layer, dims)) * width if dims else 0
                largest = max(largest, elements * self.workload.element_bytes)
        return largest

    def account(self) -> Account:
        """Everything."""
        pp, vpp = self.strategy.pp, self.strategy.vpp
        times = [self.stage_times(stage) for stage in range(len(self.stages))]
        ranks = [self.rank_times(rank, times[rank][1]) for rank in range(pp)]
        num_bytes = self.boundary_bytes()
        links = [to_ticks(self.mesh.message_time(rank, num_bytes)) if pp > 1 else 0 for rank in range(pp)]
        pipeline = Pipeline(
            pp=pp,
            vpp=vpp,
            forward=[to_ticks(forward) for forward, _ in times],
            backward=[to_ticks(backward) for _, backward in times],
            link=links * vpp,
        )
        finish = finish_times(pipeline, self.strategy.num_microbatches)
        update = max(rank.update for rank in ranks)
        least, most = (
            max(end * TICK + rank.exposed for end, rank in zip(ends, ranks, strict=True)) + update
            for ends in (finish.least, finish.most)
        )
        return Account(memory=[self.memory(rank) for rank in range(pp)], ranks=ranks, step_time=(least, most))
