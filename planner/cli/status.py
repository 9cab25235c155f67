"""How a command ends."""

OK, UNFIT, BAD_INPUT, NO_PLAN, FAULT, INTERRUPTED = 0, 1, 2, 3, 4, 130
"""Exit statuses."""


class PlannerFault(RuntimeError):
    """Something that only a fault of the planner can cause; one problem per line."""


class Interrupted(RuntimeError):
    """Ctrl-C before there was anything to show."""
