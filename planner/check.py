"""Independent check of a plan (being written)."""

from planner.plan import Plan


def check_plan(plan: Plan) -> list[str]:
    """Problems of a plan in words; empty for a sound one."""
    return []
