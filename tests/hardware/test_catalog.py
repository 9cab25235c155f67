"""The catalog: complete, with a source beside each figure, within plausible ranges."""

import dataclasses
import re
import subprocess
import sys

import pytest

from hardware import Device, Link, device_names, link_names, load_device, load_link, load_node, node_names
from hardware.yaml_reader import read_package_yaml

DEVICE_FIGURES = {field.name for field in dataclasses.fields(Device)} - {"name", "provenance"}
LINK_FIGURES = {field.name for field in dataclasses.fields(Link)} - {"provenance"}
STABLE_NODES = {
    *("dgx-v100-32gb", "dgx-a100-40gb", "dgx-a100-80gb", "dgx-h100", "dgx-h200", "hgx-h800", "dgx-b200"),
    *("gb200-nvl72", "gb300-nvl72", "mi300x-8", "pcie-l40s-8", "pcie-rtx4090-8"),
}


def test_stable_names_are_there() -> None:
    assert set(node_names()) >= STABLE_NODES
    assert "dgx-v100-16gb" in node_names()


@pytest.mark.parametrize("kind", ["devices", "links", "nodes"])
def test_entries_are_found_without_parsing_the_whole_file(kind: str) -> None:
    names = {"devices": device_names, "links": link_names, "nodes": node_names}[kind]()
    assert names == sorted(read_package_yaml("hardware", f"catalog/{kind}.yaml"))


@pytest.mark.parametrize("name", device_names())
def test_each_figure_of_a_device_has_a_source_and_a_plausible_value(name: str) -> None:
    device = load_device(name)
    assert set(device.provenance) == DEVICE_FIGURES
    assert all(len(source) > 10 and not source.startswith("/") for source in device.provenance.values())
    assert 10 * 2**30 < device.memory < 300 * 2**30
    assert 0.8e12 < device.memory_bandwidth < 10e12
    assert 100e12 < device.peak_flops["fp16"] < 3e15
    assert device.peak_flops.get("bf16", device.peak_flops["fp16"]) == device.peak_flops["fp16"]
    assert device.peak_flops["fp32"] < device.peak_flops["fp16"]
    assert 1e-6 <= device.gemm_latency <= 1e-5
    assert 0.5 <= device.gemm_efficiency <= 0.9
    assert 0.5 <= device.memory_efficiency <= 0.95
    assert 0.3 * 2**30 <= device.context_memory <= 2**30
    assert device.communicator_memory == 392 * 2**20
    assert 10e9 <= device.host_link <= 100e9


@pytest.mark.parametrize("name", link_names())
def test_each_figure_of_a_link_has_a_source_and_a_plausible_value(name: str) -> None:
    link = load_link(name)
    assert set(link.provenance) == LINK_FIGURES
    assert all(len(source) > 10 and not source.startswith("/") for source in link.provenance.values())
    assert link.line_rate is not None
    assert 0.4 < link.bandwidth / link.line_rate <= 0.98
    assert 1e-6 <= link.latency <= 20e-6
    assert 5e9 < link.bandwidth < 1e12


@pytest.mark.parametrize("name", node_names())
def test_each_node_has_a_source_and_a_network_slower_than_itself(name: str) -> None:
    node = load_node(name)
    assert len(read_package_yaml("hardware", "catalog/nodes.yaml")[name]["source"]) > 10
    assert node.num_devices in (8, 72)
    assert node.network_link is not None
    assert node.network_link.bandwidth < node.intra_node.bandwidth
    assert node.network_link.latency > node.intra_node.latency or name.startswith("pcie")


def test_entries_by_hand() -> None:
    h100 = load_device("h100-sxm")
    assert h100.peak_flops["bf16"] == 989e12
    assert h100.memory == round(79.1 * 2**30)  # what the driver shows of 80 GiB, not 80e9
    assert 80e9 < h100.memory < 80 * 2**30
    assert (h100.gemm_latency, h100.gemm_efficiency, h100.memory_efficiency) == (3.6e-6, 0.76, 0.80)
    assert "bf16" not in load_device("v100-sxm-32gb").peak_flops
    assert load_link("nvswitch-a100").bandwidth == 240e9
    assert load_link("nvswitch-h100").bandwidth == 370.8e9
    assert load_link("nvswitch-h800").bandwidth == 164.8e9
    assert load_link("nvlink-b200").bandwidth == 721.8e9
    assert load_link("ib-ndr").line_rate == 50e9
    # DGX-1: eight devices share four EDR ports of 11.75 GB/s.
    dgx1 = load_node("dgx-v100-32gb").network_link
    assert dgx1 is not None
    assert dgx1.bandwidth == 5.875e9
    assert load_node("gb200-nvl72").num_devices == 72


def test_usable_memory_stays_below_the_label() -> None:
    for name in device_names():
        label = re.search(r"-(\d+)gb$", name)
        if label:
            assert load_device(name).memory < int(label[1]) * 2**30


@pytest.mark.parametrize("load", [load_device, load_link, load_node])
def test_unknown_names_give_the_nearest(load: object) -> None:
    assert callable(load)
    with pytest.raises(ValueError, match="known: "):
        load("zzzz\x1b")
    near = {load_device: "H100-SXM", load_link: "nvswich-h100", load_node: "dgx_h100"}[load]
    with pytest.raises(ValueError, match=r"did you mean '.*h100.*'"):
        load(near)


def test_importing_hardware_reads_nothing_else() -> None:
    code = "import sys, hardware; print(sorted(m for m in sys.modules if m.startswith(('hardware.', 'ruamel'))))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_public_names_resolve() -> None:
    import hardware

    assert dir(hardware) == sorted(hardware.__all__)
    assert all(getattr(hardware, name) is not None for name in hardware.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hardware.no_such_name  # type: ignore[attr-defined]
