"""``planner search``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hardware import read_cluster
from planner.cli.inputs import (
    Problems,
    check_output,
    parse_pairs,
    parse_seconds,
    parse_share,
    parse_whole,
    resolve_workload,
)
from planner.cli.status import BAD_INPUT, INTERRUPTED, NO_PLAN, OK, UNFIT, Interrupted, PlannerFault
from planner.cli.terminal import Interruption, ProgressLine, emit, emit_json, hint, wants_colour
from planner.plan import Termination
from planner.plan_file import plan_text, write_files
from planner.readers import read_model
from planner.report import search_json, search_text
from planner.solvers.result import Limits, Progress, SearchResult
from planner.solvers.run import PlanCheckError, search
from planner.solvers.space import parse_fixed
from planner.targets import load_target


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchArguments:
    """The command line as it was typed."""

    model: str
    cluster: str
    workload_file: str | None
    workload: Mapping[str, str | None]
    target: str
    fix: tuple[str, ...]
    headroom: str | None
    objective: str
    layouts: str
    within: str
    time_limit: str | None
    max_work: str | None
    top: str
    output: str | None
    json: bool
    quiet: bool


def run_search(arguments: SearchArguments) -> int:
    """Search, print the answer, write the plans; the exit status."""
    try:
        result = _search(arguments)
    except KeyboardInterrupt:
        raise Interrupted("interrupted before any plan was found") from None
    if arguments.json:
        emit_json(search_json(result, layouts=arguments.layouts))
    else:
        emit(search_text(result, colour=wants_colour(sys.stdout)))
    status = exit_status(result)
    return status if _save(arguments, result) else BAD_INPUT


def _search(given: SearchArguments) -> SearchResult:
    problems = Problems()
    model = problems.attempt(lambda: read_model(given.model))
    cluster = problems.attempt(lambda: read_cluster(given.cluster))
    workload = resolve_workload(problems, options=given.workload, file=given.workload_file, model=model)
    problems.attempt(lambda: load_target(given.target), "--target: ")
    fix = parse_pairs("--fix", given.fix, problems)
    problems.attempt(lambda: parse_fixed(fix), "--")
    headroom = problems.attempt(lambda: _headroom(given.headroom))
    limits = problems.attempt(lambda: _limits(given, problems))
    check_output(given.output, problems)
    problems.finish()
    assert model is not None and cluster is not None and workload is not None and limits is not None
    line = None if given.quiet else ProgressLine()

    def report(progress: Progress) -> None:
        if line is not None:
            line(progress)
        interruption.check(progress)

    interruption = Interruption()
    try:
        with interruption:
            return search(
                model,
                cluster,
                workload=workload,
                target=given.target,
                objective=given.objective,
                fix=fix,
                headroom=headroom,
                layouts=given.layouts,
                limits=limits,
                progress=report,
            )
    except ValueError as error:
        lines = str(error).splitlines()
        raise ValueError("\n".join(f"--{line}" if line.startswith("fix ") else line for line in lines)) from error
    except PlanCheckError as error:
        text = "\n".join(f"a plan failed its own check: {problem}" for problem in str(error).splitlines())
        raise PlannerFault(f"{text}\nnothing was written; please report this with the command") from error
    finally:
        if line is not None:
            line.clear()


def _headroom(text: str | None) -> float | None:
    return None if text is None else parse_share("--headroom", text)


def _limits(given: SearchArguments, problems: Problems) -> Limits | None:
    top = problems.attempt(lambda: parse_whole("--top", given.top, maximum=1000))
    within = problems.attempt(lambda: parse_share("--within", given.within))
    seconds, work = given.time_limit, given.max_work
    time_limit = None if seconds is None else problems.attempt(lambda: parse_seconds("--time-limit", seconds))
    max_work = None if work is None else problems.attempt(lambda: parse_whole("--max-work", work))
    if top is None or within is None:
        return None
    return Limits(time_limit=time_limit, max_work=max_work, within=within, top=top)


def exit_status(result: SearchResult) -> int:
    """The status that a result stands for."""
    if result.interrupted:
        return INTERRUPTED
    if result.plan is not None:
        return OK
    return UNFIT if result.termination is Termination.INFEASIBLE else NO_PLAN


def _save(given: SearchArguments, result: SearchResult) -> bool:
    """Write the plans that were asked for; whether nothing went wrong."""
    if result.plan is None:
        if given.output is not None:
            hint(f"nothing was written to {given.output}", quiet=given.quiet)
        return True
    if given.output is None:
        hint("-o plan.json writes the plan, for planner export, estimate and show", quiet=given.quiet or given.json)
        return True
    top = int(given.top)
    plans = [result.plan, *(other.plan for other in result.alternatives[: top - 1])]
    files = {plan_path(given.output, number): plan for number, plan in enumerate(plans, start=1)}
    try:
        write_files({path: plan_text(plan) for path, plan in files.items()})
    except OSError as error:
        hint(f"error: {given.output}: {error.strerror or error}; the plan was not written")
        return False
    hint(f"wrote {', '.join(str(path) for path in files)}", quiet=given.quiet)
    if len(plans) < top:
        hint(f"there are only {len(plans)} distinct plans", quiet=given.quiet)
    return True


def plan_path(output: str, number: int) -> Path:
    """``plan.json``, then ``plan.2.json`` and so on beside it."""
    path = Path(output)
    return path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
