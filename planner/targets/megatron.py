"""The target ``megatron``: what Megatron-LM (megatron-core 0.19 and 0.20) launches with an explicit pipeline layout.

The rules of ``any`` hold too. R12, R13 and R15 (even splits) do not bear on plans: an explicit layout replaces them,
with R14 in their place.
"""

from __future__ import annotations

from typing import Any

from planner.strategy import Recompute
from planner.targets import any as any_target
from planner.targets.candidate import DP_OUTER, RING, ULYSSES, Candidate, Integer, ModelFacts
from planner.targets.rule import Level, Rule, Severity, Truth, nearest

# R10: Megatron cuts the sequence into 2 × cp pieces for every kind of context parallelism

SEQUENCE = Rule(
    code="R10",
    title="context parallelism gives each rank one piece from either half of the causal mask",
    formula="cp = 1, or seq_len mod (2 × cp) = 0",
    enforced_by="Megatron-LM training/arguments.py",
    level=Level.CORE,
    holds=any_target.sequence_halves,
    message=any_target.sequence_halves_message,
)


# R11: all-to-all needs whole heads of keys and values on each rank


def _all_to_all_works(cp: Integer, tp: Integer, facts: ModelFacts) -> Truth:
    """Heads that a tensor-parallel rank has; copied key and value heads count as one."""
    holds: Any = (cp >= 1) & bool(facts.sizes("heads"))
    for heads in facts.sizes("heads"):
        holds = holds & (heads % (tp * cp) == 0)
    for heads in facts.sizes("kv_heads"):
        holds = holds & (heads % (tp * cp) == 0)
    return holds


def _all_to_all_message(c: Candidate, facts: ModelFacts) -> str:
    if not facts.sizes("heads"):
        return f"cp_kind = ulysses with cp = {c.cp} needs attention heads, and the model names none; legal: ring"
    heads = [*facts.sizes("heads"), *facts.sizes("kv_heads")]
    legal = nearest(c.cp, lambda n: _all_to_all_works(n, c.tp, facts), highest=max(heads))
    return (
        f"with cp_kind = ulysses tp × cp = {c.tp} × {c.cp} = {c.tp * c.cp} must divide heads and kv_heads = "
        f"{', '.join(map(str, heads))}; for cp, {legal}"
    )


ALL_TO_ALL = Rule(
    code="R11",
    title="all-to-all deals heads of queries, keys and values out evenly",
    formula="ring, or heads mod (tp × cp) = 0 and kv_heads mod (tp × cp) = 0",
    enforced_by="Transformer Engine, attention/dot_product_attention/context_parallel.py (at run time only)",
    level=Level.OUTER,
    holds=lambda c, facts: (c.cp_kind != ULYSSES) | (c.cp == 1) | _all_to_all_works(c.cp, c.tp, facts),
    message=_all_to_all_message,
)

WINDOW = Rule(
    code="window",
    title="a ring does not know attention windows",
    formula="no attention window, or cp = 1, or Ulysses",
    enforced_by="Transformer Engine, attention/dot_product_attention/context_parallel.py (at run time only)",
    level=Level.OUTER,
    holds=lambda c, facts: (not facts.has_window) | (c.cp == 1) | (c.cp_kind != RING),
    message=lambda c, _: f"cp = {c.cp} with ring and an attention window; legal: cp_kind ulysses, or cp = 1",
)


LATENT_ALL_TO_ALL = Rule(
    code="R11b",
    title="all-to-all with latent attention needs a new Transformer Engine",
    formula="ring, or cp = 1, or no latent attention",
    enforced_by="older Transformer Engine, where keys and values must have one head size (at run time only)",
    level=Level.OUTER,
    severity=Severity.WARNING,
    holds=lambda c, facts: (c.cp_kind != ULYSSES) | (c.cp == 1) | (not facts.has_latent_attention),
    message=lambda c, _: f"cp_kind = ulysses with cp = {c.cp} and latent attention; ring runs with older releases too",
)


# R8, R7b: what people should know

VOCABULARY = Rule(
    code="R8",
    title="the vocabulary is padded to a multiple of 128 × tp",
    formula="vocab mod (128 × tp) = 0",
    enforced_by="Megatron-LM core/tokenizers/utils/build_tokenizer.py: pads silently",
    level=Level.CORE,
    severity=Severity.WARNING,
    holds=lambda c, facts: _padding(c, facts) == 0,
    message=lambda c, facts: (
        f"tp = {c.tp} pads the vocabulary by {_padding(c, facts)} entries: the shape of checkpoints depends on tp"
    ),
)


def _padding(c: Candidate, facts: ModelFacts) -> Integer:
    """Entries added to the first padded dim."""
    dim = next((dim for dim in facts.dims if dim.padded), None)
    return 0 * c.tp if dim is None else -dim.size % (dim.granularity * c.tp)


def _latents_divide(tp: Integer, facts: ModelFacts) -> Truth:
    holds: Any = tp >= 1
    for _, size in facts.latent_dims:
        holds = holds & (size % tp == 0)
    return holds


LATENTS = Rule(
    code="R7b",
    title="latents of attention are split evenly where they are split",
    formula="q_latent mod tp = 0 and (kv_latent + rope_size) mod tp = 0",
    enforced_by="Megatron-LM core/transformer/multi_latent_attention.py, unless the latents are made on each rank",
    level=Level.CORE,
    severity=Severity.WARNING,
    holds=lambda c, facts: _latents_divide(c.tp, facts),
    message=lambda c, facts: (
        f"tp = {c.tp} does not divide {', '.join(f'{name} = {size}' for name, size in facts.latent_dims)}: runs with "
        f"Transformer Engine only, and without fused products; {nearest(c.tp, lambda n: _latents_divide(n, facts))}"
    ),
)


# stages, R14: an explicit layout, without stages that hold no decoder layer

STAGES = Rule(
    code="stages",
    title="each virtual stage can hold a decoder layer",
    formula="pp × vpp <= decoder layers",
    enforced_by="stages without decoder layers may fail or hang: Megatron-LM issue 1852",
    level=Level.CORE,
    holds=lambda c, facts: c.pp * c.vpp <= facts.num_body_layers,
    message=lambda c, facts: (
        f"pp × vpp = {c.pp} × {c.vpp} = {c.pp * c.vpp} stages, but there are {facts.num_body_layers} decoder layers; "
        f"at most {facts.num_body_layers} is legal"
    ),
)

LAYOUT = Rule(
    code="R14",
    title="each virtual stage holds a decoder layer, and all layers are held",
    formula="sum(layers_per_stage) = decoder layers; min(layers_per_stage) >= 1",
    enforced_by="Megatron-LM core/transformer/pipeline_parallel_layer_layout.py; for empty stages see issue 1852",
    level=Level.INNER,
    holds=lambda c, facts: any_target.layers_fault(c, facts, may_be_empty=False) is None,
    message=lambda c, facts: any_target.layers_fault(c, facts, may_be_empty=False) or "",
)


# R19, order: placement and sharding

ZERO_WITH_PIPELINE = Rule(
    code="R19",
    title="ZeRO-2 and ZeRO-3 only without a pipeline",
    formula="zero_stage <= 1, or pp = 1",
    enforced_by="Megatron-FSDP is documented with tp, cp and ep only; for pp see Megatron-LM issue 1455 (open)",
    level=Level.OUTER,
    holds=lambda c, _: (c.zero_stage <= 1) | (c.pp == 1),
    message=lambda c, _: f"zero_stage = {c.zero_stage} with pp = {c.pp}; legal: zero_stage 0 or 1, or pp = 1",
)


def _inner_ranks(c: Candidate, facts: ModelFacts) -> Integer:
    """Ranks inside pp on the experts' mesh; a dense model has one too, of tp ranks."""
    return c.ep * c.etp if facts.is_moe else c.tp


ORDER = Rule(
    code="order",
    title="both meshes have the same pipeline groups, in dense models too",
    formula="pp outermost, or pp = 1, or ep × etp = tp × cp with experts, or cp = 1 without",
    enforced_by="Megatron-LM core/parallel_state.py compares data-parallel sizes and pipeline groups of both meshes",
    level=Level.OUTER,
    holds=lambda c, facts: (c.rank_order != DP_OUTER) | (c.pp == 1) | (_inner_ranks(c, facts) == c.tp * c.cp),
    message=lambda c, facts: (
        f"rank order tp-cp-ep-pp-dp puts pp right outside tp × cp = {c.tp * c.cp} ranks, but on the experts' mesh, "
        f"which dense models have too, outside {_inner_ranks(c, facts)}; legal: "
        + (f"ep × etp = {c.tp * c.cp}" if facts.is_moe else "cp = 1")
        + ", or rank order tp-cp-ep-dp-pp"
    ),
)


# R20: copies of the distributed optimizer


def _instances_divide(c: Candidate, _: ModelFacts) -> Truth:
    dense, experts = c.dp * c.cp, c.dp * c.cp * c.tp // (c.ep * c.etp)
    return (c.zero_stage == 0) | ((dense % c.dp_replicate == 0) & (experts % c.dp_replicate == 0))


def _instances_message(c: Candidate, _: ModelFacts) -> str:
    dense, experts = c.dp * c.cp, c.dp * c.cp * c.tp // (c.ep * c.etp)
    legal = nearest(c.dp_replicate, lambda n: c.dp % n == 0 and experts % n == 0, highest=c.dp)
    return (
        f"dp_replicate = {c.dp_replicate} instances of the distributed optimizer must divide dp × cp = {dense} and the "
        f"experts' data-parallel size {experts}; {legal}"
    )


INSTANCES = Rule(
    code="R20",
    title="instances of the distributed optimizer share the replicas evenly, those of experts too",
    formula="zero_stage = 0, or (dp × cp) mod dp_replicate = 0 and (dp × cp × tp / (ep × etp)) mod dp_replicate = 0",
    enforced_by="Megatron-LM core/parallel_state.py",
    level=Level.OUTER,
    holds=_instances_divide,
    message=_instances_message,
)


# R21: one setting of recomputation for the whole model


def _recompute_fault(c: Candidate, _: ModelFacts) -> str | None:
    layers, counts = c.layers_per_stage, c.recompute_layers
    assert layers is not None and counts is not None, "an inner rule needs inner choices"
    if len(layers) != len(counts) or c.recompute in (None, Recompute.NONE):
        return None  # the rule `recompute` speaks of these
    shown = ", ".join(map(str, counts))
    if c.recompute is Recompute.SELECTIVE:
        legal = layers
        rule = "selective recomputation applies to all layers"
    else:
        number = max(counts)
        legal = tuple(min(number, count) for count in layers)
        rule = "full recomputation has one number of layers for all virtual stages"
    if counts in (legal, (0,) * len(counts)):
        return None
    return f"recompute_layers = ({shown}), but {rule}; nearest legal: ({', '.join(map(str, legal))})"


RECOMPUTE = Rule(
    code="R21",
    title="one setting of recomputation for the whole model",
    formula="full: recompute_layers = min(N, layers_per_stage) for one N; selective: layers_per_stage",
    enforced_by="Megatron-LM core/transformer/transformer_block.py: --recompute-num-layers is one number",
    level=Level.INNER,
    holds=lambda c, facts: _recompute_fault(c, facts) is None,
    message=lambda c, facts: _recompute_fault(c, facts) or "",
)

PIPELINE_TIED = Rule(
    code="R28",
    title="tied embeddings have a copy on the last stage of a pipeline",
    formula="pp = 1, or embeddings not tied",
    enforced_by="Megatron-LM keeps a copy on the last stage and reduces its gradient with the first",
    level=Level.CORE,
    severity=Severity.WARNING,
    holds=lambda c, facts: (c.pp == 1) | (not facts.tied_embeddings),
    message=lambda c, _: f"with pp = {c.pp} the last stage keeps a copy of the tied embedding",
)

_OWN = (
    SEQUENCE,
    VOCABULARY,
    LATENTS,
    PIPELINE_TIED,
    STAGES,
    ALL_TO_ALL,
    WINDOW,
    LATENT_ALL_TO_ALL,
    ZERO_WITH_PIPELINE,
    ORDER,
    INSTANCES,
    LAYOUT,
    RECOMPUTE,
)
_REPLACED = (
    any_target.STAGES,
    any_target.RING_SEQUENCE,
    any_target.ULYSSES_HEADS,
    any_target.ORDER,
    any_target.LAYERS,
)

RULES = tuple(
    sorted(
        [*(rule for rule in any_target.RULES if rule not in _REPLACED), *_OWN],
        key=lambda rule: list(Level).index(rule.level),
    )
)
"""All rules of Megatron, in the order of their levels."""
