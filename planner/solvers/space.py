"""The outer space: which degrees exist, as arrays, and how many candidates lie below each core row.

A *core row* is (tp, pp, cp, ep, etp, microbatch size, vpp). Below it lie its *outer rows*: kind of context parallelism,
ZeRO stage, dp_shard, rank order. Sizes of subtrees are products, so nothing has to be listed to be counted.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.layer_costs import Keys, distinct_rows
from planner.strategy import Recompute
from planner.targets.candidate import ModelFacts

Ints = NDArray[np.int64]

DEGREE_KEYS = (
    "dp",
    "dp_shard",
    "dp_replicate",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "zero_stage",
    "microbatch_size",
)
"""Keys of ``--fix`` that take whole numbers."""

WORD_KEYS = {
    "recompute": tuple(kind.value for kind in Recompute),
    "schedule": ("1f1b", "interleaved-1f1b"),
    "sequence_parallel": ("true", "false"),
}
"""Keys of ``--fix`` that take words, and the words."""


@lru_cache(maxsize=100_000)
def divisors(number: int) -> tuple[int, ...]:
    """All divisors in increasing order."""
    small = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeChoice:
    """Which recomputation is open."""

    kinds: tuple[Recompute, ...]
    """Kinds that may be used."""
    partial: bool
    """Whether only some layers of a stage may recompute; false where the user fixed the kind."""
    uniform: bool
    """Whether all stages recompute the same number of layers, and selective means all layers (a target's rule)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """Keys that the user fixed: allowed numbers, upper ends and words."""

    numbers: Mapping[str, tuple[int, ...]]
    """Key -> allowed values."""
    at_most: Mapping[str, int]
    """Key -> largest value."""
    words: Mapping[str, tuple[str, ...]]
    """Key -> allowed words."""

    def allows(self, key: str, value: int) -> bool:
        """Whether a number is allowed for a key."""
        return value in self.numbers.get(key, (value,)) and value <= self.at_most.get(key, value)

    def touches(self, key: str) -> bool:
        """Whether the user said anything about a key of numbers."""
        return key in self.numbers or key in self.at_most

    def kinds(self) -> tuple[Recompute, ...]:
        """Kinds of recomputation that are allowed."""
        words = self.words.get("recompute")
        return tuple(Recompute) if words is None else tuple(Recompute(word) for word in words)

    @property
    def sequence_parallel(self) -> bool:
        """Whether activations outside tensor-parallel regions are split; true unless fixed to false."""
        return self.words.get("sequence_parallel", ("true",))[0] == "true"

    def describe(self) -> str:
        """The fixed keys in words, empty without any."""
        parts = [f"{key}={','.join(map(str, values))}" for key, values in sorted(self.numbers.items())]
        parts += [f"{key}<={value}" for key, value in sorted(self.at_most.items())]
        parts += [f"{key}={','.join(values)}" for key, values in sorted(self.words.items())]
        return ", ".join(parts)


def parse_fixed(fix: Mapping[str, object]) -> Fixed:
    """What ``--fix`` and ``search(fix=...)`` say: key -> ``8``, ``"4,8"``, ``"<=8"`` or a word.

    Raises
    ------
    ValueError
        With one line per problem: key, value, what is accepted.
    """
    numbers: dict[str, tuple[int, ...]] = {}
    at_most: dict[str, int] = {}
    words: dict[str, tuple[str, ...]] = {}
    problems = []
    for key, value in fix.items():
        text = str(value).strip().lower() if isinstance(value, bool) else str(value).strip()
        if key in WORD_KEYS:
            chosen = tuple(word.strip().lower() for word in text.split(","))
            unknown = [word for word in chosen if word not in WORD_KEYS[key]]
            if unknown or (key == "sequence_parallel" and len(chosen) != 1):
                problems.append(f"fix {key}: {text!r:.80} is not accepted; accepted: {', '.join(WORD_KEYS[key])}")
            words[key] = chosen
        elif key in DEGREE_KEYS:
            problem = _parse_number(key, text, numbers, at_most)
            if problem:
                problems.append(problem)
        else:
            accepted = (*DEGREE_KEYS, *WORD_KEYS)
            near = difflib.get_close_matches(key, accepted, n=1)
            hint = f", did you mean {near[0]!r}?" if near else ";"
            problems.append(f"fix {key!r:.80}: unknown key{hint} accepted: {', '.join(accepted)}")
    if problems:
        raise ValueError("\n".join(problems))
    return Fixed(numbers=numbers, at_most=at_most, words=words)


def _parse_number(key: str, text: str, numbers: dict[str, tuple[int, ...]], at_most: dict[str, int]) -> str | None:
    least = 0 if key == "zero_stage" else 1
    body = text.removeprefix("<=")
    parts = [part.strip() for part in body.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 16 and int(part) >= least for part in parts):
        return f"fix {key}: {text!r:.80} is not accepted; accepted: a whole number from {least}, as 8, 4,8 or <=8"
    if text.startswith("<="):
        if len(parts) != 1:
            return f"fix {key}: {text!r:.80} is not accepted; <= takes one number"
        at_most[key] = int(parts[0])
    else:
        numbers[key] = tuple(sorted({int(part) for part in parts}))
    if key == "zero_stage" and text.startswith("<=") is False and max(numbers[key]) > 3:
        return f"fix {key}: {text!r:.80} is not accepted; accepted: 0, 1, 2, 3"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshRows:
    """Core rows of one pp without vpp. Each [row]."""

    pp: int
    tp: Ints
    cp: Ints
    dp: Ints
    ep: Ints
    etp: Ints
    microbatch_size: Ints
    num_microbatches: Ints
    expert_axis: Ints
    """Ranks with the same expert weights."""
    key: Ints
    """Row of the layer table."""
    num_outer: Ints
    """Outer rows below each."""

    def take(self, index: Any) -> MeshRows:
        """Some of the rows."""
        values = {name: getattr(self, name)[index] for name in self.__slots__ if name != "pp"}
        return MeshRows(pp=self.pp, **values)

    def __len__(self) -> int:
        return len(self.tp)


def mesh_rows(pp: int, num_devices: int, facts: ModelFacts, fixed: Fixed) -> dict[str, Ints]:
    """All (tp, cp, dp, ep, etp, microbatch size) of one pp whose products are right, as arrays [row].

    dp divides the batch, microbatches divide what a replica gets, ep divides the experts and etp their inner size:
    other values are no candidates of any target, so they are not counted.
    """
    rest = num_devices // pp
    experts = [(1, 1)]
    if facts.num_experts:
        inner = [dim.size for dim in facts.dims if dim.axis == "etp"]
        widths = divisors(int(np.gcd.reduce(inner))) if inner else (1,)
        experts = [
            (ep, etp)
            for ep in divisors(facts.num_experts)
            if fixed.allows("ep", ep)
            for etp in widths
            if fixed.allows("etp", etp) and rest % (ep * etp) == 0
        ]
    elif not (fixed.allows("ep", 1) and fixed.allows("etp", 1)):
        experts = []
    rows: list[tuple[int, int, int]] = []
    for tp in divisors(rest):
        if not fixed.allows("tp", tp):
            continue
        for cp in divisors(rest // tp):
            dp = rest // (tp * cp)
            if fixed.allows("cp", cp) and fixed.allows("dp", dp) and facts.global_batch_size % dp == 0:
                rows.append((tp, cp, dp))
    columns: dict[str, list[Ints]] = {name: [] for name in ("tp", "cp", "dp", "ep", "etp", "microbatch_size")}
    pairs = np.asarray(experts, dtype=np.int64).reshape(-1, 2)
    for tp, cp, dp in rows:
        sizes = [size for size in divisors(facts.global_batch_size // dp) if fixed.allows("microbatch_size", size)]
        here = pairs
        count = len(here) * len(sizes)
        columns["tp"].append(np.full(count, tp, dtype=np.int64))
        columns["cp"].append(np.full(count, cp, dtype=np.int64))
        columns["dp"].append(np.full(count, dp, dtype=np.int64))
        columns["ep"].append(np.repeat(here[:, 0], len(sizes)))
        columns["etp"].append(np.repeat(here[:, 1], len(sizes)))
        columns["microbatch_size"].append(np.tile(np.asarray(sizes, dtype=np.int64), len(here)))
    return {name: np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64) for name, parts in columns.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterChoices:
    """Outer choices below a core row of given (dp, cp, pp). Each [choice]."""

    cp_kind: Ints
    zero_stage: Ints
    dp_shard: Ints
    dp_replicate: Ints
    rank_order: Ints

    def __len__(self) -> int:
        return len(self.cp_kind)


def outer_choices(dp: int, cp: int, pp: int, fixed: Fixed) -> OuterChoices:
    """All outer choices; rules of a target are applied later."""
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    if fixed.touches("zero_stage"):
        zero_stages = tuple(stage for stage in zero_stages if fixed.allows("zero_stage", stage))
    shards = divisors(dp)
    if fixed.touches("dp_shard") or fixed.touches("dp_replicate"):
        shards = tuple(
            shard for shard in shards if fixed.allows("dp_shard", shard) and fixed.allows("dp_replicate", dp // shard)
        )
    return _outer_choices(dp, cp > 1, pp > 1 and dp > 1, zero_stages, shards)


@lru_cache(maxsize=10_000)
def _outer_choices(
    dp: int, context: bool, ordered: bool, zero_stages: tuple[int, ...], shards: tuple[int, ...]
) -> OuterChoices:
    states = [(0, 1)] if 0 in zero_stages and 1 in shards else []
    states += [(stage, shard) for stage in zero_stages if stage > 0 for shard in shards if shard > 1 or context]
    rows = [
        (kind, stage, shard, order)
        for kind in range(2 if context else 1)
        for stage, shard in states
        for order in range(2 if ordered else 1)
    ]
    array = np.asarray(rows, dtype=np.int64).reshape(-1, 4)
    return OuterChoices(
        cp_kind=array[:, 0],
        zero_stage=array[:, 1],
        dp_shard=array[:, 2],
        dp_replicate=dp // array[:, 2],
        rank_order=array[:, 3],
    )


def count_outer(rows: Mapping[str, Ints], pp: int, fixed: Fixed) -> Ints:
    """Outer rows below each core row. [row]"""
    packed = rows["dp"] * (2**40) + rows["cp"]
    values, inverse = np.unique(packed, return_inverse=True)
    sizes = [len(outer_choices(int(value >> 40), int(value & (2**40 - 1)), pp, fixed)) for value in values]
    return np.asarray(sizes, dtype=np.int64)[inverse] if len(values) else np.zeros(0, dtype=np.int64)


def collect_keys(meshes: Mapping[int, Mapping[str, Ints]]) -> tuple[Keys, dict[int, Ints]]:
    """The distinct table keys of all meshes, and the key of each row by pp."""
    names = ("tp", "cp", "ep", "etp", "microbatch_size")
    columns = [np.concatenate([rows[name] for rows in meshes.values()] or [_NONE]) for name in names]
    first, inverse = distinct_rows(*columns)
    keys = Keys(**{name: column[first] for name, column in zip(names, columns, strict=True)})
    index: dict[int, Ints] = {}
    start = 0
    for pp, rows in meshes.items():
        index[pp] = inverse[start : start + len(rows["tp"])]
        start += len(rows["tp"])
    return keys, index


_NONE = np.zeros(0, dtype=np.int64)
