"""``python -m tests.bench [NAME ...]``: run the benchmarks (all, or those named), print them, write build/bench.json.

A benchmark is a module tests/bench/bench_NAME.py with ``run(smoke: bool) -> list[Row]``; ``smoke`` asks for the
smallest run that touches all of the code. A missed target is printed as such; the exit status tells of errors only.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.measure import ROOT, Row, describe_machine, is_met

VERDICTS = {True: "met", False: "MISSED", None: ""}


def find_benchmarks() -> list[str]:
    return sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))


def main(names: list[str]) -> int:
    unknown = sorted(set(names) - set(find_benchmarks()))
    if unknown:
        print(f"no benchmark named {', '.join(unknown)}; there are: {', '.join(find_benchmarks())}", file=sys.stderr)
        return 2
    machine = describe_machine()
    table = Table("benchmark", "figure", "value", "unit", "target", "", "note")
    for column in table.columns[2], table.columns[4]:
        column.justify = "right"
    results: dict[str, list[Row]] = {}
    failed = []
    for name in names or find_benchmarks():
        print(f"running {name} ...", file=sys.stderr, flush=True)
        try:
            results[name] = importlib.import_module(f"tests.bench.bench_{name}").run(smoke=False)
        except Exception:  # noqa: BLE001 - one broken benchmark must not hide the others
            failed.append(name)
            traceback.print_exc()
            continue
        for row in results[name]:
            value = f"{row['value']:,.4g}" if abs(row["value"]) < 1e4 else f"{row['value']:,.0f}"
            table.add_row(
                name, row["name"], value, row["unit"], row["target"] or "", VERDICTS[is_met(row)], row["note"]
            )
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    output = ROOT / "build" / "bench.json"
    output.parent.mkdir(exist_ok=True)
    output.write_text(json.dumps({"machine": machine, "rows": results}, indent=2) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
