"""Options and fixtures of all tests."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"

# The same examples on each run, and no verdict that depends on how busy the machine is.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.load_profile("fixed")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite the files of tests/golden; review the diff")


class Golden(Protocol):
    """Compares a text with a file of tests/golden."""

    def __call__(self, name: str, text: str) -> None: ...


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """``golden("plan-small.json", text)`` fails with a diff unless the file holds the text; see ``--update-golden``."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            return
        # newline="" on both sides: a changed line end is a change.
        with path.open(encoding="utf-8", newline="") as file:
            expected = file.read()
        if text != expected:
            diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), name, "now", lineterm="")
            pytest.fail("\n".join(diff) or f"{name} differs in its line ends")

    return compare


@pytest.fixture(scope="session")
def root() -> Path:
    """The root of the repository."""
    return ROOT
