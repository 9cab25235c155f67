"""How long whole searches take: the command from start to answer, its memory, and what it had to look at."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.bench.measure import ROOT, Row, planner_command


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """A search that people will try."""

    model: str
    cluster: str
    batch: int
    seq_len: int
    seconds: float | None
    """Wall time that it should take at most [s]."""
    bounded: float | None = None
    """Rows that it should bound at most."""

    @property
    def label(self) -> str:
        return f"{self.model} on {self.cluster}"

    @property
    def command(self) -> list[str]:
        batch, seq_len = str(self.batch), str(self.seq_len)
        return planner_command(
            *("search", self.model, self.cluster, "--global-batch-size", batch, "--seq-len", seq_len, "--json")
        )


HEADLINES = (
    Headline(model="gpt3-175b", cluster="dgx-a100-80gb*128", batch=1536, seq_len=2048, seconds=3),
    Headline(model="gpt3-175b", cluster="dgx-a100-80gb*512", batch=1536, seq_len=2048, seconds=3),
    Headline(model="llama-3.1-405b", cluster="dgx-h100*2048", batch=2048, seq_len=8192, seconds=5),
    Headline(model="deepseek-v3", cluster="hgx-h800*256", batch=15_360, seq_len=4096, seconds=8, bounded=2e6),
    Headline(model="llama-3.1-405b", cluster="dgx-h100*16384", batch=16_384, seq_len=8192, seconds=15),
)
SMALL = (Headline(model="llama-2-7b", cluster="dgx-a100-80gb*1", batch=8, seq_len=4096, seconds=None),)

SCALED_MODEL, NODE, DEVICES_PER_NODE, SCALED_BATCH = "gpt3-175b", "dgx-a100-80gb", 8, 3 * 2**12
CHAINS = ([2**power for power in range(10, 18)], [3 * 2**power for power in range(9, 16)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What one search took and said."""

    wall: float
    """[s]"""
    cpu: float
    """[s]"""
    memory: float
    """Largest resident memory [bytes]."""
    answer: dict[str, Any]


def measure(headline: Headline) -> Usage:
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        child = subprocess.Popen(headline.command, cwd=ROOT, stdout=output, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{headline.label}: exit status {child.returncode}")
        output.seek(0)
        answer = json.load(output)
    unit = 1 if sys.platform == "darwin" else 1024
    cpu = usage.ru_utime + usage.ru_stime
    return Usage(wall=wall, cpu=cpu, memory=float(usage.ru_maxrss * unit), answer=answer)


def headline_rows(headline: Headline, repeats: int) -> list[Row]:
    usages = [measure(headline) for _ in range(repeats)]
    label, last = f"{headline.label}, batch {headline.batch}", usages[-1].answer
    note = f"median of {repeats}, step {last['step_time']:.4g} s"

    def row(name: str, value: float, unit: str, target: float | None) -> Row:
        limit = None if target is None else f"<= {target:g}"
        return Row(name=f"{label}: {name}", value=value, unit=unit, target=limit, note=note)

    return [
        row("wall", float(np.median([usage.wall for usage in usages])), "s", headline.seconds),
        row("CPU", float(np.median([usage.cpu for usage in usages])), "CPU s", None),
        row("memory", float(np.median([usage.memory for usage in usages])) / 1e6, "MB", 1000),
        row("gap", float(last["gap"]), "", 0),
        row("bounded", float(last["num_bounded"]), "rows", headline.bounded),
        row("simulated", float(last["num_evaluated"]), "candidates", None),
        row("space", float(last["space_size"]), "candidates", None),
    ]


def growth_rows(chains: tuple[list[int], ...], batch: int) -> list[Row]:
    """The time of a search at twice the devices over its time, without start-up."""
    ratios, notes = [], []
    for chain in chains:
        times = []
        for devices in chain:
            cluster = f"{NODE}*{devices // DEVICES_PER_NODE}"
            headline = Headline(model=SCALED_MODEL, cluster=cluster, batch=batch, seq_len=2048, seconds=None)
            times.append(float(measure(headline).answer["search_time"]))
        notes.append(f"{chain[0]} to {chain[-1]} devices: " + " ".join(f"{seconds:.2f}" for seconds in times) + " s")
        ratios += [after / before for before, after in itertools.pairwise(times)]
    note = f"{SCALED_MODEL}, batch {batch}; " + "; ".join(notes)
    median, largest = float(np.median(ratios)), float(max(ratios))
    return [
        Row(name="search time at twice the devices, median", value=median, unit="", target="<= 1.5", note=note),
        Row(name="search time at twice the devices, largest", value=largest, unit="", target=None, note=note),
    ]


def run(smoke: bool) -> list[Row]:
    if smoke:
        return [row for headline in SMALL for row in headline_rows(headline, repeats=1)]
    rows = [row for headline in HEADLINES for row in headline_rows(headline, repeats=3)]
    return rows + growth_rows(CHAINS, SCALED_BATCH)


if __name__ == "__main__":
    for figure in run(smoke=False):
        print(figure)
