"""``planner rule``."""

from __future__ import annotations

from hardware.errors import quote, suggest
from planner.cli.status import OK
from planner.cli.terminal import emit
from planner.targets import Rule, load_target, target_names


def run_rule(code: str, target: str | None) -> int:
    """Print the rules of a code."""
    names = target_names() if target is None else (load_target(target).name,)
    found: dict[tuple[str, str], list[str]] = {}
    rules: dict[tuple[str, str], Rule] = {}
    for name in names:
        for rule in load_target(name).rules_named(code):
            key = (rule.level.value, rule.formula)
            rules[key] = rule
            found.setdefault(key, []).append(name)
    if not rules:
        codes = list(dict.fromkeys(rule.code for name in names for rule in load_target(name).rules))
        hint = suggest(code, codes) or f"; known: {', '.join(codes)}"
        raise ValueError(f"unknown rule {quote(code)}{hint}")
    emit("\n".join(_text(rule, found[key]) for key, rule in rules.items()))
    return OK


_MEANING = {
    "error": "refused, or something else is computed",
    "warning": "it runs, and people should know",
    "duplicate": "another candidate is the same placement; search counts that one only",
}


def _text(rule: Rule, targets: list[str]) -> str:
    return (
        f"{rule.code}: {rule.title}\n"
        f"  holds where  {rule.formula}\n"
        f"  enforced by  {rule.enforced_by}\n"
        f"  of targets   {', '.join(targets)}\n"
        f"  if broken    {_MEANING[rule.severity.value]}\n"
        f"  decided by   {_LEVELS[rule.level.value]}\n"
    )


_LEVELS = {
    "core": "degrees and microbatches",
    "outer": "sharding of states, placement, kind of context parallelism",
    "inner": "layers and recomputation of each stage",
}
