"""Equal answers by other roads: relations between searches that must hold whatever the right answer is."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import planner
from costmodels import collectives
from hardware import Device, Level, Link, cluster_from_json, parse_cluster
from hardware.yaml_reader import Document
from planner import Limits, SearchResult
from planner.graph import Block, Layer, Measurement, ModelGraph
from planner.solvers import estimate, run
from planner.strategy import RankOrder
from tests.planner.solvers.brute_force import Case, Evaluator, raw_outer
from tests.planner.solvers.instances import from_json, random_case

FAST, ALL = 4, 50
"""Instances of each relation in the default run, and of all runs together."""
SIZE = 3_000
CLOSE = 1e-9


@pytest.fixture(autouse=True)
def _no_larger_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_devices_that_fit", lambda job: None)


def search(case: Case, **options: object) -> SearchResult:
    return planner.search(
        case.model,
        case.cluster,
        workload=case.workload,
        target=case.target,
        headroom=case.headroom,
        **options,  # type: ignore[arg-type]  # keyword arguments of one function
    )


def best(case: Case, **options: object) -> float:
    result = search(case, **options)
    return math.inf if result.plan is None else result.plan.prediction.step_time


@functools.cache
def bound_case(seed: int) -> Case:
    """A random case whose memory binds: between what the fastest and what the smallest candidate needs."""
    case, enumeration = random_case(10_000 + seed, SIZE, least=20)
    everything = enumeration.evaluate()
    if not len(everything):
        return case
    return case.with_memory(int(np.quantile(everything.need, (0.03, 0.2, 0.5)[seed % 3])))


Relation = Callable[[Case], None]


def same(case: Case, other: Case, **options: object) -> None:
    first, second = best(case), best(other, **options)
    assert first == second == math.inf or math.isclose(first, second, rel_tol=CLOSE), case.describe()


def nothing_pruned(case: Case) -> None:
    """As many best meshes as there are: no bound may close anything before all are found."""
    same(case, case, limits=Limits(top=1000))
    same(case, case, limits=Limits(within=0.999))


def other_names(case: Case) -> None:
    """Layer types renamed, so that their names sort the other way, and given in the other order."""
    names = {name: f"{chr(ord('z') - index)} {name}" for index, name in enumerate(case.model.layer_types)}
    ends = {name: name for name in ("embedding", "head") if name in names}
    same(case, replace(case, model=renamed(case.model, {**names, **ends})))


def renamed(model: ModelGraph, names: dict[str, str]) -> ModelGraph:
    def layer(old: Layer) -> Layer:
        return replace(old, name=names[old.name])

    def row(old: Measurement) -> Measurement:
        return replace(old, layer_type=names[old.layer_type])

    return replace(
        model,
        name="renamed",
        layer_types={names[name]: layer(old) for name, old in reversed(model.layer_types.items())},
        blocks=tuple(replace(block, layer_type=names[block.layer_type]) for block in model.blocks),
        shared_parameters=tuple(
            replace(shared, layer_types=tuple(names[name] for name in shared.layer_types))
            for shared in model.shared_parameters
        ),
        measurements=tuple(row(old) for old in reversed(model.measurements)),
    )


def split_blocks(case: Case) -> None:
    """Runs of equal layers written one by one: the same layers in the same order."""
    blocks = tuple(
        Block(layer_type=block.layer_type, count=1) for block in case.model.blocks for _ in range(block.count)
    )
    same(case, replace(case, model=replace(case.model, blocks=blocks)))


def written_and_read(case: Case) -> None:
    """Model and cluster through their JSON."""
    same(case, replace(case, model=from_json(case.model), cluster=cluster_from_json(case.cluster.to_json())))


def equal_level(case: Case) -> None:
    """Each device a node of its own, under the level that joined them before: the inner level joins nothing."""
    cluster = case.cluster
    if len(cluster.levels) > 1 or cluster.devices_per_node == 1:
        return
    alone = Level(name="alone", num_devices=1, link=Link(bandwidth=1.0, latency=1.0))
    same(case, replace(case, cluster=replace(cluster, devices_per_node=1, levels=(alone, *cluster.levels))))


def slower_by_1000(case: Case) -> None:
    """All rates down and all latencies up by 1,000: the step takes 1,000 times as long."""
    factor = 1000
    device = case.cluster.device
    slow = scaled_device(device, 1 / factor)
    levels = tuple(replace(level, link=scaled_link(level.link, 1 / factor)) for level in case.cluster.levels)
    model = replace(
        case.model,
        measurements=tuple(
            replace(row, forward=row.forward * factor, backward=row.backward * factor)
            for row in case.model.measurements
        ),
    )
    stack = estimate.load_stack(case.workload.stack)
    floors = ("launch_floor_forward", "launch_floor_backward")
    late = replace(stack, **{name: getattr(stack, name) * factor for name in floors})  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "check_plan", lambda plan: [])  # it has constants of its own
        before = best(case)
        patch.setattr(collectives, "BASE_LATENCY", collectives.BASE_LATENCY * factor)
        for module in (run, estimate):
            patch.setattr(module, "load_stack", lambda name: late)
        after = best(replace(case, model=model, cluster=replace(case.cluster, device=slow, levels=levels)))
    # The simulator rounds each duration up to a tick of 1 ps: some 1e-9 of the shortest steps.
    assert before == after == math.inf or math.isclose(after, factor * before, rel_tol=1e-8), case.describe()


def scaled_device(device: Device, rate: float) -> Device:
    return replace(
        device,
        memory_bandwidth=device.memory_bandwidth * rate,
        peak_flops={name: value * rate for name, value in device.peak_flops.items()},
        gemm_latency=device.gemm_latency / rate,
        host_link=device.host_link * rate,
    )


def scaled_link(link: Link, rate: float) -> Link:
    line_rate = None if link.line_rate is None else link.line_rate * rate
    return replace(link, bandwidth=link.bandwidth * rate, latency=link.latency / rate, line_rate=line_rate)


def never_slower(case: Case, better: Case, **options: object) -> None:
    before, after = best(case, **options), best(better, **options)
    assert after <= before * (1 + CLOSE), case.describe()


def more_memory(case: Case) -> None:
    memory = case.cluster.device.memory
    times = [best(case.with_memory(memory + extra)) for extra in (0, 1, memory // 10, memory)]
    assert times == sorted(times, reverse=True), case.describe()


def more_bandwidth(case: Case) -> None:
    """Faster links, one level at a time; faster device memory."""
    cluster = case.cluster
    for index, level in enumerate(cluster.levels):
        levels = list(cluster.levels)
        levels[index] = replace(level, link=replace(level.link, bandwidth=level.link.bandwidth * 1.7))
        never_slower(case, replace(case, cluster=replace(cluster, levels=tuple(levels))))
    faster = replace(cluster.device, memory_bandwidth=cluster.device.memory_bandwidth * 1.7)
    never_slower(case, replace(case, cluster=replace(cluster, device=faster)))


def more_compute(case: Case) -> None:
    """A faster device hides less communication behind compute, but compute and what is exposed never add up to more."""
    device = case.cluster.device
    rates = {name: value * 1.7 for name, value in device.peak_flops.items()}
    faster = replace(case, cluster=replace(case.cluster, device=replace(device, peak_flops=rates)))
    never_slower(case, faster)


def more_choice(case: Case) -> None:
    """What is fixed is never faster than what is open."""
    free = best(case)
    fixes: list[dict[str, object]] = [{"tp": 1}, {"pp": "<=2"}, {"zero_stage": "0,1"}, {"schedule": "1f1b"}, {"cp": 1}]
    for fix in fixes:
        try:
            fixed = best(case, fix=fix)
        except ValueError:
            continue  # no legal candidate has it
        assert free <= fixed * (1 + CLOSE), (case.describe(), fix)


def no_better_neighbour(case: Case) -> None:
    """With the same degrees, layers and recomputation no legal outer choice that fits is faster.

    And a placement that may be written in two ways takes the same time and memory in both.
    """
    evaluator = Evaluator(case)
    plan = search(case).plan
    if plan is None:
        return
    chosen = plan.strategy
    inner = [(chosen.layers_per_stage, chosen.recompute, chosen.recompute_layers)]
    time, need = evaluator.evaluate(chosen, inner)
    if chosen.pp == 1 or chosen.dp == 1:
        twin = evaluator.evaluate(replace(chosen, rank_order=RankOrder.DP_OUTER), inner)
        if chosen.pp == 1:
            assert (twin[0][0], twin[1][0]) == (time[0], need[0])
    for other in raw_outer(chosen):
        worse = evaluator.evaluate(other, inner)
        fits = worse[1][0] <= case.budget
        legal = not faults(case, other)
        assert not (fits and legal) or worse[0][0] >= time[0] * (1 - CLOSE), (case.describe(), other)


def faults(case: Case, strategy: object) -> list[object]:
    target = run.load_target(case.target)
    return list(target.violations(strategy, case.model, case.cluster.num_devices, case.workload))  # type: ignore[arg-type]


def less_work(case: Case) -> None:
    """The best plan with half of its microbatches is a plan for half of the batch, and no slower."""
    plan = search(case).plan
    if plan is None:
        return
    strategy = plan.strategy
    if strategy.num_microbatches % 2 or strategy.vpp > 1:
        return
    half = replace(case.workload, global_batch_size=case.workload.global_batch_size // 2)
    never_slower(case, replace(case, workload=half))


def test_equal_node_groups_may_be_written_apart() -> None:
    case = bound_case(0)
    node = {
        "device": "h100-sxm",
        "devices_per_node": 2,
        "intra_node": {"bandwidth": "300 GB/s", "latency": "3 us"},
        "nics": {"count": 2, "bandwidth": "100 Gbit/s", "latency": "5 us"},
    }
    clusters = []
    for counts in ((4,), (1, 3), (2, 1, 1)):
        content = {"name": "pod", "nodes": [{**node, "count": count} for count in counts]}
        clusters.append(parse_cluster(Document(file="cluster.yaml", content=content)))
    plans = [search(replace(case, cluster=cluster)).plan for cluster in clusters]
    assert len({json.dumps(plan.to_json(), sort_keys=True) for plan in plans if plan is not None}) == 1


RELATIONS: tuple[Relation, ...] = (
    nothing_pruned,
    other_names,
    split_blocks,
    written_and_read,
    equal_level,
    slower_by_1000,
    more_memory,
    more_bandwidth,
    more_compute,
    more_choice,
    no_better_neighbour,
    less_work,
)


@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.__name__)
@pytest.mark.parametrize("seed", range(FAST))
def test_searches_agree(relation: Relation, seed: int) -> None:
    relation(bound_case(seed))


@pytest.mark.slow
@pytest.mark.parametrize("relation", RELATIONS, ids=lambda relation: relation.__name__)
@pytest.mark.parametrize("seed", range(FAST, ALL))
def test_searches_agree_in_more_instances(relation: Relation, seed: int) -> None:
    relation(bound_case(seed))
