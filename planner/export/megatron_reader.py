"""Megatron-LM's command line back as a strategy: for round trips, and to compare a launch of one's own with a plan."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from planner.strategy import CpKind, RankOrder, Recompute, Strategy

_INTEGERS = (
    "--tensor-model-parallel-size",
    "--context-parallel-size",
    "--pipeline-model-parallel-size",
    "--expert-model-parallel-size",
    "--expert-tensor-parallel-size",
    "--num-distributed-optimizer-instances",
    "--num-virtual-stages-per-pipeline-rank",
    "--num-layers-per-virtual-pipeline-stage",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--micro-batch-size",
    "--global-batch-size",
    "--num-layers",
    "--num-experts",
    "--recompute-num-layers",
)
_TEXTS = (
    "--pipeline-model-parallel-layout",
    "--cp-comm-type",
    "--data-parallel-sharding-strategy",
    "--recompute-granularity",
    "--recompute-method",
)
_FLAGS = (
    "--sequence-parallel",
    "--use-tp-pp-dp-mapping",
    "--use-distributed-optimizer",
    "--use-megatron-fsdp",
    "--recompute-activations",
)

_ZERO_STAGES = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}


class _Parser(argparse.ArgumentParser):
    """Argparse that raises instead of ending the program."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"Megatron arguments: {message}")


def read_megatron_arguments(arguments: Sequence[str], num_devices: int) -> Strategy:
    """The strategy that a command line asks for.

    Parameters
    ----------
    arguments
        As the program gets them; options that do not bear on the strategy are passed over.
    num_devices
        Processes in all; Megatron derives the data-parallel degree from it.

    Returns
    -------
    Strategy
        ``sequence_parallel`` is true where tp is 1, and a ZeRO stage is 0 where there is nothing to shard over.

    Raises
    ------
    ValueError
        Where a value is missing, is no integer, or does not fit the others.
    """
    given = _parse(arguments)
    tp = given["tensor_model_parallel_size"] or 1
    cp = given["context_parallel_size"] or 1
    pp = given["pipeline_model_parallel_size"] or 1
    model = tp * cp * pp
    if num_devices % model:
        raise ValueError(f"{num_devices} devices cannot be split over tp x cp x pp = {model}")
    dp = num_devices // model
    layers = _layers(given, pp)
    zero_stage, dp_shard, dp_replicate = _sharding(given, dp, cp)
    microbatch_size = given["micro_batch_size"] or 1
    batch = given["global_batch_size"] or microbatch_size * dp
    if batch % (microbatch_size * dp):
        raise ValueError(f"global batch {batch} is no multiple of micro batch {microbatch_size} x dp {dp}")
    experts = given["num_experts"] is not None
    recompute, counts = _recompute(given, layers)
    return Strategy(
        tp=tp,
        cp=cp,
        cp_kind=CpKind.ULYSSES if cp > 1 and given["cp_comm_type"] == "a2a" else CpKind.RING,
        pp=pp,
        vpp=len(layers) // pp,
        ep=given["expert_model_parallel_size"] or 1,
        etp=(given["expert_tensor_parallel_size"] or tp) if experts else 1,
        dp_shard=dp_shard,
        dp_replicate=dp_replicate,
        zero_stage=zero_stage,
        microbatch_size=microbatch_size,
        num_microbatches=batch // (microbatch_size * dp),
        sequence_parallel=given["sequence_parallel"] or tp == 1,
        rank_order=RankOrder.DP_OUTER if given["use_tp_pp_dp_mapping"] else RankOrder.PP_OUTER,
        recompute=recompute,
        recompute_layers=counts,
        layers_per_stage=layers,
    )


def _parse(arguments: Sequence[str]) -> dict[str, Any]:
    parser = _Parser(allow_abbrev=False, add_help=False)
    for option in _INTEGERS:
        parser.add_argument(option, type=int)
    for option in _TEXTS:
        parser.add_argument(option)
    for option in _FLAGS:
        parser.add_argument(option, action="store_true")
    given = vars(parser.parse_known_args(list(arguments))[0])
    for option in _INTEGERS:
        value = given[option[2:].replace("-", "_")]
        if value is not None and value < 1:
            raise ValueError(f"{option} must be at least 1, got {value}")
    return given


def _layers(given: dict[str, Any], pp: int) -> tuple[int, ...]:
    """Decoder layers of each virtual stage."""
    if given["pipeline_model_parallel_layout"] is not None:
        stages = parse_layout(given["pipeline_model_parallel_layout"])
        if len(stages) % pp:
            raise ValueError(f"the layout has {len(stages)} stages, which is no multiple of pp = {pp}")
        return tuple(stage.count("t") for stage in stages)
    num_layers = given["num_layers"]
    if num_layers is None:
        raise ValueError("--num-layers or --pipeline-model-parallel-layout is needed")
    per_rank = _layers_per_rank(given, num_layers, pp)
    vpp = given["num_virtual_stages_per_pipeline_rank"] or 1
    if given["num_layers_per_virtual_pipeline_stage"] is not None:
        vpp = _quotient(num_layers // pp, given["num_layers_per_virtual_pipeline_stage"], "layers of a rank")
    return tuple(_quotient(count, vpp, "layers of a rank") for _ in range(vpp) for count in per_rank)


def _layers_per_rank(given: dict[str, Any], num_layers: int, pp: int) -> list[int]:
    """Layers of each rank: what the first and the last are given, and the rest evenly."""
    first, last = given["decoder_first_pipeline_num_layers"], given["decoder_last_pipeline_num_layers"]
    if pp == 1:
        return [num_layers]
    middle = pp - (first is not None) - (last is not None)
    rest = num_layers - (first or 0) - (last or 0)
    counts = [_quotient(rest, middle, "layers")] * middle if middle else []
    return [*([] if first is None else [first]), *counts, *([] if last is None else [last])]


def _quotient(value: int, divisor: int, what: str) -> int:
    if value % divisor:
        raise ValueError(f"{value} {what} cannot be split evenly into {divisor}")
    return value // divisor


def parse_layout(text: str) -> list[str]:
    """Stages of a layout string, each as its letters: ``E`` embedding, ``t`` decoder layer, ``m`` MTP, ``L`` loss.

    ``x*n`` repeats a letter, ``(...)*n`` a group that may hold stage borders ``|``; commas mean nothing.
    """
    plain = text.replace(",", "").replace(" ", "")
    plain = re.sub(r"\(([^()]*)\)\*(\d+)", lambda match: match[1] * int(match[2]), plain)
    plain = re.sub(r"([EtmL|])\*(\d+)", lambda match: match[1] * int(match[2]), plain)
    if re.fullmatch(r"E[tm|]*L", plain) is None:
        raise ValueError(
            f"layout {text!r} must start with E, end with L, and hold t, m, | and repetitions x*n and (...)*n between"
        )
    return plain.split("|")


def _sharding(given: dict[str, Any], dp: int, cp: int) -> tuple[int, int, int]:
    """ZeRO stage, dp_shard and dp_replicate."""
    stage = int(given["use_distributed_optimizer"])
    if given["use_megatron_fsdp"]:
        name = given["data_parallel_sharding_strategy"] or "optim_grads_params"
        if name not in _ZERO_STAGES:
            raise ValueError(f"--data-parallel-sharding-strategy {name!r}; accepted: {', '.join(_ZERO_STAGES)}")
        stage = _ZERO_STAGES[name]
    if stage == 0 or dp * cp == 1:
        return 0, 1, dp
    instances = given["num_distributed_optimizer_instances"] or 1
    if dp % instances:
        raise ValueError(f"dp = {dp} is no multiple of {instances} instances of the distributed optimizer")
    return stage, dp // instances, instances


def _recompute(given: dict[str, Any], layers: tuple[int, ...]) -> tuple[Recompute, tuple[int, ...]]:
    """Kind, and layers of each virtual stage; the method ``uniform`` recomputes all of them."""
    kind = "selective" if given["recompute_activations"] else given["recompute_granularity"]
    if kind is None:
        return Recompute.NONE, (0,) * len(layers)
    if kind == "selective":
        return Recompute.SELECTIVE, layers
    if kind != "full":
        raise ValueError(f"--recompute-granularity {kind!r}; accepted: full, selective")
    if given["recompute_method"] == "uniform":
        return Recompute.FULL, layers
    number = given["recompute_num_layers"]
    if given["recompute_method"] != "block" or number is None:
        raise ValueError("full recomputation needs --recompute-method block or uniform, and --recompute-num-layers")
    return Recompute.FULL, tuple(min(number, count) for count in layers)
