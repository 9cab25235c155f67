"""YAML 1.2 with lines; what is refused; files that are no files."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware import yaml_reader
from hardware.errors import InputError
from hardware.input_file import MAX_SIZE, read_text
from hardware.json_reader import parse_json
from hardware.yaml_reader import MAX_DEPTH, MAX_DIGITS, parse_scalar, parse_yaml, read_package_yaml, read_yaml


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e12", 1e12),
        ("1E+3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-3", -3),
        ("017", 17),
        ("0o17", 15),
        ("0xff", 255),
        ("true", True),
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("~", None),
        ("null", None),
        ("", None),
        (".inf", math.inf),
        ("12:30", "12:30"),
        ("2001-01-01", "2001-01-01"),
        ("1_000", "1_000"),
        ("=", "="),
        ("9" * MAX_DIGITS, int("9" * MAX_DIGITS)),
        ("9" * (MAX_DIGITS + 1), "9" * (MAX_DIGITS + 1)),
    ],
)
def test_plain_scalars_follow_the_core_schema(text: str, expected: object) -> None:
    value = parse_scalar(text)
    assert value == expected
    assert type(value) is type(expected)


def test_values_keep_their_lines() -> None:
    document = parse_yaml("a: 1\nb:\n  - {c: x}\n  - d:\n      '5': no\n", "f")
    assert document.content == {"a": 1, "b": [{"c": "x"}, {"d": {"5": "no"}}]}
    assert document.line(("b", 0, "c")) == 3
    assert document.line(("b", 1, "d", "5")) == 5
    assert document.line(("b", 1, "missing")) == 4
    assert document.line(("missing",)) == 1


def test_quoted_scalars_stay_text() -> None:
    assert parse_yaml("a: '1'\nb: \"null\"\nc: |\n  2\n", "f").content == {"a": "1", "b": "null", "c": "2\n"}


def test_all_refusals_come_at_once() -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml("a: 1\na: 2\nb: &x 1\nc: *x\nd: !!str 3\n", "f")
    assert [(problem.line, problem.path) for problem in caught.value.problems] == [
        (2, ("a",)),
        (3, ("b",)),
        (4, ("c",)),
        (5, ("d",)),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1,\n", "f:2: not YAML"),
        ("a: b: c\n", "f:1: not YAML: mapping values are not allowed here"),
        ("a: \x07\n", "f:1: not YAML"),
        ("\ta: 1\n", "f:1: not YAML"),
        ("---\na: 1\n---\nb: 2\n", "f:3: a second document"),
        ("? [a]\n: 1\n", "f:1: a key must be text"),
        ("a: !local 1\n", "f:1: a: tags"),
        ("a: !!python/object:os.system 1\n", "f:1: a: tags"),
        ("*a : 1\n", "aliases"),
        ("a: &b {c: 1}\n", "f:1: a: anchors"),
        ("# only a comment\n", "the file has no content"),
        ("null\n", "the file has no content"),
        ("[" * 100_000, f"nested deeper than {MAX_DEPTH} levels"),
        ("- " * 1000, f"nested deeper than {MAX_DEPTH} levels"),
    ],
)
def test_what_is_not_plain_yaml_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "f")
    assert message in str(caught.value)


def test_depth_limit_is_inclusive() -> None:
    assert parse_yaml("[" * MAX_DEPTH + "]" * MAX_DEPTH, "f").content is not None
    with pytest.raises(InputError, match="deeper"):
        parse_yaml("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "f")


def test_alias_bomb_is_refused() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    with pytest.raises(InputError, match="aliases"):
        parse_yaml("\n".join(lines), "f")


def test_files_are_read_or_refused_with_one_clear_line(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    assert read_yaml(good).content == {"a": 1, "b": 2}
    empty, blank, binary, loop = (tmp_path / name for name in ("empty", "blank", "binary", "loop"))
    empty.write_bytes(b"")
    blank.write_bytes(b"\xef\xbb\xbf \n\n")
    binary.write_bytes(b"a: \xff\xfe")
    loop.symlink_to(loop)
    os.mkfifo(tmp_path / "pipe")
    cases = {
        tmp_path / "missing.yaml": "no such file",
        tmp_path: "not a regular file but a folder",
        tmp_path / "pipe": "not a regular file",
        Path("/dev/zero"): "not a regular file",
        empty: "the file is empty",
        blank: "the file is empty",
        binary: "not UTF-8 text: byte 3",
        loop: "cannot be read",
    }
    for path, message in cases.items():
        with pytest.raises(InputError) as caught:
            read_yaml(path)
        assert f"{path}: {message}" in str(caught.value)
    for name, message in {"": "the name of the file is empty", "a\0b": "null"}.items():
        with pytest.raises(InputError, match=message):
            read_yaml(name)


def test_yaml_size_limit_is_inclusive(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    path.write_bytes(b"a: '" + b"x" * (yaml_reader.MAX_SIZE - 5) + b"'")
    assert read_yaml(path).line(("a",)) == 1
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(InputError, match="larger than 100000 bytes"):
        read_yaml(path)


def test_size_limit_is_inclusive(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * MAX_SIZE)
    assert len(read_text(path)) == MAX_SIZE
    path.write_bytes(b"x" * (MAX_SIZE + 1))
    with pytest.raises(InputError, match=f"larger than {MAX_SIZE} bytes"):
        read_text(path)
    assert len(read_text(path, max_size=MAX_SIZE + 1)) == MAX_SIZE + 1


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(st.one_of(st.text(alphabet="ab:-[]{}&*!|>'\"#%\n \t0,?\\", max_size=60), st.text(max_size=60)))
def test_any_text_is_read_or_refused_with_an_input_error(text: str) -> None:
    try:
        document = parse_yaml(text, "f")
    except InputError as error:
        assert all(line.isprintable() for line in str(error).splitlines())  # noqa: PT017  # One of two right outcomes.
    else:
        assert document.content is not None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": NaN}', "NaN is not a number"),
        ('{"a": -Infinity}', "-Infinity is not a number"),
        ('{"a": 1e999}', "'1e999' is too large"),
        ('{"a": 1, "a": 2}', "the key 'a' is repeated"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": "\\ud800"}', "surrogate"),
        ("9" * 5000, "not JSON"),
        ('{\n"a": }', "f:2: not JSON"),
        ("", "f:1: not JSON"),
    ],
)
def test_json_is_strict(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_json(text, "f")
    assert message in str(caught.value)


def test_json_content_is_plain() -> None:
    assert parse_json('{"a": [1, 2.5, null, "\\ud83d\\ude00"]}', "f").content == {"a": [1, 2.5, None, "\U0001f600"]}


def test_a_package_carries_its_yaml() -> None:
    assert "dgx-h100" in read_package_yaml("hardware", "catalog/nodes.yaml")
