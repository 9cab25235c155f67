"""check_plan has teeth: plans with one thing changed are rejected, and by a rule that speaks of it.

A mutation is a function of a plan and a random generator; it gives ``None`` where the plan has nothing of its kind.
Changes that leave a sound plan are no mutants of it; ``EQUIVALENT`` names them, with the reason; nothing else passes.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from hardware import Cluster
from planner.check import check_plan
from planner.graph import ModelGraph, OpKind
from planner.plan import Plan, Proof, Subtree, Termination
from planner.solvers.estimate import estimate
from planner.strategy import CpKind, RankOrder, Recompute
from planner.targets import load_target
from planner.workload import Attention, Optimizer, Precision
from tests.planner.test_check import CASES, QUESTIONS, answer, random_plans

Mutation = Callable[[Plan, random.Random], Plan | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of mutation."""

    name: str
    rules: tuple[str, ...]
    """Rules of which one must speak; ``rule`` stands for all of a target."""
    change: Mutation


TIME = ("step time", "breakdown", "utilization", "tokens")
FIGURES = ("memory", *TIME)
KINDS: list[Kind] = []


def kind(name: str, *rules: str) -> Callable[[Mutation], Mutation]:
    """Adds a function to the kinds."""

    def add(change: Mutation) -> Mutation:
        KINDS.append(Kind(name=name, rules=rules, change=change))
        return change

    return add


# Helpers


def with_strategy(plan: Plan, **changes: Any) -> Plan | None:
    try:
        return replace(plan, strategy=replace(plan.strategy, **changes))
    except ValueError:  # the record itself refuses it
        return None


def with_prediction(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, prediction=replace(plan.prediction, **changes))


def with_breakdown(plan: Plan, **changes: float) -> Plan:
    return with_prediction(plan, time_breakdown=replace(plan.prediction.time_breakdown, **changes))


def with_workload(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, workload=replace(plan.workload, **changes))


def with_device(plan: Plan, **changes: Any) -> Plan:
    return replace(plan, cluster=replace(plan.cluster, device=replace(plan.cluster.device, **changes)))


def with_proof(plan: Plan, change: Callable[[Proof], Proof | None]) -> Plan | None:
    proof = None if plan.proof is None else change(plan.proof)
    return None if proof is None else replace(plan, proof=proof)


def with_part(plan: Plan, names: tuple[str, ...], change: Callable[[Subtree], Subtree]) -> Plan | None:
    """The first part of the frontier whose name begins so, changed."""
    if plan.proof is None:
        return None
    parts = list(plan.proof.frontier)
    for index, part in enumerate(parts):
        if part.name.startswith(names):
            parts[index] = change(part)
            return replace(plan, proof=replace(plan.proof, frontier=tuple(parts)))
    return None


def changed(counts: tuple[int, ...], index: int, by: int) -> tuple[int, ...]:
    return tuple(count + by * (place == index) for place, count in enumerate(counts))


# Stages


@kind("layer dropped", "stages")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    stage = rng.randrange(plan.strategy.num_stages)
    return with_strategy(plan, layers_per_stage=changed(plan.strategy.layers_per_stage, stage, -1))


@kind("layer doubled", "stages")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    stage = rng.randrange(plan.strategy.num_stages)
    return with_strategy(plan, layers_per_stage=changed(plan.strategy.layers_per_stage, stage, 1))


@kind("layer moved", "stages", "rule layers", "rule R14", "recompute", "rule R21", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    counts, pp = plan.strategy.layers_per_stage, plan.strategy.pp
    pairs = [(one, two) for one in range(len(counts)) for two in range(len(counts)) if one % pp != two % pp]
    if not pairs:
        return None
    source, sink = rng.choice(pairs)
    return with_strategy(plan, layers_per_stage=changed(changed(counts, source, -1), sink, 1))


@kind("stages exchanged", "stages", "recompute", "rule R21", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    counts, pp = list(plan.strategy.layers_per_stage), plan.strategy.pp
    pairs = [
        (one, two)
        for one in range(len(counts))
        for two in range(one)
        if counts[one] != counts[two] and one % pp != two % pp
    ]
    if not pairs:
        return None
    one, two = rng.choice(pairs)
    counts[one], counts[two] = counts[two], counts[one]
    return with_strategy(plan, layers_per_stage=tuple(counts))


@kind("negative layers", "stages")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    counts = plan.strategy.layers_per_stage
    if len(counts) < 2:
        return None
    return with_strategy(plan, layers_per_stage=(-1, counts[0] + counts[1] + 1, *counts[2:]))


@kind("stages merged", "stages", "rule layers", "rule R14", "world size")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    strategy = plan.strategy
    if strategy.vpp == 1:
        return None
    counts, again, pp = strategy.layers_per_stage, strategy.recompute_layers, strategy.pp
    return with_strategy(plan, vpp=strategy.vpp - 1, layers_per_stage=counts[:-pp], recompute_layers=again[:-pp])


# Degrees


def doubled(name: str) -> Mutation:
    return lambda plan, rng: with_strategy(plan, **{name: 2 * getattr(plan.strategy, name)})


for degree in ("tp", "cp", "dp_shard", "dp_replicate"):
    kind(f"{degree} doubled", "world size")(doubled(degree))


def shifted(source: str, sink: str) -> Mutation:
    """A factor of two moved from one degree to another."""

    def change(plan: Plan, rng: random.Random) -> Plan | None:
        one, two = getattr(plan.strategy, source), getattr(plan.strategy, sink)
        return with_strategy(plan, **{source: one // 2, sink: 2 * two}) if one % 2 == 0 else None

    return change


ANY_RULE = ("rule", "mesh", "schedule", "measurements", *FIGURES)
for source, sink in (("tp", "cp"), ("cp", "tp")):
    kind(f"{source} to {sink}", *ANY_RULE)(shifted(source, sink))
for source in ("tp", "cp"):
    kind(f"{source} to dp_shard", "microbatches", *ANY_RULE)(shifted(source, "dp_shard"))
kind("dp_shard to dp_replicate", *ANY_RULE)(shifted("dp_shard", "dp_replicate"))
kind("dp_replicate to dp_shard", *ANY_RULE)(shifted("dp_replicate", "dp_shard"))
kind("dp_shard to tp", "microbatches", *ANY_RULE)(shifted("dp_shard", "tp"))


@kind("pp and vpp exchanged", "world size")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    pp, vpp = plan.strategy.pp, plan.strategy.vpp
    return with_strategy(plan, pp=vpp, vpp=pp) if pp != vpp else None


def experts(name: str) -> Mutation:
    def change(plan: Plan, rng: random.Random) -> Plan | None:
        value: int = getattr(plan.strategy, name)
        return with_strategy(plan, **{name: rng.choice([2 * value, value // 2 or 3])})

    return change


kind("ep changed", *ANY_RULE)(experts("ep"))
kind("etp changed", *ANY_RULE)(experts("etp"))


@kind("zero stage changed, old memory", *ANY_RULE)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    stages = [stage for stage in range(4) if stage != plan.strategy.zero_stage]
    return with_strategy(plan, zero_stage=rng.choice(stages))


@kind("rank order changed", *ANY_RULE)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    strategy = plan.strategy
    if strategy.pp == 1 or strategy.dp == 1:
        return None
    others = [order for order in RankOrder if order is not strategy.rank_order]
    return with_strategy(plan, rank_order=others[0])


@kind("kind of context parallelism changed", *ANY_RULE)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    if plan.strategy.cp == 1 and plan.proof is None:
        return None
    other = CpKind.RING if plan.strategy.cp_kind is CpKind.ULYSSES else CpKind.ULYSSES
    return with_strategy(plan, cp_kind=other)


@kind("sequence parallelism flipped", *ANY_RULE)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    if plan.strategy.tp == 1:
        return None
    return with_strategy(plan, sequence_parallel=not plan.strategy.sequence_parallel)


# Batch


@kind("microbatches off by one", "microbatches")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_strategy(plan, num_microbatches=plan.strategy.num_microbatches + rng.choice((-1, 1)))


@kind("microbatch size off by one", "microbatches")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_strategy(plan, microbatch_size=plan.strategy.microbatch_size + 1)


@kind("half the microbatches, twice the size", *ANY_RULE)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    size, count = plan.strategy.microbatch_size, plan.strategy.num_microbatches
    return with_strategy(plan, microbatch_size=2 * size, num_microbatches=count // 2) if count % 2 == 0 else None


@kind("global batch off by one", "microbatches")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_workload(plan, global_batch_size=plan.workload.global_batch_size + 1)


@kind("twice the batch and the microbatches", *TIME)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    twice = with_workload(plan, global_batch_size=2 * plan.workload.global_batch_size)
    return with_strategy(twice, num_microbatches=2 * plan.strategy.num_microbatches)


# Recomputation


@kind("recompute count changed", "recompute", "rule R21", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    stage = rng.randrange(plan.strategy.num_stages)
    counts = plan.strategy.recompute_layers
    return with_strategy(plan, recompute_layers=changed(counts, stage, -1 if counts[stage] else 1))


@kind("more recomputed than held", "recompute")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    stage = rng.randrange(plan.strategy.num_stages)
    more = plan.strategy.layers_per_stage[stage] - plan.strategy.recompute_layers[stage] + 1
    return with_strategy(plan, recompute_layers=changed(plan.strategy.recompute_layers, stage, more))


@kind("recompute kind changed", "recompute", "rule R21", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    if not any(plan.strategy.recompute_layers):
        return None
    return with_strategy(
        plan, recompute=rng.choice([kind for kind in Recompute if kind is not plan.strategy.recompute])
    )


@kind("everything recomputed", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    strategy = plan.strategy
    if strategy.recompute is Recompute.FULL and strategy.recompute_layers == strategy.layers_per_stage:
        return None
    return with_strategy(plan, recompute=Recompute.FULL, recompute_layers=strategy.layers_per_stage)


# Memory


def forged(term: str) -> Mutation:
    """One byte more or less of a term of some rank."""

    def change(plan: Plan, rng: random.Random) -> Plan | None:
        stages = list(plan.prediction.memory_by_stage)
        index = rng.randrange(len(stages))
        value = getattr(stages[index], term) + rng.choice((-1, 1))
        stages[index] = replace(stages[index], **{term: value})
        return with_prediction(plan, memory_by_stage=tuple(stages))

    return change


for term in ("weights", "gradients", "optimizer", "activations", "transient", "gathered", "runtime"):
    kind(f"{term} off by a byte", "memory")(forged(term))


@kind("a byte moved between terms", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    first, *rest = plan.prediction.memory_by_stage
    moved = replace(first, weights=first.weights + 1, gradients=first.gradients - 1)
    return with_prediction(plan, memory_by_stage=(moved, *rest))


@kind("rank missing", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_prediction(plan, memory_by_stage=plan.prediction.memory_by_stage[:-1])


@kind("rank doubled", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    stages = plan.prediction.memory_by_stage
    return with_prediction(plan, memory_by_stage=(*stages, stages[-1]))


@kind("ranks exchanged", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    stages = plan.prediction.memory_by_stage
    return with_prediction(plan, memory_by_stage=stages[::-1]) if len(stages) > 1 else None


@kind("capacity forged", "capacity")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_prediction(plan, capacity=plan.prediction.capacity + rng.choice((-1, 1)))


@kind("budget forged", "budget")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_prediction(plan, budget=plan.prediction.budget + rng.choice((-1, 1)))


@kind("headroom changed", "budget")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, headroom=plan.headroom + 1e-6)


@kind("headroom out of range", "headroom")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, headroom=rng.choice((-0.1, 1.0, math.nan)))


@kind("plan that does not fit", "fits")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    """Headroom and budget agree, but the memory is too small for the plan."""
    if plan.proof is None:
        return None
    headroom = 1 - (plan.prediction.peak_memory + plan.cluster.reserve - 1) / plan.prediction.capacity
    budget = int(plan.prediction.capacity * (1 - headroom)) - plan.cluster.reserve
    assert budget < plan.prediction.peak_memory
    return with_prediction(replace(plan, headroom=headroom), budget=budget)


# Times


@kind("step time forged", "step time")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_prediction(plan, step_time=plan.prediction.step_time * (1 + rng.choice((-1e-8, 1e-8))))


@kind("step time no number", "step time")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_prediction(plan, step_time=rng.choice((math.nan, math.inf, -1.0, 0.0)))


@kind("whole step forged", "step time")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    """Step time, bubble and rates agree with one another."""
    old, breakdown = plan.prediction, plan.prediction.time_breakdown
    factor = 1 + rng.choice((-1e-7, 1e-7))
    more = old.step_time * (factor - 1)
    return with_prediction(
        plan,
        step_time=old.step_time * factor,
        tokens_per_second_per_device=old.tokens_per_second_per_device / factor,
        model_flops_utilization=old.model_flops_utilization / factor,
        time_breakdown=replace(breakdown, bubble=breakdown.bubble + more),
    )


@kind("tokens forged", "tokens")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_prediction(plan, tokens_per_second_per_device=plan.prediction.tokens_per_second_per_device * (1 + 1e-8))


@kind("utilization forged", "utilization")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_prediction(plan, model_flops_utilization=plan.prediction.model_flops_utilization * (1 - 1e-8))


TERMS = (
    "compute",
    "recompute",
    "tensor_parallel",
    "context_parallel",
    "expert_parallel",
    "data_parallel",
    "optimizer",
    "bubble",
)


@kind("term of the breakdown forged", "breakdown")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    term = rng.choice(TERMS)
    value = getattr(plan.prediction.time_breakdown, term)
    return with_breakdown(plan, **{term: value + 1e-8 * plan.prediction.step_time})


@kind("time moved between terms", "breakdown")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    breakdown, some = plan.prediction.time_breakdown, 1e-8 * plan.prediction.step_time
    one, two = rng.sample(TERMS, 2)
    return with_breakdown(plan, **{one: getattr(breakdown, one) + some, two: getattr(breakdown, two) - some})


# Cluster


@kind("device memory changed", "capacity")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_device(plan, memory=plan.cluster.device.memory + 1)


@kind("reserve changed", "budget")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, cluster=replace(plan.cluster, reserve=plan.cluster.reserve + 1))


@kind("runtime memory changed", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_device(plan, context_memory=plan.cluster.device.context_memory + 1)


def of_device(name: str) -> Mutation:
    return lambda plan, rng: with_device(plan, **{name: getattr(plan.cluster.device, name) * 0.99})


for name in ("memory_bandwidth", "memory_efficiency", "gemm_efficiency", "gemm_latency", "attention_efficiency"):
    kind(f"device {name} changed", *TIME)(of_device(name))


@kind("peak rate changed", *TIME)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    rates = plan.cluster.device.peak_flops
    return with_device(plan, peak_flops={name: 1.01 * rate for name, rate in rates.items()})


def of_link(cluster: Cluster, index: int, **factors: float) -> Cluster:
    levels = list(cluster.levels)
    link = levels[index].link
    changes: dict[str, Any] = {name: getattr(link, name) * factor for name, factor in factors.items()}
    levels[index] = replace(levels[index], link=replace(link, line_rate=None, **changes))
    return replace(cluster, levels=tuple(levels))


@kind("link bandwidth changed", *TIME)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    index = rng.randrange(len(plan.cluster.levels))
    return replace(plan, cluster=of_link(plan.cluster, index, bandwidth=0.9))


@kind("link latency changed", *TIME)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    index = rng.randrange(len(plan.cluster.levels))
    return replace(plan, cluster=of_link(plan.cluster, index, latency=1.5))


@kind("twice the devices", "world size")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    cluster = plan.cluster
    if len(cluster.levels) < 2:
        return None
    outer = replace(cluster.levels[-1], num_devices=2 * cluster.num_devices)
    larger = replace(cluster, num_devices=2 * cluster.num_devices, levels=(*cluster.levels[:-1], outer))
    return replace(plan, cluster=larger)


# Workload and target


@kind("precision changed", "workload", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_workload(plan, precision=Precision.FP32)


@kind("optimizer changed", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    other = Optimizer.LION if plan.workload.optimizer in (Optimizer.ADAM, Optimizer.ADAMW) else Optimizer.ADAM
    return with_workload(plan, optimizer=other)


@kind("gradient bytes changed", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_workload(plan, gradient_bytes=6 - plan.workload.gradient_bytes)


@kind("attention backend changed", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    other = Attention.UNFUSED if plan.workload.attention is Attention.FLASH else Attention.FLASH
    return with_workload(plan, attention=other)


@kind("software stack changed", *TIME)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    stacks = ["megatron-core", "torch-eager", "torch-compile"]
    return with_workload(plan, stack=rng.choice([stack for stack in stacks if stack != plan.workload.stack]))


@kind("software stack unknown", "workload")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_workload(plan, stack="none")


@kind("expert imbalance changed", *TIME)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_workload(plan, expert_imbalance=plan.workload.expert_imbalance + 0.5) if plan.model.is_moe else None


@kind("sequence length halved", *ANY_RULE)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_workload(plan, seq_len=plan.workload.seq_len // 2)


@kind("target unknown", "target")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, target="none")


@kind("wrong target", "rule", "scope")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, target="megatron" if plan.target == "any" else "any")


# Model


def with_layer(model: ModelGraph, name: str, **changes: Any) -> ModelGraph:
    return replace(model, layer_types={**model.layer_types, name: replace(model.layer_types[name], **changes)})


@kind("model has a layer more", "stages")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    index = rng.randrange(1, len(plan.model.blocks) - 1)
    blocks = list(plan.model.blocks)
    blocks[index] = replace(blocks[index], count=blocks[index].count + rng.choice((-1, 1)))
    return replace(plan, model=replace(plan.model, blocks=tuple(blocks)))


@kind("model has a wider dim", "measurements", "rule", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    name = rng.choice([name for name, layer in plan.model.layer_types.items() if layer.ops])
    dims = plan.model.layer_types[name].dims
    chosen = rng.choice([dim for dim, value in dims.items() if value.size > 8])
    wider = replace(dims[chosen], size=2 * dims[chosen].size)
    return replace(plan, model=with_layer(plan.model, name, dims={**dims, chosen: wider}))


@kind("model has fewer weights", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    names = [name for name, layer in plan.model.layer_types.items() if layer.parameters]
    name = rng.choice(names)
    ops = list(plan.model.layer_types[name].ops)
    index = rng.choice([index for index, op in enumerate(ops) if op.parameters])
    owners = {shared.name for shared in plan.model.shared_parameters}
    if any(parameter.name in owners for parameter in ops[index].parameters):
        return None
    ops[index] = replace(ops[index], parameters=())
    return replace(plan, model=with_layer(plan.model, name, ops=tuple(ops)))


@kind("opaque layer has more weights", "memory")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    opaque = [name for name, layer in plan.model.layer_types.items() if layer.opaque]
    if not opaque:
        return None
    more = plan.model.layer_types[opaque[0]].opaque_parameters + 8 * plan.strategy.world_size
    return replace(plan, model=with_layer(plan.model, opaque[0], opaque_parameters=more))


@kind("attention sees all keys", *TIME)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    for name, layer in plan.model.layer_types.items():
        ops = tuple(replace(op, causal=False) if op.kind is OpKind.ATTENTION else op for op in layer.ops)
        if ops != layer.ops:
            return replace(plan, model=with_layer(plan.model, name, ops=ops))
    return None


@kind("measurement changed", *FIGURES)
def _(plan: Plan, rng: random.Random) -> Plan | None:
    rows = tuple(
        replace(row, forward=1.01 * row.forward, backward=1.01 * row.backward) for row in plan.model.measurements
    )
    return replace(plan, model=replace(plan.model, measurements=rows)) if rows else None


@kind("measurements dropped", "measurements")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, model=replace(plan.model, measurements=())) if plan.model.measurements else None


# Proof


@kind("bound raised", "frontier", "lower bound", "gap")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_proof(plan, lambda proof: replace(proof, lower_bound=(proof.lower_bound or 0) * (1 + 1e-6)))


@kind("bound and gap forged together", "frontier", "lower bound")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    step = plan.prediction.step_time

    def change(proof: Proof) -> Proof:
        bound = (proof.lower_bound or 0) * (1 + rng.choice((-1e-6, 1e-6)))
        return replace(proof, lower_bound=bound, gap=(step - bound) / step)

    return with_proof(plan, change)


@kind("gap forged", "gap")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_proof(plan, lambda proof: replace(proof, gap=(proof.gap or 0) + rng.choice((-1e-8, 1e-8, math.nan))))


@kind("optimal with a gap", "lower bound")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    step = plan.prediction.step_time
    return with_proof(
        plan,
        lambda proof: replace(proof, termination=Termination.OPTIMAL, lower_bound=0.9 * step, gap=0.1),
    )


@kind("feasible called optimal", "lower bound", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    step = plan.prediction.step_time

    def change(proof: Proof) -> Proof | None:
        if proof.termination is Termination.OPTIMAL:
            return None
        return replace(proof, termination=Termination.OPTIMAL, lower_bound=step, gap=0.0)

    return with_proof(plan, change)


@kind("ended without a plan", "termination")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    ends = (Termination.INFEASIBLE, Termination.NO_PLAN_FOUND)
    return with_proof(plan, lambda proof: replace(proof, termination=rng.choice(ends)))


@kind("no bound", "lower bound")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_proof(plan, lambda proof: replace(proof, lower_bound=rng.choice((None, math.nan, -math.inf)), gap=None))


@kind("space off by one", "space size")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_proof(plan, lambda proof: replace(proof, space_size=proof.space_size + rng.choice((-1, 1))))


@kind("part off by one", "space size")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_part(plan, ("",), lambda part: replace(part, size=part.size + rng.choice((-1, 1))))


@kind("part left out", "space size")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    def change(proof: Proof) -> Proof:
        index = rng.randrange(len(proof.frontier))
        return replace(proof, frontier=(*proof.frontier[:index], *proof.frontier[index + 1 :]))

    return with_proof(plan, change)


@kind("part cut in two", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    def change(proof: Proof) -> Proof:
        last = proof.frontier[-1]
        halves = (replace(last, size=last.size - 1), replace(last, size=1))
        return replace(proof, frontier=(*proof.frontier[:-1], *halves))

    return with_proof(plan, change)


@kind("negative part", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    def change(proof: Proof) -> Proof:
        first, second, *rest = proof.frontier
        sizes = (first.size + second.size + 1, -1)
        parts = (replace(part, size=size) for part, size in zip((first, second), sizes, strict=True))
        return replace(proof, frontier=(*parts, *rest))

    return with_proof(plan, change)


@kind("closed part with a better bound", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    assert plan.proof is None or plan.proof.lower_bound
    bound = plan.proof.lower_bound * (1 - 1e-6) if plan.proof and plan.proof.lower_bound else 0.0
    return with_part(plan, ("bound", "open"), lambda part: replace(part, lower_bound=bound))


@kind("solved part above the plan", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    above = plan.prediction.step_time * (1 + 1e-6)
    return with_part(plan, ("solved",), lambda part: replace(part, lower_bound=above))


@kind("solved part renamed", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_part(plan, ("solved",), lambda part: replace(part, name="bound (B2)"))


@kind("part of an unknown kind", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_part(plan, ("rule", "memory"), lambda part: replace(part, name="luck"))


@kind("cut part with a bound", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_part(plan, ("rule", "memory"), lambda part: replace(part, lower_bound=1e9))


@kind("closed part without a bound", "frontier")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_part(
        plan, ("bound", "open", "solved"), lambda part: replace(part, lower_bound=rng.choice((None, math.nan)))
    )


@kind("plan found without evaluation", "counts")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_proof(plan, lambda proof: replace(proof, num_evaluated=0))


@kind("rows closed without a bound", "counts")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return with_proof(plan, lambda proof: replace(proof, num_bounded=1))


# Provenance


@kind("weakest source missing", "provenance")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(plan, provenance={name: text for name, text in plan.provenance.items() if name != "weakest"})


@kind("weakest source flattered", "provenance")
def _(plan: Plan, rng: random.Random) -> Plan | None:
    return replace(
        plan, provenance={**plan.provenance, "weakest": rng.choice(("measured", "fitted", "datasheet", "sure"))}
    )


# The test


EQUIVALENT: dict[str, str] = {
    "wrong target": "the plan keeps the rules of the other target too",
    "rank order changed": "both orders put every group on links of one speed",
    "kind of context parallelism changed": "without attention the kind is not read",
    "sequence parallelism flipped": "all layers are measured, and rows do not tell it apart",
    "recompute count changed": "selective recomputation of layers without ops drops nothing",
    "link bandwidth changed": "nothing crosses the level, or its time is hidden",
    "link latency changed": "nothing crosses the level, or its time is hidden",
    "device memory_efficiency changed": "measured layers do not read it",
    "device gemm_efficiency changed": "layers are measured, or bound by memory or launches",
    "device gemm_latency changed": "layers are measured, or the floor for launches holds",
    "device attention_efficiency changed": "layers are measured, or attention is bound by memory or launches",
    "attention backend changed": "measured layers do not read it",
    "software stack changed": "no floor for launches holds, and nothing overlaps",
    "expert imbalance changed": "products of experts are bound by memory or launches, and nothing travels",
    "attention sees all keys": "attention is bound by memory or launches",
}
"""Kind of mutation -> why what passes of it is a sound plan: one that the estimate of its own inputs gives as well."""


def is_sound(plan: Plan) -> bool:
    """Whether the estimate of what a plan says gives the same prediction, and its target accepts it."""
    if load_target(plan.target).violations(plan.strategy, plan.model, plan.cluster.num_devices, plan.workload):
        return False
    again = estimate(
        plan.model, plan.cluster, plan.strategy, workload=plan.workload, target=plan.target, headroom=plan.headroom
    )
    return again.prediction == plan.prediction


SEARCHED = tuple(index for index, question in enumerate(QUESTIONS) if question.fix or question.limits.max_work)
"""Questions whose plans are changed: the quick ones."""


@functools.cache
def valid_plans(per_case: int) -> tuple[Plan, ...]:
    """Plans of searches, with proofs, and of estimates."""
    plans = [plan for index in SEARCHED if (plan := answer(index).plan) is not None]
    return (*plans, *(plan for case in CASES for plan in random_plans(case, per_case, seed=11)))


def rules_named(problems: list[str]) -> set[str]:
    return {problem[1 : problem.index("]")] for problem in problems}


def run_mutants(plans: tuple[Plan, ...], per_kind: int, seed: int) -> int:
    """Checks `per_kind` mutants of each kind, fewer where not so many plans have anything of the kind; how many."""
    rng = random.Random(seed)
    num_mutants, survived, misnamed = 0, [], []
    for one in KINDS:
        left = per_kind
        for plan in rng.sample(plans, len(plans)):
            mutant = one.change(plan, rng) if left else None
            if mutant is None:
                continue
            rules = rules_named(check_plan(mutant))
            if not rules and one.name in EQUIVALENT and is_sound(mutant):
                continue
            left -= 1
            if not rules:
                survived.append((one.name, plan.model.name, plan.strategy))
            elif not any(rule == wanted or rule.startswith(wanted + " ") for rule in rules for wanted in one.rules):
                misnamed.append((one.name, rules))
        assert left < per_kind, f"no plan has anything for the mutation {one.name!r}"
        num_mutants += per_kind - left
    assert misnamed == []
    assert survived == [], survived
    return num_mutants


def test_kinds_are_many_and_named_once() -> None:
    assert len(KINDS) >= 40
    assert len({one.name for one in KINDS}) == len(KINDS)


def test_valid_plans_pass() -> None:
    assert [problem for plan in valid_plans(4) for problem in check_plan(plan)] == []


def test_mutants_are_rejected_by_the_right_rule() -> None:
    assert run_mutants(valid_plans(4), per_kind=5, seed=17) >= 400


@pytest.mark.slow
def test_thousands_of_mutants_are_rejected_by_the_right_rule() -> None:
    assert run_mutants(valid_plans(40), per_kind=50, seed=19) >= 4000
