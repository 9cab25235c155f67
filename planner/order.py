"""A schedule's order compiled to arrays, once per shape: what the simulator walks over for every candidate.

Actions stand in *levels*: an action's level is above the level of all that it waits for, and a level has at most one
action of each rank. Times need two predecessors of each action: the one before it on its rank, and the one on another
stage whose message it waits for.
"""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.schedule import ActionKind, RankOrders, Schedule, ScheduleName, rank_orders

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Levels in which all ranks act and which repeat with a period, each time some microbatches later."""

    first_level: int
    first_action: int
    """Position of the first action of ``first_level``."""
    levels_per_round: int
    num_rounds: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Order:
    """The actions of all ranks, sorted by (level, rank).

    Position 0 of the per-action arrays stands for the start of time: ``before`` and ``source`` are positions, with 0
    for none. Keys index durations: forward of stage s is s, backward V + s; 2 V is no action.
    """

    name: str
    num_ranks: int
    num_chunks: int
    num_microbatches: int
    rank: Ints
    """``[1 + num_actions]``, -1 at position 0."""
    key: Ints
    """``[1 + num_actions]``, 2 V at position 0."""
    microbatch: Ints
    """``[1 + num_actions]``, -1 at position 0."""
    before: Ints
    """Action before this one on its rank."""
    source: Ints
    """Action whose message this one waits for."""
    last: Ints
    """``[rank]``: position of the rank's last action."""
    level_rows: Ints
    """``[level, 3 p]``: what a level takes from the simulator's state, for each rank the finish time of its source,
    then the delay of the message, then the duration. The state is: the finish times of the last ``ring`` levels,
    ``(level mod ring) p + rank``; one row for no source; durations by key; delays by key."""
    ring: int
    """The most levels that a message waits, at least 1."""
    steady: Steady | None
    """None where the order is not known to repeat."""

    @property
    def num_stages(self) -> int:
        return self.num_ranks * self.num_chunks

    @property
    def num_actions(self) -> int:
        return len(self.key) - 1

    @property
    def num_levels(self) -> int:
        return len(self.level_rows)

    @functools.cached_property
    def steps(self) -> tuple[list[int], list[int], list[int]]:
        """``before``, ``source`` and ``key`` of all actions as lists, which plain loops read fastest."""
        return self.before[1:].tolist(), self.source[1:].tolist(), self.key[1:].tolist()

    @functools.cached_property
    def in_flight(self) -> tuple[Ints, ...]:
        """See `in_flight_counts`."""
        rank, key = self.rank[1:], self.key[1:]
        if (steady := self.steady) is not None:
            # A round leaves as many microbatches held as it finds, so one round shows what all of them hold.
            round_length = steady.levels_per_round * self.num_ranks
            first = steady.first_action - 1 + round_length
            repeats = slice(first, first + (steady.num_rounds - 1) * round_length)
            rank, key = np.delete(rank, repeats), np.delete(key, repeats)
        on_rank = np.argsort(rank, kind="stable").reshape(self.num_ranks, -1)
        return tuple(_count_in_flight(key[row], self.num_ranks, self.num_chunks) for row in on_rank)


CACHED_ACTIONS = 1_000_000
"""Actions held by the cache of orders, some 150 bytes each."""


class _Cache:
    """Least recently used orders are dropped when all together hold too many actions."""

    def __init__(self, build: Callable[[ScheduleName, int, int, int], Order], capacity: int) -> None:
        self.build, self.capacity = build, capacity
        self.orders: OrderedDict[tuple[ScheduleName, int, int, int], Order] = OrderedDict()
        self.num_actions = 0
        self.lock = threading.Lock()

    def __call__(self, name: ScheduleName, num_ranks: int, num_chunks: int, num_microbatches: int) -> Order:
        shape = (name, num_ranks, num_chunks, num_microbatches)
        with self.lock:
            if shape in self.orders:
                self.orders.move_to_end(shape)
                return self.orders[shape]
            order = self.build(*shape)
            self.orders[shape] = order
            self.num_actions += order.num_actions
            while self.num_actions > self.capacity and len(self.orders) > 1:
                self.num_actions -= self.orders.popitem(last=False)[1].num_actions
            return order


def build_order(name: ScheduleName, num_ranks: int, num_chunks: int, num_microbatches: int) -> Order:
    """Compile a named schedule; ValueError when it has no such shape. `compile_order` does the same with a cache."""
    orders = rank_orders(name, num_ranks, num_chunks, num_microbatches)
    num_backwards = np.cumsum(orders.is_backward, axis=1)
    index = np.where(orders.is_backward, num_backwards - 1, np.arange(orders.stage.shape[1]) - num_backwards)
    rank = np.arange(num_ranks)[:, None]
    if name == ScheduleName.ONE_F_ONE_B:
        # Forward n of rank r feeds forward n of rank r + 1 in the next level, backward the other way round.
        levels = 2 * index + np.where(orders.is_backward, 2 * num_ranks - 1 - rank, rank)
        first, last = 2 * num_ranks - 1, 2 * num_microbatches - 2  # rank 0: first backward, last forward
        levels_per_round = 2
    else:
        # Forwards in even levels, backwards in odd ones, messages wait two; the last rank's chunk c feeds rank 0's
        # chunk c + 1, p forwards later.
        lead = 2 * (num_ranks - 1 + (num_chunks - 1) * num_ranks) + 1
        levels = 2 * (index + np.where(orders.is_backward, num_ranks - 1 - rank, rank))
        levels[orders.is_backward] += lead
        first = lead + 2 * num_ranks - 3  # forwards, just before rank 0's first backward
        last = 2 * num_microbatches * num_chunks - 1  # backwards, just after rank 0's last forward
        levels_per_round = 2 * num_ranks * num_chunks
    occupied, ranked_levels = np.unique(levels, return_inverse=True)
    num_rounds = max(0, last + 1 - first) // levels_per_round
    steady = None
    if num_rounds > 1:
        steady = Steady(
            first_level=int(np.searchsorted(occupied, first)),
            first_action=1 + int((levels < first).sum()),
            levels_per_round=levels_per_round,
            num_rounds=num_rounds,
        )
    return _compile(name, num_chunks, num_microbatches, orders, ranked_levels.reshape(levels.shape), steady)


compile_order = _Cache(build_order, CACHED_ACTIONS)
"""``compile_order(name, num_ranks, num_chunks, num_microbatches)``: the compiled named schedule, cached."""


def compile_schedule(schedule: Schedule) -> Order:
    """Compile any schedule with whole backwards (kinds F and B) that `planner.schedule.validate` accepts."""
    halves = [action for row in schedule.actions for action in row if action.kind not in (ActionKind.F, ActionKind.B)]
    if halves:
        raise ValueError(f"only F and B can be simulated, got {halves[0]}")
    columns = [
        [[action.stage for action in row] for row in schedule.actions],
        [[action.kind is ActionKind.B for action in row] for row in schedule.actions],
        [[action.microbatch for action in row] for row in schedule.actions],
    ]
    orders = RankOrders(np.array(columns[0]), np.array(columns[1]), np.array(columns[2]))
    levels = _earliest_levels(orders, schedule.num_stages)
    return _compile(schedule.name, schedule.num_chunks, schedule.num_microbatches, orders, levels, None)


def _earliest_levels(orders: RankOrders, num_stages: int) -> Ints:
    """The least level of each action, ``[rank, position]``: run each rank until it waits, again and again."""
    rows = [list(zip(*row, strict=True)) for row in zip(*(array.tolist() for array in orders), strict=True)]
    levels: list[list[int]] = [[] for _ in rows]
    found: dict[tuple[int, bool, int], int] = {}
    moved = True
    while moved:
        moved = False
        for row, done in zip(rows, levels, strict=True):
            for stage, backward, microbatch in row[len(done) :]:
                source = (stage + 1 if backward else stage - 1, backward, microbatch)
                ready = found.get(source, -1)
                if ready < 0 and 0 <= source[0] < num_stages:
                    break
                done.append(1 + max(ready, done[-1] if done else -1))
                found[stage, backward, microbatch] = done[-1]
                moved = True
    if any(len(done) < len(row) for row, done in zip(rows, levels, strict=True)):
        raise ValueError("the order deadlocks; planner.schedule.validate says where")
    return np.array(levels)


def _compile(
    name: str, num_chunks: int, num_microbatches: int, orders: RankOrders, levels: Ints, steady: Steady | None
) -> Order:
    """Sort the actions into levels and look up what each waits for."""
    num_ranks, row_length = orders.stage.shape
    num_stages = num_ranks * num_chunks
    num_levels = int(levels[:, -1].max()) + 1
    assert (np.diff(levels, axis=1) > 0).all(), "an action must stand above the one before it on its rank"

    # Positions in (level, rank) order, counted from 1, of the actions as they stand in the orders.
    slots = (levels * num_ranks + np.arange(num_ranks)[:, None]).ravel()
    filled = np.zeros(num_levels * num_ranks, np.bool_)
    filled[slots] = True
    position = np.cumsum(filled)[slots]
    key = (orders.stage + num_stages * orders.is_backward).ravel()
    microbatch = orders.microbatch.ravel()

    # Stage 0 has no forward source, and the last stage's backward follows its forward on the same rank.
    where = np.zeros((2 * num_stages, num_microbatches), np.int64)
    where[key, microbatch] = position
    source_key = np.concatenate([np.arange(-1, num_stages - 1), np.arange(num_stages + 1, 2 * num_stages + 1)])
    source_key[num_stages - 1 + num_stages] = -1
    has_source = source_key[key] >= 0
    source = np.where(has_source, where[source_key[key], microbatch], 0)

    flat_levels = levels.ravel()
    level_at = np.zeros(1 + len(key), np.int64)
    level_at[position] = flat_levels
    rank_at = np.full(1 + len(key), -1)
    rank_at[position] = np.repeat(np.arange(num_ranks), row_length)
    waits = (flat_levels - level_at[source])[has_source]
    assert (waits > 0).all(), "an action must stand above the one it waits for"
    ring = int(waits.max(initial=1))

    level_rows = np.empty((3, num_levels * num_ranks), np.int64)
    level_rows[0] = no_source = ring * num_ranks
    level_rows[0, slots[has_source]] = (level_at[source] % ring * num_ranks + rank_at[source])[has_source]
    level_rows[2] = no_source + 1 + 2 * num_stages
    level_rows[2, slots] = no_source + 1 + key
    level_rows[1] = level_rows[2] + 2 * num_stages + 1

    def by_position(values: Ints, start: int) -> Ints:
        result = np.empty(1 + len(values), np.int64)
        result[0], result[position] = start, values
        return result

    rows = position.reshape(num_ranks, row_length)
    before = np.concatenate([np.zeros((num_ranks, 1), np.int64), rows[:, :-1]], axis=1)
    return Order(
        name=name,
        num_ranks=num_ranks,
        num_chunks=num_chunks,
        num_microbatches=num_microbatches,
        rank=rank_at,
        key=by_position(key, 2 * num_stages),
        microbatch=by_position(microbatch, -1),
        before=by_position(before.ravel(), 0),
        source=by_position(source, 0),
        last=rows[:, -1],
        level_rows=level_rows.reshape(3, num_levels, num_ranks).transpose(1, 0, 2).reshape(num_levels, -1),
        ring=ring,
        steady=steady,
    )


# Memory


def _count_in_flight(key: Ints, num_ranks: int, num_chunks: int) -> Ints:
    """Pareto-maximal counts of held microbatches ``[vector, chunk]`` of a rank with this order of keys."""
    backward, stage = np.divmod(key, num_ranks * num_chunks)
    chunk = stage // num_ranks
    # Counts only peak at a forward that a backward follows.
    peaks = np.flatnonzero(np.diff(backward, append=1) == 1)
    changes = np.where(backward, -1, 1)
    counts = np.stack([np.cumsum(changes * (chunk == c))[peaks] for c in range(num_chunks)], axis=1)
    counts = counts[np.lexsort(counts.T[::-1])]
    counts = counts[np.concatenate([[True], (counts[1:] != counts[:-1]).any(axis=1)])]
    covers = np.ones((len(counts), len(counts)), np.bool_)
    for of_chunk in counts.T:
        covers &= of_chunk[:, None] >= of_chunk
    maximal: Ints = counts[covers.sum(axis=0) == 1]  # covered by itself alone
    return maximal


def in_flight_counts(order: Order) -> tuple[Ints, ...]:
    """Microbatches whose activations each chunk of a rank holds at once, for each rank ``[vector, chunk]``.

    A microbatch is held from the start of its forward to the end of its backward. Only the Pareto-maximal vectors are
    kept, in lexicographic order: the peak of any non-negative bytes per chunk is attained by one of them. Computed
    once per order.
    """
    return order.in_flight
