"""Quantities with their unit: parsed once on the way in, printed with a prefix on the way out."""

import difflib
import math
import re
from collections.abc import Mapping
from enum import StrEnum
from fractions import Fraction

from hardware.errors import quote

MAX_TEXT = 64
"""Longest quantity that is read [characters]."""
MAX_EXPONENT = 40
"""Largest power of ten, up or down, that is read."""
MAX_VALUE = Fraction(10) ** 30
"""Largest quantity in base units; far above any machine, far below a float's range."""


class Dimension(StrEnum):
    """What a quantity measures."""

    BYTES = "bytes"
    BANDWIDTH = "bandwidth"
    TIME = "time"
    FLOPS = "flops"
    PRICE = "price"
    RATIO = "ratio"


_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_FLOPS_PREFIXES = {**_DECIMAL, "E": 10**18}


def _byte_units() -> dict[str, Fraction]:
    return {f"{prefix}B": Fraction(factor) for prefix, factor in (_DECIMAL | _BINARY).items()}


def _bandwidth_units() -> dict[str, Fraction]:
    units: dict[str, Fraction] = {}
    for prefix, factor in (_DECIMAL | _BINARY).items():
        for per_second in ("/s", "ps"):
            units[f"{prefix}B{per_second}"] = Fraction(factor)
            units[f"{prefix}b{per_second}"] = Fraction(factor, 8)
        units[f"{prefix}bit/s"] = Fraction(factor, 8)
    return units


def _time_units() -> dict[str, Fraction]:
    micro = Fraction(1, 10**6)
    # The micro sign and the Greek letter mu look alike and are both typed.
    small = {"ms": Fraction(1, 1000), "us": micro, "\u00b5s": micro, "\u03bcs": micro, "ns": micro / 1000}
    return {"s": Fraction(1), **small, "min": Fraction(60), "h": Fraction(3600)}


def _flops_units() -> dict[str, Fraction]:
    return {f"{p}{name}": Fraction(f) for p, f in _FLOPS_PREFIXES.items() for name in ("FLOP/s", "FLOPS")}


UNITS: Mapping[Dimension, Mapping[str, Fraction]] = {
    Dimension.BYTES: _byte_units(),
    Dimension.BANDWIDTH: _bandwidth_units(),
    Dimension.TIME: _time_units(),
    Dimension.FLOPS: _flops_units(),
    Dimension.PRICE: {"USD/h": Fraction(1)},
    Dimension.RATIO: {"": Fraction(1), "%": Fraction(1, 100)},
}
"""Spellings of each dimension and their size in its base unit: B, B/s, s, FLOP/s, USD/h, 1."""

_ACCEPTED = {
    Dimension.BYTES: "a number of B, kB, MB, GB, TB, PB (powers of 1000) or KiB, MiB, GiB, TiB, PiB (of 1024)",
    Dimension.BANDWIDTH: "a number of GB/s, GiB/s, Gbit/s or Gb/s (also k, M, T, P; b is a bit, B a byte)",
    Dimension.TIME: "a number of s, ms, us, ns, min or h",
    Dimension.FLOPS: "a number of FLOP/s or FLOPS (also k, M, G, T, P, E)",
    Dimension.PRICE: "a number of USD/h",
    Dimension.RATIO: "a number such as 0.08, or a percentage such as '8 %'",
}
_TYPICAL_UNIT = {
    Dimension.BYTES: "GiB",
    Dimension.BANDWIDTH: "GB/s",
    Dimension.TIME: "us",
    Dimension.FLOPS: "TFLOPS",
    Dimension.PRICE: "USD/h",
    Dimension.RATIO: "%",
}
_NUMBER = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_QUANTITY = re.compile(rf"(?P<sign>-?)(?P<number>{_NUMBER})\s*(?P<unit>\S.*)?", re.DOTALL)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)$")


def parse_quantity(value: object, dimension: Dimension) -> float | int:
    """A quantity in base units.

    Parameters
    ----------
    value
        Text of a number and its unit, such as ``80 GiB`` or ``400Gbit/s``; a bare number for a ratio only.
    dimension
        What the quantity must measure.

    Returns
    -------
    float | int
        B as int (rounded to the nearest whole byte), else float in B/s, s, FLOP/s, USD/h or 1.

    Raises
    ------
    ValueError
        For a bare number, another dimension, an unknown unit, a negative, infinite or over-long number; the text gives
        the value, what is accepted and the nearest legal spelling.

    Notes
    -----
    The arithmetic is exact until the last step, so ``0.5 GiB`` is 2**29 and ``400 Gbit/s`` is 50e9 B/s. Upper and lower
    case differ: ``Gb/s`` is an eighth of ``GB/s``.
    """
    number, unit = _split(value, dimension)
    scale = UNITS[dimension].get(unit)
    if scale is None:
        raise _refusal(value, dimension, _unit_fault(unit), _nearest_unit(number, unit, dimension))
    exact = _exact(number, value, dimension) * scale
    if exact > MAX_VALUE:
        raise _refusal(value, dimension, "is too large")
    if dimension is not Dimension.BYTES:
        return float(exact)
    if unit == "B" and exact.denominator != 1:
        raise _refusal(value, dimension, "is not a whole number of bytes", f"{math.ceil(exact)} B")
    return round(exact)


def _split(value: object, dimension: Dimension) -> tuple[str, str]:
    """Text of the number and of the unit."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _refusal(value, dimension, "is not a quantity")
    if isinstance(value, float) and not math.isfinite(value):
        raise _refusal(value, dimension, "is not finite")
    if isinstance(value, int) and abs(value) > MAX_VALUE:
        raise ValueError(f"the number is too large; accepted: {_ACCEPTED[dimension]}")
    text = str(value).strip()
    if len(text) > MAX_TEXT:
        raise _refusal(value, dimension, f"is longer than {MAX_TEXT} characters")
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise _refusal(value, dimension, "is not a number with a unit")
    if match["sign"] and Fraction(match["number"].split("e")[0].split("E")[0]) != 0:
        raise _refusal(value, dimension, "is negative")
    if match["unit"] is None and dimension is not Dimension.RATIO:
        raise _refusal(value, dimension, "has no unit", f"{match['number']} {_TYPICAL_UNIT[dimension]}")
    return match["number"], match["unit"] or ""


def _exact(number: str, value: object, dimension: Dimension) -> Fraction:
    exponent = _EXPONENT.search(number)
    # A huge exponent would fill memory as an exact fraction, so it is refused before it is formed.
    if exponent is not None and abs(int(exponent[1])) > MAX_EXPONENT:
        raise _refusal(value, dimension, f"has an exponent beyond {MAX_EXPONENT}")
    return Fraction(number)


def _unit_fault(unit: str) -> str:
    """What is wrong with a unit: of another dimension, or of none."""
    for dimension, units in UNITS.items():
        if unit in units and unit:
            return f"is a quantity of {dimension}"
    return f"has the unknown unit {quote(unit)}"


def _nearest_unit(number: str, unit: str, dimension: Dimension) -> str:
    """The same number with the legal unit that is spelled most alike."""
    units = UNITS[dimension]
    other_case = [known for known in units if known.lower() == unit.lower()]
    common = [known for known in units if known and not known.endswith("ps")]
    alike = other_case or difflib.get_close_matches(unit, common, n=1, cutoff=0.5)
    return f"{number} {alike[0] if alike else _TYPICAL_UNIT[dimension]}"


def _refusal(value: object, dimension: Dimension, fault: str, nearest: str | None = None) -> ValueError:
    hint = f", did you mean {nearest!r}?" if nearest else ""
    return ValueError(f"{quote(value)} {fault}{hint} ({dimension} is {_ACCEPTED[dimension]})")


def format_bytes(num_bytes: float) -> str:
    """Memory in binary units and three digits, such as ``71.2 GiB``."""
    return _scaled(
        num_bytes, {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "PiB": 2**50}, whole=True
    )


def format_time(time: float) -> str:
    """A time [s]: four digits from one second up, such as ``1.234 s``, else three, such as ``12.3 ms``."""
    if abs(time) >= 1:
        return _scaled(time, {"s": 1}, digits=4)
    text = _scaled(time, {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1})
    return "1.000 s" if text == "1.00 s" else text


def format_bandwidth(bandwidth: float) -> str:
    """A bandwidth [bytes/s] in decimal units and three digits, such as ``371 GB/s``."""
    return _scaled(bandwidth, {"B/s": 1, "kB/s": 1e3, "MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12, "PB/s": 1e15})


def format_rate(flops_per_s: float) -> str:
    """A compute rate [FLOP/s] in three digits, such as ``989 TFLOP/s``."""
    return _scaled(flops_per_s, {f"{prefix}FLOP/s": factor for prefix, factor in _FLOPS_PREFIXES.items()})


def format_count(count: float) -> str:
    """A count in three digits with thousands, millions, billions or trillions, such as ``8.03 B``."""
    return _scaled(count, {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}, whole=True).rstrip()


def _scaled(value: float, units: Mapping[str, float], digits: int = 3, *, whole: bool = False) -> str:
    """The value in the smallest unit in which it, rounded, stays below the next; ``whole`` integers get no point."""
    if not math.isfinite(value):
        return str(value)
    names, sizes = list(units), list(units.values())
    for name, size, following in zip(names, sizes, [*sizes[1:], math.inf], strict=True):
        text = _significant(value / size, digits, whole=whole and size == 1 and float(value).is_integer())
        if abs(float(text)) * size < following:
            return f"{text} {name}"
    raise AssertionError("every number is below infinity")


def _significant(value: float, digits: int, *, whole: bool) -> str:
    """The value with at least so many significant digits, and all digits before the point."""
    if value == 0:
        return "0"
    if whole and abs(value) < 10 ** max(digits, 4):
        return str(round(value))
    magnitude = math.floor(math.log10(abs(value)))
    text = f"{value:.{min(max(digits - 1 - magnitude, 0), 12)}f}"
    carried = sum(c.isdigit() for c in text.lstrip("-0.")) > digits and "." in text
    return f"{value:.{max(digits - 2 - magnitude, 0)}f}" if carried else text
