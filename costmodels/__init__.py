"""Costs as pure functions of bytes, FLOPs and links; the join with a model is made in ``planner.tables``."""
