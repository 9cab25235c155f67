"""Links, devices, levels, clusters and nodes: their checks and arithmetic by hand."""

import dataclasses
import math
import pickle

import pytest

from hardware import Cluster, Device, Level, Link, NetworkLevel, Node, build_cluster, load_node


def link(bandwidth: float = 100.0, latency: float = 1e-6) -> Link:
    return Link(bandwidth=bandwidth, latency=latency, provenance={"bandwidth": "test"})


def device(**changes: object) -> Device:
    values: dict[str, object] = {
        "name": "toy",
        "memory": 1000,
        "memory_bandwidth": 10.0,
        "peak_flops": {"bf16": 100.0, "fp32": 10.0},
        "gemm_latency": 1e-6,
        "gemm_efficiency": 0.5,
        "memory_efficiency": 0.5,
        "context_memory": 10,
        "communicator_memory": 5,
        "host_link": 3.0,
    }
    return Device(**{**values, **changes})  # type: ignore[arg-type]


def node(**changes: object) -> Node:
    values: dict[str, object] = {
        "name": "toy-node",
        "device": device(),
        "num_devices": 8,
        "intra_node": link(1000.0),
        "num_nics": 4,
        "nic": link(50.0),
    }
    return Node(**{**values, **changes})  # type: ignore[arg-type]


def test_a_link_is_divided_with_the_reason_in_its_source() -> None:
    whole = Link(bandwidth=50.0, latency=1e-6, line_rate=60.0, provenance={"bandwidth": "test"})
    half = whole.divided(2, "two share it")
    assert (half.bandwidth, half.line_rate, half.latency) == (25.0, 30.0, 1e-6)
    assert half.provenance["bandwidth"] == "test; divided by 2: two share it"
    assert whole.divided(1, "alone") is whole


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.inf, math.nan])
def test_a_link_needs_a_bandwidth(bandwidth: float) -> None:
    with pytest.raises(ValueError, match="bandwidth must be above 0 bytes/s"):
        link(bandwidth)


@pytest.mark.parametrize("latency", [-1e-9, math.inf, math.nan])
def test_a_latency_is_not_negative(latency: float) -> None:
    assert link(latency=0.0).latency == 0
    with pytest.raises(ValueError, match="latency must be at least 0 s"):
        link(latency=latency)


def test_payload_is_at_most_the_line_rate() -> None:
    assert Link(bandwidth=5.0, latency=0.0, line_rate=5.0).line_rate == 5.0
    with pytest.raises(ValueError, match="line_rate must be at least"):
        Link(bandwidth=5.0, latency=0.0, line_rate=4.9)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("memory", 0, "memory must be above 0 bytes"),
        ("memory", 1000.0, "memory must be a whole number of bytes"),
        ("memory", True, "memory must be a whole number of bytes"),
        ("memory", 15, "must be below memory 15 bytes"),
        ("context_memory", -1, "context_memory must be at least 0 bytes"),
        ("memory_bandwidth", 0.0, "memory_bandwidth must be above 0 bytes/s"),
        ("host_link", -1.0, "host_link must be above 0"),
        ("gemm_latency", -1.0, "gemm_latency must be at least 0 s"),
        ("gemm_efficiency", 0.0, "gemm_efficiency must be above 0 and at most 1"),
        ("memory_efficiency", 1.01, "memory_efficiency must be above 0 and at most 1"),
        ("attention_efficiency", math.nan, "attention_efficiency must be above 0 and at most 1"),
        ("peak_flops", {}, "at least one number format"),
        ("peak_flops", {"bf-16": 1.0}, "unknown number format 'bf-16', did you mean 'bf16'"),
        ("peak_flops", {"bf16": 0.0}, "peak_flops\\[bf16\\] must be above 0 FLOP/s"),
    ],
)
def test_a_device_names_the_field_at_fault(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        device(**{field: value})


def test_a_device_at_its_limits() -> None:
    assert device(memory=16).memory == 16
    assert device(gemm_efficiency=1.0, gemm_latency=0.0).gemm_efficiency == 1.0
    assert device().attention_efficiency == 0.5
    assert device().peak_flops_per_s("bf16") == 100.0
    with pytest.raises(ValueError, match="toy does not compute in 'fp8'; it does in bf16, fp32"):
        device().peak_flops_per_s("fp8")


def test_one_device_needs_no_communicator() -> None:
    assert (device().runtime_memory(1), device().runtime_memory(2)) == (10, 15)


def test_records_hash_pickle_and_hold_their_own_mappings() -> None:
    rates = {"bf16": 100.0}
    first = device(peak_flops=rates)
    rates["bf16"] = 1.0
    assert first.peak_flops == {"bf16": 100.0}
    assert hash(first) == hash(device(peak_flops={"bf16": 100.0}))
    cluster = build_cluster(node(), 4)
    assert pickle.loads(pickle.dumps(cluster)) == cluster
    assert hash(cluster) == hash(build_cluster(node(), 4))


def test_ports_are_shared_and_oversubscription_multiplies() -> None:
    # 8 devices on 4 ports of 50: 25 each; a rail group at 1:1, then two tiers of 2:1: 12.5 and 6.25.
    network = (
        NetworkLevel(name="rail", num_nodes=2),
        NetworkLevel(name="pod", num_nodes=4, oversubscription=2.0),
        NetworkLevel(name="spine", num_nodes=8, oversubscription=2.0),
    )
    cluster = build_cluster(node(), 8, network=network, reserve=100)
    assert [(level.name, level.num_devices, level.link.bandwidth) for level in cluster.levels] == [
        ("node", 8, 1000.0),
        ("rail", 16, 25.0),
        ("pod", 32, 12.5),
        ("spine", 64, 6.25),
    ]
    assert (cluster.num_devices, cluster.num_nodes, cluster.devices_per_node) == (64, 8, 8)
    assert (cluster.usable_memory, cluster.runtime_memory) == (900, 15)
    assert "oversubscription of 'spine'" in cluster.levels[-1].link.provenance["bandwidth"]


def test_more_ports_than_devices_add_up() -> None:
    network_link = node(num_devices=4, num_nics=8).network_link
    assert network_link is not None
    assert network_link.bandwidth == 100.0


def test_a_level_that_joins_nothing_is_dropped_but_narrows_what_passes() -> None:
    network = (
        NetworkLevel(name="leaf", num_nodes=1, oversubscription=2.0),
        NetworkLevel(name="spine", num_nodes=4),
        NetworkLevel(name="core", num_nodes=4),
    )
    cluster = build_cluster(node(), 4, network=network)
    assert [(level.name, level.link.bandwidth) for level in cluster.levels] == [("node", 1000.0), ("spine", 12.5)]


def test_a_level_may_bring_its_own_link() -> None:
    network = (NetworkLevel(name="pod", num_nodes=2), NetworkLevel(name="wan", num_nodes=4, link=link(3.0)))
    assert build_cluster(node(), 4, network=network).levels[-1].link.bandwidth == 3.0


def test_one_node_has_one_level_and_needs_no_ports() -> None:
    alone = build_cluster(node(num_nics=0, nic=None), 1)
    assert [level.name for level in alone.levels] == ["node"]
    assert alone.num_nodes == 1
    with pytest.raises(ValueError, match="need a network"):
        build_cluster(node(num_nics=0, nic=None), 2)


def levels(*sizes: int) -> tuple[Level, ...]:
    return tuple(Level(name=f"l{size}", num_devices=size, link=link()) for size in sizes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"levels": ()}, "levels\\[0\\] must be the node of 8 devices"),
        ({"levels": levels(4, 32)}, "levels\\[0\\] must be the node of 8 devices"),
        ({"levels": levels(8, 8, 32)}, "'l8' joins nothing"),
        ({"levels": levels(8, 20, 32)}, "'l20': must be a multiple of 8 devices, got 20; nearest: 16 or 24"),
        ({"levels": levels(8, 30), "num_devices": 30}, "got 30; nearest: 24 or 32"),
        ({"levels": levels(8, 4)}, "got 4; nearest: 8"),
        ({"levels": levels(8, 16)}, "must cover all 32 devices"),
        ({"num_devices": 0}, "num_devices must be 1 to 10000000, got 0"),
        ({"num_devices": 10**7 + 8}, "num_devices must be 1 to 10000000"),
        ({"num_devices": True}, "whole number of devices"),
        ({"reserve": -1}, "reserve must be at least 0 bytes"),
        ({"reserve": 985}, "reserve must be below 985 bytes"),
        ({"reserve": 1.5}, "whole number of bytes"),
        ({"price": -0.01}, "price must be at least 0 USD/h"),
    ],
)
def test_a_cluster_that_does_not_nest_is_refused(changes: dict[str, object], message: str) -> None:
    good = Cluster(name="toy", device=device(), num_devices=32, devices_per_node=8, levels=levels(8, 32))
    assert dataclasses.replace(good, reserve=984).usable_memory == 16
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(good, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_nics": 0}, "both num_nics and nic or neither"),
        ({"nic": None}, "both num_nics and nic or neither"),
        ({"num_devices": 0}, "at least 1"),
    ],
)
def test_a_node_is_whole(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        node(**changes)


@pytest.mark.parametrize("oversubscription", [0.99, 0.0, math.inf, math.nan])
def test_oversubscription_is_at_least_one(oversubscription: float) -> None:
    with pytest.raises(ValueError, match="oversubscription must be at least 1"):
        NetworkLevel(name="x", num_nodes=1, oversubscription=oversubscription)


def test_largest_cluster_is_accepted() -> None:
    assert build_cluster(load_node("dgx-h100"), 1_250_000).num_devices == 10**7
    with pytest.raises(ValueError, match="10000000"):
        build_cluster(load_node("dgx-h100"), 1_250_001)
