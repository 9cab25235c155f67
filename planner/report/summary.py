"""The plan at a glance, and what it rests on."""

from __future__ import annotations

from rich.text import Text

from hardware.units import format_bytes, format_time
from planner.plan import Plan
from planner.report.layout import paragraph
from planner.strategy import Recompute, Strategy
from planner.targets import accepting_targets, load_target, target_names


def job_line(plan: Plan) -> Text:
    """Model, cluster and workload."""
    workload, cluster = plan.workload, plan.cluster
    return Text(
        f"{plan.model.name} on {cluster.num_devices} x {cluster.device.name}, global batch "
        f"{workload.global_batch_size:,} x {workload.seq_len:,} tokens, {workload.precision.value}, "
        f"{workload.optimizer.value}, {workload.stack}",
        style="dim",
    )


def plan_line(plan: Plan) -> Text:
    """Degrees, schedule, batch split and recomputation."""
    strategy = plan.strategy
    said = [
        degrees_text(strategy),
        f"{strategy.num_microbatches} x {strategy.microbatch_size} sequences",
        strategy.schedule if strategy.pp > 1 else "",
        recompute_text(strategy),
    ]
    return Text(" · ".join(part for part in said if part), style="bold")


def degrees_text(strategy: Strategy) -> str:
    """Degrees in a few words, those of 1 left out: ``tp 8 · pp 4 · dp 16 (zero 1 over 8)``."""
    parts = []
    for name in ("tp", "cp", "pp", "vpp", "ep", "etp"):
        value = getattr(strategy, name)
        if value > 1:
            parts.append(f"{name} {value}" + (f" ({strategy.cp_kind.value})" if name == "cp" else ""))
    if strategy.dp > 1 or not parts:
        parts.append(f"dp {strategy.dp}")
    if strategy.zero_stage and strategy.dp * strategy.cp > 1:
        over = "" if strategy.dp_replicate == 1 else f" over {strategy.dp_shard} of {strategy.dp}"
        parts.append(f"zero {strategy.zero_stage}{over}")
    return " · ".join(parts)


def recompute_text(strategy: Strategy) -> str:
    """How much is recomputed."""
    layers, number = sum(strategy.layers_per_stage), sum(strategy.recompute_layers)
    if strategy.recompute is Recompute.NONE or number == 0:
        return "no recomputation"
    share = "all layers" if number == layers else f"{number} of {layers} layers"
    return f"{strategy.recompute.value} recomputation of {share}"


def result_line(plan: Plan) -> Text:
    """Step time, throughput, utilisation and the fullest device."""
    prediction = plan.prediction
    return Text.assemble(
        (f"step {format_time(prediction.step_time)}", "bold"),
        f" · {prediction.tokens_per_second_per_device:,.0f} tokens/s per device",
        f" · MFU {prediction.model_flops_utilization:.1%}",
        " · fullest device ",
        (format_bytes(prediction.peak_memory), "" if prediction.fits else "bold red"),
        f" of {format_bytes(prediction.budget)} usable",
    )


def targets_line(plan: Plan) -> Text:
    """Which targets would run the plan, and which rules keep the others from it."""
    strategy, devices = plan.strategy, plan.cluster.num_devices
    accepting = accepting_targets(strategy, plan.model, devices, plan.workload)
    others = []
    for name in target_names():
        if name not in accepting:
            broken = load_target(name).violations(strategy, plan.model, devices, plan.workload)
            others.append(f"{name} ({', '.join(dict.fromkeys(item.rule for item in broken))})")
    text = f"Accepted by {', '.join(accepting) or 'no target'}"
    return Text(text + (f"; not by {', '.join(others)}: planner rule CODE explains" if others else ""))


def rests_on(plan: Plan) -> list[Text]:
    """The weakest figures and where all of them come from."""
    sources = {kind: source for kind, source in plan.provenance.items() if kind != "weakest"}
    weakest = plan.provenance.get("weakest")
    lines = [] if weakest is None else [Text(f"Weakest figures it rests on: {weakest}")]
    return [*lines, *(paragraph(f"  {kind}: {source}", indent="    ", style="dim") for kind, source in sources.items())]
