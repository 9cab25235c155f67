"""How fast the command answers."""

from __future__ import annotations

import sys

from tests.bench.measure import Row, child_usage, median_of, planner_command


def run(smoke: bool) -> list[Row]:
    repeats = 1 if smoke else 5

    def cpu_of(command: list[str]) -> float:
        return median_of(lambda: child_usage(command)[0], repeats)

    note = f"median of {repeats}"
    return [
        Row(name="planner --help", value=cpu_of(planner_command("--help")), unit="CPU s", target="<= 0.5", note=note),
        Row(
            name="import planner",
            value=cpu_of([sys.executable, "-c", "import planner"]),
            unit="CPU s",
            target=None,
            note=f"{note}, interpreter included",
        ),
    ]


if __name__ == "__main__":
    for row in run(smoke=False):
        print(row)
