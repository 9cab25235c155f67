"""Every candidate of a small space, one by one: what the search must agree with.

Nothing of the search is used: degrees are looped over, a candidate is legal if the target finds no fault with the
strategy, layouts and recomputation are written down again from their documented families. Time and memory come from
the functions behind ``planner.estimate``, all inner choices of one outer choice in one batch; a test holds that against
``estimate_strategy`` itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from costmodels.stacks import load_stack
from hardware import Cluster
from planner.cost import LayerTimes, compose_layers, job_costs
from planner.graph import ModelGraph
from planner.layer_costs import Keys
from planner.plan import edge_layers
from planner.solvers.entries import outer_entries
from planner.solvers.estimate import outer_row
from planner.solvers.inner import KINDS, InnerProblem
from planner.solvers.layouts import body_types, make_layouts, model_chain
from planner.solvers.shapes import in_flight
from planner.solvers.timeline import durations_of, simulate_step
from planner.strategy import CpKind, RankOrder, Recompute, Strategy
from planner.tables import LayerTable, build_table
from planner.targets import Severity, candidate_of, load_target, model_facts
from planner.workload import Workload

Ints = NDArray[np.int64]
MAX_MESHES = 4000
"""Degrees of a case that is small."""
MeshKey = tuple[int, int, int, int, int]
"""(tp, pp, cp, ep, etp), what makes two plans distinct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """The arguments of a search."""

    model: ModelGraph
    cluster: Cluster
    workload: Workload
    target: str = "any"
    headroom: float = 0.0

    def with_memory(self, memory: int) -> Case:
        """The same on devices of another size."""
        device = replace(self.cluster.device, memory=memory)
        return replace(self, cluster=replace(self.cluster, device=device))

    @property
    def budget(self) -> int:
        """What a plan may use of a device [bytes]."""
        return int(self.cluster.device.memory * (1 - self.headroom)) - self.cluster.reserve

    @property
    def num_layers(self) -> int:
        """Layers without embedding and head."""
        return self.model.num_layers - sum(edge_layers(self.model))

    def describe(self) -> str:
        """One line for the message of a failed test."""
        blocks = "+".join(f"{block.count} {block.layer_type}" for block in self.model.blocks)
        levels = "x".join(str(level.num_devices) for level in self.cluster.levels)
        return (
            f"{self.model.name} [{blocks}] on {levels} {self.cluster.device.name} "
            f"(memory {self.cluster.device.memory}), batch {self.workload.global_batch_size}, "
            f"seq {self.workload.seq_len}, target {self.target}, headroom {self.headroom}"
        )


# The space


def divisors(number: int) -> list[int]:
    return [value for value in range(1, number + 1) if number % value == 0]


def most_virtual_stages(case: Case, pp: int) -> int:
    """Virtual stages per rank; 0 where the pipeline has more ranks than there are layers to deal out."""
    ends = sum(edge_layers(case.model)) if load_target(case.target).allow_empty_end_stages else 0
    most = (case.num_layers + ends) // pp
    return min(most, 1) if pp == 1 else most


def expert_sizes(model: ModelGraph) -> tuple[int, int]:
    """Experts, and the width of one; (1, 1) without."""
    dims = [dim for block in model.blocks for dim in model.layer_types[block.layer_type].dims.values()]
    experts = next((dim.size for dim in dims if dim.axis == "ep"), 1)
    widths = [dim.size for dim in dims if dim.axis == "etp"]
    return experts, math.gcd(*widths) if widths else 1


def raw_meshes(case: Case) -> Iterator[Strategy]:
    """All degrees whose products are right, legal or not, with the plainest outer choices."""
    num_devices, batch = case.cluster.num_devices, case.workload.global_batch_size
    experts, width = expert_sizes(case.model)
    for pp in divisors(num_devices):
        for tp, cp in itertools.product(divisors(num_devices // pp), repeat=2):
            if (num_devices // pp) % (tp * cp):
                continue
            dp = num_devices // (pp * tp * cp)
            if batch % dp:
                continue
            for ep, etp in itertools.product(divisors(experts), divisors(width)):
                if (num_devices // pp) % (ep * etp):
                    continue
                for size, vpp in itertools.product(divisors(batch // dp), range(1, most_virtual_stages(case, pp) + 1)):
                    yield Strategy(
                        tp=tp,
                        pp=pp,
                        cp=cp,
                        dp_replicate=dp,
                        ep=ep,
                        etp=etp,
                        microbatch_size=size,
                        num_microbatches=batch // (dp * size),
                        vpp=vpp,
                        layers_per_stage=(0,) * (pp * vpp),
                        recompute_layers=(0,) * (pp * vpp),
                    )


def raw_outer(mesh: Strategy) -> Iterator[Strategy]:
    """All sharding of states, kinds of context parallelism and rank orders, each placement once."""
    dp = mesh.dp
    states = [(0, 1)] + [(zero, shard) for zero in (1, 2, 3) for shard in divisors(dp) if shard * mesh.cp > 1]
    kinds = tuple(CpKind) if mesh.cp > 1 else (CpKind.RING,)
    orders = tuple(RankOrder) if mesh.pp > 1 and dp > 1 else (RankOrder.PP_OUTER,)
    for kind, (zero, shard), order in itertools.product(kinds, states, orders):
        yield replace(mesh, cp_kind=kind, zero_stage=zero, dp_shard=shard, dp_replicate=dp // shard, rank_order=order)


def space_size(case: Case) -> int:
    """Outer candidates, those that rules cut among them."""
    return sum(1 for mesh in raw_meshes(case) for _ in raw_outer(mesh))


@cache
def layouts(num_layers: int, num_stages: int) -> tuple[tuple[int, ...], ...]:
    """The balanced family, ends without layers among them; the target's rules say which are legal.

    q is the mean rounded up; both ends have q - 3 .. q + 1 layers; the stages between differ by at most one, and the
    larger ones are the last ones.
    """
    if num_stages == 1:
        return ((num_layers,),)
    q = math.ceil(num_layers / num_stages)
    found = []
    for first, last in itertools.product(range(max(0, q - 3), q + 2), repeat=2):
        rest, middle = num_layers - first - last, num_stages - 2
        if rest < 0 or (middle == 0 and rest):
            continue
        few, extra = divmod(rest, middle) if middle else (0, 0)
        found.append((first, *[few] * (middle - extra), *[few + 1] * extra, last))
    return tuple(found)


def recompute_choices(
    layers: tuple[int, ...], pp: int, uniform: bool, kinds: Sequence[Recompute] = tuple(Recompute)
) -> Iterator[tuple[Recompute, tuple[int, ...]]]:
    """None; or selective or full for the first n layers of each chunk of a rank, every n of every rank.

    Megatron knows one n for full, and selective for all layers only.
    """
    num_stages = len(layers)
    if Recompute.NONE in kinds:
        yield Recompute.NONE, (0,) * num_stages
    for kind in (Recompute.SELECTIVE, Recompute.FULL):
        if kind not in kinds:
            continue
        most = [max(layers[rank::pp]) for rank in range(pp)]
        if uniform:
            counts = (
                [(max(layers),) * pp] if kind is Recompute.SELECTIVE else [(n,) * pp for n in range(max(layers) + 1)]
            )
        else:
            counts = list(itertools.product(*(range(n + 1) for n in most)))
        for vector in counts:
            chosen = tuple(min(vector[stage % pp], layers[stage]) for stage in range(num_stages))
            if any(chosen):
                yield kind, chosen


# Evaluation


@dataclass(slots=True)
class Evaluated:
    """All complete candidates of a case; arrays are [candidate]."""

    case: Case
    num_outer: int
    """Legal outer candidates."""
    outer: list[Strategy]
    """Outer choices of each candidate."""
    inner: list[tuple[tuple[int, ...], Recompute, tuple[int, ...]]]
    """Layers of each stage, recomputation, recomputed layers of each stage."""
    time: NDArray[np.float64]
    need: Ints
    """Memory of the fullest rank [bytes]."""
    least_work: dict[str, Any] = field(default_factory=dict)

    def strategy(self, index: int) -> Strategy:
        layers, kind, counts = self.inner[index]
        return replace(self.outer[index], layers_per_stage=layers, recompute=kind, recompute_layers=counts)

    def __len__(self) -> int:
        return len(self.outer)

    @property
    def least_need(self) -> int:
        """Memory of the candidate that needs least [bytes]."""
        return int(self.need.min())

    def best_time(self, budget: int) -> float:
        """The least step time within a budget; infinite where nothing fits."""
        return float(np.where(self.need <= budget, self.time, math.inf).min(initial=math.inf))

    def best_by_mesh(self, budget: int) -> dict[MeshKey, float]:
        """The least step time of each mesh of which anything fits."""
        best: dict[MeshKey, float] = {}
        for index in np.nonzero(self.need <= budget)[0]:
            key = mesh_key(self.outer[index])
            best[key] = min(best.get(key, math.inf), float(self.time[index]))
        return best


def mesh_key(strategy: Strategy) -> MeshKey:
    return (strategy.tp, strategy.pp, strategy.cp, strategy.ep, strategy.etp)


class Enumeration:
    """The legal candidates of a case, listed before any is evaluated."""

    def __init__(self, case: Case, keep: Any = None) -> None:
        """`keep` says which strategies to look at, as fixed keys do; it sees complete ones."""
        self.case, self.keep = case, keep
        self.target = load_target(case.target)
        self._facts = model_facts(case.model, case.workload)
        self._rules = [rule for rule in self.target.rules if rule.severity is Severity.ERROR]
        self._core_codes = {rule.code for rule in self.target.rules_of("core")}
        self._inner_codes = {rule.code for rule in self.target.rules_of("inner")}

    def _faults(self, strategy: Strategy) -> set[str]:
        """Codes of the rules that ``Target.violations`` would name, without its messages, which take long."""
        candidate = candidate_of(strategy, self.case.cluster.num_devices)
        return {rule.code for rule in self._rules if not rule.holds(candidate, self._facts)}

    @cached_property
    def legal_meshes(self) -> list[Strategy]:
        """Degrees that break no rule of the core, whatever the outer choices."""
        return [mesh for mesh in raw_meshes(self.case) if not self._faults(mesh) & self._core_codes]

    @cached_property
    def legal_outer(self) -> list[Strategy]:
        """Outer choices that break no rule but those on the contents of stages, which are empty here."""
        outers = (outer for mesh in self.legal_meshes for outer in raw_outer(mesh))
        return [outer for outer in outers if not self._faults(outer) - self._inner_codes]

    @cache  # noqa: B019 - an enumeration lives as long as one test
    def legal_inner(self, pp: int, vpp: int) -> list[tuple[tuple[int, ...], Recompute, tuple[int, ...]]]:
        """Layouts and recomputations that break no rule; rules on them look at nothing else."""
        case, found = self.case, []
        for layers in layouts(case.num_layers, pp * vpp):
            for kind, counts in recompute_choices(layers, pp, self.target.uniform_recompute):
                strategy = Strategy(pp=pp, vpp=vpp, layers_per_stage=layers, recompute=kind, recompute_layers=counts)
                if not self._faults(strategy) & self._inner_codes:
                    found.append((layers, kind, counts))
        return found

    def is_small(self, least: int, most: int) -> bool:
        """Whether the number of complete candidates lies between two numbers; a large space is not listed."""
        raw = itertools.islice(raw_meshes(self.case), MAX_MESHES + 1)
        if sum(1 for _ in raw) > MAX_MESHES:
            return False
        total = 0
        for mesh in self.legal_meshes:
            total += len(self.legal_inner(mesh.pp, mesh.vpp))
            if total > most:
                return False
        return least <= sum(len(self.legal_inner(outer.pp, outer.vpp)) for outer in self.legal_outer) <= most

    def evaluate(self) -> Evaluated:
        """Time and memory of every candidate."""
        outers: list[Strategy] = []
        inners: list[tuple[tuple[int, ...], Recompute, tuple[int, ...]]] = []
        times, needs = [np.zeros(0)], [np.zeros(0, dtype=np.int64)]
        evaluator = Evaluator(self.case)
        num_outer = 0
        for outer in self.legal_outer:
            inner = self.legal_inner(outer.pp, outer.vpp)
            if self.keep is not None:
                inner = [
                    (layers, kind, counts)
                    for layers, kind, counts in inner
                    if self.keep(replace(outer, layers_per_stage=layers, recompute=kind, recompute_layers=counts))
                ]
            if not inner or not evaluator.is_known(outer):
                continue
            num_outer += 1
            time, need = evaluator.evaluate(outer, inner)
            outers += [outer] * len(inner)
            inners += inner
            times.append(time)
            needs.append(need)
        return Evaluated(
            case=self.case,
            num_outer=num_outer,
            outer=outers,
            inner=inners,
            time=np.concatenate(times),
            need=np.concatenate(needs),
        )


class Evaluator:
    """Step time and memory of strategies, the table of each mesh built once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.stack = load_stack(case.workload.stack)
        self.job = job_costs(case.cluster, case.workload, self.stack.overlap, case.headroom)
        self._tables: dict[tuple[int, ...], tuple[LayerTable, LayerTimes]] = {}

    def table(self, strategy: Strategy) -> tuple[LayerTable, LayerTimes]:
        names = ("tp", "cp", "ep", "etp", "microbatch_size")
        key = tuple(getattr(strategy, name) for name in names)
        if key not in self._tables:
            case = self.case
            keys = Keys(**{name: np.array([value]) for name, value in zip(names, key, strict=True)})
            table = build_table(case.model, case.cluster, case.workload, self.stack, keys, strategy.sequence_parallel)
            self._tables[key] = table, compose_layers(table, body_types(case.model, table.layer_types))
        return self._tables[key]

    def is_known(self, strategy: Strategy) -> bool:
        """Whether all layers without ops were measured under these degrees."""
        return bool(self.table(strategy)[0].valid.all())

    def evaluate(
        self, outer: Strategy, inner: Sequence[tuple[tuple[int, ...], Recompute, tuple[int, ...]]]
    ) -> tuple[NDArray[np.float64], Ints]:
        """Step time and memory of the fullest rank for many inner choices. [choice]"""
        table, times = self.table(outer)
        job, pp, vpp, count = self.job, outer.pp, outer.vpp, outer.num_microbatches
        chain = model_chain(self.case.model, table.layer_types)
        entries = outer_entries(outer_row(outer), times, table, job.cluster, job.gradient_bytes)
        flying = in_flight(pp, vpp, count)
        time, need = np.zeros(len(inner)), np.zeros(len(inner), dtype=np.int64)
        for kind in Recompute:
            chosen = [index for index, choice in enumerate(inner) if choice[1] is kind]
            if not chosen:
                continue
            layers = np.array([inner[index][0] for index in chosen], dtype=np.int64)
            counts = np.array([inner[index][2] for index in chosen], dtype=np.int64).T
            problem = InnerProblem(
                entries,
                make_layouts(chain, pp, vpp, layers),
                flying,
                job,
                np.zeros(len(chosen), dtype=np.int64),
                np.arange(len(chosen)),
            )
            need[chosen] = problem.memory(KINDS[kind], counts).total.max(axis=0)
            plans = problem.plans(KINDS[kind], counts)
            for place, index in enumerate(chosen):
                time[index] = simulate_step(durations_of(plans, place, pp, job), pp, vpp, count).time
        return time, need
