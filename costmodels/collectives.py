"""Collective and point-to-point times from bytes, group placement and links.

A group is described by `ranks`: for each level of the cluster, innermost first, by how many its sub-units of that
level multiply the group (8 ranks in each of 4 nodes: ``(8, 4)``). Each level's link is what one device can use, so
groups that share a network card are slowed by construction: the card's bandwidth was divided among the devices when
the cluster was read. Times are affine in the bytes for each algorithm, and the least algorithm is taken. All functions
take numbers or numpy arrays.

Sources: NCCL ``src/graph/tuning.cc`` (ring steps, base latency, trees); "Primus collective model" for the hierarchy
(reduce-scatter inside, exchange of a share outside, all-gather inside). Left out: protocols below 1 MB, in-network
reduction, contention between different collectives at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from hardware import Link

BASE_LATENCY = 8.4e-6
"""Start of any collective under NCCL's Simple protocol [s]; NCCL tuning.cc, Ring and Tree."""
LOG_ALGORITHM_BANDWIDTH = 0.5
"""Share of the bandwidth that a logarithmic exchange of shards reaches [1]; NCCL tuning.cc, tree and PAT."""

Number: TypeAlias = Any
"""A float or a numpy array of floats."""
Affine: TypeAlias = tuple[Number, Number]
"""Latency [s] and time per byte [s/byte] of one algorithm."""


def shard_exchange(ranks: Sequence[Number], links: Sequence[Link]) -> tuple[Affine, Affine]:
    """Reduce-scatter or all-gather of a buffer over a hierarchical group, by algorithm.

    Parameters
    ----------
    ranks
        Factor of the group at each level, innermost first.
    links
        The link of each level.

    Returns
    -------
    tuple
        (latency [s], time per byte of the full buffer [s/byte]) of the ring and of the logarithmic algorithm. Both are
        0 for a group of one.

    Notes
    -----
    Ring at a level of r ranks with buffer share S: ``(r - 1) latency + (r - 1) / r S / bandwidth``; the logarithmic
    one pays ``log2 r`` latencies and moves the same bytes at half the bandwidth. The buffer of the next level is S / r.
    """
    latency_ring: Number = 0.0
    latency_log: Number = 0.0
    slope: Number = 0.0
    share: Number = 1.0
    size: Number = 1
    for factor, link in zip(ranks, links, strict=True):
        latency_ring = latency_ring + (factor - 1) * link.latency
        latency_log = latency_log + np.ceil(np.log2(factor)) * link.latency
        slope = slope + (factor - 1) / factor * share / link.bandwidth
        share = share / factor
        size = size * factor
    base = np.where(np.asarray(size) > 1, BASE_LATENCY, 0.0)
    return (base + latency_ring, slope), (base + latency_log, slope / LOG_ALGORITHM_BANDWIDTH)


def affine_time(algorithms: Sequence[Affine], num_bytes: Number) -> Number:
    """The least time over algorithms for a buffer [s]."""
    times = [latency + slope * num_bytes for latency, slope in algorithms]
    least = times[0]
    for time in times[1:]:
        least = np.minimum(least, time)
    return least


def reduce_scatter_time(num_bytes: Number, ranks: Sequence[Number], links: Sequence[Link]) -> Number:
    """Time of a reduce-scatter of a buffer of `num_bytes` on each rank [s]; an all-gather to it takes the same."""
    return affine_time(shard_exchange(ranks, links), num_bytes)


all_gather_time = reduce_scatter_time


def all_reduce_time(num_bytes: Number, ranks: Sequence[Number], links: Sequence[Link]) -> Number:
    """Time of an all-reduce [s]: a reduce-scatter, then an all-gather, over the hierarchy."""
    return 2 * reduce_scatter_time(num_bytes, ranks, links)


def all_to_all_time(num_bytes: Number, ranks: Sequence[Number], links: Sequence[Link]) -> Number:
    """Time of an all-to-all of `num_bytes` on each rank, an equal part for every rank of the group [s].

    Notes
    -----
    A level carries the part whose destination lies in another sub-unit of it; the levels work at the same time.
    ``base + sum_l (r_l - 1 > 0) latency_l + max_l fraction_l bytes / bandwidth_l``.
    """
    size: Number = 1
    for factor in ranks:
        size = size * factor
    reached: Number = 1
    slowest: Number = 0.0
    latency: Number = np.where(np.asarray(size) > 1, BASE_LATENCY, 0.0)
    for factor, link in zip(ranks, links, strict=True):
        fraction = (reached * factor - reached) / size
        slowest = np.maximum(slowest, fraction * num_bytes / link.bandwidth)
        latency = latency + np.where(np.asarray(factor) > 1, link.latency, 0.0)
        reached = reached * factor
    return latency + slowest


def point_to_point_time(num_bytes: Number, link: Link) -> Number:
    """Time of one message over a link [s]."""
    return link.latency + num_bytes / link.bandwidth


def ring_exchange_time(num_bytes: Number, ranks: Sequence[Number], links: Sequence[Link]) -> Number:
    """Time in which every rank's buffer of `num_bytes` visits all ranks of the group, neighbour to neighbour [s].

    Notes
    -----
    ``(n - 1) (latency + bytes / bandwidth)`` with the outermost link that the ring crosses.
    """
    size: Number = 1
    step: Number = 0.0
    for factor, link in zip(ranks, links, strict=True):
        size = size * factor
        step = np.where(np.asarray(factor) > 1, np.maximum(step, link.latency + num_bytes / link.bandwidth), step)
    return (size - 1) * step
