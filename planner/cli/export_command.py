"""``planner export``."""

from __future__ import annotations

import shlex
from pathlib import Path

from hardware.errors import quote, suggest
from planner.cli.inputs import Problems, check_output
from planner.cli.status import OK, UNFIT
from planner.cli.terminal import emit, hint
from planner.export import export_names, export_plan
from planner.plan_file import read_plan, write_files


def run_export(path: str, to: str, output: str | None, *, quiet: bool) -> int:
    """Write the files of a launcher, all or none, and print the command; the exit status."""
    problems = Problems()
    plan = problems.attempt(lambda: read_plan(path))
    if to not in export_names():
        known = list(export_names())
        problems.add(f"--to: unknown target {quote(to)}{suggest(to, known)}; accepted: {', '.join(known)}")
    folder = f"{Path(path).stem}-{to}" if output is None else output
    check_output(folder, problems, folder=True)
    problems.finish()
    assert plan is not None
    try:
        result = export_plan(plan, to)
    except ValueError as error:
        for line in str(error).splitlines():
            hint(f"error: {line}")
        hint("error: nothing was written")
        return UNFIT
    for warning in result.warnings:
        hint(f"warning: {warning}", quiet=quiet)
    _write(Path(folder), dict(result.files))
    hint(f"wrote {', '.join(str(Path(folder) / name) for name in result.files)}", quiet=quiet)
    emit(f"cd {shlex.quote(folder)} && {result.command}")
    return OK


def _write(folder: Path, files: dict[str, str]) -> None:
    """All files or none; a folder that was made for them goes away again if they cannot be written."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        write_files({folder / name: text for name, text in files.items()})
    except OSError:
        if made:
            folder.rmdir()
        raise
