"""Checks of single numbers, shared by the records."""

import math


def check_positive(name: str, value: float, unit: str) -> None:
    """Raise a ValueError unless the value is finite and above 0."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be above 0 {unit}, got {value}")


def check_not_negative(name: str, value: float, unit: str) -> None:
    """Raise a ValueError unless the value is finite and at least 0."""
    if not (math.isfinite(value) and value >= 0):
        raise ValueError(f"{name} must be at least 0 {unit}, got {value}")


def check_fraction(name: str, value: float) -> None:
    """Raise a ValueError unless the value is above 0 and at most 1."""
    if not 0 < value <= 1:
        raise ValueError(f"{name} must be above 0 and at most 1, got {value}")


def check_whole(name: str, value: int, unit: str) -> None:
    """Raise a ValueError unless the value is an int (a bool is not)."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{name} must be a whole number of {unit}, got {value!r}")
