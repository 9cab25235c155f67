"""check_plan passes every plan that search and estimate give: the same figures come out of tables and of plain sums."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from hardware import Cluster, read_cluster
from planner.check import check_plan
from planner.graph import ModelGraph
from planner.plan import Plan, edge_layers
from planner.readers import read_model
from planner.solvers.estimate import estimate
from planner.strategy import CpKind, RankOrder, Recompute, Strategy
from planner.targets import load_target
from planner.workload import Attention, Optimizer, Precision, Workload
from tests.conftest import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model on a cluster."""

    model: str
    cluster: str
    global_batch_size: int
    seq_len: int | None = None
    precision: Precision = Precision.BF16

    @property
    def graph(self) -> ModelGraph:
        return load_model(self.model)

    @property
    def devices(self) -> Cluster:
        return load_cluster(self.cluster)

    @property
    def workload(self) -> Workload:
        return Workload(
            global_batch_size=self.global_batch_size,
            seq_len=self.seq_len or self.graph.seq_len,
            precision=self.precision,
        )


@functools.cache
def load_model(name: str) -> ModelGraph:
    return read_model(str(ROOT / "examples" / name) if name.endswith(".json") else name)


@functools.cache
def load_cluster(name: str) -> Cluster:
    return read_cluster(str(ROOT / "examples" / name) if name.endswith(".yaml") else name)


PROFILED = Case(model="profiled-gpt.json", cluster="cluster.yaml", global_batch_size=512, precision=Precision.FP16)
CASES = (
    Case(model="llama-3.1-8b", cluster="hgx-h800*4", global_batch_size=128),
    Case(model="mixtral-8x7b", cluster="hgx-h800*8", global_batch_size=256, seq_len=4096),
    Case(model="deepseek-v3", cluster="hgx-h800*32", global_batch_size=1024, seq_len=4096),
    Case(model="gpt3-175b", cluster="dgx-a100-80gb*16", global_batch_size=384),
    Case(model="llama-3.1-70b", cluster="gb200-nvl72*2", global_batch_size=288),
    Case(model="qwen3-30b-a3b", cluster="pcie-l40s-8*2", global_batch_size=64, seq_len=6144),
    PROFILED,
)


# Random strategies


def divisors(number: int) -> list[int]:
    return [value for value in range(1, number + 1) if number % value == 0]


def draw_layers(rng: random.Random, model: ModelGraph, num_stages: int) -> tuple[int, ...]:
    """Layers of each stage: nearly even, then some moved."""
    leading, trailing = edge_layers(model)
    few, extra = divmod(model.num_layers - leading - trailing, num_stages)
    counts = [few] * num_stages
    for stage in rng.sample(range(num_stages), extra):
        counts[stage] += 1
    for _ in range(rng.choice((0, 0, 2, 5))):
        source, sink = rng.randrange(num_stages), rng.randrange(num_stages)
        if counts[source] > 1:
            counts[source] -= 1
            counts[sink] += 1
    return tuple(counts)


def draw_strategy(rng: random.Random, model: ModelGraph, num_devices: int, workload: Workload) -> Strategy | None:
    """Any strategy whose products are right."""
    tp = rng.choice([value for value in divisors(num_devices) if value <= 16])
    pp = rng.choice([value for value in divisors(num_devices // tp) if value <= 32])
    cp = rng.choice([value for value in divisors(num_devices // (tp * pp)) if value <= 8])
    dp = num_devices // (tp * pp * cp)
    if workload.global_batch_size % dp:
        return None
    experts = [layer.dims["experts"].size for layer in model.layer_types.values() if "experts" in layer.dims]
    ep = etp = 1
    if experts:
        etp = rng.choice((1, 1, 2))
        ep = rng.choice([value for value in divisors(experts[0]) if dp * cp * tp % (value * etp) == 0] or [1])
    size = rng.choice([value for value in divisors(workload.global_batch_size // dp) if value <= 8])
    zero = rng.randrange(4)
    shard = rng.choice(divisors(dp)) if zero else 1
    vpp = rng.choice((1, 1, 2, 3)) if pp > 1 else 1
    leading, trailing = edge_layers(model)
    if pp * vpp > model.num_layers - leading - trailing:
        return None
    layers = draw_layers(rng, model, pp * vpp)
    kind = rng.choice(list(Recompute))
    again = tuple(0 if kind is Recompute.NONE else rng.randint(0, count) for count in layers)
    return Strategy(
        tp=tp,
        cp=cp,
        cp_kind=rng.choice(list(CpKind)) if cp > 1 else CpKind.RING,
        pp=pp,
        vpp=vpp,
        ep=ep,
        etp=etp,
        dp_shard=shard,
        dp_replicate=dp // shard,
        zero_stage=zero,
        microbatch_size=size,
        num_microbatches=workload.global_batch_size // (dp * size),
        sequence_parallel=rng.random() < 0.7,
        rank_order=rng.choice(list(RankOrder)),
        recompute=kind,
        recompute_layers=again,
        layers_per_stage=layers,
    )


def draw_workload(rng: random.Random, case: Case) -> Workload:
    """The case's workload with other formats."""
    if case is PROFILED:
        return case.workload
    return replace(
        case.workload,
        optimizer=rng.choice(list(Optimizer)),
        gradient_bytes=rng.choice((2, 4)),
        attention=rng.choice((Attention.FLASH, Attention.FLASH, Attention.UNFUSED)),
        stack=rng.choice(("megatron-core", "torch-eager", "torch-compile")),
        expert_imbalance=rng.choice((1.0, 1.0, 1.3)),
    )


def random_plans(case: Case, count: int, seed: int) -> Iterator[Plan]:
    """Estimates of random strategies that keep the rules of `any`."""
    rng = random.Random(seed)
    model, cluster, target = case.graph, case.devices, load_target("any")
    while count:
        workload = draw_workload(rng, case)
        strategy = draw_strategy(rng, model, cluster.num_devices, workload)
        if strategy is None or target.violations(strategy, model, cluster.num_devices, workload):
            continue
        if strategy.num_microbatches * strategy.num_stages > 10_000:
            continue
        try:
            plan = estimate(model, cluster, strategy, workload=workload, headroom=rng.choice((None, 0.0, 0.25)))
        except ValueError:  # opaque layers are only known where they were measured
            if case is not PROFILED:
                raise
            continue
        count -= 1
        yield plan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_random_estimates_pass(case: Case) -> None:
    for plan in random_plans(case, 30, seed=1):
        assert check_plan(plan) == [], plan.strategy


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.model)
def test_many_random_estimates_pass(case: Case) -> None:
    for plan in random_plans(case, 300, seed=2):
        assert check_plan(plan) == [], plan.strategy
