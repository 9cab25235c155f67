"""Megatron arguments of a plan, and back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from planner.export import CHECKED_VERSION, export_names, export_plan, parse_layout, read_megatron_arguments
from planner.export.megatron import layout
from planner.plan import Plan
from planner.readers import read_model
from planner.strategy import CpKind, RankOrder, Recompute
from planner.workload import Attention, Optimizer, Precision, Workload
from tests.planner.export.plans import make_plan
from tests.planner.export.samples import sample_plans
from tests.planner.targets.models import model, strategy, workload


def arguments_of(plan: Plan) -> list[str]:
    content = json.loads(export_plan(plan, "megatron").files["arguments.json"])
    return [value for option in content["arguments"] for value in option]


def options_of(plan: Plan) -> dict[str, list[str]]:
    content = json.loads(export_plan(plan, "megatron").files["arguments.json"])
    return {option[0]: option[1:] for option in content["arguments"]}


def test_a_small_plan_in_full() -> None:
    """tp 2 x cp 2 x pp 2 x dp 4 = 32 devices; 3 + 5 layers; two shard groups of 2 replicas."""
    its = strategy(
        tp=2,
        cp=2,
        pp=2,
        dp_shard=2,
        dp_replicate=2,
        zero_stage=1,
        layers_per_stage=(3, 5),
        recompute=Recompute.FULL,
        recompute_layers=(3, 4),
    )
    result = export_plan(make_plan(model(), its, workload()), "megatron")
    content = json.loads(result.files["arguments.json"])
    arguments = content.pop("arguments")
    assert content == {
        "launcher": "Megatron-LM",
        "checked_with": CHECKED_VERSION,
        "program": "pretrain_gpt.py",
        "num_devices": 32,
        "devices_per_host": 8,
        "environment": {"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    }
    assert "\n".join(" ".join(option) for option in arguments).split("\n") == [
        "--tensor-model-parallel-size 2",
        "--context-parallel-size 2",
        "--pipeline-model-parallel-size 2",
        "--pipeline-model-parallel-layout Et*3|t*5L",
        "--cp-comm-type p2p",
        "--sequence-parallel",
        "--micro-batch-size 1",
        "--global-batch-size 16",
        "--use-distributed-optimizer",
        "--num-distributed-optimizer-instances 2",
        "--overlap-grad-reduce",
        "--overlap-param-gather",
        "--recompute-granularity full",
        "--recompute-method block",
        "--recompute-num-layers 4",
        "--bf16",
        "--accumulate-allreduce-grads-in-fp32",
        "--optimizer adam",
        "--num-layers 8",
        "--hidden-size 64",
        "--seq-length 128",
        "--max-position-embeddings 128",
        "--position-embedding-type none",
        "--vocab-size 1000",
        "--make-vocab-size-divisible-by 128",
        "--untie-embeddings-and-output-weights",
        "--num-attention-heads 32",
        "--group-query-attention",
        "--num-query-groups 8",
        "--kv-channels 4",
        "--ffn-hidden-size 96",
        "--swiglu",
        "--disable-bias-linear",
        "--hidden-dropout 0.0",
        "--attention-dropout 0.0",
    ]
    assert result.command == "HOST_RANK=<0, 1, ...> MASTER_ADDR=<first host> bash launch.sh"


def test_equal_plans_give_equal_files() -> None:
    first, second = (export_plan(make_plan(model(), strategy(), workload()), "megatron") for _ in range(2))
    assert first == second


def test_degrees_are_written_out_also_where_they_are_defaults() -> None:
    options = options_of(make_plan(model(experts=8), strategy(), workload()))
    for name in ("tensor", "context", "pipeline", "expert"):
        option = f"--{name}-parallel-size" if name == "context" else f"--{name}-model-parallel-size"
        assert options[option] == ["1"]
    assert options["--expert-tensor-parallel-size"] == ["1"]


def test_no_pipeline_means_no_layout() -> None:
    """Options about stages without a pipeline may build a shorter model."""
    options = options_of(make_plan(model(), strategy(tp=2), workload()))
    assert not [name for name in options if "layout" in name or "first" in name or "last" in name or "virtual" in name]


def test_ulysses_and_dp_outer_are_named() -> None:
    its = strategy(cp=2, cp_kind=CpKind.ULYSSES)
    assert options_of(make_plan(model(), its, workload()))["--cp-comm-type"] == ["a2a"]
    its = strategy(pp=2, tp=2, dp_shard=2, zero_stage=1, rank_order=RankOrder.DP_OUTER)
    assert "--use-tp-pp-dp-mapping" in options_of(make_plan(model(), its, workload()))


@pytest.mark.parametrize(("stage", "name"), [(2, "optim_grads"), (3, "optim_grads_params")])
def test_higher_zero_stages_use_megatron_fsdp(stage: int, name: str) -> None:
    plan = make_plan(model(), strategy(dp_shard=8, zero_stage=stage), workload())
    options = options_of(plan)
    assert options["--data-parallel-sharding-strategy"] == [name]
    assert {"--use-megatron-fsdp", "--use-distributed-optimizer"} <= set(options)
    assert options["--ckpt-format"] == ["fsdp_dtensor"]
    content = json.loads(export_plan(plan, "megatron").files["arguments.json"])
    assert content["environment"]["CUDA_DEVICE_MAX_CONNECTIONS"] != "1"  # Megatron-FSDP refuses 1


def test_plain_data_parallelism_shards_nothing() -> None:
    options = options_of(make_plan(model(), strategy(dp_replicate=4), workload()))
    assert "--overlap-grad-reduce" in options
    assert not {"--use-distributed-optimizer", "--overlap-param-gather"} & set(options)


@pytest.mark.parametrize(
    ("precision", "gradient_bytes", "expected"),
    [
        (Precision.BF16, 4, {"--bf16", "--accumulate-allreduce-grads-in-fp32"}),
        (Precision.BF16, 2, {"--bf16", "--grad-reduce-in-bf16"}),
        (Precision.FP16, 4, {"--fp16", "--accumulate-allreduce-grads-in-fp32"}),
        (Precision.FP16, 2, {"--fp16"}),
        (Precision.FP32, 4, set()),
    ],
)
def test_precision(precision: Precision, gradient_bytes: int, expected: set[str]) -> None:
    job = workload(precision=precision, gradient_bytes=gradient_bytes)
    named = {name for name in options_of(make_plan(model(), strategy(), job)) if "16" in name or "32" in name}
    assert named == expected


def test_selective_recomputation_names_the_modules_of_the_model() -> None:
    graph = read_model("deepseek-v3")
    its = strategy(layers_per_stage=(61,), recompute=Recompute.SELECTIVE, recompute_layers=(61,))
    options = options_of(make_plan(graph, its, workload()))
    assert options["--recompute-granularity"] == ["selective"]
    assert options["--recompute-modules"] == ["layernorm", "mla_up_proj", "moe_act"]
    assert "--recompute-method" not in options
    options = options_of(make_plan(graph, its, workload(attention=Attention.UNFUSED)))
    assert options["--recompute-modules"] == ["core_attn", "layernorm", "mla_up_proj", "moe_act"]
    assert options["--attention-backend"] == ["unfused"]


def test_selective_recomputation_of_nothing_is_told() -> None:
    its = strategy(recompute=Recompute.SELECTIVE, recompute_layers=(8,))
    result = export_plan(make_plan(model(), its, workload()), "megatron")
    assert "recompute" not in result.files["arguments.json"]
    assert any("selective recomputation is left out" in warning for warning in result.warnings)


# Shapes of models


def shape(name: str, **values: object) -> dict[str, list[str]]:
    graph = read_model(name)
    num_layers = graph.num_layers - 2
    its = strategy(layers_per_stage=(num_layers,), recompute_layers=(0,))
    return options_of(make_plan(graph, its, Workload(global_batch_size=16, seq_len=2048, **values)))  # type: ignore[arg-type]


def test_shape_of_llama() -> None:
    options = shape("llama-3.1-8b")
    assert options["--num-layers"] == ["32"]
    assert options["--hidden-size"] == ["4096"]
    assert options["--ffn-hidden-size"] == ["14336"]
    assert options["--num-query-groups"] == ["8"]
    assert options["--kv-channels"] == ["128"]
    assert options["--vocab-size"] == ["128256"]
    assert options["--normalization"] == ["RMSNorm"]
    assert options["--position-embedding-type"] == ["rope"]
    assert {"--swiglu", "--disable-bias-linear", "--untie-embeddings-and-output-weights"} <= set(options)
    assert not {"--qk-layernorm", "--num-experts", "--add-qkv-bias"} & set(options)


def test_shape_of_gpt3() -> None:
    options = shape("gpt3-175b")
    assert options["--normalization"] == ["LayerNorm"]
    assert options["--position-embedding-type"] == ["learned_absolute"]
    assert options["--max-position-embeddings"] == ["2048"]
    assert not {"--swiglu", "--disable-bias-linear", "--group-query-attention"} & set(options)


def test_shape_of_deepseek() -> None:
    options = shape("deepseek-v3")
    expected = {
        "--num-layers": "61",
        "--q-lora-rank": "1536",
        "--kv-lora-rank": "512",
        "--qk-head-dim": "128",
        "--qk-pos-emb-head-dim": "64",
        "--v-head-dim": "128",
        "--num-experts": "256",
        "--moe-router-topk": "8",
        "--moe-ffn-hidden-size": "2048",
        "--moe-shared-expert-intermediate-size": "2048",
        "--moe-layer-freq": "([0]*3+[1]*58)",
        "--ffn-hidden-size": "18432",
    }
    assert {name: options[name] for name in expected} == {name: [value] for name, value in expected.items()}
    assert {"--multi-latent-attention", "--qk-layernorm", "--moe-grouped-gemm"} <= set(options)


def test_shape_of_qwen_and_mixtral() -> None:
    assert {"--qk-layernorm", "--disable-bias-linear"} <= set(shape("qwen3-30b-a3b"))
    options = shape("mixtral-8x7b")
    assert (options["--num-experts"], options["--moe-router-topk"]) == (["8"], ["2"])
    assert not {"--moe-layer-freq", "--ffn-hidden-size"} & set(options)


def test_a_window_counts_the_keys_before_a_query() -> None:
    """16 keys are the query's own and 15 before it."""
    options = options_of(make_plan(model(window=16), strategy(), workload()))
    assert options["--window-size"] == ["15,0"]
    assert "--window-attn-skip-freq" not in options


def test_tied_embeddings_stay_tied() -> None:
    result = export_plan(make_plan(model(tied=True), strategy(pp=2), workload()), "megatron")
    assert "--untie" not in result.files["launch.sh"]
    assert any("copy of the tied embedding" in warning for warning in result.warnings)


# Refusals and warnings


def test_a_plan_that_megatron_would_not_run_is_refused_with_all_reasons() -> None:
    its = strategy(tp=3, pp=2, layers_per_stage=(8, 0))
    with pytest.raises(ValueError, match="would not run") as error:
        export_plan(make_plan(model(), its, workload()), "megatron")
    assert [line.split(":")[0].strip() for line in str(error.value).splitlines()[1:]] == ["R5", "R6", "R9", "R14"]


def test_uneven_recomputation_is_refused() -> None:
    its = strategy(pp=2, recompute=Recompute.FULL, recompute_layers=(4, 1))
    with pytest.raises(ValueError, match="R21"):
        export_plan(make_plan(model(), its, workload()), "megatron")


def test_what_only_the_exporter_knows_is_refused() -> None:
    its = strategy(dp_shard=2, zero_stage=2)
    with pytest.raises(ValueError, match="takes adam and sgd"):
        export_plan(make_plan(model(), its, workload(optimizer=Optimizer.LION)), "megatron")
    graph = read_model("gpt3-175b")
    its = strategy(layers_per_stage=(96,))
    with pytest.raises(ValueError, match="2048 learned positions"):
        export_plan(make_plan(graph, its, workload(seq_len=4096)), "megatron")


def test_an_unknown_launcher_is_refused_with_the_nearest_name() -> None:
    plan = make_plan(model(), strategy(), workload())
    assert export_names() == ("megatron",)
    with pytest.raises(ValueError, match="did you mean 'megatron'"):
        export_plan(plan, "megatorn")


def test_warnings_name_what_is_lost() -> None:
    job = workload(stack="torch-eager", gradient_bytes=2, precision=Precision.FP32)
    plan = make_plan(model(experts=8), strategy(tp=2), job, cluster="dgx-h100*2", target="any")
    told = "\n".join(export_plan(plan, "megatron").warnings)
    for words in (
        "how the router scores",
        "searched for target any",
        "24 entries",
        "gradients of fp32 weights",
        "software stack torch-eager",
        "uses 2 of 16 devices",
        "does not know the tokenizer",
    ):
        assert words in told


def test_a_large_link_domain_is_told() -> None:
    plan = make_plan(model(), strategy(), workload(), cluster="gb200-nvl72")
    assert any("DEVICES_PER_HOST" in warning for warning in export_plan(plan, "megatron").warnings)


# Layout strings


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ((7, 9, 9, 7), "Et*7|t*9|t*9|t*7L"),
        ((1, 2, 1), "Et|t*2|tL"),
        ((3, *(4,) * 6, 5), "Et*3|t*4|t*4|t*4|t*4|t*4|t*4|t*5L"),
        ((0, 8, 0), "E|t*8|L"),
    ],
)
def test_layout_holds_the_layers_of_the_stages(layers: tuple[int, ...], text: str) -> None:
    assert layout(layers) == text
    assert tuple(stage.count("t") for stage in parse_layout(text)) == layers


@pytest.mark.parametrize(
    ("text", "stages"),
    [
        ("Et*3|(t*4|)*2t*5L", ["Ettt", "tttt", "tttt", "tttttL"]),
        ("Ettt|(tt|)*3,m|L", ["Ettt", "tt", "tt", "tt", "m", "L"]),
        ("E|(t|)*3,m|m||L", ["E", "t", "t", "t", "m", "m", "", "L"]),
    ],
)
def test_layouts_that_people_write_are_read(text: str, stages: list[str]) -> None:
    assert parse_layout(text) == stages


@pytest.mark.parametrize("text", ["", "t|t", "EtL|t", "E|x|L", "E(t|L", "Et*L", "tE|tL"])
def test_a_layout_of_other_letters_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="layout"):
        parse_layout(text)


# Back again

SMALL = [model(), model(layers=12, experts=8, dense_layers=2), model(layers=9, tied=True)]


@pytest.mark.parametrize("plan", sample_plans(SMALL, 60, seed=1))
def test_arguments_read_back_are_the_plan(plan: Plan) -> None:
    expected = plan.strategy
    if expected.recompute is Recompute.SELECTIVE and "--recompute-modules" not in arguments_of(plan):
        expected = replace(expected, recompute=Recompute.NONE, recompute_layers=(0,) * expected.num_stages)
    read = read_megatron_arguments(arguments_of(plan), expected.world_size)
    assert read.degrees == plan.strategy.degrees
    assert read == expected


BASE = ["--num-layers", "8", "--micro-batch-size", "2", "--global-batch-size", "32"]


def read(text: str, num_devices: int = 8) -> tuple[int, ...]:
    return read_megatron_arguments([*BASE, *text.split()], num_devices).layers_per_stage


def test_other_ways_to_write_stages_are_read() -> None:
    pipeline = "--pipeline-model-parallel-size 4 "
    assert read("") == (8,)
    assert read(pipeline) == (2, 2, 2, 2)
    assert read(pipeline + "--num-virtual-stages-per-pipeline-rank 2") == (1,) * 8
    assert read(pipeline + "--num-layers-per-virtual-pipeline-stage 1") == (1,) * 8
    assert read(pipeline + "--decoder-first-pipeline-num-layers 1 --decoder-last-pipeline-num-layers 3") == (1, 2, 2, 3)
    assert read("--pipeline-model-parallel-layout=Et*5|t*3L --pipeline-model-parallel-size=2") == (5, 3)


def test_defaults_are_megatron_s() -> None:
    """Experts are split over tp unless told otherwise; full sharding is the default of Megatron-FSDP."""
    text = "--tensor-model-parallel-size 2 --num-experts 8 --use-megatron-fsdp --some-other-option 3"
    its = read_megatron_arguments([*BASE, *text.split()], 8)
    assert (its.etp, its.dp, its.dp_shard, its.zero_stage, its.num_microbatches) == (2, 4, 4, 3, 4)
    assert not its.sequence_parallel


def test_recomputation_is_read() -> None:
    its = read_megatron_arguments([*BASE, "--recompute-activations"], 1)
    assert (its.recompute, its.recompute_layers) == (Recompute.SELECTIVE, (8,))
    text = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    its = read_megatron_arguments([*BASE, *text.split()], 1)
    assert (its.recompute, its.recompute_layers) == (Recompute.FULL, (8,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--tensor-model-parallel-size three", "invalid int"),
        ("--tensor-model-parallel-size 0", "at least 1"),
        ("--tensor-model-parallel-size 3", "8 devices"),
        ("--pipeline-model-parallel-size 8 --decoder-first-pipeline-num-layers 3", "cannot be split"),
        ("--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et|t|tL", "no multiple of pp"),
        ("--micro-batch-size 3", "global batch 32"),
        ("--recompute-granularity some", "accepted: full, selective"),
        ("--recompute-granularity full", "--recompute-method"),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy zero", "accepted: no_shard"),
        ("--use-distributed-optimizer --num-distributed-optimizer-instances 3", "3 instances"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_megatron_arguments([*BASE, *text.split()], 8)


def test_layers_are_needed() -> None:
    with pytest.raises(ValueError, match="--num-layers"):
        read_megatron_arguments([], 1)
