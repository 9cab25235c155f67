"""The command ``planner``."""

from planner.cli.app import main, run

__all__ = ["main", "run"]
