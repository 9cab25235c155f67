"""How fast bounds are in bulk, on one thread: rows of a large real space, and candidates before they are simulated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hardware import read_cluster
from planner import Limits, Workload, read_model
from planner.layer_costs import Kind
from planner.solvers.bounds import bound_rows
from planner.solvers.core import CHUNK, CoreGroup, MeshBounder
from planner.solvers.entries import OuterRows, expand, outer_entries, state_entries
from planner.solvers.inner import InnerProblem, chain_bounds, solve_pairs
from planner.solvers.run import _resolve, _tables
from planner.solvers.search import OUTER_BATCH
from planner.solvers.shapes import in_flight
from planner.solvers.space import MeshRows, outer_choices
from tests.bench.measure import ROOT, Row, cpu_time, median_of, peak_memory

MODEL, CLUSTER, BATCH, SEQ_LEN = "deepseek-v3", "hgx-h800*256", 15_360, 4096
SMALL_MODEL, SMALL_CLUSTER, SMALL_BATCH = "llama-2-7b", "dgx-a100-80gb*2", 16
MB = 1e6


class LargeSpace:
    """A space and what bounds its rows."""

    def __init__(self, model: str, cluster: str, batch: int) -> None:
        graph, place = read_model(model), read_cluster(cluster)
        workload = Workload(global_batch_size=batch, seq_len=min(SEQ_LEN, graph.seq_len))
        job = _resolve(graph, place, workload, "any", "step_time", {}, None, "balanced", Limits())
        self.tables = _tables(job)
        self.space = self.tables.space
        self.groups = sorted(self.space.mesh_groups(), key=lambda group: -len(group.rows))
        self.bounder = MeshBounder(self.tables.times, self.tables.table, self.tables.costs, self.tables.recompute)

    def bound_meshes(self, most: int) -> int:
        """B0 of the meshes of the largest groups; how many."""
        done = 0
        for group in self.groups:
            self.bounder.bound(group.rows, group.shape)
            done += len(group.rows)
            if done >= most:
                break
        return done

    def cores(self) -> Iterator[CoreGroup]:
        for group in self.groups:
            for core, _ in self.space.core_groups(group, np.arange(len(group.rows))):
                if core is not None and core.pp > 1:
                    yield core

    def outer_rows(self, core: CoreGroup, most: int) -> OuterRows:
        """The first outer rows below some core rows."""
        mesh: MeshRows = core.rows.take(slice(0, most))  # at least one outer row each
        choices = [
            outer_choices(int(dp), int(cp), core.pp, self.space.fixed) for dp, cp in zip(mesh.dp, mesh.cp, strict=True)
        ]
        return expand(mesh, choices)[0].take(slice(0, most))

    def bound_states(self, core: CoreGroup, rows: OuterRows) -> int:
        """B1 with communication open, as the search does it first; how many."""
        tables = self.tables
        entries = state_entries(rows, tables.times, tables.table, tables.recompute)
        return len(bound_rows(entries, core.shape, tables.costs, tables.recompute).time)

    def bound_outer(self, core: CoreGroup, rows: OuterRows) -> int:
        """B1; how many."""
        tables, job = self.tables, self.tables.costs
        entries = outer_entries(rows, tables.times, tables.table, job.cluster, job.gradient_bytes, tables.recompute)
        return len(bound_rows(entries, core.shape, job, tables.recompute).time)

    def problem(self, core: CoreGroup, rows: OuterRows) -> InnerProblem:
        """All layouts of some outer rows, taken as if they had one number of microbatches."""
        tables, job = self.tables, self.tables.costs
        layouts = self.space.layouts(core.pp, core.vpp)
        assert layouts is not None
        entries = outer_entries(rows, tables.times, tables.table, job.cluster, job.gradient_bytes)
        row, layout = (part.ravel() for part in np.indices((len(rows), layouts.num_layouts)))
        flying = in_flight(core.pp, core.vpp, int(rows.mesh.num_microbatches[0]))
        return InnerProblem(entries, layouts, flying, job, row, layout)

    def estimate(self, core: CoreGroup, rows: OuterRows) -> int:
        """Durations, memory and path bounds of all candidates without recomputation; how many."""
        problem = self.problem(core, rows)
        plans = problem.plans(Kind.NONE, problem.no_layers())
        assert problem.memory(Kind.NONE, problem.no_layers()).total.size
        chain_bounds(plans, int(rows.mesh.num_microbatches[0]), core.pp, core.vpp, self.tables.costs)
        return len(plans)

    def solve(self, core: CoreGroup, rows: OuterRows) -> int:
        """The least recomputation of all candidates; how many were looked at."""
        problem = self.problem(core, rows)
        solve_pairs(problem, self.tables.recompute)
        return len(problem)


def measure(smoke: bool) -> list[Row]:
    space = LargeSpace(SMALL_MODEL, SMALL_CLUSTER, SMALL_BATCH) if smoke else LargeSpace(MODEL, CLUSTER, BATCH)
    repeats, most = (1, 100) if smoke else (5, CHUNK)
    place = f"{SMALL_MODEL} on {SMALL_CLUSTER}" if smoke else f"{MODEL} on {CLUSTER}"
    note = f"{place}, median of {repeats}"

    def rate(action: Callable[[], int]) -> float:
        count = action()
        return count / max(1e-9, median_of(lambda: cpu_time(action), repeats))

    start = begin_peak()
    total = space.bound_meshes(16 * most)
    rows = [row("B0, core entries", rate(lambda: space.bound_meshes(16 * most)), ">= 5e6", f"{note}, {total} rows")]
    core = max(space.cores(), key=lambda core: min(most, int(core.rows.num_outer.sum())))
    outer = space.outer_rows(core, most)
    states = rate(lambda: space.bound_states(core, outer))
    full = rate(lambda: space.bound_outer(core, outer))
    shape = f"pp {core.pp}, vpp {core.vpp}"
    rows.append(row("B1, states alone", states, ">= 5e6", f"{note}, {len(outer)} rows at once, {shape}"))
    rows.append(row("B1, outer entries", full, ">= 5e6", f"{note}, {len(outer)} rows at once, {shape}"))
    growth = (peak() - start) / MB
    rows.append(Row(name="resident growth", value=growth, unit="MB", target="<= 100", note="during all bounds above"))
    few = outer.take(slice(0, OUTER_BATCH))
    rows.append(row("estimates, not simulated", rate(lambda: space.estimate(core, few)), ">= 2e4", f"{note}, {shape}"))
    rows.append(row("least recomputation", rate(lambda: space.solve(core, few)), None, f"{note}, {shape}"))
    return rows


def row(name: str, value: float, target: str | None, note: str) -> Row:
    return Row(name=name, value=value, unit="rows/CPU s", target=target, note=note)


STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def begin_peak() -> float:
    """Forget the largest resident memory so far where the system can, and return it [bytes]."""
    if RESET.exists():
        RESET.write_text("5", encoding="ascii")
    return peak()


def peak() -> float:
    """Largest resident memory since ``begin_peak`` [bytes]."""
    if not STATUS.exists():
        return peak_memory()
    line = next(line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM"))
    return 1024.0 * int(line.split()[1])


SINGLE = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""numpy's matrix products read these when they are loaded, so the measurement has a process of its own."""


def run(smoke: bool) -> list[Row]:
    command = [sys.executable, "-m", "tests.bench.bench_bounds", *(["--smoke"] if smoke else []), "--json"]
    output = subprocess.run(command, cwd=ROOT, env={**os.environ, **SINGLE}, capture_output=True, text=True, check=True)
    rows: list[Row] = json.loads(output.stdout)
    return rows


if __name__ == "__main__":
    if "--json" in sys.argv:
        print(json.dumps(measure("--smoke" in sys.argv)))
    else:
        for figure in run(smoke="--smoke" in sys.argv):
            print(figure)
