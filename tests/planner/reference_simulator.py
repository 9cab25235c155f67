"""A second simulator, written plainly over `Action` objects: a heap of wake-ups. It shares nothing with the first."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from fractions import Fraction

from planner.schedule import Action, ActionKind, Schedule

Number = int | Fraction


def simulate_plainly(
    schedule: Schedule,
    forward: Sequence[Number],
    backward: Sequence[Number],
    link_forward: Sequence[Number],
    link_backward: Sequence[Number],
) -> dict[Action, tuple[Number, Number]]:
    """Start and end of each action.

    A wake-up is a time and a rank: the rank has ended an action, or a message has arrived. Woken while idle, it starts
    its next action if what that needs is there.
    """
    last_stage = schedule.num_stages - 1
    position = [0] * schedule.num_ranks
    busy_until: list[Number] = [0] * schedule.num_ranks
    arrival: dict[Action, Number] = {}
    times: dict[Action, tuple[Number, Number]] = {}
    wake_ups: list[tuple[Number, int]] = [(0, rank) for rank in range(schedule.num_ranks)]
    while wake_ups:
        now, rank = heapq.heappop(wake_ups)
        if busy_until[rank] > now or position[rank] == len(schedule.actions[rank]):
            continue
        action = schedule.actions[rank][position[rank]]
        stage, kind, microbatch = action
        if kind is ActionKind.F:
            needs_message, sends, receiver = stage > 0, stage < last_stage, stage + 1
        else:
            assert Action(stage, ActionKind.F, microbatch) in times
            needs_message, sends, receiver = stage < last_stage, stage > 0, stage - 1
        if needs_message and not (action in arrival and arrival[action] <= now):
            continue
        end = now + (forward if kind is ActionKind.F else backward)[stage]
        times[action] = (now, end)
        position[rank] += 1
        busy_until[rank] = end
        heapq.heappush(wake_ups, (end, rank))
        if sends:
            delay = link_forward[stage] if kind is ActionKind.F else link_backward[stage - 1]
            arrival[Action(receiver, kind, microbatch)] = end + delay
            heapq.heappush(wake_ups, (end + delay, schedule.rank_of(receiver)))
    assert len(times) == sum(map(len, schedule.actions))
    return times


def rank_finishes(schedule: Schedule, times: dict[Action, tuple[Number, Number]]) -> list[Number]:
    """End of the last action on each rank."""
    return [times[row[-1]][1] for row in schedule.actions]
