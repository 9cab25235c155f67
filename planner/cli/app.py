"""Commands and their options. Nothing heavy is imported before a command runs, so that ``--help`` answers fast."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated, NoReturn, Optional

import typer
import typer.main

from hardware.errors import printable
from planner.cli.status import BAD_INPUT, FAULT, INTERRUPTED, Interrupted, PlannerFault
from planner.cli.terminal import hint

STATUSES = """\
Exit status: 0 an answer; 1 proven that no plan fits (estimate: it does not fit or breaks a rule of the target);
2 bad input; 3 stopped by a limit without a plan; 4 a fault of the planner; 130 interrupted (the best plan so far is
printed and saved)."""

app = typer.Typer(
    name="planner",
    help="Finds the fastest way to split the training of a large network over the devices of a cluster, with a proof.",
    epilog=STATUSES,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)

# typer evaluates annotations in this module, and older ones need Optional.
Text = Optional[str]  # noqa: UP045

Model = Annotated[str, typer.Argument(help="Catalog name, Hugging Face config.json or model graph.", metavar="MODEL")]
Cluster = Annotated[str, typer.Argument(help="cluster.yaml, or NODE*COUNT as dgx-h100*64.", metavar="CLUSTER")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no hints on stderr.")]

JOB = "What is trained"
SPACE = "Where to search"
LIMITS = "How long to search"
OUTPUT = "What to print and write"

BatchSize = Annotated[
    Text,
    typer.Option("--global-batch-size", help="Sequences of one step.", metavar="N", rich_help_panel=JOB),
]
SeqLen = Annotated[
    Text,
    typer.Option("--seq-len", help="Tokens of a sequence; the model's.", metavar="N", rich_help_panel=JOB),
]
WorkloadFile = Annotated[
    Text,
    typer.Option("--workload", help="YAML file with these and more fields.", metavar="FILE", rich_help_panel=JOB),
]
Precision = Annotated[
    Text, typer.Option("--precision", help="bf16, fp16 or fp32.", metavar="NAME", rich_help_panel=JOB)
]
Optimizer = Annotated[
    Text, typer.Option("--optimizer", help="adam, adamw, lion or sgd.", metavar="NAME", rich_help_panel=JOB)
]
Attention = Annotated[Text, typer.Option("--attention", help="flash or unfused.", metavar="NAME", rich_help_panel=JOB)]
Stack = Annotated[
    Text,
    typer.Option("--stack", help="megatron-core, torch-eager or torch-compile.", metavar="NAME", rich_help_panel=JOB),
]
TargetName = Annotated[
    str, typer.Option("--target", help="Launcher whose rules a plan keeps: any or megatron.", metavar="NAME")
]
Headroom = Annotated[
    Text, typer.Option("--headroom", help="Share of device memory left free, as 8% or 0.08.", metavar="SHARE")
]


@app.command(
    epilog="Example: planner search llama-3.1-8b 'dgx-h100*2' --global-batch-size 256 -o plan.json",
    short_help="Find the fastest plan and prove it.",
)
def search(
    model: Model,
    cluster: Cluster,
    global_batch_size: BatchSize = None,
    seq_len: SeqLen = None,
    workload: WorkloadFile = None,
    precision: Precision = None,
    optimizer: Optimizer = None,
    attention: Attention = None,
    stack: Stack = None,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="Launcher whose rules a plan keeps: any or megatron.",
            metavar="NAME",
            rich_help_panel=SPACE,
        ),
    ] = "any",
    fix: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--fix", help="KEY=8, KEY=4,8 or 'KEY<=8'; repeatable.", metavar="KEY=VALUE", rich_help_panel=SPACE
        ),
    ] = None,
    headroom: Annotated[
        Text,
        typer.Option(
            "--headroom",
            help="Share of device memory left free, as 8% or 0.08; what the stack needs.",
            metavar="SHARE",
            rich_help_panel=SPACE,
        ),
    ] = None,
    objective: Annotated[
        str, typer.Option("--objective", help="step_time.", metavar="NAME", rich_help_panel=SPACE)
    ] = "step_time",
    layouts: Annotated[
        str,
        typer.Option("--layouts", help="Family of layers per stage: balanced.", metavar="NAME", rich_help_panel=SPACE),
    ] = "balanced",
    within: Annotated[
        str,
        typer.Option(
            "--within",
            help="Name every mesh that can be within this share of the best, as 3%.",
            metavar="SHARE",
            rich_help_panel=LIMITS,
        ),
    ] = "0",
    time_limit: Annotated[
        Text, typer.Option("--time-limit", help="Seconds, or as 2 min.", metavar="TIME", rich_help_panel=LIMITS)
    ] = None,
    max_work: Annotated[
        Text,
        typer.Option(
            "--max-work",
            help="Bounds and evaluations; stops at the same plan on each run.",
            metavar="N",
            rich_help_panel=LIMITS,
        ),
    ] = None,
    top: Annotated[
        str, typer.Option("--top", help="Distinct plans to prove best.", metavar="K", rich_help_panel=LIMITS)
    ] = "1",
    output: Annotated[
        Text,
        typer.Option(
            "--output",
            "-o",
            help="Write the plan here; with --top also FILE.2.json, ...",
            metavar="FILE",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object and nothing else on stdout.", rich_help_panel=OUTPUT),
    ] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="No progress and no hints on stderr.", rich_help_panel=OUTPUT)
    ] = False,
) -> int:
    """Find the fastest way to split training of MODEL over CLUSTER, and prove it within the space and cost model."""
    from planner.cli.search_command import SearchArguments, run_search

    return run_search(
        SearchArguments(
            model=model,
            cluster=cluster,
            workload_file=workload,
            workload={
                "global_batch_size": global_batch_size,
                "seq_len": seq_len,
                "precision": precision,
                "optimizer": optimizer,
                "attention": attention,
                "stack": stack,
            },
            target=target,
            fix=tuple(fix or ()),
            headroom=headroom,
            objective=objective,
            layouts=layouts,
            within=within,
            time_limit=time_limit,
            max_work=max_work,
            top=top,
            output=output,
            json=json,
            quiet=quiet,
        )
    )


@app.command(
    epilog="Example: planner estimate llama-2-70b 'dgx-h100*8' --global-batch-size 512 --set tp=8 pp=4",
    short_help="Time and memory of one configuration.",
)
def estimate(
    model: Annotated[Text, typer.Argument(help="As for search; with --plan, the plan's.", metavar="MODEL")] = None,
    cluster: Annotated[Text, typer.Argument(help="As for search; with --plan, the plan's.", metavar="CLUSTER")] = None,
    plan: Annotated[Text, typer.Option("--plan", help="Take the configuration of a plan.", metavar="FILE")] = None,
    choices: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--set",
            help="KEY=VALUE: keys of --fix, cp_kind, rank_order, layers_per_stage, recompute_layers.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    global_batch_size: BatchSize = None,
    seq_len: SeqLen = None,
    workload: WorkloadFile = None,
    precision: Precision = None,
    optimizer: Optimizer = None,
    attention: Attention = None,
    stack: Stack = None,
    target: Annotated[
        Text, typer.Option("--target", help="Launcher whose rules count: any or megatron.", metavar="NAME")
    ] = None,
    headroom: Headroom = None,
    output: Annotated[Text, typer.Option("--output", "-o", help="Write it as a plan.", metavar="FILE")] = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Say what one configuration takes, per stage, whether it fits and whether the target would run it.

    What is not set is 1; dp follows from the devices, layers are split evenly, and states are sharded over dp
    (ZeRO-1) where there is more than one rank.
    """
    from planner.cli.estimate_command import EstimateArguments, run_estimate

    return run_estimate(
        EstimateArguments(
            model=model,
            cluster=cluster,
            plan=plan,
            choices=tuple(choices or ()),
            workload_file=workload,
            workload={
                "global_batch_size": global_batch_size,
                "seq_len": seq_len,
                "precision": precision,
                "optimizer": optimizer,
                "attention": attention,
                "stack": stack,
            },
            target=target,
            headroom=headroom,
            output=output,
            json=json,
            quiet=quiet,
        )
    )


@app.command(
    epilog="Examples: planner show llama-3.1-8b; planner show 'dgx-h100*4'; planner show catalog",
    short_help="What was read of a model, cluster or device.",
)
def show(
    thing: Annotated[
        str,
        typer.Argument(help="A model, a cluster, a device or a plan file; catalog lists the names.", metavar="NAME"),
    ],
    seq_len: Annotated[
        Text, typer.Option("--seq-len", help="Tokens of a sequence for the FLOPs; the model's.", metavar="N")
    ] = None,
    json: Json = False,
) -> int:
    """Print what the planner knows of a model, cluster or device, and where the figures come from."""
    from planner.cli.show_command import run_show

    return run_show(thing, seq_len=seq_len, as_json=json)


@app.command(
    epilog="Example: planner export plan.json --to megatron -o launch",
    short_help="Write the files that a launcher reads.",
)
def export(
    plan: Annotated[str, typer.Argument(help="A plan file.", metavar="PLAN")],
    to: Annotated[str, typer.Option("--to", help="megatron.", metavar="TARGET")],
    output: Annotated[
        Text, typer.Option("--output", "-o", help="Folder for the files; PLAN-TARGET.", metavar="FOLDER")
    ] = None,
    quiet: Quiet = False,
) -> int:
    """Write the files that launch a plan, all or none, and print the command."""
    from planner.cli.export_command import run_export

    return run_export(plan, to, output, quiet=quiet)


@app.command(epilog="Example: planner rule R5", short_help="Explain a rule of validity.")
def rule(
    code: Annotated[str, typer.Argument(help="Code of the rule, as R5.", metavar="CODE")],
    target: Annotated[Text, typer.Option("--target", help="Only of this target.", metavar="NAME")] = None,
) -> int:
    """Print what a rule of validity asks for, its formula, and who enforces it."""
    from planner.cli.rule_command import run_rule

    return run_rule(code, target)


@app.command(epilog="Example: planner schema cluster > cluster.schema.json", short_help="JSON Schema of a file format.")
def schema(
    name: Annotated[str, typer.Argument(help="plan, cluster or model.", metavar="plan|cluster|model")],
) -> int:
    """Print the JSON Schema of a file that the planner reads or writes."""
    from planner.cli.schema_command import run_schema

    return run_schema(name)


_PAIR = re.compile(r"[A-Za-z_]+<?=.*", re.DOTALL)
_PAIR_OPTIONS = ("--fix", "--set")


def spread_pairs(arguments: Sequence[str]) -> list[str]:
    """``--fix tp=8 pp=4`` as ``--fix tp=8 --fix pp=4``."""
    spread: list[str] = []
    option: str | None = None
    for position, argument in enumerate(arguments):
        first = position > 0 and arguments[position - 1] in _PAIR_OPTIONS
        if argument in _PAIR_OPTIONS:
            option = argument
        elif option is not None and not first and _PAIR.fullmatch(argument):
            spread.append(option)
        elif not first:
            option = None
        spread.append(argument)
    return spread


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit status; every failure becomes readable lines on stderr."""
    debug = "--debug" in arguments
    given = [argument for argument in arguments if argument != "--debug"]
    # Boxes are for people in front of a terminal only.
    app.rich_markup_mode = "rich" if sys.stdout.isatty() else None
    try:
        command: Callable[..., int | None] = typer.main.get_command(app)
        status = command(spread_pairs(given) or ["--help"], prog_name="planner", standalone_mode=False)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  # the top of the program: nothing may end in a traceback
        if debug:
            traceback.print_exc()
        return _explain(error)
    return int(status or 0)


def _explain(error: Exception) -> int:
    """The lines and the status of a failure."""
    if isinstance(error, _usage_errors()):
        message = error.format_message()  # type: ignore[attr-defined]
        context = getattr(error, "ctx", None)
        hint = f"; see {context.command_path} --help" if context is not None else ""
        return _fail([message.rstrip(".") + hint], BAD_INPUT)
    if isinstance(error, PlannerFault):
        return _fail(str(error).splitlines(), FAULT)
    if isinstance(error, Interrupted):
        return _fail([str(error)], INTERRUPTED)
    if isinstance(error, ValueError):
        return _fail(str(error).splitlines(), BAD_INPUT)
    if isinstance(error, OSError):
        name = "" if error.filename is None else f"{error.filename}: "
        return _fail([f"{name}{error.strerror or error}"], BAD_INPUT)
    return _fail([f"a fault of the planner, {type(error).__name__}: {error}; --debug shows where"], FAULT)


def _usage_errors() -> type[Exception]:
    """What typer raises for a wrong command line, in each of its versions."""
    return typer.BadParameter.__mro__[1]


def _fail(lines: Sequence[str], status: int) -> int:
    for line in lines or ["unknown"]:
        hint(f"error: {printable(line, 4000)}")
    return status


def main() -> NoReturn:
    """The console command."""
    sys.exit(run(sys.argv[1:]))
