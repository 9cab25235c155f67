"""cluster.yaml, the short form and the resolved JSON: by hand, against the schema, and a table of bad input."""

import json
import logging
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware import (
    Cluster,
    InputError,
    build_cluster,
    cluster_from_json,
    cluster_schema,
    device_names,
    link_names,
    load_node,
    node_names,
    parse_cluster,
    read_cluster,
)
from hardware.yaml_reader import Document, parse_yaml

# Two kinds of node: it shows every key, fits the schema, and is refused as mixed.
SPELLED_OUT = """\
name: training-pod
nodes:
  - {count: 64, node: dgx-h100}
  - count: 16
    device: a100-sxm-80gb
    devices_per_node: 8
    intra_node: nvswitch-a100
    nics: {count: 8, bandwidth: 200 Gbit/s, latency: 5 us}
    price: 1.80 USD/h
network:
  - {name: rail-group, nodes: 16, oversubscription: 1}
  - {name: spine, oversubscription: 2}
reserve: 2 GiB
"""
FULL = """\
name: pod
nodes:
  - count: 16
    device: a100-sxm-80gb
    devices_per_node: 8
    intra_node: {bandwidth: 300 GB/s, latency: 3 us}
    nics: {count: 4, bandwidth: 200 Gbit/s, latency: 5 us}
    price: 1.80 USD/h
network:
  - {name: rail-group, nodes: 4}
  - {name: spine, oversubscription: 2}
reserve: 2 GiB
"""


def parse(text: str) -> Cluster:
    return parse_cluster(parse_yaml(text, "cluster.yaml"))


def problems(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text)
    return str(caught.value)


def validate(content: object) -> None:
    jsonschema.Draft202012Validator(cluster_schema()).validate(content)


def test_a_full_file_by_hand() -> None:
    cluster = parse(FULL)
    assert (cluster.name, cluster.num_devices, cluster.num_nodes, cluster.price) == ("pod", 128, 16, 1.8)
    assert cluster.reserve == 2 * 2**30
    node, rail, spine = cluster.levels
    # Inside the node 0.8 of 300 GB/s. Eight devices on four ports of 25 GB/s, 0.97 payload: 12.125 GB/s each.
    assert (node.num_devices, node.link.bandwidth, node.link.latency) == (8, pytest.approx(240e9), 3e-6)
    assert (rail.name, rail.num_devices, rail.link.bandwidth) == ("rail-group", 32, pytest.approx(12.125e9))
    assert (spine.num_devices, spine.link.bandwidth, spine.link.latency) == (128, pytest.approx(6.0625e9), 5e-6)
    assert spine.link.line_rate == pytest.approx(6.25e9)
    assert "0.97 of the line rate" in rail.link.provenance["bandwidth"]


def test_a_smallest_file() -> None:
    cluster = parse("nodes: [{count: 64, node: dgx-h100}]")
    assert cluster == read_cluster("dgx-h100*64")
    assert [(level.name, level.num_devices) for level in cluster.levels] == [("node", 8), ("network", 512)]
    assert cluster.levels[1].link.bandwidth == 48.5e9


@pytest.mark.parametrize(
    ("source", "num_nodes"),
    [("dgx-h100*64", 64), ("dgx-h100x64", 64), (" dgx-h100 * 2 ", 2), ("dgx-h100", 1), ("dgx-h100*1", 1)],
)
def test_the_short_form(source: str, num_nodes: int) -> None:
    cluster = read_cluster(source)
    assert cluster == build_cluster(load_node("dgx-h100"), num_nodes)
    assert cluster.name == f"dgx-h100*{num_nodes}"


def test_names_with_an_x_are_no_counts() -> None:
    assert read_cluster("mi300x-8").num_devices == 8
    assert read_cluster("pcie-rtx4090-8x2").num_devices == 16
    assert read_cluster("gb200-nvl72*2").devices_per_node == 72


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("dgx-h10*4", "dgx-h10*4: unknown node 'dgx-h10', did you mean 'dgx-h100'"),
        ("dgx-h10", "no such file, and not NODE*COUNT with a node of the catalog, did you mean 'dgx-h100'"),
        ("dgx-h100*0", "the count must be 1 to 10000000 devices, got '0'"),
        ("dgx-h100*1250001", "num_devices must be 1 to 10000000"),
        ("dgx-h100*" + "9" * 5000, "the count must be"),
        ("dgx-h100*1e3", "not NODE*COUNT"),
        ("dgx-h100*-1", "not NODE*COUNT"),
        ("dgx-h100*", "not NODE*COUNT"),
        ("*4", "not NODE*COUNT"),
        ("zzz", "nodes: dgx-a100-40gb, "),
        ("missing.yaml", "missing.yaml: no such file"),
        ("", "the name of the file is empty"),
        ("a\x1b[0m", "a\\x1b[0m: no such file"),
    ],
)
def test_bad_short_forms_are_refused(source: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_cluster(source)
    assert message in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_a_file_is_read_whatever_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cluster.yaml", "box12", "my*2"):
        Path(name).write_text(FULL, encoding="utf-8")
        assert read_cluster(name) == read_cluster(Path(name)) == parse(FULL)
    Path("dgx-h100").write_text(FULL, encoding="utf-8")
    assert read_cluster("dgx-h100").num_devices == 8
    assert read_cluster(Path("dgx-h100")).num_devices == 128


def test_resolved_json_round_trips_exactly(tmp_path: Path) -> None:
    cluster = parse(FULL)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(cluster.to_json()), encoding="utf-8")
    assert read_cluster(path) == cluster
    assert read_cluster(path).digest() == cluster.digest()
    assert read_cluster(path).device.provenance == cluster.device.provenance
    path.write_text(json.dumps(parse_yaml(FULL, "f").content), encoding="utf-8")
    assert read_cluster(path) == cluster


@pytest.mark.parametrize("name", node_names())
def test_catalog_clusters_round_trip_and_fit_the_schema(name: str) -> None:
    for count in (1, 3, 64):
        cluster = read_cluster(f"{name}*{count}")
        again = cluster_from_json(json.loads(json.dumps(cluster.to_json())))
        assert again == cluster
        assert again.digest() == cluster.digest()
        content = {"nodes": [{"count": count, "node": name}]}
        validate(content)
        assert parse_cluster(Document(file="f", content=content)) == cluster


def test_digests_tell_clusters_apart_and_ignore_how_numbers_were_written() -> None:
    assert parse(FULL).digest() == parse(FULL.replace("300 GB/s", "0.3 TB/s")).digest()
    assert parse(FULL).digest() != parse(FULL.replace("reserve: 2", "reserve: 3")).digest()
    assert len(parse(FULL).digest()) == 64


def test_the_spelled_out_example_fits_the_schema_and_is_refused_as_mixed() -> None:
    jsonschema.Draft202012Validator.check_schema(cluster_schema())
    validate(parse_yaml(SPELLED_OUT, "f").content)
    assert problems(SPELLED_OUT) == (
        "cluster.yaml:4: nodes[1]: mixed devices are not searched yet: a100-sxm-80gb here, h100-sxm in nodes[0]; "
        "write one file for each kind"
    )


def test_equal_groups_are_merged_at_the_mean_price() -> None:
    group = "{{count: {}, node: dgx-h100, price: {} USD/h}}"
    merged = parse(f"nodes: [{group.format(3, 2)}, {group.format(1, 4)}]")
    assert (merged.num_nodes, merged.price) == (4, 2.5)
    assert merged.levels == parse("nodes: [{count: 4, node: dgx-h100}]").levels
    # The same node, once by name and once in full.
    full = (
        "{count: 1, device: h100-sxm, devices_per_node: 8, intra_node: nvswitch-h100, nics: {count: 8, link: ib-ndr}}"
    )
    assert parse(f"nodes: [{{count: 3, node: dgx-h100}}, {full}]").num_nodes == 4


def test_groups_that_differ_are_refused() -> None:
    text = FULL.replace("name: pod\n", "").split("network:")[0]
    other = text.replace("nodes:\n", "")
    assert "mixed nodes are not searched yet: devices_per_node, nics differ from nodes[0]" in problems(
        text + other.replace("devices_per_node: 8", "devices_per_node: 4")
    )
    assert "intra_node differ" in problems(text + other.replace("3 us", "4 us"))
    assert "a price must be given for all groups or for none" in problems(
        text + other.replace("    price: 1.80 USD/h\n", "")
    )


def test_a_node_of_one_device_needs_no_inner_link() -> None:
    cluster = parse(
        "nodes: [{count: 4, device: l40s, devices_per_node: 1, nics: {count: 1, bandwidth: 100 Gb/s, latency: 5 us}}]"
    )
    assert [level.num_devices for level in cluster.levels] == [1, 4]


def test_a_single_node_needs_no_ports() -> None:
    cluster = parse("nodes: [{count: 1, device: l40s, devices_per_node: 2, intra_node: pcie4-x16}]")
    assert [level.num_devices for level in cluster.levels] == [2]


def test_efficiency_and_level_links_are_taken_as_given() -> None:
    text = FULL.replace("latency: 5 us}", "latency: 5 us, efficiency: 94 %}")
    text = text.replace("{name: spine,", "{name: spine, bandwidth: 40 Gbit/s, latency: 1 ms, efficiency: 1,")
    _, rail, spine = parse(text).levels
    assert rail.link.bandwidth == pytest.approx(25e9 * 0.94 / 2)
    assert (spine.link.bandwidth, spine.link.latency) == (2.5e9, 1e-3)


def test_all_problems_come_at_once_in_the_order_of_the_file() -> None:
    text = """\
nodes:
  - {count: 64, node: dgx-h10}
  - count: 1e3
    device: a100-sxm-80g
    devices_per_node: true
    intra_node: nvswitch-a10
    nic: {count: 8, bandwidth: 200 Gbit, latency: 5}
    price: 1.80
network:
  - {name: rail-group, oversubscription: 0.5}
  - {name: spine, nodes: 0}
reserve: 2
reserv: 3
"""
    expected = [
        "2: nodes[0].node: unknown node 'dgx-h10', did you mean 'dgx-h100' or 'dgx-h200'?",
        "3: nodes[1].count: must be a whole number in digits, got 1000.0, did you mean 1000?",
        "3: nodes[1]: the key 'nics' is missing",
        "4: nodes[1].device: unknown device 'a100-sxm-80g', did you mean 'a100-sxm-80gb' or 'a100-sxm-40gb'?",
        "5: nodes[1].devices_per_node: must be a whole number in digits, got true",
        "6: nodes[1].intra_node: unknown link 'nvswitch-a10', did you mean 'nvswitch-a100' or 'nvswitch-h100'?",
        "7: nodes[1].nic: unknown key 'nic', did you mean 'nics'?",
        "8: nodes[1].price: 1.8 has no unit, did you mean '1.8 USD/h'?",
        "10: network[0]: the key 'nodes' is missing",
        "10: network[0].oversubscription: must be at least 1, got 0.5; nearest: 1",
        "11: network[1].nodes: must be 1 to 10000000, got 0; nearest: 1",
        "12: reserve: 2 has no unit, did you mean '2 GiB'?",
        "13: reserv: unknown key 'reserv', did you mean 'reserve'?",
    ]
    lines = problems(text).splitlines()
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(f"cluster.yaml:{start}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("count: 16", "count: 0", "3: nodes[0].count: must be 1 to 10000000, got 0; nearest: 1"),
        ("count: 16", "count: -1", "got -1; nearest: 1"),
        ("count: 16", "count: true", "got true"),
        ("count: 16", "count: '16'", "got '16'"),
        ("count: 16", "count: 16.0", "got 16.0, did you mean 16?"),
        ("count: 16", "count: 10000001", "got 10000001; nearest: 10000000"),
        ("count: 16", "count: 5000000", "40000000 devices; at most 10000000 are read"),
        ("    device: a100-sxm-80gb\n", "", "the key 'device' is missing"),
        ("device: a100-sxm-80gb", "device: [1]", "device: must be text, got a list"),
        ("    intra_node: {bandwidth: 300 GB/s, latency: 3 us}\n", "", "the key 'intra_node' is missing"),
        ("{bandwidth: 300 GB/s, latency: 3 us}", "5", "intra_node: must be a mapping with keys"),
        ("bandwidth: 300 GB/s", "bandwidth: 300", "300 has no unit, did you mean '300 GB/s'?"),
        ("bandwidth: 300 GB/s", "bandwidth: 300 GB", "is a quantity of bytes, did you mean '300 GB/s'?"),
        ("bandwidth: 300 GB/s", "bandwith: 300 GB/s", "unknown key 'bandwith', did you mean 'bandwidth'?"),
        ("bandwidth: 300 GB/s", "bandwidth: 0 GB/s", "must be above 0"),
        ("latency: 3 us", "latency: -3 us", "is negative"),
        ("latency: 3 us}", "latency: 3 us, efficiency: 1.01}", "efficiency: must be at most 1, got 1.01"),
        ("latency: 3 us}", "latency: 3 us, efficiency: 0}", "efficiency: must be above 0"),
        ("nics: {count: 4,", "nics: {count: 4, link: ib-ndr,", "bandwidth: not with 'link'"),
        (
            "nics: {count: 4, bandwidth: 200 Gbit/s, latency: 5 us}",
            "nics: {count: 4}",
            "the key 'bandwidth' is missing",
        ),
        ("1.80 USD/h", "1.80 EUR/h", "did you mean '1.80 USD/h'?"),
        ("nodes: 4}", "nodes: 5}", "network[0].nodes: must divide the 16 nodes, got 5; nearest: 4 or 8"),
        ("nodes: 4}", "nodes: 32}", "must divide the 16 nodes, got 32; nearest: 16"),
        ("{name: spine,", "{name: spine, nodes: 8,", "the last level must cover all 16 nodes, got 8"),
        ("nodes: 4}", "nodes: 4, latency: 1 us}", "the key 'bandwidth' is missing"),
        ("{name: rail-group, nodes: 4}", "rail-group", "network[0]: must be a mapping"),
        ("oversubscription: 2", "oversubscription: two", "must be a number, got 'two'"),
        ("reserve: 2 GiB", "reserve: 79 GiB", "reserve must be below"),
        ("reserve: 2 GiB", "reserve:", "reserve: has no value"),
        ("name: pod", "name: 5", "name: must be text, got 5"),
        ("name: pod", "nodes: []", "the key 'nodes' is repeated"),
        (FULL, "nodes: []", "nodes: must be a list with at least one item, got an empty one"),
        (FULL, "nodes: {count: 1, node: dgx-h100}", "nodes: must be a list with at least one item, got a mapping"),
        (FULL, "nodes: [dgx-h100]", "nodes[0]: must be a mapping with keys"),
        (FULL, "- 1", "must be a mapping with keys name, nodes, network, reserve"),
        (FULL, "name: x", "the key 'nodes' is missing"),
        (FULL, "nodes: [{count: 1, node: dgx-h100, device: h100-sxm}]", "unknown key 'device'"),
        (FULL, "nodes: [{count: 2, node: dgx-h100}]\nnetwork: []", "network: must be a list"),
    ],
)
def test_bad_files_are_refused_with_place_value_and_remedy(old: str, new: str, message: str) -> None:
    assert old in FULL
    text = problems(FULL.replace(old, new, 1))
    assert message in text
    assert text.startswith("cluster.yaml:")


def test_many_groups_and_odd_counts_are_answered_at_once() -> None:
    group = {"count": 1, "node": "dgx-h100"}
    assert parse_cluster(Document(file="f", content={"nodes": [group] * 3000})).num_nodes == 3000
    prime = "nodes: [{count: 9999991, device: l40s, devices_per_node: 1, nics: {count: 1, link: ib-ndr}}]\n"
    assert "got 7; nearest: 1 or 9999991" in problems(prime + "network: [{name: a, nodes: 7}, {name: b}]")


def test_levels_must_nest() -> None:
    text = FULL.replace("{name: rail-group, nodes: 4}", "{name: a, nodes: 4}\n  - {name: b, nodes: 2}")
    assert "network[1].nodes: must be a multiple of 4 nodes, as the level below, got 2; nearest: 4" in problems(text)


def test_figures_far_from_the_catalog_warn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="hardware"):
        parse(FULL)
        assert caplog.messages == []
        parse(FULL.replace("200 Gbit/s, latency: 5 us", "200 TB/s, latency: 5 ms"))
    assert len(caplog.messages) == 2
    assert caplog.messages[0].startswith("cluster.yaml:7: bandwidth of 200 TB/s is unusual")
    assert "latency of 5.00 ms is unusual" in caplog.messages[1]


def resolved(**changes: Any) -> dict[str, Any]:
    return {**parse(FULL).to_json(), **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format_version": "2.0"}, "format_version: cannot read format '2.0', this version reads 1.0"),
        ({"format_version": 1.0}, "format_version: must be text"),
        ({"extra": 1}, "extra: unknown key 'extra'"),
        ({"levels": []}, "levels: must be a list with at least one item"),
        ({"levels": [{"name": "node", "num_devices": 8}]}, "levels[0]: the key 'link' is missing"),
        ({"num_devices": 128.0}, "num_devices: must be a whole number"),
        ({"num_devices": 64}, "the last level must cover all 64 devices"),
        ({"device": "h100"}, "device: must be a mapping"),
        ({"reserve": -1}, "reserve: must be 0 to"),
        ({"reserve": 2**60}, "reserve: must be 0 to"),
        ({"price": "free"}, "price: must be a number"),
    ],
)
def test_bad_resolved_clusters_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster_from_json(resolved(**changes))
    assert message in str(caught.value)


def test_a_newer_minor_version_is_read() -> None:
    assert cluster_from_json(resolved(format_version="1.7")) == parse(FULL)


def test_every_missing_or_spoilt_value_of_a_resolved_cluster_is_refused() -> None:
    def spoil(value: Any, path: tuple[Any, ...]) -> None:
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            kept = value[key]
            optional = key in ("price", "line_rate", "provenance")
            for wrong in ([], {}, "x\x1b", True, -1, float("nan"), None):
                text_is_right = key == "name" or path[-1:] == ("provenance",)
                if (optional and wrong in (None, {})) or (text_is_right and wrong == "x\x1b"):
                    continue
                value[key] = wrong
                with pytest.raises(InputError) as caught:
                    cluster_from_json(data)
                assert "\x1b" not in str(caught.value)
            value[key] = kept
            if isinstance(kept, (dict, list)):
                spoil(kept, (*path, key))

    data = resolved()
    spoil(data, ())
    assert cluster_from_json(data) == parse(FULL)


counts = st.sampled_from([0, 1, 2, 4, 12, True, 2.0, "3", None, 10**7 + 1])
rates = st.sampled_from(["400 Gbit/s", "50GB/s", "1e2 Gb/s", "50 GB", "50", 50, "-1 GB/s", None])
times = st.sampled_from(["5 us", "3\u00b5s", "0 s", "5", 5, "5 GB", None])
efficiencies = st.sampled_from([1, 0.5, "97 %", 1.5, 0, None])
names = st.sampled_from(["node", "", "x y", 5, None])


def mappings(**values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings with some of the keys, mostly all, now and then one unknown."""
    some = st.fixed_dictionaries({}, optional=values)
    whole = st.fixed_dictionaries(values)
    return st.one_of(whole, whole, some, some.map(lambda content: {**content, "zzz": 1}))


links = mappings(bandwidth=rates, latency=times)
catalog_nodes = mappings(count=counts, node=st.sampled_from([*node_names()[:2], "nope"]))
full_nodes = mappings(
    count=counts,
    device=st.sampled_from([*device_names()[:2], "nope"]),
    devices_per_node=counts,
    intra_node=st.one_of(st.sampled_from([link_names()[0], "nope"]), links),
    nics=st.one_of(mappings(count=counts, bandwidth=rates, latency=times, efficiency=efficiencies), counts),
)
level = mappings(name=names, nodes=counts, oversubscription=st.sampled_from([1, 2.5, 0.5, "2", None]))
contents = mappings(
    nodes=st.lists(st.one_of(catalog_nodes, full_nodes), max_size=2),
    network=st.lists(level, max_size=2),
    reserve=st.sampled_from(["1 GiB", "0 B", "1", 1, None]),
    name=names,
)


@settings(max_examples=300, derandomize=True, deadline=None, database=None)
@given(content=contents)
def test_what_is_read_fits_the_schema_and_the_rest_is_refused_by_our_error_only(content: dict[str, Any]) -> None:
    try:
        cluster = parse_cluster(Document(file="f", content=content))
    except InputError as error:
        assert all(problem.message for problem in error.problems)  # noqa: PT017  # One of two right outcomes.
    else:
        validate(content)
        assert cluster_from_json(cluster.to_json()) == cluster


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(
    num_nodes=st.integers(1, 200),
    factors=st.lists(st.integers(1, 4), max_size=3),
    oversubscription=st.floats(1, 8),
    reserve=st.integers(0, 2**33),
)
def test_nested_levels_cover_the_cluster_and_never_get_faster(
    num_nodes: int, factors: list[int], oversubscription: float, reserve: int
) -> None:
    sizes = [1]
    for factor in factors:
        sizes.append(sizes[-1] * factor)
    total = sizes[-1] * num_nodes
    content = {
        "nodes": [{"count": total, "node": "dgx-h100"}],
        "network": [
            *({"name": f"l{size}", "nodes": size, "oversubscription": oversubscription} for size in sizes),
            {"name": "top"},
        ],
        "reserve": f"{reserve} B",
    }
    cluster = parse_cluster(Document(file="f", content=content))
    assert cluster.levels[-1].num_devices == cluster.num_devices == 8 * total
    rates = [level.link.bandwidth for level in cluster.levels]
    assert rates == sorted(rates, reverse=True)
    assert cluster.usable_memory == cluster.device.memory - reserve
    assert cluster_from_json(json.loads(json.dumps(cluster.to_json()))) == cluster
