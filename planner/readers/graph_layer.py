"""One layer type of the graph JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from hardware.errors import MAX_QUOTED, quote, suggest
from hardware.fields import Section
from planner.graph import BATCH, SEQ, Axis, Dim, Layer, Op, OpKind, Parameter, Tensor
from planner.readers.config import MAX_SIZE
from planner.readers.graph_values import choice, flag, is_name, texts, word

LAYER_KEYS = ("dims", "parameters", "tensors", "ops", "input", "output")
DIM_KEYS = ("size", "granularity", "axis", "replicable", "padded")
OP_KEYS = ("name", "kind", "inputs", "output", "sums", "parameters", "module", "causal", "window")
MAX_PARAMETERS = 10**15
"""Most parameters of an opaque layer."""
INPUT, OUTPUT = "input", "output"
"""Names of the tensors that the short form of an opaque layer gives by their dims alone."""


def read_layer(section: Section, name: str) -> Layer | None:
    """A layer type, or ``None`` with its problems noted.

    Notes
    -----
    A layer without ops is opaque: ``parameters`` says how many it has, and ``input`` and ``output`` may be lists of
    dims instead of names of tensors; without ``input`` it reads what it writes.
    """
    if not section.check_keys(LAYER_KEYS):
        return None
    num_problems = len(section.problems)
    reader = _LayerReader(section=section)
    reader.read_dims()
    reader.read_tensors()
    ops = reader.ops()
    opaque_parameters = reader.opaque_parameters(ops)
    output = reader.boundary(OUTPUT, opaque=not ops)
    tensor_in = reader.boundary(INPUT, opaque=not ops)
    if len(section.problems) > num_problems or output is None:
        return None
    reader.check_flow(ops, tensor_in, output)
    if len(section.problems) > num_problems:
        return None
    return Layer(
        name=name,
        dims=reader.dims,
        tensors=reader.tensors,
        ops=tuple(op for _, op in ops),
        input=tensor_in,
        output=output,
        opaque_parameters=opaque_parameters,
    )


@dataclass(slots=True, kw_only=True)
class _LayerReader:
    section: Section
    dims: dict[str, Dim] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def read_dims(self) -> None:
        """Dims: a size, or a mapping with the size and how the dim may be split."""
        dims = self._mapping("dims")
        for name in dims.mapping if dims else ():
            if dims is None or not self._check_name(dims, name):
                continue
            if name in (BATCH, SEQ):
                dims.report("is sized by the workload, so no layer declares it", name)
            elif isinstance(dims.mapping[name], dict):
                self._read_dim(dims, name)
            elif (size := dims.count(name, maximum=MAX_SIZE)) is not None:
                self.dims[name] = Dim(name=name, size=size)

    def _read_dim(self, dims: Section, name: str) -> None:
        section = dims.section(name)
        assert section is not None, "the value is a mapping"
        section.check_keys(DIM_KEYS)
        size = section.count("size", maximum=MAX_SIZE)
        granularity = section.count("granularity", maximum=MAX_SIZE) if section.has("granularity") else 1
        axis = choice(section, "axis", Axis) if section.has("axis") else None
        replicable = flag(section, "replicable", default=False)
        padded = flag(section, "padded", default=False)
        if size is not None and granularity is not None:
            self.dims[name] = Dim(
                name=name,
                size=size,
                granularity=granularity,
                axis=axis,
                replicable=replicable,
                padded=padded,
            )

    def read_tensors(self) -> None:
        """Tensors: lists of dims by name."""
        tensors = self._mapping("tensors")
        for name in tensors.mapping if tensors else ():
            if tensors is not None and self._check_name(tensors, name):
                self.tensors[name] = Tensor(name=name, dims=self._dims(tensors, name))

    def ops(self) -> list[tuple[Section, Op]]:
        """The ops, each with its place in the file."""
        if self.section.mapping.get("ops", []) == []:
            return []
        items = [item for item in self.section.items("ops") if item.check_keys(OP_KEYS)]
        return [(item, op) for item in items if (op := self._op(item)) is not None]

    def _op(self, item: Section) -> Op | None:
        num_problems = len(item.problems)
        name = word(item, "name")
        kind = choice(item, "kind", OpKind)
        output = word(item, "output")
        inputs = texts(item, "inputs", required=True)
        sums = self._dims(item, "sums") if item.has("sums") else ()
        parameters = self._parameters(item)
        module = word(item, "module") if item.has("module") else None
        causal = flag(item, "causal", default=True)
        window = item.count("window", maximum=MAX_SIZE) if item.has("window") else None
        if len(item.problems) > num_problems or name is None or kind is None or output is None:
            return None
        return Op(
            name=name,
            kind=kind,
            inputs=inputs,
            output=output,
            sums=sums,
            parameters=parameters,
            module=module,
            causal=causal,
            window=window,
        )

    def _parameters(self, item: Section) -> tuple[Parameter, ...]:
        section = item.section("parameters", required=False)
        if section is None:
            return ()
        if not isinstance(section.content, dict):
            item.report(f"must be a mapping of lists of dims, got {quote(section.content)}", "parameters")
        names = [name for name in section.mapping if self._check_name(section, name)]
        return tuple(Parameter(name=name, dims=self._dims(section, name)) for name in names)

    def opaque_parameters(self, ops: list[tuple[Section, Op]]) -> int:
        """Parameters of a layer without ops."""
        if self.section.mapping.get("ops", []) == []:
            return self.section.count("parameters", minimum=0, maximum=MAX_PARAMETERS) or 0
        if self.section.has("parameters"):
            self.section.report("belongs to a layer without ops; here the ops have the parameters", "parameters")
        return 0

    def boundary(self, key: str, *, opaque: bool) -> str | None:
        """The tensor that comes in or goes out."""
        value = self.section.mapping.get(key)
        if isinstance(value, list) and opaque:
            if key in self.tensors:
                self.section.report(f"is a list of dims, but there is a tensor {key!r}, too", key)
            self.tensors[key] = Tensor(name=key, dims=self._dims(self.section, key))
            return key
        if key == INPUT and value is None:
            # The first layer has no input, and says so with null; the short form leaves the key out.
            if key in self.section.mapping or not opaque or OUTPUT not in self.tensors:
                return None
            self.tensors[INPUT] = Tensor(name=INPUT, dims=self.tensors[OUTPUT].dims)
            return INPUT
        name = self.section.text(key)
        if name is not None and name not in self.tensors:
            self.section.report(f"unknown tensor {quote(name)}{suggest(name, list(self.tensors))}", key)
            return None
        return name

    def check_flow(self, ops: list[tuple[Section, Op]], tensor_in: str | None, output: str) -> None:
        """Every op reads what is there, sums over what it reads, and writes a tensor that no other writes."""
        made = {tensor_in} if tensor_in else set()
        names: set[str] = set()
        weights: set[str] = set()
        for item, op in ops:
            for tensor in op.inputs:
                if tensor not in made:
                    known = sorted(made)
                    item.report(f"reads {quote(tensor)}, which is not there yet{suggest(tensor, known)}", "inputs")
            if op.output not in self.tensors:
                item.report(f"unknown tensor {quote(op.output)}{suggest(op.output, list(self.tensors))}", "output")
            elif op.output in made:
                item.report(f"{quote(op.output)} is there already", "output")
            self._check_sums(item, op)
            self._check_unique(item, "op", op.name, names)
            for parameter in op.parameters:
                self._check_unique(item, "parameter", parameter.name, weights)
            made.add(op.output)
        if ops and output not in made:
            self.section.report(f"no op writes {quote(output)}", OUTPUT)

    def _check_sums(self, item: Section, op: Op) -> None:
        there = {dim for tensor in op.inputs if tensor in self.tensors for dim in self.tensors[tensor].dims}
        there |= {dim for parameter in op.parameters for dim in parameter.dims}
        for dim in op.sums:
            if dim not in there:
                item.report(f"sums over {quote(dim)}, which neither its inputs nor its parameters have", "sums")

    def _check_unique(self, item: Section, what: str, name: str, names: set[str]) -> None:
        if name in names:
            item.report(f"there is another {what} {quote(name)} before it")
        names.add(name)

    def _dims(self, section: Section, key: str) -> tuple[str, ...]:
        """A list of different known dims."""
        found = texts(section, key, required=True)
        known = [BATCH, SEQ, *self._declared()]
        for dim in found:
            if dim not in known:
                hint = suggest(dim, known) or f"; known: {', '.join(map(quote, known))}"
                section.report(f"unknown dim {quote(dim)}{hint}", key)
        if len(set(found)) < len(found):
            section.report("names a dim twice", key)
        return found

    def _declared(self) -> list[str]:
        """Names of the dims, those with problems included."""
        dims = self.section.mapping.get("dims")
        return list(dims) if isinstance(dims, Mapping) else []

    def _mapping(self, key: str) -> Section | None:
        section = self.section.section(key, required=False)
        if section is not None and not isinstance(section.content, dict):
            self.section.report(f"must be a mapping, got {quote(section.content)}", key)
            return None
        return section

    def _check_name(self, section: Section, name: str) -> bool:
        if is_name(name):
            return True
        section.report(f"a name must be printable text of 1 to {MAX_QUOTED} characters", name)
        return False
