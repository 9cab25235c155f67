"""A Hugging Face config.json becomes a model graph."""

from collections.abc import Callable
from dataclasses import dataclass

from hardware.errors import printable, quote, suggest
from hardware.fields import Section
from hardware.yaml_reader import Document
from planner.graph import Block, ModelGraph
from planner.readers.blocks import EMBEDDING, HEAD, runs, tied_embeddings
from planner.readers.config import DEFAULT_SEQ_LEN, MAX_POSITIONS, SEQ_LEN_KEY, Config
from planner.readers.deepseek_v3 import read_deepseek_v3
from planner.readers.gpt2 import read_gpt2
from planner.readers.llama import read_llama, read_mistral
from planner.readers.mixtral import read_mixtral
from planner.readers.qwen3 import read_qwen3
from planner.readers.qwen3_moe import read_qwen3_moe
from planner.readers.stack import Stack


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model type of transformers that can be read."""

    name: str
    """Name of the reader, ``ModelGraph.family``."""
    architecture: str
    """The class with a language-model head, as ``architectures`` names it."""
    read: Callable[[Config], Stack]
    """Reads the layers."""


FAMILIES = {
    "deepseek_v3": Family(name="deepseek_v3", architecture="DeepseekV3ForCausalLM", read=read_deepseek_v3),
    "gpt2": Family(name="gpt2", architecture="GPT2LMHeadModel", read=read_gpt2),
    "kimi_k2": Family(name="deepseek_v3", architecture="DeepseekV3ForCausalLM", read=read_deepseek_v3),
    "llama": Family(name="llama", architecture="LlamaForCausalLM", read=read_llama),
    "mistral": Family(name="llama", architecture="MistralForCausalLM", read=read_mistral),
    "mixtral": Family(name="mixtral", architecture="MixtralForCausalLM", read=read_mixtral),
    "qwen3": Family(name="qwen3", architecture="Qwen3ForCausalLM", read=read_qwen3),
    "qwen3_moe": Family(name="qwen3_moe", architecture="Qwen3MoeForCausalLM", read=read_qwen3_moe),
}
"""Families by ``model_type``."""


def parse_config(document: Document, name: str) -> ModelGraph:
    """The model graph of a config.json.

    Parameters
    ----------
    document
        The file's content; keys that do not bear on shapes are not looked at.
    name
        Name of the model.

    Returns
    -------
    ModelGraph
        Of the family that ``model_type`` names, or ``architectures`` where there is no ``model_type``. Its sequence
        length is ``_planner_seq_len``, else the longest context up to 8,192 tokens.

    Raises
    ------
    InputError
        With every problem at once: an unknown family, a value that is missing, of the wrong type, out of range or at
        odds with another.
    """
    section = Section(document=document)
    if not isinstance(document.content, dict):
        section.report(f"must be a mapping, got {quote(document.content)}")
    config = Config(section=section)
    family = _family(config)
    section.finish()
    assert family is not None, "a family that is not known is a problem"
    stack = family.read(config)
    seq_len = _seq_len(config, stack)
    notes = (*_source(config), *stack.notes, *_left_out(config))
    section.finish()
    return ModelGraph(
        name=name,
        family=family.name,
        seq_len=seq_len,
        layer_types={EMBEDDING: stack.embedding, **stack.decoders, HEAD: stack.head},
        blocks=(Block(layer_type=EMBEDDING, count=1), *runs(stack.order), Block(layer_type=HEAD, count=1)),
        shared_parameters=tied_embeddings(stack.tied),
        notes=notes,
    )


def _family(config: Config) -> Family | None:
    """The family, or ``None`` where a problem was noted."""
    architectures = _architectures(config)
    if not config.section.has("model_type"):
        for family in FAMILIES.values():
            if family.architecture in architectures:
                return family
        config.section.report(f"the key 'model_type' is missing; known families: {', '.join(FAMILIES)}")
        return None
    model_type = config.text("model_type")
    if model_type is None:
        return None
    found = FAMILIES.get(model_type)
    if found is None:
        hint = suggest(model_type, list(FAMILIES))
        config.report(f"unknown model family {quote(model_type)}{hint}; known: {', '.join(FAMILIES)}", "model_type")
    elif architectures and found.architecture not in architectures:
        accepted = f"accepted with model_type {model_type}: {found.architecture}"
        config.report(f"{quote(architectures[0])} is not the language model; {accepted}", "architectures")
    return found


def _architectures(config: Config) -> list[str]:
    value = config.section.mapping.get("architectures")
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        config.report(f"must be a list of names, got {quote(value)}", "architectures")
        return []
    return value


def _seq_len(config: Config, stack: Stack) -> int:
    default = min(stack.max_positions, DEFAULT_SEQ_LEN)
    seq_len = config.size(SEQ_LEN_KEY, default=default, maximum=MAX_POSITIONS)
    if stack.learned_positions and seq_len > stack.max_positions:
        config.report(f"must be at most the {stack.max_positions} learned positions, got {seq_len}", SEQ_LEN_KEY)
    return seq_len


def _source(config: Config) -> tuple[str, ...]:
    source = config.text("_source")
    return () if source is None else (f"Source: {printable(source)}",)


def _left_out(config: Config) -> tuple[str, ...]:
    notes = []
    num_predicted = config.size("num_nextn_predict_layers", default=0, minimum=0)
    if num_predicted:
        notes.append(f"Multi-token prediction (num_nextn_predict_layers = {num_predicted}) is left out.")
    if config.section.has("quantization_config"):
        notes.append("quantization_config is left out: it tells how weights are stored, not how they are trained.")
    return tuple(notes)
