"""The graph JSON: what is written is read back, what is wrong is named."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from hardware.errors import InputError
from planner.graph import BATCH, SEQ
from planner.readers import graph_schema, model_names, read_model
from tests.planner.readers.samples import CONFIGS, GRAPH, read
from tests.planner.readers.test_bad_configs import JUNK, message, read_or_refuse

SCHEMA = Draft202012Validator(graph_schema())
OUTPUT = ["batch", "seq", "hidden"]


def full() -> dict[str, Any]:
    """The JSON of a small model with every kind of content."""
    model = read(CONFIGS["gpt2"])
    content = json.loads(json.dumps(model.to_json()))
    content["measurements"] = [
        {
            "layer_type": "decoder",
            "device": "a100-sxm-80gb",
            "microbatch_size": 2,
            "seq_len": 512,
            "recompute": "full",
            "forward": 0.25,
            "backward": 1e-05,
            "saved": 7,
            "peak": 0,
        }
    ]
    return content  # type: ignore[no-any-return]  # json.loads is untyped


def changed(content: dict[str, Any], *path: str | int, to: object) -> dict[str, Any]:
    """A copy with one value replaced, or removed with ``...``."""
    content = copy.deepcopy(content)
    parent: Any = content
    for part in path[:-1]:
        parent = parent[part]
    if to is ...:
        del parent[path[-1]]
    else:
        parent[path[-1]] = to
    return content


@pytest.mark.parametrize("name", [*model_names(), *CONFIGS])
def test_what_is_written_is_read_back(name: str) -> None:
    model = read_model(name) if name in model_names() else read(CONFIGS[name])
    content = json.loads(json.dumps(model.to_json()))
    again = read(content)
    assert again == model
    assert again.digest() == model.digest()
    assert list(again.layer_types["head"].dims) == list(model.layer_types["head"].dims)
    SCHEMA.validate(content)


def test_measured_graphs_are_read_back() -> None:
    for content in (full(), GRAPH):
        model = read(content)
        written = json.loads(json.dumps(model.to_json()))
        assert read(written) == model
        SCHEMA.validate(content)
        SCHEMA.validate(written)


def test_a_graph_written_by_hand_fills_in_the_rest() -> None:
    model = read(GRAPH, name="mine")
    block = model.layer_types["block"]
    assert (model.name, model.family, model.num_layers, model.num_parameters) == ("mine", "graph", 24, 24 * 12_000_000)
    assert block.opaque and (block.input, block.output) == ("input", "output")
    assert block.tensors["input"].dims == block.tensors["output"].dims == (BATCH, SEQ, "hidden")
    first, second = model.measurements
    assert (first.layer_type, first.tp, first.seq_len, first.recompute) == ("block", 1, 2048, "none")
    assert (first.forward, first.backward, first.saved, first.peak) == (0.0025, 0.005, 64 * 2**20, None)
    assert (second.tp, second.forward, second.saved) == (2, 0.0015, 123)


def test_the_first_opaque_layer_may_have_no_input() -> None:
    content = changed(GRAPH, "layer_types", "block", "input", to=None)
    assert "'block' has no input, so only the first layer" in message(content)
    assert read(changed(content, "layers", 0, "count", to=1)).layer_types["block"].input is None


GPT2_ROWS = ("layer_types", "decoder", "ops")


@pytest.mark.parametrize(
    ("path", "to", "expected"),
    [
        (("format_version",), ..., "the key 'format_version' is missing"),
        (("format_version",), 1.0, "format_version: must be text, got 1.0"),
        (("format_version",), "one", "format_version: must be a version such as '1.0', got 'one'"),
        (
            ("format_version",),
            "2.0",
            "format '2.0' is not known, this planner reads 1.x: upgrade the planner to read it",
        ),
        (("format_version",), "0.9", "format '0.9' is not known, this planner reads 1.x: no planner ever wrote it"),
        (("seq_len",), ..., "the key 'seq_len' is missing"),
        (("seq_len",), 0, "seq_len: must be 1 to 1000000000, got 0; nearest: 1"),
        (("name",), "", "name: must be text, got ''"),
        (("name",), "a\x1b[2Jb", r"name: must be printable text of 1 to 60 characters, got 'a\x1b[2Jb'"),
        (("sequence",), 1, "unknown key 'sequence'"),
        (("mesurements",), [], "unknown key 'mesurements', did you mean 'measurements'?"),
        (("layer_types",), ..., "the key 'layer_types' is missing"),
        (("layer_types",), {}, "layer_types: must be a mapping of at least one layer type, got a mapping"),
        (("layer_types",), [], "layer_types: must be a mapping of at least one layer type, got a list"),
        (("layers",), [], "layers: must be a list with at least one item, got an empty one"),
        (("layers", 0, "count"), 0, "layers[0].count: must be 1 to 100000, got 0"),
        (("layers", 0, "count"), 10**7, "layers[0].count: must be 1 to 100000, got 10000000"),
        (("layers", 0, "type"), "blok", "layers[0].type: unknown layer type 'blok', did you mean 'block'?"),
        (("layers", 0, "kind"), "block", "layers[0].kind: unknown key 'kind'"),
        (("notes",), "a note", "notes: must be a list of text, got 'a note'"),
        (("layer_types", "block", "dims", "hidden"), 0, "layer_types.block.dims.hidden: must be 1 to 10000000, got 0"),
        (("layer_types", "block", "dims", "seq"), 1, "dims.seq: is sized by the workload, so no layer declares it"),
        (("layer_types", "block", "output"), ["hiden"], "output: unknown dim 'hiden', did you mean 'hidden'?"),
        (("layer_types", "block", "dims", "x" * 61), 1, "a name must be printable text of 1 to 60 characters"),
        (("layers",), [{"type": "block", "count": 60_000}] * 2, "layers: must be 100000 layers at most, got 120000"),
        (
            ("layer_types", "block", "tensors"),
            {"output": []},
            "output: is a list of dims, but there is a tensor 'output'",
        ),
        (("layer_types", "block", "output"), ["seq", "seq"], "output: names a dim twice"),
        (("layer_types", "block", "output"), "y", "layer_types.block.output: unknown tensor 'y'"),
        (("layer_types", "block", "output"), ..., "layer_types.block: the key 'output' is missing"),
        (("layer_types", "block", "parameters"), ..., "layer_types.block: the key 'parameters' is missing"),
        (("layer_types", "block", "parameters"), -1, "parameters: must be 0 to 1000000000000000, got -1"),
        (("layer_types", "block", "paramters"), 1, "unknown key 'paramters', did you mean 'parameters'?"),
        (("layer_types", "block"), 3, "layer_types.block: must be a mapping with keys dims, parameters"),
        (
            ("layer_types", "block", "input"),
            ["batch", "hidden"],
            "'block' reads (batch, hidden 1024), but 'block' before",
        ),
        (("measurements", 0, "forward"), "2.5", "forward: '2.5' has no unit, did you mean '2.5 us'?"),
        (("measurements", 0, "forward"), "2.5 MiB", "forward: '2.5 MiB' is a quantity of bytes"),
        (("measurements", 0, "forward"), -1, "forward: must be at least 0, got -1"),
        (("measurements", 0, "forward"), 1e12, "forward: must be at most 1e+09 seconds, got 1000000000000.0"),
        (("measurements", 0, "forward"), True, "forward: must be a number, got true"),
        (("measurements", 0, "forward"), ..., "measurements[0]: the key 'forward' is missing"),
        (("measurements", 0, "saved"), 1.5, "saved: must be a whole number in digits, got 1.5"),
        (("measurements", 0, "tp"), 0, "tp: must be 1 to 1000000, got 0"),
        (("measurements", 0, "device"), ..., "measurements[0]: the key 'device' is missing"),
        (("measurements", 0, "recompute"), "some", "recompute: unknown recompute 'some'"),
        (("measurements", 0, "layer_type"), "head", "layer_type: unknown layer type 'head'; known: 'block'"),
        (("measurements", 1, "tp"), 1, "measurements[1]: repeats measurements[0]"),
        (("measurements", 0, "time"), 1, "unknown key 'time'"),
        (
            ("shared_parameters",),
            [{"name": "w", "layer_types": ["block"]}],
            "must name two or more different layer types",
        ),
    ],
)
def test_one_wrong_value_of_a_short_graph_is_named(path: tuple[str | int, ...], to: object, expected: str) -> None:
    text = message(changed(GRAPH, *path, to=to))
    assert expected in text
    assert text.count("\n") == 0, text


@pytest.mark.parametrize(
    ("path", "to", "expected"),
    [
        ((*GPT2_ROWS, 1, "kind"), "linaer", "ops[1].kind: unknown kind 'linaer', did you mean 'linear'?"),
        (
            (*GPT2_ROWS, 1, "inputs"),
            ["atention_norm"],
            "inputs: reads 'atention_norm', which is not there yet, did you",
        ),
        ((*GPT2_ROWS, 1, "inputs"), "input", "inputs: must be a list of text, got 'input'"),
        ((*GPT2_ROWS, 1, "inputs"), ..., "ops[1]: the key 'inputs' is missing"),
        ((*GPT2_ROWS, 1, "output"), "qq", "output: unknown tensor 'qq'"),
        ((*GPT2_ROWS, 1, "output"), "input", "output: 'input' is there already"),
        ((*GPT2_ROWS, 1, "sums"), ["ffn"], "sums: sums over 'ffn', which neither its inputs nor its parameters have"),
        ((*GPT2_ROWS, 1, "name"), "k", "ops[2]: there is another op 'k' before it"),
        ((*GPT2_ROWS, 1, "parameters", "q.weight"), ["heads", "size"], "parameters.q.weight: unknown dim 'size'"),
        ((*GPT2_ROWS, 1, "parameters"), ["q.weight"], "parameters: must be a mapping of lists of dims, got a list"),
        ((*GPT2_ROWS, 4, "causal"), 1, "causal: must be true or false, got 1"),
        ((*GPT2_ROWS, 4, "window"), 0, "window: must be 1 to 10000000, got 0"),
        ((*GPT2_ROWS, 4, "windw"), 1, "unknown key 'windw', did you mean 'window'"),
        (("layer_types", "decoder", "parameters"), 5, "parameters: belongs to a layer without ops"),
        (("layer_types", ""), {}, "a name must be printable text of 1 to 60 characters"),
        (("layer_types", "decoder", "ops", -1), ..., "layer_types.decoder.output: no op writes 'mlp_residual'"),
        (("layer_types", "decoder", "output"), "nothing", "output: unknown tensor 'nothing'"),
        (("layer_types", "decoder", "dims", "heads", "axis"), "dp", "axis: unknown axis 'dp'"),
        (("layer_types", "decoder", "dims", "heads", "padded"), 1, "padded: must be true or false, got 1"),
        (("layer_types", "decoder", "dims", "heads", "size"), ..., "dims.heads: the key 'size' is missing"),
        (("layer_types", "decoder", "tensors", "q"), [1], "tensors.q: must be a list of text, got a list"),
        (
            ("layer_types", "head", "dims", "vocab", "size"),
            999,
            "'word_embeddings' has different sizes in 'embedding', 'head'",
        ),
        (
            ("layer_types", "head", "dims", "hidden", "size"),
            65,
            "'head' reads (batch, seq, hidden 65), but 'decoder' before",
        ),
        (
            ("shared_parameters", 0, "name"),
            "word_embedings",
            "'embedding' has no parameter 'word_embedings', did you mean",
        ),
        (
            ("shared_parameters", 0, "layer_types"),
            ["embedding", "hed"],
            "unknown layer type 'hed', did you mean 'head'?",
        ),
        (("layers", 1, "type"), "embedding", "'embedding' has no input, so only the first layer can be of that type"),
    ],
)
def test_one_wrong_value_of_a_full_graph_is_named(path: tuple[str | int, ...], to: object, expected: str) -> None:
    assert expected in message(changed(full(), *path, to=to))


def test_all_problems_of_a_graph_come_at_once() -> None:
    content = changed(full(), "layer_types", "decoder", "ops", 1, "kind", to="x")
    content = changed(content, "layer_types", "head", "output", to="y")
    content = changed(content, "measurements", 0, "forward", to="1 hour")
    content = changed(content, "seq_len", to="long")
    assert len(message(content).splitlines()) == 4


def test_later_minors_are_read() -> None:
    assert read(changed(GRAPH, "format_version", to="1.7")) == read(GRAPH)


def test_examples_are_valid(root: Path) -> None:
    path = root / "examples" / "profiled-gpt.json"
    SCHEMA.validate(json.loads(path.read_text()))
    model = read_model(path)
    # Words 51,200 and places 2,048 of 2,048; 24 blocks of 12 h^2 + 13 h; final norm 2 h; the head's copy is shared.
    assert model.num_parameters == (51_200 + 2_048) * 2_048 + 24 * 50_358_272 + 2 * 2_048
    assert (model.name, model.num_layers, model.seq_len) == ("profiled-gpt", 26, 2048)
    measured = {(row.layer_type, row.tp, row.microbatch_size) for row in model.measurements}
    assert measured == {(t, tp, b) for t in ("embedding", "block", "head") for tp in (1, 2, 4, 8) for b in (1, 2, 4)}
    assert any("Source:" in note for note in model.notes)
    config = read_model(root / "examples" / "llama-3.1-8b.json")
    assert (config.name, config.num_parameters) == ("llama-3.1-8b", 8_030_261_248)


def test_schema_describes_every_key() -> None:
    Draft202012Validator.check_schema(graph_schema())
    for key, value in [("layer_tipes", {}), ("seq_len", "2048"), ("layers", [])]:
        assert not SCHEMA.is_valid({**GRAPH, key: value})


def paths(content: object, prefix: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Every key path of a document."""
    found = [prefix] if prefix else []
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        found += paths(value, (*prefix, key))
    return found


DOCUMENTS = [GRAPH, full(), json.loads(json.dumps(read(CONFIGS["deepseek_v3"]).to_json()))]
PLACES = [(number, path) for number, content in enumerate(DOCUMENTS) for path in paths(content)]


@settings(max_examples=800)
@given(place=st.sampled_from(PLACES), value=st.one_of(JUNK, st.just(...)))
def test_mutated_graphs_are_read_or_refused(place: tuple[int, tuple[str | int, ...]], value: object) -> None:
    number, path = place
    outcome = read_or_refuse(changed(DOCUMENTS[number], *path, to=value))
    if isinstance(outcome, InputError):
        assert all(problem.file == "model.json" and len(str(problem)) < 1000 for problem in outcome.problems)
    else:
        assert read(json.loads(json.dumps(outcome.to_json()))) == outcome
