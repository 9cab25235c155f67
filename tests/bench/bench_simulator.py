"""How fast the simulator is: building an order, one plan over all actions, one plan by powers, many plans at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from planner.order import Order, build_order, compile_order
from planner.schedule import ScheduleName
from planner.simulator import simulate, simulate_batch
from planner.simulator_paths import critical_path
from tests.bench.measure import Row, cpu_time, median_of

SHAPES = [
    (ScheduleName.ONE_F_ONE_B, 8, 1, 512),
    (ScheduleName.INTERLEAVED_ONE_F_ONE_B, 16, 6, 192),
]
SMALL_SHAPES = [(ScheduleName.ONE_F_ONE_B, 2, 1, 8), (ScheduleName.INTERLEAVED_ONE_F_ONE_B, 2, 2, 8)]
BATCHES = (25, 256)


def uneven_durations(num_stages: int, num_plans: int) -> tuple[NDArray[np.int64], ...]:
    """Ticks of stages that differ by 10 %, with links of a tenth of a forward."""
    rng = np.random.default_rng(0)
    forward = 10**10 + rng.integers(10**9, size=(num_plans, num_stages))
    links = rng.integers(10**9, size=(2, num_plans, num_stages - 1))
    return forward, 2 * forward, links[0], links[1]


def measure(shape: tuple[ScheduleName, int, int, int], repeats: int, calls: int) -> list[Row]:
    """All figures of one shape; each measurement makes several calls, so that the clock's step does not matter."""
    order = compile_order(*shape)
    label = "{} p={} v={} m={}".format(*shape)
    note = f"median of {repeats}, {order.num_actions} actions"

    def seconds(action: Callable[[], object]) -> float:
        return max(1e-9, median_of(lambda: cpu_time(lambda: [action() for _ in range(calls)]), repeats) / calls)

    plan = [values[0] for values in uneven_durations(order.num_stages, 1)]
    rows = [
        Row(
            name=f"build, {label}",
            value=1e6 * seconds(lambda: build_order(*shape).steps) / order.num_actions,
            unit="us/action",
            target="<= 1",
            note=note,
        ),
        Row(
            name=f"one plan, {label}",
            value=order.num_actions / seconds(lambda: simulate(order, *plan, every_action=True)),
            unit="actions/CPU s",
            target=">= 5e6",
            note=f"{note}, all walked over",
        ),
        Row(
            name=f"one plan by the cheapest way, {label}",
            value=1e3 * seconds(lambda: simulate(order, *plan)),
            unit="CPU ms",
            target=None,
            note=f"{note}, rounds by powers where that is cheaper",
        ),
    ]
    rows.append(
        Row(
            name=f"critical path, {label}",
            value=1e3 * seconds(lambda: critical_path(order, *plan)),
            unit="CPU ms",
            target=None,
            note=f"{note}, simulation included",
        )
    )
    for num_plans in BATCHES:
        plans = uneven_durations(order.num_stages, num_plans)
        rows += [
            Row(
                name=f"{num_plans} plans, {label}",
                value=num_plans * order.num_actions / seconds(partial(by_levels, order, plans)),
                unit="actions/CPU s",
                target=">= 2e7",
                note=f"{note}, all walked over",
            ),
            Row(
                name=f"{num_plans} plans by the cheapest way, {label}",
                value=1e3 * seconds(partial(simulate_batch, order, *plans)),
                unit="CPU ms",
                target=None,
                note=f"{note}, rounds by powers where that is cheaper",
            ),
        ]
    return rows


def by_levels(order: Order, plans: tuple[NDArray[np.int64], ...]) -> object:
    """A batch without powers."""
    return simulate_batch(replace(order, steady=None), *plans)


def run(smoke: bool) -> list[Row]:
    shapes, repeats, calls = (SMALL_SHAPES, 1, 1) if smoke else (SHAPES, 7, 5)
    return [row for shape in shapes for row in measure(shape, repeats, calls)]


if __name__ == "__main__":
    for row in run(smoke=False):
        print(row)
