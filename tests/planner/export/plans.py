"""Plans for tests of exports."""

from __future__ import annotations

from hardware import read_cluster
from planner.graph import ModelGraph
from planner.plan import Plan, Prediction, StageMemory, TimeBreakdown
from planner.strategy import Strategy
from planner.workload import Workload

NO_TIME = TimeBreakdown(
    compute=1.0,
    recompute=0.0,
    tensor_parallel=0.0,
    context_parallel=0.0,
    expert_parallel=0.0,
    data_parallel=0.0,
    optimizer=0.0,
    bubble=0.0,
)
MEMORY = StageMemory(rank=0, weights=1, gradients=1, optimizer=1, activations=1, transient=1, gathered=0, runtime=1)


def make_plan(
    graph: ModelGraph, strategy: Strategy, workload: Workload, *, cluster: str | None = None, target: str = "megatron"
) -> Plan:
    """A plan with a made-up prediction, on just enough nodes of 8 devices unless a cluster is named."""
    nodes = max(1, -(-strategy.world_size // 8))
    prediction = Prediction(
        step_time=1.0,
        tokens_per_second_per_device=1.0,
        model_flops_utilization=0.5,
        memory_by_stage=(MEMORY,),
        capacity=100,
        budget=92,
        time_breakdown=NO_TIME,
    )
    return Plan(
        model=graph,
        cluster=read_cluster(cluster or f"dgx-h100*{nodes}"),
        workload=workload,
        target=target,
        headroom=0.08,
        strategy=strategy,
        prediction=prediction,
        proof=None,
        provenance={"weakest": "default"},
    )
