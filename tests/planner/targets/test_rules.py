"""Each rule at, just below and just above its limit."""

from __future__ import annotations

from typing import Any

import pytest

from planner.strategy import Recompute
from planner.targets import DP_OUTER, ULYSSES, Level, ModelFacts, Severity, load_target, model_facts
from tests.planner.targets.models import candidate, model, workload

FULL, SELECTIVE, NONE = Recompute.FULL, Recompute.SELECTIVE, Recompute.NONE


def facts(seq_len: int = 128, global_batch_size: int = 16, **values: Any) -> ModelFacts:
    return model_facts(model(**values), workload(seq_len=seq_len, global_batch_size=global_batch_size))


DENSE = facts()
"""32 heads, 8 key and value heads, ffn 96, 128 tokens, 8 layers, batch 16."""
MOE = facts(experts=12)
"""As dense, with 12 experts of width 48 in each layer."""

CORE: list[tuple[str, str, ModelFacts, dict[str, Any], bool]] = [
    # R1: 2 × 2 × 2 × 2 = 16 devices
    ("any", "R1", DENSE, {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "num_devices": 15}, False),
    ("any", "R1", DENSE, {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "num_devices": 16}, True),
    ("any", "R1", DENSE, {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "num_devices": 17}, False),
    # R2: dp × cp × tp = 12; ep × etp of 5 and 7 do not divide it, 6 does
    ("any", "R2", MOE, {"tp": 2, "cp": 2, "dp": 3, "ep": 5}, False),
    ("any", "R2", MOE, {"tp": 2, "cp": 2, "dp": 3, "ep": 3, "etp": 2}, True),
    ("any", "R2", MOE, {"tp": 2, "cp": 2, "dp": 3, "ep": 7}, False),
    # R4: 12 experts; without experts only ep = etp = 1
    ("any", "R4", MOE, {"ep": 11}, False),
    ("any", "R4", MOE, {"ep": 12}, True),
    ("any", "R4", MOE, {"ep": 13}, False),
    ("any", "R4", MOE, {"ep": 24}, False),
    ("any", "R4", DENSE, {}, True),
    ("any", "R4", DENSE, {"ep": 2}, False),
    ("any", "R4", DENSE, {"etp": 2}, False),
    # R5: 32 heads
    ("any", "R5", DENSE, {"tp": 31}, False),
    ("any", "R5", DENSE, {"tp": 32}, True),
    ("any", "R5", DENSE, {"tp": 33}, False),
    ("any", "R5", DENSE, {"tp": 64}, False),
    # R6: 8 heads of keys and values are split over up to 8 ranks and copied to multiples of 8
    ("any", "R6", DENSE, {"tp": 7}, False),
    ("any", "R6", DENSE, {"tp": 8}, True),
    ("any", "R6", DENSE, {"tp": 9}, False),
    ("any", "R6", DENSE, {"tp": 15}, False),
    ("any", "R6", DENSE, {"tp": 16}, True),
    ("any", "R6", DENSE, {"tp": 17}, False),
    # R7: ffn 96, expert_ffn 48; the padded vocabulary of 1,000 never objects
    ("any", "R7", DENSE, {"tp": 31}, False),
    ("any", "R7", DENSE, {"tp": 32}, True),
    ("any", "R7", DENSE, {"tp": 33}, False),
    ("any", "R7", MOE, {"tp": 7}, True),
    ("any", "R7", MOE, {"etp": 15}, False),
    ("any", "R7", MOE, {"etp": 16}, True),
    ("any", "R7", MOE, {"etp": 17}, False),
    # R16: whole groups of pp microbatches, and a pipeline
    ("any", "R16", DENSE, {"pp": 4, "vpp": 2, "num_microbatches": 7}, False),
    ("any", "R16", DENSE, {"pp": 4, "vpp": 2, "num_microbatches": 8}, True),
    ("any", "R16", DENSE, {"pp": 4, "vpp": 2, "num_microbatches": 9}, False),
    ("any", "R16", DENSE, {"pp": 4, "vpp": 2, "num_microbatches": 2}, False),
    ("any", "R16", DENSE, {"pp": 4, "vpp": 1, "num_microbatches": 7}, True),
    ("any", "R16", DENSE, {"pp": 1, "vpp": 2, "num_microbatches": 8}, False),
    ("any", "R16", DENSE, {"pp": 2, "vpp": 2, "num_microbatches": 8}, True),
    # R18: 2 × 2 × 4 = 16
    ("any", "R18", DENSE, {"microbatch_size": 2, "dp": 2, "num_microbatches": 3}, False),
    ("any", "R18", DENSE, {"microbatch_size": 2, "dp": 2, "num_microbatches": 4}, True),
    ("any", "R18", DENSE, {"microbatch_size": 2, "dp": 2, "num_microbatches": 5}, False),
    # stages: 8 layers, embedding and head make 10; Megatron wants a decoder layer in each
    ("any", "stages", DENSE, {"pp": 9}, True),
    ("any", "stages", DENSE, {"pp": 5, "vpp": 2}, True),
    ("any", "stages", DENSE, {"pp": 11}, False),
    ("megatron", "stages", DENSE, {"pp": 7}, True),
    ("megatron", "stages", DENSE, {"pp": 4, "vpp": 2}, True),
    ("megatron", "stages", DENSE, {"pp": 9}, False),
    # R10 of Megatron looks at no kind: 2 × cp divides 128
    ("megatron", "R10", DENSE, {"cp": 63}, False),
    ("megatron", "R10", DENSE, {"cp": 64}, True),
    ("megatron", "R10", DENSE, {"cp": 65}, False),
    ("megatron", "R10", DENSE, {"cp": 128}, False),
    ("megatron", "R10", facts(seq_len=127), {"cp": 1}, True),
]

OUTER: list[tuple[str, str, ModelFacts, dict[str, Any], bool]] = [
    # R2 with sharding: dp_shard × cp × tp of 8 holds 8 experts' ranks, of 4 and 12 does not
    ("any", "R2", MOE, {"tp": 2, "dp": 12, "ep": 8, "zero_stage": 1, "dp_shard": 2}, False),
    ("any", "R2", MOE, {"tp": 2, "dp": 12, "ep": 8, "zero_stage": 1, "dp_shard": 4}, True),
    ("any", "R2", MOE, {"tp": 2, "dp": 12, "ep": 8, "zero_stage": 1, "dp_shard": 6}, False),
    ("any", "R2", MOE, {"tp": 2, "dp": 12, "ep": 8}, True),
    # R9: tp × cp divides 128, if the sequence is split over tp at all
    ("any", "R9", DENSE, {"tp": 7, "cp": 9}, False),
    ("any", "R9", DENSE, {"tp": 8, "cp": 8}, True),
    ("any", "R9", DENSE, {"tp": 5, "cp": 13}, False),
    ("any", "R9", DENSE, {"tp": 7, "cp": 9, "sequence_parallel": 0}, True),
    ("any", "R9", DENSE, {"tp": 1, "cp": 9}, True),
    # R10: 2 × cp divides 128 in a ring
    ("any", "R10", DENSE, {"cp": 63}, False),
    ("any", "R10", DENSE, {"cp": 64}, True),
    ("any", "R10", DENSE, {"cp": 65}, False),
    ("any", "R10", DENSE, {"cp": 128}, False),
    ("any", "R10", DENSE, {"cp": 128, "cp_kind": ULYSSES}, True),
    # R11: tp × cp divides 32 heads, and divides or is a multiple of 8 key and value heads
    ("any", "R11", DENSE, {"tp": 2, "cp": 15, "cp_kind": ULYSSES}, False),
    ("any", "R11", DENSE, {"tp": 2, "cp": 16, "cp_kind": ULYSSES}, True),
    ("any", "R11", DENSE, {"tp": 2, "cp": 17, "cp_kind": ULYSSES}, False),
    ("any", "R11", DENSE, {"tp": 2, "cp": 32, "cp_kind": ULYSSES}, False),
    ("any", "R11", DENSE, {"tp": 2, "cp": 32}, True),
    ("any", "R11", facts(heads=36, kv_heads=6), {"cp": 4, "cp_kind": ULYSSES}, False),
    ("any", "R11", facts(heads=36, kv_heads=6, seq_len=126), {"cp": 6, "cp_kind": ULYSSES}, True),
    ("any", "R11", facts(seq_len=124), {"cp": 4, "cp_kind": ULYSSES}, True),
    ("any", "R11", facts(seq_len=124), {"cp": 8, "cp_kind": ULYSSES}, False),
    # R11 of Megatron: each rank has heads of its own, of keys and values too
    ("megatron", "R11", DENSE, {"tp": 2, "cp": 3, "cp_kind": ULYSSES}, False),
    ("megatron", "R11", DENSE, {"tp": 2, "cp": 4, "cp_kind": ULYSSES}, True),
    ("megatron", "R11", DENSE, {"tp": 2, "cp": 5, "cp_kind": ULYSSES}, False),
    ("megatron", "R11", DENSE, {"tp": 2, "cp": 8, "cp_kind": ULYSSES}, False),
    # window: Ulysses only
    ("megatron", "window", facts(window=16), {"cp": 1}, True),
    ("megatron", "window", facts(window=16), {"cp": 2}, False),
    ("megatron", "window", facts(window=16), {"cp": 2, "cp_kind": ULYSSES}, True),
    ("megatron", "window", DENSE, {"cp": 2}, True),
    # R25
    ("any", "R25", MOE, {"tp": 1, "sequence_parallel": 0}, True),
    ("any", "R25", MOE, {"tp": 2, "sequence_parallel": 0}, False),
    ("any", "R25", MOE, {"tp": 2, "sequence_parallel": 1}, True),
    ("any", "R25", DENSE, {"tp": 2, "sequence_parallel": 0}, True),
    # zero
    ("any", "zero", DENSE, {"dp": 4}, True),
    ("any", "zero", DENSE, {"dp": 4, "dp_shard": 2}, False),
    ("any", "zero", DENSE, {"dp": 4, "dp_shard": 2, "zero_stage": 1}, True),
    ("any", "zero", DENSE, {"dp": 4, "dp_shard": 4, "zero_stage": 3}, True),
    ("any", "zero", DENSE, {"dp": 4, "dp_shard": 1, "zero_stage": 1}, False),
    ("any", "zero", DENSE, {"dp": 4, "cp": 2, "dp_shard": 1, "zero_stage": 1}, True),
    ("any", "zero", DENSE, {"dp": 4, "dp_shard": 2, "dp_replicate": 1, "zero_stage": 1}, False),
    ("any", "zero", DENSE, {"dp": 4, "dp_shard": 2, "dp_replicate": 3, "zero_stage": 1}, False),
    # order: inside a stage, ep × etp = tp × cp = 4
    ("any", "order", MOE, {"tp": 2, "cp": 2, "pp": 2, "dp": 3, "ep": 3, "rank_order": DP_OUTER}, False),
    ("any", "order", MOE, {"tp": 2, "cp": 2, "pp": 2, "dp": 3, "ep": 4, "rank_order": DP_OUTER}, True),
    ("any", "order", MOE, {"tp": 2, "cp": 2, "pp": 2, "dp": 3, "ep": 2, "etp": 2, "rank_order": DP_OUTER}, True),
    ("any", "order", MOE, {"tp": 2, "cp": 2, "pp": 2, "dp": 3, "ep": 6, "rank_order": DP_OUTER}, False),
    ("any", "order", MOE, {"tp": 2, "cp": 2, "pp": 2, "dp": 3, "ep": 6}, True),
    ("any", "order", MOE, {"tp": 2, "cp": 2, "pp": 1, "dp": 3, "ep": 6, "rank_order": DP_OUTER}, True),
    ("any", "order", DENSE, {"tp": 2, "cp": 2, "pp": 2, "dp": 3, "rank_order": DP_OUTER}, True),
    ("megatron", "order", DENSE, {"tp": 2, "cp": 2, "pp": 2, "dp": 3, "rank_order": DP_OUTER}, False),
    ("megatron", "order", DENSE, {"tp": 2, "cp": 1, "pp": 2, "dp": 3, "rank_order": DP_OUTER}, True),
    ("megatron", "order", MOE, {"tp": 2, "cp": 2, "pp": 2, "dp": 3, "ep": 4, "rank_order": DP_OUTER}, True),
    # duplicate
    ("any", "duplicate", DENSE, {"pp": 1, "dp": 2, "rank_order": DP_OUTER}, False),
    ("any", "duplicate", DENSE, {"pp": 2, "dp": 1, "rank_order": DP_OUTER}, False),
    ("any", "duplicate", DENSE, {"pp": 2, "dp": 2, "rank_order": DP_OUTER}, True),
    ("any", "duplicate", DENSE, {"cp": 1, "cp_kind": ULYSSES}, False),
    ("any", "duplicate", DENSE, {"cp": 2, "cp_kind": ULYSSES}, True),
    # R19
    ("megatron", "R19", DENSE, {"pp": 2, "zero_stage": 1}, True),
    ("megatron", "R19", DENSE, {"pp": 2, "zero_stage": 2}, False),
    ("megatron", "R19", DENSE, {"pp": 1, "zero_stage": 3}, True),
    # R20: the experts' data-parallel size is 12 × 2 / 8 = 3
    ("megatron", "R20", MOE, {"tp": 2, "dp": 12, "ep": 8, "zero_stage": 1, "dp_shard": 6}, False),
    ("megatron", "R20", MOE, {"tp": 2, "dp": 12, "ep": 8, "zero_stage": 1, "dp_shard": 4}, True),
    ("megatron", "R20", MOE, {"tp": 2, "dp": 12, "ep": 8, "zero_stage": 1, "dp_shard": 3}, False),
]

INNER: list[tuple[str, str, ModelFacts, dict[str, Any], bool]] = [
    ("any", "layers", DENSE, {"pp": 2, "layers_per_stage": (4, 3)}, False),
    ("any", "layers", DENSE, {"pp": 2, "layers_per_stage": (4, 4)}, True),
    ("any", "layers", DENSE, {"pp": 2, "layers_per_stage": (4, 5)}, False),
    ("any", "layers", DENSE, {"pp": 2, "layers_per_stage": (8,)}, False),
    ("any", "layers", DENSE, {"pp": 3, "layers_per_stage": (9, 0, -1)}, False),
    ("any", "layers", DENSE, {"pp": 3, "layers_per_stage": (0, 8, 0)}, True),
    ("any", "layers", DENSE, {"pp": 3, "layers_per_stage": (4, 0, 4)}, False),
    ("megatron", "R14", DENSE, {"pp": 3, "layers_per_stage": (0, 8, 0)}, False),
    ("megatron", "R14", DENSE, {"pp": 3, "layers_per_stage": (1, 6, 1)}, True),
    ("any", "recompute", DENSE, {"layers_per_stage": (8,), "recompute": FULL, "recompute_layers": (-1,)}, False),
    ("any", "recompute", DENSE, {"layers_per_stage": (8,), "recompute": FULL, "recompute_layers": (0,)}, True),
    ("any", "recompute", DENSE, {"layers_per_stage": (8,), "recompute": FULL, "recompute_layers": (8,)}, True),
    ("any", "recompute", DENSE, {"layers_per_stage": (8,), "recompute": FULL, "recompute_layers": (9,)}, False),
    ("any", "recompute", DENSE, {"layers_per_stage": (8,), "recompute": NONE, "recompute_layers": (1,)}, False),
    ("any", "recompute", DENSE, {"layers_per_stage": (8,), "recompute_layers": (0, 0)}, False),
    # R21: block recomputes min(3, layers) of each virtual stage
    *(
        ("megatron", "R21", DENSE, {"pp": 3, "layers_per_stage": (3, 3, 2), "recompute": kind, **counts}, holds)
        for kind, counts, holds in (
            (FULL, {"recompute_layers": (3, 3, 2)}, True),
            (FULL, {"recompute_layers": (2, 2, 2)}, True),
            (FULL, {"recompute_layers": (1, 1, 1)}, True),
            (FULL, {"recompute_layers": (0, 0, 0)}, True),
            (FULL, {"recompute_layers": (3, 3, 1)}, False),
            (FULL, {"recompute_layers": (1, 0, 0)}, False),
            (SELECTIVE, {"recompute_layers": (3, 3, 2)}, True),
            (SELECTIVE, {"recompute_layers": (2, 2, 2)}, False),
            (NONE, {"recompute_layers": (0, 0, 0)}, True),
        )
    ),
]

WARNINGS: list[tuple[str, str, ModelFacts, dict[str, Any], bool]] = [
    # R8: 1,000 entries are padded to 1,024 = 128 × 8
    ("megatron", "R8", facts(vocab=1023), {"tp": 8}, False),
    ("megatron", "R8", facts(vocab=1024), {"tp": 8}, True),
    ("megatron", "R8", facts(vocab=1025), {"tp": 8}, False),
    ("megatron", "R28", facts(tied=True), {"pp": 1}, True),
    ("megatron", "R28", facts(tied=True), {"pp": 2}, False),
    ("megatron", "R28", DENSE, {"pp": 2}, True),
]


def check(level: Level, case: tuple[str, str, ModelFacts, dict[str, Any], bool]) -> None:
    target, code, its_facts, values, expected = case
    (rule,) = (rule for rule in load_target(target).rules_of(level) if rule.code == code)
    its = candidate(**values)
    assert bool(rule.holds(its, its_facts)) is expected
    if not expected:
        message = rule.message(its, its_facts)
        assert message
        assert "\n" not in message


@pytest.mark.parametrize("case", CORE, ids=str)
def test_core_rule_at_its_limit(case: tuple[str, str, ModelFacts, dict[str, Any], bool]) -> None:
    check(Level.CORE, case)


@pytest.mark.parametrize("case", OUTER, ids=str)
def test_outer_rule_at_its_limit(case: tuple[str, str, ModelFacts, dict[str, Any], bool]) -> None:
    check(Level.OUTER, case)


@pytest.mark.parametrize("case", INNER, ids=str)
def test_inner_rule_at_its_limit(case: tuple[str, str, ModelFacts, dict[str, Any], bool]) -> None:
    check(Level.INNER, case)


@pytest.mark.parametrize("case", WARNINGS, ids=str)
def test_warning_at_its_limit(case: tuple[str, str, ModelFacts, dict[str, Any], bool]) -> None:
    check(Level.CORE, case)


def test_every_rule_has_a_case_that_holds_and_one_that_does_not() -> None:
    cases = {Level.CORE: [*CORE, *WARNINGS], Level.OUTER: OUTER}
    cases[Level.INNER] = INNER
    seen = {(level, code, expected) for level, table in cases.items() for _, code, _, _, expected in table}
    for name in ("any", "megatron"):
        for rule in load_target(name).rules:
            if rule.code in ("R7b", "R11b"):  # see test_facts: they need latent attention
                continue
            assert {(rule.level, rule.code, True), (rule.level, rule.code, False)} <= seen, rule.code


@pytest.mark.parametrize(
    ("target", "code", "its_facts", "values", "message"),
    [
        ("any", "R5", DENSE, {"tp": 6}, "tp = 6 does not divide heads = 32; nearest legal: 4, 8"),
        (
            "any",
            "R6",
            DENSE,
            {"tp": 12},
            "tp = 12 neither divides nor is a multiple of kv_heads = 8; nearest legal: 8, 16",
        ),
        ("any", "R4", MOE, {"ep": 5}, "ep = 5 does not divide experts = 12; nearest legal: 4, 6"),
        ("any", "R7", MOE, {"etp": 9}, "etp = 9 does not divide expert_ffn = 48; nearest legal: 8, 12"),
        (
            "any",
            "R1",
            DENSE,
            {"tp": 2, "cp": 1, "pp": 2, "dp": 3, "num_devices": 16},
            "tp × cp × pp × dp = 2 × 1 × 2 × 3 = 12, but there are 16 devices; with these tp, cp and pp, dp must be 4",
        ),
        (
            "any",
            "R1",
            DENSE,
            {"tp": 3, "cp": 1, "pp": 2, "dp": 3, "num_devices": 16},
            (
                "tp × cp × pp × dp = 3 × 1 × 2 × 3 = 18, but there are 16 devices; tp × cp × pp = 6 must divide them "
                "(nearest legal: 4, 8)"
            ),
        ),
        (
            "any",
            "R18",
            DENSE,
            {"microbatch_size": 3, "dp": 1, "num_microbatches": 5},
            (
                "microbatch_size × dp × num_microbatches = 3 × 1 × 5 = 15, but global_batch_size = 16; "
                "microbatch_size × dp = 3 must divide it (nearest legal: 2, 4)"
            ),
        ),
        (
            "megatron",
            "R21",
            DENSE,
            {"pp": 2, "layers_per_stage": (4, 4), "recompute": FULL, "recompute_layers": (3, 1)},
            (
                "recompute_layers = (3, 1), but full recomputation has one number of layers for all virtual stages; "
                "nearest legal: (3, 3)"
            ),
        ),
    ],
)
def test_message_names_values_and_the_nearest_legal_ones(
    target: str, code: str, its_facts: ModelFacts, values: dict[str, Any], message: str
) -> None:
    its = candidate(**values)
    (rule,) = (rule for rule in load_target(target).rules_named(code) if not rule.holds(its, its_facts))
    assert rule.message(its, its_facts) == message


def test_only_duplicates_and_warnings_are_not_errors() -> None:
    mild = {rule.code for rule in load_target("megatron").rules if rule.severity is not Severity.ERROR}
    assert mild == {"duplicate", "R8", "R7b", "R11b", "R28"}
