"""The simulator against a plain one, closed forms, and properties; paths; memory in flight."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from planner import order as orders
from planner import simulator
from planner.order import Order, build_order, compile_order, compile_schedule, in_flight_counts
from planner.schedule import Action, ActionKind, Schedule, ScheduleName, from_csv, generate
from planner.simulator import TICK, Way, fast_rank_finish, simulate, simulate_batch, to_ticks
from planner.simulator_paths import chain_paths, critical_path, stack_durations
from tests.planner.reference_simulator import rank_finishes, simulate_plainly

Ints = NDArray[np.int64]

F1B = ScheduleName.ONE_F_ONE_B
INTERLEAVED = ScheduleName.INTERLEAVED_ONE_F_ONE_B


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A named schedule of one shape."""

    name: ScheduleName
    p: int
    v: int
    m: int

    @property
    def key(self) -> tuple[ScheduleName, int, int, int]:
        return self.name, self.p, self.v, self.m

    @property
    def num_stages(self) -> int:
        return self.p * self.v


SHAPES = [
    Shape(name=F1B, p=1, v=1, m=1),
    Shape(name=F1B, p=1, v=1, m=5),
    Shape(name=F1B, p=2, v=1, m=1),
    Shape(name=F1B, p=4, v=1, m=3),
    Shape(name=F1B, p=4, v=1, m=4),
    Shape(name=F1B, p=4, v=1, m=5),
    Shape(name=F1B, p=5, v=1, m=17),
    Shape(name=INTERLEAVED, p=2, v=2, m=2),
    Shape(name=INTERLEAVED, p=2, v=3, m=20),
    Shape(name=INTERLEAVED, p=3, v=2, m=3),
    Shape(name=INTERLEAVED, p=4, v=3, m=16),
    Shape(name=INTERLEAVED, p=3, v=5, m=24),
]


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    if draw(st.booleans()):
        return Shape(name=F1B, p=draw(st.integers(1, 6)), v=1, m=draw(st.integers(1, 40)))
    p = draw(st.integers(2, 4))
    return Shape(name=INTERLEAVED, p=p, v=draw(st.integers(2, 4)), m=p * draw(st.integers(1, 8)))


def random_durations(shape: Shape, seed: int, *, largest: int = 1000, links: bool = True) -> tuple[Ints, ...]:
    """Uneven ``forward, backward, link_forward, link_backward``; few distinct values, or many, by the seed."""
    rng = np.random.default_rng(seed)
    least = largest * int(rng.integers(3)) // 3
    stages = rng.integers(least, largest + 1, (2, shape.num_stages))
    delays = rng.integers(0, largest // 2 + 1, (2, shape.num_stages - 1)) * links
    return stages[0], stages[1], delays[0], delays[1]


def plain_finish(shape: Shape, durations: tuple[Ints, ...]) -> list[int]:
    schedule = generate(*shape.key)
    lists = [values.tolist() for values in durations]
    return [int(end) for end in rank_finishes(schedule, simulate_plainly(schedule, *lists))]


# Against the plain simulator


@given(shapes(), st.integers(0, 2**32), st.booleans())
@settings(max_examples=100)
def test_every_way_gives_the_plain_simulators_times(shape: Shape, seed: int, links: bool) -> None:
    order = compile_order(*shape.key)
    durations = random_durations(shape, seed, links=links)
    expected = plain_finish(shape, durations)
    assert simulate(order, *durations).rank_finish.tolist() == expected
    assert simulate(order, *durations).makespan == max(expected)
    assert simulate(order, *durations, every_action=True).rank_finish.tolist() == expected
    assert fast_rank_finish(order, *durations).tolist() == expected
    assert simulate_batch(order, *(values[None] for values in durations)).tolist() == [expected]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_plans", [1, 2, 7, 40])
def test_batch_is_its_plans_one_by_one(shape: Shape, num_plans: int) -> None:
    order = compile_order(*shape.key)
    plans = [random_durations(shape, seed) for seed in range(num_plans)]
    batch = simulate_batch(order, *(np.stack(values) for values in zip(*plans, strict=True)))
    assert batch.dtype == np.int64
    assert batch.tolist() == [simulate(order, *plan, every_action=True).rank_finish.tolist() for plan in plans]


@pytest.mark.parametrize("way", list(Way))
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ways_agree(shape: Shape, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    order = compile_order(*shape.key)
    plans = [random_durations(shape, seed) for seed in range(5)]
    expected = [simulate(order, *plan, every_action=True).rank_finish.tolist() for plan in plans]
    monkeypatch.setattr(simulator, "_cheapest_way", lambda order, num_plans: way)
    monkeypatch.setattr(simulator, "BLOCK_ELEMENTS", 3 * shape.p)  # plans and products in several blocks
    assert simulate_batch(order, *(np.stack(values) for values in zip(*plans, strict=True))).tolist() == expected
    assert [simulate(order, *plan).rank_finish.tolist() for plan in plans] == expected


def test_every_way_is_the_cheapest_of_some_run() -> None:
    cheapest = simulator._cheapest_way
    assert cheapest(compile_order(INTERLEAVED, 8, 2, 64), 1) is Way.ACTIONS
    assert cheapest(compile_order(INTERLEAVED, 8, 2, 64), 256) is Way.LEVELS
    assert cheapest(compile_order(F1B, 8, 1, 512), 1) is Way.POWER


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_timeline_is_the_plain_simulators(shape: Shape) -> None:
    order = compile_order(*shape.key)
    schedule = generate(*shape.key)
    durations = random_durations(shape, 1)
    times = simulate_plainly(schedule, *(values.tolist() for values in durations))
    timeline = simulate(order, *durations)
    assert timeline.end.dtype == timeline.start.dtype == np.int64
    assert timeline.end[0] == timeline.start[0] == 0
    found = {}
    for position in range(1, 1 + order.num_actions):
        backward, stage = divmod(int(order.key[position]), shape.num_stages)
        assert order.rank[position] == stage % shape.p
        action = Action(stage, ActionKind.B if backward else ActionKind.F, int(order.microbatch[position]))
        found[action] = (int(timeline.start[position]), int(timeline.end[position]))
    assert found == times


def test_uneven_stages_without_a_short_period() -> None:
    # Rounds that repeat only after hundreds of microbatches must still be exact.
    shape = Shape(name=F1B, p=7, v=1, m=300)
    order = compile_order(*shape.key)
    for seed in range(5):
        durations = random_durations(shape, seed, largest=10**6)
        assert fast_rank_finish(order, *durations).tolist() == plain_finish(shape, durations)


def test_large_ticks_are_exact() -> None:
    # Above 2**53, where floats would round, up to just below the limit of 2**62.
    shape = Shape(name=F1B, p=3, v=1, m=8)
    order = compile_order(*shape.key)
    for largest in (2**48, 2**50 - 1, 2**54 + 1, 2**55):
        durations = random_durations(shape, 3, largest=largest)
        expected = plain_finish(shape, durations)
        assert simulate(order, *durations, every_action=True).rank_finish.tolist() == expected
        assert fast_rank_finish(order, *durations).tolist() == expected
        assert simulate(order, *durations).end.max() == max(expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_compiled_schedule_is_the_compiled_name(shape: Shape) -> None:
    durations = random_durations(shape, 2)
    by_name, by_actions = compile_order(*shape.key), compile_schedule(generate(*shape.key))
    assert by_actions.steady is None
    assert by_actions.num_levels == by_name.num_levels
    assert simulate(by_actions, *durations).rank_finish.tolist() == simulate(by_name, *durations).rank_finish.tolist()


def test_schedule_from_csv() -> None:
    # F = 1, B = 2, delay 1. Rank 0 ends its forwards at 1 and 2; rank 1: F 2-3, B 3-5, F 5-6, B 6-8; the backwards'
    # messages arrive at 6 and 9.
    order = compile_schedule(from_csv("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"))
    assert simulate(order, [1, 1], [2, 2], [1], [1]).rank_finish.tolist() == [11, 8]
    assert order.ring == 2  # levels 0 1 3 5 and 1 2 3 4: 1F1 comes two after 0F1


def test_two_stages_on_one_rank_keep_their_delay() -> None:
    order = compile_schedule(from_csv("0F0,1F0,1B0,0B0\n"))
    assert simulate(order, [1, 1], [2, 2], [5], [7]).rank_finish.tolist() == [1 + 5 + 1 + 2 + 7 + 2]


def test_split_backward_is_refused() -> None:
    with pytest.raises(ValueError, match="only F and B can be simulated, got 0I0"):
        compile_schedule(from_csv("0F0,0I0,0W0\n"))


def test_deadlock_is_refused() -> None:
    rows = [
        [Action(stage, kind, i) for i in microbatches for kind in (ActionKind.F, ActionKind.B)]
        for stage, microbatches in enumerate([(0, 1), (1, 0)])
    ]
    schedule = Schedule(name="x", num_ranks=2, num_chunks=1, num_microbatches=2, actions=tuple(map(tuple, rows)))
    with pytest.raises(ValueError, match="deadlocks"):
        compile_schedule(schedule)


# Closed forms


@pytest.mark.parametrize("p", [1, 2, 5, 8])
@pytest.mark.parametrize("m", [1, 3, 8, 50])
def test_equal_stages_have_the_textbook_makespan(p: int, m: int) -> None:
    forward, backward = 7, 13
    timeline = simulate(compile_order(F1B, p, 1, m), [forward] * p, [backward] * p, [0] * (p - 1), [0] * (p - 1))
    assert timeline.makespan == (m + p - 1) * (forward + backward)
    bubble = 1 - Fraction(m * (forward + backward), timeline.makespan)
    assert bubble == Fraction(p - 1, m + p - 1)


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (4, 2, 8), (4, 3, 4), (8, 2, 32), (3, 4, 30)])
def test_equal_chunks_have_the_textbook_interleaved_makespan(p: int, v: int, m: int) -> None:
    # The bubble shrinks to (p - 1) / v microbatches: (m v + p - 1) chunks in all.
    count = p * v
    order = compile_order(INTERLEAVED, p, v, m)
    timeline = simulate(order, [5] * count, [9] * count, [0] * (count - 1), [0] * (count - 1))
    assert timeline.makespan == (m * v + p - 1) * (5 + 9)


def test_one_rank_just_adds_up() -> None:
    assert simulate(compile_order(F1B, 1, 1, 9), [3], [4], [], []).rank_finish.tolist() == [63]


def test_delays_of_one_microbatch_lie_on_the_way() -> None:
    # Down: 1 + 10 + 2 + 20 + 3; up: 6 + 40 + 5 + 30 + 4.
    timeline = simulate(compile_order(F1B, 3, 1, 1), [1, 2, 3], [4, 5, 6], [10, 20], [30, 40])
    assert timeline.rank_finish.tolist() == [121, 87, 42]


# Properties


@given(shapes(), st.integers(0, 2**32), st.data())
@settings(max_examples=60)
def test_longer_durations_never_finish_sooner(shape: Shape, seed: int, data: st.DataObject) -> None:
    order = compile_order(*shape.key)
    durations = random_durations(shape, seed)
    before = simulate(order, *durations).rank_finish
    which = data.draw(st.sampled_from([i for i, values in enumerate(durations) if len(values)]))
    longer = [values.copy() for values in durations]
    longer[which][data.draw(st.integers(0, len(longer[which]) - 1))] += data.draw(st.integers(1, 500))
    assert (simulate(order, *longer).rank_finish >= before).all()


@given(shapes(), st.integers(0, 2**32), st.integers(2, 1000))
@settings(max_examples=30)
def test_times_scale_with_the_unit(shape: Shape, seed: int, factor: int) -> None:
    order = compile_order(*shape.key)
    durations = random_durations(shape, seed)
    scaled = simulate(order, *(factor * values for values in durations)).rank_finish
    assert (scaled == factor * simulate(order, *durations).rank_finish).all()


# Ticks


def test_whole_ticks_stay_whole() -> None:
    counts = np.concatenate([np.arange(2000), 10 ** np.arange(16), np.random.default_rng(0).integers(0, 2**50, 2000)])
    assert (to_ticks(counts * TICK) == counts).all()
    assert (to_ticks(counts / 10**12) == counts).all()


def test_parts_of_ticks_are_rounded_up() -> None:
    assert to_ticks([0.0, 1e-15, 1e-12, 1.0001e-12, 1.5e-12, 1.0]).tolist() == [0, 1, 1, 2, 2, 10**12]
    assert to_ticks(2.2e-12).shape == ()


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=20))
def test_ticks_are_least_and_ordered(seconds: list[float]) -> None:
    ticks = to_ticks(seconds).tolist()
    for value, tick in zip(seconds, ticks, strict=True):
        exact = Fraction(value) * 10**12
        assert exact - min(Fraction(1), exact * Fraction(5, 2**52)) <= tick <= math.ceil(exact)
    assert [tick for _, tick in sorted(zip(seconds, ticks, strict=True))] == sorted(ticks)


@given(shapes(), st.integers(0, 2**32))
@settings(max_examples=20)
def test_ticks_are_within_a_path_of_fractions(shape: Shape, seed: int) -> None:
    # Each duration grows by at most one tick, and so a time by at most one tick per step of its path.
    rng = np.random.default_rng(seed)
    seconds = [rng.uniform(0, 0.2, size) for size in [shape.num_stages] * 2 + [shape.num_stages - 1] * 2]
    schedule = generate(*shape.key)
    times = simulate_plainly(schedule, *([Fraction(value) for value in values] for values in seconds))
    exact = max(rank_finishes(schedule, times)) * 10**12
    order = compile_order(*shape.key)
    makespan = simulate(order, *(to_ticks(values) for values in seconds)).makespan
    steps = 2 * (2 * shape.m * shape.v + 2 * shape.num_stages)
    assert exact - steps <= makespan <= exact + steps


@pytest.mark.parametrize("bad", [-1e-12, math.nan])
def test_negative_time_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match=f"at least 0 s, got {bad}"):
        to_ticks([0.0, bad])


def test_ticks_overflow_is_refused() -> None:
    assert to_ticks(4.6e6) == 46 * 10**17
    for times in ([4.7e6], [2.4e6, 2.4e6], [math.inf]):
        with pytest.raises(ValueError, match="sum to less than 4611686 s"):
            to_ticks(times)


# Bad input


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"forward": [1, 2]}, r"forward must have the shape \(3,\), got \(2,\)"),
        ({"backward": [[1, 2, 3]]}, r"backward must have the shape \(3,\), got \(1, 3\)"),
        ({"link_forward": [1, 2, 3]}, r"link_forward must have the shape \(2,\), got \(3,\)"),
        ({"link_backward": [0.5, 1.0]}, "link_backward must be in integer ticks .* got float64"),
        ({"forward": [1, -2, 3]}, "forward must be at least 0, got -2"),
        ({"backward": [2**60, 1, 1]}, r"must sum to less than 2\*\*62 ticks"),
    ],
)
def test_bad_durations_are_refused(change: dict[str, list[int]], message: str) -> None:
    durations = {"forward": [1, 2, 3], "backward": [1, 2, 3], "link_forward": [1, 2], "link_backward": [1, 2], **change}
    functions: list[Callable[..., object]] = [simulate, fast_rank_finish]
    for function in functions:
        with pytest.raises(ValueError, match=message):
            function(compile_order(F1B, 3, 1, 4), **durations)


def test_batch_without_plans_axis_is_refused() -> None:
    with pytest.raises(ValueError, match=r"forward must have the shape \[plans, 2\], got \(2,\)"):
        simulate_batch(compile_order(F1B, 2, 1, 4), [1, 2], [1, 2], [1], [1])


def test_batch_may_be_empty() -> None:
    empty, links = np.zeros((0, 2), np.int64), np.zeros((0, 1), np.int64)
    assert simulate_batch(compile_order(F1B, 2, 1, 4), empty, empty, links, links).shape == (0, 2)


# Compiled orders


def steady_keys(order: Order) -> list[Ints]:
    assert order.steady is not None
    first, length = order.steady.first_level, order.steady.levels_per_round
    return [order.level_rows[first + i * length : first + (i + 1) * length] for i in range(order.steady.num_rounds)]


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape.m > 2 * shape.p], ids=str)
def test_steady_rounds_are_equal(shape: Shape) -> None:
    rounds = steady_keys(compile_order(*shape.key))
    no_source = shape.p * compile_order(*shape.key).ring
    assert len(rounds) > 1
    for row in rounds:
        assert (row == rounds[0]).all()
        assert (row[:, -shape.p :] < no_source + 1 + 4 * shape.num_stages).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_messages_of_named_schedules_wait_at_most_two_levels(shape: Shape) -> None:
    order = compile_order(*shape.key)
    assert order.ring <= (1 if shape.v == 1 else 2)
    assert order.num_levels == 2 * (shape.m * shape.v + shape.p - 1)


def test_orders_are_cached_up_to_a_number_of_actions() -> None:
    built = []

    def build(name: ScheduleName, num_ranks: int, num_chunks: int, num_microbatches: int) -> Order:
        built.append(num_microbatches)
        return build_order(name, num_ranks, num_chunks, num_microbatches)

    cache = orders._Cache(build, capacity=100)  # 1f1b on 2 ranks: 4 actions per microbatch
    first = cache(F1B, 2, 1, 10)
    cache(F1B, 2, 1, 15)
    assert cache(F1B, 2, 1, 10) is first
    assert len(built) == 2
    cache(F1B, 2, 1, 5)  # 40 + 60 + 20: the one of 15 was used least recently
    assert cache(F1B, 2, 1, 10) is first
    assert cache.num_actions == 60
    cache(F1B, 2, 1, 1000)  # kept alone, although it is too large
    assert list(cache.orders) == [(F1B, 2, 1, 1000)]
    with pytest.raises(ValueError, match="num_ranks must be at least 1"):
        cache(F1B, 0, 1, 1)


# Paths


@given(shapes(), st.integers(0, 2**32), st.integers(0, 2**32))
@settings(max_examples=60)
def test_critical_path_is_exact_and_bounds_everything_else(shape: Shape, seed: int, other_seed: int) -> None:
    order = compile_order(*shape.key)
    durations, others = random_durations(shape, seed), random_durations(shape, other_seed)
    finish, other_finish = simulate(order, *durations).rank_finish, simulate(order, *others).rank_finish
    for rank in range(shape.p):
        path = critical_path(order, *durations, end_rank=rank)
        assert path.end_rank == rank
        assert path.counts @ stack_durations(*durations) == finish[rank]
        assert path.counts @ stack_durations(*others) <= other_finish[rank]


def test_critical_path_by_hand() -> None:
    # Two stages, one microbatch: everything lies on the way to rank 0.
    path = critical_path(compile_order(F1B, 2, 1, 1), [1, 2], [3, 4], [5], [6])
    assert path.end_rank == 0
    assert path.forward.tolist() == path.backward.tolist() == [1, 1]
    assert path.link_forward.tolist() == path.link_backward.tolist() == [1]


def test_critical_path_ends_where_the_tail_is_longest() -> None:
    order = compile_order(F1B, 3, 1, 4)
    durations = random_durations(Shape(name=F1B, p=3, v=1, m=4), 5)
    finish = simulate(order, *durations).rank_finish
    assert critical_path(order, *durations).end_rank == int(np.argmax(finish))
    for rank in range(3):
        tail = np.zeros(3, np.int64)
        tail[rank] = finish.max() - finish[rank] + 1
        assert critical_path(order, *durations, tail=tail).end_rank == rank
    with pytest.raises(ValueError, match="end_rank or tail, not both"):
        critical_path(order, *durations, end_rank=0, tail=[0, 0, 0])


def walk_chain(shape: Shape, rank: int, *, drained: bool) -> tuple[list[int], int]:
    """Counts of the closed-form path, by walking the graph edge by edge: every step must be one of its edges."""
    schedule = generate(*shape.key)
    path = [Action(stage, ActionKind.F, 0) for stage in range(rank)]
    path += schedule.actions[rank]
    if drained:
        path += [Action(stage, ActionKind.B, shape.m - 1) for stage in reversed(range(rank))]
    counts = np.zeros(4 * shape.num_stages - 2, np.int64)
    links = 2 * shape.num_stages
    followers = {pair for row in schedule.actions for pair in pairwise(row)}
    for action in path:
        counts[action.stage + shape.num_stages * (action.kind is ActionKind.B)] += 1
    for one, two in pairwise(path):
        if (one, two) in followers:
            continue
        assert one.microbatch == two.microbatch
        assert one.kind is two.kind
        if one.kind is ActionKind.F:
            assert two.stage == one.stage + 1
            counts[links + one.stage] += 1
        else:
            assert two.stage == one.stage - 1
            counts[links + shape.num_stages - 1 + two.stage] += 1
    end_rank = schedule.rank_of(path[-1].stage)
    assert path[-1] == schedule.actions[end_rank][-1]
    return counts.tolist(), end_rank


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_chain_paths_are_paths(shape: Shape) -> None:
    table = chain_paths(*shape.key)
    assert table.counts.shape == (2 * shape.p, 4 * shape.num_stages - 2)
    for rank in range(shape.p):
        for row, drained in ((rank, False), (shape.p + rank, True)):
            expected = walk_chain(shape, rank, drained=drained)
            assert (table.counts[row].tolist(), int(table.end_rank[row])) == expected


@given(shapes(), st.integers(0, 2**32))
@settings(max_examples=40)
def test_chain_paths_bound_the_finish(shape: Shape, seed: int) -> None:
    durations = random_durations(shape, seed)
    table = chain_paths(*shape.key)
    finish = simulate(compile_order(*shape.key), *durations).rank_finish
    assert (table.counts @ stack_durations(*durations) <= finish[table.end_rank]).all()


# Memory in flight


def brute_force_counts(shape: Shape, rank: int) -> set[tuple[int, ...]]:
    held = [0] * shape.v
    seen = set()
    for action in generate(*shape.key).actions[rank]:
        held[action.stage // shape.p] += 1 if action.kind is ActionKind.F else -1
        seen.add(tuple(held))
    return {one for one in seen if not any(one != two and np.all(np.array(two) >= one) for two in seen)}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_in_flight_counts_are_those_of_brute_force(shape: Shape) -> None:
    counts = in_flight_counts(compile_order(*shape.key))
    assert len(counts) == shape.p
    for rank, vectors in enumerate(counts):
        found = [tuple(vector) for vector in vectors.tolist()]
        assert found == sorted(set(found))
        assert set(found) == brute_force_counts(shape, rank)


@pytest.mark.parametrize(("p", "m"), [(1, 4), (4, 2), (4, 3), (4, 4), (4, 100)])
def test_1f1b_holds_as_many_microbatches_as_ranks_are_left(p: int, m: int) -> None:
    expected = [[[min(m, p - rank)]] for rank in range(p)]
    assert [vectors.tolist() for vectors in in_flight_counts(compile_order(F1B, p, 1, m))] == expected


def test_in_flight_counts_do_not_grow_with_the_microbatches() -> None:
    few, many = (in_flight_counts(compile_order(INTERLEAVED, 4, 3, m)) for m in (16, 256))
    assert [vectors.tolist() for vectors in few] == [vectors.tolist() for vectors in many]
