"""stacks.yaml: values within reason, each with a source; a wrong name gets a hint."""

from __future__ import annotations

import dataclasses

import pytest

from costmodels.stacks import load_stack, load_stacks


@pytest.mark.parametrize("name", sorted(load_stacks()))
def test_every_figure_has_a_source(name: str) -> None:
    stack = load_stack(name)
    figures = {field.name for field in dataclasses.fields(stack)} - {"name", "sources"}
    assert set(stack.sources) == figures
    assert 0 < stack.launch_floor_forward < stack.launch_floor_backward < 1e-3


def test_launch_floor_of_a_transformer_layer() -> None:
    # 14 ops: (24 + 48) us x 14 = 1 ms a layer and microbatch; eager three times that, as measured at tp 1.
    core, eager = load_stack("megatron-core"), load_stack("torch-eager")
    assert 14 * (core.launch_floor_forward + core.launch_floor_backward) == pytest.approx(1.0e-3, rel=0.01)
    assert 14 * (eager.launch_floor_forward + eager.launch_floor_backward) == pytest.approx(3.0e-3, rel=0.01)


def test_unknown_stack_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"unknown software stack 'megatron'; accepted: .*; nearest: megatron-core"):
        load_stack("megatron")


@pytest.mark.parametrize(
    ("field", "value"), [("headroom", 1.0), ("headroom", -0.1), ("overlap", 1.1), ("overlap", -0.1)]
)
def test_shares_are_between_0_and_1(field: str, value: float) -> None:
    with pytest.raises(ValueError, match="shares between 0 and 1"):
        dataclasses.replace(load_stack("megatron-core"), **{field: value})
