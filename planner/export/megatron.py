"""A plan as Megatron-LM's command line: ``launch.sh`` and ``arguments.json``.

Every degree is written out, also where it equals the default, so that a change of defaults changes nothing. Stages are
always given as an explicit layout: the options for the first and the last stage alone build a shorter model without a
pipeline (Megatron-LM issue 1778), and cannot say uneven middle stages.
"""

from __future__ import annotations

import json

from planner.export.launch import launch_script
from planner.export.megatron_model import model_arguments
from planner.export.result import ExportResult
from planner.graph import ModelGraph
from planner.plan import Plan
from planner.strategy import SELECTIVE_MODULES, CpKind, RankOrder, Recompute, Strategy
from planner.targets import load_target
from planner.workload import Attention, Optimizer, Precision, Workload

CHECKED_VERSION = "megatron-core 0.19.2"
"""Release whose own parser and validator accepted these arguments."""

STACK = "megatron-core"
"""Name of Megatron among the software stacks that costs are known for."""

FSDP_STRATEGIES = {2: "optim_grads", 3: "optim_grads_params"}
"""Megatron-FSDP's names of ZeRO stages."""

UNKNOWN = (
    "the plan does not know the tokenizer, data, learning rate and its schedule, initialisation, norm epsilon, and the "
    "base and scaling of rotary positions: give them after `launch.sh`"
)


def export_megatron(plan: Plan) -> ExportResult:
    """Files for Megatron-LM.

    Raises
    ------
    ValueError
        For a plan that Megatron would not run, with every broken rule.
    """
    strategy = plan.strategy
    refuse(plan)
    arguments, warnings = megatron_arguments(plan)
    environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "8" if strategy.zero_stage > 1 else "1"}
    per_host = min(plan.cluster.devices_per_node, strategy.world_size)
    script = launch_script(
        arguments=arguments,
        environment=environment,
        num_devices=strategy.world_size,
        devices_per_host=per_host,
        program="pretrain_gpt.py",
        note=f"{plan.model.name} on {plan.cluster.name}: arguments of Megatron-LM, checked with {CHECKED_VERSION}.",
    )
    content = {
        "launcher": "Megatron-LM",
        "checked_with": CHECKED_VERSION,
        "program": "pretrain_gpt.py",
        "num_devices": strategy.world_size,
        "devices_per_host": per_host,
        "environment": environment,
        "arguments": [list(option) for option in arguments],
    }
    files = {"launch.sh": script, "arguments.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n"}
    return ExportResult(
        files=files, warnings=(*warnings, *_cluster_warnings(plan), UNKNOWN), command=_command(plan, per_host)
    )


def refuse(plan: Plan) -> None:
    """Raise a ``ValueError`` with every rule of Megatron that a plan breaks."""
    strategy, workload = plan.strategy, plan.workload
    broken = load_target("megatron").violations(strategy, plan.model, strategy.world_size, workload)
    reasons = [f"{violation.rule}: {violation.message}" for violation in broken]
    if strategy.zero_stage > 1 and workload.optimizer is Optimizer.LION:
        reasons.append("optimizer: Megatron-FSDP takes adam and sgd, got lion; legal: these, or zero_stage 0 or 1")
    positions = plan.model.dim("positions")
    if positions is not None and workload.seq_len > positions.size:
        reasons.append(f"seq_len: {workload.seq_len} tokens, but the model has {positions.size} learned positions")
    if reasons:
        raise ValueError("Megatron would not run this plan:\n" + "\n".join(f"  {reason}" for reason in reasons))


def megatron_arguments(plan: Plan) -> tuple[list[tuple[str, ...]], list[str]]:
    """Options with their values, and warnings about what they do not say."""
    strategy, workload = plan.strategy, plan.workload
    model = model_arguments(plan.model, workload)
    warnings = list(model.warnings)
    if plan.target != "megatron":
        warnings.append(f"the plan was searched for target {plan.target}; Megatron's rules accept it")
    told = load_target("megatron").warnings(strategy, plan.model, strategy.world_size, workload)
    warnings += [warning.message for warning in told]
    options = [
        *_mesh(strategy, plan.model),
        *_batch(strategy, workload),
        *_data_parallel(strategy, workload),
        *_recompute(strategy, plan.model, workload, warnings),
        *_precision(workload, warnings),
        *_grouped(model.arguments),
    ]
    return options, warnings


def _grouped(arguments: list[str]) -> list[tuple[str, ...]]:
    """A flat list of arguments as options with their values."""
    options: list[tuple[str, ...]] = []
    for argument in arguments:
        if argument.startswith("--"):
            options.append((argument,))
        else:
            options[-1] = (*options[-1], argument)
    return options


def _mesh(strategy: Strategy, graph: ModelGraph) -> list[tuple[str, ...]]:
    options: list[tuple[str, ...]] = [
        ("--tensor-model-parallel-size", str(strategy.tp)),
        ("--context-parallel-size", str(strategy.cp)),
        ("--pipeline-model-parallel-size", str(strategy.pp)),
    ]
    if strategy.pp > 1:
        options.append(("--pipeline-model-parallel-layout", layout(strategy.layers_per_stage)))
    if graph.is_moe:
        options.append(("--expert-model-parallel-size", str(strategy.ep)))
        options.append(("--expert-tensor-parallel-size", str(strategy.etp)))
    if strategy.cp > 1:
        options.append(("--cp-comm-type", "a2a" if strategy.cp_kind is CpKind.ULYSSES else "p2p"))
    if strategy.sequence_parallel and strategy.tp > 1:
        options.append(("--sequence-parallel",))
    if strategy.rank_order is RankOrder.DP_OUTER:
        options.append(("--use-tp-pp-dp-mapping",))
    return options


def layout(layers_per_stage: tuple[int, ...]) -> str:
    """Stages in order as Megatron writes them: ``Et*7|t*9|t*9|t*7L``."""
    stages = ["t" if count == 1 else f"t*{count}" if count else "" for count in layers_per_stage]
    return "E" + "|".join(stages) + "L"


def _batch(strategy: Strategy, workload: Workload) -> list[tuple[str, ...]]:
    return [
        ("--micro-batch-size", str(strategy.microbatch_size)),
        ("--global-batch-size", str(workload.global_batch_size)),
    ]


def _data_parallel(strategy: Strategy, workload: Workload) -> list[tuple[str, ...]]:
    """Sharding of states, and the overlaps that the cost model counts on."""
    options: list[tuple[str, ...]] = []
    if strategy.zero_stage > 0:
        options.append(("--use-distributed-optimizer",))
        if strategy.dp_replicate > 1:
            options.append(("--num-distributed-optimizer-instances", str(strategy.dp_replicate)))
    if strategy.zero_stage > 1:
        main_grads = "fp32" if workload.gradient_bytes == 4 else "auto"
        options += [
            ("--use-megatron-fsdp",),
            ("--data-parallel-sharding-strategy", FSDP_STRATEGIES[strategy.zero_stage]),
            ("--megatron-fsdp-main-grads-dtype", main_grads),
            ("--ckpt-format", "fsdp_dtensor"),
            ("--init-model-with-meta-device",),
            ("--no-gradient-accumulation-fusion",),
        ]
    if strategy.dp * strategy.cp > 1:
        options.append(("--overlap-grad-reduce",))
        if strategy.zero_stage > 0:
            options.append(("--overlap-param-gather",))
    return options


def _recompute(strategy: Strategy, graph: ModelGraph, workload: Workload, warnings: list[str]) -> list[tuple[str, ...]]:
    number = max(strategy.recompute_layers)
    if strategy.recompute is Recompute.NONE or number == 0:
        return []
    if strategy.recompute is Recompute.FULL:
        return [
            ("--recompute-granularity", "full"),
            ("--recompute-method", "block"),
            ("--recompute-num-layers", str(number)),
        ]
    modules = recompute_modules(graph, workload)
    if not modules:
        warnings.append("selective recomputation is left out: the model has none of the modules that it drops")
        return []
    return [("--recompute-granularity", "selective"), ("--recompute-modules", *modules)]


def recompute_modules(graph: ModelGraph, workload: Workload) -> tuple[str, ...]:
    """Modules of a model that selective recomputation drops."""
    present = {op.module for block in graph.blocks for op in graph.layer_types[block.layer_type].ops}
    unfused = ("core_attn",) if workload.attention is Attention.UNFUSED else ()
    return tuple(name for name in (*unfused, *SELECTIVE_MODULES) if name in present)


def _precision(workload: Workload, warnings: list[str]) -> list[tuple[str, ...]]:
    options: list[tuple[str, ...]] = []
    narrow = workload.gradient_bytes < 4
    if workload.precision is not Precision.FP32:
        options.append((f"--{workload.precision.value}",))
        if not narrow:
            options.append(("--accumulate-allreduce-grads-in-fp32",))
        elif workload.precision is Precision.BF16:
            options.append(("--grad-reduce-in-bf16",))
    elif narrow:
        warnings.append("Megatron keeps gradients of fp32 weights in fp32; the plan counts on 2 bytes per gradient")
    if workload.attention is Attention.UNFUSED:
        options.append(("--attention-backend", "unfused"))
    name = {Optimizer.ADAMW: "adam"}.get(workload.optimizer, workload.optimizer.value)
    if workload.optimizer is Optimizer.ADAM:
        warnings.append("Megatron's adam decays weights as adamw does; state and time are the same")
    options.append(("--optimizer", name))
    return options


def _cluster_warnings(plan: Plan) -> list[str]:
    warnings = []
    if plan.workload.stack != STACK:
        warnings.append(f"the prediction is for the software stack {plan.workload.stack}, not for {STACK}")
    used, there = plan.strategy.world_size, plan.cluster.num_devices
    if used < there:
        warnings.append(f"the plan uses {used} of {there} devices: launch it on hosts with {used} devices")
    if plan.cluster.devices_per_node > 8:
        warnings.append(
            f"devices_per_node = {plan.cluster.devices_per_node} is one link domain, which may be several hosts: "
            "set DEVICES_PER_HOST to the devices of one host"
        )
    return warnings


def _command(plan: Plan, devices_per_host: int) -> str:
    single = plan.strategy.world_size <= devices_per_host
    return "bash launch.sh" if single else "HOST_RANK=<0, 1, ...> MASTER_ADDR=<first host> bash launch.sh"
