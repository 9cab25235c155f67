"""The report: short, whole, and true to the plan."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware import read_cluster
from planner.plan import Plan, Proof, StageMemory, Subtree, Termination
from planner.readers import read_model
from planner.report import estimate_json, estimate_text, search_text
from planner.report.layout import BAR, WIDTH, bar, paragraph, render, shares, table
from planner.report.memory import MAX_ROWS, TERMS, rank_groups
from planner.report.summary import degrees_text, recompute_text
from planner.solvers.estimate import estimate, even_layers
from planner.solvers.result import Alternative, Infeasibility, SearchResult
from planner.strategy import CpKind, Recompute, Strategy
from planner.targets import Violation
from planner.workload import Workload

PROOF = Proof(
    termination=Termination.OPTIMAL,
    lower_bound=1.0,
    gap=0.0,
    scope="within the cost model; " + "a long story " * 20,
    space_size=100,
    num_bounded=90,
    num_evaluated=5,
    frontier=(
        Subtree(name="bound (B0)", size=50, lower_bound=2.0),
        Subtree(name="not measured", size=10, lower_bound=None),
        Subtree(name="rule R5", size=30, lower_bound=None),
        Subtree(name="rule R16", size=10, lower_bound=None),
    ),
    reproducible=True,
)


def make_plan(pp: int, vpp: int = 1) -> Plan:
    layers = even_layers(126, pp, vpp)
    strategy = Strategy(
        tp=8,
        pp=pp,
        vpp=vpp,
        dp_shard=2,
        zero_stage=1,
        num_microbatches=2 * pp,
        recompute=Recompute.FULL,
        recompute_layers=tuple(min(1, count) for count in layers),
        layers_per_stage=layers,
    )
    return estimate(
        read_model("llama-3.1-405b"),
        read_cluster(f"dgx-h100*{2 * pp}"),
        strategy,
        workload=Workload(global_batch_size=4 * pp, seq_len=8192),
    )


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(pp=64)


def make_result(plan: Plan | None, proof: Proof = PROOF, why: Infeasibility | None = None) -> SearchResult:
    others = () if plan is None else (Alternative(plan=plan, ratio=1.01, reason="bubble +1.0%"),) * 4
    return SearchResult(
        plan=plan, proof=proof, alternatives=others, infeasibility=why, interrupted=False, search_time=1.5
    )


def test_report_of_a_long_pipeline_is_short_and_whole(plan: Plan) -> None:
    text = search_text(make_result(replace(plan, proof=PROOF)))
    lines = text.splitlines()
    assert len(lines) <= 45
    assert "…" not in text and "\x1b" not in text
    assert all(line == line.rstrip() for line in lines)


def test_report_names_what_matters(plan: Plan) -> None:
    text = search_text(make_result(replace(plan, proof=PROOF)))
    for part in (
        "optimal  tp 8 · pp 64 · dp 2 · zero 1",
        "MFU",
        "tokens/s per device",
        "nothing in the space is faster than",
        "100 candidates, 90 bounds, 5 simulated",
        "rule                    40  40.0%  R5 30, R16 10",
        "not measured            10  10.0%",
        "B0 50 from 2.000 s",
        "a long story",
        "bubble +1.0%",
        "Accepted by any, megatron",
        f"Weakest figures it rests on: {plan.provenance['weakest']}",
    ):
        assert part in text, part


def test_gap_is_said_where_a_limit_stopped_the_search(plan: Plan) -> None:
    proof = replace(PROOF, termination=Termination.FEASIBLE, lower_bound=0.5, gap=0.25)
    text = search_text(make_result(replace(plan, proof=proof), proof))
    assert "best so far" in text and "faster than 500 ms, gap 25.00%" in text


def test_infeasible_report_is_a_proof_in_prose(plan: Plan) -> None:
    proof = replace(PROOF, termination=Termination.INFEASIBLE, lower_bound=None, gap=None)
    why = Infeasibility(
        message="No plan fits. Rank 0 needs 90 GiB.",
        nearest=plan,
        missing=2**30,
        budget=2**36,
        fits_with_memory=2**37,
        fits_with_headroom=None,
        fits_with_devices=16,
        suggestion="It would fit with 16 devices.",
    )
    text = search_text(make_result(None, proof, why))
    assert text.startswith("No plan fits. Rank 0 needs 90 GiB.\nIt would fit with 16 devices.\n")
    assert "Nearest miss" in text and "infeasible: 100 candidates" in text


def test_estimate_tells_what_it_breaks(plan: Plan) -> None:
    text = estimate_text(plan, [Violation(rule="R5", message="heads")])
    assert "breaks the rules" in text and "  R5: heads" in text
    full = replace(plan, prediction=replace(plan.prediction, budget=1))
    assert "does not fit" in estimate_text(full) and "fits" in estimate_text(plan)
    assert estimate_json(full, [])["fits"] is False


def test_colours_are_escapes_around_the_same_text(plan: Plan) -> None:
    coloured = estimate_text(plan, colour=True)
    assert "\x1b[" in coloured and coloured != estimate_text(plan)


# Memory


def with_memory(plan: Plan, *totals: int) -> Plan:
    stages = tuple(
        StageMemory(
            rank=rank, weights=0, gradients=0, optimizer=0, activations=total, transient=0, gathered=0, runtime=0
        )
        for rank, total in enumerate(totals)
    )
    return replace(plan, prediction=replace(plan.prediction, memory_by_stage=stages))


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (16, 1), (64, 1), (16, 4), (8, 15)])
def test_groups_of_ranks_are_few_and_cover_each_rank_once(pp: int, vpp: int) -> None:
    made = make_plan(pp, vpp)
    groups = rank_groups(made)
    assert len(groups) <= MAX_ROWS
    assert [rank for group in groups for rank in range(group.first, group.last + 1)] == list(range(pp))
    assert max(group.fullest.total for group in groups) == made.prediction.peak_memory
    assert "embedding" in groups[0].layers and "head" in groups[-1].layers


def test_group_shows_its_fullest_rank(plan: Plan) -> None:
    totals = [1, *range(2, 64), 1]
    groups = rank_groups(with_memory(plan, *totals))
    for group in groups:
        assert group.fullest.total == max(totals[group.first : group.last + 1])


def test_ranks_that_all_differ_are_joined_in_the_middle(plan: Plan) -> None:
    layers = (2,) * 64
    uneven = tuple(rank % 2 for rank in range(64))
    strategy = replace(plan.strategy, layers_per_stage=layers, recompute_layers=uneven)
    groups = rank_groups(replace(plan, strategy=strategy))
    assert len(groups) == MAX_ROWS
    assert [group.ranks for group in groups[:4]] == ["0", "1", "2", "3"]
    assert groups[4].ranks == "4-59" and groups[4].recompute.endswith("...")


def test_largest_term_is_marked_and_terms_without_bytes_are_left_out(plan: Plan) -> None:
    text = estimate_text(with_memory(plan, *[2**30] * 64))
    header, row, *_ = (line for line in text.splitlines() if line.startswith(("rank", "0 ")))
    assert "1.00*" in row
    assert "activations" in header and not any(name in header for name in TERMS if name != "activations")


# Words and layout


def test_degrees_and_recomputation_in_words() -> None:
    assert degrees_text(Strategy()) == "dp 1"
    strategy = Strategy(
        tp=2,
        cp=2,
        cp_kind=CpKind.ULYSSES,
        pp=2,
        vpp=2,
        dp_shard=4,
        dp_replicate=2,
        zero_stage=3,
        layers_per_stage=(2, 2, 2, 2),
        recompute=Recompute.FULL,
        recompute_layers=(2, 2, 2, 2),
    )
    assert degrees_text(strategy) == "tp 2 · cp 2 (ulysses) · pp 2 · vpp 2 · dp 8 · zero 3 over 4 of 8"
    assert recompute_text(strategy) == "full recomputation of all layers"
    assert recompute_text(replace(strategy, recompute_layers=(1, 0, 0, 0))) == "full recomputation of 1 of 8 layers"
    assert recompute_text(replace(strategy, recompute_layers=(0, 0, 0, 0))) == "no recomputation"


@given(st.lists(st.floats(min_value=0, max_value=1e6), min_size=1, max_size=10))
def test_shares_add_up(values: list[float]) -> None:
    total = math.fsum(values)
    said = [float(text.removesuffix(" %")) for text in shares(values, total)]
    assert math.fsum(said) == pytest.approx(100 if total > 0 else 0, abs=1e-6)
    if total > 0:
        assert all(abs(share - value / total * 100) <= 0.1 + 1e-9 for share, value in zip(said, values, strict=True))


@pytest.mark.parametrize(("share", "filled", "end"), [(0, 0, ""), (0.5, BAR // 2, ""), (1, BAR, ""), (7, BAR, ">")])
def test_bar_fills_with_the_share(share: float, filled: int, end: str) -> None:
    assert bar(share).plain == "█" * filled + "░" * (BAR - filled) + end


def test_wide_tables_are_never_cropped() -> None:
    made = table("a", *["number"] * 30)
    made.add_row("x" * 200, *["123456789"] * 30)
    text = render(made, colour=False)
    assert text.count("123456789") == 30 and "x" * 200 in text


words = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=130)


@given(st.lists(words, max_size=40).map(" ".join))
def test_paragraphs_keep_their_words(text: str) -> None:
    assert paragraph(text).plain.split() == text.split()


def test_paragraphs_are_wrapped_and_markup_is_text() -> None:
    assert max(map(len, paragraph("word " * 100).plain.splitlines())) <= WIDTH
    assert render(paragraph("[red]x[/red] :smile:"), colour=False) == "[red]x[/red] :smile:\n"
