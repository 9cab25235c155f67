"""The target ``any``: mesh arithmetic and divisibility of dims, which no launcher can do without.

Codes ``R1`` to ``R25`` are shared with the rules of launchers; words (``zero``, ``order``, ``stages``, ``layers``,
``recompute``, ``duplicate``) name rules that follow from how a strategy is written.
"""

from __future__ import annotations

from typing import Any

from planner.graph import Axis
from planner.strategy import Recompute
from planner.targets.candidate import DP_OUTER, RING, ULYSSES, Candidate, DimFact, Integer, ModelFacts
from planner.targets.rule import Level, Rule, Severity, Truth, nearest

MESH = "arithmetic of the device mesh"
SHARDING = "sharding of tensors"


# R1: devices


def _uses_all_devices(c: Candidate, _: ModelFacts) -> Truth:
    return c.tp * c.cp * c.pp * c.dp == c.num_devices


def _devices_message(c: Candidate, _: ModelFacts) -> str:
    model = c.tp * c.cp * c.pp
    used = (
        f"tp × cp × pp × dp = {c.tp} × {c.cp} × {c.pp} × {c.dp} = {model * c.dp}, but there are {c.num_devices} devices"
    )
    if c.num_devices % model == 0:
        return f"{used}; with these tp, cp and pp, dp must be {c.num_devices // model}"
    legal = nearest(model, lambda n: c.num_devices % n == 0, highest=c.num_devices)
    return f"{used}; tp × cp × pp = {model} must divide them ({legal})"


DEVICES = Rule(
    code="R1",
    title="the mesh uses all devices",
    formula="tp × cp × pp × dp = devices",
    enforced_by="every launcher; Megatron-LM training/arguments.py, torchtitan parallel_dims.py",
    level=Level.CORE,
    holds=_uses_all_devices,
    message=_devices_message,
)


# R2: the experts' mesh on the devices of a stage


def _expert_mesh_fits(c: Candidate, _: ModelFacts) -> Truth:
    return (c.dp * c.cp * c.tp) % (c.ep * c.etp) == 0


def _expert_mesh_message(c: Candidate, _: ModelFacts) -> str:
    ranks = c.dp * c.cp * c.tp
    legal = nearest(c.ep * c.etp, lambda n: ranks % n == 0, highest=ranks)
    return f"ep × etp = {c.ep} × {c.etp} = {c.ep * c.etp} does not divide dp × cp × tp = {ranks}; {legal}"


EXPERT_MESH = Rule(
    code="R2",
    title="the experts' mesh fills the devices of a stage",
    formula="(dp × cp × tp) mod (ep × etp) = 0",
    enforced_by="Megatron-LM core/parallel_state.py, torchtitan parallel_dims.py",
    level=Level.CORE,
    holds=_expert_mesh_fits,
    message=_expert_mesh_message,
)


def _expert_shards_fit(c: Candidate, _: ModelFacts) -> Truth:
    return (c.zero_stage == 0) | ((c.dp_shard * c.cp * c.tp) % (c.ep * c.etp) == 0)


def _expert_shards_message(c: Candidate, _: ModelFacts) -> str:
    experts = c.ep * c.etp
    legal = nearest(c.dp_shard, lambda n: c.dp % n == 0 and (n * c.cp * c.tp) % experts == 0, highest=c.dp)
    return (
        f"with dp_shard = {c.dp_shard}, dp_shard × cp × tp = {c.dp_shard * c.cp * c.tp} is no multiple of "
        f"ep × etp = {experts}; for dp_shard, {legal}"
    )


EXPERT_SHARDS = Rule(
    code="R2",
    title="each shard group holds whole sets of experts",
    formula="zero_stage = 0, or (dp_shard × cp × tp) mod (ep × etp) = 0",
    enforced_by="Megatron-LM core/parallel_state.py, torchtitan parallel_dims.py",
    level=Level.OUTER,
    holds=_expert_shards_fit,
    message=_expert_shards_message,
)


# R4: experts over ep


def _experts_divide(c: Candidate, facts: ModelFacts) -> Truth:
    dims = facts.on_axis(Axis.EP)
    if not dims:
        return (c.ep == 1) & (c.etp == 1)
    return _all_accept(dims, c.ep)


def _experts_message(c: Candidate, facts: ModelFacts) -> str:
    dims = facts.on_axis(Axis.EP)
    if not dims:
        return f"ep = {c.ep} and etp = {c.etp}, but the model has no experts; only 1 is legal for both"
    return _dim_message("ep", c.ep, dims)


EXPERTS = Rule(
    code="R4",
    title="experts are dealt out evenly",
    formula="experts mod ep = 0; ep = etp = 1 without experts",
    enforced_by="Megatron-LM training/arguments.py, DeepSpeed moe/layer.py, torchtitan",
    level=Level.CORE,
    holds=_experts_divide,
    message=_experts_message,
)


# R5, R6, R7: dims over tp and etp


def _all_accept(dims: tuple[DimFact, ...], degree: Integer) -> Truth:
    holds: Any = degree >= 1
    for dim in dims:
        holds = holds & dim.accepts(degree)
    return holds


def _dim_message(axis: str, degree: int, dims: tuple[DimFact, ...]) -> str:
    dim = next(dim for dim in dims if not dim.accepts(degree))
    unit = f" in units of {dim.granularity}" if dim.granularity > 1 else ""
    highest = None if dim.replicable or dim.padded else dim.size
    legal = nearest(degree, lambda n: _all_accept(dims, n), highest=highest)
    relation = "neither divides nor is a multiple of" if dim.replicable else "does not divide"
    return f"{axis} = {degree} {relation} {dim.name} = {dim.size}{unit}; {legal}"


def _head_dims(facts: ModelFacts) -> tuple[DimFact, ...]:
    return tuple(dim for dim in facts.on_axis(Axis.TP) if dim.name == "heads")


def _replicable_dims(facts: ModelFacts) -> tuple[DimFact, ...]:
    return tuple(dim for dim in facts.on_axis(Axis.TP) if dim.replicable)


def _other_tp_dims(facts: ModelFacts) -> tuple[DimFact, ...]:
    return tuple(dim for dim in facts.on_axis(Axis.TP) if dim.name != "heads" and not dim.replicable)


HEADS = Rule(
    code="R5",
    title="each tensor-parallel rank has whole heads, equally many",
    formula="heads mod tp = 0",
    enforced_by="Megatron-LM core/transformer/transformer_config.py, nanotron config.py, DeepSpeed module_inject",
    level=Level.CORE,
    holds=lambda c, facts: _all_accept(_head_dims(facts), c.tp),
    message=lambda c, facts: _dim_message("tp", c.tp, _head_dims(facts)),
)

KV_HEADS = Rule(
    code="R6",
    title="key and value heads are split or copied evenly",
    formula="kv_heads mod tp = 0, or tp mod kv_heads = 0",
    enforced_by="Megatron-LM core/transformer/transformer_config.py",
    level=Level.CORE,
    holds=lambda c, facts: _all_accept(_replicable_dims(facts), c.tp),
    message=lambda c, facts: _dim_message("tp", c.tp, _replicable_dims(facts)),
)


def _widths_divide(c: Candidate, facts: ModelFacts) -> Truth:
    return _all_accept(_other_tp_dims(facts), c.tp) & _all_accept(facts.on_axis(Axis.ETP), c.etp)


def _widths_message(c: Candidate, facts: ModelFacts) -> str:
    if not _all_accept(_other_tp_dims(facts), c.tp):
        return _dim_message("tp", c.tp, _other_tp_dims(facts))
    return _dim_message("etp", c.etp, facts.on_axis(Axis.ETP))


WIDTHS = Rule(
    code="R7",
    title="widths of layers and experts are split evenly",
    formula="ffn mod tp = 0 (every dim that tp splits, unless padded); expert_ffn mod etp = 0",
    enforced_by="Megatron-LM core/utils.py, nanotron tensor_parallel/nn.py",
    level=Level.CORE,
    holds=_widths_divide,
    message=_widths_message,
)


# R9, R10, R11: the sequence over tp and cp


def _sequence_over_tp(c: Candidate, facts: ModelFacts) -> Truth:
    return (c.sequence_parallel == 0) | (c.tp == 1) | (facts.seq_len % (c.tp * c.cp) == 0)


def _sequence_over_tp_message(c: Candidate, facts: ModelFacts) -> str:
    legal = nearest(c.tp * c.cp, lambda n: facts.seq_len % n == 0, highest=facts.seq_len)
    return (
        f"with sequence parallelism tp × cp = {c.tp} × {c.cp} = {c.tp * c.cp} does not divide "
        f"seq_len = {facts.seq_len}; {legal}"
    )


SEQUENCE_PARALLEL = Rule(
    code="R9",
    title="sequence parallelism splits the sequence evenly",
    formula="not sequence_parallel, or tp = 1, or seq_len mod (tp × cp) = 0",
    enforced_by="Megatron-LM core/tensor_parallel/mappings.py, torchtitan parallel_dims.py",
    level=Level.OUTER,
    holds=_sequence_over_tp,
    message=_sequence_over_tp_message,
)


def sequence_halves(c: Candidate, facts: ModelFacts) -> Truth:
    """Whether each context-parallel rank can have two equal pieces, one from each end of the sequence."""
    return (c.cp == 1) | (facts.seq_len % (2 * c.cp) == 0)


def sequence_halves_message(c: Candidate, facts: ModelFacts) -> str:
    """Why the pieces are not equal."""
    legal = nearest(c.cp, lambda n: n == 1 or facts.seq_len % (2 * n) == 0, highest=facts.seq_len)
    return f"cp = {c.cp}: 2 × cp = {2 * c.cp} does not divide seq_len = {facts.seq_len}; {legal}"


RING_SEQUENCE = Rule(
    code="R10",
    title="a ring gives each rank one piece from either half of the causal mask",
    formula="cp = 1, or not ring, or seq_len mod (2 × cp) = 0",
    enforced_by="Megatron-LM training/arguments.py, torchtitan parallel_dims.py, nanotron",
    level=Level.OUTER,
    holds=lambda c, facts: (c.cp_kind != RING) | sequence_halves(c, facts),
    message=sequence_halves_message,
)


def _ulysses_works(cp: Integer, tp: Integer, facts: ModelFacts) -> Truth:
    holds: Any = (facts.seq_len % cp == 0) & bool(facts.sizes("heads"))
    for heads in facts.sizes("heads"):
        holds = holds & (heads % (tp * cp) == 0)
    for heads in facts.sizes("kv_heads"):
        holds = holds & ((heads % (tp * cp) == 0) | ((tp * cp) % heads == 0))
    return holds


def _ulysses_message(c: Candidate, facts: ModelFacts) -> str:
    if not facts.sizes("heads"):
        return f"cp_kind = ulysses with cp = {c.cp} needs attention heads, and the model names none; use ring"
    legal = nearest(c.cp, lambda n: _ulysses_works(n, c.tp, facts), highest=facts.seq_len)
    heads = [*facts.sizes("heads"), *facts.sizes("kv_heads")]
    return (
        f"Ulysses with tp × cp = {c.tp} × {c.cp} = {c.tp * c.cp} must divide heads and seq_len and divide or be a "
        f"multiple of kv_heads, got heads {', '.join(map(str, heads))} and seq_len {facts.seq_len}; for cp, {legal}"
    )


ULYSSES_HEADS = Rule(
    code="R11",
    title="Ulysses deals heads out evenly",
    formula="not Ulysses, or heads mod (tp × cp) = 0, seq_len mod cp = 0, and kv_heads mod (tp × cp) = 0 or reverse",
    enforced_by="DeepSpeed sequence/layer.py, Megatron-LM through Transformer Engine",
    level=Level.OUTER,
    holds=lambda c, facts: (c.cp_kind != ULYSSES) | (c.cp == 1) | _ulysses_works(c.cp, c.tp, facts),
    message=_ulysses_message,
)


# R16, R18, stages: microbatches and virtual stages


def _interleaving_works(c: Candidate, _: ModelFacts) -> Truth:
    return (c.vpp == 1) | ((c.pp >= 2) & (c.num_microbatches % c.pp == 0))


def _interleaving_message(c: Candidate, _: ModelFacts) -> str:
    if c.pp < 2:
        return f"vpp = {c.vpp} interleaves the stages of a pipeline, but pp = {c.pp}; use vpp = 1 or pp of at least 2"
    legal = nearest(c.num_microbatches, lambda n: n % c.pp == 0)
    return f"with vpp = {c.vpp}, num_microbatches = {c.num_microbatches} must be a multiple of pp = {c.pp}; {legal}"


INTERLEAVING = Rule(
    code="R16",
    title="interleaved stages take microbatches in whole groups of pp",
    formula="vpp = 1, or pp >= 2 and num_microbatches mod pp = 0",
    enforced_by="Megatron-LM core/pipeline_parallel/schedules.py (at run time only), PyTorch Interleaved1F1B",
    level=Level.CORE,
    holds=_interleaving_works,
    message=_interleaving_message,
)


def _batch_adds_up(c: Candidate, facts: ModelFacts) -> Truth:
    return c.microbatch_size * c.dp * c.num_microbatches == facts.global_batch_size


def _batch_message(c: Candidate, facts: ModelFacts) -> str:
    batch, size = facts.global_batch_size, c.microbatch_size * c.dp
    product = (
        f"microbatch_size × dp × num_microbatches = {c.microbatch_size} × {c.dp} × {c.num_microbatches} = "
        f"{size * c.num_microbatches}, but global_batch_size = {batch}"
    )
    if batch % size == 0:
        return f"{product}; num_microbatches must be {batch // size}"
    legal = nearest(size, lambda n: batch % n == 0, highest=batch)
    return f"{product}; microbatch_size × dp = {size} must divide it ({legal})"


BATCH = Rule(
    code="R18",
    title="microbatches make up the global batch",
    formula="microbatch_size × dp × num_microbatches = global_batch_size",
    enforced_by="Megatron-LM core/num_microbatches_calculator.py, DeepSpeed runtime/config.py",
    level=Level.CORE,
    holds=_batch_adds_up,
    message=_batch_message,
)


def _max_stages(facts: ModelFacts) -> int:
    return facts.num_body_layers + facts.has_embedding + facts.has_head


STAGES = Rule(
    code="stages",
    title="there are no more virtual stages than layers",
    formula="pp × vpp <= layers, embedding and head included",
    enforced_by="each stage must hold a layer; torchtitan distributed/pipeline_parallel.py",
    level=Level.CORE,
    holds=lambda c, facts: c.pp * c.vpp <= _max_stages(facts),
    message=lambda c, facts: (
        f"pp × vpp = {c.pp} × {c.vpp} = {c.pp * c.vpp} stages, but there are {_max_stages(facts)} layers with "
        f"embedding and head; at most {_max_stages(facts)} is legal"
    ),
)


# zero, order, duplicate: outer choices


def _shards_match(c: Candidate) -> Truth:
    return c.dp_shard * c.dp_replicate == c.dp


def _zero_matches(c: Candidate, _: ModelFacts) -> Truth:
    plain = (c.zero_stage == 0) & (c.dp_shard == 1)
    sharded = (c.zero_stage >= 1) & (c.dp_shard * c.cp > 1)
    return _shards_match(c) & (plain | sharded)


def _zero_message(c: Candidate, _: ModelFacts) -> str:
    if not _shards_match(c):
        legal = nearest(c.dp_shard, lambda n: c.dp % n == 0, highest=c.dp)
        return f"dp_shard × dp_replicate = {c.dp_shard} × {c.dp_replicate} must be dp = {c.dp}; for dp_shard, {legal}"
    if c.zero_stage == 0:
        return f"zero_stage = 0 shards nothing, but dp_shard = {c.dp_shard}; legal: dp_shard 1, or zero_stage 1 to 3"
    return (
        f"zero_stage = {c.zero_stage} shards over dp_shard × cp = {c.dp_shard} × {c.cp} = 1 rank; "
        "legal: zero_stage 0, or dp_shard of at least 2"
    )


ZERO = Rule(
    code="zero",
    title="states are sharded over the ranks that ZeRO names",
    formula="dp_shard × dp_replicate = dp; zero_stage = 0 and dp_shard = 1, or zero_stage >= 1 and dp_shard × cp > 1",
    enforced_by=MESH,
    level=Level.OUTER,
    holds=_zero_matches,
    message=_zero_message,
)


def _meshes_agree(c: Candidate, facts: ModelFacts) -> Truth:
    """Whether the pipeline groups of both meshes are equal: the stride of pp is the size of the axes inside it."""
    return (c.rank_order != DP_OUTER) | (c.pp == 1) | (not facts.is_moe) | (c.ep * c.etp == c.tp * c.cp)


ORDER = Rule(
    code="order",
    title="the experts' mesh has the same pipeline groups",
    formula="pp outermost, or pp = 1, or no experts, or ep × etp = tp × cp",
    enforced_by="Megatron-LM core/parallel_state.py: pipeline groups of both meshes are compared",
    level=Level.OUTER,
    holds=_meshes_agree,
    message=lambda c, _: (
        f"rank order tp-cp-ep-pp-dp puts pp right outside tp × cp = {c.tp * c.cp} ranks for dense layers and outside "
        f"ep × etp = {c.ep * c.etp} for experts; legal: ep × etp = {c.tp * c.cp}, or rank order tp-cp-ep-dp-pp"
    ),
)


def _written_once(c: Candidate, _: ModelFacts) -> Truth:
    order = (c.rank_order != DP_OUTER) | ((c.pp > 1) & (c.dp > 1))
    kind = (c.cp_kind == RING) | (c.cp > 1)
    return order & kind


def _duplicate_message(c: Candidate, _: ModelFacts) -> str:
    if c.cp_kind != RING and c.cp == 1:
        return "cp = 1 has no kind of context parallelism; it is written as ring"
    return f"with pp = {c.pp} and dp = {c.dp} both rank orders are one placement; it is written as tp-cp-ep-dp-pp"


DUPLICATE = Rule(
    code="duplicate",
    title="each placement is written in one way",
    formula="pp outermost, or pp > 1 and dp > 1; ring, or cp > 1",
    enforced_by="search, so that each placement counts once; launchers take either form",
    level=Level.OUTER,
    severity=Severity.DUPLICATE,
    holds=_written_once,
    message=_duplicate_message,
)

EXPERT_SEQUENCE = Rule(
    code="R25",
    title="experts behind tensor parallelism need sequence parallelism",
    formula="no experts, or tp = 1, or sequence_parallel",
    enforced_by="Megatron-LM core/transformer/moe/moe_layer.py (at run time only)",
    level=Level.OUTER,
    holds=lambda c, facts: (not facts.is_moe) | (c.tp == 1) | (c.sequence_parallel == 1),
    message=lambda c, _: (
        f"tp = {c.tp} with experts and without sequence parallelism would send each token {c.tp} times; "
        "legal: sequence_parallel true, or tp = 1"
    ),
)


# layers, recompute: inner choices


def layers_fault(c: Candidate, facts: ModelFacts, *, may_be_empty: bool) -> str | None:
    """What is wrong with the layers of the stages; ``None`` for nothing.

    Parameters
    ----------
    c
        A candidate with inner choices.
    facts
        The model.
    may_be_empty
        Whether the first stage may hold the embedding alone and the last stage the head alone.
    """
    counts = c.layers_per_stage
    assert counts is not None, "an inner rule needs inner choices"
    shown = ", ".join(map(str, counts))
    if len(counts) != c.pp * c.vpp:
        return f"layers_per_stage has {len(counts)} entries, pp × vpp = {c.pp * c.vpp} are needed"
    if sum(counts) != facts.num_body_layers:
        return f"layers_per_stage = ({shown}) adds up to {sum(counts)}, the model has {facts.num_body_layers} layers"
    if min(counts) < 0:
        return f"layers_per_stage = ({shown}) has a negative count; at least 0 is legal"
    last = len(counts) - 1
    for stage, count in enumerate(counts):
        held = (facts.has_embedding and stage == 0) or (facts.has_head and stage == last)
        if count == 0 and not (held and may_be_empty):
            ends = "; only the first and the last stage may hold none" if may_be_empty else ""
            return f"layers_per_stage = ({shown}) leaves stage {stage} without a layer; at least 1 is legal{ends}"
    return None


LAYERS = Rule(
    code="layers",
    title="each stage holds a layer, and all layers are held",
    formula="sum(layers_per_stage) = layers; a stage without layers only where it holds the embedding or the head",
    enforced_by=SHARDING,
    level=Level.INNER,
    holds=lambda c, facts: layers_fault(c, facts, may_be_empty=True) is None,
    message=lambda c, facts: layers_fault(c, facts, may_be_empty=True) or "",
)


def _recompute_fault(c: Candidate, _: ModelFacts) -> str | None:
    layers, counts = c.layers_per_stage, c.recompute_layers
    assert layers is not None and counts is not None and c.recompute is not None, "an inner rule needs inner choices"
    shown = ", ".join(map(str, counts))
    if len(counts) != len(layers):
        return f"recompute_layers has {len(counts)} entries, layers_per_stage has {len(layers)}"
    if c.recompute is Recompute.NONE and any(counts):
        return f"recompute = none, but recompute_layers = ({shown}); legal: zeros, or recompute selective or full"
    for stage, (count, layer_count) in enumerate(zip(counts, layers, strict=True)):
        if not 0 <= count <= layer_count:
            return f"stage {stage} recomputes {count} layers and has {layer_count}; 0 to {layer_count} is legal"
    return None


RECOMPUTE = Rule(
    code="recompute",
    title="a stage recomputes layers that it has",
    formula="0 <= recompute_layers <= layers_per_stage; all 0 with recompute none",
    enforced_by="the meaning of a strategy",
    level=Level.INNER,
    holds=lambda c, facts: _recompute_fault(c, facts) is None,
    message=lambda c, facts: _recompute_fault(c, facts) or "",
)

RULES = (
    DEVICES,
    EXPERT_MESH,
    EXPERTS,
    HEADS,
    KV_HEADS,
    WIDTHS,
    INTERLEAVING,
    BATCH,
    STAGES,
    EXPERT_SHARDS,
    SEQUENCE_PARALLEL,
    RING_SEQUENCE,
    ULYSSES_HEADS,
    EXPERT_SEQUENCE,
    ZERO,
    ORDER,
    DUPLICATE,
    LAYERS,
    RECOMPUTE,
)
"""All rules of ``any``, in the order of their levels."""
