"""Each benchmark runs once in its smallest form, so that it stays alive; nothing is timed here."""

from __future__ import annotations

import importlib
import math

import pytest

from tests.bench.__main__ import find_benchmarks
from tests.bench.measure import Row, is_met


@pytest.mark.parametrize("name", find_benchmarks())
def test_benchmark_runs(name: str) -> None:
    rows = importlib.import_module(f"tests.bench.bench_{name}").run(smoke=True)
    assert rows
    for row in rows:
        assert row.keys() == Row.__annotations__.keys()
        assert math.isfinite(row["value"])
        is_met(row)  # refuses a target that it cannot read
    assert len({row["name"] for row in rows}) == len(rows)


def test_target_is_met_on_its_limit() -> None:
    row = Row(name="x", value=0.5, unit="s", target="<= 0.5", note="")
    assert is_met(row) is True
    assert is_met({**row, "target": ">= 5e6"}) is False
    assert is_met({**row, "target": None}) is None
