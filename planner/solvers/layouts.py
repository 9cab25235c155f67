"""Which layers a virtual stage may hold: the balanced family of layouts, as counts.

Family, per (pp, vpp), for L layers without embedding and head over V = pp vpp virtual stages, q = L / V rounded up:
the first stage holds q-3 .. q+1 layers, the last one q-3 .. q+1, and the stages between them differ by at most one,
the larger ones on late ranks, where fewer microbatches are in flight. It covers what Megatron's first and last counts
and its embedding and loss accounting can say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from planner.graph import ModelGraph
from planner.plan import edge_layers, layer_sequence

Ints = NDArray[np.int64]

BELOW, ABOVE = 3, 1
"""How far the ends may lie below and above the rounded-up mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """Layouts of one (pp, vpp) as count arrays."""

    pp: int
    vpp: int
    layers: Ints
    """Layers of each virtual stage without embedding and head. [layout, stage]"""
    counts: Ints
    """Layers by type, embedding and head included. [layout, stage, type]"""
    chain: Chain
    """The layers in order."""

    @property
    def num_layouts(self) -> int:
        """Number of layouts."""
        return len(self.layers)

    def rank_counts(self) -> Ints:
        """Layers by type on each pipeline rank. [layout, rank, type]"""
        shape = (self.num_layouts, self.vpp, self.pp, self.counts.shape[2])
        return np.asarray(self.counts.reshape(shape).sum(axis=1))

    def first_layers(self, num_layers: Ints, layout: Ints) -> Ints:
        """Types of the first layers of each stage. [candidate, stage] -> [candidate, stage, type]"""
        layers = self.layers[layout]
        starts = np.cumsum(layers, axis=1) - layers
        prefix = self.chain.prefix
        return np.asarray(prefix[starts + np.minimum(num_layers, layers)] - prefix[starts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The order of layers of a model by type index."""

    types: Ints
    """Type of each counted layer, without embedding and head. [layer]"""
    prefix: Ints
    """Types of the first n counted layers. [n, type]"""
    leading: int | None
    """Type of the embedding, or ``None``."""
    trailing: int | None
    """Type of the head, or ``None``."""
    num_types: int
    """Layer types in all."""

    @property
    def num_layers(self) -> int:
        """Counted layers."""
        return len(self.types)


def model_chain(model: ModelGraph, layer_types: tuple[str, ...]) -> Chain:
    """The chain of a model, types numbered as in `layer_types`."""
    sequence = [layer_types.index(name) for name in layer_sequence(model)]
    leading, trailing = edge_layers(model)
    body = sequence[leading : len(sequence) - trailing]
    hits = np.zeros((len(body) + 1, len(layer_types)), dtype=np.int64)
    hits[np.arange(1, len(body) + 1), body] = 1
    return Chain(
        types=np.asarray(body, dtype=np.int64),
        prefix=np.cumsum(hits, axis=0),
        leading=sequence[0] if leading else None,
        trailing=sequence[-1] if trailing else None,
        num_types=len(layer_types),
    )


def body_types(model: ModelGraph, layer_types: tuple[str, ...]) -> tuple[bool, ...]:
    """Which layer types are counted by layouts, and so may recompute. [type]"""
    counted = set(model_chain(model, layer_types).types.tolist())
    return tuple(index in counted for index in range(len(layer_types)))


def make_layouts(chain: Chain, pp: int, vpp: int, layers: Ints) -> Layouts:
    """Count arrays of given layouts. `layers` is [layout, stage]."""
    ends = np.cumsum(layers, axis=1)
    counts = chain.prefix[ends] - chain.prefix[ends - layers]
    if chain.leading is not None:
        counts[:, 0, chain.leading] += 1
    if chain.trailing is not None:
        counts[:, -1, chain.trailing] += 1
    return Layouts(pp=pp, vpp=vpp, layers=layers, counts=counts, chain=chain)


def balanced_layouts(chain: Chain, pp: int, vpp: int, allow_empty_ends: bool) -> Layouts | None:
    """The balanced family; ``None`` where no layout has a layer in every stage that needs one.

    Parameters
    ----------
    chain
        The model's layers.
    pp, vpp
        Ranks of the pipeline and virtual stages of each.
    allow_empty_ends
        Whether the first stage may hold the embedding alone and the last one the head alone.
    """
    ends = (
        allow_empty_ends and chain.leading is not None,
        allow_empty_ends and chain.trailing is not None,
    )
    rows = balanced_counts(chain.num_layers, pp, vpp, *ends)
    if not rows:
        return None
    return make_layouts(chain, pp, vpp, np.asarray(rows, dtype=np.int64))


@lru_cache(maxsize=4096)
def balanced_counts(
    num_layers: int, pp: int, vpp: int, empty_first: bool, empty_last: bool
) -> tuple[tuple[int, ...], ...]:
    """Layers of each virtual stage in every layout of the family, in a fixed order."""
    num_stages = pp * vpp
    if num_stages == 1:
        return ((num_layers,),) if num_layers else ()
    mean = -(-num_layers // num_stages)
    rows: dict[tuple[int, ...], None] = {}
    for first in range(max(0 if empty_first else 1, mean - BELOW), mean + ABOVE + 1):
        for last in range(max(0 if empty_last else 1, mean - BELOW), mean + ABOVE + 1):
            middle = _middle(num_layers - first - last, pp, vpp)
            if middle is not None:
                rows[(first, *middle, last)] = None
    return tuple(rows)


def _middle(num_layers: int, pp: int, vpp: int) -> tuple[int, ...] | None:
    """Layers of the stages between the first and the last, differing by at most one; ``None`` if impossible."""
    num_stages = pp * vpp - 2
    if num_stages == 0:
        return () if num_layers == 0 else None
    if num_layers < num_stages:
        return None
    few, extra = divmod(num_layers, num_stages)
    counts = [few] * num_stages
    for stage in _late_first(pp, vpp)[:extra]:
        counts[stage - 1] += 1
    return tuple(counts)


@lru_cache(maxsize=1024)
def _late_first(pp: int, vpp: int) -> list[int]:
    """Middle stages in the order in which they get an extra layer: late ranks first, one per rank and round."""
    order = []
    for chunk in reversed(range(vpp)):
        for rank in reversed(range(pp)):
            stage = chunk * pp + rank
            if 0 < stage < pp * vpp - 1:
                order.append(stage)
    return order
