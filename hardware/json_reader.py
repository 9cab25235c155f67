"""Strict JSON: no NaN, no repeated keys, no numbers or depths that break Python."""

import json
from typing import NoReturn

from hardware.errors import InputError, Problem, quote
from hardware.yaml_reader import Document


def parse_json(text: str, file: str) -> Document:
    """The content of JSON text; an InputError where it is not strict JSON.

    Notes
    -----
    ``NaN``, ``Infinity``, numbers beyond a float, repeated keys, lone surrogates and over-deep nesting are refused.
    """
    try:
        content = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_refuse_constant, parse_float=_finite_float
        )
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InputError([Problem(file=file, line=error.lineno, message=f"not JSON: {error.msg}")]) from error
    except RecursionError as error:
        raise InputError([Problem(file=file, message="not JSON: nested too deeply")]) from error
    except UnicodeEncodeError as error:
        raise InputError([Problem(file=file, message="not JSON: it has half of a surrogate pair")]) from error
    except ValueError as error:
        raise InputError([Problem(file=file, message=f"not JSON: {error}")]) from error
    return Document(file=file, content=content)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    content: dict[str, object] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"the key {quote(key)} is repeated")
        content[key] = value
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON knows")


def _finite_float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {quote(text)} is too large")
    return value
