"""Targets as a whole: arrays against single candidates, messages, names."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.graph import Axis, Block, Dim, Layer, ModelGraph, Tensor
from planner.strategy import CpKind, RankOrder, Strategy
from planner.targets import (
    Candidate,
    Level,
    ModelFacts,
    Severity,
    accepting_targets,
    candidate_of,
    load_target,
    model_facts,
    target_names,
)
from tests.planner.targets.models import candidate, model, strategy, workload

ARRAYS = [
    field.name for field in fields(Candidate) if field.name not in ("layers_per_stage", "recompute", "recompute_layers")
]
LARGEST = {"cp_kind": (0, 1), "zero_stage": (0, 3), "rank_order": (0, 1), "sequence_parallel": (0, 1)}
FACTS = [
    model_facts(graph, workload(global_batch_size=24, seq_len=96))
    for graph in (
        model(),
        model(heads=12, kv_heads=3, window=8, tied=True),
        model(experts=12, expert_ffn=36),
        model(experts=8, dense_layers=2, vocab=4096),
    )
]

ROW = st.fixed_dictionaries(
    {name: st.integers(*LARGEST.get(name, (1, 13 if name != "num_devices" else 64))) for name in ARRAYS}
)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(rows=st.lists(ROW, min_size=1, max_size=24), facts=st.sampled_from(FACTS), name=st.sampled_from(target_names()))
def test_arrays_and_single_candidates_agree(rows: list[dict[str, int]], facts: ModelFacts, name: str) -> None:
    target = load_target(name)
    arrays = Candidate(**{key: np.array([row[key] for row in rows]) for key in ARRAYS})
    for level in (Level.CORE, Level.OUTER):
        masks = target.masks(arrays, facts, level)
        for index, row in enumerate(rows):
            single = Candidate(**row)
            rules = [rule for rule in target.rules_of(level) if rule.severity is not Severity.WARNING]
            assert [code for code, _ in masks] == [rule.code for rule in rules]
            for rule, (_, mask) in zip(rules, masks, strict=True):
                assert bool(rule.holds(single, facts)) == bool(mask[index]), (rule.code, row)
                if not mask[index]:
                    assert "\n" not in rule.message(single, facts)


@pytest.mark.parametrize("name", target_names())
def test_masks_have_the_shape_of_the_candidates(name: str) -> None:
    its = candidate(tp=np.array([[1, 2, 3]]), dp=np.array([[1], [2]]))
    for level in (Level.CORE, Level.OUTER):
        for _, mask in load_target(name).masks(its, FACTS[0], level):
            assert mask.shape == (2, 3)
            assert mask.dtype == np.bool_


def test_core_rules_do_not_look_at_outer_choices() -> None:
    core = Candidate(**{name: 1 for name in ARRAYS if name not in {*LARGEST, "dp_shard", "dp_replicate"}})
    for name in target_names():
        assert len(load_target(name).masks(core, FACTS[2], "core")) >= 9


def test_a_plain_strategy_is_accepted_by_all_targets() -> None:
    its = strategy(tp=2, cp=2, pp=2, dp_shard=2, zero_stage=1)
    assert accepting_targets(its, model(), 16, workload()) == ("any", "megatron")


def test_violations_name_each_broken_rule() -> None:
    broken = load_target("any").violations(strategy(tp=6), model(), 8, workload())
    assert [violation.rule for violation in broken] == ["R1", "R5", "R6", "R9"]
    assert broken[1].to_json() == {
        "rule": "R5",
        "message": "tp = 6 does not divide heads = 32; nearest legal: 4, 8",
    }


def test_a_duplicate_is_no_violation_but_is_masked() -> None:
    """A person may write either form; search counts one."""
    its = strategy(dp_shard=2, zero_stage=1, rank_order=RankOrder.DP_OUTER, cp_kind=CpKind.ULYSSES)
    target = load_target("megatron")
    assert target.violations(its, model(), 2, workload()) == []
    masks = dict(target.masks(candidate_of(its, 2), model_facts(model(), workload()), "outer"))
    assert not masks["duplicate"]


def test_megatron_accepts_less_than_any() -> None:
    its = strategy(pp=2, layers_per_stage=(8, 0))
    assert accepting_targets(its, model(), 2, workload()) == ("any",)


def test_what_megatron_accepts_any_accepts() -> None:
    axes = ((1, 2, 3, 8), (1, 2, 4), (1, 2, 3), (1, 2), (1, 2, 4), (1, 2), (1, 2, 4), (0, 1), (0, 1, 2), (0, 1), (0, 1))
    tp, cp, pp, vpp, ep, etp, dp, cp_kind, zero_stage, rank_order, sequence_parallel = np.meshgrid(*axes, indexing="ij")
    its = candidate(
        tp=tp,
        cp=cp,
        pp=pp,
        vpp=vpp,
        ep=ep,
        etp=etp,
        dp=dp,
        num_microbatches=24 // dp,
        cp_kind=cp_kind,
        zero_stage=zero_stage,
        dp_shard=np.where(zero_stage > 0, dp, 1),
        dp_replicate=np.where(zero_stage > 0, 1, dp),
        rank_order=rank_order,
        sequence_parallel=sequence_parallel,
    )
    for facts in FACTS:
        accepted = {
            name: np.logical_and.reduce(
                [mask for level in (Level.CORE, Level.OUTER) for _, mask in load_target(name).masks(its, facts, level)]
            )
            for name in target_names()
        }
        assert 0 < accepted["megatron"].sum() < accepted["any"].sum()
        assert not (accepted["megatron"] & ~accepted["any"]).any()


def test_warnings_tell_of_padding() -> None:
    told = load_target("megatron").warnings(strategy(tp=2), model(vocab=1000), 2, workload())
    assert [warning.rule for warning in told] == ["R8"]
    assert "24 entries" in told[0].message  # 1,000 to 1,024 = 4 × 256


def test_an_unknown_target_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ValueError, match="did you mean 'megatron'"):
        load_target("megatrom")


def test_targets_tell_what_they_leave_open() -> None:
    every, megatron = load_target("any"), load_target("megatron")
    assert (every.uniform_recompute, every.allow_empty_end_stages) == (False, True)
    assert (megatron.uniform_recompute, megatron.allow_empty_end_stages) == (True, False)


def test_a_rule_is_found_by_its_code_in_any_case() -> None:
    assert [rule.level for rule in load_target("any").rules_named("r2")] == [Level.CORE, Level.OUTER]


def test_a_code_stands_once_per_level() -> None:
    target = load_target("any")
    with pytest.raises(ValueError, match="once per level"):
        replace(target, rules=(target.rules[0], target.rules[0]))


def test_facts_collect_the_dims_of_all_layer_types() -> None:
    facts = model_facts(model(experts=8, dense_layers=2, tied=True), workload())
    assert [dim.name for dim in facts.dims] == ["vocab", "heads", "kv_heads", "ffn", "experts", "expert_ffn"]
    assert (facts.heads, facts.kv_heads, facts.num_experts) == (32, 8, 8)
    assert (facts.num_body_layers, facts.has_embedding, facts.has_head) == (8, True, True)
    assert facts.is_moe and facts.tied_embeddings and not facts.has_latent_attention


def opaque_model(dims: dict[str, Dim]) -> ModelGraph:
    layer = Layer(
        name="block",
        dims=dims,
        tensors={"y": Tensor(name="y", dims=("batch", "seq"))},
        ops=(),
        input=None,
        output="y",
        opaque_parameters=10,
    )
    blocks = (Block(layer_type="block", count=4),)
    return ModelGraph(name="opaque", family="graph", seq_len=96, layer_types={"block": layer}, blocks=blocks)


def test_a_model_without_heads_has_no_ulysses() -> None:
    graph = opaque_model({})
    its = strategy(cp=2, cp_kind=CpKind.ULYSSES, layers_per_stage=(4,))
    broken = load_target("any").violations(its, graph, 2, workload())
    assert [violation.rule for violation in broken] == ["R11"]
    assert "names none" in broken[0].message


def test_a_model_without_edges_has_no_empty_stages() -> None:
    graph = opaque_model({})
    its = strategy(pp=2, layers_per_stage=(4, 0))
    assert [violation.rule for violation in load_target("any").violations(its, graph, 2, workload())] == ["layers"]


def test_shards_are_multiples_of_the_granularity() -> None:
    """48 elements in units of 16 make 3 units: tp 3 divides them, tp 2 divides only the elements."""
    graph = opaque_model({"width": Dim(name="width", size=48, granularity=16, axis=Axis.TP)})
    facts = model_facts(graph, workload())
    (rule,) = load_target("any").rules_named("R7")
    assert rule.holds(candidate(tp=3), facts)
    assert not rule.holds(candidate(tp=2), facts)
    assert (
        rule.message(candidate(tp=2), facts) == "tp = 2 does not divide width = 48 in units of 16; nearest legal: 1, 3"
    )


def test_latents_are_named_where_tp_does_not_divide_them() -> None:
    dims = {name: Dim(name=name, size=size) for name, size in (("q_latent", 12), ("kv_latent", 6), ("rope_size", 3))}
    facts = model_facts(opaque_model(dims), workload())
    assert facts.latent_dims == (("q_latent", 12), ("kv_latent + rope_size", 9))
    (rule,) = load_target("megatron").rules_named("R7b")
    assert rule.holds(candidate(tp=3), facts)
    assert not rule.holds(candidate(tp=2), facts)
    assert not rule.holds(candidate(tp=4), facts)
    (rule,) = load_target("megatron").rules_named("R11b")
    assert rule.holds(candidate(cp=2), facts)
    assert not rule.holds(candidate(cp=2, cp_kind=1), facts)
    assert rule.message(candidate(cp=2, cp_kind=1), facts)


def test_a_strategy_becomes_a_candidate() -> None:
    its: Strategy = strategy(tp=2, pp=2, dp_shard=2, dp_replicate=2, zero_stage=1, rank_order=RankOrder.DP_OUTER)
    row = candidate_of(its, 16)
    assert (row.dp, row.dp_shard, row.dp_replicate, row.rank_order, row.cp_kind) == (4, 2, 2, 1, 0)
    assert row.layers_per_stage == (4, 4)
