"""The shape of a model as Megatron's arguments, as far as a graph tells it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from planner.graph import CHOICES, Axis, Layer, ModelGraph, Op, OpKind
from planner.plan import edge_layers, layer_sequence
from planner.workload import Workload


@dataclass(slots=True)
class ModelArguments:
    """Arguments collected so far, and what they cannot say."""

    arguments: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def add(self, option: str, *values: object) -> None:
        """Append an option with its values."""
        self.arguments += [option, *map(str, values)]

    def warn(self, sentence: str) -> None:
        """Note what is lost."""
        self.warnings.append(sentence)


def model_arguments(graph: ModelGraph, workload: Workload) -> ModelArguments:
    """Arguments of a decoder-only model.

    Parameters
    ----------
    graph
        Its dims are looked up by the names that the readers give them (``hidden``, ``heads``, ``ffn``, ...).
    workload
        For the sequence length.

    Returns
    -------
    ModelArguments
        With a warning for everything that the graph does not tell or Megatron cannot be told.
    """
    output = ModelArguments()
    body = _body(graph)
    layers = [graph.layer_types[name] for name in dict.fromkeys(body)]
    output.add("--num-layers", len(body))
    opaque = [layer.name for layer in layers if layer.opaque]
    if opaque:
        output.warn(f"the shape of {', '.join(opaque)} is not known, only measured: give the model's arguments by hand")
        output.add("--seq-length", workload.seq_len)
        return output
    _warn_of_mixed_sizes(layers, output)
    _add_width(graph, workload, output)
    _add_attention(layers, output)
    _add_window(body, graph, output)
    _add_mlp(layers, output)
    _add_experts(body, graph, output)
    _add_norms_and_biases(layers, output)
    _add_dropout(graph, output)
    return output


def _body(graph: ModelGraph) -> list[str]:
    """Layer types of the decoder layers in order."""
    leading, trailing = edge_layers(graph)
    names = layer_sequence(graph)
    return names[leading : len(names) - trailing]


def _size(layers: list[Layer], name: str) -> int | None:
    """Size of the first dim of a name."""
    return next((layer.dims[name].size for layer in layers if name in layer.dims), None)


def _ops(layers: list[Layer], kind: OpKind) -> list[Op]:
    return [op for layer in layers for op in layer.ops if op.kind is kind]


def _warn_of_mixed_sizes(layers: list[Layer], output: ModelArguments) -> None:
    sizes: dict[str, set[int]] = {}
    for layer in layers:
        for dim in layer.dims.values():
            sizes.setdefault(dim.name, set()).add(dim.size)
    for name, values in sizes.items():
        if len(values) > 1:
            output.warn(
                f"{name} differs between layers ({sorted(values)}); Megatron takes one size, the first is given"
            )


def _add_width(graph: ModelGraph, workload: Workload, output: ModelArguments) -> None:
    """Hidden size, sequence, positions, vocabulary."""
    all_layers = [graph.layer_types[block.layer_type] for block in graph.blocks]
    hidden = _size(all_layers, "hidden")
    if hidden is None:
        output.warn("no dim is named hidden: give --hidden-size by hand")
    else:
        output.add("--hidden-size", hidden)
    output.add("--seq-length", workload.seq_len)
    positions = _size(all_layers, "positions")
    output.add("--max-position-embeddings", positions or max(workload.seq_len, graph.seq_len))
    rotary = bool(_ops(all_layers, OpKind.ROTARY))
    output.add("--position-embedding-type", "learned_absolute" if positions else "rope" if rotary else "none")
    vocab = graph.dim("vocab")
    if vocab is not None:
        output.add("--vocab-size", vocab.size)
        output.add("--make-vocab-size-divisible-by", vocab.granularity)
    if not graph.shared_parameters:
        output.add("--untie-embeddings-and-output-weights")


def _add_attention(layers: list[Layer], output: ModelArguments) -> None:
    heads, kv_heads, head_size = (_size(layers, name) for name in ("heads", "kv_heads", "head_size"))
    if heads is None:
        output.warn("no dim is named heads: give --num-attention-heads by hand")
        return
    output.add("--num-attention-heads", heads)
    if kv_heads not in (None, heads):
        output.add("--group-query-attention")
        output.add("--num-query-groups", kv_heads)
    if head_size is not None:
        output.add("--kv-channels", head_size)
    if _size(layers, "kv_latent") is not None:
        output.add("--multi-latent-attention")
        for option, name in (
            ("--q-lora-rank", "q_latent"),
            ("--kv-lora-rank", "kv_latent"),
            ("--qk-head-dim", "nope_size"),
            ("--qk-pos-emb-head-dim", "rope_size"),
            ("--v-head-dim", "v_size"),
        ):
            size = _size(layers, name)
            if size is not None:
                output.add(option, size)


def _add_window(body: list[str], graph: ModelGraph, output: ModelArguments) -> None:
    """Megatron counts the keys before a query; ours counts the query's own too."""
    windows = {name: _window(graph.layer_types[name]) for name in dict.fromkeys(body)}
    sizes = sorted({window for window in windows.values() if window is not None})
    if not sizes:
        return
    if len(sizes) > 1:
        output.warn(f"attention windows differ between layers ({sizes}); Megatron takes one, {sizes[0]} is given")
    output.add("--window-size", f"{sizes[0] - 1},0")
    if None in windows.values():
        output.add("--window-attn-skip-freq", pattern(int(windows[name] is not None) for name in body))


def _window(layer: Layer) -> int | None:
    return next((op.window for op in layer.ops if op.window is not None), None)


def pattern(flags: Iterable[int]) -> str:
    """A 0 or 1 per layer as a list expression: ``([0]*3+[1]*58)``."""
    groups = [(flag, sum(1 for _ in group)) for flag, group in itertools.groupby(flags)]
    return f"({'+'.join(f'[{flag}]*{count}' for flag, count in groups)})"


def _add_mlp(layers: list[Layer], output: ModelArguments) -> None:
    ffn = _size(layers, "ffn")
    if ffn is not None:
        output.add("--ffn-hidden-size", ffn)
    if any("gate" in layer.dims for layer in layers):
        output.add("--swiglu")


def _add_experts(body: list[str], graph: ModelGraph, output: ModelArguments) -> None:
    layers = [graph.layer_types[name] for name in dict.fromkeys(body)]
    moe = [layer for layer in layers if layer.is_moe]
    if not moe:
        return
    experts = next(dim.size for dim in moe[0].dims.values() if dim.axis is Axis.EP)
    output.add("--num-experts", experts)
    if len(moe) < len(layers):
        output.add("--moe-layer-freq", pattern([int(graph.layer_types[name].is_moe) for name in body]))
    for option, name in (
        ("--moe-router-topk", CHOICES),
        ("--moe-ffn-hidden-size", "expert_ffn"),
        ("--moe-shared-expert-intermediate-size", "shared_ffn"),
    ):
        size = _size(moe, name)
        if size is not None:
            output.add(option, size)
    output.add("--moe-grouped-gemm")
    output.add("--moe-token-dispatcher-type", "alltoall")
    output.warn(
        "the plan does not know how the router scores, groups and balances: give the --moe-router-... options by hand"
    )


def _add_norms_and_biases(layers: list[Layer], output: ModelArguments) -> None:
    norms = _ops(layers, OpKind.NORM)
    if norms:
        biased = any(len(op.parameters) > 1 for op in norms)
        output.add("--normalization", "LayerNorm" if biased else "RMSNorm")
        normed = {dim for op in norms for parameter in op.parameters for dim in parameter.dims}
        if normed & {"head_size", "q_latent", "kv_latent"}:
            output.add("--qk-layernorm")
    linears = _ops(layers, OpKind.LINEAR)
    inward = [op for op in linears if set(_kept(layers, op)) & {"heads", "kv_heads"}]
    outward = [op for op in linears if op not in inward and not _is_router(layers, op)]
    into, others = [_has_bias(op) for op in inward], [_has_bias(op) for op in outward]
    if not any(others):
        output.add("--disable-bias-linear")
        if any(into):
            output.add("--add-qkv-bias")
    elif not all([*into, *others]):
        output.warn("only some of the linear layers have biases; Megatron has them in all or in those of q, k and v")


def _kept(layers: list[Layer], op: Op) -> tuple[str, ...]:
    """Dims of an op's output."""
    return next(layer.tensors[op.output].dims for layer in layers if op in layer.ops)


def _is_router(layers: list[Layer], op: Op) -> bool:
    return "router_experts" in _kept(layers, op)


def _has_bias(op: Op) -> bool:
    return any(not set(parameter.dims) & set(op.sums) for parameter in op.parameters)


def _add_dropout(graph: ModelGraph, output: ModelArguments) -> None:
    layers = [graph.layer_types[block.layer_type] for block in graph.blocks]
    if _ops(layers, OpKind.DROPOUT):
        output.warn("the plan does not know the probability of dropout: Megatron's default of 0.1 is left in place")
    else:
        output.add("--hidden-dropout", 0.0)
        output.add("--attention-dropout", 0.0)
