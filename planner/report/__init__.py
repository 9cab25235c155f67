"""Answers for people and programs."""

from planner.report.answer import estimate_json, search_json
from planner.report.text import estimate_text, search_text

__all__ = ["estimate_json", "estimate_text", "search_json", "search_text"]
