"""Megatron's own parser, validator and process groups on exported plans; needs ``megatron.training``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from itertools import product
from typing import Any

import pytest

from planner.export import export_plan
from planner.readers import model_names, read_model
from planner.targets import DP_OUTER, Level, load_target, model_facts
from tests.planner.export.samples import sample_plans
from tests.planner.targets.models import candidate, model, workload

pytestmark = pytest.mark.consumer

PREPARE = """
import contextlib, io, json, os, sys, typing, typing_extensions, warnings
warnings.simplefilter("ignore")
typing.override = typing_extensions.override  # megatron-core 0.19 wants Python 3.12; remove with Python 3.11
import torch
class Properties:
    major, minor, total_memory, name = 9, 0, 80 << 30, "device"
torch.cuda.get_device_properties = lambda *_: Properties
torch.cuda.get_device_capability = lambda *_: (9, 0)
os.environ["RANK"] = "0"

def in_a_child(work, case):
    # A child for each case, since Megatron keeps global state.
    reader, writer = os.pipe()
    if os.fork() == 0:
        answer = "fine"
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                answer = work(case) or answer
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, json.dumps(answer[:2000]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        answer = json.load(file)
    os.wait()
    return answer
"""

VALIDATE = """
from megatron.training.arguments import core_transformer_config_from_args, parse_args, validate_args
EXTRA = "--tokenizer-type NullTokenizer --mock-data --train-iters 10 --lr 1e-4 --no-rope-fusion".split()

def work(case):
    os.environ.update(case["environment"], WORLD_SIZE=str(case["num_devices"]))
    sys.argv = ["pretrain_gpt.py", *case["arguments"], *EXTRA]
    args = parse_args()
    args = validate_args(args) or args
    core_transformer_config_from_args(args)
    names = {"dp": "data", "tp": "tensor_model", "cp": "context", "pp": "pipeline_model", "ep": "expert_model"}
    read = {name: getattr(args, f"{long}_parallel_size") for name, long in names.items()}
    read["vpp"] = args.virtual_pipeline_model_parallel_size or 1
    expected = {name: case["degrees"][name] for name in read}
    assert read == expected, f"{read} instead of {expected}"
"""

GROUPS = """
import torch.distributed
from torch.testing._internal.distributed.fake_pg import FakeStore
from megatron.core.parallel_state import initialize_model_parallel

def work(case):
    size = case.pop("world_size")
    torch.distributed.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    initialize_model_parallel(**case, create_gloo_process_groups=False)
"""

ANSWER = """
print("ANSWERS", json.dumps([in_a_child(work, case) for case in json.load(sys.stdin)]))
"""


def ask_megatron(work: str, cases: list[dict[str, Any]]) -> list[str]:
    """What Megatron says to each case: ``fine``, or an error."""
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.training") is None:
        pytest.skip("megatron.training is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + work + ANSWER],
        input=json.dumps(cases),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ANSWERS "))
    answers: list[str] = json.loads(line.removeprefix("ANSWERS "))
    return answers


def test_megatron_takes_the_arguments_of_each_catalog_model() -> None:
    cases = []
    for plan in sample_plans([read_model(name) for name in model_names()], 110, seed=2):
        content = json.loads(export_plan(plan, "megatron").files["arguments.json"])
        flat = [value for option in content["arguments"] for value in option]
        cases.append({**content, "arguments": flat, "degrees": plan.strategy.degrees})
    answers = ask_megatron(VALIDATE, cases)
    assert {answer for answer in answers if answer != "fine"} == set()


def test_megatron_builds_the_groups_of_legal_meshes_and_no_others() -> None:
    """R1, R2, R20 and the rule on rank order say exactly what Megatron says."""
    target, cases, expected = load_target("megatron"), [], []
    rules = [rule for rule in target.rules if rule.code in ("R1", "R2", "R20", "order")]
    for moe, tp, cp, pp, dp, ep, etp, order, sharded in product(
        (False, True), (1, 2), (1, 3), (1, 2), (1, 2, 4), (1, 2, 4), (1, 2), (0, DP_OUTER), (False, True)
    ):
        if not moe and ep * etp > 1:
            continue
        for dp_replicate in (1, 2) if sharded and dp > 1 else (dp,):
            shards = dp // dp_replicate if sharded else 1
            if sharded and shards * cp == 1:
                continue
            its = candidate(
                tp=tp,
                cp=cp,
                pp=pp,
                dp=dp,
                ep=ep,
                etp=etp,
                zero_stage=int(sharded),
                dp_shard=shards,
                dp_replicate=dp_replicate,
                rank_order=order,
            )
            facts = model_facts(model(experts=4 if moe else 0), workload())
            expected.append(all(rule.holds(its, facts) for rule in rules if rule.level is not Level.INNER))
            cases.append(
                {
                    "world_size": tp * cp * pp * dp,
                    "tensor_model_parallel_size": tp,
                    "context_parallel_size": cp,
                    "pipeline_model_parallel_size": pp,
                    "expert_model_parallel_size": ep,
                    "expert_tensor_parallel_size": etp if moe else None,
                    "num_distributed_optimizer_instances": dp_replicate if sharded else 1,
                    "order": "tp-cp-ep-pp-dp" if order == DP_OUTER else "tp-cp-ep-dp-pp",
                }
            )
    answers = [answer == "fine" for answer in ask_megatron(GROUPS, [dict(case) for case in cases])]
    assert [case for case, told, ours in zip(cases, answers, expected, strict=True) if told != ours] == []
    assert set(expected) == {True, False}
