"""Exact times of a fixed order of pipeline actions, in integer ticks.

On each rank, an action starts when the one before it has ended and its message has arrived:
``end = max(end of the one before, end of the source + link delay) + duration``. Links delay, but never block. Hence
all times, and the makespan, are non-decreasing in every duration and delay.

Three ways lead to the same integers: a plain loop over actions, fastest for one plan; numpy over levels, for many
plans; and, where the order repeats, a power of the map that one round applies to the ranks' times (a matrix in the
algebra of max and +), whose cost grows with the logarithm of the number of microbatches. `simulate_batch` takes
whichever costs least.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from enum import Enum, auto

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.order import Order, Steady

Ints = NDArray[np.int64]

TICK = 1e-12
"""The unit of time inside the simulator [s]."""
TICKS_PER_SECOND = 1e12
"""Unlike TICK, an exact float."""
MAX_TICKS = 2**62
"""What all durations of a run together must stay below; sums of two such numbers still fit int64."""
EXACT_FLOAT = 2**53
"""Below this, floats are exact integers, and a plain loop is faster with them."""


def to_ticks(seconds: ArrayLike) -> Ints:
    """Times as ticks, rounded up; what a float means to be a whole number of ticks stays that number.

    Parameters
    ----------
    seconds
        Non-negative times [s], any shape.

    Returns
    -------
    NDArray[np.int64]
        The nearest integer where that lies within 4 units of the float's last place, else the next one above.
        Non-decreasing.

    Raises
    ------
    ValueError
        When a time is negative or no number, or all together reach 2**62 ticks (some 53 days).
    """
    values = np.asarray(seconds, np.float64) * TICKS_PER_SECOND
    if not (values >= 0).all():
        raise ValueError(f"times must be at least 0 s, got {np.ravel(seconds)[~(values.ravel() >= 0)][0]}")
    if values.sum() >= MAX_TICKS:
        raise ValueError(f"times must sum to less than {MAX_TICKS // 10**12} s, got {np.sum(seconds):g} s")
    nearest = np.rint(values)
    is_whole = np.abs(values - nearest) <= 4 * np.finfo(np.float64).eps * values
    return np.where(is_whole, nearest, np.ceil(values)).astype(np.int64)


# Durations


def _durations(
    order: Order, forward: ArrayLike, backward: ArrayLike, link_forward: ArrayLike, link_backward: ArrayLike
) -> Ints:
    """Duration and delay of arrival by key, ``[2, 2 V + 1, ...]``, from arrays ``[..., V]``; checked."""
    num_stages = order.num_stages
    table: Ints | None = None
    for row, first, length, field_name, values in (
        (0, 0, num_stages, "forward", np.asarray(forward)),
        (0, num_stages, num_stages, "backward", np.asarray(backward)),
        (1, 1, num_stages - 1, "link_forward", np.asarray(link_forward)),
        (1, num_stages, num_stages - 1, "link_backward", np.asarray(link_backward)),
    ):
        if table is None:
            table = np.zeros((2, 2 * num_stages + 1, *values.shape[:-1]), np.int64)
        if values.shape != (*table.shape[2:], length):
            raise ValueError(f"{field_name} must have the shape {(*table.shape[2:], length)}, got {values.shape}")
        if values.size == 0:
            continue
        if values.dtype.kind not in "iu":
            raise ValueError(f"{field_name} must be in integer ticks (see to_ticks), got {values.dtype}")
        if values.min() < 0:
            raise ValueError(f"{field_name} must be at least 0, got {values.min()}")
        table[row, first : first + length] = values.T
    assert table is not None
    if _total(order, table).max(initial=0) >= MAX_TICKS:
        raise ValueError("the durations of all actions must sum to less than 2**62 ticks")
    return table


def _total(order: Order, table: Ints) -> NDArray[np.float64]:
    """All durations and delays of all actions together: above every time of the run."""
    total: NDArray[np.float64] = order.num_microbatches * table.sum(axis=(0, 1), dtype=np.float64)
    return total


# One plan


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """When each action of an order runs."""

    order: Order
    table: Ints
    """Duration and delay of arrival by key, ``[2, 2 V + 1]`` [ticks]."""
    rank_finish: Ints
    """End of the last action on each rank [ticks]."""
    run: list[float] | None = field(default=None, repr=False)
    """What `_run` gave, if it was needed for ``rank_finish``."""

    @property
    def makespan(self) -> int:
        """End of the last action of all [ticks]."""
        return int(self.rank_finish.max())

    @functools.cached_property
    def end(self) -> Ints:
        """End of each action, by position in the order, 0 at position 0 [ticks]; simulated when first asked for."""
        run = _run(self.order, self.table) if self.run is None else self.run
        end: Ints = np.fromiter(run, type(run[-1]), len(run)).astype(np.int64)
        return end

    @functools.cached_property
    def start(self) -> Ints:
        """Start of each action, by position in the order [ticks]."""
        start: Ints = self.end - self.table[0, self.order.key]
        return start


def simulate(
    order: Order,
    forward: ArrayLike,
    backward: ArrayLike,
    link_forward: ArrayLike,
    link_backward: ArrayLike,
    *,
    every_action: bool = False,
) -> Timeline:
    """Times of one plan.

    Parameters
    ----------
    order
        The compiled order of V virtual stages.
    forward, backward
        Duration by virtual stage, ``[V]`` [ticks].
    link_forward, link_backward
        Delay of a message between stages s and s + 1, down and up, ``[V - 1]`` [ticks].
    every_action
        Walk over all actions at once, even if the ranks' finish alone is found sooner: cheaper when ``end`` or
        ``start`` are wanted too.

    Raises
    ------
    ValueError
        For arrays of another shape, for what is no non-negative integer, and for totals of 2**62 ticks or more.
    """
    table = _durations(order, forward, backward, link_forward, link_backward)
    way = Way.ACTIONS if every_action else _cheapest_way(order, 1)
    if way is Way.ACTIONS:
        run = _run(order, table)
        return Timeline(order=order, table=table, rank_finish=_last_ends(order, run), run=run)
    finish = _finish_by_levels(order, table[..., None], order.steady if way is Way.POWER else None)
    return Timeline(order=order, table=table, rank_finish=finish[0])


def fast_rank_finish(
    order: Order, forward: ArrayLike, backward: ArrayLike, link_forward: ArrayLike, link_backward: ArrayLike
) -> Ints:
    """``simulate(...).rank_finish`` with the rounds of a repeating order as a power, however few."""
    table = _durations(order, forward, backward, link_forward, link_backward)
    return _finish_by_levels(order, table[..., None], order.steady).reshape(order.num_ranks)


def _run(order: Order, table: Ints) -> list[float]:
    """End of each action by position, 0 at position 0: ints, or floats where these are exact."""
    exact = _total(order, table) < EXACT_FLOAT
    durations, delays = (table.astype(np.float64) if exact else table).tolist()
    ends: list[float] = [0.0 if exact else 0]
    append = ends.append
    for before, source, key in zip(*order.steps, strict=True):
        free = ends[before]
        ready = ends[source] + delays[key]
        append((ready if ready > free else free) + durations[key])
    return ends


def _last_ends(order: Order, run: list[float]) -> Ints:
    return np.array([int(run[position]) for position in order.last.tolist()], np.int64)


# Many plans


def simulate_batch(
    order: Order, forward: ArrayLike, backward: ArrayLike, link_forward: ArrayLike, link_backward: ArrayLike
) -> Ints:
    """End of the last action on each rank, for K plans over one order: ``[K, num_ranks]`` [ticks].

    Parameters and errors as of `simulate`, with K plans along a first axis: ``[K, V]`` and ``[K, V - 1]``.
    """
    table = _durations(order, forward, backward, link_forward, link_backward)
    if table.ndim != 3:
        raise ValueError(f"forward must have the shape [plans, {order.num_stages}], got {np.shape(forward)}")
    num_plans = table.shape[2]
    way = _cheapest_way(order, num_plans)
    if way is Way.ACTIONS:
        runs = (_run(order, table[:, :, plan]) for plan in range(num_plans))
        return np.array([_last_ends(order, run) for run in runs], np.int64).reshape(num_plans, order.num_ranks)
    return _finish_by_levels(order, table, order.steady if way is Way.POWER else None)


class Way(Enum):
    """How to find the finish of each rank; all give the same integers."""

    ACTIONS = auto()
    """A loop over actions, plan by plan."""
    LEVELS = auto()
    """A loop over levels, with arrays over ranks and plans."""
    POWER = auto()
    """The same, but the rounds of the steady part by a power of their matrix."""


ACTION_COST = 1e-7
"""One step of the loop over actions [s]. These figures only choose a way; measured on one core of a server."""
LEVEL_COST = 2.8e-6
"""The calls of one level [s]."""
ELEMENT_COST = 2e-9
"""One action of one plan within a level [s]."""
PRODUCT_COST = 2.5e-9
"""One sum within a product of matrices [s]."""


def _cheapest_way(order: Order, num_plans: int) -> Way:
    def levels_cost(num_levels: int, width: int) -> float:
        return num_levels * (LEVEL_COST + ELEMENT_COST * order.num_ranks * width)

    costs = {
        Way.ACTIONS: ACTION_COST * order.num_actions * num_plans,
        Way.LEVELS: levels_cost(order.num_levels, num_plans),
    }
    if (steady := order.steady) is not None:
        size = order.ring * order.num_ranks
        num_products = steady.num_rounds.bit_length()
        costs[Way.POWER] = (
            levels_cost(order.num_levels - steady.num_rounds * steady.levels_per_round, num_plans)
            + levels_cost(steady.levels_per_round, num_plans * size)
            + num_products * (10 * LEVEL_COST + PRODUCT_COST * num_plans * size**3)
        )
    return min(costs, key=costs.__getitem__)


BLOCK_ELEMENTS = 8192
"""Numbers in one row of a level, ranks times plans: few enough for its arrays to stay in a core's cache."""


def _finish_by_levels(order: Order, table: Ints, steady: Steady | None) -> Ints:
    """``[K, rank]`` from ``[2, 2 V + 1, K]``; the steady rounds, if given, by a power of their matrix."""
    num_plans = table.shape[2]
    num_ranks = order.num_ranks
    size = order.ring * num_ranks
    block = max(1, BLOCK_ELEMENTS // (num_ranks if steady is None else num_ranks * size))
    finish = np.empty((num_plans, num_ranks), np.int64)
    for first in range(0, num_plans, block):
        part = table[:, :, first : first + block].reshape(2 * (2 * order.num_stages + 1), -1)
        state = np.concatenate([np.zeros((size + 1, part.shape[1]), np.int64), part])
        if steady is None:
            _advance(order, state, 0, order.num_levels)
        else:
            _advance(order, state, 0, steady.first_level)
            state[:size] = _repeat(_round_matrices(order, part, steady), steady.num_rounds, state[:size])
            _advance(order, state, steady.first_level + steady.num_rounds * steady.levels_per_round, order.num_levels)
        row = (order.num_levels - 1) % order.ring * num_ranks
        finish[first : first + block] = state[row : row + num_ranks].T
    return finish


def _advance(order: Order, state: Ints, first: int, stop: int) -> None:
    """Run levels ``first`` to ``stop - 1``.

    ``state`` is ``[row, column]``: first the ranks' finish times after the last ``ring`` levels, level l in rows
    ``(l mod ring) p`` onward; then a row of times that never delay; then the table of durations and delays by key.
    So one gather fetches all that a level needs (`Order.level_rows`).
    """
    num_ranks = order.num_ranks
    ring = [state[slot * num_ranks : (slot + 1) * num_ranks] for slot in range(order.ring)]
    gathered = np.empty((3 * num_ranks, state.shape[1]), np.int64)
    ready, delays, durations = gathered[:num_ranks], gathered[num_ranks : 2 * num_ranks], gathered[2 * num_ranks :]
    free = ring[(first - 1) % order.ring]
    for level in range(first, stop):
        np.take(state, order.level_rows[level], axis=0, out=gathered, mode="clip")  # "clip" writes straight to out
        np.add(ready, delays, out=ready)
        np.maximum(ready, free, out=ready)
        free = ring[level % order.ring]
        np.add(ready, durations, out=free)


# Rounds as matrices over (max, +)

NEVER = -MAX_TICKS
"""Minus infinity: with any time of a run added, still below 0."""


def _round_matrices(order: Order, table: Ints, steady: Steady) -> Ints:
    """``[i, j, K]``: the longest path through one round, from row j of the state before it to row i after it."""
    size = order.ring * order.num_ranks
    state = np.empty((size + 1 + len(table), size, table.shape[1]), np.int64)
    state[: size + 1] = NEVER
    state[np.arange(size), np.arange(size)] = 0
    state[size + 1 :] = table[:, None, :]
    stop = steady.first_level + steady.levels_per_round
    _advance(order, state.reshape(len(state), -1), steady.first_level, stop)
    matrices = state[:size]
    return np.where(matrices < 0, NEVER, matrices)


def _repeat(matrices: Ints, times: int, vectors: Ints) -> Ints:
    """Apply each plan's matrix ``times`` times to its vector ``[i, K]``, by repeated squaring."""
    while True:
        if times & 1:
            vectors = (matrices + vectors).max(axis=1)
        times >>= 1
        if not times:
            return vectors
        matrices = _product(matrices, matrices)


def _product(left: Ints, right: Ints) -> Ints:
    """``out[i, j, k] = max over m of left[i, m, k] + right[m, j, k]``, in blocks of m."""
    size, _, num_plans = left.shape
    block = max(1, 8 * BLOCK_ELEMENTS // (size * size * num_plans))
    result = np.full_like(left, NEVER)
    for first in range(0, size, block):
        among = slice(first, first + block)
        terms = left[:, among, None] + right[None, among]
        np.maximum(result, terms.max(axis=1), out=result)
    return np.where(result < 0, NEVER, result)
