"""The schedule, replayed: what each rank does in turn, what it keeps at its peak, and when it ends.

A rank's order is a list of keys: stage s for a forward of it, V + s for a backward, V virtual stages in all. Each stage
takes its microbatches in order, forward and backward, so a message queue per key says all.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

TICK = 1e-12
"""Times are whole numbers of it [s]."""
TICKS_PER_SECOND = 1e12
"""Unlike TICK, an exact float."""
WHOLE_REPLAY = 100_000
"""Actions up to which the schedule is replayed from end to end."""
MOST_REPLAYED = 2_000_000
"""Actions after which a schedule that has not become periodic is only enclosed."""
NARROW = 1e-10
"""An enclosure of this relative width is as good as the time itself."""
LEAST_ROUNDS = 24
"""Rounds after the warm-up that are replayed at least."""


def to_ticks(seconds: float) -> int:
    """Ticks of a time, rounded up unless it means a whole number."""
    value = seconds * TICKS_PER_SECOND
    nearest = round(value)
    if abs(value - nearest) <= 4 * sys.float_info.epsilon * value:
        return nearest
    return int(value) + 1


def num_warm_up(rank: int, pp: int, vpp: int, num_microbatches: int) -> int:
    """Forwards of a rank before its first backward follows one."""
    ahead = pp - 1 - rank
    return min(ahead if vpp == 1 else 2 * ahead + (vpp - 1) * pp, num_microbatches * vpp)


def rank_order(rank: int, pp: int, vpp: int, num_microbatches: int) -> list[int]:
    """What a rank does, in turn.

    1F1B: warm-up forwards, then forward and backward in turn, then the backwards that are left. With several stages per
    rank, groups of pp microbatches go through one stage of the rank after the other, backwards from the last one.
    """
    num_stages = pp * vpp
    group = pp if vpp > 1 else 1
    forwards, backwards = [], []
    for stage in range(rank, num_stages, pp):
        forwards += [stage] * group
        backwards += [2 * num_stages - pp + 2 * rank - stage] * group
    forwards *= num_microbatches // group
    backwards *= num_microbatches // group
    warm_up = num_warm_up(rank, pp, vpp, num_microbatches)
    order = forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        order += (forward, backward)
    return order + backwards[len(forwards) - warm_up :]


def peak_kept(order: Sequence[int], saved: Sequence[int], num_stages: int) -> int:
    """Most bytes that a rank keeps at once; `saved` is one microbatch of each stage."""
    kept = most = 0
    for key in order:
        if key < num_stages:
            kept += saved[key]
            if kept > most:
                most = kept
        else:
            kept -= saved[key - num_stages]
    return most


def enough_microbatches(pp: int, num_microbatches: int) -> int:
    """Microbatches that show the peak: after three groups a rank keeps at each moment what it kept one group before."""
    return min(num_microbatches, 3 * pp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """A pipeline in ticks."""

    pp: int
    vpp: int
    forward: Sequence[int]
    """[stage]"""
    backward: Sequence[int]
    """[stage]"""
    link: Sequence[int]
    """From stage s to s + 1, and back. [stage]"""

    @property
    def num_stages(self) -> int:
        """Virtual stages of the model."""
        return self.pp * self.vpp

    def run(self, num_microbatches: int) -> list[list[int]]:
        """End of each action of each rank, in its order."""
        pp, stages = self.pp, self.num_stages
        duration = [*self.forward, *self.backward]
        delay = [*self.link[: stages - 1], 0, 0, *self.link[: stages - 1]]
        target = [*range(1, stages), 2 * stages - 1, -1, *range(stages, 2 * stages - 1)]
        queues: list[deque[int]] = [deque() for _ in duration]
        queues[0].extend([0] * num_microbatches)
        orders = [iter(rank_order(rank, pp, self.vpp, num_microbatches)) for rank in range(pp)]
        todo = [next(order, -1) for order in orders]
        ends: list[list[int]] = [[] for _ in range(pp)]
        clocks = [0] * pp
        waits = [-1] * pp
        ready = list(range(pp))
        while ready:
            rank = ready.pop()
            key, clock, mine, order = todo[rank], clocks[rank], ends[rank], orders[rank]
            waits[rank] = -1
            while key >= 0:
                queue = queues[key]
                if not queue:
                    waits[rank] = key
                    break
                arrived = queue.popleft()
                clock = (arrived if arrived > clock else clock) + duration[key]
                mine.append(clock)
                sent = target[key]
                if sent >= 0:
                    queues[sent].append(clock + delay[key])
                    if waits[sent % pp] == sent:
                        waits[sent % pp] = -1
                        ready.append(sent % pp)
                key = next(order, -1)
            todo[rank], clocks[rank] = key, clock
        if any(wait >= 0 for wait in waits):
            raise ValueError(f"the ranks wait for each other for ever: {waits}")
        return ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """When each rank ends its last action; both alike where the replay is exact. [rank] [ticks]"""

    least: list[int]
    most: list[int]


def finish_times(pipeline: Pipeline, num_microbatches: int) -> Finish:
    """When each rank ends.

    Notes
    -----
    Up to ``WHOLE_REPLAY`` actions all are replayed. Beyond, fewer rounds (groups of pp microbatches, or single ones of
    1F1B) are replayed and the rest is added. An action waits for one before it on its rank and for one on another rank,
    which lies at most one round back, and both do so again a round later. Hence, if in two consecutive rounds all ends
    lie between ``lo`` and ``hi`` after those c rounds earlier, so do all later ones, those after the last round
    included: each c rounds more add between ``lo`` and ``hi`` to every rank's end. Where lo = hi this is exact. Rounds
    are doubled until the enclosure is narrow; after ``MOST_REPLAYED`` actions it is taken as it is.
    """
    group = pipeline.pp if pipeline.vpp > 1 else 1
    per_group = 2 * pipeline.num_stages * group
    num_groups = num_microbatches // group
    rounds = (2 if pipeline.vpp > 1 else pipeline.pp) + LEAST_ROUNDS
    while rounds < num_groups and num_groups * per_group > WHOLE_REPLAY:
        shift, _, _ = _growth(pipeline, pipeline.run(rounds * group), rounds * group)
        used = rounds + (num_groups - rounds) % shift
        ends = pipeline.run(used * group)
        shift, low, high = _growth(pipeline, ends, used * group, shift)
        times = (num_groups - used) // shift
        width, whole = times * (high - low), times * low
        if width <= NARROW * whole or used * per_group > MOST_REPLAYED:
            return Finish(
                least=[row[-1] + times * low for row in ends],
                most=[row[-1] + times * high for row in ends],
            )
        rounds *= 2
    last = [row[-1] for row in pipeline.run(num_microbatches)]
    return Finish(least=last, most=last)


def _growth(
    pipeline: Pipeline, ends: list[list[int]], num_microbatches: int, only: int | None = None
) -> tuple[int, int, int]:
    """(c, least, most) growth of all ends over c rounds at the end of a replay, for the c that tells most."""
    pp, vpp = pipeline.pp, pipeline.vpp
    length = 2 * vpp * (pp if vpp > 1 else 1)  # actions of a rank in a round
    warm_up = [num_warm_up(rank, pp, vpp, num_microbatches) for rank in range(pp)]
    num_rounds = 2 * (num_microbatches * vpp - max(warm_up)) // length
    found: list[tuple[float, int, int, int]] = []
    longest = min(num_rounds - 2, 2 * pp if vpp == 1 else 4)
    for shift in range(1, longest + 1) if only is None else (only,):
        steps = []
        for row, start in zip(ends, warm_up, strict=True):
            first = start + (num_rounds - 2 - shift) * length
            before, after = row[first : first + 2 * length], row[first + shift * length :][: 2 * length]
            steps += [late - early for early, late in zip(before, after, strict=True)]
        found.append(((max(steps) - min(steps)) / shift, shift, min(steps), max(steps)))
    return min(found)[1:]
