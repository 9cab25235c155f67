"""From what people type to a model: names, paths, broken files."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hardware.errors import InputError
from planner.readers import model_names, read_model
from planner.readers.json_lines import json_lines
from tests.planner.readers.samples import GRAPH, LLAMA

GOOD = json.dumps(LLAMA, indent=1)


def message(source: str | Path) -> str:
    with pytest.raises(InputError) as caught:
        read_model(source)
    return str(caught.value)


def written(folder: Path, text: str | bytes, name: str = "model.json") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_name_a_path_and_a_folder_are_models(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    path = written(folder, GOOD, "config.json")
    assert read_model("llama-2-7b").name == "llama-2-7b"
    assert read_model(path) == read_model(str(path)) == read_model(folder)
    assert read_model(path).name == "my-llama"
    assert read_model(written(tmp_path, GOOD, "tiny.json")).name == "tiny"
    assert read_model(written(tmp_path, json.dumps(GRAPH), "graph.json")).name == "graph"


def test_an_unknown_name_gives_the_nearest() -> None:
    text = message("lama-3.1-8b")
    assert text.startswith(
        "lama-3.1-8b: no such file, and 'lama-3.1-8b' is no model of the catalog, did you mean 'llama-3"
    )
    assert f"known: {', '.join(model_names())}" in message("zzz")


def test_a_missing_file_gives_the_nearest_beside_it(tmp_path: Path) -> None:
    written(tmp_path, GOOD, "tiny.json")
    assert "did you mean 'tiny.json'?" in message(str(tmp_path / "tinny.json"))
    assert message(tmp_path / "tinny.json").endswith("tinny.json: no such file")


@pytest.mark.parametrize("source", ["", "a\0b", "x" * 5000, "\ud800", "-", "/"])
def test_odd_names_are_refused(source: str) -> None:
    assert message(source).count("\n") == 0


def test_a_problem_has_its_line(tmp_path: Path) -> None:
    text = json.dumps({**LLAMA, "hidden_size": "x", "vocab_size": -1}, indent=1)
    lines = {key: 1 + [line.strip()[1 : 1 + len(key)] for line in text.splitlines()].index(key) for key in LLAMA}
    problems = message(written(tmp_path, text)).splitlines()
    assert problems[0].startswith(f"{tmp_path / 'model.json'}:{lines['hidden_size']}: hidden_size: must be a whole")
    assert problems[1].startswith(f"{tmp_path / 'model.json'}:{lines['vocab_size']}: vocab_size: must be 1 to")


def test_a_problem_in_a_graph_has_its_line(tmp_path: Path) -> None:
    graph = {**GRAPH, "measurements": [GRAPH["measurements"][0], {**GRAPH["measurements"][1], "tp": 0}]}
    text = json.dumps(graph, indent=1)
    line = 1 + max(number for number, content in enumerate(text.splitlines()) if '"tp"' in content)
    assert message(written(tmp_path, text)).startswith(
        f"{tmp_path / 'model.json'}:{line}: measurements[1].tp: must be 1"
    )


DEEP = "[" * 100_000
TRAPS = {
    "empty": b"",
    "blank": b" \n ",
    "binary": b"\x00\xff\xfe\x80",
    "truncated": GOOD[:-20].encode(),
    "trailing": (GOOD + "]").encode(),
    "nan": GOOD.replace(": 64", ": NaN").encode(),
    "infinity": GOOD.replace(": 64", ": Infinity").encode(),
    "too large a float": GOOD.replace(": 64", ": 1e999").encode(),
    "5000 digits": GOOD.replace(": 64", ": " + "9" * 5000).encode(),
    "repeated key": GOOD.replace('"vocab_size"', '"hidden_size"').encode(),
    "deep": DEEP.encode(),
    "deep in a key": (GOOD[:-2] + ', "x": ' + DEEP + "]" * 100_000 + "}").encode(),
    "deep objects": ('{"a":' * 100_000).encode(),
    "lone surrogate": GOOD.replace("LlamaForCausalLM", "\\ud800").encode(),
    "surrogate in a key": GOOD.replace("vocab_size", "\\ud800").encode(),
    "comment": ("// model\n" + GOOD).encode(),
    "single quotes": GOOD.replace('"', "'").encode(),
    "latin-1": GOOD.replace("LlamaForCausalLM", "Ll\xe4ma").encode("latin-1"),
    "utf-16": GOOD.encode("utf-16"),
    "9 MB": b'{"a": "' + b"x" * 9_000_000 + b'"}',
    "a number": b"3",
    "text": b'"llama"',
    "null": b"null",
}


@pytest.mark.parametrize("trap", TRAPS)
def test_traps_of_json_give_one_sentence(tmp_path: Path, trap: str) -> None:
    path = written(tmp_path, TRAPS[trap])
    text = message(path)
    assert text.startswith(str(path))
    assert text.count("\n") == 0 and len(text) < 400 + len(str(path)), text


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    assert (
        read_model(written(tmp_path, "\ufeff" + GOOD)).num_parameters
        == read_model(written(tmp_path, GOOD)).num_parameters
    )


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    pipe, loop, locked = tmp_path / "pipe.json", tmp_path / "loop.json", tmp_path / "folder"
    os.mkfifo(pipe)
    loop.symlink_to(loop)
    locked.mkdir()
    for path in (pipe, loop, locked, Path("/dev/zero"), Path("/dev/null")):
        assert message(path).count("\n") == 0
        assert message(str(path)).count("\n") == 0


def test_lines_of_json_are_those_of_their_keys() -> None:
    text = '{"a": [1,\n {"b": "x\\"}{,:",\n  "c": []}, [2, [3\n,4]]],\n "d": {}, "\\u0065": null}'
    lines = json_lines(text)
    expected = {(): 1, ("a",): 1, ("a", 0): 1, ("a", 1): 2, ("a", 1, "b"): 2, ("a", 1, "c"): 3, ("a", 2): 3}
    expected |= {("a", 2, 0): 3, ("a", 2, 1): 3, ("a", 2, 1, 0): 3, ("a", 2, 1, 1): 4, ("d",): 5, ("e",): 5}
    assert lines == expected


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(value=VALUES, indent=st.sampled_from([None, 1]))
def test_lines_are_found_in_any_json(value: object, indent: int | None) -> None:
    lines = json_lines(json.dumps(value, indent=indent, ensure_ascii=False))

    def walk(content: object, path: tuple[str | int, ...]) -> set[tuple[str | int, ...]]:
        items = (
            content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
        )
        return {path}.union(*(walk(inner, (*path, key)) for key, inner in items))

    assert set(lines) == walk(value, ())
    assert sorted(lines.values()) == list(lines.values())
    assert indent is not None or set(lines.values()) == {1}


@given(position=st.integers(0, len(GOOD)), length=st.integers(0, 30), text=st.text(max_size=5))
def test_mutated_text_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, length: int, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "mutated.json"
    path.write_bytes((GOOD[:position] + text + GOOD[position + length :]).encode("utf-8", "surrogatepass"))
    try:
        read_model(path)
    except InputError as error:
        problems = error.problems
    else:
        problems = ()
    assert all(problem.file == str(path) for problem in problems)
