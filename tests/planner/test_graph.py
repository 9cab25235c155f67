"""A model graph: what it counts, what it refuses, and its JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from hardware.yaml_reader import Document
from planner.graph import (
    Axis,
    Block,
    Dim,
    Layer,
    Measurement,
    ModelGraph,
    Op,
    OpKind,
    Parameter,
    SharedParameter,
    Tensor,
)
from planner.readers import parse_graph
from tests.planner.readers.samples import CONFIGS, GPT2, LLAMA, MIXTRAL, read

HIDDEN = Dim(name="hidden", size=4)
TENSORS = {name: Tensor(name=name, dims=("batch", "seq", "hidden")) for name in ("x", "y")}
PRODUCT = Op(
    name="product",
    kind=OpKind.LINEAR,
    inputs=("x",),
    output="y",
    sums=("hidden",),
    parameters=(Parameter(name="w", dims=("hidden", "hidden")),),
)


def layer(op: Op = PRODUCT, *, input: str | None = "x", output: str = "y", parameters: int = 0) -> Layer:
    return Layer(
        name="block",
        dims={"hidden": HIDDEN},
        tensors=TENSORS,
        ops=(op,),
        input=input,
        output=output,
        opaque_parameters=parameters,
    )


def model(*blocks: Block, its: Layer | None = None, seq_len: int = 8) -> ModelGraph:
    return ModelGraph(
        name="m",
        family="graph",
        seq_len=seq_len,
        layer_types={"block": its or layer()},
        blocks=blocks or (Block(layer_type="block", count=3),),
    )


def test_weights_are_the_products_of_their_dims() -> None:
    assert layer().num_parameters == 16
    assert model().num_parameters == 48
    assert model().num_layers == model().count("block") == 3


def test_sizes_of_batch_and_sequence_are_not_the_models() -> None:
    assert layer().num_elements(("batch", "seq", "hidden")) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"inputs": ("z",)}, "op product names 'z'"),
        ({"inputs": ("y",)}, "op product names 'y'"),  # not made at that place
        ({"output": "z"}, "op product writes the unknown tensor 'z'"),
        ({"sums": ("ffn",)}, "op product names 'ffn'"),
        ({"parameters": (Parameter(name="w", dims=("ffn",)),)}, "parameter w names 'ffn'"),
    ],
)
def test_an_op_may_name_only_what_is_there(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(dataclasses.replace(PRODUCT, **change))


def test_a_tensor_may_name_only_dims_of_the_layer() -> None:
    wrong = TENSORS | {"y": Tensor(name="y", dims=("ffn",))}
    with pytest.raises(ValueError, match="tensor y names 'ffn'"):
        Layer(name="block", dims={"hidden": HIDDEN}, tensors=wrong, ops=(PRODUCT,), input="x", output="y")


def test_some_op_writes_the_output() -> None:
    with pytest.raises(ValueError, match="no op writes the output 'z'"):
        layer(output="z")


@pytest.mark.parametrize(("size", "granularity"), [(0, 1), (-1, 1), (1, 0)])
def test_sizes_start_at_1(size: int, granularity: int) -> None:
    with pytest.raises(ValueError, match="size and granularity must be at least 1"):
        Dim(name="d", size=size, granularity=granularity)


def test_a_model_has_layers_that_it_knows() -> None:
    with pytest.raises(ValueError, match="it has no layers"):
        ModelGraph(name="m", family="graph", seq_len=8, layer_types={}, blocks=())
    with pytest.raises(ValueError, match="unknown layer type 'other'"):
        model(Block(layer_type="other", count=1))
    with pytest.raises(ValueError, match="count must be at least 1"):
        Block(layer_type="block", count=0)
    with pytest.raises(ValueError, match="seq_len must be at least 1"):
        model(seq_len=0)
    with pytest.raises(ValueError, match="parameters must be at least 0"):
        layer(parameters=-1)


def test_a_shared_parameter_is_in_each_of_its_layers() -> None:
    shared = SharedParameter(name="v", layer_types=("block",))
    with pytest.raises(ValueError, match="shared parameter 'v' is not in 'block'"):
        dataclasses.replace(model(), shared_parameters=(shared,))


def test_a_tied_head_is_counted_once() -> None:
    tied, untied = read(GPT2), read(GPT2 | {"tie_word_embeddings": False})
    assert untied.num_parameters - tied.num_parameters == 1000 * 64
    assert tied.num_shared("head") == 1000 * 64
    assert tied.num_shared("embedding") == 0


def test_a_layer_without_ops_is_opaque_and_one_with_experts_is_moe() -> None:
    opaque = dataclasses.replace(layer(), ops=(), output="y", opaque_parameters=7)
    assert opaque.opaque and opaque.num_parameters == 7
    assert not layer().opaque
    assert read(MIXTRAL).is_moe
    assert not read(LLAMA).is_moe


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tp": 0}, "tp must be at least 1"),
        ({"seq_len": 0}, "seq_len must be at least 1"),
        ({"forward": -1.0}, "forward must be at least 0 s and finite"),
        ({"backward": float("inf")}, "backward must be at least 0 s and finite"),
        ({"forward": float("nan")}, "forward must be at least 0 s and finite"),
        ({"saved": -1}, "saved must be at least 0 bytes"),
        ({"peak": -1}, "peak must be at least 0 bytes"),
    ],
)
def test_a_measurement_is_within_reason(change: dict[str, object], message: str) -> None:
    row = Measurement(layer_type="block", device="d", microbatch_size=1, seq_len=8, forward=1.0, backward=2.0)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(row, **change)


def test_a_measurement_is_of_a_layer_that_the_model_has() -> None:
    row = Measurement(layer_type="other", device="d", microbatch_size=1, seq_len=8, forward=1.0, backward=2.0)
    with pytest.raises(ValueError, match="a measurement names the unknown layer type 'other'"):
        dataclasses.replace(model(), measurements=(row,))


def test_the_first_dim_of_a_name_is_found() -> None:
    found = read(LLAMA).dim("heads")
    assert found is not None and (found.size, found.axis) == (8, Axis.TP)
    assert read(LLAMA).dim("experts") is None


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_json_is_read_back_to_the_same_graph(name: str) -> None:
    graph = read(CONFIGS[name])
    text = json.dumps(graph.to_json())
    again = parse_graph(Document(file="model.json", content=json.loads(text)), graph.name)
    assert again.to_json() == graph.to_json()
    assert again.digest() == graph.digest()


def test_the_digest_sees_every_change() -> None:
    digests = {read(config).digest() for config in CONFIGS.values()}
    digests |= {read(LLAMA | {"vocab_size": 1001}).digest(), read(LLAMA, "other").digest()}
    # The samples of deepseek_v3 and kimi_k2 are the same layers.
    assert len(digests) == len(CONFIGS) - 1 + 2
