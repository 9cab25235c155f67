"""kernels.yaml: every kind of op has a kernel, every kernel a source."""

from __future__ import annotations

import pytest

from costmodels.kernels import Engine, kernel_for, load_kernels
from planner.graph import OpKind
from planner.workload import Attention


@pytest.mark.parametrize("attention", list(Attention))
@pytest.mark.parametrize("kind", list(OpKind))
def test_every_op_has_a_kernel(kind: OpKind, attention: Attention) -> None:
    kernel = kernel_for(kind.value, attention.value)
    assert kernel.backward >= 0
    assert kernel.source


def test_nothing_else_is_in_the_table() -> None:
    known = {kind.value for kind in OpKind} - {"attention"} | {f"attention.{backend.value}" for backend in Attention}
    assert set(load_kernels()) == known


def test_products_keep_their_input_and_cost_twice_backward() -> None:
    for name in ("linear", "grouped_linear"):
        kernel = load_kernels()[name]
        assert (kernel.engine, kernel.saves_inputs, kernel.saves_output, kernel.backward) == (
            Engine.GEMM,
            True,
            False,
            2,
        )


def test_flash_attention_keeps_its_output_and_no_scores() -> None:
    flash, unfused = kernel_for("attention", "flash"), kernel_for("attention", "unfused")
    assert (flash.saves_output, flash.score_bytes, flash.row_bytes) == (True, 0, 4)
    assert (unfused.saves_output, unfused.score_bytes, unfused.row_bytes) == (False, 5, 0)
    assert flash.backward == 5 / 2  # products backward over products forward
