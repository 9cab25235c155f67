"""``planner.search``: from model, cluster and workload to a checked plan with its proof."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from costmodels.stacks import load_stack
from hardware import Cluster, Level
from hardware.units import format_bytes
from planner.check import check_plan
from planner.cost import JobCosts, LayerTimes, compose_layers, job_costs
from planner.graph import ModelGraph
from planner.layer_costs import CP_KINDS
from planner.plan import Plan, Proof, Termination, rounded
from planner.solvers.core import CoreSpace, enumerate_meshes
from planner.solvers.estimate import estimate_strategy, provenance, usable_headroom
from planner.solvers.explain import cut_by, headroom_that_fits, memory_that_fits, miss_in_prose, why_it_loses
from planner.solvers.fixed_rules import fixed_problems
from planner.solvers.frontier import Found, rank_key
from planner.solvers.layouts import body_types, model_chain
from planner.solvers.least_memory import LeastMemory, NearestMiss
from planner.solvers.result import Alternative, Infeasibility, Limits, Progress, ProgressCallback, SearchResult
from planner.solvers.search import BestFirst
from planner.solvers.space import Fixed, RecomputeChoice, parse_fixed
from planner.strategy import CpKind, RankOrder, Recompute, Strategy
from planner.tables import LayerTable, build_table
from planner.targets import Target, load_target, model_facts
from planner.workload import Workload

SAME_TIME = 1e-9
"""Share within which two ways to the same step time must agree."""
RUNNERS_UP = 10
"""Meshes closed by a bound that are evaluated after the proof, to find the next best ones."""
NUM_ALTERNATIVES = 3
"""Next best plans that a result shows unless more are asked for."""


class PlanCheckError(RuntimeError):
    """A plan failed its own check: a fault of the planner, never of the input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """The resolved arguments of a search."""

    model: ModelGraph
    cluster: Cluster
    workload: Workload
    target: Target
    fixed: Fixed
    headroom: float
    limits: Limits


def search(
    model: ModelGraph,
    cluster: Cluster,
    *,
    workload: Workload,
    target: str = "any",
    objective: str = "step_time",
    fix: Mapping[str, object] | None = None,
    headroom: float | None = None,
    layouts: str = "balanced",
    limits: Limits | None = None,
    progress: ProgressCallback | None = None,
) -> SearchResult:
    """Find the fastest way to train a model on a cluster, and prove it.

    Parameters
    ----------
    model, cluster, workload
        What is trained, where, and how.
    target
        Whose rules a plan must keep: a name of ``planner.targets.target_names()``.
    objective
        ``step_time``.
    fix
        Key -> allowed values, as ``{"tp": 8, "pp": "4,8", "cp": "<=2", "recompute": "none"}``.
    headroom
        Share of device memory left free, 0 to 1; ``None``: what the software stack needs.
    layouts
        ``balanced``, the family of ``planner.solvers.layouts``.
    limits
        When to stop, and how many plans to prove best.
    progress
        Called now and then with the state of the search.

    Returns
    -------
    SearchResult
        With the plan, or with the proof that none fits.

    Raises
    ------
    ValueError
        For arguments that are no input of a search, all problems in one message.
    PlanCheckError
        If a plan fails the independent check: nothing of it should be used.
    """
    began = time.monotonic()
    job = _resolve(model, cluster, workload, target, objective, fix or {}, headroom, layouts, limits or Limits())
    tables = _tables(job)
    report = None if progress is None else _reporter(progress)
    loop = BestFirst(tables.space, tables.times, tables.table, tables.costs, tables.recompute, job.limits, report)
    loop.run()
    result = _result(job, loop, tables)
    return replace(result, search_time=time.monotonic() - began)


def _resolve(
    model: ModelGraph,
    cluster: Cluster,
    workload: Workload,
    target: str,
    objective: str,
    fix: Mapping[str, object],
    headroom: float | None,
    layouts: str,
    limits: Limits,
) -> _Job:
    problems = []
    values: dict[str, object] = {}
    readers: dict[str, Callable[[], object]] = {
        "target": lambda: load_target(target),
        "fixed": lambda: parse_fixed(fix),
        "headroom": lambda: usable_headroom(workload, headroom),
        "precision": lambda: cluster.device.peak_flops_per_s(workload.precision.value),
    }
    for name, read in readers.items():
        try:
            values[name] = read()
        except ValueError as error:
            problems.extend(str(error).splitlines())
    if objective != "step_time":
        problems.append(f"objective {objective!r:.80} is not searched yet; accepted: step_time")
    if layouts != "balanced":
        problems.append(f"layouts {layouts!r:.80} is not searched yet; accepted: balanced")
    if problems:
        raise ValueError("\n".join(problems))
    values.pop("precision")
    resolved = _Job(model=model, cluster=cluster, workload=workload, limits=limits, **values)  # type: ignore[arg-type]
    _check_fixed(resolved)
    return resolved


def _check_fixed(job: _Job) -> None:
    """Refuse fixed values that no candidate has, with the nearest legal one."""
    problems = fixed_problems(job.fixed, job.model, job.cluster, job.workload, job.target)
    if problems:
        raise ValueError("\n".join(problems))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tables:
    """What the searches of one job share."""

    space: CoreSpace
    times: LayerTimes
    table: LayerTable
    costs: JobCosts
    recompute: RecomputeChoice


def _tables(job: _Job) -> _Tables:
    stack = load_stack(job.workload.stack)
    facts = model_facts(job.model, job.workload)
    meshes = enumerate_meshes(job.cluster.num_devices, facts, job.target, job.fixed)
    table = build_table(job.model, job.cluster, job.workload, stack, meshes.keys, job.fixed.sequence_parallel)
    times = compose_layers(table, body_types(job.model, table.layer_types))
    space = CoreSpace(
        meshes,
        model_chain(job.model, table.layer_types),
        facts,
        job.target,
        job.fixed,
        job.cluster.num_devices,
        table.valid,
    )
    return _Tables(
        space=space,
        times=times,
        table=replace(table, costs={}),  # composed into times; large clusters have large tables
        costs=job_costs(job.cluster, job.workload, stack.overlap, job.headroom),
        recompute=RecomputeChoice(
            kinds=job.fixed.kinds(),
            partial="recompute" not in job.fixed.words,
            uniform=job.target.uniform_recompute,
        ),
    )


def _reporter(progress: ProgressCallback) -> Callable[[BestFirst, bool], None]:
    def report(loop: BestFirst, improved: bool) -> None:
        best = loop.champion
        bound = loop.open_bound
        progress(
            Progress(
                seconds=loop.seconds,
                best=None if best is None else best.step_time,
                lower_bound=min(bound, best.step_time) if best is not None else bound,
                num_bounded=loop.num_bounded,
                num_evaluated=loop.num_evaluated,
                improved=improved,
                degrees={} if best is None else strategy_of(best).degrees,
            )
        )

    return report


def strategy_of(found: Found | NearestMiss) -> Strategy:
    """A found candidate as a strategy."""
    rows, mesh = found.rows, found.rows.mesh
    dp, shard = int(mesh.dp[0]), int(rows.dp_shard[0])
    return Strategy(
        tp=int(mesh.tp[0]),
        cp=int(mesh.cp[0]),
        cp_kind=CP_KINDS[int(rows.cp_kind[0])] if mesh.cp[0] > 1 else CpKind.RING,
        pp=found.pp,
        vpp=found.vpp,
        ep=int(mesh.ep[0]),
        etp=int(mesh.etp[0]),
        dp_shard=shard,
        dp_replicate=dp // shard,
        zero_stage=int(rows.zero_stage[0]),
        microbatch_size=int(mesh.microbatch_size[0]),
        num_microbatches=int(mesh.num_microbatches[0]),
        sequence_parallel=found.sequence_parallel,
        rank_order=list(RankOrder)[int(rows.rank_order[0])],
        recompute=list(Recompute)[int(found.recompute)],
        recompute_layers=found.recompute_layers,
        layers_per_stage=found.layers_per_stage,
    )


def _result(job: _Job, loop: BestFirst, tables: _Tables) -> SearchResult:
    best = loop.champion
    proof = _proof(job, loop, best)
    plan = None if best is None else _plan(job, best, proof)
    infeasibility = None
    if proof.termination is Termination.INFEASIBLE:
        infeasibility = _infeasibility(job, loop, tables)
    return SearchResult(
        plan=plan,
        proof=proof,
        alternatives=() if plan is None or best is None else _alternatives(job, loop, best, plan),
        infeasibility=infeasibility,
        interrupted=loop.interrupted,
        search_time=loop.seconds,
    )


DEVICE_FACTORS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Multiples of the cluster that are tried where nothing fits."""


def _infeasibility(job: _Job, loop: BestFirst, tables: _Tables) -> Infeasibility:
    """The nearest miss as a plan, and the smallest changes that would make it fit."""
    least = LeastMemory(tables.space, tables.times, tables.table, tables.costs, tables.recompute)
    miss = least.run()
    counts = f"Of {loop.space.space_size:,} candidates: {cut_by(loop.frontier.sizes)}."
    budget = tables.costs.budget
    if miss is None:
        return Infeasibility(
            message=f"No candidate keeps the rules of target {job.target.name}. {counts}",
            nearest=None,
            missing=None,
            budget=budget,
            fits_with_memory=None,
            fits_with_headroom=None,
            fits_with_devices=None,
            suggestion="change the fixed keys, the global batch size or the number of devices",
        )
    nearest = _plan(job, miss, None)
    reserve, memory = job.cluster.reserve, job.cluster.device.memory
    headroom = headroom_that_fits(miss.need, memory, reserve)
    larger = memory_that_fits(miss.need, job.headroom, reserve)
    devices = _devices_that_fit(job)
    changes = [f"{devices} devices of this kind"] if devices else []
    if headroom is not None:
        changes.append(f"a headroom of {headroom:.1%} in place of {job.headroom:.1%}")
    changes.append(f"devices with {format_bytes(larger)} of memory")
    return Infeasibility(
        message=f"No plan fits. {miss_in_prose(nearest, exact=least.exact)} {counts}",
        nearest=nearest,
        missing=miss.need - budget,
        budget=budget,
        fits_with_memory=larger,
        fits_with_headroom=headroom,
        fits_with_devices=devices,
        suggestion="It would fit with " + ", or with ".join(changes) + ".",
    )


def _devices_that_fit(job: _Job) -> int | None:
    """The least tried multiple of the cluster on which something fits."""
    if job.fixed.numbers.keys() & {"dp", "dp_shard", "dp_replicate"}:
        return None
    for factor in DEVICE_FACTORS:
        cluster = _multiple(job.cluster, factor)
        if job.model.num_parameters * job.workload.state_bytes > cluster.num_devices * cluster.device.memory:
            continue  # not even the states, spread evenly
        tables = _tables(replace(job, cluster=cluster))
        search_memory = LeastMemory(tables.space, tables.times, tables.table, tables.costs, tables.recompute)
        miss = search_memory.run(enough=tables.costs.budget)
        if miss is not None and miss.need <= tables.costs.budget:
            return cluster.num_devices
    return None


def _multiple(cluster: Cluster, factor: int) -> Cluster:
    """The same nodes, so many times as many, behind the outermost link."""
    outer = cluster.levels[-1]
    num_devices = cluster.num_devices * factor
    if len(cluster.levels) > 1:
        levels = (*cluster.levels[:-1], replace(outer, num_devices=num_devices))
    else:
        levels = (outer, Level(name="network", num_devices=num_devices, link=outer.link))
    return replace(cluster, num_devices=num_devices, levels=levels)


def _alternatives(job: _Job, loop: BestFirst, best: Found, plan: Plan) -> tuple[Alternative, ...]:
    """Next best meshes: those asked for (proven), those within the asked share, and some runners-up to compare."""
    if not loop.stopped:
        loop.look_at_runners_up(RUNNERS_UP)
    others = sorted((found for found in loop.best.values() if found is not best), key=lambda found: found.order)
    proven = others[: job.limits.top - 1]
    limit = best.step_time * (1 + job.limits.within)
    near = [found for found in others[len(proven) :] if job.limits.within and found.step_time <= limit]
    rest = sorted([*others[len(proven) + len(near) :], *loop.runners_up], key=lambda found: found.order)
    chosen = [*proven, *near]
    chosen += rest[: max(0, NUM_ALTERNATIVES - len(chosen))]
    alternatives = []
    for found in chosen:
        other = _plan(job, found, None)
        alternatives.append(
            Alternative(
                plan=other,
                ratio=rounded(found.step_time / best.step_time),
                reason=why_it_loses(plan.prediction, other.prediction),
            )
        )
    return tuple(alternatives)


def _proof(job: _Job, loop: BestFirst, best: Found | None) -> Proof:
    open_bound = loop.open_bound
    bound: float | None
    if loop.stopped:
        termination = Termination.FEASIBLE if best else Termination.NO_PLAN_FOUND
        bound = min(open_bound, best.step_time) if best else open_bound
        bound = bound if math.isfinite(bound) and bound > 0 else None
    elif best is None:
        termination, bound = Termination.INFEASIBLE, None
    else:
        termination, bound = Termination.OPTIMAL, best.step_time
    if best is not None and bound is not None and rank_key(bound) >= rank_key(best.step_time):
        termination, bound = Termination.OPTIMAL, best.step_time
    gap = None if best is None or bound is None else (best.step_time - bound) / best.step_time
    return Proof(
        termination=termination,
        lower_bound=bound,
        gap=gap,
        scope=_scope(job),
        space_size=loop.space.space_size,
        num_bounded=loop.num_bounded,
        num_evaluated=loop.num_evaluated,
        frontier=loop.frontier.subtrees(),
        reproducible=not (loop.stopped and (job.limits.time_limit is not None or loop.interrupted)),
    )


def _scope(job: _Job) -> str:
    fixed = job.fixed.describe()
    parts = [
        f"within the cost model, for target {job.target.name}",
        "balanced layouts (ends q-3..q+1 layers, stages between them equal to within one)",
        "schedules 1f1b and interleaved-1f1b",
        "rank orders tp-cp-ep-dp-pp and tp-cp-ep-pp-dp",
        "one kind of recomputation, "
        + ("one number of layers for all stages" if job.target.uniform_recompute else "a number of layers per rank"),
    ]
    if fixed:
        parts.append(f"fixed {fixed}")
    return "; ".join(parts)


def _plan(job: _Job, found: Found | NearestMiss, proof: Proof | None) -> Plan:
    strategy = strategy_of(found)
    estimate = estimate_strategy(job.model, job.cluster, job.workload, strategy, job.headroom)
    plan = Plan(
        model=job.model,
        cluster=job.cluster,
        workload=job.workload,
        target=job.target.name,
        headroom=job.headroom,
        strategy=strategy,
        prediction=estimate.prediction,
        proof=proof,
        provenance=provenance(job.cluster, job.workload, estimate.sources),
    )
    problems = check_plan(plan)
    told = estimate.prediction.step_time
    if isinstance(found, Found) and abs(told - found.step_time) > SAME_TIME * told:
        problems = [
            *problems,
            f"the search found {found.step_time} s, the estimate says {told} s",
        ]
    if problems:
        raise PlanCheckError("\n".join(problems))
    return plan
