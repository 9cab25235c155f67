"""Independent check of a plan: all of it recomputed plainly, from graph, cluster, workload, targets and cost models.

The search looks at arrays of candidates and reads factor tables; here each rank's layers are listed one by one, each
layer's ops are read one by one, and the schedule is replayed action by action. The two share the data, the rules of
targets and the cost models of single kernels and collectives, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict

from costmodels.stacks import load_stacks
from planner.checking.layer import sequence_flops
from planner.checking.proof import proof_problems
from planner.checking.ranks import Account, RankAccount
from planner.plan import Plan, StageMemory, edge_layers, mesh_json, stages_json
from planner.strategy import RankOrder, Recompute
from planner.targets import Severity, Target, candidate_of, load_target, model_facts, target_names

RELATIVE = 1e-9
"""How far times may differ from the recomputed ones."""
SOURCES = ("measured", "fitted", "datasheet", "default")
"""Kinds of figures, the best first."""


def check_plan(plan: Plan, *, must_fit: bool | None = None) -> list[str]:
    """Problems of a plan in words; empty for a sound one.

    Parameters
    ----------
    plan
        What a search or an estimate returned, or what a file says.
    must_fit
        Whether memory above the budget is a problem; by default for plans with a proof, since an estimate may say so.

    Returns
    -------
    list
        Sentences, each behind the name of the rule in brackets: ``[memory] rank 3 activations: ...``. Memory is
        compared byte by byte, times within 1e-9.

    Notes
    -----
    Schedules of more than 100,000 actions are replayed until they repeat (``checking.replay``); where a schedule does
    not repeat within two million actions, its time is only held against an enclosure.
    """
    problems = [*_structure(plan)]
    if problems:
        return problems  # nothing below is defined
    problems += _rules(plan, load_target(plan.target))
    account = RankAccount(plan)
    if unmeasured := account.unmeasured():
        return [*problems, f"[measurements] no row says what {', '.join(unmeasured)} costs under this strategy"]
    found = account.account()
    problems += _memory(plan, found)
    problems += _budget(plan, must_fit if must_fit is not None else plan.proof is not None)
    if not 0 < plan.prediction.step_time < math.inf:
        return [*problems, f"[step time] {plan.prediction.step_time} s is none"]
    problems += _times(plan, found)
    problems += _rates(plan)
    problems += _provenance(plan)
    if plan.proof is not None:
        problems += proof_problems(plan, plan.proof)
    return problems


# What the rest stands on


def _structure(plan: Plan) -> Iterator[str]:
    """Degrees, mesh, stages: a plan that breaks one of these has no time and no memory."""
    strategy, workload, cluster = plan.strategy, plan.workload, plan.cluster
    if plan.target not in target_names():
        yield f"[target] {plan.target!r} is none; known: {', '.join(target_names())}"
    if not 0 <= plan.headroom < 1:
        yield f"[headroom] must be at least 0 and below 1, got {plan.headroom}"
    if workload.stack not in load_stacks():
        yield f"[workload] the software stack {workload.stack!r} is not known"
    if workload.precision.value not in cluster.device.peak_flops:
        yield f"[workload] {cluster.device.name} does not compute in {workload.precision.value}"
    ranks = strategy.tp * strategy.cp * strategy.pp * strategy.dp_shard * strategy.dp_replicate
    if ranks != cluster.num_devices:
        yield f"[world size] the degrees multiply to {ranks}, the cluster has {cluster.num_devices} devices"
    sequences = strategy.microbatch_size * strategy.num_microbatches * strategy.dp_shard * strategy.dp_replicate
    if sequences != workload.global_batch_size:
        yield f"[microbatches] they make {sequences} sequences, the global batch has {workload.global_batch_size}"
    if strategy.vpp > 1 and (strategy.pp < 2 or strategy.num_microbatches % strategy.pp):
        yield (
            f"[schedule] interleaving needs pp of at least 2 and microbatches in groups of it, "
            f"got pp {strategy.pp} and {strategy.num_microbatches} microbatches"
        )
    if strategy.dp * strategy.cp * strategy.tp % (strategy.ep * strategy.etp):
        yield (
            f"[mesh] ep {strategy.ep} x etp {strategy.etp} does not divide the "
            f"{strategy.dp * strategy.cp * strategy.tp} ranks of a stage"
        )
    yield from _mesh(plan)
    yield from _stages(plan)


def _mesh(plan: Plan) -> Iterator[str]:
    """Each rank has one place: the axes' sizes multiply to the ranks, each axis stands once where the order says."""
    strategy, mesh = plan.strategy, mesh_json(plan.strategy)
    sizes = {
        "tp": strategy.tp,
        "cp": strategy.cp,
        "dp_shard": strategy.dp_shard,
        "dp_replicate": strategy.dp_replicate,
        "pp": strategy.pp,
    }
    inner_to_outer = ["tp", "cp", "dp_shard", "dp_replicate"]
    inner_to_outer.insert(4 if strategy.rank_order is RankOrder.PP_OUTER else 2, "pp")
    axes, shape = inner_to_outer[::-1], [sizes[name] for name in inner_to_outer[::-1]]
    if (mesh["axes"], mesh["shape"]) != (axes, shape) or math.prod(shape) != plan.cluster.num_devices:
        yield (
            f"[mesh] {mesh['axes']} of {mesh['shape']} is not {axes} of {shape} on {plan.cluster.num_devices} devices"
        )


def _stages(plan: Plan) -> Iterator[str]:
    """Each layer once and in order, each stage on its rank, recomputation within what a stage has."""
    model, strategy = plan.model, plan.strategy
    counts, again = strategy.layers_per_stage, strategy.recompute_layers
    counted = sum(block.count for block in model.blocks) - sum(edge_layers(model))
    if min(counts) < 0 or sum(counts) != counted:
        yield f"[stages] {counts} holds {sum(counts)} layers, the model has {counted} besides embedding and head"
        return
    for index, (held, recomputed) in enumerate(zip(counts, again, strict=True)):
        if not 0 <= recomputed <= held:
            yield f"[recompute] stage {index} recomputes {recomputed} layers of {held}"
        if recomputed and strategy.recompute is Recompute.NONE:
            yield f"[recompute] stage {index} recomputes {recomputed} layers, but the kind is none"
    names = iter([block.layer_type for block in model.blocks for _ in range(block.count)])
    first = 0
    for row in stages_json(model, strategy):
        stage, runs = row["stage"], row["layers"]
        assert isinstance(stage, int)
        assert isinstance(runs, list)
        layers = [run["type"] for run in runs for _ in range(run["count"])]
        expected = [next(names, None) for _ in layers]
        if layers != expected or row["first_layer"] != first or row["rank"] != stage % strategy.pp:
            yield f"[stages] stage {stage} holds other layers than come next from layer {first} on, or on another rank"
        if not layers:
            yield f"[stages] stage {stage} holds no layer"
        first += len(layers)
    if next(names, None) is not None:
        yield "[stages] the last stages leave out layers of the model"


def _rules(plan: Plan, target: Target) -> Iterator[str]:
    """Rules of the target; for the plan of a search also that it is written in the one way that counts."""
    candidate = candidate_of(plan.strategy, plan.cluster.num_devices)
    facts = model_facts(plan.model, plan.workload)
    for rule in target.rules:
        matters = rule.severity is Severity.ERROR or (rule.severity is Severity.DUPLICATE and plan.proof is not None)
        if matters and not rule.holds(candidate, facts):
            yield f"[rule {rule.code}] {rule.message(candidate, facts)}"


# Figures


def _memory(plan: Plan, found: Account) -> Iterator[str]:
    stages = plan.prediction.memory_by_stage
    if [stage.rank for stage in stages] != list(range(plan.strategy.pp)):
        yield f"[memory] ranks 0 to {plan.strategy.pp - 1} are due in order, got {[stage.rank for stage in stages]}"
        return
    for stage, terms in zip(stages, found.memory, strict=True):
        for name, value in terms.items():
            if getattr(stage, name) != value:
                yield f"[memory] rank {stage.rank} {name}: plan says {getattr(stage, name)}, recomputed {value}"


def _budget(plan: Plan, must_fit: bool) -> Iterator[str]:
    prediction, device = plan.prediction, plan.cluster.device
    budget = int(device.memory * (1 - plan.headroom)) - plan.cluster.reserve
    if prediction.capacity != device.memory:
        yield f"[capacity] plan says {prediction.capacity}, {device.name} has {device.memory} bytes"
    if prediction.budget != budget:
        yield f"[budget] plan says {prediction.budget}, memory less headroom and reserve is {budget} bytes"
    fullest = max((sum(_terms(stage).values()) for stage in prediction.memory_by_stage), default=0)
    if prediction.memory_by_stage and prediction.peak_memory != fullest:
        yield f"[peak] plan says {prediction.peak_memory}, the fullest rank has {fullest} bytes"
    if must_fit and fullest > budget:
        yield f"[fits] the fullest rank has {fullest} bytes, the budget is {budget}"


def _terms(stage: StageMemory) -> dict[str, int]:
    return {name: value for name, value in asdict(stage).items() if name != "rank"}


def is_close(value: float, expected: float, scale: float | None = None) -> bool:
    """Equal within 1e-9 of the expected value, or of a scale."""
    return abs(value - expected) <= RELATIVE * abs(expected if scale is None else scale)  # False for nan


def _times(plan: Plan, found: Account) -> Iterator[str]:
    step = plan.prediction.step_time
    least, most = found.step_time
    if not (is_close(step, least) or is_close(step, most) or least <= step <= most):
        replayed = f"{least}" if least == most else f"{least} to {most}"
        yield f"[step time] plan says {step} s, the replayed schedule takes {replayed} s"
        return
    breakdown = asdict(plan.prediction.time_breakdown)
    if not is_close(math.fsum(breakdown.values()), step):
        yield f"[breakdown] its terms add up to {math.fsum(breakdown.values())} s, the step time is {step} s"
    if not breakdown["bubble"] >= -RELATIVE * step:
        yield f"[breakdown] bubble is {breakdown['bubble']} s"
    # Several ranks may be busiest; rounding then chooses one.
    busiest = max(rank.busy for rank in found.ranks)
    wrong = []
    for rank in found.ranks:
        if is_close(rank.busy, busiest):
            parts = rank.parts.items()
            wrong.append([name for name, value in parts if not is_close(breakdown[name], value, step)])
    if all(wrong):
        rank = next(rank for rank in found.ranks if is_close(rank.busy, busiest))
        for name in wrong[0]:
            yield f"[breakdown] {name}: plan says {breakdown[name]} s, recomputed {rank.parts[name]} s"


def _rates(plan: Plan) -> Iterator[str]:
    prediction, cluster, workload = plan.prediction, plan.cluster, plan.workload
    device_seconds = prediction.step_time * cluster.num_devices
    tokens = workload.global_batch_size * workload.seq_len / device_seconds
    if not is_close(prediction.tokens_per_second_per_device, tokens):
        yield f"[tokens] plan says {prediction.tokens_per_second_per_device} tokens/s per device, recomputed {tokens}"
    flops = workload.global_batch_size * sequence_flops(plan.model, workload.seq_len)
    utilization = flops / (device_seconds * cluster.device.peak_flops[workload.precision.value])
    if not is_close(prediction.model_flops_utilization, utilization):
        yield f"[utilization] plan says {prediction.model_flops_utilization}, recomputed {utilization}"


def _provenance(plan: Plan) -> Iterator[str]:
    weakest = plan.provenance.get("weakest")
    if weakest not in SOURCES:
        yield f"[provenance] weakest must be one of {', '.join(SOURCES)}, got {weakest!r}"
        return
    named = [kind for name, text in plan.provenance.items() if name != "weakest" for kind in SOURCES if kind in text]
    if any(SOURCES.index(kind) > SOURCES.index(weakest) for kind in named):
        yield f"[provenance] weakest is {weakest}, but other entries name {', '.join(dict.fromkeys(named))}"
