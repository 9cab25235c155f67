"""FLOPs of a model as the graph says them: unsharded, unpadded, without recomputation."""

from __future__ import annotations

import math

from planner.graph import BATCH, SEQ, Layer, ModelGraph, Op, OpKind

BACKWARD_OVER_FORWARD = 2
"""A product's backward is two products."""


def mean_context(op: Op, seq_len: int) -> float:
    """Keys that a query sees, on average over the sequence.

    Causal: query i sees ``min(i, window)`` keys, i = 1 .. seq_len; otherwise all, or the window.
    """
    window = min(op.window or seq_len, seq_len)
    if not op.causal:
        return float(window)
    return (window * (window + 1) / 2 + (seq_len - window) * window) / seq_len


def attention_flops_per_pair(layer: Layer, op: Op) -> int:
    """FLOPs of one query-key pair of one head: the score and its use."""
    query, value = layer.tensors[op.inputs[0]], layer.tensors[op.inputs[2]]
    return 2 * sum(layer.dims[tensor.dims[-1]].size for tensor in (query, value))


def forward_flops(layer: Layer, seq_len: int) -> float:
    """FLOPs of one layer's products and attention for one sequence, forward; masked scores are not counted.

    An opaque layer is taken as one product of all its parameters.
    """
    total = 2.0 * layer.opaque_parameters * seq_len
    for op in layer.ops:
        output = [layer.dims[name].size for name in layer.tensors[op.output].dims if name not in (BATCH, SEQ)]
        if op.kind is OpKind.ATTENTION:
            heads = math.prod(output[:-1])
            total += seq_len * heads * mean_context(op, seq_len) * attention_flops_per_pair(layer, op)
        elif op.kind in (OpKind.LINEAR, OpKind.GROUPED_LINEAR):
            total += 2 * seq_len * math.prod(output) * layer.num_elements(op.sums)
    return total


def model_flops(model: ModelGraph, seq_len: int) -> float:
    """FLOPs of forward and backward for one sequence through the whole model."""
    forward = sum(block.count * forward_flops(model.layer_types[block.layer_type], seq_len) for block in model.blocks)
    return (1 + BACKWARD_OVER_FORWARD) * forward
