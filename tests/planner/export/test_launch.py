"""The shell script, run with a stand-in for torchrun."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from planner.export import export_plan
from planner.export.launch import launch_script
from tests.planner.export.plans import make_plan
from tests.planner.targets.models import model, strategy, workload

TORCHRUN = '#!/bin/sh\nprintf "%s\\n" "$CUDA_DEVICE_MAX_CONNECTIONS" "$@"\n'


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A PATH whose torchrun prints a variable and its arguments, one a line."""
    stand_in = tmp_path / "torchrun"
    stand_in.write_text(TORCHRUN, encoding="utf-8")
    stand_in.chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


def run(script: str, path: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", script, "launch.sh", *arguments],
        env={"PATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def test_the_script_starts_torchrun_with_the_arguments_of_the_json(path: str) -> None:
    its = strategy(tp=2, pp=4, vpp=2, dp_shard=2, zero_stage=1)
    files = export_plan(make_plan(model(), its, workload()), "megatron").files
    done = run(files["launch.sh"], path, "--lr", "1e-4", HOST_RANK="1", MASTER_ADDR="first")
    assert done.returncode == 0, done.stderr
    options = json.loads(files["arguments.json"])["arguments"]
    assert done.stdout.splitlines() == [
        "1",
        *("--nnodes", "2", "--nproc-per-node", "8", "--node-rank", "1"),
        *("--master-addr", "first", "--master-port", "29500"),
        "pretrain_gpt.py",
        *(value for option in options for value in option),
        "--lr",
        "1e-4",
    ]


def test_the_script_refuses_another_number_of_devices(path: str) -> None:
    files = export_plan(make_plan(model(), strategy(tp=2), workload()), "megatron").files
    done = run(files["launch.sh"], path, NUM_HOSTS="2")
    assert done.returncode == 2
    assert done.stderr == "the plan is for 2 devices, got NUM_HOSTS=2 x DEVICES_PER_HOST=2\n"
    assert run(files["launch.sh"], path, NUM_HOSTS="2", DEVICES_PER_HOST="1").returncode == 0


def test_values_are_quoted_for_the_shell(path: str) -> None:
    nasty = ("--layout", "E|t*2 L;$(echo no)'\"`", "{x}")
    script = launch_script(
        arguments=[nasty],
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "a b;c"},
        num_devices=1,
        devices_per_host=1,
        program="train.py",
        note="one\nexit 3 {line}",
    )
    lines = run(script, path).stdout.splitlines()
    assert lines[0] == "a b;c"
    assert lines[-3:] == list(nasty)
