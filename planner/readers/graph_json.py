"""Our own model graph in JSON: what ``ModelGraph.to_json`` writes, and the short forms that people write by hand."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from hardware.errors import MAX_QUOTED, quote, suggest
from hardware.fields import Section
from hardware.units import Dimension
from hardware.yaml_reader import Document
from planner.graph import BATCH, SEQ, Block, Layer, Measurement, ModelGraph, SharedParameter
from planner.readers.config import MAX_LAYERS, MAX_POSITIONS
from planner.readers.graph_layer import read_layer
from planner.readers.graph_values import choice, is_name, quantity, texts, word
from planner.strategy import Recompute

VERSION = (1, 0)
"""Format that is written; a higher minor adds keys, a higher major changes them."""
GRAPH_KEYS = (
    "format_version",
    "name",
    "family",
    "seq_len",
    "layer_types",
    "layers",
    "shared_parameters",
    "measurements",
    "notes",
)
MEASUREMENT_KEYS = tuple(Measurement.__slots__)
DEGREES = ("tp", "cp", "ep", "etp")
MAX_DEGREE = 1_000_000
"""Largest degree or microbatch of a measured row."""
MAX_TIME = 1e9
"""Longest measured time [s]; some 30 years."""

_ROW_KEY = ("layer_type", "device", *DEGREES, "microbatch_size", "seq_len", "recompute")


def parse_graph(document: Document, name: str) -> ModelGraph:
    """The model graph of a JSON document.

    Parameters
    ----------
    document
        The file's content.
    name
        Name of the model where the file gives none.

    Returns
    -------
    ModelGraph
        Equal to the one that was written, for what ``to_json`` wrote.

    Raises
    ------
    InputError
        With every problem at once.
    """
    section = Section(document=document)
    _check_version(section)
    section.finish()
    section.check_keys(GRAPH_KEYS)
    seq_len = section.count("seq_len", maximum=MAX_POSITIONS)
    reader = _GraphReader(section=section, seq_len=seq_len)
    reader.read_layer_types()
    own_name = word(section, "name", default=name)
    family = word(section, "family", default="graph")
    blocks = reader.blocks()
    shared_parameters = reader.shared_parameters()
    measurements = reader.measurements()
    notes = texts(section, "notes")
    section.finish()
    assert own_name is not None and family is not None and seq_len is not None, "what is missing is a problem"
    return ModelGraph(
        name=own_name,
        family=family,
        seq_len=seq_len,
        layer_types=reader.layer_types,
        blocks=blocks,
        shared_parameters=shared_parameters,
        measurements=measurements,
        notes=notes,
    )


def _check_version(section: Section) -> None:
    value = section.text("format_version")
    if value is None:
        return
    match = re.fullmatch(r"([0-9]{1,6})\.([0-9]{1,6})", value)
    if match is None:
        section.report(f"must be a version such as '1.0', got {quote(value)}", "format_version")
    elif int(match[1]) != VERSION[0]:
        how = "upgrade the planner to read it" if int(match[1]) > VERSION[0] else "no planner ever wrote it"
        section.report(
            f"format {quote(value)} is not known, this planner reads {VERSION[0]}.x: {how}", "format_version"
        )


@dataclass(slots=True, kw_only=True)
class _GraphReader:
    """Reads the parts of a graph that refer to its layer types."""

    section: Section
    seq_len: int | None
    layer_types: dict[str, Layer] = field(default_factory=dict)

    def read_layer_types(self) -> None:
        """Each layer type, or the problems that it has."""
        types = self.section.section("layer_types")
        if types is None:
            return
        if not isinstance(types.content, dict) or not types.mapping:
            self.section.report(
                f"must be a mapping of at least one layer type, got {quote(types.content)}", "layer_types"
            )
        for name in types.mapping:
            layer = types.section(name)
            if not is_name(name):
                types.report(f"a name must be printable text of 1 to {MAX_QUOTED} characters", name)
            elif layer is not None and (read := read_layer(layer, name)) is not None:
                self.layer_types[name] = read

    @property
    def known(self) -> list[str]:
        """Names of the layer types, those with problems included."""
        types = self.section.mapping.get("layer_types")
        return list(types) if isinstance(types, dict) else []

    def layer_type(self, section: Section, key: str, *, default: str | None = None) -> str | None:
        """The name of a known layer type."""
        if not self.known:
            return None
        name = default if default and not section.has(key) else section.text(key)
        if name is None or name in self.known:
            return name
        hint = suggest(name, self.known) or f"; known: {', '.join(map(quote, self.known)) or 'none'}"
        section.report(f"unknown layer type {quote(name)}{hint}", key)
        return None

    def blocks(self) -> tuple[Block, ...]:
        """The layers in order, as runs of equal ones."""
        found = []
        total = 0
        for item in self.section.items("layers"):
            if not item.check_keys(("type", "count")):
                continue
            name = self.layer_type(item, "type")
            count = item.count("count", maximum=MAX_LAYERS) if item.has("count") else 1
            total += count or 0
            if name is not None and count is not None:
                found.append((item, Block(layer_type=name, count=count)))
        if total > MAX_LAYERS:
            self.section.report(f"must be {MAX_LAYERS} layers at most, got {total}", "layers")
        before: Block | None = None
        for item, block in found:
            self._check_boundary(item, before, block)
            before = block
        return tuple(block for _, block in found)

    def _check_boundary(self, item: Section, before: Block | None, block: Block) -> None:
        """A layer must read what the layer before it hands over."""
        pairs = [(before.layer_type, block.layer_type)] if before else []
        pairs += [(block.layer_type, block.layer_type)] if block.count > 1 else []
        for giver_name, taker_name in pairs:
            giver, taker = self.layer_types.get(giver_name), self.layer_types.get(taker_name)
            if giver is None or taker is None:
                continue
            if taker.input is None:
                item.report(f"{quote(taker_name)} has no input, so only the first layer can be of that type", "type")
                return
            given, taken = _sizes(giver, giver.output), _sizes(taker, taker.input)
            if given != taken:
                item.report(
                    f"{quote(taker_name)} reads {_format(taken)}, but {quote(giver_name)} before it hands over "
                    f"{_format(given)}",
                    "type",
                )
                return

    def shared_parameters(self) -> tuple[SharedParameter, ...]:
        """The weights that several layer types use."""
        found = []
        for item in self._list("shared_parameters"):
            if not item.check_keys(("name", "layer_types")):
                continue
            name, users = item.text("name"), texts(item, "layer_types", required=True)
            if len(set(users)) < 2 or len(set(users)) < len(users):
                item.report("must name two or more different layer types", "layer_types")
            elif name is not None and self._check_shared(item, name, users):
                found.append(SharedParameter(name=name, layer_types=users))
        return tuple(found)

    def _check_shared(self, item: Section, name: str, users: tuple[str, ...]) -> bool:
        sizes = set()
        for user in users:
            if user not in self.known:
                item.report(f"unknown layer type {quote(user)}{suggest(user, self.known)}", "layer_types")
                return False
            layer = self.layer_types.get(user)
            if layer is None:
                return False
            dims = {parameter.name: parameter.dims for parameter in layer.parameters}
            if name not in dims:
                item.report(f"{quote(user)} has no parameter {quote(name)}{suggest(name, list(dims))}", "name")
                return False
            sizes.add(tuple(layer.dims[dim].size for dim in dims[name] if dim in layer.dims))
        if len(sizes) > 1:
            item.report(f"{quote(name)} has different sizes in {', '.join(map(quote, users))}", "name")
        return len(sizes) == 1

    def measurements(self) -> tuple[Measurement, ...]:
        """The measured rows."""
        rows: list[Measurement] = []
        seen: dict[tuple[object, ...], int] = {}
        for position, item in enumerate(self._list("measurements")):
            row = self._measurement(item)
            if row is None:
                continue
            key = tuple(getattr(row, name) for name in _ROW_KEY)
            if key in seen:
                item.report(
                    f"repeats measurements[{seen[key]}]: the same layer type, device, degrees, sizes and recompute"
                )
            seen.setdefault(key, position)
            rows.append(row)
        return tuple(rows)

    def _measurement(self, item: Section) -> Measurement | None:
        if not item.check_keys(MEASUREMENT_KEYS):
            return None
        num_problems = len(item.problems)
        only = self.known[0] if len(self.known) == 1 else None
        values: dict[str, object] = {
            "layer_type": self.layer_type(item, "layer_type", default=only),
            "device": word(item, "device"),
            "microbatch_size": item.count("microbatch_size", maximum=MAX_DEGREE),
            "seq_len": item.count("seq_len", maximum=MAX_POSITIONS) if item.has("seq_len") else self.seq_len,
            "recompute": choice(item, "recompute", Recompute, default=Recompute.NONE),
            "forward": quantity(item, "forward", Dimension.TIME, maximum=MAX_TIME),
            "backward": quantity(item, "backward", Dimension.TIME, maximum=MAX_TIME),
        }
        values |= {key: item.count(key, maximum=MAX_DEGREE) for key in DEGREES if item.has(key)}
        for key in ("saved", "peak"):
            if item.has(key):
                values[key] = quantity(item, key, Dimension.BYTES, maximum=10**18)
        if len(item.problems) > num_problems or None in values.values():
            return None
        values["recompute"] = str(values["recompute"])
        return Measurement(**values)  # type: ignore[arg-type]  # Each value was read with the type of its field.

    def _list(self, key: str) -> list[Section]:
        """The sections of a list that may be absent or empty."""
        return [] if self.section.mapping.get(key) == [] else self.section.items(key, required=False)


def _sizes(layer: Layer, tensor: str) -> Mapping[str, int]:
    """Size of each dim of a tensor, without the dims that the workload sizes."""
    return {dim: layer.dims[dim].size if dim in layer.dims else 0 for dim in layer.tensors[tensor].dims}


def _format(sizes: Mapping[str, int]) -> str:
    return f"({', '.join(dim if dim in (BATCH, SEQ) else f'{dim} {size}' for dim, size in sizes.items())})"
