"""The built wheel: what it holds, and that it works away from the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("hardware", "costmodels", "planner")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def files_in_tree() -> set[str]:
    """Everything below the three packages but what Python leaves behind."""
    return {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }


def run(*command: str | Path, cwd: Path, pythonpath: Path | None = None) -> str:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PIP_"))}
    if pythonpath is not None:
        environment["PYTHONPATH"] = str(pythonpath)
    child = subprocess.run([*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, f"{command} gave {child.returncode}\n{child.stdout}\n{child.stderr}"
    return child.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that no old build folder has a say."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", source / "dist", source, cwd=source)
    (path,) = (source / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel unpacked by pip; its dependencies are those of the tests' environment."""
    target = tmp_path_factory.mktemp("installed")
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check",
        "--target", target, wheel, cwd=target)  # fmt: skip
    return target


def test_listed_packages_are_those_of_the_tree() -> None:
    in_tree = {Path(name).parent.as_posix().replace("/", ".") for name in files_in_tree() if name.endswith(".py")}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == in_tree


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_typed(package: str) -> None:
    assert f"{package}/py.typed" in files_in_tree()


def test_wheel_holds_the_packages_with_their_data_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    own = {name for name in names if ".dist-info/" not in name}
    assert own == files_in_tree()
    (license_file,) = (name for name in names - own if name.endswith("LICENSE"))
    assert license_file.startswith("parallelism_planner-")


@pytest.mark.parametrize("package", PACKAGES)
def test_installed_package_is_the_one_imported(package: str, installed: Path, tmp_path: Path) -> None:
    """Other distributions install the same import names; ours must be found where pip put it."""
    code = f"import {package}; print({package}.__file__)"
    found = run(sys.executable, "-c", code, cwd=tmp_path, pythonpath=installed)
    assert Path(found.strip()) == installed / package / "__init__.py"


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["show", "llama-2-7b", "--json"], ["show", "dgx-h100*2", "--json"]],
    ids=lambda arguments: " ".join(arguments),
)
def test_installed_command_runs_from_another_directory(arguments: list[str], installed: Path, tmp_path: Path) -> None:
    assert run(installed / "bin" / "planner", *arguments, cwd=tmp_path, pythonpath=installed).strip()
