"""Messages about input: one readable line each, safe to print."""

import pickle

import pytest

from hardware.errors import MAX_SHOWN, InputError, Problem, format_path, printable, quote, suggest


def test_a_problem_is_one_line_with_file_line_and_key_path() -> None:
    problem = Problem(
        file="cluster.yaml", line=14, path=("nodes", 0, "nic"), message="unknown key 'nic', did you mean 'nics'?"
    )
    assert str(problem) == "cluster.yaml:14: nodes[0].nic: unknown key 'nic', did you mean 'nics'?"
    assert str(Problem(file="a.yaml", message="the file is empty")) == "a.yaml: the file is empty"


def test_an_error_lists_its_problems_and_survives_pickling() -> None:
    problems = [Problem(file="a", line=line, message=f"m{line}") for line in (1, 2)]
    error = pickle.loads(pickle.dumps(InputError(problems)))
    assert str(error) == "a:1: m1\na:2: m2"
    assert error.problems == tuple(problems)
    assert isinstance(error, ValueError)


def test_a_flood_of_problems_is_cut() -> None:
    problems = [Problem(file="a", line=line, message="m") for line in range(MAX_SHOWN + 5)]
    lines = str(InputError(problems)).splitlines()
    assert len(lines) == MAX_SHOWN + 1
    assert lines[-1] == "and 5 more problems"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\x1b[31m\nb", "'a\\x1b[31m\\nb'"),
        ("x" * 61, "'" + "x" * 57 + "...'"),
        ("\u202egnp.exe", "'\\u202egnp.exe'"),
        (True, "true"),
        (None, "nothing"),
        (1.5, "1.5"),
        ({"a": 1}, "a mapping"),
        ([1], "a list"),
    ],
)
def test_echoed_values_are_short_and_printable(value: object, expected: str) -> None:
    assert quote(value) == expected


def test_numbers_too_long_to_print_are_described() -> None:
    assert quote(10**60 - 1) == "9" * 60
    assert quote(10**60) == quote(-(10**5000)) == "a number of over 60 digits"


def test_paths_and_names_are_escaped_too() -> None:
    assert format_path(("a\nb", 2, "c")) == "a\\nb[2].c"
    assert printable("\x00") == "\\x00"


def test_suggestions_ignore_case_and_stay_silent_when_nothing_is_near() -> None:
    assert suggest("NICS", ["nics", "node"]) == ", did you mean 'nics'?"
    assert suggest("zzz", ["nics", "node"]) == ""
