"""The command: exit statuses, JSON keys, one readable line per problem, nothing written by halves."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner.cli import run, search_command
from planner.cli.app import spread_pairs
from planner.cli.terminal import Interruption
from planner.plan import Termination
from planner.plan_file import plan_text, read_plan
from planner.solvers.result import Progress, SearchResult
from planner.solvers.run import PlanCheckError
from tests.conftest import GOLDEN, ROOT, Golden

SMALL = ("llama-2-7b", "dgx-a100-80gb*1", "--global-batch-size", "32")
"""A job whose search takes a moment."""
QUICK = (*SMALL, "--fix", "tp=8")
"""And one that is quicker still."""
ESTIMATE = ("estimate", *SMALL, "--set", "tp=2", "pp=2")
SEARCH_KEYS = {
    "step_time", "tokens_per_second_per_device", "model_flops_utilization", "fits", "violations", "peak_memory",
    "memory_by_stage", "time_breakdown", "degrees", "zero_stage", "microbatch_size", "num_microbatches", "schedule",
    "recompute", "layers_per_stage", "termination", "lower_bound", "gap", "space_size", "num_bounded", "num_evaluated",
    "layouts", "search_time", "alternatives", "plan",
}  # fmt: skip
SEARCH_ONLY = {
    "termination", "lower_bound", "gap", "space_size", "num_bounded", "num_evaluated", "layouts", "search_time",
    "alternatives",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        content = json.loads(self.out)
        assert isinstance(content, dict)
        return content

    @property
    def errors(self) -> list[str]:
        lines = self.err.splitlines()
        assert all(line.startswith("error: ") for line in lines), self.err
        return [line.removeprefix("error: ") for line in lines]


Command = Callable[..., Answer]


@pytest.fixture
def planner(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: str | Path) -> Answer:
        status = run([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Answer(status=status, out=captured.out, err=captured.err)

    return call


def shell(command: str, **options: Any) -> subprocess.CompletedProcess[str]:
    name = f"{sys.executable} -m planner"
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command.replace('planner ', name + ' ', 1)}"],
        capture_output=True, text=True, check=False, cwd=ROOT, **options,
    )  # fmt: skip


# Answers


def test_search_prints_the_plan_on_stdout_and_a_hint_on_stderr(planner: Command) -> None:
    answer = planner("search", *QUICK)
    assert answer.status == 0
    assert "optimal" in answer.out and "tp 8" in answer.out
    assert answer.err.splitlines()[-1].startswith("-o plan.json writes")
    assert "\x1b" not in answer.out + answer.err


def test_quiet_search_says_nothing_on_stderr(planner: Command) -> None:
    assert planner("search", *QUICK, "-q").err == ""


def test_json_of_search_has_each_key_of_the_contract(planner: Command) -> None:
    answer = planner("search", *SMALL, "--json")
    values = answer.json
    assert answer.status == 0 and values.keys() >= SEARCH_KEYS and "-o" not in answer.err
    assert (values["termination"], values["gap"], values["layouts"]) == ("optimal", 0, "balanced")
    assert values["lower_bound"] == values["step_time"] > 0
    assert values["fits"] is True and values["violations"] == []
    degrees = values["degrees"]
    assert list(degrees) == ["dp", "dp_shard", "dp_replicate", "tp", "pp", "vpp", "cp", "ep", "etp"]
    assert degrees["dp"] * degrees["tp"] * degrees["pp"] * degrees["cp"] == 8
    assert len(values["memory_by_stage"]) == degrees["pp"]
    assert values["peak_memory"] == max(stage["total"] for stage in values["memory_by_stage"])
    assert sum(values["time_breakdown"].values()) == pytest.approx(values["step_time"])
    assert sum(values["layers_per_stage"]) == 32
    assert sum(part["size"] for part in values["frontier"]) == values["space_size"]
    assert values["alternatives"] and all(other["ratio"] >= 1 and other["reason"] for other in values["alternatives"])
    assert values["plan"]["format_version"] == "1.0" and values["plan"]["proof"]["termination"] == "optimal"


def test_json_of_estimate_has_each_key_of_the_contract(planner: Command) -> None:
    values = planner(*ESTIMATE, "--json").json
    assert values.keys() >= SEARCH_KEYS - SEARCH_ONLY
    assert values["degrees"]["dp"] == 2 and values["num_microbatches"] == 16 and values["zero_stage"] == 1
    assert values["plan"]["proof"] is None


def test_workload_comes_from_file_and_options_win(planner: Command, tmp_path: Path) -> None:
    file = tmp_path / "workload.yaml"
    file.write_text("global_batch_size: 64\nseq_len: 1024\noptimizer: sgd\nexpert_imbalance: 1.5\n", encoding="utf-8")
    answer = planner(
        "estimate", "llama-2-7b", "dgx-a100-80gb", "--workload", file, "--seq-len", "2048", "--set", "tp=8", "--json"
    )
    workload = answer.json["plan"]["workload"]
    assert (workload["global_batch_size"], workload["seq_len"], workload["optimizer"]) == (64, 2048, "sgd")
    assert workload["expert_imbalance"] == 1.5


def test_sequence_length_is_that_of_the_model(planner: Command) -> None:
    assert planner(*ESTIMATE, "--json").json["plan"]["workload"]["seq_len"] == 4096


def test_top_plans_are_files_beside_the_first(planner: Command, tmp_path: Path) -> None:
    answer = planner("search", *SMALL, "--top", "3", "-o", tmp_path / "plan.json")
    assert answer.status == 0
    names = ["plan.json", "plan.2.json", "plan.3.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)
    plans = [read_plan(tmp_path / name) for name in names]
    assert [plan.proof is None for plan in plans] == [False, True, True]
    times = [plan.prediction.step_time for plan in plans]
    assert times == sorted(times)
    assert len({(p.strategy.tp, p.strategy.pp, p.strategy.cp, p.strategy.ep) for p in plans}) == 3


def test_equal_searches_write_equal_bytes(planner: Command, tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        assert planner("search", *QUICK, "-o", tmp_path / name).status == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_saved_plan_can_be_shown_estimated_and_exported(planner: Command, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    first = planner("search", *QUICK, "--target", "megatron", "-o", path, "--json").json
    shown = planner("show", path)
    assert shown.status == 0 and "optimal" in shown.out
    assert planner("show", path, "--json").json == json.loads(path.read_text(encoding="utf-8"))
    again = planner("estimate", "--plan", path, "--json")
    assert again.status == 0 and again.json["step_time"] == first["step_time"]
    elsewhere = planner("estimate", "llama-2-7b", "dgx-h100*1", "--plan", path, "--json")
    assert elsewhere.json["step_time"] < first["step_time"]
    exported = planner("export", path, "--to", "megatron", "-o", tmp_path / "new" / "launch")
    assert exported.status == 0 and "bash launch.sh" in exported.out
    assert {file.name for file in (tmp_path / "new" / "launch").iterdir()} >= {"launch.sh"}


def test_limit_on_work_gives_the_best_so_far_with_its_gap(planner: Command) -> None:
    answer = planner("search", *SMALL, "--max-work", "1", "--json")
    values = answer.json
    if values["plan"] is None:
        assert (answer.status, values["termination"]) == (3, "no_plan_found")
    else:
        assert (answer.status, values["termination"]) == (0, "feasible")
        assert 0 <= values["gap"] < 1 and values["lower_bound"] <= values["step_time"]


def test_stopped_without_a_plan_is_status_3(planner: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    real = search_command.search

    def stopped(*arguments: Any, **options: Any) -> SearchResult:
        result = real(*arguments, **options)
        proof = replace(result.proof, termination=Termination.NO_PLAN_FOUND, gap=None)
        return replace(result, plan=None, proof=proof, alternatives=())

    monkeypatch.setattr(search_command, "search", stopped)
    answer = planner("search", *QUICK, "--json")
    assert answer.status == 3 and answer.json["termination"] == "no_plan_found" and answer.json["step_time"] is None
    assert "no plan is faster than" in planner("search", *QUICK).out


# No plan fits

TIGHT = (*SMALL, "--headroom", "96%")
"""A job for which no device has room."""
ONE_MESH = ("--fix", "tp=1", "pp=1", "cp=1")
"""Keeps the search for what would fit short."""


def test_infeasible_search_is_status_1_with_a_proof_in_prose(planner: Command, tmp_path: Path) -> None:
    answer = planner("search", *TIGHT, *ONE_MESH, "-o", tmp_path / "plan.json")
    assert answer.status == 1
    assert "No plan fits" in answer.out and "GiB" in answer.out and "infeasible" in answer.out
    assert list(tmp_path.iterdir()) == [] and "nothing was written" in answer.err


def test_infeasible_search_prints_its_json(planner: Command) -> None:
    answer = planner("search", *TIGHT, *ONE_MESH, "--json")
    values = answer.json
    assert answer.status == 1 and values.keys() >= SEARCH_KEYS
    assert values["termination"] == "infeasible" and values["fits"] is False
    assert values["step_time"] is values["gap"] is values["plan"] is values["degrees"] is None
    assert values["infeasibility"]["message"] and values["infeasibility"]["missing"] > 0


def test_estimate_that_does_not_fit_is_status_1_with_its_json(planner: Command) -> None:
    answer = planner("estimate", *TIGHT, "--json")
    assert answer.status == 1 and answer.json["fits"] is False
    assert "does not fit" in planner("estimate", *TIGHT).out


def test_estimate_against_a_rule_is_status_1_with_the_rule(planner: Command) -> None:
    arguments = ("estimate", *SMALL, "--target", "megatron", "--set", "pp=2", "zero_stage=3")
    answer = planner(*arguments, "--json")
    (violation,) = answer.json["violations"]
    assert answer.status == 1 and violation["rule"] == "R19" and violation["message"]
    assert "R19: " in planner(*arguments).out


def test_export_of_a_plan_that_the_target_refuses_is_status_1(planner: Command, tmp_path: Path) -> None:
    path, folder = tmp_path / "plan.json", tmp_path / "launch"
    assert planner("estimate", *SMALL, "--set", "pp=2", "zero_stage=3", "-o", path).status == 0
    answer = planner("export", path, "--to", "megatron", "-o", folder)
    assert answer.status == 1 and any("R19" in line for line in answer.errors)
    assert answer.out == "" and not folder.exists()


# Bad input


def check_errors(answer: Answer, *parts: str) -> None:
    """Status 2, nothing on stdout, a line for each of the parts."""
    assert answer.status == 2 and answer.out == ""
    for part in parts:
        assert any(part in line for line in answer.errors), (part, answer.err)


BAD_OPTIONS = {
    "model": (("search", "lama-2-7b", *SMALL[1:]), "did you mean 'llama-2-7b'"),
    "cluster": (("search", SMALL[0], "dgx-h10*2", *SMALL[2:]), "did you mean 'dgx-h100'"),
    "count": (("search", SMALL[0], "dgx-h100*0", *SMALL[2:]), "dgx-h100*0"),
    "no batch": (("search", *SMALL[:2]), "--global-batch-size is missing"),
    "batch": (("search", *SMALL[:2], "--global-batch-size", "-4"), "--global-batch-size: must be 1 to"),
    "batch in words": (("search", *SMALL[:2], "--global-batch-size", "many"), "must be a whole number, got 'many'"),
    "seq_len": (("search", *SMALL, "--seq-len", "0"), "--seq-len: must be 1 to"),
    "seq_len is nan": (("search", *SMALL, "--seq-len", "nan"), "--seq-len: must be a whole number"),
    "precision": (("search", *SMALL, "--precision", "bf17"), "did you mean 'bf16'"),
    "optimizer": (("search", *SMALL, "--optimizer", "adm"), "did you mean 'adam'"),
    "attention": (("search", *SMALL, "--attention", "flsh"), "did you mean 'flash'"),
    "stack": (("search", *SMALL, "--stack", "megatron"), "megatron-core"),
    "target": (("search", *SMALL, "--target", "megatrn"), "did you mean 'megatron'"),
    "fix key": (("search", *SMALL, "--fix", "tpp=8"), "did you mean 'tp'"),
    "fix value": (("search", *SMALL, "--fix", "tp=eight"), "--fix tp: 'eight'"),
    "fix word": (("search", *SMALL, "--fix", "recompute=some"), "none, selective, full"),
    "fix twice": (("search", *SMALL, "--fix", "tp=8", "--fix", "tp=4"), "write tp=8,4"),
    "fix without value": (("search", *SMALL, "--fix", "tp"), "must be KEY=VALUE"),
    "fix against the cluster": (("search", *SMALL, "--fix", "tp=64"), "--fix tp=64"),
    "fix against a rule": (("search", *SMALL, "--fix", "ep=2"), "--fix ep=2"),
    "headroom": (("search", *SMALL, "--headroom", "8"), "did you mean 8%?"),
    "headroom below 0": (("search", *SMALL, "--headroom=-1%"), "--headroom: '-1%' is negative"),
    "headroom of memory": (("search", *SMALL, "--headroom", "2 GiB"), "--headroom: '2 GiB'"),
    "within": (("search", *SMALL, "--within", "3"), "did you mean 3%?"),
    "time limit": (("search", *SMALL, "--time-limit", "0"), "--time-limit: must be above 0 s"),
    "time limit unit": (("search", *SMALL, "--time-limit", "3 GB"), "--time-limit: '3 GB'"),
    "max work": (("search", *SMALL, "--max-work", "1.5"), "--max-work: must be a whole number"),
    "top": (("search", *SMALL, "--top", "0"), "--top: must be 1 to 1000"),
    "objective": (("search", *SMALL, "--objective", "cost"), "accepted: step_time"),
    "layouts": (("search", *SMALL, "--layouts", "free"), "accepted: balanced"),
    "bf16 on V100": (("search", SMALL[0], "dgx-v100-32gb", *SMALL[2:]), "does not compute in 'bf16'"),
    "folder of -o": (("search", *SMALL, "-o", "/no/such/plan.json"), "the folder /no/such does not exist"),
    "-o is a folder": (("search", *SMALL, "-o", "/"), "-o /: is a folder"),
    "-o is a device": (("search", *SMALL, "-o", "/dev/null"), "is not a regular file"),
    "workload file": (("search", *SMALL, "--workload", "none.yaml"), "none.yaml: no such file"),
    "command": (("serch", *SMALL), "Did you mean 'search'"),
    "option": (("search", *SMALL, "--targt", "any"), "--target"),
    "argument": (("search", "llama-2-7b"), "Missing argument 'CLUSTER'; see planner search --help"),
    "too many": (("search", *SMALL, "more"), "more"),
    "set key": (("estimate", *SMALL, "--set", "pq=2"), "unknown key 'pq'"),
    "set value": (("estimate", *SMALL, "--set", "tp=2,4"), "--set tp: must be a whole number"),
    "set word": (("estimate", *SMALL, "--set", "recompute=ful"), "did you mean 'full'"),
    "tp of 3": (("estimate", *SMALL, "--set", "tp=3"), "does not divide the 8 devices; for tp, nearest legal: 2, 4"),
    "dp of 3": (("estimate", *SMALL, "--set", "tp=2", "dp=3"), "nearest legal: 4"),
    "batch of a replica": (("estimate", *SMALL, "--set", "microbatch_size=3"), "nearest legal: 2, 4"),
    "batch of dp": (("estimate", *SMALL[:3], "30"), "nearest legal: 24, 32"),
    "layers": (("estimate", *SMALL, "--set", "pp=2", "layers_per_stage=16,17"), "add up to the 32 layers"),
    "number of layers": (("estimate", *SMALL, "--set", "pp=2", "layers_per_stage=32"), "needs pp x vpp = 2 numbers"),
    "recompute_layers": (("estimate", *SMALL, "--set", "recompute_layers=2"), "needs recompute=selective"),
    "shards": (("estimate", *SMALL, "--set", "dp_shard=3"), "nearest legal: 2, 4"),
    "more replicas than dp": (("estimate", *SMALL, "--set", "dp_replicate=16"), "nearest legal: 8"),
    "experts": (("estimate", *SMALL, "--set", "ep=16"), "does not divide the dp x cp x tp = 8 devices"),
    "schedule": (("estimate", *SMALL, "--set", "schedule=interleaved-1f1b"), "needs vpp of 2 or more"),
    "nothing": (("estimate", *SMALL[2:]), "MODEL and CLUSTER are missing"),
    "no plan": (("estimate", "--plan", "none.json"), "none.json: no such file"),
    "show": (("show", "h100sxm"), "did you mean 'h100-sxm'"),
    "rule": (("rule", "R99"), "unknown rule 'R99'"),
    "schema": (("schema", "plann"), "did you mean 'plan'"),
    "export": (("export", str(GOLDEN / "plan-1.0.json"), "--to", "megatrn"), "did you mean 'megatron'"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "part"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_bad_option_is_status_2_with_one_readable_line(arguments: tuple[str, ...], part: str, planner: Command) -> None:
    answer = planner(*arguments)
    check_errors(answer, part)
    assert len(answer.errors) == 1


BAD_CLUSTERS = {
    "unknown key": ("nodes:\n  - {count: 2, node: dgx-h100, nvlink: 3}\n", ":2: ", "unknown key 'nvlink'"),
    "missing unit": ("nodes:\n  - {count: 2, node: dgx-h100}\nreserve: 2\n", ":3: reserve: ", "no unit"),
    "wrong unit": ("nodes:\n  - {count: 2, node: dgx-h100}\nreserve: 2 GB/s\n", ":3: reserve: ", "'2 GB/s'"),
    "negative": ("nodes:\n  - {count: -2, node: dgx-h100}\n", ":2: ", "got -2"),
    "nan": ("nodes:\n  - {count: .nan, node: dgx-h100}\n", ":2: ", "count"),
    "empty": ("nodes: []\n", ":1: nodes: ", "at least one"),
    "no content": ("\n", "", "empty"),
    "missing name": ("nodes:\n  - {count: 2, node: dgx-h1000}\n", ":2: ", "did you mean 'dgx-h100'"),
    "not yaml": ("nodes: [\n", "", "not YAML"),
}


@pytest.mark.parametrize(("text", "place", "part"), BAD_CLUSTERS.values(), ids=BAD_CLUSTERS.keys())
def test_bad_cluster_file_is_status_2_with_its_line(
    text: str, place: str, part: str, planner: Command, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text, encoding="utf-8")
    check_errors(planner("search", SMALL[0], path, *SMALL[2:]), f"{path}{place}")
    check_errors(planner("show", path), part)


BAD_MODELS = {
    "unknown family": ('{"model_type": "lama"}', "lama"),
    "unknown key": ('{"format_version": "1.0", "seq_len": 8, "layer_types": {}, "layerz": []}', "layerz"),
    "negative": ('{"format_version": "1.0", "seq_len": -8, "layer_types": {}, "layers": []}', "seq_len"),
    "nan": ('{"format_version": "1.0", "seq_len": NaN}', "NaN"),
    "neither": ('{"a": 1}', "neither"),
    "not json": ("{", "not JSON"),
}


@pytest.mark.parametrize(("text", "part"), BAD_MODELS.values(), ids=BAD_MODELS.keys())
def test_bad_model_file_is_status_2(text: str, part: str, planner: Command, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(text, encoding="utf-8")
    check_errors(planner("search", path, *SMALL[1:]), str(path), part)


def test_bad_workload_file_is_status_2_with_its_lines(planner: Command, tmp_path: Path) -> None:
    path = tmp_path / "workload.yaml"
    path.write_text("global_batch: 3\nseq_len: -1\nprecision: bf17\ngradient_bytes: 3\n", encoding="utf-8")
    answer = planner("search", *SMALL, "--workload", path)
    check_errors(answer, f"{path}:1: global_batch: unknown key", f"{path}:2: seq_len", f"{path}:3: precision")
    path.write_text("gradient_bytes: 3\n", encoding="utf-8")
    check_errors(planner("search", *SMALL, "--workload", path), "gradient_bytes must be 2 or 4")


def test_all_problems_are_told_at_once(planner: Command, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("nodes:\n  - {count: -2, node: dgx-h100}\nreserve: 2\nnam: x\n", encoding="utf-8")
    answer = planner("search", "lama-2-7b", path, "--fix", "tpp=8", "tp=x", "--headroom", "9", "--top", "no")
    check_errors(answer, "llama-2-7b", ":2: ", ":3: ", ":4: ", "'tpp'", "--fix tp", "--headroom", "--top")
    assert len(answer.errors) == 9  # and the batch that is missing


def test_control_characters_never_reach_the_terminal(planner: Command) -> None:
    answer = planner("search", "\x1b[31mmodel\r\n", "dgx\x07*2", "--fix", "t\x1bp=1", "--target", "\x9b0m", *SMALL[2:])
    check_errors(answer, "\\x1b[31mmodel")
    assert not any((ord(sign) < 32 and sign != "\n") or 0x7F <= ord(sign) < 0xA0 for sign in answer.err)


def test_failure_leaves_the_file_of_an_earlier_plan(planner: Command, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old", encoding="utf-8")
    check_errors(planner("search", "none", *SMALL[1:], "-o", path))
    assert planner("search", *TIGHT, *ONE_MESH, "-o", path).status == 1
    assert path.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [path]


def test_full_disk_is_told_after_the_answer(planner: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    answer = planner("search", *QUICK, "-o", tmp_path / "plan.json", "-q")
    assert answer.status == 2 and "optimal" in answer.out and "No space left on device" in answer.errors[0]
    assert list(tmp_path.iterdir()) == []


# Faults and interruption


def test_plan_that_fails_its_check_is_status_4_and_nothing_is_written(
    planner: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def search(*_: Any, **__: Any) -> None:
        raise PlanCheckError("rank 0 needs more\nthe step is longer")

    monkeypatch.setattr("planner.cli.search_command.search", search)
    answer = planner("search", *QUICK, "-o", tmp_path / "plan.json")
    assert answer.status == 4 and answer.out == "" and list(tmp_path.iterdir()) == []
    assert answer.errors[:2] == [
        "a plan failed its own check: rank 0 needs more",
        "a plan failed its own check: the step is longer",
    ]


def test_unexpected_exception_is_status_4_in_one_line(
    planner: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def search(*_: Any, **__: Any) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr("planner.cli.search_command.search", search)
    answer = planner("search", *QUICK)
    assert answer.status == 4 and answer.errors == ["a fault of the planner, KeyError: 'surprise'; --debug shows where"]
    assert run(["search", *QUICK, "--debug"]) == 4
    assert "Traceback" in capsys.readouterr().err


class CtrlCAtFirstPlan:
    """A progress line during which Ctrl-C is pressed."""

    def __call__(self, progress: Progress) -> None:
        if progress.best is not None and progress.improved:
            signal.raise_signal(signal.SIGINT)

    def clear(self) -> None:
        pass


def test_interrupted_search_prints_and_saves_the_best_so_far(
    planner: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.cli.search_command.ProgressLine", CtrlCAtFirstPlan)
    path = tmp_path / "plan.json"
    before = signal.getsignal(signal.SIGINT)
    answer = planner("search", *SMALL, "-o", path, "--json")
    values = answer.json
    assert answer.status == 130 and values["interrupted"] and values["termination"] in ("feasible", "optimal")
    assert plan_text(read_plan(path)) == json.dumps(values["plan"], indent=2, ensure_ascii=False) + "\n"
    assert "interrupted" in planner("search", *SMALL).out
    assert signal.getsignal(signal.SIGINT) is before


def test_second_interruption_acts_at_once() -> None:
    with Interruption() as interruption:
        signal.raise_signal(signal.SIGINT)
        assert interruption.wanted
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_interrupted_before_any_plan_is_status_130(planner: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.cli.search_command.search", interrupt)
    answer = planner("search", *QUICK)
    assert answer.status == 130 and answer.errors == ["interrupted before any plan was found"]


# Other commands


def test_show_of_a_model(planner: Command) -> None:
    text, values = planner("show", "llama-3.1-8b").out, planner("show", "llama-3.1-8b", "--json").json
    assert values["num_parameters"] == 8_030_261_248 and values["num_layers"] == 34
    assert "8,030,261,248" in text and "8.03 B" in text and "decoder" in text
    assert sum(layer["count"] for layer in values["layers"]) == 34
    total = sum(layer["count"] * layer["forward_flops_per_token"] for layer in values["layers"])
    assert total == pytest.approx(values["forward_flops_per_token"])
    assert planner("show", ROOT / "examples" / "profiled-gpt.json").status == 0


def test_show_of_a_cluster_and_a_device(planner: Command) -> None:
    values = planner("show", "dgx-h100*2", "--json").json
    assert (values["num_devices"], values["num_nodes"]) == (16, 2)
    assert all(level["link"]["provenance"] for level in values["levels"])
    text = planner("show", "dgx-h100*2").out
    assert "16 x h100-sxm" in text and "GB/s" in text and "memory" in text
    assert planner("show", "h100-sxm", "--json").json["memory"] > 79 * 2**30
    assert "Device h100-sxm" in planner("show", "h100-sxm").out
    assert planner("show", ROOT / "examples" / "cluster.yaml", "--json").json["num_devices"] == 32


def test_show_catalog_lists_every_name(planner: Command) -> None:
    values, text = planner("show", "catalog", "--json").json, planner("show", "catalog").out
    assert {"llama-3.1-405b", "dgx-h100", "h100-sxm"} <= {name for names in values.values() for name in names}
    assert all(name in text for names in values.values() for name in names)


def test_rule_explains_in_any_case_of_letters(planner: Command) -> None:
    answer = planner("rule", "r19")
    assert answer.status == 0 and "R19: " in answer.out and "of targets   megatron" in answer.out


@pytest.mark.parametrize("name", ["plan", "cluster", "model"])
def test_schema_is_printed(name: str, planner: Command) -> None:
    jsonschema.Draft202012Validator.check_schema(planner("schema", name).json)


def test_pairs_may_follow_one_option() -> None:
    given = ["search", "--fix", "tp=8", "pp<=4", "a", "--set", "x=1", "-o", "p=q", "y=2"]
    wanted = ["search", "--fix", "tp=8", "--fix", "pp<=4", "a", "--set", "x=1", "-o", "p=q", "y=2"]
    assert spread_pairs(given) == wanted


@pytest.mark.parametrize("command", ["", "search", "estimate", "show", "export", "rule", "schema"])
def test_help_fits_a_pipe(command: str, planner: Command) -> None:
    answer = planner(*command.split(), "--help")
    assert answer.status == 0 and "Usage: planner" in answer.out and answer.err == ""
    assert "\x1b" not in answer.out and "│" not in answer.out and "…" not in answer.out


def test_help_names_the_statuses(planner: Command) -> None:
    text = " ".join(planner("--help").out.split())
    for part in ("0 an answer", "1 proven", "2 bad input", "3 stopped", "4 a fault", "130 interrupted"):
        assert part in text
    assert planner().out == planner("--help").out


# Away from pytest


def test_help_takes_less_than_half_a_second_of_cpu() -> None:
    code = (
        "import sys, time; from planner.cli import run; run(['--help']); "
        "print('numpy' in sys.modules, time.process_time(), file=sys.stderr)"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    has_numpy, seconds = child.stderr.split()
    assert has_numpy == "False" and float(seconds) < 0.5


def test_pipe_gets_one_json_object_and_no_escapes() -> None:
    child = shell(
        f"planner search {' '.join(QUICK)} --json | {sys.executable} -c 'import json, sys; json.load(sys.stdin)'"
    )
    assert (child.returncode, child.stderr) == (0, "")


def test_reader_that_goes_away_is_no_error() -> None:
    child = shell("planner schema plan | head -1")
    assert (child.returncode, child.stdout, child.stderr) == (0, "{\n", "")
    gone = shell("planner schema plan | true")
    assert (gone.returncode, gone.stderr) == (0, "")


def test_ascii_pipes_get_the_report() -> None:
    child = shell(f"PYTHONIOENCODING=ascii planner estimate {' '.join(SMALL)}")
    assert child.stdout.isascii() and "step" in child.stdout and child.stderr == ""


def test_text_of_a_small_search_is_the_golden_one(planner: Command, golden: Golden) -> None:
    lines = planner("search", *SMALL, "--target", "megatron", "-q").out.splitlines(keepends=True)
    kept = [line.partition("found in")[0].rstrip() + "\n" if "found in" in line else line for line in lines]
    golden("search-small.txt", "".join(kept))
