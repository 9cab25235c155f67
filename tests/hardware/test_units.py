"""Quantities: every unit, prefix, case and spacing (R25), and the printers."""

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware.units import (
    MAX_TEXT,
    MAX_VALUE,
    UNITS,
    Dimension,
    format_bandwidth,
    format_bytes,
    format_count,
    format_rate,
    format_time,
    parse_quantity,
)

ALL_UNITS = [(dimension, unit) for dimension, units in UNITS.items() for unit in units]
WITH_UNIT = [dimension for dimension in Dimension if dimension is not Dimension.RATIO]


@pytest.mark.parametrize(
    ("text", "dimension", "expected"),
    [
        ("80 GiB", Dimension.BYTES, 80 * 2**30),
        ("80GiB", Dimension.BYTES, 80 * 2**30),
        ("0.5 GiB", Dimension.BYTES, 2**29),
        ("80 GB", Dimension.BYTES, 80 * 10**9),
        ("0.1 GB", Dimension.BYTES, 10**8),
        ("1e12 B", Dimension.BYTES, 10**12),
        (".5 kB", Dimension.BYTES, 500),
        ("9007199254740993 B", Dimension.BYTES, 2**53 + 1),
        ("1 PiB", Dimension.BYTES, 2**50),
        ("0 B", Dimension.BYTES, 0),
        ("-0 B", Dimension.BYTES, 0),
        ("400 Gbit/s", Dimension.BANDWIDTH, 50e9),
        ("400 Gb/s", Dimension.BANDWIDTH, 50e9),
        ("400 Gbps", Dimension.BANDWIDTH, 50e9),
        ("400 GB/s", Dimension.BANDWIDTH, 400e9),
        ("1 GiB/s", Dimension.BANDWIDTH, 2.0**30),
        ("1.6 Tbit/s", Dimension.BANDWIDTH, 200e9),
        ("8 b/s", Dimension.BANDWIDTH, 1.0),
        ("3.4 us", Dimension.TIME, 3.4e-6),
        ("3.4 \u00b5s", Dimension.TIME, 3.4e-6),
        ("3.4 \u03bcs", Dimension.TIME, 3.4e-6),
        ("1.5 min", Dimension.TIME, 90.0),
        ("2h", Dimension.TIME, 7200.0),
        ("936.25 ns", Dimension.TIME, 936.25e-9),
        ("989 TFLOPS", Dimension.FLOPS, 989e12),
        ("2.25 PFLOP/s", Dimension.FLOPS, 2.25e15),
        ("1.80 USD/h", Dimension.PRICE, 1.8),
        (0.08, Dimension.RATIO, 0.08),
        (2, Dimension.RATIO, 2.0),
        ("8 %", Dimension.RATIO, 0.08),
        ("0.08", Dimension.RATIO, 0.08),
    ],
)
def test_quantities_by_hand(text: object, dimension: Dimension, expected: float) -> None:
    value = parse_quantity(text, dimension)
    assert value == expected
    assert isinstance(value, int) == (dimension is Dimension.BYTES)


@pytest.mark.parametrize(
    ("value", "dimension", "message"),
    [
        (80, Dimension.BYTES, "80 has no unit, did you mean '80 GiB'?"),
        ("400", Dimension.BANDWIDTH, "'400' has no unit, did you mean '400 GB/s'?"),
        (5.0, Dimension.TIME, "5.0 has no unit, did you mean '5.0 us'?"),
        ("1.8", Dimension.PRICE, "did you mean '1.8 USD/h'?"),
        ("400 GB", Dimension.BANDWIDTH, "is a quantity of bytes, did you mean '400 GB/s'?"),
        ("400 Gbit", Dimension.BANDWIDTH, "did you mean '400 Gbit/s'?"),
        ("400 GB/s", Dimension.BYTES, "is a quantity of bandwidth, did you mean '400 GB'?"),
        ("80 gib", Dimension.BYTES, "unknown unit 'gib', did you mean '80 GiB'?"),
        ("80 KB", Dimension.BYTES, "did you mean '80 kB'?"),
        ("80 Gib", Dimension.BYTES, "did you mean '80 GiB'?"),
        ("5 S", Dimension.TIME, "did you mean '5 s'?"),
        ("312 TFLOPs", Dimension.FLOPS, "did you mean '312 TFLOPS'?"),
        ("312 TFLOP", Dimension.FLOPS, "did you mean '312 TFLOP"),
        ("2 EUR/h", Dimension.PRICE, "did you mean '2 USD/h'?"),
        ("-1 GiB", Dimension.BYTES, "is negative"),
        (-1, Dimension.RATIO, "is negative"),
        ("0.3 B", Dimension.BYTES, "not a whole number of bytes, did you mean '1 B'?"),
        (math.nan, Dimension.RATIO, "not finite"),
        (math.inf, Dimension.RATIO, "not finite"),
        ("nan s", Dimension.TIME, "not a number with a unit"),
        ("inf GB", Dimension.BYTES, "not a number with a unit"),
        ("1_000 GB", Dimension.BYTES, "unknown unit '_000 GB'"),
        ("1,5 GB", Dimension.BYTES, "unknown unit ',5 GB'"),
        ("\u0661 GB", Dimension.BYTES, "not a number with a unit"),
        ("GB", Dimension.BYTES, "not a number with a unit"),
        ("", Dimension.BYTES, "not a number with a unit"),
        (True, Dimension.RATIO, "true is not a quantity"),
        (None, Dimension.BYTES, "nothing is not a quantity"),
        ([80], Dimension.BYTES, "a list is not a quantity"),
        ("1e41 B", Dimension.BYTES, "exponent beyond 40"),
        ("1e-41 s", Dimension.TIME, "exponent beyond 40"),
        ("1e999999999999 B", Dimension.BYTES, "exponent beyond 40"),
        ("1e31 B", Dimension.BYTES, "too large"),
        (10**400, Dimension.RATIO, "too large"),
        ("1" * 70 + " B", Dimension.BYTES, f"longer than {MAX_TEXT} characters"),
        ("8\x1b[31m GB", Dimension.BYTES, "'8\\x1b[31m GB'"),
    ],
)
def test_refusals_name_value_and_nearest(value: object, dimension: Dimension, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        parse_quantity(value, dimension)
    assert str(dimension) in str(caught.value) or "accepted" in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_limits_are_inclusive() -> None:
    assert parse_quantity("1e30 B", Dimension.BYTES) == 10**30
    assert parse_quantity("1e-40 s", Dimension.TIME) == 1e-40
    text = "0" * (MAX_TEXT - 2) + "1B"
    assert parse_quantity(text, Dimension.BYTES) == 1
    with pytest.raises(ValueError, match="longer"):
        parse_quantity("0" + text, Dimension.BYTES)


def test_every_unit_against_every_dimension() -> None:
    """400 pairs and more: a unit is read by its own dimension only, in its exact case, with any spacing."""
    pairs = 0
    for dimension, unit in ALL_UNITS:
        for space in ("", " ", "  ", "\t"):
            assert parse_quantity(f" 3{space}{unit} ", dimension) == float(3 * UNITS[dimension][unit])
            pairs += 1
        for other in WITH_UNIT:
            if unit not in UNITS[other]:
                pairs += 1
                with pytest.raises(ValueError, match="did you mean"):
                    parse_quantity(f"3 {unit}", other)
    assert pairs >= 400


def test_another_case_is_refused_or_means_another_unit() -> None:
    for dimension, unit in ALL_UNITS:
        for changed in {unit.swapcase(), unit.lower(), unit.upper()} - set(UNITS[dimension]):
            with pytest.raises(ValueError, match="did you mean"):
                parse_quantity(f"3 {changed}", dimension)
    assert parse_quantity("8 Gb/s", Dimension.BANDWIDTH) * 8 == parse_quantity("8 GB/s", Dimension.BANDWIDTH)


numbers = st.one_of(
    st.integers(0, 10**15).map(str),
    st.decimals(0, 10**9, allow_nan=False, allow_infinity=False, places=6).map(str),
    st.tuples(st.integers(0, 999), st.integers(-9, 12)).map(lambda parts: f"{parts[0]}e{parts[1]}"),
)


@settings(max_examples=1000, derandomize=True, deadline=None, database=None)
@given(number=numbers, unit=st.sampled_from(ALL_UNITS), space=st.sampled_from(["", " ", "\t"]))
def test_values_are_exact_to_the_last_bit(number: str, unit: tuple[Dimension, str], space: str) -> None:
    dimension, name = unit
    exact = Fraction(number) * UNITS[dimension][name]
    if exact > MAX_VALUE or (name == "B" and exact.denominator != 1):
        return
    expected = round(exact) if dimension is Dimension.BYTES else float(exact)
    assert parse_quantity(f"{number}{space}{name}", dimension) == expected


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.one_of(st.text(max_size=80), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.integers())))
def test_any_value_is_read_or_refused_with_a_value_error(value: object) -> None:
    for dimension in Dimension:
        try:
            parsed = parse_quantity(value, dimension)
        except ValueError as error:
            assert str(error).isprintable()  # noqa: PT017  # The refusal is one of two right outcomes.
        else:
            assert parsed >= 0


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(num_bytes=st.integers(1, 2**59), rate=st.floats(1, 1e17), time=st.floats(1e-9, 900))
def test_printed_values_read_back_within_half_a_digit(num_bytes: int, rate: float, time: float) -> None:
    assert parse_quantity(format_bytes(num_bytes), Dimension.BYTES) == pytest.approx(num_bytes, rel=0.006)
    assert parse_quantity(format_bandwidth(rate), Dimension.BANDWIDTH) == pytest.approx(rate, rel=0.006)
    assert parse_quantity(format_rate(rate), Dimension.FLOPS) == pytest.approx(rate, rel=0.006)
    assert parse_quantity(format_time(time), Dimension.TIME) == pytest.approx(time, rel=0.006)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_bytes(71.2 * 2**30), "71.2 GiB"),
        (format_bytes(0), "0 B"),
        (format_bytes(1023), "1023 B"),
        (format_bytes(1024), "1.00 KiB"),
        (format_bytes(2**30 - 1), "1.00 GiB"),
        (format_bytes(-3 * 2**20), "-3.00 MiB"),
        (format_bytes(math.inf), "inf"),
        (format_time(1.234), "1.234 s"),
        (format_time(0.0123), "12.3 ms"),
        (format_time(0.9996), "1.000 s"),
        (format_time(0.99949), "999 ms"),
        (format_time(123.45), "123.5 s"),
        (format_time(3600), "3600 s"),
        (format_time(2), "2.000 s"),
        (format_time(3.4e-6), "3.40 us"),
        (format_time(0), "0 ns"),
        (format_bandwidth(370.8e9), "371 GB/s"),
        (format_bandwidth(999.9e9), "1.00 TB/s"),
        (format_rate(989e12), "989 TFLOP/s"),
        (format_rate(2.25e15), "2.25 PFLOP/s"),
        (format_count(8.03e9), "8.03 B"),
        (format_count(512), "512"),
        (format_count(999_999), "1.00 M"),
        (format_count(405.85e9), "406 B"),
    ],
)
def test_printers_by_hand(text: str, expected: str) -> None:
    assert text == expected
