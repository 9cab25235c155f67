"""A model from what people type: a file, a folder with a config.json, or a name of the catalog."""

from dataclasses import replace
from pathlib import Path

from hardware.errors import InputError, Problem, printable, quote, suggest
from hardware.input_file import read_text
from hardware.json_reader import parse_json
from hardware.yaml_reader import Document
from planner.graph import ModelGraph
from planner.readers.catalog import model_names, model_path
from planner.readers.graph_json import parse_graph
from planner.readers.huggingface import parse_config
from planner.readers.json_lines import json_lines

MAX_FILE_SIZE = 8_000_000
"""Largest model file [bytes]; a graph with some 40,000 measured rows."""
CONFIG_NAME = "config.json"
"""Name of the file in the folder of a model."""


def read_model(source: str | Path) -> ModelGraph:
    """A model graph.

    Parameters
    ----------
    source
        A name of the catalog, or the path of a Hugging Face config.json (or its folder) or of a graph in our own JSON.

    Raises
    ------
    InputError
        Where there is no such name or file, or with every problem of the file.
    """
    if isinstance(source, str) and source in model_names():
        return _read_file(model_path(source), name=source)
    path = Path(source)
    if _is_folder(path):
        return _read_file(path / CONFIG_NAME, name=path.resolve().name)
    if isinstance(source, str) and not _exists(path):
        raise InputError([Problem(file=source, message=_no_such_model(source))])
    folder = path.absolute().parent.name if path.name == CONFIG_NAME else ""
    return _read_file(path, name=folder or path.stem)


def _read_file(path: Path, name: str) -> ModelGraph:
    text = read_text(path, max_size=MAX_FILE_SIZE)
    try:
        return parse_model(parse_json(text, str(path)), printable(name))
    except InputError as error:
        raise InputError(_with_lines(error.problems, text)) from None


def parse_model(document: Document, name: str) -> ModelGraph:
    """The model graph of a document: a Hugging Face config if it has ``model_type``, a graph if ``layer_types``."""
    content = document.content
    keys = content.keys() if isinstance(content, dict) else ()
    if "model_type" in keys or "architectures" in keys:
        return parse_config(document, name)
    if "layer_types" in keys or "format_version" in keys:
        return parse_graph(document, name)
    accepted = "a Hugging Face config.json (it has the key model_type) or a model graph (layer_types)"
    raise InputError([Problem(file=document.file, message=f"is neither {accepted}")])


def _with_lines(problems: tuple[Problem, ...], text: str) -> list[Problem]:
    """The problems in the order of the file, each with its line where the text is valid JSON."""
    if all(problem.line is not None or not problem.path for problem in problems):
        return list(problems)
    document = Document(file="", content=None, lines=json_lines(text))
    located = [replace(problem, line=document.line(problem.path)) for problem in problems]
    return sorted(located, key=lambda problem: problem.line or 0)


def _no_such_model(source: str) -> str:
    known = model_names()
    nearest = suggest(source, known) or suggest(Path(source).name, _siblings(source))
    return f"no such file, and {quote(source)} is no model of the catalog{nearest or '; known: ' + ', '.join(known)}"


def _siblings(source: str) -> list[str]:
    """JSON files and folders beside the missing one."""
    try:
        return sorted(path.name for path in Path(source).parent.iterdir() if path.suffix == ".json")
    except (OSError, ValueError):
        return []


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
