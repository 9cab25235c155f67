"""Plan files: whole or not at all, exact, readable for ever, every fault with its place."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware import InputError, read_cluster
from planner.plan import FORMAT_VERSION, Plan, Proof, Subtree, Termination
from planner.plan_file import MAX_FILE_SIZE, parse_plan, plan_text, read_plan, write_plan
from planner.plan_schema import plan_schema
from planner.readers import read_model
from planner.solvers.estimate import estimate, even_layers
from planner.strategy import CpKind, RankOrder, Recompute, Strategy
from planner.workload import Workload
from tests.conftest import GOLDEN

PROOF = Proof(
    termination=Termination.FEASIBLE,
    lower_bound=1.25,
    gap=0.125,
    scope="a test",
    space_size=30,
    num_bounded=20,
    num_evaluated=3,
    frontier=(
        Subtree(name="bound (B0)", size=10, lower_bound=1.25),
        Subtree(name="rule R5", size=20, lower_bound=None),
    ),
    reproducible=True,
)


@pytest.fixture(scope="module")
def plan() -> Plan:
    made = estimate(
        read_model("llama-2-7b"),
        read_cluster("dgx-h100*1"),
        Strategy(
            tp=2,
            pp=2,
            dp_shard=2,
            zero_stage=1,
            num_microbatches=8,
            recompute=Recompute.SELECTIVE,
            recompute_layers=(2, 2),
            layers_per_stage=(16, 16),
        ),
        workload=Workload(global_batch_size=16, seq_len=4096),
    )
    return replace(made, proof=PROOF)


@pytest.fixture
def values(plan: Plan) -> dict[str, Any]:
    content = json.loads(plan_text(plan))
    assert isinstance(content, dict)
    return content


def parsed(values: dict[str, Any]) -> Plan:
    return parse_plan(json.dumps(values, indent=2), "plan.json")


def problems(values: dict[str, Any]) -> list[str]:
    with pytest.raises(InputError) as caught:
        parsed(values)
    return str(caught.value).splitlines()


def test_file_has_format_version_first_and_ends_in_a_line_end(plan: Plan, tmp_path: Path) -> None:
    write_plan(plan, tmp_path / "plan.json")
    data = (tmp_path / "plan.json").read_bytes()
    assert data.startswith(b'{\n  "format_version": "1.0",\n') and data.endswith(b"}\n") and b"\r" not in data
    assert list(json.loads(data)) == list(plan.to_json())


def test_written_plan_is_read_back(plan: Plan, tmp_path: Path) -> None:
    write_plan(plan, tmp_path / "plan.json")
    again = read_plan(tmp_path / "plan.json")
    assert plan_text(again) == plan_text(plan)
    assert (again.model, again.cluster, again.workload) == (plan.model, plan.cluster, plan.workload)
    assert (again.strategy, again.proof, again.headroom) == (plan.strategy, plan.proof, plan.headroom)


strategies = st.tuples(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from(list(Recompute)),
    st.sampled_from(list(CpKind)),
    st.sampled_from(list(RankOrder)),
    st.booleans(),
)
times = st.floats(min_value=0, max_value=1e12, allow_nan=False)
memories = st.integers(min_value=0, max_value=2**70)


@settings(max_examples=60)
@given(chosen=strategies, step=times, optional=st.none() | times, memory=memories, name=st.text(max_size=20))
def test_any_plan_is_read_back_exactly(
    chosen: Any, step: float, optional: float | None, memory: int, name: str, plan: Plan
) -> None:
    tp, pp, vpp, recompute, cp_kind, rank_order, sequence_parallel = chosen
    layers = even_layers(32, pp, vpp)
    strategy = Strategy(
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp_kind=cp_kind,
        num_microbatches=16,
        sequence_parallel=sequence_parallel,
        rank_order=rank_order,
        recompute=recompute,
        recompute_layers=layers,
        layers_per_stage=layers,
    )
    stages = tuple(replace(plan.prediction.memory_by_stage[0], rank=rank, weights=memory) for rank in range(pp))
    written = replace(
        plan,
        strategy=strategy,
        prediction=replace(plan.prediction, step_time=step, memory_by_stage=stages),
        proof=None if optional is None else replace(PROOF, lower_bound=optional, gap=optional, scope=name),
        provenance={"weakest": name, name: "default"},
        cluster=read_cluster("dgx-h100*2"),
    )
    # A hand-over as JSON text: once through the file, the plan no longer changes.
    once = parse_plan(plan_text(written), "plan.json")
    assert plan_text(once) == plan_text(written)
    assert parse_plan(plan_text(once), "plan.json") == once


def test_released_format_stays_readable() -> None:
    """Never rewrite this file: it stands for the plans that people have. A new format gets one of its own."""
    text = (GOLDEN / "plan-1.0.json").read_text(encoding="utf-8")
    again = json.loads(plan_text(parse_plan(text, "plan-1.0.json")))
    released = json.loads(text)
    assert {**again, "format_version": "1.0", "cost_model_version": "1"} == released


# Schema


def test_schema_is_one_and_describes_each_key(values: dict[str, Any]) -> None:
    schema = plan_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(schema["properties"]) == list(values)
    for name, definition in schema["$defs"].items():
        if "properties" in definition:
            assert all("description" in field for field in definition["properties"].values()), name


def test_schema_accepts_real_plans_and_refuses_broken_ones(values: dict[str, Any]) -> None:
    validator = jsonschema.Draft202012Validator(plan_schema())
    validator.validate(values)
    validator.validate({**values, "proof": None, "new_key": 1})
    validator.validate(json.loads((GOLDEN / "plan-1.0.json").read_text(encoding="utf-8")))
    for broken in (
        {**values, "format_version": "2.0"},
        {**values, "strategy": {**values["strategy"], "tp": "8"}},
        {**values, "workload": {**values["workload"], "digest": "x"}},
        {key: value for key, value in values.items() if key != "mesh"},
    ):
        assert not validator.is_valid(broken)


# Faults


def test_other_major_is_refused_with_the_way_out(values: dict[str, Any]) -> None:
    (line,) = problems({**values, "format_version": "2.0", "strategy": 1})
    assert line.startswith("plan.json:2: format_version: format '2.0'") and "upgrade the planner" in line


def test_keys_of_a_later_minor_are_passed_over(values: dict[str, Any], plan: Plan) -> None:
    values["format_version"] = "1.7"
    values["later"] = {"a": 1}
    values["strategy"]["later"] = 2
    values["prediction"]["memory_by_stage"][0]["later"] = 3
    assert plan_text(parsed(values)) == plan_text(plan)


def test_all_faults_are_told_at_once_in_the_order_of_the_file(values: dict[str, Any]) -> None:
    values["headroom"] = -1
    values["strategy"]["tp"] = "eight"
    del values["strategy"]["pp"]
    values["prediction"]["step_time"] = None
    values["workload"]["precision"] = "bf17"
    values["cluster"]["devicee"] = {}
    values["model"]["layers"] = []
    lines = problems(values)
    keys = [line.split(": ")[1] for line in lines]
    assert keys == [
        "headroom",
        "strategy",
        "prediction.step_time",
        "workload.precision",
        "cluster.devicee",
        "model.layers",
    ]
    numbers = [int(line.split(":")[1]) for line in lines]
    assert numbers == sorted(numbers) and len(set(numbers)) == 6


WRONG = {
    "no target": lambda v: v.pop("target"),
    "no model": lambda v: v.pop("model"),
    "cluster is a list": lambda v: v.update(cluster=[]),
    "headroom is text": lambda v: v.update(headroom="8 %"),
    "tp is 0": lambda v: v["strategy"].update(tp=0),
    "tp is 8.0": lambda v: v["strategy"].update(tp=8.0),
    "tp is true": lambda v: v["strategy"].update(tp=True),
    "unknown recompute": lambda v: v["strategy"].update(recompute="some"),
    "layers do not add up": lambda v: v["strategy"].update(layers_per_stage=[16, 17]),
    "too few layers": lambda v: v["strategy"].update(layers_per_stage=[32]),
    "more devices than there are": lambda v: v["strategy"].update(dp_replicate=64),
    "mesh of another strategy": lambda v: v["mesh"].update(shape=[1]),
    "stages of another strategy": lambda v: v["stages"][0].update(first_layer=3),
    "schedule of another strategy": lambda v: v["schedule"].update(num_microbatches=3),
    "it does not fit": lambda v: v["prediction"].update(fits=False),
    "another peak": lambda v: v["prediction"].update(peak_memory=1),
    "a term changed": lambda v: v["prediction"]["memory_by_stage"][0].update(weights=1),
    "a rank is missing": lambda v: v["prediction"]["memory_by_stage"].pop(),
    "a time term is missing": lambda v: v["prediction"]["time_breakdown"].pop("bubble"),
    "proof is text": lambda v: v.update(proof="yes"),
    "unknown ending": lambda v: v["proof"].update(termination="sure"),
    "provenance is a list": lambda v: v.update(provenance=["x"]),
    "model changed": lambda v: v["model"].update(name="other"),
    "cluster changed": lambda v: v["cluster"].update(name="other"),
    "workload changed": lambda v: v["workload"].update(seq_len=128),
    "no digest": lambda v: v["model"].pop("digest"),
    "odd version": lambda v: v.update(format_version="one"),
    "no version": lambda v: v.pop("format_version"),
}  # fmt: skip


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_wrong_content_is_refused_with_file_and_line(
    change: Callable[[dict[str, Any]], object], values: dict[str, Any]
) -> None:
    change(values)
    for line in problems(values):
        assert line.startswith("plan.json:") and "Traceback" not in line and len(line) < 500


TEXTS = {
    "empty": "",
    "list": "[]",
    "number": "1",
    "half": '{"format_version": "1.0", "target"',
    "nan": '{"format_version": "1.0", "headroom": NaN}',
    "repeated": '{"format_version": "1.0", "format_version": "1.0"}',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_text_that_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"plan\.json"):
        read_plan(path)


def test_missing_folder_and_huge_files_are_refused(tmp_path: Path) -> None:
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(MAX_FILE_SIZE + 1)
    for name in ("none.json", "huge.json", "."):
        with pytest.raises(InputError):
            read_plan(tmp_path / name)


# Whole or not at all


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_failed_write_leaves_the_old_file_and_nothing_else(
    step: str, plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(step, fail)
    with pytest.raises(OSError, match="No space left"):
        write_plan(plan, path)
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_interrupted_write_leaves_the_old_file(plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "plan.json"
    path.write_text("old", encoding="utf-8")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_plan(plan, path)
    assert path.read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [path]


def test_devices_and_folders_are_not_replaced(plan: Plan, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(OSError, match="not a regular file"):
            write_plan(plan, tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()


def test_link_keeps_pointing_to_its_file(plan: Plan, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old", encoding="utf-8")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_plan(plan, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text(encoding="utf-8") == plan_text(plan)


def test_format_version_is_that_of_the_golden_file() -> None:
    assert (GOLDEN / f"plan-{FORMAT_VERSION}.json").exists(), "a new format version needs a golden file of its own"
