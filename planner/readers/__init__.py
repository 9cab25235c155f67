"""Readers: a Hugging Face config, our own graph JSON or a catalog name becomes a ``ModelGraph``."""

from planner.readers.catalog import model_names
from planner.readers.graph_json import parse_graph
from planner.readers.graph_schema import graph_schema
from planner.readers.huggingface import FAMILIES, parse_config
from planner.readers.model_file import parse_model, read_model

__all__ = ["FAMILIES", "graph_schema", "model_names", "parse_config", "parse_graph", "parse_model", "read_model"]
