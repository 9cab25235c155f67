"""What one strategy takes: the same functions as search, on a batch of one, with the time and memory taken apart."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from costmodels.stacks import Stack, load_stack
from hardware import Cluster
from planner.cost import JobCosts, LayerTimes, compose_layers, job_costs
from planner.flops import model_flops
from planner.graph import ModelGraph
from planner.layer_costs import CP_KINDS, Keys, Kind
from planner.plan import Plan, Prediction, StageMemory, TimeBreakdown
from planner.solvers.entries import OuterRows, outer_entries
from planner.solvers.inner import KINDS, InnerProblem, StagePlans
from planner.solvers.layouts import body_types, make_layouts, model_chain
from planner.solvers.shapes import in_flight
from planner.solvers.space import MeshRows
from planner.solvers.timeline import Durations, durations_of, simulate_step
from planner.strategy import RankOrder, Strategy
from planner.tables import LayerTable, build_table
from planner.targets import load_target
from planner.workload import Workload

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A prediction and what it rests on."""

    prediction: Prediction
    sources: tuple[str, ...]
    """Kinds of figures, the best first."""


def estimate_strategy(
    model: ModelGraph, cluster: Cluster, workload: Workload, strategy: Strategy, headroom: float
) -> Estimate:
    """Time and memory of a strategy that uses the whole cluster.

    Raises
    ------
    ValueError
        If the strategy does not belong to the model or cluster: stages that do not add up, another number of devices,
        an opaque layer that was not measured under these degrees.
    """
    if strategy.world_size != cluster.num_devices:
        raise ValueError(f"the strategy uses {strategy.world_size} devices, the cluster has {cluster.num_devices}")
    ranks = strategy.dp * strategy.cp * strategy.tp
    if ranks % (strategy.ep * strategy.etp):
        raise ValueError(f"ep x etp = {strategy.ep * strategy.etp} does not divide dp x cp x tp = {ranks}")
    stack = load_stack(workload.stack)
    job = job_costs(cluster, workload, stack.overlap, headroom)
    table = _single_table(model, cluster, workload, strategy, stack)
    if not table.valid.all():
        raise ValueError(
            "a layer type without ops was not measured under "
            f"tp={strategy.tp} cp={strategy.cp} ep={strategy.ep} etp={strategy.etp} "
            f"microbatch_size={strategy.microbatch_size} on {cluster.device.name}"
        )
    problem = _single_problem(model, strategy, table, compose_layers(table, body_types(model, table.layer_types)), job)
    layers = np.asarray(strategy.recompute_layers, dtype=np.int64)[:, None]
    kind = KINDS[strategy.recompute]
    plans = problem.plans(kind, layers)
    durations = durations_of(plans, 0, strategy.pp, job)
    seconds = simulate_step(durations, strategy.pp, strategy.vpp, strategy.num_microbatches).time
    device, sequences = cluster.device, workload.global_batch_size
    peak = device.peak_flops_per_s(workload.precision.value) * cluster.num_devices
    prediction = Prediction(
        step_time=seconds,
        tokens_per_second_per_device=sequences * workload.seq_len / (seconds * cluster.num_devices),
        model_flops_utilization=sequences * model_flops(model, workload.seq_len) / (seconds * peak),
        memory_by_stage=_stage_memory(problem, kind, layers),
        capacity=device.memory,
        budget=job.budget,
        time_breakdown=_time_breakdown(problem, table, strategy, plans, durations, seconds),
    )
    return Estimate(prediction=prediction, sources=table.sources)


def _array(value: int) -> Ints:
    return np.array([value], dtype=np.int64)


def _single_table(
    model: ModelGraph, cluster: Cluster, workload: Workload, strategy: Strategy, stack: Stack
) -> LayerTable:
    keys = Keys(
        tp=_array(strategy.tp),
        cp=_array(strategy.cp),
        ep=_array(strategy.ep),
        etp=_array(strategy.etp),
        microbatch_size=_array(strategy.microbatch_size),
    )
    return build_table(model, cluster, workload, stack, keys, strategy.sequence_parallel)


def outer_row(strategy: Strategy) -> OuterRows:
    """The outer choices of a strategy as a batch of one."""
    mesh = MeshRows(
        pp=strategy.pp,
        tp=_array(strategy.tp),
        cp=_array(strategy.cp),
        dp=_array(strategy.dp),
        ep=_array(strategy.ep),
        etp=_array(strategy.etp),
        microbatch_size=_array(strategy.microbatch_size),
        num_microbatches=_array(strategy.num_microbatches),
        expert_axis=_array(strategy.expert_replicas),
        key=_array(0),
        num_outer=_array(1),
    )
    return OuterRows(
        mesh=mesh,
        cp_kind=_array(CP_KINDS.index(strategy.cp_kind)),
        zero_stage=_array(strategy.zero_stage),
        dp_shard=_array(strategy.dp_shard),
        dp_replicate=_array(strategy.dp_replicate),
        rank_order=_array(list(RankOrder).index(strategy.rank_order)),
    )


def _single_problem(
    model: ModelGraph, strategy: Strategy, table: LayerTable, times: LayerTimes, job: JobCosts
) -> InnerProblem:
    chain = model_chain(model, table.layer_types)
    if sum(strategy.layers_per_stage) != chain.num_layers:
        raise ValueError(
            f"layers_per_stage must add up to {chain.num_layers} layers, got {sum(strategy.layers_per_stage)}"
        )
    layouts = make_layouts(chain, strategy.pp, strategy.vpp, np.asarray([strategy.layers_per_stage], dtype=np.int64))
    entries = outer_entries(outer_row(strategy), times, table, job.cluster, job.gradient_bytes)
    flying = in_flight(strategy.pp, strategy.vpp, strategy.num_microbatches)
    return InnerProblem(entries, layouts, flying, job, _array(0), _array(0))


def _stage_memory(problem: InnerProblem, kind: Kind, layers: Ints) -> tuple[StageMemory, ...]:
    memory = problem.memory(kind, layers)
    terms = ("weights", "gradients", "optimizer", "gathered", "activations", "transient")
    return tuple(
        StageMemory(
            rank=rank,
            runtime=memory.runtime,
            **{name: int(getattr(memory, name)[rank, 0]) for name in terms},
        )
        for rank in range(problem.layouts.pp)
    )


def _time_breakdown(
    problem: InnerProblem,
    table: LayerTable,
    strategy: Strategy,
    plans: StagePlans,
    durations: Durations,
    seconds: float,
) -> TimeBreakdown:
    """The step as the rank with the most work spends it; what is left over is the bubble."""
    pp, count = strategy.pp, strategy.num_microbatches
    busy = (plans.forward + plans.backward)[:, 0].reshape(strategy.vpp, pp).sum(axis=0)
    rank = int(np.argmax(busy))
    layers = problem.rank_counts[0, rank]
    costs = [table.costs[strategy.cp_kind, name] for name in table.layer_types]
    plain = layers @ (problem.entries.forward + problem.entries.backward)[:, 0]
    exposed = layers @ (problem.times.forward + problem.times.backward)[:, 0] - plain
    terms = {
        "compute": [cost.forward + cost.input_grad + cost.weight_grad for cost in costs],
        "tensor_parallel": [cost.tp_forward + cost.tp_backward for cost in costs],
        "expert_parallel": [2 * cost.ep_forward for cost in costs],
    }
    parts = {name: count * float(layers @ np.asarray(values)[:, 0]) for name, values in terms.items()}
    tails = problem.tails()
    parts["context_parallel"] = max(0.0, count * float(plain) - sum(parts.values()))
    parts["recompute"] = count * float((plans.backward - problem.backward)[rank::pp].sum())
    parts["data_parallel"] = count * float(exposed) + float(durations.exposed[rank]) + float(tails.gather[rank, 0])
    parts["optimizer"] = float(tails.optimizer[rank, 0])
    return TimeBreakdown(**parts, bubble=seconds - sum(parts.values()))


def usable_headroom(workload: Workload, headroom: float | None) -> float:
    """The share of device memory that stays free: as given, or what the software stack needs."""
    value = load_stack(workload.stack).headroom if headroom is None else headroom
    if not 0 <= value < 1:
        raise ValueError(f"headroom must be at least 0 and below 1, got {value}")
    return value


def estimate(
    model: ModelGraph,
    cluster: Cluster,
    strategy: Strategy,
    *,
    workload: Workload,
    target: str = "any",
    headroom: float | None = None,
) -> Plan:
    """What a strategy takes on a cluster, as a plan without a proof.

    The plan is returned whether or not it fits and keeps the target's rules: ``plan.prediction.fits`` and
    ``planner.targets.load_target(target).violations(...)`` tell.

    Raises
    ------
    ValueError
        If the strategy is no configuration of this model and cluster at all.
    """
    share = usable_headroom(workload, headroom)
    load_target(target)
    found = estimate_strategy(model, cluster, workload, strategy, share)
    return Plan(
        model=model,
        cluster=cluster,
        workload=workload,
        target=target,
        headroom=share,
        strategy=strategy,
        prediction=found.prediction,
        proof=None,
        provenance=provenance(cluster, workload, found.sources),
    )


def provenance(cluster: Cluster, workload: Workload, sources: tuple[str, ...]) -> dict[str, str]:
    """Where the figures of a plan come from, and the weakest kind among them."""
    ranks = ("measured", "fitted", "datasheet", "default")
    kinds = [*sources, "datasheet", "default"]
    return {
        "compute": ", ".join(sources),
        "device": f"datasheet and fits of {cluster.device.name} in the hardware catalog or cluster file",
        "network": "payload bandwidth and latency of the cluster's links",
        "software": f"stack {workload.stack}: defaults, see costmodels/stacks.yaml",
        "weakest": max(kinds, key=ranks.index),
    }


def even_layers(num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Layers of each virtual stage as even as they can be, the larger stages on late ranks."""
    few, extra = divmod(num_layers, pp * vpp)
    counts = [few] * (pp * vpp)
    order = [chunk * pp + rank for chunk in reversed(range(vpp)) for rank in reversed(range(pp))]
    for stage in order[:extra]:
        counts[stage] += 1
    return tuple(counts)
