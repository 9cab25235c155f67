"""What the benchmarks share: rows, and clocks that count CPU time."""

from __future__ import annotations

import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent


class Row(TypedDict):
    """One measured figure."""

    name: str
    value: float
    unit: str
    target: str | None
    """What is to be reached, as ``<= 0.5`` or ``>= 5e6``; None where nothing was promised."""
    note: str


def is_met(row: Row) -> bool | None:
    """Whether the value reaches the target; None without one."""
    if row["target"] is None:
        return None
    comparison, limit = row["target"].split()
    if comparison not in ("<=", ">="):
        raise ValueError(f"target of {row['name']!r} must begin with <= or >=, got {row['target']!r}")
    return row["value"] <= float(limit) if comparison == "<=" else row["value"] >= float(limit)


def median_of(measure: Callable[[], float], repeats: int) -> float:
    """Median of several measurements, after one that only warms caches up."""
    if repeats > 1:
        measure()
    return float(np.median([measure() for _ in range(repeats)]))


def cpu_time(action: Callable[[], object]) -> float:
    """CPU time of this process in a call, all threads [s]."""
    start = time.process_time()
    action()
    return time.process_time() - start


def child_usage(command: Sequence[str], *, cwd: Path = ROOT) -> tuple[float, float, float]:
    """CPU time [s], wall time [s] and largest resident memory [bytes] of a command that must succeed.

    A process counts the memory of the one that forked it until it starts its own program, so the last figure is at
    least what this process holds.
    """
    start = time.perf_counter()
    child = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert child.stderr is not None
    errors = child.stderr.read()
    _, status, usage = os.wait4(child.pid, 0)
    wall = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stderr.close()
    if child.returncode:
        raise RuntimeError(f"{command} gave {child.returncode}: {errors}")
    unit = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss
    return usage.ru_utime + usage.ru_stime, wall, float(usage.ru_maxrss * unit)


def planner_command(*arguments: str) -> list[str]:
    """The command ``planner`` in this interpreter's environment, as its console script calls it."""
    return [sys.executable, "-c", "import sys; from planner.cli import main; sys.exit(main())", *arguments]


def peak_memory() -> float:
    """Largest resident memory of this process so far [bytes]."""
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def describe_machine() -> dict[str, str | int]:
    """What a figure depends on besides the code."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    return {
        "processor": model,
        "cores": cores,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
