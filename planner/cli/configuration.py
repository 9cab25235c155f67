"""A configuration as people set it, as a strategy: what is not set follows or has a default."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hardware import Cluster
from hardware.errors import quote, suggest
from planner.cli.inputs import MAX_WHOLE, Problems, parse_whole
from planner.graph import ModelGraph
from planner.solvers.estimate import even_layers
from planner.strategy import CpKind, RankOrder, Recompute, Strategy
from planner.targets import model_facts
from planner.targets.rule import nearest
from planner.workload import Workload

NUMBERS = ("dp", "dp_shard", "dp_replicate", "tp", "pp", "vpp", "cp", "ep", "etp", "zero_stage", "microbatch_size")
"""Keys that take a whole number."""
WORDS: Mapping[str, tuple[str, ...]] = {
    "recompute": tuple(kind.value for kind in Recompute),
    "cp_kind": tuple(kind.value for kind in CpKind),
    "rank_order": tuple(kind.value for kind in RankOrder),
    "schedule": ("1f1b", "interleaved-1f1b"),
    "sequence_parallel": ("true", "false"),
}
"""Keys that take one of some words."""
LISTS = ("layers_per_stage", "recompute_layers")
"""Keys that take a whole number for each virtual stage."""
MAX_STAGES = 100_000
"""Most virtual stages of a configuration."""
KEYS = (*NUMBERS, *WORDS, *LISTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What was set, by key."""

    numbers: dict[str, int]
    words: dict[str, str]
    lists: dict[str, tuple[int, ...]]


def parse_settings(pairs: Mapping[str, str], problems: Problems) -> Settings:
    """The values of ``--set``, each as its key takes it."""
    settings = Settings(numbers={}, words={}, lists={})
    for key, text in pairs.items():
        try:
            _parse(key, text.strip(), settings)
        except ValueError as error:
            problems.add(str(error))
    return settings


def _parse(key: str, text: str, settings: Settings) -> None:
    option = f"--set {key}"
    if key in NUMBERS:
        least, most = (0, 3) if key == "zero_stage" else (1, MAX_WHOLE)
        settings.numbers[key] = parse_whole(option, text, minimum=least, maximum=most)
    elif key in WORDS:
        settings.words[key] = _word(option, text, WORDS[key])
    elif key in LISTS:
        settings.lists[key] = tuple(parse_whole(option, part, minimum=0) for part in text.split(","))
    else:
        hint = suggest(key, KEYS) or f"; accepted: {', '.join(KEYS)}"
        raise ValueError(f"--set: unknown key {quote(key)}{hint}")


def _word(option: str, text: str, accepted: tuple[str, ...]) -> str:
    if text.lower() not in accepted:
        hint = suggest(text, list(accepted))
        raise ValueError(f"{option}: {quote(text)} is not accepted{hint}; accepted: {', '.join(accepted)}")
    return text.lower()


def build_strategy(
    settings: Settings, model: ModelGraph, cluster: Cluster, workload: Workload, problems: Problems
) -> Strategy | None:
    """The strategy that was set; ``None`` with all problems noted if it is none of this cluster."""
    before = len(problems.lines)
    degrees = {name: settings.numbers.get(name, 1) for name in ("tp", "cp", "pp", "vpp", "ep", "etp")}
    micro = settings.numbers.get("microbatch_size", 1)
    stages = degrees["pp"] * degrees["vpp"]
    if stages > MAX_STAGES:
        problems.add(f"--set: pp x vpp = {stages} is more than the {MAX_STAGES} stages that are looked at")
        return None
    dp = _data_parallel(settings, degrees, cluster.num_devices, problems)
    layers = _layers(settings, degrees, model_facts(model, workload).num_body_layers, problems)
    recompute, again = _recompute(settings, layers, problems)
    _check_schedule(settings, degrees, problems)
    sharding = {}
    if dp is not None:
        _check_batch(dp, micro, workload, problems)
        _check_experts(degrees, dp, problems)
        sharding = _sharding(settings, dp, degrees["cp"], problems)
    if dp is None or len(problems.lines) > before:
        return None
    return Strategy(
        **degrees,
        **sharding,
        cp_kind=CpKind(settings.words.get("cp_kind", CpKind.RING)),
        rank_order=RankOrder(settings.words.get("rank_order", RankOrder.PP_OUTER)),
        microbatch_size=micro,
        num_microbatches=workload.global_batch_size // (dp * micro),
        sequence_parallel=settings.words.get("sequence_parallel") != "false",
        recompute=recompute,
        recompute_layers=again,
        layers_per_stage=layers,
    )


def _data_parallel(settings: Settings, degrees: Mapping[str, int], num_devices: int, problems: Problems) -> int | None:
    """The degree that uses all devices."""
    rest = degrees["tp"] * degrees["cp"] * degrees["pp"]
    if num_devices % rest:
        problems.add(
            f"--set: tp x cp x pp = {degrees['tp']} x {degrees['cp']} x {degrees['pp']} = {rest} does not divide the "
            f"{num_devices} devices; {_nearest_degrees(degrees, num_devices)}"
        )
        return None
    dp = num_devices // rest
    given = settings.numbers.get("dp", dp)
    if given != dp:
        problems.add(
            f"--set dp: tp x cp x pp x dp = {rest} x {given} must be the {num_devices} devices; nearest legal: {dp}"
        )
        return None
    return dp


def _nearest_degrees(degrees: Mapping[str, int], num_devices: int) -> str:
    """For each degree above 1, the nearest values that would divide, the others kept."""
    rest = degrees["tp"] * degrees["cp"] * degrees["pp"]
    said = []
    for name in ("tp", "cp", "pp"):
        left = num_devices * degrees[name] / rest  # what the other degrees leave
        if degrees[name] > 1 and left.is_integer():
            said.append(f"for {name}, {_nearest_divisor(degrees[name], int(left))}")
    return "; ".join(said) or _nearest_divisor(rest, num_devices)


def _nearest_divisor(value: int, number: int) -> str:
    return nearest(value, lambda divisor: number % divisor == 0, highest=number)


def _layers(settings: Settings, degrees: Mapping[str, int], body: int, problems: Problems) -> tuple[int, ...]:
    pp, vpp = degrees["pp"], degrees["vpp"]
    even = even_layers(body, pp, vpp)
    given = settings.lists.get("layers_per_stage", even)
    if len(given) != pp * vpp:
        problems.add(f"--set layers_per_stage: needs pp x vpp = {pp * vpp} numbers, got {len(given)}; {_as_list(even)}")
    elif sum(given) != body:
        problems.add(
            f"--set layers_per_stage: must add up to the {body} layers of the model without embedding and head, "
            f"got {sum(given)}; {_as_list(even)}"
        )
    return given


def _as_list(layers: tuple[int, ...]) -> str:
    text = ",".join(map(str, layers))
    return f"even: {text if len(text) < 80 else text[:77] + '...'}"


def _recompute(settings: Settings, layers: tuple[int, ...], problems: Problems) -> tuple[Recompute, tuple[int, ...]]:
    """Kind, and layers of each stage: all of them where no number is given."""
    kind = Recompute(settings.words.get("recompute", Recompute.NONE))
    given = settings.lists.get("recompute_layers")
    if kind is Recompute.NONE:
        if given is not None and any(given):
            problems.add("--set recompute_layers: needs recompute=selective or recompute=full")
        return kind, (0,) * len(layers)
    if given is None:
        return kind, layers
    if len(given) == 1:
        return kind, tuple(min(given[0], count) for count in layers)
    if len(given) != len(layers):
        problems.add(f"--set recompute_layers: needs 1 number or {len(layers)}, one a stage, got {len(given)}")
    elif any(again > count for again, count in zip(given, layers, strict=True)):
        text = _as_list(layers).removeprefix("even: ")
        problems.add(f"--set recompute_layers: a stage cannot recompute more layers than it has, {text}")
    return kind, given


def _check_schedule(settings: Settings, degrees: Mapping[str, int], problems: Problems) -> None:
    schedule, vpp = settings.words.get("schedule"), degrees["vpp"]
    if schedule == "interleaved-1f1b" and vpp == 1:
        problems.add("--set schedule: interleaved-1f1b needs vpp of 2 or more")
    if schedule == "1f1b" and vpp > 1:
        problems.add(f"--set schedule: with vpp={vpp} the schedule is interleaved-1f1b; 1f1b needs vpp=1")


def _check_batch(dp: int, micro: int, workload: Workload, problems: Problems) -> None:
    batch = workload.global_batch_size
    if batch % dp:
        # dp follows from the other degrees, so the batch is what can be changed.
        legal = nearest(batch, lambda value: value % (dp * micro) == 0)
        problems.add(f"--global-batch-size: {batch} is no multiple of dp x microbatch_size = {dp} x {micro}; {legal}")
    elif batch % (dp * micro):
        each = batch // dp
        problems.add(
            f"--set microbatch_size: {micro} does not divide the {each} sequences of a replica; "
            f"{_nearest_divisor(micro, each)}"
        )


def _check_experts(degrees: Mapping[str, int], dp: int, problems: Problems) -> None:
    ranks, experts = dp * degrees["cp"] * degrees["tp"], degrees["ep"] * degrees["etp"]
    if ranks % experts:
        problems.add(
            f"--set: ep x etp = {degrees['ep']} x {degrees['etp']} = {experts} does not divide the dp x cp x tp = "
            f"{ranks} devices of a stage; {_nearest_divisor(experts, ranks)}"
        )


def _sharding(settings: Settings, dp: int, cp: int, problems: Problems) -> dict[str, int]:
    """ZeRO stage, and dp as shards times replicas."""
    shard, replicate = settings.numbers.get("dp_shard"), settings.numbers.get("dp_replicate")
    stage = settings.numbers.get("zero_stage", 1 if dp * cp > 1 else 0)
    if shard is not None and replicate is not None and shard * replicate != dp:
        problems.add(f"--set: dp_shard x dp_replicate = {shard} x {replicate} must be dp = {dp}")
    for key, value in (("dp_shard", shard), ("dp_replicate", replicate)):
        if value is not None and dp % value:
            problems.add(f"--set {key}: {value} does not divide dp = {dp}; {_nearest_divisor(value, dp)}")
    if shard is None and replicate is not None and dp % replicate:
        return {}
    if shard is None:
        shard = dp // replicate if replicate is not None else (dp if stage else 1)
    return {"zero_stage": stage, "dp_shard": shard, "dp_replicate": dp // shard}
