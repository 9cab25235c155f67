"""What was read of a model, a cluster or a device, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.text import Text

from hardware import Cluster, Device
from hardware.units import format_bandwidth, format_bytes, format_count, format_rate, format_time
from planner.flops import forward_flops
from planner.graph import ModelGraph
from planner.report.layout import heading, paragraph, render, table


def forward_flops_per_token(model: ModelGraph, seq_len: int) -> float:
    """FLOPs of one token's forward pass in a sequence of that length; layers without ops count nothing."""
    types = model.layer_types
    return sum(block.count * forward_flops(types[block.layer_type], seq_len) for block in model.blocks) / seq_len


def model_json(model: ModelGraph, seq_len: int) -> dict[str, object]:
    """A model in base units."""
    return {
        "name": model.name,
        "family": model.family,
        "num_parameters": model.num_parameters,
        "num_layers": model.num_layers,
        "seq_len": seq_len,
        "forward_flops_per_token": forward_flops_per_token(model, seq_len),
        "layers": [
            {
                "type": name,
                "count": model.count(name),
                "num_parameters": layer.num_parameters,
                "num_shared": model.num_shared(name),
                "forward_flops_per_token": forward_flops(layer, seq_len) / seq_len,
                "opaque": layer.opaque,
            }
            for name, layer in model.layer_types.items()
            if model.count(name)
        ],
        "dims": {
            dim.name: dim.size
            for block in reversed(model.blocks)
            for dim in model.layer_types[block.layer_type].dims.values()
        },
        "num_measurements": len(model.measurements),
        "notes": list(model.notes),
        "digest": model.digest(),
    }


def model_text(model: ModelGraph, seq_len: int, *, colour: bool = False) -> str:
    """A model for people."""
    flops = forward_flops_per_token(model, seq_len)
    made = table("layer", "count", "parameters of one", "of all", "forward FLOPs of one token")
    for name, layer in model.layer_types.items():
        count = model.count(name)
        if not count:
            continue
        own = layer.num_parameters - model.num_shared(name)
        shared = " (shared)" if model.num_shared(name) else ""
        cost = "measured" if layer.opaque else format_count(forward_flops(layer, seq_len) / seq_len)
        made.add_row(name, str(count), f"{own:,}{shared}", f"{count * own:,}", cost)
    made.add_row("model", str(model.num_layers), "", f"{model.num_parameters:,}", format_count(flops), style="bold")
    dims = model_json(model, seq_len)["dims"]
    assert isinstance(dims, dict)
    parts: list[RenderableType] = [
        Text.assemble(
            (model.name, "bold"),
            f" ({model.family}): {format_count(model.num_parameters)} parameters ({model.num_parameters:,}), "
            f"{model.num_layers} layers, {seq_len:,} tokens",
        ),
        "",
        made,
        "",
        paragraph("Dims: " + ", ".join(f"{name} {size:,}" for name, size in dims.items())),
    ]
    if model.measurements:
        devices = ", ".join(dict.fromkeys(row.device for row in model.measurements))
        parts.append(Text(f"Measured rows: {len(model.measurements)} on {devices}; they win over the analytic model"))
    parts += [paragraph(f"Note: {note}") for note in model.notes]
    return render(*parts, colour=colour)


def cluster_json(cluster: Cluster) -> dict[str, object]:
    """A cluster in base units, as plans hold it, and what follows from it."""
    return {
        **cluster.to_json(),
        "num_nodes": cluster.num_nodes,
        "usable_memory": cluster.usable_memory,
        "runtime_memory": cluster.runtime_memory,
        "digest": cluster.digest(),
    }


def cluster_text(cluster: Cluster, *, colour: bool = False) -> str:
    """A cluster for people."""
    made = table("level", "devices", "bandwidth", "line rate", "latency")
    sources: dict[str, str] = {}
    for level in cluster.levels:
        link = level.link
        rate = "" if link.line_rate is None else format_bandwidth(link.line_rate)
        made.add_row(
            level.name, f"{level.num_devices:,}", format_bandwidth(link.bandwidth), rate, format_time(link.latency)
        )
        sources |= {f"{level.name} {field}": text for field, text in link.provenance.items()}
    price = "" if cluster.price is None else f", {cluster.price:g} USD/h per device"
    reserve = f", {format_bytes(cluster.reserve)} of each reserved" if cluster.reserve else ""
    parts: list[RenderableType] = [
        Text.assemble(
            (cluster.name or "cluster", "bold"),
            f": {cluster.num_devices:,} x {cluster.device.name} in {cluster.num_nodes:,} nodes of "
            f"{cluster.devices_per_node}{reserve}{price}",
        ),
        "",
        heading("Network", "payload of one device in one direction, while all devices send"),
        made,
        *_sources(sources),
        "",
        *_device_parts(cluster.device),
    ]
    return render(*parts, colour=colour)


def device_text(device: Device, *, colour: bool = False) -> str:
    """A device for people."""
    return render(*_device_parts(device), colour=colour)


def _device_parts(device: Device) -> list[RenderableType]:
    made = table("", "", left=2)
    made.show_header = False
    rates = ", ".join(f"{name} {format_rate(rate)}" for name, rate in device.peak_flops.items())
    rows = {
        "memory": format_bytes(device.memory),
        "memory bandwidth": f"{format_bandwidth(device.memory_bandwidth)}, {device.memory_efficiency:.0%} reached",
        "peak": rates,
        "reached by": f"large products {device.gemm_efficiency:.0%}, fused attention {device.attention_efficiency:.0%}",
        "least product": format_time(device.gemm_latency),
        "runtime": f"{format_bytes(device.context_memory)} context, {format_bytes(device.communicator_memory)} "
        "communicators",
        "host link": format_bandwidth(device.host_link),
    }
    for name, value in rows.items():
        made.add_row(name, value)
    return [heading(f"Device {device.name}"), made, *_sources(device.provenance)]


def _sources(sources: Mapping[str, str]) -> list[Text]:
    return [paragraph(f"  {field}: {text}", indent="    ", style="dim") for field, text in sources.items()]
