"""Random small cases: short stacks of every kind of model on a few devices, so that all candidates can be listed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from hardware import Cluster, Device, Level, Link, load_device
from hardware.yaml_reader import Document
from planner.graph import BATCH, SEQ, Block, Dim, Layer, Measurement, ModelGraph, Tensor
from planner.readers import parse_model
from planner.workload import Precision, Workload
from tests.planner.solvers.brute_force import Case, Enumeration

DEVICES = ("a100-sxm-80gb", "h100-sxm", "v100-sxm-32gb")


def from_config(config: dict[str, Any], name: str) -> ModelGraph:
    """A model as its reader makes it."""
    return parse_model(Document(file="config.json", content=config), name)


def from_json(model: ModelGraph) -> ModelGraph:
    """A model after it was written and read."""
    return parse_model(Document(file="model.json", content=model.to_json()), model.name)


def llama(rng: random.Random, num_layers: int) -> ModelGraph:
    heads = rng.choice((2, 4, 6, 8))
    return from_config(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": heads * rng.choice((64, 128, 256)),
            "intermediate_size": rng.choice((768, 2048, 4096)),
            "max_position_embeddings": 8192,
            "num_attention_heads": heads,
            "num_hidden_layers": num_layers,
            "num_key_value_heads": rng.choice([size for size in (1, 2, heads) if heads % size == 0]),
            "tie_word_embeddings": rng.random() < 0.4,
            "vocab_size": rng.choice((1000, 32_000, 128_256)),
        },
        "llama",
    )


def gpt2(rng: random.Random, num_layers: int) -> ModelGraph:
    heads = rng.choice((2, 4, 8))
    return from_config(
        {
            "model_type": "gpt2",
            "architectures": ["GPT2LMHeadModel"],
            "n_embd": heads * 128,
            "n_head": heads,
            "n_layer": num_layers,
            "n_positions": 8192,
            "vocab_size": rng.choice((1000, 50_257)),
        },
        "gpt2",
    )


def mixtral(rng: random.Random, num_layers: int) -> ModelGraph:
    return from_config(
        {
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "hidden_size": rng.choice((512, 1024)),
            "intermediate_size": rng.choice((768, 2048)),
            "max_position_embeddings": 8192,
            "num_attention_heads": 4,
            "num_hidden_layers": num_layers,
            "num_key_value_heads": rng.choice((2, 4)),
            "num_experts_per_tok": 2,
            "num_local_experts": rng.choice((2, 4)),
            "vocab_size": rng.choice((1000, 32_000)),
        },
        "mixtral",
    )


def mixed(rng: random.Random, num_layers: int) -> ModelGraph:
    """Dense layers first, then experts, with latent attention."""
    return from_config(
        {
            "model_type": "deepseek_v3",
            "architectures": ["DeepseekV3ForCausalLM"],
            "first_k_dense_replace": rng.randint(1, max(1, num_layers - 1)),
            "hidden_size": 1024,
            "intermediate_size": rng.choice((1024, 8192)),
            "kv_lora_rank": 64,
            "max_position_embeddings": 8192,
            "moe_intermediate_size": rng.choice((256, 1024)),
            "moe_layer_freq": 1,
            "n_routed_experts": rng.choice((2, 4)),
            "n_shared_experts": rng.choice((0, 1)),
            "num_attention_heads": 4,
            "num_experts_per_tok": 2,
            "num_hidden_layers": num_layers,
            "q_lora_rank": 128,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
            "vocab_size": rng.choice((1000, 64_000)),
        },
        "mixed",
    )


def alternating(rng: random.Random, num_layers: int) -> ModelGraph:
    """Every second layer has experts."""
    return from_config(
        {
            "model_type": "qwen3_moe",
            "architectures": ["Qwen3MoeForCausalLM"],
            "hidden_size": 512,
            "intermediate_size": 2048,
            "max_position_embeddings": 8192,
            "num_attention_heads": 4,
            "num_hidden_layers": num_layers,
            "num_key_value_heads": 2,
            "head_dim": 128,
            "decoder_sparse_step": 2,
            "mlp_only_layers": [],
            "moe_intermediate_size": 512,
            "num_experts": rng.choice((2, 4)),
            "num_experts_per_tok": 1,
            "vocab_size": 32_000,
        },
        "alternating",
    )


def opaque(rng: random.Random, num_layers: int) -> ModelGraph:
    """Two types of measured layers, without embedding and head, under some of the degrees only."""
    dims = {"hidden": Dim(name="hidden", size=1024)}
    tensors = {name: Tensor(name=name, dims=(BATCH, SEQ, "hidden")) for name in ("x", "y")}
    names = ("light", "heavy")
    layers = {
        name: Layer(
            name=name,
            dims=dims,
            tensors=tensors,
            ops=(),
            input="x",
            output="y",
            opaque_parameters=rng.randint(10**6, 10**8),
        )
        for name in names
    }
    seq_len, rows = 2048, []
    for name, device in ((name, device) for name in names for device in DEVICES):
        for tp, size in ((tp, size) for tp in (1, 2, 4) for size in (1, 2, 4)):
            if rng.random() < 0.15:
                continue
            forward = rng.uniform(1e-3, 5e-3) * size / tp
            saved = rng.randint(10**7, 10**9) * size // tp
            common = {"layer_type": name, "device": device, "tp": tp, "microbatch_size": size, "seq_len": seq_len}
            rows.append(
                Measurement(
                    **common,  # type: ignore[arg-type]
                    forward=forward,
                    backward=2 * forward,
                    saved=saved,
                    peak=rng.choice((None, saved // 2)),
                )
            )
            if rng.random() < 0.5:
                rows.append(
                    Measurement(
                        **common,  # type: ignore[arg-type]
                        recompute="full",
                        forward=forward,
                        backward=3 * forward,
                        saved=saved // 20,
                        peak=rng.choice((None, saved)),
                    )
                )
    first = rng.randint(1, num_layers - 1)
    return ModelGraph(
        name="opaque",
        family="graph",
        seq_len=seq_len,
        layer_types=layers,
        blocks=(Block(layer_type="light", count=first), Block(layer_type="heavy", count=num_layers - first)),
        measurements=tuple(rows),
    )


MODELS = (llama, llama, gpt2, mixtral, mixed, alternating, opaque)


def make_device(rng: random.Random) -> Device:
    """A device of the catalog with so much memory that nothing binds."""
    return replace(load_device(rng.choice(DEVICES)), memory=10**15, context_memory=0, communicator_memory=0)


def make_cluster(rng: random.Random, num_devices: int) -> Cluster:
    """One node, or several behind a slower network."""
    near = Link(bandwidth=rng.uniform(5e10, 4e11), latency=rng.uniform(1e-6, 1e-5))
    far = Link(bandwidth=rng.choice((1e9, 1e10, 5e10)), latency=rng.uniform(3e-6, 3e-5))
    sizes = [size for size in (1, 2, 4) if size < num_devices and num_devices % size == 0]
    node = rng.choice([num_devices, *sizes]) if sizes else num_devices
    levels = [Level(name="node", num_devices=node, link=near)]
    if node < num_devices:
        levels.append(Level(name="network", num_devices=num_devices, link=far))
    return Cluster(
        name="small",
        device=make_device(rng),
        num_devices=num_devices,
        devices_per_node=node,
        levels=tuple(levels),
    )


def random_case(seed: int, most: int, least: int = 1) -> tuple[Case, Enumeration]:
    """A case with no more than `most` complete candidates, memory without limit."""
    rng = random.Random(seed)
    while True:
        make = rng.choice(MODELS)
        num_layers = rng.randint(2, 8)
        model = make(rng, num_layers)
        num_devices = rng.choice((2, 3, 4, 4, 6, 8, 8, 12, 16))
        batch = rng.choice((4, 6, 8, 12, 16, 24, 32))
        case = Case(
            model=model,
            cluster=make_cluster(rng, num_devices),
            workload=Workload(
                global_batch_size=batch,
                seq_len=model.seq_len if make is opaque else rng.choice((1024, 2048, 4096)),
                precision=Precision.FP16,  # the one that all of these devices know
                expert_imbalance=rng.choice((1.0, 1.5)),
            ),
            target=rng.choice(("any", "any", "megatron")),
        )
        enumeration = Enumeration(case)
        if enumeration.is_small(least, most):
            return case, enumeration
