"""Legal plans of many kinds, the same on each run."""

from __future__ import annotations

import random

from planner.graph import ModelGraph
from planner.plan import Plan, edge_layers
from planner.strategy import CpKind, RankOrder, Recompute, Strategy
from planner.targets import load_target
from planner.workload import Attention, Optimizer, Precision, Workload
from tests.planner.export.plans import make_plan


def sample_plans(graphs: list[ModelGraph], count: int, seed: int) -> list[Plan]:
    """So many plans that Megatron would run, of the models in turn; degrees, sharding and stages drawn at random."""
    draw = random.Random(seed)
    plans: list[Plan] = []
    while len(plans) < count:
        graph = graphs[len(plans) % len(graphs)]
        strategy = _draw_strategy(graph, draw)
        replicas = strategy.dp * strategy.microbatch_size
        workload = Workload(
            global_batch_size=replicas * strategy.num_microbatches,
            seq_len=min(2048, graph.seq_len),
            precision=draw.choice(list(Precision)),
            optimizer=draw.choice([Optimizer.ADAM, Optimizer.ADAMW, Optimizer.SGD]),
            attention=draw.choice(list(Attention)),
            gradient_bytes=draw.choice([2, 4]),
        )
        if not load_target("megatron").violations(strategy, graph, strategy.world_size, workload):
            plans.append(make_plan(graph, strategy, workload))
    return plans


def _draw_strategy(graph: ModelGraph, draw: random.Random) -> Strategy:
    num_layers = graph.num_layers - sum(edge_layers(graph))
    pp = draw.choice([degree for degree in (1, 2, 3, 4, 8) if degree <= num_layers])
    vpp = draw.choice([degree for degree in (1, 2) if degree * pp <= num_layers and (pp > 1 or degree == 1)])
    cuts = sorted(draw.sample(range(1, num_layers), pp * vpp - 1))
    layers = tuple(end - start for start, end in zip([0, *cuts], [*cuts, num_layers], strict=True))
    recompute, number = draw.choice(list(Recompute)), draw.randint(1, max(layers))
    counts = {
        Recompute.NONE: (0,) * len(layers),
        Recompute.SELECTIVE: layers,
        Recompute.FULL: tuple(min(number, count) for count in layers),
    }
    zero_stage, shards, replicas = draw.choice([0, 1, 1, 2, 3]), draw.choice([1, 2, 4, 8]), draw.choice([1, 2])
    tp, cp = draw.choice([1, 2, 4, 8]), draw.choice([1, 1, 2, 4])
    return Strategy(
        tp=tp,
        cp=cp,
        cp_kind=draw.choice(list(CpKind)) if cp > 1 else CpKind.RING,
        pp=pp,
        vpp=vpp,
        ep=draw.choice([1, 2, 4, 8]) if graph.is_moe else 1,
        etp=draw.choice([1, 2]) if graph.is_moe else 1,
        dp_shard=shards if zero_stage else 1,
        dp_replicate=replicas if zero_stage else replicas * shards,
        zero_stage=zero_stage,
        microbatch_size=draw.choice([1, 2]),
        num_microbatches=pp * draw.randint(1, 3) if vpp > 1 else draw.randint(1, 9),
        sequence_parallel=tp == 1 or draw.random() < 0.7,
        rank_order=draw.choice(list(RankOrder)),
        recompute=recompute,
        recompute_layers=counts[recompute],
        layers_per_stage=layers,
    )
