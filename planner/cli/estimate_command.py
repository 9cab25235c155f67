"""``planner estimate``."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardware import Cluster, read_cluster
from planner.cli.configuration import build_strategy, parse_settings
from planner.cli.inputs import Problems, check_output, parse_pairs, parse_share, resolve_workload
from planner.cli.status import BAD_INPUT, OK, UNFIT
from planner.cli.terminal import emit, emit_json, hint, wants_colour
from planner.graph import ModelGraph
from planner.plan import Plan
from planner.plan_file import read_plan, write_plan
from planner.readers import read_model
from planner.report import estimate_json, estimate_text
from planner.solvers.estimate import estimate, usable_headroom
from planner.strategy import Strategy
from planner.targets import load_target
from planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateArguments:
    """The command line as it was typed."""

    model: str | None
    cluster: str | None
    plan: str | None
    choices: tuple[str, ...]
    workload_file: str | None
    workload: Mapping[str, str | None]
    target: str | None
    headroom: str | None
    output: str | None
    json: bool
    quiet: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """What is estimated."""

    model: ModelGraph
    cluster: Cluster
    workload: Workload
    strategy: Strategy
    target: str
    headroom: float | None


def run_estimate(arguments: EstimateArguments) -> int:
    """Estimate one configuration, print what it takes; the exit status."""
    job = _resolve(arguments)
    plan = estimate(
        job.model, job.cluster, job.strategy, workload=job.workload, target=job.target, headroom=job.headroom
    )
    if not math.isfinite(plan.prediction.step_time):
        raise ValueError("the cost model has no finite time for this configuration")
    violations = load_target(job.target).violations(job.strategy, job.model, job.cluster.num_devices, job.workload)
    if arguments.json:
        emit_json(estimate_json(plan, violations))
    else:
        emit(estimate_text(plan, violations, colour=wants_colour(sys.stdout)))
    if not _save(arguments, plan):
        return BAD_INPUT
    return OK if plan.prediction.fits and not violations else UNFIT


def _save(given: EstimateArguments, plan: Plan) -> bool:
    if given.output is None:
        return True
    try:
        write_plan(plan, Path(given.output))
    except OSError as error:
        hint(f"error: {given.output}: {error.strerror or error}; the plan was not written")
        return False
    hint(f"wrote {given.output}", quiet=given.quiet)
    return True


def _resolve(given: EstimateArguments) -> _Job:
    problems = Problems()
    path, source, place = given.plan, given.model, given.cluster
    plan = None if path is None else problems.attempt(lambda: read_plan(path))
    if path is None and (source is None or place is None):
        problems.add("MODEL and CLUSTER are missing: planner estimate MODEL CLUSTER --set tp=8, or --plan plan.json")
    if path is not None and given.choices:
        problems.add("--plan and --set exclude each other: the plan has all choices")
    model = plan.model if plan else None
    cluster = plan.cluster if plan else None
    if source is not None:
        model = problems.attempt(lambda: read_model(source))
    if place is not None:
        cluster = problems.attempt(lambda: read_cluster(place))
    workload = None
    if path is None or plan is not None:
        workload = resolve_workload(
            problems,
            options=given.workload,
            file=given.workload_file,
            model=model,
            base=plan.workload if plan else None,
        )
    target = given.target or (plan.target if plan else "any")
    problems.attempt(lambda: load_target(target), "--target: ")
    headroom = plan.headroom if plan and given.headroom is None else None
    if given.headroom is not None:
        text = given.headroom
        headroom = problems.attempt(lambda: parse_share("--headroom", text))
    settings = parse_settings(parse_pairs("--set", given.choices, problems), problems)
    check_output(given.output, problems)
    strategy = None
    if workload is not None:
        resolved = workload
        problems.attempt(lambda: usable_headroom(resolved, headroom), "--stack: ")
        if plan is not None:
            strategy = plan.strategy
        elif model is not None and cluster is not None:
            strategy = build_strategy(settings, model, cluster, workload, problems)
    if plan is not None and strategy is not None and workload is not None:
        _check_plan_fits_job(plan, workload, problems)
    problems.finish()
    assert model is not None and cluster is not None and workload is not None and strategy is not None
    return _Job(model=model, cluster=cluster, workload=workload, strategy=strategy, target=target, headroom=headroom)


def _check_plan_fits_job(plan: Plan, workload: Workload, problems: Problems) -> None:
    """A plan's batch split is for its own global batch."""
    strategy = plan.strategy
    batch = strategy.dp * strategy.microbatch_size * strategy.num_microbatches
    if batch != workload.global_batch_size:
        problems.add(
            f"--global-batch-size: the plan splits {batch} sequences, got {workload.global_batch_size}; "
            f"nearest legal: {batch}"
        )
