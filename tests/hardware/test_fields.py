"""Sections: values with their checks, problems gathered."""

import pytest

from hardware.errors import InputError
from hardware.fields import Section
from hardware.units import Dimension
from hardware.yaml_reader import Document, parse_yaml


def section(text: str) -> Section:
    return Section(document=parse_yaml(text, "f"))


def test_good_values_come_back_in_base_units() -> None:
    top = section("n: 3\nt: x\nq: 2 GiB\nf: 1.5\nm: {a: 1}\nl: [{a: 1}, {a: 2}]\n")
    assert top.count("n", maximum=3) == 3
    assert top.text("t") == "x"
    assert top.quantity("q", Dimension.BYTES) == 2**31
    assert top.number("f") == 1.5
    inner = top.section("m")
    assert inner is not None
    assert inner.count("a", maximum=9) == 1
    assert [item.count("a", maximum=9) for item in top.items("l")] == [1, 2]
    assert top.check_keys(("n", "t", "q", "f", "m", "l"))
    top.finish()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n: true", "f:1: n: must be a whole number in digits, got true"),
        ("n: 8.0", "got 8.0, did you mean 8?"),
        ("n: 1e3", "got 1000.0, did you mean 1000?"),
        ("n: 8.5", "got 8.5"),
        ("n: '8'", "got '8'"),
        ("n: 0", "must be 1 to 10, got 0; nearest: 1"),
        ("n: 11", "must be 1 to 10, got 11; nearest: 10"),
        ("n: -1", "nearest: 1"),
        ("n: .inf", "got inf"),
        ("n:", "has no value"),
        ("m: 1", "the key 'n' is missing"),
    ],
)
def test_a_count_is_a_whole_number_in_digits(text: str, message: str) -> None:
    top = section(text)
    assert top.count("n", maximum=10) is None
    with pytest.raises(InputError) as caught:
        top.finish()
    assert message in str(caught.value)


@pytest.mark.parametrize("value", ["true", ".nan", ".inf", "x", "[1]", "1" + "0" * 350])
def test_a_number_is_finite(value: str) -> None:
    top = section(f"f: {value}")
    assert top.number("f") is None
    assert "must be a number" in str(top.problems[0])


def test_number_limit_is_inclusive() -> None:
    assert section("f: 1").number("f", minimum=1) == 1.0
    top = section("f: 0.999")
    assert top.number("f", minimum=1) is None
    assert "must be at least 1, got 0.999; nearest: 1" in str(top.problems[0])


def test_zero_quantities_only_where_they_make_sense() -> None:
    assert section("q: 0 GiB").quantity("q", Dimension.BYTES, positive=False) == 0
    top = section("q: 0 GiB")
    assert top.quantity("q", Dimension.BYTES) is None
    assert "must be above 0" in str(top.problems[0])


def test_optional_keys_may_be_absent_but_not_empty() -> None:
    top = section("a: 1\nt:\nl: []\ns: '  '\n")
    assert top.text("missing", required=False) is None
    assert top.problems == []
    assert top.text("t", required=False) is None
    assert top.items("l") == []
    assert top.text("s") is None
    assert [problem.message for problem in top.problems] == [
        "has no value",
        "must be a list with at least one item, got an empty one",
        "must be text, got '  '",
    ]


def test_problems_come_in_the_order_of_the_file() -> None:
    top = section("a: x\nb: y\n")
    top.count("b", maximum=1)
    top.count("a", maximum=1)
    with pytest.raises(InputError) as caught:
        top.finish()
    assert [problem.line for problem in caught.value.problems] == [1, 2]


def test_what_is_no_mapping_says_which_keys_it_wants() -> None:
    top = Section(document=Document(file="f", content=[1]))
    assert not top.check_keys(("a", "b"))
    assert str(top.problems[0]) == "f: must be a mapping with keys a, b, got a list"
