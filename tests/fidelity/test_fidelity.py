"""Predictions with nothing fitted, beside published step times and memory; ``python -m tests.fidelity`` prints them.

Bounds are generous: they catch a wrong formula or unit, not a constant that a calibration would move. Classes:

- ``dense``: Megatron-LM on A100 and H100, 22B to 1T, and the Llama 3 report. All errors are on the fast side, 12 % on
  average. Known to be missing: unfused attention computes and moves masked scores too, and passes over the scores
  several times (3 to 9 % of these steps at 13 bytes a score). Megatron-Turing NLG took a quarter longer per sequence
  than Megatron-LM's 530B on the same layout, which no term here tells.
- ``b200``: SimuMax's single node, layers cut, nothing overlapped. Products reach 0.49 of the peak in a fit of these
  rows, and 0.66 in isolation (catalog).
- ``moe``: two rows are near. Dispatch without DeepEP and the launching of many small kernels cost more than modelled
  (fast side, up to 4 times; a reading of the figures, no trace was seen). DeepEP sends a token once to each node, we
  once for each expert (slow side).
"""

from __future__ import annotations

import sys
from statistics import mean, median

import pytest

from tests.fidelity.published import Point, errors, memory_points, table, time_points


def time_of(name: str) -> Point:
    return next(point for point in time_points() if point.run.name == name)


def test_every_row_has_its_source_and_a_class() -> None:
    sys.stdout.write(table(time_points()) + table(memory_points()))  # shown with -s, and where a test fails
    for point in (*time_points(), *memory_points()):
        assert point.run.row["source"]
    assert {point.run.kind for point in time_points()} == {"dense", "b200", "moe"}
    assert {point.run.kind for point in memory_points()} == {"states", "activations", "allocated"}


def test_step_times_of_mature_dense_runs() -> None:
    found = errors(time_points(), "dense")
    assert len(found) == 24
    assert max(found) < 0.40, table(time_points())
    assert median(found) < 0.25
    assert mean(found) < 0.18  # 11.8 % when written


def test_step_times_of_one_b200_node() -> None:
    found = errors(time_points(), "b200")
    assert max(found) < 0.50, table(time_points())
    assert median(found) < 0.40


def test_step_times_of_experts_are_of_the_right_order() -> None:
    found = errors(time_points(), "moe")
    assert max(found) < 0.80, table(time_points())
    assert abs(time_of("nemo-automodel-0005").error) < 0.40  # DeepSeek-V3 on 256 H100
    assert abs(time_of("moe-modelzoo-0001").error) < 0.40  # Qwen3-235B on 256 H100, DeepEP


@pytest.mark.parametrize("model", ["22b", "175b", "530b", "1t"])
def test_sequence_parallelism_with_selective_recomputation_pays_as_published(model: str) -> None:
    names = {
        "22b": ("korthikanti-22b-full", "korthikanti-22b-selective"),
        "175b": ("korthikanti-0003", "korthikanti-0004"),
        "530b": ("korthikanti-0005", "korthikanti-0006"),
        "1t": ("korthikanti-0007", "korthikanti-0008"),
    }[model]
    full, selective = (time_of(name) for name in names)
    measured = full.run.measured / selective.run.measured
    assert 1.25 < measured < 1.35
    assert full.predicted / selective.predicted == pytest.approx(measured, rel=0.15)


@pytest.mark.parametrize(
    ("few", "many"),
    [
        ("megatron-sc21-0027", "megatron-sc21-0028"),
        ("megatron-sc21-0030", "megatron-sc21-0032"),
        ("mt-nlg-0001", "mt-nlg-0003"),
    ],
)
def test_more_data_parallelism_scales_as_published(few: str, many: str) -> None:
    one, other = time_of(few), time_of(many)
    assert other.predicted / one.predicted == pytest.approx(other.run.measured / one.run.measured, rel=0.05)


def test_states_of_the_first_stage() -> None:
    # The paper leaves the embedding out: 2 to 11 % of the first stage, most where a stage has two layers.
    for point in memory_points():
        if point.run.kind == "states":
            assert 0 < point.error < 0.15, point.run.name


def test_activations_of_the_first_stage() -> None:
    # None: the same formula; ours adds statistics of norms and the embedding's dropout mask. Full: that mask is a fifth
    # of what is kept. Selective: the paper recomputes core attention alone, we norms too (4 of 34 bytes, whole on each
    # rank without sequence parallelism), and we take the output of attention for freed, which it is not (2 of 34).
    for point in memory_points():
        if point.run.kind == "activations":
            low, high = {"none": (-0.01, 0.05), "full": (0.0, 0.30), "selective": (-0.35, 0.0)}[
                point.run.row["recompute"]
            ]
            assert low < point.error < high, point.run.name


def test_allocated_memory_of_one_b200_node() -> None:
    found = errors(memory_points(), "allocated")
    assert len(found) == 9
    assert max(found) < 0.10, table(memory_points())
    assert mean(found) < 0.05
