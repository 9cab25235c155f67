"""Who may import whom (DESIGN, "Data through the house"), read from the sources of the three packages.

The order is a table, ``LAYERS``: a module may import its own layer and the layers named beside it, nothing else of the
house. Names of modules that do not exist yet are harmless; a module that no layer names is an error.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("hardware", "costmodels", "planner")

DATA = ("graph", "workload", "strategy", "schedule", "plan", "sharding", "placement", "flops")

# Layer: its modules (with all below them), and the layers that it may import besides itself.
# `planner` itself is the lazy list of public names; see test_public_names_are_loaded_lazily.
LAYERS: dict[str, tuple[tuple[str, ...], str]] = {
    "hardware": (("hardware",), ""),
    "costmodels": (("costmodels",), "hardware"),
    "data": (tuple(f"planner.{name}" for name in DATA), "hardware"),
    "targets": (("planner.targets",), "hardware data"),
    "readers": (("planner.readers", "planner.plan_file", "planner.plan_schema"), "hardware data"),
    "check": (("planner.check", "planner.checking"), "hardware costmodels data targets"),
    "tables": (
        ("planner.layer_costs", "planner.measured_costs", "planner.tables"),
        "hardware costmodels data targets",
    ),
    "cost": (("planner.cost",), "hardware costmodels data targets tables"),
    "simulator": (
        ("planner.order", "planner.simulator", "planner.simulator_paths"),
        "hardware costmodels data targets tables cost",
    ),
    "solvers": (("planner.solvers",), "hardware costmodels data targets check tables cost simulator"),
    "export": (("planner.export",), "hardware data targets"),
    "runtime": (("planner.runtime",), "hardware data targets"),
    "answers": (
        ("planner.explain", "planner.replan", "planner.report", "planner.calibrate", "planner.accuracy"),
        "hardware costmodels data targets readers check tables cost simulator solvers",
    ),
    "cli": (
        ("planner.cli", "planner.__main__"),
        "hardware costmodels data targets readers check tables cost simulator solvers export runtime answers",
    ),
}

# Reached by no path of imports, however long: the check must not share a mistake with the search.
NEVER_REACHED = {
    "planner.check": (
        *(f"planner.{name}" for name in ("sharding", "placement", "flops", "schedule", "order", "simulator")),
        *(f"planner.{name}" for name in ("layer_costs", "measured_costs", "tables", "cost", "solvers")),
    ),
}

SLOW_TO_IMPORT = ("networkx", "ortools", "pandas", "scipy", "torch")
"""Imported where they are used, so that the command answers fast."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One imported module."""

    name: str
    """Absolute dotted name; of a module of ours, the module and not the object taken from it."""
    line: int
    """Line of the statement."""
    deferred: bool
    """Inside a function."""
    typing_only: bool
    """Under ``if TYPE_CHECKING``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A source file of the three packages."""

    name: str
    path: Path
    tree: ast.Module
    imports: tuple[Import, ...]

    def __str__(self) -> str:
        return self.name


def is_within(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(module == prefix or module.startswith(prefix + ".") for prefix in prefixes)


def read_imports(tree: ast.Module, module: str, *, is_package: bool, known: frozenset[str]) -> Iterator[Import]:
    """All imports of a module, in functions and under ``TYPE_CHECKING`` too."""

    def visit(node: ast.AST, deferred: bool, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(name=alias.name, line=node.lineno, deferred=deferred, typing_only=typing_only)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base] if base else parts)
            for alias in node.names:
                full = f"{base}.{alias.name}"
                name = full if full in known else base
                yield Import(name=name, line=node.lineno, deferred=deferred, typing_only=typing_only)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for child in node.body:
                yield from visit(child, deferred, True)
            for child in node.orelse:
                yield from visit(child, deferred, typing_only)
        else:
            inside = deferred or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from visit(child, inside, typing_only)

    return visit(tree, False, False)


@functools.cache
def read_modules() -> dict[str, Module]:
    paths: dict[str, Path] = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    known = frozenset(paths)
    modules = {}
    for name, path in paths.items():
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        imports = tuple(read_imports(tree, name, is_package=path.name == "__init__.py", known=known))
        modules[name] = Module(name=name, path=path, tree=tree, imports=imports)
    return modules


def layer_of(module: str) -> str | None:
    return next((layer for layer, (names, _) in LAYERS.items() if is_within(module, names)), None)


def modules_of(layer: str) -> list[Module]:
    return [module for name, module in read_modules().items() if layer_of(name) == layer]


def place(module: Module, line: int) -> str:
    return f"{module.path.relative_to(ROOT)}:{line}"


ALL = [pytest.param(module, id=name) for name, module in read_modules().items()]
BELOW_CLI = [pytest.param(module, id=name) for name, module in read_modules().items() if layer_of(name) != "cli"]


def test_every_module_stands_in_a_layer() -> None:
    assert [name for name in read_modules() if name != "planner" and layer_of(name) is None] == []


def test_layers_are_named_in_their_order() -> None:
    seen: set[str] = set()
    for layer, (_, allowed) in LAYERS.items():
        assert set(allowed.split()) <= seen, layer
        seen.add(layer)


@pytest.mark.parametrize("layer", LAYERS)
def test_layer_imports_only_what_stands_below_it(layer: str) -> None:
    allowed = {layer, *LAYERS[layer][1].split()}
    wrong = [
        f"{place(module, item.line)} imports {item.name}"
        for module in modules_of(layer)
        for item in module.imports
        if is_within(item.name, PACKAGES) and item.name != "planner" and layer_of(item.name) not in allowed
    ]
    assert wrong == []


@pytest.mark.parametrize("start", NEVER_REACHED)
def test_module_never_reaches_what_it_checks(start: str) -> None:
    modules = read_modules()
    trail = {name: name for name in modules if is_within(name, (start,))}
    assert trail, f"{start} does not exist"
    waiting = list(trail)
    while waiting:
        name = waiting.pop()
        # Importing a.b.c also runs a/__init__ and a.b/__init__, except the lazy one of planner.
        parents = [".".join(name.split(".")[:n]) for n in range(1, name.count(".") + 1)]
        targets = [item.name for item in modules[name].imports] + parents
        for target in targets:
            if target in modules and target != "planner" and target not in trail:
                trail[target] = f"{trail[name]} -> {target}"
                waiting.append(target)
    assert [path for name, path in trail.items() if is_within(name, NEVER_REACHED[start])] == []


def test_public_names_are_loaded_lazily() -> None:
    eager = [item for item in read_modules()["planner"].imports if not item.deferred and not item.typing_only]
    assert [item for item in eager if item.name.split(".")[0] not in sys.stdlib_module_names] == []


@pytest.mark.parametrize("module", BELOW_CLI)
def test_house_does_not_use_its_own_public_names(module: Module) -> None:
    """``from planner import search`` inside the house would go around the order, since the names are lazy."""
    if module.name == "planner":
        return
    names = [
        f"{place(module, node.lineno)} {alias.name}"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "planner" and not node.level
        for alias in node.names
        if f"planner.{alias.name}" not in read_modules() and alias.name != "__version__"
    ]
    assert names == []


@pytest.mark.parametrize("module", ALL)
def test_only_the_runtime_imports_torch(module: Module) -> None:
    if not is_within(module.name, ("planner.runtime",)):
        assert [place(module, item.line) for item in module.imports if is_within(item.name, ("torch",))] == []


@pytest.mark.parametrize("module", ALL)
def test_slow_packages_are_imported_where_they_are_used(module: Module) -> None:
    eager = [item for item in module.imports if not item.deferred and not item.typing_only]
    wrong = [f"{place(module, item.line)} {item.name}" for item in eager if is_within(item.name, SLOW_TO_IMPORT)]
    if not is_within(module.name, ("planner.runtime",)):
        assert wrong == []


@pytest.mark.parametrize("module", BELOW_CLI)
def test_own_modules_are_imported_at_the_top(module: Module) -> None:
    """A deferred import of our own is a sign that something lives in the wrong file (the command line may)."""
    if module.name != "planner":
        wrong = [item for item in module.imports if item.deferred and is_within(item.name, PACKAGES)]
        assert [f"{place(module, item.line)} {item.name}" for item in wrong] == []


@pytest.mark.parametrize("module", ALL)
def test_imported_packages_are_dependencies(module: Module) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["exec"]]
    declared = {re.split(r"[^A-Za-z0-9_]", requirement)[0] for requirement in requirements}
    allowed = {*declared, *sys.stdlib_module_names, *PACKAGES}
    assert [place(module, item.line) for item in module.imports if item.name.split(".")[0] not in allowed] == []


CALLS = {
    "print": "only the command line prints",
    "typer.echo": "only the command line prints",
    "rich.print": "only the command line prints",
    "sys.stdout": "only the command line prints",
    "sys.stderr": "only the command line prints; modules log",
    "sys.exit": "only the command line exits",
    "SystemExit": "only the command line exits",
    "os.environ": "options are a record passed in",
    "os.getenv": "options are a record passed in",
}
OUTSIDE = {"planner.runtime": ("os.environ", "os.getenv")}  # launchers tell a rank its place by environment variables


@pytest.mark.parametrize("module", BELOW_CLI)
def test_only_the_command_line_meets_the_outside(module: Module) -> None:
    allowed = {name for prefix, names in OUTSIDE.items() if is_within(module.name, (prefix,)) for name in names}
    used = [
        (node.lineno, ast.unparse(node))
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    ]
    wrong = [f"{place(module, line)} {name}: {CALLS[name]}" for line, name in used if name in CALLS.keys() - allowed]
    assert wrong == []


def test_everything_but_the_runtime_imports_without_slow_packages() -> None:
    names = [name for name in read_modules() if not is_within(name, ("planner.runtime", "planner.__main__"))]
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
print(*sorted({{name.split(".")[0] for name in sys.modules}} & {set(SLOW_TO_IMPORT)!r}))
"""
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == []
