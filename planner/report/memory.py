"""Memory of each pipeline rank by term, against what a plan may use."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from rich.console import RenderableType
from rich.text import Text

from hardware.units import format_bytes
from planner.plan import Plan, StageMemory, edge_layers
from planner.report.layout import bar, heading, table
from planner.strategy import Recompute

TERMS = ("weights", "gradients", "optimizer", "activations", "transient", "gathered", "runtime")
"""Terms of a rank's memory in the order of printing."""
MAX_ROWS = 9
"""More rows than this are joined further."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankGroup:
    """Neighbouring pipeline ranks that hold the same."""

    first: int
    last: int
    layers: str
    """What they hold, in words."""
    recompute: str
    """Layers that are recomputed, in words."""
    fullest: StageMemory
    """Memory of the fullest of them."""

    @property
    def ranks(self) -> str:
        """``3`` or ``3-17``."""
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def memory_table(plan: Plan) -> list[RenderableType]:
    """A heading and a table; the largest term of each row is marked."""
    prediction = plan.prediction
    groups = rank_groups(plan)
    shown = [name for name in TERMS if any(getattr(group.fullest, name) for group in groups)]
    recomputes = any(group.recompute != "0" for group in groups)
    names = ["rank", "layers", *(["recomputed"] if recomputes else []), *shown, "total", "of usable"]
    made = table(*names, left=2)
    made.add_column("", no_wrap=True)
    fullest = max(group.fullest.total for group in groups)
    for group in groups:
        memory = group.fullest
        share = memory.total / prediction.budget if prediction.budget else 2.0
        cells: list[str | Text] = [group.ranks, group.layers, *([group.recompute] if recomputes else [])]
        cells += [_term(memory, name) for name in shown]
        cells += [
            Text(_gib(memory.total), style="bold" if memory.total == fullest else ""),
            Text(f"{share:.0%}", style="bold red" if share > 1 else ""),
            bar(share),
        ]
        made.add_row(*cells)
    many = any(group.first < group.last for group in groups)
    note = "GiB; * is the largest term" + ("; of several ranks the fullest" if many else "")
    return [heading(f"Memory by pipeline rank, usable {_usable(plan)}", note), made]


def _usable(plan: Plan) -> str:
    prediction = plan.prediction
    taken = [
        f"{plan.headroom:.3g}".rstrip() if not plan.headroom else f"{plan.headroom:.1%} headroom".replace(".0%", "%")
    ]
    if plan.cluster.reserve:
        taken.append(f"{format_bytes(plan.cluster.reserve)} reserve")
    less = f" less {' and '.join(taken)}" if plan.headroom or plan.cluster.reserve else ""
    return f"{format_bytes(prediction.budget)} ({format_bytes(prediction.capacity)}{less})"


def _gib(num_bytes: int) -> str:
    value = num_bytes / 2**30
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _term(memory: StageMemory, name: str) -> Text:
    binding = memory.binding == name
    return Text(_gib(getattr(memory, name)) + ("*" if binding else " "), style="bold yellow" if binding else "")


def rank_groups(plan: Plan) -> list[RankGroup]:
    """Ranks that hold the same, joined; the middle of long pipelines as well, so that a table stays short."""
    memory = plan.prediction.memory_by_stage
    ranks = range(plan.strategy.pp)
    held = [_held(plan, rank) for rank in ranks]
    groups = []
    for _, items in groupby(ranks, key=lambda rank: held[rank]):
        group = list(items)
        groups.append(_group(plan, group[0], group[-1], held, memory))
    if len(groups) <= MAX_ROWS:
        return groups
    keep = (MAX_ROWS - 1) // 2
    middle = _group(plan, groups[keep].first, groups[-keep - 1].last, held, memory)
    return [*groups[:keep], middle, *groups[-keep:]]


def _group(
    plan: Plan, first: int, last: int, held: list[tuple[str, str]], memory: tuple[StageMemory, ...]
) -> RankGroup:
    inside = range(first, last + 1)
    fullest = max(inside, key=lambda rank: (memory[rank].total, -rank))
    layers = list(dict.fromkeys(held[rank][0] for rank in inside))
    recompute = list(dict.fromkeys(held[rank][1] for rank in inside))
    return RankGroup(
        first=first,
        last=last,
        layers=layers[0] if len(layers) == 1 else f"{held[fullest][0]} ...",
        recompute=recompute[0] if len(recompute) == 1 else f"{held[fullest][1]} ...",
        fullest=memory[fullest],
    )


def _held(plan: Plan, rank: int) -> tuple[str, str]:
    """Layers of a rank, stage by stage, and how many of them are recomputed, in words."""
    strategy = plan.strategy
    stages = range(rank, strategy.num_stages, strategy.pp)
    counts = [strategy.layers_per_stage[stage] for stage in stages]
    runs = [(count, len(list(items))) for count, items in groupby(counts)]
    layers = "+".join(f"{number}x{count}" if number > 1 else str(count) for count, number in runs)
    leading, trailing = edge_layers(plan.model)
    if leading and rank == 0:
        layers = f"embedding, {layers}"
    if trailing and rank == strategy.pp - 1:
        layers = f"{layers}, head"
    again = 0 if strategy.recompute is Recompute.NONE else sum(strategy.recompute_layers[stage] for stage in stages)
    return layers, str(again)
