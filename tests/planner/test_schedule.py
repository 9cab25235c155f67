"""Orders of named schedules, torch's CSV, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.schedule import (
    Action,
    ActionKind,
    Schedule,
    ScheduleName,
    from_csv,
    generate,
    interleaved_one_f_one_b,
    one_f_one_b,
    to_csv,
    validate,
)

# Written by hand and trained with torch's pipeline runtime.
HAND_WRITTEN = """\
0F0,0F1,0F2,0F3,,,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7
,1F0,1B0,1F1,1B1,1F2,1B2,1F3,1B3,1F4,1B4,1F5,1B5,1F6,1B6,1F7,1B7
"""


def rows(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, row)) for row in schedule.actions]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    if draw(st.booleans()):
        return one_f_one_b(draw(st.integers(1, 6)), draw(st.integers(1, 12)))
    num_ranks = draw(st.integers(2, 4))
    return interleaved_one_f_one_b(num_ranks, draw(st.integers(2, 4)), num_ranks * draw(st.integers(1, 4)))


# Orders


def test_1f1b_of_three_ranks() -> None:
    # Warm-ups 2, 1, 0, then a forward and a backward in turn.
    assert rows(one_f_one_b(3, 4)) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_1f1b_with_fewer_microbatches_than_ranks() -> None:
    assert rows(one_f_one_b(3, 1)) == ["0F0 0B0", "1F0 1B0", "2F0 2B0"]
    assert rows(one_f_one_b(4, 2))[0] == "0F0 0F1 0B0 0B1"


def test_1f1b_of_one_rank_alternates() -> None:
    assert rows(one_f_one_b(1, 3)) == ["0F0 0B0 0F1 0B1 0F2 0B2"]


def test_interleaved_of_two_ranks_and_chunks() -> None:
    # Warm-ups 2 (p - 1 - r) + (v - 1) p = 4 and 2 of 8 forwards; groups of 2 microbatches per chunk.
    assert rows(interleaved_one_f_one_b(2, 2, 4)) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_interleaved_warmup_is_capped_at_all_forwards() -> None:
    # Two microbatches: 4 forwards; rank 0 would warm up with 2 + 2 = 4 of them, rank 1 with 2.
    assert rows(interleaved_one_f_one_b(2, 2, 2)) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]


def plain_megatron_rows(num_ranks: int, num_chunks: int, num_microbatches: int) -> list[str]:
    """The order as Megatron's loops make it: a table of (microbatch, chunk), warm-up, steady part, cool-down."""
    table = [
        (group + offset, chunk)
        for group in range(0, num_microbatches, num_ranks)
        for chunk in range(num_chunks)
        for offset in range(num_ranks)
    ]
    result = []
    for rank in range(num_ranks):
        warmup = min(2 * (num_ranks - rank - 1) + (num_chunks - 1) * num_ranks, len(table))
        forwards = [f"{chunk * num_ranks + rank}F{microbatch}" for microbatch, chunk in table]
        backwards = [f"{(num_chunks - chunk - 1) * num_ranks + rank}B{microbatch}" for microbatch, chunk in table]
        row = forwards[:warmup]
        for k in range(len(table) - warmup):
            row += [forwards[warmup + k], backwards[k]]
        result.append(" ".join(row + backwards[len(table) - warmup :]))
    return result


@pytest.mark.parametrize("num_ranks", [2, 3, 4, 7])
@pytest.mark.parametrize("num_chunks", [2, 3, 5])
@pytest.mark.parametrize("num_groups", [1, 2, 5])
def test_interleaved_order_is_megatrons(num_ranks: int, num_chunks: int, num_groups: int) -> None:
    schedule = interleaved_one_f_one_b(num_ranks, num_chunks, num_groups * num_ranks)
    assert rows(schedule) == plain_megatron_rows(num_ranks, num_chunks, num_groups * num_ranks)


@given(schedules())
def test_generated_schedules_are_valid(schedule: Schedule) -> None:
    validate(schedule)


@given(schedules())
def test_csv_round_trip(schedule: Schedule) -> None:
    assert from_csv(to_csv(schedule), name=schedule.name) == schedule


def test_action_prints_as_in_torch() -> None:
    assert str(Action(2, ActionKind.F, 0)) == "2F0"


# Shapes that do not exist


@pytest.mark.parametrize(
    ("num_ranks", "num_chunks", "num_microbatches", "message"),
    [
        (4, 2, 6, r"multiple of num_ranks \(4\) .* got 6; nearest: 4 or 8"),
        (4, 2, 3, "got 3; nearest: 4$"),
        (1, 2, 4, "num_ranks must be at least 2"),
        (4, 1, 4, "num_chunks must be at least 2"),
        (4, 2, 0, "num_microbatches must be at least 1, got 0"),
    ],
)
def test_interleaved_refuses(num_ranks: int, num_chunks: int, num_microbatches: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        interleaved_one_f_one_b(num_ranks, num_chunks, num_microbatches)


def test_1f1b_refuses_chunks() -> None:
    with pytest.raises(ValueError, match="num_chunks must be 1 for 1f1b, got 2"):
        generate(ScheduleName.ONE_F_ONE_B, 4, 2, 8)
    with pytest.raises(ValueError, match="num_ranks must be at least 1, got 0"):
        one_f_one_b(0, 8)


# CSV


def test_hand_written_csv_is_read() -> None:
    schedule = from_csv(HAND_WRITTEN)
    assert (schedule.num_ranks, schedule.num_chunks, schedule.num_microbatches) == (2, 1, 8)
    assert rows(schedule)[0].startswith("0F0 0F1 0F2 0F3 0B0 0F4")
    assert (
        to_csv(schedule) == "\n".join(line.replace(",,,", ",").strip(",") for line in HAND_WRITTEN.splitlines()) + "\n"
    )


def test_csv_with_split_backward() -> None:
    schedule = from_csv("0F0,0I0,0W0\n1F0,1I0,1W0\n")
    assert schedule.actions[1][2] == Action(1, ActionKind.W, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one action"),
        ("0F0,0B0\n1F0,forward\n", "line 2, cell 2: expected an action such as 2F0 .* got 'forward'"),
        ("(0F3;3B1)OVERLAP_F_B\n", "line 1, cell 1"),
        ("0F0,0B0\n1F0,1B0,2F0,2B0\n", r"stages must be a multiple of the number of ranks \(2\), got 3"),
        ("1F0,1B0\n0F0,0B0\n", "1F0 belongs on rank 1, got it on rank 0"),
        ("0F0,0F0,0B0\n", "0F0 must occur once"),
        ("0F0,0B0,0F1\n", "stage 0, microbatch 1 needs F and either B or both I and W, got F$"),
        ("0F0,0I0\n", "got F, I$"),
        ("0F0,0F1,0B0,0B1\n1F0,1B0\n", "stage 1, microbatch 1 needs .* got nothing"),
        ("0B0,0F0\n", "deadlocks: rank 0 before 0B0"),
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "deadlocks: rank 0 before 0B0, rank 1 before 1F1"),
        ("0F0,0W0,0I0\n", "deadlocks: rank 0 before 0W0"),
    ],
)
def test_csv_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_csv(text)


def test_validate_refuses_what_lies_outside() -> None:
    def schedule_of(action: Action) -> Schedule:
        return Schedule(name="x", num_ranks=1, num_chunks=1, num_microbatches=1, actions=((action,),))

    with pytest.raises(ValueError, match=r"stage must be in 0..0, got 1F0 on rank 0"):
        validate(schedule_of(Action(1, ActionKind.F, 0)))
    with pytest.raises(ValueError, match=r"microbatch must be in 0..0, got 0F1 on rank 0"):
        validate(schedule_of(Action(0, ActionKind.F, 1)))
    with pytest.raises(ValueError, match="one row for each of 2 ranks, got 1"):
        Schedule(name="x", num_ranks=2, num_chunks=1, num_microbatches=1, actions=((),))
