"""What a pipeline executes, as data: for each rank, the actions in their order.

Named schedules are generated as integer arrays, which the simulator takes as they are; `Schedule` says the same in
`Action` objects, for export, for checks, and for people.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class ActionKind(StrEnum):
    """What a stage does with a microbatch, spelled as in torch pipelining."""

    F = "F"
    """Forward."""
    B = "B"
    """Full backward: the gradients of input and weights."""
    I = "I"  # noqa: E741 - torch's letter
    """Backward for the input alone."""
    W = "W"
    """Backward for the weights alone."""


class Action(NamedTuple):
    """One action of a rank; a tuple, since an order holds a hundred thousand of them."""

    stage: int
    """Virtual stage, counted over the whole model."""
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.microbatch}"


class ScheduleName(StrEnum):
    """Schedules that can be generated."""

    ONE_F_ONE_B = "1f1b"
    INTERLEAVED_ONE_F_ONE_B = "interleaved-1f1b"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The order of actions on each rank; virtual stage s lives on rank s mod num_ranks."""

    name: str
    """A `ScheduleName`, or whatever its author calls it."""
    num_ranks: int
    """Pipeline ranks, pp."""
    num_chunks: int
    """Virtual stages on each rank, vpp."""
    num_microbatches: int
    actions: tuple[tuple[Action, ...], ...]
    """For each rank, what it does, in order."""

    def __post_init__(self) -> None:
        check_counts(self.num_ranks, self.num_chunks, self.num_microbatches)
        if len(self.actions) != self.num_ranks:
            raise ValueError(f"actions must have one row for each of {self.num_ranks} ranks, got {len(self.actions)}")

    @property
    def num_stages(self) -> int:
        """Virtual stages of the whole model."""
        return self.num_ranks * self.num_chunks

    def rank_of(self, stage: int) -> int:
        """The rank that holds a virtual stage."""
        return stage % self.num_ranks


def check_counts(num_ranks: int, num_chunks: int, num_microbatches: int) -> None:
    """Refuse counts below 1."""
    for field, value in (
        ("num_ranks", num_ranks),
        ("num_chunks", num_chunks),
        ("num_microbatches", num_microbatches),
    ):
        if value < 1:
            raise ValueError(f"{field} must be at least 1, got {value}")


# Generators


class RankOrders(NamedTuple):
    """The orders of all ranks as arrays ``[rank, position]``."""

    stage: NDArray[np.int64]
    is_backward: NDArray[np.bool_]
    microbatch: NDArray[np.int64]


def check_shape(name: ScheduleName, num_ranks: int, num_chunks: int, num_microbatches: int) -> None:
    """Refuse a shape that the schedule does not have, naming the nearest that it has."""
    check_counts(num_ranks, num_chunks, num_microbatches)
    if name == ScheduleName.ONE_F_ONE_B:
        if num_chunks != 1:
            raise ValueError(f"num_chunks must be 1 for {name}, got {num_chunks}; interleaved-1f1b takes more")
        return
    if num_ranks < 2:
        raise ValueError(f"num_ranks must be at least 2 for {name}, got {num_ranks}")
    if num_chunks < 2:
        raise ValueError(f"num_chunks must be at least 2 for {name}, got {num_chunks}; 1f1b has one")
    if num_microbatches % num_ranks:
        below = num_microbatches - num_microbatches % num_ranks
        nearest = f"{below} or {below + num_ranks}" if below else f"{num_ranks}"
        raise ValueError(
            f"num_microbatches must be a multiple of num_ranks ({num_ranks}) for {name}, got {num_microbatches}; "
            f"nearest: {nearest}"
        )


def num_warmups(name: ScheduleName, num_ranks: int, num_chunks: int, num_microbatches: int) -> NDArray[np.int64]:
    """Forwards of each rank before it alternates forward and backward.

    Notes
    -----
    1F1B: ``p - 1 - r``. Interleaved: ``2 (p - 1 - r) + (v - 1) p``. Both at most all the forwards there are.
    Source: Megatron-Core, pipeline_parallel/schedules.py, get_pp_rank_microbatches with groups of p microbatches. As
    there, m = p is no case of its own (older versions made all forwards warm-ups then).
    """
    below = num_ranks - 1 - np.arange(num_ranks)
    warmups = below if name == ScheduleName.ONE_F_ONE_B else 2 * below + (num_chunks - 1) * num_ranks
    return np.minimum(warmups, num_microbatches * num_chunks)


def rank_orders(name: ScheduleName, num_ranks: int, num_chunks: int, num_microbatches: int) -> RankOrders:
    """The orders of a named schedule: warm-up forwards, forward and backward in turn, the backwards left over.

    Raises ValueError for a shape that the schedule does not have.

    Notes
    -----
    Forwards run through groups of p microbatches, each group through one chunk after the other; backwards the same,
    from the last chunk to the first. Source: Megatron-Core, pipeline_parallel/schedules.py, get_schedule_table and
    forward_backward_pipelining_with_interleaving. With one chunk this is the order of microbatches, as in 1F1B.
    """
    check_shape(name, num_ranks, num_chunks, num_microbatches)
    num_forwards = num_microbatches * num_chunks
    index = np.arange(num_forwards)
    group, within = np.divmod(index, num_ranks * num_chunks)
    chunk, offset = np.divmod(within, num_ranks)
    if name == ScheduleName.ONE_F_ONE_B:
        chunk, microbatch = np.zeros_like(index), index
    else:
        microbatch = group * num_ranks + offset

    # Forward n comes after backwards 0 .. n - warm-ups - 1, backward k after forwards 0 .. k + warm-ups.
    rank = np.arange(num_ranks)[:, None]
    warmups = num_warmups(name, num_ranks, num_chunks, num_microbatches)[:, None]
    forward_position = index + np.maximum(index - warmups, 0)
    backward_position = index + np.minimum(index + warmups + 1, num_forwards)
    stage = np.empty((num_ranks, 2 * num_forwards), np.int64)
    is_backward = np.zeros(stage.shape, np.bool_)
    microbatches = np.empty_like(stage)
    stage[rank, forward_position] = chunk * num_ranks + rank
    stage[rank, backward_position] = (num_chunks - 1 - chunk) * num_ranks + rank
    is_backward[rank, backward_position] = True
    microbatches[rank, forward_position] = microbatch
    microbatches[rank, backward_position] = microbatch
    return RankOrders(stage, is_backward, microbatches)


def generate(name: ScheduleName, num_ranks: int, num_chunks: int, num_microbatches: int) -> Schedule:
    """A named schedule of this shape; ValueError when it has no such shape."""
    kinds = {False: ActionKind.F, True: ActionKind.B}
    rows = zip(*(array.tolist() for array in rank_orders(name, num_ranks, num_chunks, num_microbatches)), strict=True)
    return Schedule(
        name=name,
        num_ranks=num_ranks,
        num_chunks=num_chunks,
        num_microbatches=num_microbatches,
        actions=tuple(
            tuple(Action(stage, kinds[backward], microbatch) for stage, backward, microbatch in zip(*row, strict=True))
            for row in rows
        ),
    )


def one_f_one_b(num_ranks: int, num_microbatches: int) -> Schedule:
    """1F1B: rank r warms up with p - 1 - r forwards, then alternates forward and backward."""
    return generate(ScheduleName.ONE_F_ONE_B, num_ranks, 1, num_microbatches)


def interleaved_one_f_one_b(num_ranks: int, num_chunks: int, num_microbatches: int) -> Schedule:
    """1F1B over several chunks per rank, in the order of Megatron-LM; needs p >= 2, v >= 2 and m a multiple of p."""
    return generate(ScheduleName.INTERLEAVED_ONE_F_ONE_B, num_ranks, num_chunks, num_microbatches)


# Torch's CSV, format "compute_only"


def to_csv(schedule: Schedule) -> str:
    """One line per rank, one cell per action, as torch's pipeline runtime loads it (format ``compute_only``)."""
    return "".join(",".join(map(str, row)) + "\n" for row in schedule.actions)


def from_csv(text: str, *, name: str = "csv") -> Schedule:
    """A schedule from torch's CSV (format ``compute_only``); empty cells are idle steps and left out.

    Raises ValueError for a cell that is no action, and for whatever `validate` refuses.
    """
    lines = [line.split(",") for line in text.splitlines() if line.strip()]
    actions = tuple(tuple(_parse_row(cells, number)) for number, cells in enumerate(lines, start=1))
    flat = [action for row in actions for action in row]
    if not flat:
        raise ValueError("a schedule needs at least one action, got none")
    num_stages = 1 + max(action.stage for action in flat)
    if num_stages % len(actions):
        raise ValueError(
            f"the number of stages must be a multiple of the number of ranks ({len(actions)}), got {num_stages}"
        )
    schedule = Schedule(
        name=name,
        num_ranks=len(actions),
        num_chunks=num_stages // len(actions),
        num_microbatches=1 + max(action.microbatch for action in flat),
        actions=actions,
    )
    validate(schedule)
    return schedule


_CELL = re.compile(r"(\d+)([FBIW])(\d+)", re.ASCII)


def _parse_row(cells: Sequence[str], line: int) -> Iterator[Action]:
    for column, cell in enumerate(cells, start=1):
        if not (content := cell.strip()):
            continue
        match = _CELL.fullmatch(content)
        if match is None:
            raise ValueError(
                f"line {line}, cell {column}: expected an action such as 2F0 (stage, F, B, I or W, microbatch), "
                f"got {content!r}"
            )
        yield Action(int(match[1]), ActionKind(match[2]), int(match[3]))


# Validity


def validate(schedule: Schedule) -> None:
    """Check that the schedule can be executed.

    Raises ValueError unless each stage does each microbatch exactly once (forward, and backward whole or as both its
    halves), on its own rank, and all actions can run in this order: a forward after the forward of the stage before,
    a backward after its forward and after the backward of the stage behind.
    """
    _check_complete(schedule)
    _check_no_deadlock(schedule)


def _check_complete(schedule: Schedule) -> None:
    kinds: dict[tuple[int, int], str] = {}
    for rank, row in enumerate(schedule.actions):
        for action in row:
            if not 0 <= action.stage < schedule.num_stages:
                raise ValueError(f"stage must be in 0..{schedule.num_stages - 1}, got {action} on rank {rank}")
            if not 0 <= action.microbatch < schedule.num_microbatches:
                last = schedule.num_microbatches - 1
                raise ValueError(f"microbatch must be in 0..{last}, got {action} on rank {rank}")
            if rank != schedule.rank_of(action.stage):
                raise ValueError(f"{action} belongs on rank {schedule.rank_of(action.stage)}, got it on rank {rank}")
            key = (action.stage, action.microbatch)
            if action.kind in kinds.get(key, ""):
                raise ValueError(f"{action} must occur once, got it again on rank {rank}")
            kinds[key] = kinds.get(key, "") + action.kind
    for stage in range(schedule.num_stages):
        for microbatch in range(schedule.num_microbatches):
            found = "".join(sorted(kinds.get((stage, microbatch), "")))
            if found not in ("BF", "FIW"):
                raise ValueError(
                    f"stage {stage}, microbatch {microbatch} needs F and either B or both I and W, "
                    f"got {', '.join(found) or 'nothing'}"
                )


def dependencies(action: Action, num_stages: int) -> tuple[tuple[Action, ...], ...]:
    """What must end before an action starts, besides what stands before it on its rank: one of each tuple."""
    stage, kind, microbatch = action
    forward = (Action(stage, ActionKind.F, microbatch),)
    if kind is ActionKind.F:
        return ((Action(stage - 1, kind, microbatch),),) if stage else ()
    if kind is ActionKind.W:
        return ((Action(stage, ActionKind.I, microbatch),),)
    if stage == num_stages - 1:
        return (forward,)
    behind = (Action(stage + 1, ActionKind.B, microbatch), Action(stage + 1, ActionKind.I, microbatch))
    return (forward, behind)


def _check_no_deadlock(schedule: Schedule) -> None:
    """Run each rank until it has to wait, again and again; deadlock when no rank can move."""
    done: set[Action] = set()
    position = [0] * schedule.num_ranks

    def is_ready(action: Action) -> bool:
        needs = dependencies(action, schedule.num_stages)
        return all(any(one in done for one in choice) for choice in needs)

    moved = True
    while moved:
        moved = False
        for rank, row in reversed(list(enumerate(schedule.actions))):
            while position[rank] < len(row) and is_ready(row[position[rank]]):
                done.add(row[position[rank]])
                position[rank] += 1
                moved = True
    stuck = [
        f"rank {rank} before {row[at]}"
        for rank, (row, at) in enumerate(zip(schedule.actions, position, strict=True))
        if at < len(row)
    ]
    if stuck:
        raise ValueError(f"the order deadlocks: {', '.join(stuck)} can never go on")
