"""What an exporter hands back: files as text, and what they do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportResult:
    """Files that a launcher reads. Nothing is written yet."""

    files: Mapping[str, str]
    """Contents by file name, in the order in which a person would look at them."""
    warnings: tuple[str, ...]
    """What of the plan is lost, and what it does not know; one sentence each."""
    command: str
    """What to type on each host, in the folder of the files."""
