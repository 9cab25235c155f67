"""Published runs beside this file, and what the planner says of them with nothing fitted."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median

from hardware import Cluster, build_cluster, load_node
from hardware.yaml_reader import Document
from planner.graph import ModelGraph
from planner.plan import Prediction, layer_sequence
from planner.readers import parse_model, read_model
from planner.solvers.estimate import estimate_strategy, even_layers
from planner.strategy import Recompute, Strategy
from planner.workload import Attention, Precision, Workload

FOLDER = Path(__file__).parent
HEADROOM = 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A row of a table."""

    row: dict[str, str]

    @property
    def name(self) -> str:
        return self.row["row"]

    @property
    def kind(self) -> str:
        return self.row["class"]

    def number(self, key: str) -> int:
        return int(self.row[key])

    @property
    def measured(self) -> float:
        return float(self.row["measured"])

    def model(self) -> ModelGraph:
        """The catalog's model, or one of the row's sizes."""
        family = self.row["model"]
        if family == "gpt2":
            content = {
                "n_embd": self.number("hidden"),
                "n_head": self.number("heads"),
                "n_layer": self.number("layers"),
                "n_positions": self.number("seq_len"),
                "n_inner": self.number("ffn"),
                "vocab_size": self.number("vocab"),
            }
        elif family == "llama":
            content = {
                "hidden_size": self.number("hidden"),
                "num_attention_heads": self.number("heads"),
                "num_key_value_heads": self.number("kv_heads"),
                "num_hidden_layers": self.number("layers"),
                "intermediate_size": self.number("ffn"),
                "max_position_embeddings": self.number("seq_len"),
                "vocab_size": self.number("vocab"),
            }
        else:
            return read_model(family)
        return parse_model(Document(file=self.name, content={"model_type": family, **content}), self.name)

    def cluster(self) -> Cluster:
        """The row's nodes; of a domain of 72 the job uses 64."""
        node = load_node(self.row["node"])
        if node.num_devices == 72:
            node = replace(node, num_devices=64, num_nics=64)
        return build_cluster(node, self.number("num_devices") // node.num_devices)

    def workload(self) -> Workload:
        return Workload(
            global_batch_size=self.number("global_batch_size"),
            seq_len=self.number("seq_len"),
            precision=Precision(self.row["precision"]),
            attention=Attention(self.row["attention"]),
        )

    def strategy(self, num_layers: int) -> Strategy:
        pp, vpp = self.number("pp"), self.number("vpp")
        dp = self.number("num_devices") // (self.number("tp") * pp * self.number("cp"))
        zero_stage, recompute = self.number("zero_stage"), Recompute(self.row["recompute"])
        layers = layers_per_stage(num_layers, pp, vpp)
        return Strategy(
            **{name: self.number(name) for name in ("tp", "pp", "vpp", "cp", "ep", "microbatch_size", "zero_stage")},
            dp_shard=dp if zero_stage else 1,
            dp_replicate=1 if zero_stage else dp,
            num_microbatches=self.number("global_batch_size") // (dp * self.number("microbatch_size")),
            sequence_parallel=self.row["sequence_parallel"] == "1",
            recompute=recompute,
            recompute_layers=(0,) * len(layers) if recompute is Recompute.NONE else layers,
            layers_per_stage=layers,
        )


def layers_per_stage(num_layers: int, pp: int, vpp: int) -> tuple[int, ...]:
    """Equal stages, with one layer less at both ends where only that divides."""
    stages = pp * vpp
    if num_layers % stages and (num_layers + 2) % stages == 0:
        each = (num_layers + 2) // stages
        return (each - 1, *(each,) * (stages - 2), each - 1)
    return even_layers(num_layers, pp, vpp)


@cache
def load_runs(file: str) -> tuple[Run, ...]:
    with (FOLDER / file).open(newline="", encoding="utf-8") as lines:
        return tuple(Run(row=row) for row in csv.DictReader(lines))


def predict(run: Run) -> Prediction:
    model = run.model()
    strategy = run.strategy(len(layer_sequence(model)) - 2)
    return estimate_strategy(model, run.cluster(), run.workload(), strategy, HEADROOM).prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured and a predicted figure."""

    run: Run
    predicted: float
    """In the unit of the row."""

    @property
    def error(self) -> float:
        """Predicted time (or memory) over the measured one, less 1."""
        ratio = self.predicted / self.run.measured
        return (1 / ratio if self.run.row["unit"] == "MFU %" else ratio) - 1


@cache
def time_points() -> tuple[Point, ...]:
    """Step times, or MFU where only that was published."""
    points = []
    for run in load_runs("step_times.csv"):
        prediction = predict(run)
        is_mfu = run.row["unit"] == "MFU %"
        predicted = 100 * prediction.model_flops_utilization if is_mfu else prediction.step_time
        points.append(Point(run=run, predicted=predicted))
    return tuple(points)


@cache
def memory_points() -> tuple[Point, ...]:
    """States or activations of the first stage as computed in a paper, or allocated bytes of the fullest rank."""
    points = []
    for run in load_runs("memory.csv"):
        stages = predict(run).memory_by_stage
        first = stages[0]
        figure = {
            "states": first.weights + first.gradients + first.optimizer,
            "activations": first.activations,
            "allocated": max(stage.total - stage.runtime for stage in stages),
        }[run.row["term"]]
        points.append(Point(run=run, predicted=figure / {"GiB": 2**30, "GB": 10**9}[run.row["unit"]]))
    return tuple(points)


def errors(points: Sequence[Point], kind: str) -> list[float]:
    """Absolute errors of a class."""
    return [abs(point.error) for point in points if point.run.kind == kind]


def table(points: Sequence[Point]) -> str:
    """The points as text, and the errors of each class."""
    lines = [f"{'row':32} {'class':12} {'strategy':42} {'measured':>9} {'predicted':>9} {'unit':6} {'error':>7}"]
    for point in points:
        row = point.run.row
        names = ("tp", "pp", "vpp", "cp", "ep")
        strategy = " ".join(f"{name}{row[name]}" for name in names if row[name] != "1")
        strategy = f"{row['num_devices']}: {strategy} {row['recompute']}"
        lines.append(
            f"{point.run.name:32} {point.run.kind:12} {strategy:42} {point.run.measured:9.3f} {point.predicted:9.3f} "
            f"{row['unit']:6} {100 * point.error:+6.1f}%"
        )
    for kind in dict.fromkeys(point.run.kind for point in points):
        found = errors(points, kind)
        mean = sum(found) / len(found)
        lines.append(
            f"{kind}: {len(found)} rows, error mean {100 * mean:.1f} %, median {100 * median(found):.1f} %, "
            f"largest {100 * max(found):.1f} %"
        )
    return "\n".join(lines) + "\n"
