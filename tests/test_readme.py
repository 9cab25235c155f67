"""What the README shows is what the commands print, and its Python example runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"```\n\$ planner (.+)\n((?:.*\n)*?)```\n")
SECONDS = re.compile(r"found in [0-9.]+ m?s")


def printed(arguments: str) -> str:
    command = [sys.executable, "-m", "planner", *shlex.split(arguments)]
    done = subprocess.run(command, cwd=README.parent, capture_output=True, text=True, check=True)
    return done.stdout.rstrip() + "\n"


def test_readme_shows_two_searches() -> None:
    assert len(BLOCK.findall(README.read_text(encoding="utf-8"))) == 2


@pytest.mark.parametrize("index", range(2))
def test_transcripts_are_what_the_commands_print(index: int, request: pytest.FixtureRequest) -> None:
    text = README.read_text(encoding="utf-8")
    arguments, shown = BLOCK.findall(text)[index]
    now = printed(arguments)
    if request.config.getoption("--update-golden"):
        README.write_text(text.replace(shown, now), encoding="utf-8")
        shown = now
    assert SECONDS.sub("", shown) == SECONDS.sub("", now)


def test_python_example_runs(tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("optimal 0.0 ")
    assert (tmp_path / "plan.json").is_file()
